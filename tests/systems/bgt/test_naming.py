"""A round's noise is named by ids and contents of its slots; what an earlier release journaled stays what it was.

``recorded/collector_0_contents.json`` was written by a collector that named noise by contents alone: its inputs, its
journal, what it released, and its packed state in the middle of the second round.
"""

from __future__ import annotations

import base64
import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from hushstream.engine.records import InputRecord, InputSlice, OffChain
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import bgt_digest
from hushstream.systems.bgt.deployment import bgt_address
from hushstream.systems.bgt.rounds import first_round
from hushstream.systems.bgt.shuffler.collector import Collector, Naming
from hushstream.systems.bgt.slots import null_slots

RECORDED = Path(__file__).parent / "recorded" / "collector_0_contents.json"
ROUNDS = (0, 1, 2)
DOUBT = bytes(range(16))


@pytest.fixture
def recorded(films):
    """A rig whose log and journal an earlier release has written."""
    told = json.loads(RECORDED.read_text(encoding="utf-8"))
    rig = films.CollectorRig(films.make_system())
    rig.genesis, rig.machine = base64.b64decode(told["genesis"]), rig.fresh()
    rig.machine.start(rig.genesis)
    rig.logs["updates", 0] = [
        InputRecord(place, rig.now_ms, base64.b64decode(one)) for place, one in enumerate(told["updates"])
    ]
    rig.journal = [base64.b64decode(one) for one in told["journal"]]
    rig.was_released = [base64.b64decode(one) for one in told["releases"]]
    rig.snapshot, rig.covers = base64.b64decode(told["snapshot"]), told["snapshot_covers"]
    return rig


def sums_of(films, number, contents, ids):
    """What a round releases of these slots under one genesis."""
    rig = films.CollectorRig(films.make_system(epsilon=2.0))
    if number:
        rig.play(number)
        rig.open(films.rounds_of(rig.system.config)[number])
    for place, (item, one) in enumerate(zip(contents, ids, strict=True)):
        weight, value = ((1 << 15), (1 << 17)) if number == 0 else (0, 1 << 17)
        slot = films.item_slot(rig.system.config, item, value, weight)
        if number == 2:
            slot.directions[0, 0] = 1 << 18
        rig.slot(place, slot, number, slot_id=one.to_bytes(16, "big"))
    rig.end(number)
    (release,) = rig.released(rig.fold())
    return np.frombuffer(release["sums"], "<i8")


@pytest.mark.parametrize("number", ROUNDS)
def test_equal_contents_under_other_ids_have_other_noise(films, number):
    """Otherwise two releases would tell that a guess under another id is right: 48 cells or more that all agree."""
    one = sums_of(films, number, [1, 2, 3], [100_001, 100_002, 100_003])
    two = sums_of(films, number, [1, 2, 3], [100_001, 100_002, 100_009])
    assert len(one) >= 40
    assert np.mean(one == two) < 0.25


@pytest.mark.parametrize("number", ROUNDS)
def test_contents_that_change_places_have_other_noise(films, number):
    """The same ids and the same contents, but other pairs of them."""
    one = sums_of(films, number, [1, 2, 3], [100_001, 100_002, 100_003])
    two = sums_of(films, number, [3, 2, 1], [100_001, 100_002, 100_003])
    assert np.mean(one == two) < 0.25


@pytest.mark.parametrize("number", ROUNDS)
def test_the_same_slots_have_the_same_noise_in_any_order(films, number):
    slots = [(1, 100_001), (2, 100_002), (3, 100_003)]
    seen = {sums_of(films, number, *zip(*some, strict=True)).tobytes() for some in permutations(slots)}
    assert len(seen) == 1


def test_digests_of_slots_follow_from_the_key(config):
    """So whoever sends slots cannot look for others whose digests have the same sum."""
    histories = set()
    for first in (1, 2):
        address = bgt_address(config, bgt_digest(config), bytes(32), 0)
        collector = Collector(first_round(config), config, Key(bytes([first]) * 32), address)
        collector.take(null_slots(1, config), [bytes(16)])
        histories.add(collector.history)
    assert len(histories) == 2


def test_a_journal_of_an_earlier_release_gives_the_bytes_that_it_gave(recorded):
    machine = recorded.fresh()
    machine.start(recorded.genesis)
    steps = [machine.replay(value, [recorded.slice(*machine.recovery_ranges(value))]) for value in recorded.journal]
    assert [o.value for step in steps for o in step.releases if o.topic == "releases"] == recorded.was_released


def test_a_record_that_is_off_the_chain_changes_no_name(recorded):
    machine = recorded.machine
    assert machine.collector.naming is Naming.IDS
    value = recorded.journal[1]
    with pytest.raises(OffChain):
        machine.replay(value, [recorded.slice(*machine.recovery_ranges(value))])
    assert machine.collector.naming is Naming.IDS
    assert not machine.draws_ahead


def test_a_deployment_goes_on_with_ids_after_the_rounds_of_an_earlier_release(films, recorded):
    """The first round was released before; the second one begins anew, as no state of it was kept."""
    machine = recorded.machine
    value = recorded.journal[0]
    machine.replay(value, [recorded.slice(*machine.recovery_ranges(value))])
    assert machine.collector is None
    del recorded.journal[1:]
    seen = recorded.fold()
    assert [json.loads(one["parameters"]).get("named_by") for one in seen.journals] == ["ids and contents"] * 2
    assert not machine.draws_ahead
    was = [codec.decode(one)[1]["sums"] for one in recorded.was_released if codec.decode(one)[0] == "RatingSums"]
    now = [one["sums"] for one in recorded.released(seen)]
    assert len(now) == 2
    assert not set(now) & set(was)
    again = recorded.fresh()
    assert recorded.replayed(again).releases("releases")[2:] == seen.releases("releases")
    assert again.snapshot() == machine.snapshot()


def test_a_round_that_an_earlier_release_began_ends_as_it_would_have_and_answers_doubts_by_an_epoch(recorded):
    def taken_up():
        machine = recorded.fresh()
        machine.start(recorded.genesis)
        machine.restore(recorded.snapshot)
        assert machine.collector.naming is Naming.CONTENTS
        assert machine.draws_ahead
        return machine

    rest = recorded.logs["updates", 0][recorded.covers["updates"] :]
    part = InputSlice("updates", 0, recorded.covers["updates"], len(recorded.logs["updates", 0]), tuple(rest))
    steps = [step for step in taken_up().fold([part]) if step.journal is not None]
    assert steps[0].journal == recorded.journal[1]
    assert json.loads(codec.decode(steps[1].journal)[1]["parameters"])["named_by"] == "ids and contents"
    doubting = taken_up()
    assert doubting.distrust(DOUBT), "as noise that is drawn ahead"
    steps = [step for step in doubting.fold([part]) if step.journal is not None]
    assert codec.decode(steps[0].journal)[1]["head"]["epoch"] == 1
    assert not doubting.draws_ahead
