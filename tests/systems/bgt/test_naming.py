"""A round's noise is named by ids and contents of its slots, from the generation on that earlier releases refuse.

What an earlier release journaled stays what it was, and beside one a worker writes its very bytes.

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

from hushstream.engine.journal.chain import NewerJournal
from hushstream.engine.records import InputRecord, InputSlice, OffChain
from hushstream.engine.state.packed import OtherVersion
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.catalogue import CATALOGUE
from hushstream.schemas.codec import Codec
from hushstream.systems.bgt.configuration import bgt_digest
from hushstream.systems.bgt.deployment import bgt_address
from hushstream.systems.bgt.rounds import first_round
from hushstream.systems.bgt.shuffler.collector import Collector, Naming
from hushstream.systems.bgt.slots import null_slots

RECORDED = Path(__file__).parent / "recorded" / "collector_0_contents.json"
ROUNDS = (0, 1, 2)
EPOCH_NONCE = bytes(range(16))


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
        histories.add(collector.histories[Naming.IDS])
    assert len(histories) == 2


def taken_up(recorded, schema_generation=1):
    """A worker that was told to write this schema generation begins with the recorded genesis."""
    machine = recorded.fresh()
    machine.chain.schema_generation = schema_generation
    machine.start(recorded.genesis)
    return machine


def replayed(recorded, machine, values):
    steps = [machine.replay(value, [recorded.slice(*machine.recovery_ranges(value))]) for value in values]
    return [one.value for step in steps for one in step.releases if one.topic == "releases"]


def rest_of(recorded, low):
    """What is in the log from this place on."""
    rest = recorded.logs["updates", 0]
    return [InputSlice("updates", 0, low, len(rest), tuple(rest[low:]))]


def names_of(journals):
    """What journal records say of the names of their noise."""
    return [json.loads(codec.decode(one)[1]["parameters"]).get("named_by") for one in journals]


def journaled(steps):
    return [step.journal for step in steps if step.journal is not None]


def without_newer_versions():
    """What an earlier release can read: nothing that came with a later schema generation."""
    return Codec({name: tuple(one for one in known if one.schema_generation == 1) for name, known in CATALOGUE.items()})


def test_a_journal_of_an_earlier_release_gives_the_bytes_that_it_gave(recorded):
    for schema_generation in (1, 2):
        machine = taken_up(recorded, schema_generation)
        assert replayed(recorded, machine, recorded.journal) == recorded.was_released


def test_beside_an_earlier_release_a_worker_journals_and_releases_its_very_bytes(recorded):
    """Both may own the partition while releases are mixed: neither finds a record that it would have made otherwise."""
    machine = taken_up(recorded)
    assert machine.draws_ahead, "noise without ids answers suspected rollbacks as noise without a name"
    steps = machine.fold(rest_of(recorded, 0))
    assert journaled(steps) == recorded.journal
    assert [one.value for step in steps for one in step.releases if one.topic == "releases"] == recorded.was_released


def test_the_next_schema_generation_names_by_ids_and_an_earlier_release_stops_there(recorded, monkeypatch):
    """In words, before it folds anything: it would find another release, and end the rounds with an epoch."""
    machine = taken_up(recorded, 2)
    replayed(recorded, machine, recorded.journal[:1])
    assert not machine.draws_ahead
    made = journaled(machine.fold(rest_of(recorded, machine.position)))
    assert names_of(made) == ["ids and contents"] * 2
    assert not {codec.decode(one)[1]["head"]["release_digest"] for one in made} & {
        codec.decode(one)[1]["head"]["release_digest"] for one in recorded.journal
    }
    raised = taken_up(recorded)
    for value in [recorded.journal[0], *made]:
        raised.replay(value, [recorded.slice(*raised.recovery_ranges(value))])
    assert raised.snapshot() == machine.snapshot(), "whichever generation a worker was told"
    older = taken_up(recorded)
    replayed(recorded, older, recorded.journal[:1])
    monkeypatch.setattr(codec, "NEWEST_GENERATION", 1)
    with pytest.raises(NewerJournal, match="schema generations up to 1, found schema generation 2"):
        older.replay(made[0], [])


def test_the_generation_may_be_raised_in_the_middle_of_a_round(recorded):
    """The state holds both histories, so the round ends under the name that is in force at its end."""
    machine = taken_up(recorded)
    replayed(recorded, machine, recorded.journal[:1])
    middle = recorded.covers["updates"]
    (part,) = rest_of(recorded, machine.position)
    before = part.records[: middle - machine.position]
    assert before
    assert not journaled(machine.fold([InputSlice("updates", 0, machine.position, middle, before)]))
    next_one = taken_up(recorded, 2)
    next_one.restore(machine.snapshot())
    (first, second) = journaled(next_one.fold(rest_of(recorded, middle)))
    whole = taken_up(recorded, 2)
    replayed(recorded, whole, recorded.journal[:1])
    assert journaled(whole.fold(rest_of(recorded, whole.position))) == [first, second]
    assert names_of([first, second]) == ["ids and contents"] * 2
    back = taken_up(recorded)
    back.restore(machine.snapshot())
    assert journaled(back.fold(rest_of(recorded, middle))) == recorded.journal[1:]


def test_a_journal_that_this_release_begins_names_by_ids_whatever_generation_its_workers_were_told(films, monkeypatch):
    rig = films.CollectorRig(films.make_system())
    told = rig.fresh()
    assert told.chain.schema_generation == 1
    genesis = told.genesis(bytes(32))
    told.start(genesis)
    assert told.chain.schema_generation == 2
    assert told.naming is Naming.IDS
    assert not told.draws_ahead
    earlier = rig.fresh()
    monkeypatch.setattr(codec, "decode", without_newer_versions().decode)
    with pytest.raises(NewerJournal, match="schema generations up to"):
        earlier.start(genesis)


def test_a_snapshot_of_an_earlier_release_is_not_gone_on_with(recorded):
    """It holds one history of two: the round is folded again from the journal's last record."""
    machine = taken_up(recorded)
    with pytest.raises(OtherVersion):
        machine.restore(recorded.snapshot)
    again = taken_up(recorded)
    replayed(recorded, again, recorded.journal[:1])
    assert journaled(again.fold(rest_of(recorded, again.position))) == recorded.journal[1:]


def test_a_record_that_is_off_the_chain_changes_no_name(recorded):
    machine = taken_up(recorded, 2)
    value = recorded.journal[1]
    with pytest.raises(OffChain):
        machine.replay(value, [recorded.slice(*machine.recovery_ranges(value))])
    assert machine.naming is Naming.IDS
    assert not machine.draws_ahead


def test_a_suspected_rollback_of_a_round_without_ids_opens_an_epoch(recorded):
    suspecting = taken_up(recorded)
    replayed(recorded, suspecting, recorded.journal[:1])
    assert suspecting.request_epoch(EPOCH_NONCE), "as noise that is drawn ahead"
    found = journaled(suspecting.fold(rest_of(recorded, suspecting.position)))
    assert codec.decode(found[0])[1]["head"]["epoch"] == 1
