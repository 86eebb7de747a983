"""Reads published states in a copy of the logs and begins machines with them (`hushstream.engine.journal.notes`).

As for a worker, a state is usable only if the zone's key opens it, it is complete, and the journal holds the very
record that it ends with. In addition, its checkpoint and the records that its machine reads next must be there.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hushstream.agents.defaults import RESIDENT_USERS
from hushstream.agents.recovery.snapshots import Snapshot, read_stream, unpack
from hushstream.agents.recovery.state_topic import Found
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.journal.notes import LOST, Checkpoint, Note
from hushstream.engine.machine import KeptUsers, Machine, StoredUser, UserStore
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.published import (
    CHECKPOINT,
    HEAD,
    Assembly,
    Part,
    StateSeal,
    StateUnreadable,
    record_digest,
)
from hushstream.ops.log_copy import PartitionCopy, RoleLogs
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError


class From(StrEnum):
    """Where a check of a journal begins."""

    GENESIS = "genesis"
    """At the journal's first record."""
    CHECKPOINT = "checkpoint"
    """At the oldest usable state, so that as many records as possible are checked."""
    LAST_CHECKPOINT = "last-checkpoint"
    """At the newest usable state: this is quick and checks few records."""


class NoUse(HushstreamError):
    """A published state cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A machine that begins with a published state.

    Attributes:
        machine: the machine with that state.
        genesis: the journal's first record.
        checkpoint: the state's checkpoint.
        record: the journal record that the state ends with.
        publication: the random name of the publication.
        time_ms: the log time of the publication.
    """

    machine: Machine
    genesis: bytes
    checkpoint: Checkpoint
    record: InputRecord
    publication: bytes
    time_ms: int


def needed(machine: Machine) -> Mapping[TopicPartition, int]:
    """The offset from which a machine reads each log next, or must read it again after a start."""
    return {**machine.positions(), **machine.committed()}


class PublishedCopy:
    """Reads the published states of one home partition in a copy of its state topic."""

    def __init__(self, part: PartitionCopy, seal: StateSeal) -> None:
        """Open every record that the key opens.

        Attributes:
            found: the publications whose heads can be read, the oldest first.
        """
        self._part, self._seal = part, seal
        self._checkpoints: dict[bytes, Checkpoint] = {}
        self._ignored: dict[str, list[int]] = {}
        self.found: list[Found] = []
        for record in part.records:
            try:
                self._note(record)
            except HushstreamError as error:
                self._ignored.setdefault(str(error), []).append(record.offset)

    @property
    def ignored(self) -> list[str]:
        """The reasons why records of the topic cannot be opened, each once."""
        return [f"offset {at[0]} ({count_text(len(at), 'record')}): {why}" for why, at in self._ignored.items()]

    def checkpoint(self, found: Found) -> Checkpoint:
        """Read the checkpoint beside the head of a publication.

        Raises:
            NoUse: there is none, or it belongs to another state.
        """
        checkpoint, head = self._checkpoints.get(found.publication), found.head
        if checkpoint is None:
            raise NoUse(f"offset {found.offset}: expected a checkpoint beside the state, got none")
        said = (checkpoint.sequence, checkpoint.journal_offset, checkpoint.record, checkpoint.state)
        if said != (head.sequence, head.journal_offset, head.record, head.digest):
            raise NoUse(f"offset {found.offset}: expected the checkpoint of the state beside it, got another one's")
        return checkpoint

    def state(self, found: Found) -> tuple[Snapshot, list[StoredUser]]:
        """Read the snapshot of a publication, and its spilled users.

        Raises:
            NoUse: parts are missing, or differ from what the head says.
        """
        gathered, stream = Assembly(found.publication, found.head), io.BytesIO()
        for record in self._part.read(found.head.first_offset, found.offset):
            part = self._opened(record)
            if part is not None:
                stream.write(gathered.take(part))
        if gathered.flaw:
            raise NoUse(f"offset {found.offset}: {gathered.flaw}")
        stream.seek(0)
        content, users = read_stream(stream)
        snapshot = unpack(content)
        if snapshot is None:
            raise NoUse(f"offset {found.offset}: expected a snapshot, got something else")
        return snapshot, list(users)

    def _note(self, record: InputRecord) -> None:
        part = self._seal.unpack(record.value) if record.value else None
        if part is None:
            return
        if part.number == HEAD:
            self.found.append(Found(part.publication, part.head(), record.offset, record.timestamp_ms))
        elif part.number == CHECKPOINT:
            self._checkpoints[part.publication] = Checkpoint.read(part.content)

    def _opened(self, record: InputRecord) -> Part | None:
        try:
            return self._seal.unpack(record.value) if record.value else None
        except StateUnreadable:
            return None  # the reason was noted before


@dataclass(frozen=True, slots=True)
class Beginner:
    """Begins machines of one home partition with its published states.

    Attributes:
        home: the partition.
        make: makes machines of the role.
        states: the partition's published states.
        lows: the first offsets of the logs that the machine must read without a gap, by topic and partition.
        users: makes the store for the spilled users of a state.
        resident: about how many users are kept in memory.
    """

    home: int
    make: MachineMaker
    states: PublishedCopy
    lows: Mapping[TopicPartition, int]
    users: Callable[[Sequence[StoredUser]], UserStore] = KeptUsers
    resident: int = RESIDENT_USERS

    def begin(self, found: Found, record: InputRecord) -> Restored:
        """Begin a machine with a published state.

        Args:
            found: the publication.
            record: the journal record that the state ends with.

        Raises:
            NoUse: the state cannot be used; says why.
        """
        try:
            return self._begun(found, record)
        except NoUse:
            raise
        except HushstreamError as error:
            raise NoUse(f"offset {found.offset}: {error}") from None

    def _begun(self, found: Found, record: InputRecord) -> Restored:
        checkpoint, (snapshot, users) = self.states.checkpoint(found), self.states.state(found)
        genesis = found.head.genesis
        machine: Machine = self.make.of_journal(self.home, genesis, resumed=True)
        machine.start(genesis)
        if machine.spills_users:
            machine.keep_users(self.users(users), self.resident)
        machine.restore(snapshot.state)
        if not machine.is_last(record.value):
            raise NoUse(f"offset {found.offset}: expected a state that stands on its record, got one of a lost branch")
        for source, position in needed(machine).items():
            low = self.lows.get(source, 0)
            if position < low:
                raise NoUse(
                    f"offset {found.offset}: it goes on at {source[0]}/{source[1]} offset {position}, but that log "
                    f"begins at {low}"
                )
        return Restored(machine, genesis, checkpoint, record, found.publication, found.time_ms)


def beginner(
    of: RoleLogs,
    home: int,
    states: PartitionCopy,
    lows: Mapping[TopicPartition, int],
    notes: Iterable[Note],
    users: Callable[[Sequence[StoredUser]], UserStore] = KeptUsers,
    resident: int = RESIDENT_USERS,
) -> Beginner:
    """What begins machines of a home partition with the published states in ``states``.

    Args:
        of: the role.
        home: the partition.
        states: the partition's states.
        lows: the first offsets of all logs of the role.
        notes: the operators' notes in its journal; input whose loss was accepted counts as there.
        users, resident: as of `Beginner`.
    """
    machine = of.make(home)
    sources = (*machine.inputs, *(source for source in machine.broadcasts if source[0] in of.topics.followed))
    found = {source: lows[source] for source in sources}
    for note in notes:
        if note.kind == LOST and note.low <= found.get(note.source, 0) <= note.high:
            found[note.source] = note.low
    return Beginner(home, of.make, PublishedCopy(states, of.states(home)), found, users, resident)


def begun(beginner: Beginner, journal: PartitionCopy, start: From) -> tuple[Restored | None, list[str]]:
    """Begin with the first usable published state; None if there is none. Also says why others were passed over.

    Args:
        beginner: begins machines of the partition.
        journal: the journal, or those of its records with which published states end.
        start: whether to try the oldest state first or the newest one.
    """
    states = beginner.states
    passed_over = list(states.ignored)
    for found in states.found if start is From.CHECKPOINT else reversed(states.found):
        try:
            return beginner.begin(found, _ends_with(journal, found)), passed_over
        except NoUse as error:
            passed_over.append(str(error))
    return None, passed_over


def _ends_with(journal: PartitionCopy, found: Found) -> InputRecord:
    """Find the journal record with which a published state ends.

    Raises:
        NoUse: the journal does not hold it.
    """
    head = found.head
    for index in range(journal.place(head.journal_offset) - 1, -1, -1):
        record = journal.records[index]
        if record_digest(record.value) == head.record:
            return record
    raise NoUse(f"offset {found.offset}: expected the journal to hold record {head.sequence}, it does not")
