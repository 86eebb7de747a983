"""The aggregator role: versions of tickets out of releases, the same however the counters raced."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.schemas import codec
from hushstream.systems.pdap import records
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.serving import Serving
from hushstream.systems.pdap.records import parse_model, parse_part


@pytest.fixture
def rig(shops):
    return shops.TicketAggregatorRig()


def counted(shops, system, windows=3):
    """Releases that a count closed."""
    counter = shops.BlockCounterRig(system)
    for number in range(windows):
        counter.outcomes(100 * number, shops.some_rewards(number, 100))
    return [output.value for output in counter.fold().releases("releases")]


def test_each_release_that_a_count_closed_gives_a_version(shops, rig):
    values = counted(shops, rig.system)
    seen = rig.give(values)
    assert [record["version"] for record in seen.journals] == [1, 2, 3]
    assert [record["observations"] for record in seen.journals] == [100, 200, 300]


def test_a_change_of_the_catalogue_gives_a_version_at_once_and_only_if_it_changes_something(shops, rig):
    rig.give(counted(shops, rig.system))
    shown = [set(parse_model(rig.change(arm, offered=False).journals[0], 7).tickets.ravel().tolist()) for arm in (6, 2)]
    assert all(not tickets & gone for tickets, gone in zip(shown, ({6}, {2, 6}), strict=True))
    again = rig.change(2, offered=False)
    assert (again.journals, again.counts["arm_changed"]) == ([], 1)
    served = Serving(rig.system.config.grid, seeded_key(1, "edge"))
    served.apply(Aggregate(rig.system.config).publish())
    for record in rig.change(2, offered=True).journals and rig.seen.journals:
        served.apply(parse_model(record, 7))
    tickets = set(np.frombuffer(served.dump()["tickets"], "<i4").tolist())
    assert 2 in tickets, "all seven are in the pool"
    assert 6 not in tickets
    fresh = rig.fresh()
    rig.replayed(fresh)
    assert fresh.snapshot() == rig.machine.snapshot()


def test_a_change_that_cannot_be_is_a_dead_letter_and_gives_no_version(rig):
    for arm in (7, -1):
        seen = rig.change(arm, offered=False)
        assert (seen.reasons, seen.journals) == (["unknown_arm"], [])


def test_a_model_of_nothing_shows_nothing_and_the_first_item_gives_the_next_one(shops):
    rig = shops.TicketAggregatorRig(shops.make_system(vendors=shops.NAMED))
    served = Serving(rig.system.config.grid, seeded_key(1, "edge"))
    served.apply(Aggregate(rig.system.config).publish())
    assert len(served.shown) == 0
    for offered, shown in ((True, [5]), (False, []), (True, [5])):
        served.apply(parse_model(rig.change(5, offered=offered).journals[0], 7))
        assert served.shown.tolist() == shown


def test_whoever_applies_all_versions_has_the_model_that_follows_from_all_releases(shops, rig):
    values = counted(shops, rig.system)
    expected, served = Aggregate(rig.system.config), Serving(rig.system.config.grid, seeded_key(1, "edge"))
    served.apply(expected.publish())
    for record, value in zip(rig.give(values).journals, values, strict=True):
        expected.fold(parse_part(codec.decode(value)[1]))
        update, ours = expected.publish(), parse_model(record, rig.system.config.arms)
        for name in ("version", "pool"):
            assert getattr(update, name) == getattr(ours, name)
        for name in ("opened", "changed", "tickets"):
            assert np.array_equal(getattr(update, name), getattr(ours, name))
        served.apply(ours)


def test_releases_that_end_a_phase_enter_together_in_any_order(shops):
    system = shops.make_system(release={"placement": "home", "first_window": 10_000})
    home = [
        shops.released_values(system, [shops.some_rewards(10 * place + phase, 60) for phase in range(2)], None, vendor)
        for place, vendor in enumerate(("one", "two"))
    ]
    journals = []
    # Each counter's records keep their order; how those of both mix does not matter, nor which counter is ahead.
    for firsts in itertools.combinations(range(8), 4):
        left = [iter(values) for values in home]
        rig = shops.TicketAggregatorRig(system)
        rig.give([next(left[0 if place in firsts else 1]) for place in range(8)])
        journals.append([_content(value) for value in rig.journal])
    assert len(journals) == 70
    assert all(journal == journals[0] for journal in journals)
    assert len(journals[0]) == 2


def _content(value):
    fields = codec.decode(value)[1]
    return {name: content for name, content in fields.items() if name not in ("head", "chain")}


def test_a_phase_without_a_release_still_gives_a_version(shops, rig):
    rig.give(shops.released_values(rig.system, [[], []]))
    assert [record["version"] for record in rig.seen.journals] == [1, 2]
    assert [record["changed"] for record in rig.seen.journals] == [b"", b""]


def test_a_release_in_several_parts_enters_whole(shops, monkeypatch):
    system = shops.make_system(release={"first_window": 1000})
    whole = shops.TicketAggregatorRig(system)
    whole.give(shops.released_values(system, [shops.some_rewards(2, 90)]))
    monkeypatch.setattr(records, "MAX_BLOCKS_A_PART", 2)
    values = shops.released_values(system, [shops.some_rewards(2, 90)])
    parts = [codec.decode(value)[1]["parts"] for value in values[:-1]]
    assert len(values) == parts[0] + 1 > 3
    cut = shops.TicketAggregatorRig(system)
    cut.give(values)
    assert [_content(value) for value in cut.journal] == [_content(value) for value in whole.journal]


def test_a_repeated_release_counts_once(shops, rig):
    values = counted(shops, rig.system, 1)
    seen = rig.give([*values, *values])
    assert seen.counts["repeated_release"] == 1
    assert len(seen.journals) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"cells": bytes(8)},
        {"arms": np.array([99], "<i4").tobytes()},
        {"counter": 3},
        {"part": 5},
        {"arrived": np.array([7 << 57], "<i8").tobytes(), "arrivals": np.array([1], "<i8").tobytes()},
        {"sums": bytes(7)},
    ],
)
def test_a_release_that_cannot_be_is_a_dead_letter_and_changes_nothing(shops, rig, changes):
    fields = codec.decode(counted(shops, rig.system, 1)[0])[1]
    if "arms" in changes or "cells" in changes:
        one = {"cells": bytes(8), "arms": bytes(4), "counts": np.array([5], "<i8").tobytes(), "sums": bytes(8)}
        fields = {**fields, **one}
        changes = {"cells": bytes(16)} if "cells" in changes else changes
    before = rig.machine.snapshot()
    seen = rig.give([codec.encode("BlockRelease", {**fields, **changes})])
    assert seen.reasons == ["malformed_release"]
    assert not seen.journals
    assert len(rig.machine.snapshot()) == len(before)


def test_its_journal_replayed_and_its_state_restored_give_the_same_versions(shops, rig):
    system = rig.system
    values = [*counted(shops, system), *shops.released_values(shops.make_system(), [shops.some_rewards(8, 30)])[:1]]
    for value in values[:2]:
        rig.give([value])
    state = rig.machine.snapshot()
    rig.give(values[2:])
    fresh = rig.fresh()
    rig.replayed(fresh)
    resumed = rig.fresh()
    resumed.start(rig.genesis)
    resumed.restore(state)
    assert resumed.snapshot() == state
    for value in rig.journal[2:]:
        resumed.replay(value, [rig.slice(part) for part in resumed.recovery_ranges(value)])
    for machine in (fresh, resumed):
        (source,) = machine.inputs
        machine.fold([rig.slice(type(rig.machine.entry(rig.journal[0]).inputs[0])(*source, machine.position, 4))])
        assert machine.snapshot() == rig.machine.snapshot()
