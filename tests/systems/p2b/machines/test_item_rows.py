"""Rows that stand for one item after another: what counts in a window, in totals, and in a learner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue, ItemChange
from hushstream.features.schema import declare
from hushstream.privacy.keys import seeded_key
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, ReleaseConfig
from hushstream.systems.p2b.contribution.feature_slots import pack_null, pack_reports, unpack_reports
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.guarantee.deployment import P2BSystem, reuse_after_ms
from hushstream.systems.p2b.machines.feature_totals import NamedTotals
from hushstream.systems.p2b.machines.release import release_window, window_address
from hushstream.systems.p2b.server.item_totals import ItemTotals
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.linear_sums import linear_sums
from hushstream.systems.p2b.shuffler.windows import ClosedBy, ClosedWindow, ItemRows, Windows

ROWS = 3
KEY = seeded_key(1, "shuffler")


def system_of(**release: object) -> P2BSystem:
    return P2BSystem.declared(
        P2BConfig(
            deployment="shop",
            arms=ROWS,
            context=ContextConfig(declared=declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})),
            expected_slots=100,
            release=ReleaseConfig(**{"form": "features", "sums": "fresh", **release}),
            named_items=True,
            item_features=declare({"colour": {"kind": "category", "vocabulary": ["red", "blue"]}}),
        )
    )


SYSTEM = system_of()
LAYOUT = SYSTEM.linear.layout
ROW = LAYOUT.schema.encode({"country": "fr"}).row


def rows(catalogue: int, *entries: int) -> ItemRows:
    return ItemRows(catalogue, np.array(entries, "<i4").tobytes())


def report(arm: int, catalogue: int, level: int = 1) -> bytes:
    units = LAYOUT.units_of(LAYOUT.schema.blocks(LAYOUT.schema.read(ROW)))
    (content,) = pack_reports(LAYOUT, np.array([arm]), np.array([level]), catalogue, units)
    return content


def counted(contents: Sequence[bytes], of: ItemRows) -> np.ndarray:
    """Slots in the exact sums, by row."""
    reports = unpack_reports(LAYOUT, contents)
    sums = linear_sums(LAYOUT, reports, of.current(reports.arms, reports.catalogues))
    return (sums.ones + sums.zeros)[:, 0] // LAYOUT.budgets[0]


def test_a_slot_of_an_older_version_never_counts_for_the_items_next_in_its_row() -> None:
    """Row 1 has another item since version 7: what was decided before is null, to the very version."""
    contents = [report(1, version) for version in range(1, 12)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [0, 3, 0]


def test_slots_of_rows_whose_item_stayed_count_whatever_their_version() -> None:
    contents = [report(0, version) for version in range(1, 10)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [9, 0, 0]


def test_rows_without_items_and_versions_that_are_not_known_yet_count_nothing() -> None:
    contents = [report(2, 5), report(0, 10), report(0, 2**32 - 1), report(0, 0), pack_null(LAYOUT)]
    assert counted(contents, rows(9, 1, 7, 0)).tolist() == [0, 0, 0]


def test_one_slot_moves_the_sums_no_further_than_the_noise_covers() -> None:
    """The sensitivity of a window: whatever a slot names, it adds what it always added, or nothing."""
    draw = np.random.default_rng(3)
    base = [report(int(draw.integers(3)), int(draw.integers(12)), int(draw.integers(2))) for _ in range(40)]
    for _ in range(200):
        of = rows(int(draw.integers(12)), *draw.integers(0, 12, 3).tolist())
        other = report(int(draw.integers(3)), int(draw.integers(12)), int(draw.integers(2)))
        with_it, without = ([*base, one] for one in (other, pack_null(LAYOUT)))
        exact = []
        for contents in (with_it, without):
            reports = unpack_reports(LAYOUT, contents)
            exact.append(linear_sums(LAYOUT, reports, of.current(reports.arms, reports.catalogues)))
        moved = np.abs(exact[0].ones - exact[1].ones).sum() + np.abs(exact[0].zeros - exact[1].zeros).sum()
        assert moved in (0, LAYOUT.sensitivity)


def test_what_is_released_counts_the_slots_of_the_rows_items_alone() -> None:
    """1,000 slots are 500 scales of the noise, which passes 40 of them once in 10^17 draws."""
    scale = LAYOUT.sensitivity / float(SYSTEM.noise_epsilon)
    for version, counts in ((6, False), (7, True)):
        contents = (report(1, version),) * 1_000
        closed = ClosedWindow(0, ClosedBy.SLOTS, contents, (bytes(16),) * 1_000, rows(9, 1, 7, 0))
        ones = np.frombuffer(release_window(SYSTEM, KEY, bytes(32), 0, closed).crowd["ones"], "<i8")
        found = ones.reshape(LAYOUT.arms, -1) / scale
        assert bool(found[1, 0] > 40) == counts
        assert (np.abs(found[[0, 2]]) < 40).all()


def test_all_rows_are_noised_whether_items_are_in_them_or_not() -> None:
    closed = ClosedWindow(0, ClosedBy.SLOTS, (pack_null(LAYOUT),) * 4, (), rows(1, 1, 0, 0))
    crowd = release_window(SYSTEM, KEY, bytes(32), 0, closed).crowd
    assert (np.frombuffer(crowd["ones"], "<i8").reshape(LAYOUT.arms, -1) != 0).any(axis=1).all()
    assert (crowd["catalogue"], crowd["entries"]) == (1, closed.item_rows.entries)


def test_the_same_slots_under_another_catalogue_have_other_noise() -> None:
    """A journal that was rolled back may meet a change of the catalogue at another place: its sums are others."""
    closed = ClosedWindow(0, ClosedBy.SLOTS, (report(1, 3),) * 4, (bytes(16),) * 4, rows(3, 1, 2, 3))
    others = [rows(4, 1, 2, 3), rows(3, 1, 3, 3)]
    rolled = [closed._replace(item_rows=one) for one in (*others, rows(3, 1, 2, 3))]
    of = [window_address(SYSTEM, KEY, bytes(32), 0, one) for one in rolled]
    assert of[-1] == window_address(SYSTEM, KEY, bytes(32), 0, closed)
    assert len({one.content for one in of}) == 3


def test_windows_follow_the_newest_rows_and_keep_them_over_a_restart() -> None:
    windows = Windows(SYSTEM.window_rules())
    windows.follow(rows(2, 1, 2, 0))
    windows.follow(rows(1, 1, 0, 0))
    assert windows.item_rows == rows(2, 1, 2, 0)
    again = Windows.load(windows.rules, windows.dump())
    assert again.item_rows == windows.item_rows
    assert again.dump() == windows.dump()
    for bad in (rows(3, 1, 2), rows(0, 1, 2, 3), ItemRows(3, b"")):
        with pytest.raises(ShufflingError):
            windows.follow(bad)
    unnamed = Windows(replace(SYSTEM.window_rules(), item_rows=0))
    with pytest.raises(ShufflingError):
        unnamed.follow(rows(1, 1, 2, 3))


# What the aggregator adds up.


def add(totals: ItemTotals, value: int, catalogue: int, *entries: int, variance: float = 4.0) -> None:
    sums = np.full((ROWS, 2), value, dtype=np.int64)
    totals.add(sums, 2 * sums, variance, 10, catalogue, np.array(entries, np.int32))


@pytest.mark.parametrize("carried", [False, True])
def test_a_rows_sums_begin_with_its_item_and_never_hold_the_windows_before(carried: bool) -> None:
    totals = ItemTotals(ROWS, 2, carried)
    add(totals, 1, 2, 1, 2, 0)
    add(totals, 10, 2, 1, 2, 0)
    add(totals, 100, 3, 1, 3, 0)
    # A shuffler that has not heard of it yet.
    add(totals, 1_000, 2, 1, 2, 0)
    assert totals.ones[:, 0].tolist() == [1_111, 100, 1_111]
    assert totals.zeros[:, 0].tolist() == [2_222, 200, 2_222]
    left_out = 2.0 * (8.0 + 16.0) if carried else 0.0
    assert totals.variances.tolist() == [16.0, 4.0 + left_out, 16.0]
    assert (totals.slots, totals.catalogue, totals.entries.tolist()) == (40, 3, [1, 3, 0])
    again = ItemTotals(ROWS, 2, carried)
    again.load(totals.dump())
    assert again.dump() == totals.dump()


def test_rows_that_never_had_an_item_change_nothing_of_the_model() -> None:
    """A capacity that is not used would otherwise bring its noise into what all items share."""
    models = []
    for noise in (0, 10**7):
        totals = NamedTotals(SYSTEM)
        sums = np.full((ROWS, LAYOUT.cells), 40_000, dtype=np.int64)
        sums[2] += noise
        crowd = {**SYSTEM.form.domain, **rows(2, 1, 2, 0)._asdict(), "variance": 1e6, "slots": 20}
        crowd |= {"ones": sums.tobytes(), "zeros": (9 * sums).tobytes(), "private_as_stated": True}
        assert totals.add(crowd)
        models.append(totals.model())
    assert models[0].fields() == models[1].fields()


# What a learner knows of a row.


def following(*items: tuple[str, str]) -> tuple[FeaturePolicy, Catalogue]:
    catalogue = Catalogue(SYSTEM.catalogue_rules)
    policy = SYSTEM.policy()
    assert isinstance(policy, FeaturePolicy)
    policy.follow(catalogue)
    for item, colour in items:
        take(policy, catalogue, item, colour)
    return policy, catalogue


def take(policy: FeaturePolicy, catalogue: Catalogue, item: str, colour: str = "", offered: bool = True) -> int:
    features = f'{{"colour": "{colour}"}}' if colour else ""
    change = ItemChange(item, catalogue.version + 1, offered, "", features)
    found = catalogue.take(change, catalogue.now_ms + reuse_after_ms(SYSTEM.config))
    if found.entered == catalogue.version:
        policy.entered(found.row)
    return found.row


def adopt(policy: FeaturePolicy, means: Sequence[float], entries: Sequence[int]) -> None:
    table = np.repeat(np.array(means, dtype=np.float64)[:, None], LAYOUT.cells, axis=1)
    policy.adopt("private", 1, table, np.full_like(table, 0.01), np.array([0.1]), np.array(entries, dtype=np.float64))


def mean_of(policy: FeaturePolicy, row: int) -> float:
    return float(policy.shared("private").state.model.table[0, row])


def test_what_a_user_learned_of_an_item_is_not_known_of_the_next_one_in_its_row() -> None:
    policy, catalogue = following(("a", ""), ("b", ""), ("c", ""))
    context = policy.kept(np.frombuffer(ROW, np.uint8))
    _, state = policy.begin("private")
    for arm in (0, 1, 1):
        policy.learned(state, context, arm, 1.0)
    take(policy, catalogue, "b", offered=False)
    take(policy, catalogue, "d")
    fresh = policy.begin("private")[1]
    scored = policy.scores(state, context).tolist()
    assert scored[1:] == policy.scores(fresh, context).tolist()[1:]
    assert scored[0] != scored[1]
    assert state.own.taken[0].tolist() == [0]
    # A reward that comes late is of the old item, and so is its slot.
    policy.learned(state, context, 1, 1.0)
    assert state.own.taken[0].tolist() == [0]
    assert unpack_reports(LAYOUT, [policy.content(context, 1, 1)]).catalogues.tolist() == [3]
    again = policy.load_own("private", 0, policy.dump_own(state))
    assert again.own.catalogue == state.own.catalogue


def test_a_new_item_starts_from_those_that_are_most_like_it() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    take(policy, catalogue, "c", "red")
    assert mean_of(policy, 2) == pytest.approx(0.4)
    assert mean_of(policy, 0) == pytest.approx(0.4)
    # A model that has not heard of it is told again.
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    assert mean_of(policy, 2) == pytest.approx(0.4)


def spread_of(policy: FeaturePolicy, row: int) -> list[float]:
    return policy.shared("private").state.model.table[:, ROWS + row].tolist()


def released(known: float, new: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of two known items whose cells differ by sign, and of a new one that has 0 in all of them."""
    signs = np.resize([1.0, -1.0], LAYOUT.cells)
    means, variances = np.outer([0.3, -0.3, 0.0], signs), np.full((ROWS, LAYOUT.cells), known)
    means[:, 0], variances[2] = 0.5, new
    return means, variances


@pytest.mark.parametrize(
    ("new", "kept"),
    [pytest.param(0.2, 1.0, id="of-few-slots"), pytest.param(1e-7, 0.0, id="of-many-slots")],
)
def test_a_new_item_leans_on_those_like_it_until_windows_say_more(new: float, kept: float) -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    means, variances = released(1e-4, new)
    policy.adopt("private", 1, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 0.0]))
    take(policy, catalogue, "c", "red")
    policy.adopt("private", 2, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 3.0]))
    table = policy.shared("private").state.model.table
    assert table[1:, 2] == pytest.approx(kept * means[0, 1:], abs=1e-3)
    assert np.allclose(table[:, :2].T, means[:2])
    assert max(spread_of(policy, 2)) < 2e-4
    # It still does behind a restart, and in the version behind that.
    again, _ = following(("a", "red"), ("b", "blue"), ("c", "red"))
    again.restore_models(policy.dump_models())
    for one in (policy, again):
        one.adopt("private", 3, means, variances, np.array([1e-3]), np.array([1.0, 2.0, 3.0]))
        assert one.shared("private").state.model.table.tolist() == table.tolist()


def test_no_item_leans_on_others_in_the_first_model_and_none_that_it_knew() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"), ("c", "red"))
    means, variances = released(0.1, 0.2)
    for version in (1, 2):
        policy.adopt("private", version, means, variances, np.array([0.1]), np.array([1.0, 2.0, 3.0]))
        table = policy.shared("private").state.model.table
        assert np.allclose(table.T, np.concatenate([means, variances]))
    # Another item in a row that leaned leans anew, on those that the model knows.
    take(policy, catalogue, "c", offered=False)
    take(policy, catalogue, "d", "blue")
    policy.adopt("private", 3, means, variances, np.array([0.1]), np.array([1.0, 2.0, 5.0]))
    assert policy.shared("private").state.model.table[1:, 2] == pytest.approx(means[1, 1:], rel=0.5)


def test_an_item_without_features_starts_from_the_mean_of_all_and_as_uncertain_as_they_differ() -> None:
    policy, catalogue = following(("a", "red"), ("b", "blue"))
    adopt(policy, [0.4, 0.1, 9.0], [1, 2, 0])
    take(policy, catalogue, "c")
    table = policy.shared("private").state.model.table
    assert table[0, 2] == pytest.approx(0.25)
    assert table[0, ROWS + 2] == pytest.approx(0.01 + 0.15**2)
