"""Linear sums: units of a slot, its padded content, what a window releases, and how far one slot moves it."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hushstream.features.schema import declare
from hushstream.privacy.errors import BadGuarantee
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.guarantee import linear_sums_guarantee, slot_sums_guarantee
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale, truncation
from hushstream.systems.p2b.shuffler import ShufflingError, linear_sums, noised_sums
from hushstream.systems.p2b.slots import (
    UNITS,
    BadSlot,
    ContributionError,
    FeatureLayout,
    SlotUnits,
    budgets,
    layout_of,
    pack_null,
    pack_reports,
    slot_bytes,
    unpack_reports,
)

SCHEMA = declare(
    {
        "country": {"kind": "category", "vocabulary": ["de", "fr", "se"]},
        "age": {"kind": "number", "range": [16, 96]},
        "hour": {"kind": "time_of_day"},
        "likes": {"kind": "tags", "vocabulary": ["books", "games", "toys", "food", "music"], "most": 3},
        "text": {"kind": "embedding", "dimension": 5},
        "pair": {"kind": "cross", "of": ["country", "hour"]},
    }
)
ARMS, LEVELS = 4, 3
LAYOUT = layout_of(SCHEMA, ARMS, LEVELS, epsilon=1.0, slots=1000)
VISITS = st.fixed_dictionaries(
    {},
    optional={
        "country": st.sampled_from(["de", "fr", "se", "xx"]),
        "age": st.floats(0, 120),
        "hour": st.floats(0, 24),
        "likes": st.lists(st.sampled_from(["books", "games", "toys", "food", "music"]), max_size=5),
        "text": st.lists(st.floats(-2, 2), min_size=5, max_size=5),
    },
)


def _units(visits) -> SlotUnits:
    return LAYOUT.units_of(SCHEMA.blocks(SCHEMA.read(b"".join(SCHEMA.encode(one).row for one in visits))))


def _content(visit, arm=1, level=2) -> bytes:
    return pack_reports(LAYOUT, np.array([arm]), np.array([level]), 7, _units([visit]))[0]


def _sums(contents) -> np.ndarray:
    reports = unpack_reports(LAYOUT, contents)
    found = linear_sums(LAYOUT, reports, np.ones(len(contents), dtype=np.bool_))
    return np.stack([found.ones, found.zeros])


@given(st.lists(VISITS, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_units_of_a_block_sum_to_its_budget_and_follow_its_shares(visits):
    blocks = SCHEMA.blocks(SCHEMA.read(b"".join(SCHEMA.encode(one).row for one in visits)))
    found = LAYOUT.units_of(blocks)
    assert (np.abs(found.units).sum(axis=1) <= UNITS).all()
    assert (found.units[:, 0] == LAYOUT.budgets[0]).all()
    for number, (block, budget) in enumerate(zip(LAYOUT.blocks[1:], LAYOUT.budgets[1:], strict=True)):
        across = slice(block.first_place, block.first_place + block.places)
        totals = np.abs(found.units[:, across]).sum(axis=1)
        parts = blocks.parts[:, across.start - 1 : across.stop - 1]
        empty = ~parts.any(axis=1)
        assert (totals == np.where(empty, 0, budget)).all()
        wanted = parts / blocks.wholes[:, number : number + 1] * budget
        assert (np.abs(found.units[:, across] - wanted) <= 1.0).all()


def test_a_visit_that_says_something_in_every_block_uses_all_units_and_no_more():
    visit = {"country": "de", "age": 31.7, "hour": 5.3, "likes": ["toys", "books", "food"], "text": [1, 2, 3, 4, 5]}
    assert np.abs(_units([visit]).units).sum() == UNITS


@pytest.mark.parametrize(
    ("arms", "epsilon", "slots", "windows", "share"),
    [(10, 1.0, 50_000, 1, 0.1), (10, 0.5, 2_000, 1, 0.24), (200, 1.0, 2_000, 1, 0.9), (10, 1.0, 2_000, 4, 0.24)],
)
def test_the_arms_own_budget_grows_where_there_are_few_slots(arms, epsilon, slots, windows, share):
    found = budgets(8, arms, epsilon, slots, windows)
    assert found[0] / UNITS == pytest.approx(share, abs=8 / UNITS)
    assert len(set(found[1:])) == 1
    assert sum(found) == UNITS


def test_impossible_budgets_are_refused():
    for wrong in (
        (0, 1, 1.0, 1),
        (1, 0, 1.0, 1),
        (1, 1, 0.0, 1),
        (1, 1, 1.0, 0),
        (1, 1, float("nan"), 1),
        (4000, 1, 1.0, 1),
    ):
        with pytest.raises(ContributionError):
            budgets(*wrong)
    for parts in ((UNITS,), (1, 1, 1, 1, 1, 1, UNITS), (0, 1, 1, 1, 1, 1, 1)):
        with pytest.raises(ContributionError):
            FeatureLayout(SCHEMA, ARMS, LEVELS, parts)


@given(VISITS, st.integers(0, ARMS - 1), st.integers(0, LEVELS))
@settings(max_examples=60, deadline=None)
def test_every_slot_is_alike_in_size_and_a_report_comes_back_as_it_went(visit, arm, level):
    units, content = _units([visit]), _content(visit, arm, level)
    assert len(content) == len(pack_null(LAYOUT)) == slot_bytes(LAYOUT.places)
    found = unpack_reports(LAYOUT, [content, pack_null(LAYOUT)])
    assert found.held.tolist() == [True, False]
    assert found.forged.tolist() == [False, False]
    assert (found.arms[0], found.levels[0], found.catalogues[0]) == (arm, level, 7)
    assert (found.cells[0] == units.cells).all()
    assert (found.units[0] == units.units).all()
    assert not found.units[1].any()


_HEAD = b"\x02\x01\x01\x00\x02\x00\x00\x00\x01\x00\x00\x00"
"""Of a report of arm 2 and level 1."""


@given(st.binary(min_size=slot_bytes(LAYOUT.places), max_size=slot_bytes(LAYOUT.places)))
@settings(max_examples=100, deadline=None)
def test_no_bytes_whatever_move_the_sums_by_more_than_the_noise_covers(content):
    for head in (b"", _HEAD):
        moved = np.abs(_sums([head + content[len(head) :]])).sum()
        assert moved <= LAYOUT.sensitivity


@given(
    st.lists(st.integers(0, LAYOUT.cells - 1), min_size=LAYOUT.places, max_size=LAYOUT.places),
    st.lists(st.integers(-2 * UNITS, 2 * UNITS), min_size=LAYOUT.places, max_size=LAYOUT.places),
    st.integers(1, 400),
)
@example([*range(LAYOUT.places)], [UNITS, -UNITS] + [0] * (LAYOUT.places - 2), 1)
@example([0] * LAYOUT.places, [UNITS] * LAYOUT.places, 1)
@settings(max_examples=200, deadline=None)
def test_no_forged_report_moves_the_sums_by_more_than_the_noise_covers(cells, units, divisor):
    places = np.array(cells, dtype="<u2").tobytes()
    forged = _HEAD + places + np.trunc(np.array(units) / divisor).astype("<i2").tobytes()
    assert np.abs(_sums([forged])).sum() <= LAYOUT.sensitivity


def test_the_bound_on_one_slot_is_reached_and_twice_by_another_report():
    full = [
        _content({"country": "de", "age": 30, "hour": 5, "text": [1, 0, 0, 0, 0]}, level=level) for level in (0, LEVELS)
    ]
    null = _sums([pack_null(LAYOUT)])
    assert [np.abs(_sums([one]) - null).sum() for one in full] == [LAYOUT.sensitivity] * 2
    assert np.abs(_sums(full[:1]) - _sums(full[1:])).sum() == 2 * LAYOUT.sensitivity


def _changed(**columns) -> bytes:
    from hushstream.systems.p2b.slots import _columns

    slot = np.frombuffer(_content({"country": "de"}), _columns(LAYOUT.places)).copy()
    for name, value in columns.items():
        if name in ("cells", "units"):
            slot[name][0, 0] = value
        else:
            slot[name] = value
    return slot.tobytes()


@pytest.mark.parametrize(
    "forged",
    [
        _changed(units=UNITS + 1),
        _changed(units=-32768),
        _changed(cells=LAYOUT.cells),
        _changed(arm=ARMS),
        _changed(level=LEVELS + 1),
        _changed(version=1),
        _changed(kind=2),
        _changed(kind=0),
    ],
)
def test_a_forged_slot_is_null_and_counted_as_forged(forged):
    found = unpack_reports(LAYOUT, [forged, _content({}), pack_null(LAYOUT)])
    assert found.held.tolist() == [False, True, False]
    assert found.forged.tolist() == [True, False, False]
    assert (_sums([forged, pack_null(LAYOUT)]) == 0).all()


def test_contents_of_another_length_are_refused():
    with pytest.raises(BadSlot, match="bytes of slot content"):
        unpack_reports(LAYOUT, [_content({}), b"x"])
    with pytest.raises(BadSlot, match="inside the layout"):
        pack_reports(LAYOUT, np.array([ARMS]), np.array([0]), 0, _units([{}]))
    with pytest.raises(BadSlot, match="inside the layout"):
        pack_reports(LAYOUT, np.array([0]), np.array([-1]), 0, _units([{}]))
    with pytest.raises(BadSlot, match="inside the layout"):
        pack_reports(LAYOUT, np.array([0]), np.array([0]), 1 << 32, _units([{}]))


def test_sums_are_those_of_a_plain_loop():
    rng = np.random.default_rng(3)
    visits = [{"country": "fr", "age": float(age), "text": rng.normal(size=5)} for age in rng.uniform(10, 100, 40)]
    units, arms, levels = _units(visits), rng.integers(0, ARMS, 40), rng.integers(0, LEVELS + 1, 40)
    contents = [*pack_reports(LAYOUT, arms, levels, 0, units), pack_null(LAYOUT)]
    kept = np.arange(41) % 3 > 0
    found = linear_sums(LAYOUT, unpack_reports(LAYOUT, contents), kept)
    ones, zeros = np.zeros((2, ARMS, LAYOUT.cells), dtype=np.int64)
    for row in np.flatnonzero(kept[:40]):
        for cell, unit in zip(units.cells[row], units.units[row], strict=True):
            ones[arms[row], cell] += unit * levels[row]
            zeros[arms[row], cell] += unit * (LEVELS - levels[row])
    assert (found.ones == ones).all()
    assert (found.zeros == zeros).all()
    with pytest.raises(ShufflingError, match="mask"):
        linear_sums(LAYOUT, unpack_reports(LAYOUT, contents), kept[:3])


def test_two_candidate_contents_of_one_user_are_as_near_as_any_others():
    """An attack of the choice: the same visit clicked and not clicked differ by what two reports may differ."""
    clicked, unclicked = (_sums([_content({"age": 30}, level=level)]) for level in (LEVELS, 0))
    assert np.abs(clicked - unclicked).sum() <= 2 * LAYOUT.sensitivity


def test_noise_of_the_price_makes_the_largest_slot_as_likely_as_null():
    """The likelihood ratio of the worst slot, cell by cell: the exact law of the noise gives e^eps and no more."""
    epsilon = Fraction(1)
    numerator, denominator = laplace_scale(epsilon, LAYOUT.sensitivity)
    moved = _sums([_content({"country": "de", "age": 30, "hour": 5, "text": [1, 0, 0, 0, 0]})])
    worst = Fraction(int(np.abs(moved).sum()) * denominator, numerator)
    assert worst == epsilon
    stated = linear_sums_guarantee(1, UNITS, LAYOUT.places, LEVELS)
    assert stated.epsilon_micro == 1_000_000
    assert int((moved != 0).sum()) <= 2 * LAYOUT.places


def test_the_guarantee_is_that_of_slot_sums_with_its_own_sensitivity_and_truncation():
    for options in (
        {},
        {"sampling": 0.5},
        {"lifetime_slots": 3, "devices": 2},
        {"tree_levels": 3},
        {"deployment": "edge"},
    ):
        linear = linear_sums_guarantee(1.5, UNITS, 24, 2, **options)
        plain = slot_sums_guarantee(1.5, 2 * UNITS, **options)
        assert linear.epsilon_micro == plain.epsilon_micro
        assert linear.replace_one.epsilon_micro == 2 * linear.epsilon_micro
        assert linear.lifetime.cost.epsilon_micro == plain.lifetime.cost.epsilon_micro
        assert linear.sensitivity == 2 * UNITS
        assert 23 * plain.delta_units <= linear.delta_units <= 24 * plain.delta_units
        assert linear.mechanism.startswith("slot-sums: two sums per arm and cell")
        assert linear.delta_units < 2**80 * 1e-14
    for wrong in ({"units": 0}, {"places": 0}, {"units": True}, {"levels": 0}):
        with pytest.raises(BadGuarantee):
            linear_sums_guarantee(1, **{"units": UNITS, "places": 24, **wrong})


def test_delta_covers_every_sum_in_which_neighbours_differ():
    scale = laplace_scale(1, UNITS)
    linear = linear_sums_guarantee(1, UNITS, 24)
    covered = 2 * 24 * truncation(*scale) * (1 + Fraction(271828, 100000))
    assert Fraction(linear.delta_units, 2**80) >= covered


def test_noise_has_the_scale_of_the_sensitivity():
    """20,000 draws of scale s: mean |x| is within 4 % but with probability 1e-7, and a factor .9 is not."""
    numerator, denominator = laplace_scale(1, LAYOUT.sensitivity)
    address = NoiseAddress("release-noise", "d", bytes(32), "p2b", "linear-sums", {}, b"d", 0)
    stream = KeyedStream(seeded_key(5, "shuffler"), address)
    noise = discrete_laplace(stream, numerator, denominator, 20_000)
    assert np.abs(noise).mean() / LAYOUT.sensitivity == pytest.approx(1.0, abs=0.04)
    small = discrete_laplace(stream, numerator, denominator, 2 * ARMS * LAYOUT.cells).reshape(2, ARMS, LAYOUT.cells)
    exact = linear_sums(LAYOUT, unpack_reports(LAYOUT, [_content({})]), np.ones(1, dtype=np.bool_))
    released = noised_sums(exact, small)
    assert (released.ones - exact.ones == small[0]).all()
    assert (released.zeros - exact.zeros == small[1]).all()


def test_blocks_follow_one_another_without_gap(rigs):
    assert LAYOUT.blocks[0].cells == 1
    for before, after in pairwise(LAYOUT.blocks):
        assert after.first_cell == before.first_cell + before.cells
        assert after.first_place == before.first_place + before.places
    assert LAYOUT.blocks[-1].first_cell + LAYOUT.blocks[-1].cells == LAYOUT.cells
    assert (np.bincount(rigs.cell_budgets(LAYOUT)) > 0).sum() == len(set(LAYOUT.budgets))
