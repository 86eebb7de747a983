"""One record that nobody of the deployment wrote ends no reader, whoever reads it and wherever it lies.

Every role of every registered system, over the recorded logs of a small closed loop (`recordings`), with records of
`KINDS` put where somebody who may write the topic could put them:

* into its journal, before each of its records: the owner that follows the journal passes over them;
* into each log that it reads, inputs and published models: it folds them, and goes on;
* into each journal of another role that it reads: what its chain does not hold changes nothing;
* into its marks and states, and into each ledger: they are told from what the role wrote;
* into what a client reads.

Only a record that continues the journal under its own key, in a schema that is not known, stops whoever reads it: an
other release wrote that, and what follows continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest

from hushstream.agents.recovery.journal import sequence_of
from hushstream.agents.worker.roles import MachineMaker
from hushstream.client.decisions import JournalReader
from hushstream.engine.declare.declaration import topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import CHAIN_BYTES, OtherRelease
from hushstream.engine.journal.marks import MarkSeal, MarkUnreadable
from hushstream.engine.journal.notes import LOST
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputRange, InputRecord, InputSlice, OffChain, Step, TopicPartition
from hushstream.engine.state.published import StateSeal, StateUnreadable
from hushstream.ops.budget import LedgerRecord
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.topics import common_name
from hushstream.systems.catalogue import kinds
from machine_drive import Rig, Written
from recordings import KEYS, VARIANTS, Recording, Variant, every_home, recorded, require_all, unplayed

pytestmark = pytest.mark.slow

require_all(kinds())

NOT_CHAINED = ("Genesis", "OperatorNote")

UNKNOWN = bytes.fromhex("c301") + b"\xee" * 8
"""How a record of a schema begins that no release has."""


def another_end(value: bytes) -> bytes:
    return value[:-1] + bytes([value[-1] ^ 1])


KINDS: Mapping[str, Callable[[bytes, bytes], bytes]] = {
    "unknown schema, 60 bytes": lambda value, first: UNKNOWN + bytes(range(50)),
    "unknown schema over a true record": lambda value, first: UNKNOWN + value[10:],
    "true schema, another chain": lambda value, first: another_end(value),
    "truncated": lambda value, first: value[: len(value) // 2],
    "trailing bytes": lambda value, first: value + b"\0",
    "first record again": lambda value, first: first,
    "empty, as a tombstone reads": lambda value, first: b"",
    "shorter than a chain digest": lambda value, first: UNKNOWN[:5],
    "bytes": lambda value, first: b"of nobody" * 9,
    "compressed": lambda value, first: codec.COMPRESSED,
    "larger than any value": lambda value, first: value[:10] + bytes(codec.MAX_VALUE_BYTES),
}


HOMES = every_home()


@pytest.fixture
def rig(variant: Variant, place: int) -> Iterator[Rig]:
    with variant.registered():
        role, home = list(recorded(variant).homes())[place]
        yield Rig(recorded(variant), role, home)


def journals_read(rig: Rig) -> list[TopicPartition]:
    """The journals of other roles that a role reads: a record counts there if it is on the chain."""
    return [place for place in rig.machine.positions() if topic_of(rig.recording.system, place[0]).is_journal]


def unfollowed(rig: Rig) -> set[TopicPartition]:
    """The journals among them of which it shows no reader."""
    return set(journals_read(rig)) - {models.topic for models in rig.machine.readers}


def followers() -> Iterator[Any]:
    for one in HOMES:
        variant, place = one.values
        with variant.registered():
            if journals_read(Rig(unplayed(variant), *list(unplayed(variant).homes())[place])):
                yield one


FOLLOWERS = tuple(followers())


def sliced(recording: Recording, part: InputRange) -> InputSlice:
    there = recording.records.get((part.topic, part.partition), [])
    return InputSlice(*part, [record for record in there if part.low <= record.offset < part.high])


def follow(rig: Rig, before: Callable[[int, bytes], None]) -> tuple[list[Step], bytes]:
    """Replay the recorded journal, as a recovery does; ``before`` is told of each record before it is replayed."""
    machine, steps = rig.machine, []
    for record in rig.recording.records[machine.journal][1:]:
        before(record.offset, record.value)
        slices = [sliced(rig.recording, part) for part in machine.recovery_ranges(record.value)]
        steps.append(machine.replay(record.value, slices))
    return steps, machine.snapshot()


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_an_owner_passes_over_what_its_chain_does_not_hold(rig):
    first = rig.recording.records[rig.machine.journal][0].value

    def garbage(offset: int, value: bytes) -> None:
        machine = rig.machine
        for kind, made in KINDS.items():
            found = made(value, first)
            number = sequence_of(machine, found)
            if number is not None and number == machine.chain.sequence + 1:
                with pytest.raises(OffChain):
                    machine.replay(found, [sliced(rig.recording, part) for part in machine.recovery_ranges(found)])
            else:
                assert number in (None, 0), kind

    undisturbed = follow(Rig(rig.recording, rig.role, rig.home), lambda offset, value: None)
    assert follow(rig, garbage) == undisturbed


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_a_record_that_continues_the_journal_in_an_unknown_schema_stops_whoever_follows_it(rig):
    machine = rig.machine
    chain, (topic, partition) = machine.chain, machine.journal
    content = UNKNOWN + bytes(40)
    closing = chain.digester.digest("chain", rig.recording.records[machine.journal][0].value[-CHAIN_BYTES:], content)
    newer = content + closing
    said = rf"journal {topic}/{partition} offset 9: .*found schema {'ee' * 8}.*run that one"
    with pytest.raises(OtherRelease) as found:
        sequence_of(machine, newer)
    with pytest.raises(OtherRelease, match=said):
        raise found.value.at(9)
    assert machine.continues(newer, rig.recording.records[machine.journal][0].value)
    assert sequence_of(machine, another_end(newer)) is None


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_a_role_folds_whatever_lies_in_a_log_that_it_reads(rig):
    """At its beginning, in its midst and at its end."""
    machine, there = rig.machine, rig.recording.records
    for share in (0, 1, 2):
        _fold_up_to(machine, there, share)
        for source, position in machine.positions().items():
            records = there.get(source) or [InputRecord(0, 1, UNKNOWN)]
            sample = records[min(position, len(records) - 1)]
            values = [made(sample.value, records[0].value) for made in KINDS.values()]
            mess = [InputRecord(position + n, sample.timestamp_ms, v) for n, v in enumerate(values)]
            part = InputSlice(*source, position, position + len(values), mess)
            ready = [one for one in machine.ready([part]) if one.high > one.low]
            if ready:
                machine.fold(ready)
        rig.machine = machine = rig.fresh()


def _fold_up_to(machine: Any, there: Mapping[TopicPartition, Sequence[InputRecord]], share: int) -> None:
    """Fold none, half or all of what was recorded."""
    slices = []
    for source, position in machine.positions().items():
        records = there.get(source, ())
        high = len(records) * share // 2
        if high > position:
            slices.append(InputSlice(*source, position, high, records[position:high]))
    ready = [part for part in machine.ready(slices) if part.high > part.low] if slices else []
    if ready:
        machine.fold(ready)


def off_chain(recording: Recording, journal: TopicPartition, begun: bool) -> Iterator[bytes]:
    """Records of a journal's own schemas that do not continue it; its first one does where the reader has not begun."""
    first, *others = [record.value for record in recording.records[journal]]
    yield from map(another_end, others)
    if begun:
        yield first
    (owner,) = (role.name for role in recording.system.roles if role.journal == journal[0])
    place = {"deployment": recording.system.config.deployment, "role": common_name(owner), "partition": journal[1]}
    lost = {"kind": LOST, "topic": "sums", "topic_partition": 0, "low": 0, "high": 1, "after_ms": 0, "before_ms": 0}
    yield codec.encode("OperatorNote", {**place, **lost, "key_id": bytes(8), "tag": bytes(16)})


class Effect(NamedTuple):
    """What a fold gives and leaves, apart from digests of what was read."""

    journal: list[dict[str, Any] | None]
    outputs: list[Any]
    state: dict[str, Any]


def effect_of(machine: Any, part: InputSlice) -> Effect:
    """Fold a slice."""
    ready = [one for one in machine.ready([part]) if one.high > one.low]
    steps = machine.fold(ready) if ready else []
    journal = [None if step.journal is None else dict(codec.decode(step.journal)[1]) for step in steps]
    for fields in journal:
        if fields is not None:
            fields["head"] = {name: one for name, one in fields["head"].items() if name != "input_digest"}
            del fields["chain"]
    state = machine.state.form.read(machine.snapshot())
    state["chain"] = {name: one for name, one in state["chain"].items() if name != "digest"}
    state.pop("running", None)
    return Effect(journal, [written[1:] for written in map(Written.by, steps)], state)


def require_nothing_follows(rig: Rig) -> None:
    """Fold records off the chain, and gaps of the same size in their place, where nothing, half or all was read.

    Raises:
        AssertionError: a role takes such a record for one of the journal.
    """
    for share, place in product((0, 1, 2), journals_read(rig)):
        disturbed, undisturbed = rig.fresh(), rig.fresh()
        for machine in (disturbed, undisturbed):
            _fold_up_to(machine, rig.recording.records, share)
        begun = disturbed.positions()[place] > 0
        for value in off_chain(rig.recording, place, begun):
            low = disturbed.positions()[place]
            after_ms = rig.recording.records[place][-1].timestamp_ms
            found = effect_of(disturbed, InputSlice(*place, low, low + 1, [InputRecord(low, after_ms, value)]))
            expected = effect_of(undisturbed, InputSlice(*place, low, low + 1, []))
            assert found == expected, (
                f"role {rig.role.name}: expected that nothing follows from a record off the chain of {place[0]} "
                f"({codec.decode(value)[0]}): follow that journal by its chain (`ModelReader.read` gives what is on it)"
            )


@pytest.mark.parametrize(("variant", "place"), FOLLOWERS)
def test_nothing_follows_from_a_record_off_the_chain_of_a_journal_that_a_role_reads(rig):
    """Otherwise whoever may write the topic chooses what the role does."""
    require_nothing_follows(rig)


@pytest.mark.parametrize(("variant", "place"), FOLLOWERS)
def test_a_follower_of_models_reads_the_same_versions_and_notes_what_it_skips(rig):
    whole = rig.fresh()
    assert not unfollowed(rig), (
        f"role {rig.role.name}: expected a reader of each journal that it reads in `readers`, by which a worker tells "
        f"which records it skipped, got none of {unfollowed(rig)}"
    )
    for place, models in enumerate(rig.machine.readers):
        records = rig.recording.records[models.topic]
        true = [one.value for one in whole.readers[place].read(InputSlice(*models.topic, 0, len(records), records))]
        mixed: list[bytes] = []
        for record in records:
            mixed += [made(record.value, records[0].value) for made in KINDS.values()] if record.offset else []
            mixed.append(record.value)
            mixed.append(KINDS["unknown schema, 60 bytes"](record.value, b""))
        disturbed = [InputRecord(offset, 1, value) for offset, value in enumerate(mixed)]
        found = list(models.read(InputSlice(*models.topic, 0, len(mixed), disturbed)))
        assert [one.value for one in found] == true
        assert len(models.foreign) > 0
        assert models.position == len(mixed)


@pytest.mark.parametrize(("variant", "place"), HOMES)
def test_garbage_is_told_from_marks_and_states(rig):
    role, home = rig.role, rig.home
    maker = MachineMaker(role, rig.recording.system, KEYS)
    deployment = rig.recording.system.config.deployment
    some = rig.recording.records[rig.machine.journal][0].value
    state = StateSeal(deployment, role.name, home, maker.state_keys())
    true = state.pack(bytes(16), 0, b"a part")
    for made in KINDS.values():
        for value in {made(true, some), made(some, some)} - {true}:
            with pytest.raises(StateUnreadable):
                state.unpack(value)
    if role.marks is not None:
        seal = MarkSeal(deployment, role.name, home, maker.mark_keys())
        for made in KINDS.values():
            with pytest.raises(MarkUnreadable):
                seal.unpack(made(some, some))


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_garbage_is_told_from_ledger_entries_and_answers(variant):
    with variant.registered():
        recording = recorded(variant)
        for topic, terms in recording.system.ledgers.items():
            entries = [record.value for record in recording.records.get((topic, 0), [])]
            for made in KINDS.values():
                value = made(entries[0], b"") if entries else made(UNKNOWN * 9, b"")
                seen = LedgerRecord(value, recording.system, terms)
                assert seen.problem or seen.entry_id
        for role in recording.system.roles:
            if topic_of(recording.system, role.journal).client:
                _read_as_a_client(recording, role)


def _read_as_a_client(recording: Recording, role: Role) -> None:
    (schema,) = (name for name in topic_of(recording.system, role.journal).schemas if name not in NOT_CHAINED)
    for home in range(recording.system.homes(role)):
        records = recording.records[role.journal, home]
        plain, mixed = JournalReader(schema), JournalReader(schema)
        true = [one for record in records for one in plain.read(record.offset, record.value)]
        found, offset = [], 0
        for record in records:
            for kind, made in KINDS.items():
                if record.offset and kind != "true schema, another chain":  # who has no key goes by numbers
                    found += list(mixed.read(offset, made(record.value, records[0].value)))
                    offset += 1
            found += list(mixed.read(offset, record.value))
            offset += 1
        assert found == true


def test_the_kinds_are_no_records_of_anybody():
    for kind, made in KINDS.items():
        if kind not in ("true schema, another chain", "first record again"):
            with pytest.raises(CodecError):
                codec.decode(made(codec.encode("Tick", {"config_digest": bytes(16)}), b""))


# That the suite would notice.

(TOY,) = (variant for variant in VARIANTS if variant.name == "meanarm")


class TrustingReader(ModelReader):
    """It takes every version for one of the journal."""

    def _accept(self, record: InputRecord) -> dict[str, Any] | None:
        try:
            return codec.decode(record.value, frozenset({"ArmMeans"}))[1]
        except CodecError:
            return None


def learner(remake: Callable[[Any], Any]) -> Rig:
    """The toy's learner, made otherwise."""
    (place,) = (one for one in recorded(TOY).homes() if one[0].name == "learner")
    return Rig(recorded(TOY), *place, remake=remake)


def test_a_role_that_takes_whatever_lies_in_a_journal_is_noticed():
    def trusting(machine: Any) -> Any:
        machine.models[0].__class__ = TrustingReader
        return machine

    with TOY.registered(), pytest.raises(AssertionError, match=r"off the chain of models \(ArmMeans\): follow"):
        require_nothing_follows(learner(trusting))


def test_a_role_that_shows_no_reader_of_a_journal_that_it_reads_is_noticed():
    def hiding(machine: Any) -> Any:
        machine.__class__ = type("Hiding", (type(machine),), {"readers": ()})
        return machine

    with TOY.registered():
        assert unfollowed(learner(hiding)) == {("models", 0)}
