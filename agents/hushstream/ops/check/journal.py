"""Walking one journal: every record recomputed from its genesis or a checkpoint on, and what it must have led to.

A journal record is on the chain if it continues the records before it: sequence number, lows, chain digest.
One that is off the chain is legitimate only if a worker with the key made it (its chain digest continues some
record that is itself authentic); otherwise its bytes were changed, or it was put there.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hushstream.agents.recovery.losses import in_words
from hushstream.agents.settings import IN_FLIGHT
from hushstream.engine.journal.chain import BEGINNING, CHAIN_BYTES, Digester
from hushstream.engine.journal.notes import FOREIGN, LOST, Note, NoteSeal
from hushstream.engine.machine import Machine, float_ties
from hushstream.engine.records import InputRange, InputRecord, InputSlice, OffChain, Output, Step, TopicPartition
from hushstream.ops.check.checkpoints import Begun
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.log_copy import LogCopy
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import Topic

NO_GENESIS = (
    "its first records were deleted; `hushstream verify --from checkpoint` begins with a published state instead"
)
"""Of a journal that cannot be followed from its beginning."""


_STRANGERS_BORNE = 64
"""After so many records in a row that continue nothing, one of the chain was changed: no later one can continue it."""
_BRANCHES = 4096
"""So many records back a journal that goes on is known: one that continues an earlier one comes from a worker that
slept."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One output that follows from a journal.

    Attributes:
        digest: of the value (`output_digest`).
        offset: of the journal record that it follows from; None when it follows from inputs beyond it.
    """

    digest: bytes
    offset: int | None


@dataclass(slots=True)
class Walk:
    """What a journal says.

    Attributes:
        tally: the journal's own records.
        expected: the outputs that follow, in the order in which they were sent, by partition.
        complete: whether it could be followed to its end, so that no other output has a reason to exist.
        begun: the checkpoint that the walk began with; None where it began at the genesis.
        sequence: the last record on the chain.
        last: offsets of the last records on the chain, as many as a worker may have on their way.
    """

    tally: Tally
    expected: dict[TopicPartition, list[Expected]] = field(default_factory=dict)
    complete: bool = True
    begun: Begun | None = None
    sequence: int = -1
    last: deque[int] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT))


def value_digest(value: bytes) -> bytes:
    """Stands for a value in memory."""
    return hashlib.blake2b(value, digest_size=16).digest()


def output_digest(topic: Topic, value: bytes) -> bytes:
    """Stands for a value on an output topic.

    A dead letter may be sent before the journal record that covers its input settles a schema generation, so it is the
    same letter in any.
    """
    if topic.holds_dead_letters:
        with suppress(CodecError):
            value = codec.encode(*codec.decode(value))
    return value_digest(value)


def walk(
    role: str,
    machine: Machine,
    digesters: Sequence[Digester],
    copy: LogCopy,
    topics: Mapping[str, Topic],
    notes: NoteSeal,
    begun: Begun | None = None,
    on_record: Callable[[], None] = lambda: None,
) -> Walk:
    """Follow the journal of one machine through a copy of the logs.

    Args:
        role: its name.
        machine: fresh, or that of ``begun``; it is used up.
        digesters: the keys of its zone, which its journal may rotate through, or the public digester.
        copy: the logs.
        topics: how those that the role reads and writes are declared.
        notes: opens the notes of operators that stand in the journal.
        begun: the checkpoint to begin behind; None for the journal's first record.
        on_record: called when a record of the journal was gone over.
    """
    walker = Walker(role, machine, digesters, topics, notes, copy, begun)
    return walker.run(on_record)


def notes_in(records: Sequence[InputRecord], seal: NoteSeal) -> dict[int, Note]:
    """The notes of operators among the records of a journal, by offset."""
    opened = ((record.offset, seal.unpack(record.value)) for record in records)
    return {offset: note for offset, note in opened if note is not None}


@dataclass(frozen=True, slots=True)
class Place:
    """Where on a journal a walk stands.

    Attributes:
        sequence: of the last record on the chain; -1 before the first.
        head: the chain digest with which that record closes.
        offset: of the record that is gone over next.
    """

    sequence: int = -1
    head: bytes = BEGINNING
    offset: int = 0


class Walker:
    """Goes over one journal record by record: through a whole copy (`run`), or as the journal goes on (`step`).

    Attributes:
        walk: what the journal says as far as it was gone over.
        copy: where the inputs of the next record lie.
    """

    def __init__(
        self,
        role: str,
        machine: Machine,
        digesters: Sequence[Digester],
        topics: Mapping[str, Topic],
        seal: NoteSeal,
        copy: LogCopy,
        begun: Begun | None = None,
        place: Place | None = None,
    ) -> None:
        """Begin; the arguments are those of `walk`, and ``place`` is where an earlier walk of this machine ended."""
        self.copy = copy
        self._seal = seal
        self._notes: dict[int, Note] = {}
        self._topics = topics
        self._machine = machine
        self._digesters = digesters
        self._broken = False
        """Whether a record of unknown origin came since the last one on the chain: it may have been on it."""
        self._in_a_row = 0
        self._strangers: set[int] = set()
        """Where records of unknown origin were found."""
        self._lost = ""
        """Why the machine cannot follow any more; empty while it can."""
        self.walk = Walk(Tally(role, machine.journal), begun=begun)
        self._tally = self.walk.tally
        if begun is not None:
            head = begun.record.value[-CHAIN_BYTES:]
            place = Place(begun.checkpoint.sequence, head, begun.record.offset + 1)
        place = place or Place()
        self._head, self._sequence, self._next = place.head, place.sequence, place.offset
        self._first = place.sequence
        """The earliest record of the chain that is known: what continues an earlier one cannot be judged."""
        self._authentic: dict[int, set[bytes]] = {self._sequence: {self._head}}
        self.last_record: InputRecord | None = None if begun is None else begun.record

    @property
    def place(self) -> Place:
        """Where the walk stands."""
        return Place(self._sequence, self._head, self._next)

    @property
    def complete(self) -> bool:
        """Whether the journal could be followed so far."""
        return not (self._lost or self._broken)

    @property
    def lost(self) -> str:
        """Why the machine cannot follow any more; empty while it can."""
        return self._lost

    def run(self, on_record: Callable[[], None]) -> Walk:
        """Go over the whole journal that the copy holds; ``on_record`` is called behind each record."""
        journal = self.copy.part(self._machine.journal)
        if journal.low > 0 and self.walk.begun is None:
            why = f"the journal begins at offset {journal.low}: {NO_GENESIS}"
            self._tally.find(Status.UNCHECKABLE, None, why, len(journal.records))
            self.walk.complete = False
            return self.walk
        # What a note says of records before it counts from the beginning.
        self._notes = notes_in(journal.records, self._seal)
        skipped = journal.place(self._next)
        self._tally.count(Status.SKIPPED, skipped)
        for index in range(skipped, len(journal.records)):
            self._record(journal.records[index])
            on_record()
        self.walk.sequence = self._sequence
        lost = [note for note in self._notes.values() if note.kind == LOST]
        if lost:
            self._tally.lost += lost
            texts = ", ".join(map(in_words, lost))
            self._tally.note = f"by an operator's word it went on without {texts}, deleted before they were folded"
        self.walk.complete = self.complete
        if self.walk.complete:
            self._tail()
        return self.walk

    def step(self, record: InputRecord) -> None:
        """Go over the next record of a journal that goes on; the copy holds what it was made from.

        A note counts from where it stands, and takes back what was said of a record that it calls nobody's.
        """
        note = self._seal.unpack(record.value)
        if note is not None:
            self._notes[record.offset] = note
            self._take_back(note)
        self._record(record)
        self._next = record.offset + 1
        self._in_a_row = self._in_a_row + 1 if self._broken else 0
        if self._in_a_row > _STRANGERS_BORNE:
            self._lost = "the chain was changed: nothing continues it"
        self.walk.sequence, self.walk.complete = self._sequence, self.complete
        self._forget_old()

    def pass_to(self, offset: int) -> None:
        """Nothing more lies before an offset."""
        self._next = max(self._next, offset)

    def _take_back(self, note: Note) -> None:
        if note.kind != FOREIGN or note.source != self._tally.source:
            return
        stands = []
        for found in self._tally.findings:
            if found.offset in self._strangers and note.low <= found.offset < note.high:
                self._strangers.discard(found.offset)
                self._tally.counts[found.status] -= 1
                self._tally.count(Status.NOTED)
            else:
                stands.append(found)
        self._tally.findings[:] = stands

    def _forget_old(self) -> None:
        """A worker that wakes after so many records is answered as one from before the beginning."""
        while len(self._authentic) > _BRANCHES:
            del self._authentic[next(iter(self._authentic))]
            self._first = next(iter(self._authentic))

    # One record of the journal.

    def _record(self, record: InputRecord) -> None:
        if record.offset in self._notes or self._is_noted(record):
            self._tally.count(Status.NOTED)
            return
        try:
            entry = self._machine.entry(record.value)
        except HushstreamError as error:
            self._unauthentic(record, f"not a journal record ({error})")
            return
        sequence = entry.sequence
        previous = self._previous(record.value, sequence)
        if previous is None and 0 <= sequence <= self._first:
            # No reader goes on with it, whoever wrote it: what it continues lies before the checkpoint.
            self._authentic.setdefault(sequence, set()).add(record.value[-CHAIN_BYTES:])
            self._tally.find(Status.UNCHECKABLE, record.offset, f"record {sequence} again, behind the checkpoint's")
            return
        if previous is None:
            self._unauthentic(record, f"sequence {sequence}: its chain digest continues no record before it")
            return
        self._authentic.setdefault(sequence, set()).add(record.value[-CHAIN_BYTES:])
        if sequence != self._sequence + 1 or previous != self._head:
            self._tally.count(Status.OFF_CHAIN)
        elif sequence == 0:
            self._start(record)
        else:
            self._follow(record, entry.inputs)

    def _previous(self, value: bytes, sequence: int) -> bytes | None:
        """The digest of the authentic record that a record continues, if it does."""
        content, closing = value[:-CHAIN_BYTES], value[-CHAIN_BYTES:]
        candidates = self._authentic.get(sequence - 1, set())
        for previous in sorted(candidates, key=lambda digest: digest != self._head):
            if any(digester.digest("chain", previous, content) == closing for digester in self._digesters):
                return previous
        return None

    def _unauthentic(self, record: InputRecord, reason: str) -> None:
        if self._broken:
            self._tally.find(Status.UNCHECKABLE, record.offset, "it follows a journal record that is changed")
            return
        self._broken = True
        self._strangers.add(record.offset)
        self._tally.find(Status.CHANGED, record.offset, reason)

    def _is_noted(self, record: InputRecord) -> bool:
        """Whether a note calls a record foreign; one that continues the chain is none, whatever is said of it."""
        place, offset = self._machine.journal, record.offset
        said = any(n.kind == FOREIGN and n.covers(place, offset, offset + 1) for n in self._notes.values())
        content, closing = record.value[:-CHAIN_BYTES], record.value[-CHAIN_BYTES:]
        return said and all(one.digest("chain", self._head, content) != closing for one in self._digesters)

    def _start(self, record: InputRecord) -> None:
        try:
            self._machine.start(record.value)
        except HushstreamError as error:
            self._lost = str(error)
            self._tally.find(Status.CHANGED, record.offset, str(error))
        else:
            self._tally.count(Status.EQUAL)
            self._note_key(codec.decode(record.value)[1]["key_id"])
        self._advance(record)

    def _note_key(self, key_id: bytes) -> None:
        """Note the key that the journal is under from here on; nothing where it stays, or where there is none."""
        if any(key_id):
            self._tally.key_ids.append(key_id.hex())

    def _advance(self, record: InputRecord) -> None:
        self.walk.last.append(record.offset)
        self.last_record = record
        self._head = record.value[-CHAIN_BYTES:]
        self._sequence += 1
        self._broken = False

    def _follow(self, record: InputRecord, ranges: Sequence[InputRange]) -> None:
        if self._lost:
            self._only_inputs(record, ranges)
            self._advance(record)
            return
        needed = self._machine.recovery_ranges(record.value)
        status, reason = self._reach(needed)
        if status is not Status.EQUAL:
            self._lose(record, status, reason)
            self._advance(record)
            return
        # Asked first: a machine need not bear inputs that it could never have read.
        _, fields = codec.decode(record.value)
        if not self._intact(fields, ranges):
            self._lose(record, *self._why_not_those(ranges))
            self._advance(record)
            return
        ties = self._ties()
        try:
            step = self._machine.replay(record.value, [self._slice(part) for part in needed])
        except OffChain:
            self._tally.count(Status.OFF_CHAIN)
            return
        except HushstreamError as error:
            self._lose(record, Status.CHANGED, str(error))
        else:
            self._tally.count(Status.FLOAT_TIE if self._ties() > ties else Status.EQUAL)
            self._expect((*step.releases, *step.dead_letters), record.offset)
            self._note_key(fields.get("turned_to", b""))
        self._advance(record)

    def _lose(self, record: InputRecord, status: Status, reason: str) -> None:
        self._tally.find(status, record.offset, reason)
        self._lost = f"it follows from {self._place(record.offset)}, which is {status}"

    # Inputs.

    def _reach(self, ranges: Sequence[InputRange]) -> tuple[Status, str]:
        """Whether the copy holds what a record was made from; EQUAL if it does."""
        for part in ranges:
            there = self.copy.part((part.topic, part.partition))
            name = f"{part.topic}/{part.partition}"
            lost = min(there.low, part.high)
            source = (part.topic, part.partition)
            if any(n.kind == LOST and n.covers(source, part.low, lost) for n in self._notes.values()):
                continue
            if part.low < there.low and part.low < part.high:
                return Status.UNCHECKABLE, f"made from {name} offset {part.low}, but that log begins at {there.low}"
            if part.high > there.high:
                reason = f"made from {name} up to offset {part.high}, but that log ends at {there.high}"
                return (Status.CHANGED if self.copy.quiet else Status.UNCHECKABLE), reason
        return Status.EQUAL, ""

    def _slice(self, part: InputRange) -> InputSlice:
        return InputSlice(*part, records=self.copy.part((part.topic, part.partition)).read(part.low, part.high))

    def _intact(self, fields: Mapping[str, Any], ranges: Sequence[InputRange]) -> bool:
        """Whether the inputs that a record of these fields names are those whose digest it holds."""
        slices = [self._slice(part) for part in ranges]
        return bool(fields["head"]["input_digest"] == self._machine.input_digest(slices))

    def _why_not_those(self, ranges: Sequence[InputRange]) -> tuple[Status, str]:
        """Whether inputs that are not those of a record were taken out by an erasure, or changed."""
        taken_out = [r.timestamp_ms for part in ranges for r in self._slice(part).records if not r.value]
        if not taken_out:
            return Status.CHANGED, _not_those(ranges)
        parts = [self.copy.part(source) for source in self._machine.inputs if self._topics[source[0]].tombstones]
        # The youngest first: mostly a tombstone lies near the end of what an erasure left.
        tombstones = (r.timestamp_ms for part in parts for r in reversed(part.records) if _is_tombstone(r))
        if not any(log_time_ms >= max(taken_out) for log_time_ms in tombstones):
            return Status.CHANGED, f"{_not_those(ranges)}; values are missing there, and no tombstone says why"
        return Status.ERASED, f"{_not_those(ranges)}; what a forgotten user wrote was taken out"

    def _only_inputs(self, record: InputRecord, ranges: Sequence[InputRange]) -> None:
        """What can still be said when the machine's state is lost: whether the inputs are as they were."""
        status, reason = self._reach(ranges)
        if status is Status.EQUAL and not self._intact(codec.decode(record.value)[1], ranges):
            status, reason = self._why_not_those(ranges)
            self._tally.find(status, record.offset, reason)
        elif status is Status.EQUAL:
            self._tally.find(Status.UNCHECKABLE, record.offset, self._lost)
        else:
            self._tally.find(status, record.offset, reason)

    # Outputs.

    def _tail(self) -> None:
        """Inputs beyond the journal's end: dead letters may follow from them before the next record does."""
        if self._sequence < 0:
            return
        for source in (*self._machine.inputs, *self._machine.broadcasts):
            part = self.copy.part(source)
            position = self._machine.positions()[source]
            rest = part.read(position, part.high)
            if not rest:
                continue
            self._tally.uncovered[source] = len(rest)
            if len(self._machine.inputs) > 1 or position < part.low:
                continue
            steps = self._machine.fold([InputSlice(*source, position, part.high, rest)])
            self._expect_unjournaled(steps)

    def _expect_unjournaled(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.journal is not None:
                return
            self._expect(step.dead_letters, None)

    def _expect(self, outputs: Sequence[Output], offset: int | None) -> None:
        for output in outputs:
            place = self.walk.expected.setdefault((output.topic, output.partition), [])
            place.append(Expected(output_digest(self._topics[output.topic], output.value), offset))

    def _ties(self) -> int:
        return float_ties(self._machine)

    def _place(self, offset: int) -> str:
        topic, partition = self._machine.journal
        return f"{topic}/{partition} offset {offset}"


def _is_tombstone(record: InputRecord) -> bool:
    try:
        return codec.decode(record.value)[0] in ("Forget", "Erasure")
    except CodecError:
        return False


def _not_those(ranges: Sequence[InputRange]) -> str:
    named = ", ".join(f"{r.topic}/{r.partition} offsets {r.low} to {r.high - 1}" for r in ranges if r.high > r.low)
    return f"its inputs are not those that it was made from: {named}"
