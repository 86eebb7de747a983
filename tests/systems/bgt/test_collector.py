"""The collector: exact sums, norms in whole numbers, repeats once, noise named by the ids and contents of its slots."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.privacy.keys import Key
from hushstream.systems.bgt import shuffler as sums
from hushstream.systems.bgt.artefacts import bgt_address
from hushstream.systems.bgt.configuration import UNIT, bgt_digest
from hushstream.systems.bgt.guarantee import deviation_of, squared_clip, squared_sensitivity
from hushstream.systems.bgt.records import NOTHING, BadSlots, Slots, first_round, null_slots
from hushstream.systems.bgt.shuffler import Collector, Inadmissible, Sums, admit

from .conftest import collector_of, config_of, ids, ratings, slots_of
from .test_making import rounds_of


def slot(config, items=(), values=(), weight: int = 0, direction=()) -> Slots:
    made = null_slots(1, config)
    made.items[0, : len(items)] = items
    made.values[0, : len(values)] = values
    made.weights[0] = weight
    made.directions[0, : len(direction)] = direction
    return made


def sums_by_hand(slots: Slots, asked, config) -> np.ndarray:
    """One slot after the other, in Python's integers."""
    known = [
        {int(i): int(v) for i, v in zip(items, values, strict=True) if i != NOTHING}
        for items, values in zip(slots.items, slots.values, strict=True)
    ]
    if asked.kind == "items":
        out = np.zeros((2, config.items), dtype=object)
        for row, weight in zip(known, slots.weights.tolist(), strict=True):
            for item, value in row.items():
                out[0, item] += weight
                out[1, item] += value
        return out
    if asked.kind == "pairs":
        cells = []
        for upper in range(config.top):
            for lower in range(upper):
                one, other = int(asked.top[upper]), int(asked.top[lower])
                cells.append(sum(row.get(one, 0) * row.get(other, 0) for row in known))
        return np.array(cells, dtype=object)
    out = np.zeros((config.items, 2), dtype=object)
    for row, direction in zip(known, slots.directions.tolist(), strict=True):
        for item, value in row.items():
            for factor in range(2):
                out[item, factor] += int(np.trunc(value * direction[factor] / UNIT))
    return out


@pytest.mark.parametrize("place", range(3))
def test_sums_are_exact_and_the_same_in_any_batches(place):
    config = config_of(noise="exact")
    asked = rounds_of(config)[place]
    known, _ = ratings(config, 60)
    slots = slots_of(known, asked, config)
    whole, single = collector_of(asked, config), collector_of(asked, config)
    whole.take(slots, ids(60))
    for row in reversed(range(60)):
        single.take(slots[[row]], ids(1, row))
    found = whole.release()
    assert (found.sums == single.release().sums).all()
    assert (found.sums == sums_by_hand(slots, asked, config)).all()
    assert found.slots == 60


@pytest.mark.parametrize("place", range(3))
def test_one_slot_moves_the_sums_by_no_more_than_the_sensitivity(place):
    """Many drawn slots and the worst ones: the bound is met, and where it can be reached it is."""
    config = config_of(noise="exact")
    asked = rounds_of(config)[place]
    draw = np.random.default_rng(3)
    clip = squared_clip(asked.kind, config.release) ** 0.5 - 40
    bound, largest = squared_sensitivity(asked.kind, config.release), 0
    for trial in range(200):
        count = config.top if trial == 0 else int(draw.integers(1, config.top + 1))
        vector = np.ones(count) if trial == 0 else draw.standard_normal(count)
        weight = 0
        if asked.kind == "items":
            weight = int(draw.integers(0, clip / count**0.5))
            vector *= max(0.0, clip**2 - count * weight**2) ** 0.5 / np.linalg.norm(vector)
        else:
            vector *= clip / np.linalg.norm(vector)
        direction = draw.standard_normal(2)
        direction *= (UNIT - 4) / np.linalg.norm(direction)
        chosen = np.sort(draw.permutation(asked.top if asked.kind == "pairs" else config.items)[:count])
        made = slot(
            config,
            chosen,
            np.trunc(vector).astype(int),
            weight,
            np.trunc(direction).astype(int) if asked.kind == "factors" else (),
        )
        assert not admit(made, asked, config).any()
        sums = Sums(asked, config)
        sums.add(made)
        squares = sum(int(cell) ** 2 for cell in sums.cells().ravel())
        assert squares <= bound
        largest = max(largest, squares)
    assert largest > 0.9 * bound


def test_the_bound_of_pairs_is_the_triangles_and_not_the_squares():
    config = config_of()
    assert squared_sensitivity("pairs", config.release) == 2**79
    assert squared_sensitivity("items", config.release) == 2**40
    assert squared_sensitivity("factors", config.release) == int((0.7 * 2**20) ** 2)


def test_a_norm_beyond_the_clip_by_one_unit_is_refused(config):
    first, pairs, factors = rounds_of(config)
    item = int(pairs.top[0])
    assert not admit(slot(config, [3], [UNIT]), first, config).any()
    assert admit(slot(config, [3, 4], [UNIT, 1]), first, config) == Inadmissible.NORM
    assert admit(slot(config, [3], [UNIT], 1), first, config) == Inadmissible.NORM
    assert not admit(slot(config, [item], [UNIT]), pairs, config).any()
    assert admit(slot(config, [item], [UNIT + 1]), pairs, config) == Inadmissible.NORM
    most = int(squared_clip("factors", config.release) ** 0.5)
    assert not admit(slot(config, [3], [most], 0, [UNIT]), factors, config).any()
    assert admit(slot(config, [3], [most + 1], 0, [UNIT]), factors, config) == Inadmissible.NORM
    assert admit(slot(config, [3], [1], 0, [UNIT, 1]), factors, config) == Inadmissible.NORM
    assert admit(slot(config, [3], [np.iinfo(np.int32).min]), first, config) == Inadmissible.NORM


def test_many_small_values_cannot_pass_by_their_number(config):
    """The norm is the slot's, not a row's: P items at the clip each would move sums by sqrt(P) of it."""
    row = int(UNIT / config.release.pairs**0.5)
    items = np.arange(config.release.pairs)
    assert not admit(slot(config, items, np.full(len(items), row)), rounds_of(config)[0], config).any()
    assert admit(slot(config, items, np.full(len(items), row + 1)), rounds_of(config)[0], config) == Inadmissible.NORM


@pytest.mark.parametrize(
    ("items", "values", "weight", "direction", "place", "why"),
    [
        ([60], [1], 0, (), 0, Inadmissible.ITEM),
        ([-2], [1], 0, (), 0, Inadmissible.ITEM),
        ([4, 4], [1, 1], 0, (), 0, Inadmissible.ORDER),
        ([5, 4], [1, 1], 0, (), 0, Inadmissible.ORDER),
        ([NOTHING], [1], 0, (), 0, Inadmissible.ORDER),
        ([NOTHING, 4], [0, 1], 0, (), 0, Inadmissible.ORDER),
        ([4], [1], -1, (), 0, Inadmissible.KIND),
        ([4], [1], 0, (1,), 0, Inadmissible.KIND),
        ([4], [1], 1, (), 2, Inadmissible.KIND),
        ([4], [1], 0, (0, 0, 1), 2, Inadmissible.KIND),
    ],
)
def test_what_is_no_slot_of_the_round_is_refused_and_counts_as_null(
    config, items, values, weight, direction, place, why
):
    asked = rounds_of(config)[place]
    made = slot(config, items, values, weight, direction)
    assert admit(made, asked, config) == why
    exact = config_of(noise="exact")
    collector = collector_of(asked, exact)
    assert collector.take(made, ids(1)).why == why
    found = collector.release()
    assert found.slots == 1
    assert not found.sums.any()


def test_a_second_slot_of_a_user_in_a_round_counts_for_nothing():
    config = config_of(noise="exact")
    collector = collector_of(first_round(config), config)
    collector.take(slot(config, [3], [UNIT]), ids(1))
    assert collector.take(slot(config, [3], [UNIT]), ids(1)).repeated.all()
    both = Slots(*(np.repeat(column, 2, axis=0) for column in _columns(slot(config, [5], [UNIT]))))
    assert collector.take(both, [ids(1, 7)[0]] * 2).repeated.tolist() == [False, True]
    found = collector.release()
    assert found.slots == 2
    assert found.sums[1, 3] == found.sums[1, 5] == UNIT


def test_noise_has_the_stated_deviation_and_each_cell_its_own(config):
    """Mean square of n Gaussians is within 5 sqrt(2/n) of the variance: false alarm 1e-6, half the noise is caught."""
    for number, asked in enumerate(rounds_of(config)):
        draws = []
        for seed in range(40):
            collector = collector_of(asked, config, seed)
            collector.take(null_slots(3, config), ids(3))
            draws.append(collector.release().sums.ravel())
        noise = np.array(draws) / UNIT ** (2 if asked.kind == "pairs" else 1)
        spread = deviation_of(number, asked.kind, config)
        assert (noise**2).mean() == pytest.approx(spread**2, rel=5 * (2 / noise.size) ** 0.5)
        among = np.corrcoef(noise[:, :10].T) - np.eye(10)
        assert np.abs(among).max() < 0.9


def test_other_slots_meet_other_noise_and_the_same_slots_the_same_in_any_batches(config):
    asked = first_round(config)
    known, _ = ratings(config, 20)
    slots = slots_of(known, asked, config)

    def released(taken: Slots, nonce: bytes = bytes(32), names: list[bytes] | None = None) -> np.ndarray:
        collector = collector_of(asked, config, nonce=nonce)
        collector.take(taken, ids(len(taken)) if names is None else names)
        return collector.release().sums - collector.sums.cells()

    def in_batches(taken: Slots) -> np.ndarray:
        collector = collector_of(asked, config)
        for first in range(0, len(taken), 7):
            some = taken[first : first + 7]
            collector.take(some, ids(len(some), first))
        return collector.release().sums - collector.sums.cells()

    assert (released(slots) == released(slots)).all()
    assert (released(slots) == in_batches(slots)).all()
    back = np.arange(20)[::-1]
    assert (released(slots) == released(slots[back], names=ids(20)[::-1])).all(), "nor how senders raced"
    assert (released(slots) != released(slots[back])).any(), "the same contents under other ids"
    assert (released(slots) != released(slots[:19])).any()
    assert (released(slots) != released(slots, b"n" * 32)).any()


def test_a_round_is_released_once(config):
    collector = collector_of(first_round(config), config)
    collector.release()
    with pytest.raises(BadSlots, match="released once"):
        collector.release()
    with pytest.raises(BadSlots, match="open round"):
        collector.take(null_slots(1, config), ids(1))


def test_slots_of_another_size_and_ids_of_another_length_are_refused(config):
    collector = collector_of(first_round(config), config)
    with pytest.raises(BadSlots, match="32 pairs"):
        collector.take(null_slots(1, replace(config, release=replace(config.release, pairs=8))), ids(1))
    with pytest.raises(BadSlots, match="16 bytes"):
        collector.take(null_slots(1, config), [b"short"])
    with pytest.raises(BadSlots, match="expected a key for noise gaussian, got none"):
        collector_of(first_round(config), config_of(noise="exact")).__class__(first_round(config), config, None, None)


def _columns(slots: Slots) -> tuple[np.ndarray, ...]:
    return slots.items, slots.values, slots.weights, slots.directions


def test_unused_places_take_turns_with_spare_cells():
    """A processor adds to one cell one after the other: nulls would take three times as long as slots with items."""
    config = config_of()
    places = sums._places(null_slots(1, config), config.items)[0]
    assert len(set(places[:8])) == 8
    assert set(places) == set(range(config.items, config.items + 8))


def test_digests_of_slots_follow_from_the_key(config):
    """So whoever sends slots cannot look for others whose digests have the same sum."""
    histories = set()
    for first in (1, 2):
        address = bgt_address(config, bgt_digest(config), bytes(32), 0)
        collector = Collector(first_round(config), config, Key(bytes([first]) * 32), address)
        collector.take(null_slots(1, config), [bytes(16)])
        histories.add(collector.digests)
    assert len(histories) == 2


def test_a_round_that_is_taken_up_in_its_midst_has_the_noise_that_it_would_have_had(config):
    whole, again = (collector_of(first_round(config), config) for _ in range(2))
    whole.take(null_slots(1, config), [bytes(16)])
    again.load(whole.dump())
    for collector in (whole, again):
        collector.take(null_slots(1, config), [bytes([1] * 16)])
    assert np.array_equal(whole.release().sums, again.release().sums)
