"""Walks through one journal: recomputes every record from the genesis or a checkpoint on, and the outputs of each.

A journal record is on the chain if it continues the records before it: sequence number, beginnings of its input ranges,
chain digest. A record off the chain is legitimate only if a worker with the key made it: then its chain digest
continues a record that is authentic itself. Otherwise its bytes were changed, or somebody else wrote it.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hushstream.agents.recovery.losses import in_words
from hushstream.agents.settings import IN_FLIGHT
from hushstream.engine.journal.chain import BEGINNING, CHAIN_BYTES
from hushstream.engine.journal.notes import FOREIGN, LOST, Note, is_noted, notes_in
from hushstream.engine.machine import Machine
from hushstream.engine.records import (
    InputRange,
    InputRecord,
    InputSlice,
    JournalEntry,
    OffChain,
    Output,
    Step,
    TopicPartition,
)
from hushstream.ops.check.checkpoints import Restored
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.log_copy import LogCopy, RoleLogs
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError

NO_GENESIS = (
    "its first records were deleted; `hushstream verify --from checkpoint` begins with a published state instead"
)
"""The reason why a journal cannot be followed from its first record."""


_STRANGERS_BORNE = 64
"""After this many unauthentic records in a row, a record of the chain must have been changed: no later record can
continue the chain."""
_BRANCHES = 4096
"""Of a growing journal this many past records are remembered. A record that continues an earlier one was written by a
worker that had been suspended."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One output that follows from a journal.

    Attributes:
        digest: the `value_digest` of its value.
        offset: the offset of the journal record that it follows from; None if it follows from inputs after the last.
    """

    digest: bytes
    offset: int | None


@dataclass(slots=True)
class Walk:
    """The result of a walk through a journal.

    Attributes:
        tally: the counts and findings of the journal's own records.
        expected: the outputs that follow from the journal, in the order of sending, by partition.
        complete: whether the journal could be followed to its end, so that no other output may exist.
        begun: the checkpoint that the walk began with; None if it began at the genesis.
        sequence: the number of the last record on the chain.
        last: the offsets of the last records on the chain, as many as a worker may have in flight.
        machine: the machine at the end; None if a whole copy was not walked through.
    """

    tally: Tally
    expected: dict[TopicPartition, list[Expected]] = field(default_factory=dict)
    complete: bool = True
    begun: Restored | None = None
    sequence: int = -1
    last: deque[int] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT))
    machine: Machine | None = None


def value_digest(value: bytes) -> bytes:
    """A short digest of a value, kept in memory in place of the value."""
    return hashlib.blake2b(value, digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a walk in a journal.

    Attributes:
        sequence: the number of the last record on the chain; -1 before the first.
        head: the chain digest at the end of that record.
        offset: the offset of the next record.
    """

    sequence: int = -1
    head: bytes = BEGINNING
    offset: int = 0


class Walker:
    """Walks through one journal, record by record: a whole copy with `run`, or a growing journal with `step`.

    Attributes:
        walk: the result so far.
        copy: the logs with the inputs of the next record.
    """

    def __init__(
        self, of: RoleLogs, machine: Machine, copy: LogCopy, begun: Restored | None = None, place: Place | None = None
    ) -> None:
        """Begin.

        Args:
            of: the role.
            machine: a fresh machine, or that of ``begun`` or ``place``; do not use it afterwards.
            copy: the logs.
            begun: the checkpoint after which to begin; None for the journal's first record.
            place: the position of an earlier walk of this machine.
        """
        self.copy = copy
        self._seal = of.notes(machine.journal[1])
        self._notes: dict[int, Note] = {}
        self._topics = of.topics.declared
        self._machine = machine
        self._digesters = of.digesters()
        self._broken = False
        """Whether an unauthentic record came after the last one on the chain: it may be a changed chain record."""
        self._in_a_row = 0
        self._strangers: set[int] = set()
        """The offsets of unauthentic records."""
        self._lost = ""
        """Why the machine cannot follow any more; empty while it can."""
        self.walk = Walk(Tally(of.role.name, machine.journal), begun=begun)
        self._tally = self.walk.tally
        if begun is not None:
            head = begun.record.value[-CHAIN_BYTES:]
            place = Place(begun.checkpoint.sequence, head, begun.record.offset + 1)
        place = place or Place()
        self._head, self._sequence, self._next = place.head, place.sequence, place.offset
        self._first = place.sequence
        """The earliest known record of the chain: a record that continues an earlier one cannot be judged."""
        self._authentic: dict[int, set[bytes]] = {self._sequence: {self._head}}
        self.last_record: InputRecord | None = None if begun is None else begun.record

    @property
    def place(self) -> Place:
        """The position of the walk."""
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
        """Walk through the whole journal in the copy; ``on_record`` is called after each record."""
        journal = self.copy.part(self._machine.journal)
        if journal.low > 0 and self.walk.begun is None:
            why = f"the journal begins at offset {journal.low}: {NO_GENESIS}"
            self._tally.find(Status.UNCHECKABLE, None, why, len(journal.records))
            self.walk.complete = False
            return self.walk
        # A note may name earlier records, so all notes are read first.
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
            self._tally.note = f"an operator has accepted the loss of {texts}, deleted before they were folded"
        self.walk.complete = self.complete
        if self.walk.complete:
            self._tail()
            self.walk.machine = self._machine
        return self.walk

    def step(self, record: InputRecord) -> None:
        """Check the next record of a growing journal; the copy must hold its inputs.

        A note takes effect when it is read: it removes the findings of the earlier records that it calls foreign.
        """
        note = self._seal.unpack(record.value)
        if note is not None:
            self._notes[record.offset] = note
            self._remove_findings(note)
        self._record(record)
        self._next = record.offset + 1
        self._in_a_row = self._in_a_row + 1 if self._broken else 0
        if self._in_a_row > _STRANGERS_BORNE:
            self._lost = "the chain was changed: nothing continues it"
        self.walk.sequence, self.walk.complete = self._sequence, self.complete
        self._forget_old()

    def skip_to(self, offset: int) -> None:
        """Continue at an offset: there are no more records before it."""
        self._next = max(self._next, offset)

    def _remove_findings(self, note: Note) -> None:
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
        """Forget old records: a record that continues one of them is then judged as one from before the beginning."""
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
            # No reader follows this record, whoever wrote it: it continues a record before the checkpoint.
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
            self._follow(record, entry)

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
        """Whether a note calls a record foreign; a record that continues the chain is never foreign."""
        said = is_noted(self._notes.values(), self._machine.journal, record.offset)
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
        """Note that another key is in force from here on; does nothing if the key is the same, or the role has none."""
        if any(key_id):
            self._tally.key_ids.append(key_id.hex())

    def _advance(self, record: InputRecord) -> None:
        self.walk.last.append(record.offset)
        self.last_record = record
        self._head = record.value[-CHAIN_BYTES:]
        self._sequence += 1
        self._broken = False

    def _follow(self, record: InputRecord, entry: JournalEntry) -> None:
        if self._lost:
            self._check_inputs_only(record, entry)
            self._advance(record)
            return
        needed = self._machine.recovery_ranges(record.value)
        status, reason = self._inputs_status(needed)
        if status is not Status.EQUAL:
            self._stop_following(record, status, reason)
            self._advance(record)
            return
        # Check the inputs first: a machine may fail on inputs that no worker can have folded.
        if not self._intact(entry):
            self._stop_following(record, *self._why_not_those(entry.inputs))
            self._advance(record)
            return
        ties = self._ties()
        try:
            step = self._machine.replay(record.value, [self._slice(part) for part in needed])
        except OffChain:
            self._tally.count(Status.OFF_CHAIN)
            return
        except HushstreamError as error:
            self._stop_following(record, Status.CHANGED, str(error))
        else:
            self._tally.count(Status.FLOAT_TIE if self._ties() > ties else Status.EQUAL)
            self._expect((*step.releases, *step.dead_letters), record.offset)
            if entry.key_rotated:
                self._note_key(codec.decode(record.value)[1]["turned_to"])
        self._advance(record)

    def _stop_following(self, record: InputRecord, status: Status, reason: str) -> None:
        self._tally.find(status, record.offset, reason)
        self._lost = f"it follows from {self._place(record.offset)}, which is {status}"

    # Inputs.

    def _inputs_status(self, ranges: Sequence[InputRange]) -> tuple[Status, str]:
        """Whether the copy holds the inputs of a record: EQUAL if it does, otherwise the status and the reason."""
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
                return (Status.CHANGED if self.copy.consistent else Status.UNCHECKABLE), reason
        return Status.EQUAL, ""

    def _slice(self, part: InputRange) -> InputSlice:
        return InputSlice(*part, records=self.copy.part((part.topic, part.partition)).read(part.low, part.high))

    def _intact(self, entry: JournalEntry) -> bool:
        """Whether the inputs that a record names have the digest that the record holds."""
        return entry.input_digest == self._machine.input_digest([self._slice(part) for part in entry.inputs])

    def _why_not_those(self, ranges: Sequence[InputRange]) -> tuple[Status, str]:
        """Whether inputs that differ from those of a record were erased or changed, and the reason."""
        taken_out = [r.timestamp_ms for part in ranges for r in self._slice(part).records if not r.value]
        if not taken_out:
            return Status.CHANGED, _not_those(ranges)
        parts = [self.copy.part(source) for source in self._machine.inputs if self._topics[source[0]].deletions]
        # Search backwards: a deletion request mostly lies near the end of a copy from which a user was erased.
        deletions = (r.timestamp_ms for part in parts for r in reversed(part.records) if _is_deletion(r))
        if not any(log_time_ms >= max(taken_out) for log_time_ms in deletions):
            return Status.CHANGED, f"{_not_those(ranges)}; values are missing there, and no deletion request says why"
        return Status.ERASED, f"{_not_those(ranges)}; what a forgotten user wrote was taken out"

    def _check_inputs_only(self, record: InputRecord, entry: JournalEntry) -> None:
        """Check only the inputs of a record, when the machine can no longer follow the journal."""
        status, reason = self._inputs_status(entry.inputs)
        if status is Status.EQUAL and not self._intact(entry):
            status, reason = self._why_not_those(entry.inputs)
            self._tally.find(status, record.offset, reason)
        elif status is Status.EQUAL:
            self._tally.find(Status.UNCHECKABLE, record.offset, self._lost)
        else:
            self._tally.find(status, record.offset, reason)

    # Outputs.

    def _tail(self) -> None:
        """Fold the inputs after the journal's end: their dead letters may be sent before the next journal record."""
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
            place.append(Expected(value_digest(output.value), offset))

    def _ties(self) -> int:
        return self._machine.float_ties

    def _place(self, offset: int) -> str:
        topic, partition = self._machine.journal
        return f"{topic}/{partition} offset {offset}"


def _is_deletion(record: InputRecord) -> bool:
    try:
        return codec.decode(record.value)[0] in ("Forget", "Erasure")
    except CodecError:
        return False


def _not_those(ranges: Sequence[InputRange]) -> str:
    named = ", ".join(f"{r.topic}/{r.partition} offsets {r.low} to {r.high - 1}" for r in ranges if r.high > r.low)
    return f"its inputs are not those that it was made from: {named}"
