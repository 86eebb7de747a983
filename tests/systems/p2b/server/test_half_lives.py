"""Half-lives that are chosen as windows come: the one that foretells them best, whatever interrupts the aggregator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any

import numpy as np
import pytest

from hushstream.engine.values import ConfigurationError
from hushstream.features.schema import declare
from hushstream.systems.catalogue import kind_of
from hushstream.systems.p2b.configuration import ContextConfig, P2BConfig, PartitionConfig, ReleaseConfig
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.guarantee.promise import layout_of_slots
from hushstream.systems.p2b.machines.feature_totals import FeatureTotals, NamedTotals
from hushstream.systems.p2b.server.errors import AggregationError
from hushstream.systems.p2b.server.forgetting import fade_of_crowds, fades_of_crowds, remembered
from hushstream.systems.p2b.server.half_lives import SETTLING_WINDOWS

SCHEMA = declare({"country": {"kind": "category", "vocabulary": ["de", "fr"]}})
ITEMS = 3
SLOTS = 3_000
LIKED = np.array([0.1, 0.3, 0.5])


def config(partitions: int = 1, named: bool = False, half_life: Any = "auto", **release: Any) -> P2BConfig:
    return P2BConfig(
        deployment="shop",
        arms=ITEMS,
        context=ContextConfig(declared=SCHEMA),
        expected_slots=40_000,
        release=ReleaseConfig(**{"window_slots": SLOTS, "sums": "fresh", **release}),
        partitions=PartitionConfig(shuffler=partitions),
        half_life=half_life,
        named_items=named,
    )


def windows(system: P2BSystem, turns_after: int, seed: int, entries: tuple[int, ...] = ()) -> Iterator[dict[str, Any]]:
    """Without end: shares of clicks by item and country, which move on by one item after so many windows."""
    draws, layout = np.random.default_rng(seed), system.linear.layout
    for number in range(1_000):
        liked = np.roll(LIKED, number // turns_after)
        shown = np.zeros((ITEMS, layout.cells), dtype=np.int64)
        clicked = np.zeros_like(shown)
        for country in range(2):
            seen = draws.multinomial(SLOTS // 2, [1 / ITEMS] * ITEMS)
            ones = draws.binomial(seen, np.roll(liked, country))
            for block, budget in zip(layout.blocks, layout.budgets, strict=True):
                cell = block.first_cell + (country if block.name else 0)
                shown[:, cell] += budget * seen
                clicked[:, cell] += budget * ones
        sums = {"ones": clicked.astype("<i8").tobytes(), "zeros": (shown - clicked).astype("<i8").tobytes()}
        rest = {"variance": 10.0, "slots": SLOTS, "private_as_stated": True}
        if entries:
            rest |= {"catalogue": max(entries), "entries": np.array(entries, dtype="<i4").tobytes()}
        yield {**system.form.domain, **sums, **rest}


def after(totals: Any, crowds: Iterator[Mapping[str, Any]], count: int) -> Any:
    for _ in range(count):
        assert totals.add(next(crowds))
    return totals


def chosen(totals: Any) -> float:
    """What earlier windows are multiplied by."""
    return float(totals._kept.fade)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_still_world_is_not_forgotten_and_a_turning_one_is(seed: int) -> None:
    """Shares of clicks of .1 to .5 that move on by an item after four windows of 3,000 slots: some forty deviations of
    what one window tells. In a still world a half-life foretells worse in each window. One outcome a seed and world."""
    system = P2BSystem.declared(config())
    still = after(FeatureTotals(system), windows(system, 1_000, seed), 16)
    assert chosen(still) == 1.0
    assert still.model().observations == pytest.approx(16 * SLOTS, rel=0.01)
    turning = after(FeatureTotals(system), windows(system, 4, seed), 16)
    assert chosen(turning) in fades_of_crowds(config())[1:4]
    plain = after(FeatureTotals(P2BSystem.declared(config(half_life=None))), windows(system, 4, seed), 16)
    for country in range(2):
        newest = np.roll(LIKED, 3 + country).argsort()
        found, old = (
            one.model().start.means[:, 0] + one.model().start.means[:, 1 + country] for one in (turning, plain)
        )
        assert (found.argsort() == newest).all()
        assert np.ptp(found) > 2 * np.ptp(old)


@pytest.mark.slow_statistics
def test_a_world_that_begins_to_change_is_followed_and_one_that_settles_remembered() -> None:
    system = P2BSystem.declared(config())
    totals = after(FeatureTotals(system), windows(system, 1_000, 4), 30)
    assert chosen(totals) == 1.0
    after(totals, windows(system, 3, 5), 12)
    assert chosen(totals) < 0.9
    after(totals, windows(system, 1_000, 6), 150)
    assert chosen(totals) > 0.9


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("named", [False, True])
def test_the_first_windows_of_each_partition_are_not_scored(partitions: int, named: bool) -> None:
    """Each window of a turning world would foretell another half-life."""
    system = P2BSystem.declared(config(partitions, named))
    totals = (NamedTotals if named else FeatureTotals)(system)
    crowds = windows(system, 1, 7, (1, 2, 3) if named else ())
    after(totals, crowds, SETTLING_WINDOWS * partitions)
    assert totals._kept._scores == [0.0] * len(fades_of_crowds(config()))
    after(totals, crowds, 1)
    assert len(set(totals._kept._scores)) > 1


@pytest.mark.parametrize("named", [False, True])
def test_a_window_with_an_embedding_is_scored_as_others_are(named: bool) -> None:
    """All windows behind the first eight were refused, so that no further model was published."""
    schema = declare(
        {"country": {"kind": "category", "vocabulary": ["de"]}, "taste": {"kind": "embedding", "dimension": 3}}
    )
    system = P2BSystem.declared(replace(config(named=named), context=ContextConfig(declared=schema)))
    shape = (ITEMS, system.linear.layout.cells)
    sums = {name: np.full(shape, units, dtype="<i8").tobytes() for name, units in (("ones", 900), ("zeros", 9_000))}
    rest = {"variance": 10.0, "slots": SLOTS, "private_as_stated": True}
    entries = {"catalogue": 3, "entries": np.array((1, 2, 3), dtype="<i4").tobytes()} if named else {}
    totals = (NamedTotals if named else FeatureTotals)(system)
    after(totals, repeat({**system.form.domain, **sums, **rest, **entries}), SETTLING_WINDOWS + 1)
    assert len(set(totals._kept._scores)) > 1


@pytest.mark.sweep(keep=["True"])
@pytest.mark.parametrize("named", [False, True])
def test_what_is_restored_goes_on_to_the_last_bit(named: bool) -> None:
    system = P2BSystem.declared(config(named=named))
    make: Callable[[P2BSystem], Any] = NamedTotals if named else FeatureTotals
    entries = (1, 2, 3) if named else ()
    crowds = list(zip(range(16), windows(system, 4, 7, entries), strict=False))
    for stopped in (0, 7, 8, 12, 15):
        there, again = make(system), make(system)
        for number, crowd in crowds:
            assert there.add(crowd)
            if number == stopped:
                again.load(there.dump())
            elif number > stopped:
                assert again.add(crowd)
        assert again.dump() == there.dump()
        assert again.model().fields() == there.model().fields()
    assert chosen(there) < 1.0


def test_a_row_whose_item_entered_later_foretells_nothing_of_the_one_before() -> None:
    """A second item in one row, as different as can be: the others stand still, so nothing is forgotten."""
    system = P2BSystem.declared(config(named=True))
    totals = after(NamedTotals(system), windows(system, 1_000, 8, (1, 2, 3)), 12)
    crowd = next(windows(system, 1_000, 9, (1, 2, 4)))
    swapped = {**crowd, "ones": crowd["zeros"], "zeros": crowd["ones"]}
    other = dict.fromkeys(("ones", "zeros"), b"")
    for name in other:
        first, second = (np.frombuffer(one[name], "<i8").reshape(ITEMS, -1) for one in (crowd, swapped))
        other[name] = np.concatenate([first[:2], second[2:]]).tobytes()
    assert totals.add({**crowd, **other})
    assert chosen(totals) == 1.0
    (rows, _), sums = totals.released(), totals._kept.best.ones
    assert rows.arms == ITEMS
    assert sums[2].tolist() == np.frombuffer(other["ones"], "<i8").reshape(ITEMS, -1)[2].tolist()


def test_what_is_refused_changes_nothing() -> None:
    system = P2BSystem.declared(config())
    totals = after(FeatureTotals(system), windows(system, 2, 10), 3)
    before, good = totals.dump(), next(windows(system, 2, 11))
    for wrong in ({"variance": -1e9}, {"slots": -1}, {"ones": good["ones"][:-8]}):
        assert not totals.add({**good, **wrong})
        assert totals.dump() == before


@pytest.mark.parametrize("cut", [1, 8, 60, -1])
def test_other_bytes_are_refused(cut: int) -> None:
    system = P2BSystem.declared(config())
    dumped = after(FeatureTotals(system), windows(system, 2, 12), 2).dump()
    with pytest.raises(AggregationError):
        FeatureTotals(system).load(dumped[:cut])


def test_candidates_are_windows_of_a_partition_and_nothing_else_follows_from_the_setting() -> None:
    two, plain = config(partitions=2), config(partitions=2, half_life=None)
    assert fade_of_crowds(two) == 1.0
    assert fades_of_crowds(two)[1] == pytest.approx(0.5**0.5)
    assert remembered(two, 50) == remembered(plain, 50)
    assert layout_of_slots(two) == layout_of_slots(plain)
    assert len({P2BSystem.declared(one).digest for one in (two, plain)}) == 2


def test_the_guarantee_says_that_it_costs_nothing() -> None:
    facts = {fact.name: fact.text for fact in kind_of("p2b").facts(config(), None)}
    assert "costs nothing and refunds nothing" in facts["half_lives"]


@pytest.mark.parametrize("sums", ["counter", "auto"])
def test_windows_through_a_counter_are_refused(sums: str) -> None:
    with pytest.raises(ConfigurationError, match=r"expected fresh where model\.half_life is auto"):
        config(sums=sums, windows=16)


def test_another_word_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.half_life: expected auto, or windows from 0\.1"):
        config(half_life="automatic")
