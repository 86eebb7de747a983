"""Published states in a copy of the logs, and machines that begin with one (`hushstream.engine.journal.checkpoints`).

A state counts here as it does for a worker: opened with the zone's key, whole, and only if the journal holds the very
record that it ends with. Beyond that its checkpoint must be there, and what its machine reads next.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hushstream.agents.defaults import RESIDENT_USERS
from hushstream.agents.recovery.snapshots import Snapshot, read_stream, unpack
from hushstream.agents.recovery.state_topic import Found
from hushstream.agents.worker.roles import MachineMaker
from hushstream.engine.journal.checkpoints import Checkpoint
from hushstream.engine.machine import Machine, spilling
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
from hushstream.engine.state.spilled import KeptUsers, StoredUser, UserStore
from hushstream.ops.log_copy import PartitionCopy
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError


class From(StrEnum):
    """Where a check of a journal begins."""

    GENESIS = "genesis"
    """At its first record."""
    CHECKPOINT = "checkpoint"
    """At the oldest state from which all that is kept behind it can be followed."""
    LAST_CHECKPOINT = "last-checkpoint"
    """At the newest one: quickly, and of little."""


class NoUse(HushstreamError):
    """A published state that nothing can begin with; says why."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A machine that stands on a published state.

    Attributes:
        machine: with that state.
        genesis: the journal's first record.
        checkpoint: of the state.
        record: the journal record that it ends with.
        publication: the random name of what was published.
        time_ms: log time of the publication.
    """

    machine: Machine
    genesis: bytes
    checkpoint: Checkpoint
    record: InputRecord
    publication: bytes
    time_ms: int


def needed(machine: Machine) -> Mapping[TopicPartition, int]:
    """What a machine reads next of each log, or has to read again after a start."""
    return {**machine.positions(), **machine.committed()}


class PublishedCopy:
    """The published states of one home partition, in a copy of its state topic."""

    def __init__(self, part: PartitionCopy, seal: StateSeal) -> None:
        """Open what can be opened.

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
        """Why records of the topic cannot be opened, each reason once."""
        return [f"offset {at[0]} ({count_text(len(at), 'record')}): {why}" for why, at in self._ignored.items()]

    def checkpoint(self, found: Found) -> Checkpoint:
        """What is said of a publication beside its head.

        Raises:
            NoUse: nothing, or it is of something else.
        """
        checkpoint, head = self._checkpoints.get(found.publication), found.head
        if checkpoint is None:
            raise NoUse(f"offset {found.offset}: expected a checkpoint beside the state, got none")
        said = (checkpoint.sequence, checkpoint.journal_offset, checkpoint.record, checkpoint.state)
        if said != (head.sequence, head.journal_offset, head.record, head.digest):
            raise NoUse(f"offset {found.offset}: expected the checkpoint of the state beside it, got another one's")
        return checkpoint

    def state(self, found: Found) -> tuple[Snapshot, list[StoredUser]]:
        """The snapshot of a publication, and the users that lie with it.

        Raises:
            NoUse: it is not whole, or not what its head names.
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
            return None  # noted before


@dataclass(frozen=True, slots=True)
class Beginner:
    """Begins machines of one home partition with its published states.

    Attributes:
        home: the partition.
        make: makes machines of the role.
        states: what is published of it.
        lows: where the logs begin that the machine reads without a gap, by topic and partition.
        users: makes the store for users who lie with a state.
        resident: users in memory, about.
    """

    home: int
    make: MachineMaker
    states: PublishedCopy
    lows: Mapping[TopicPartition, int]
    users: Callable[[Sequence[StoredUser]], UserStore] = KeptUsers
    resident: int = RESIDENT_USERS

    def begin(self, found: Found, record: InputRecord) -> Begun:
        """A machine with a published state.

        Args:
            found: the publication.
            record: of the journal, of the digest that the state says it ends with.

        Raises:
            NoUse: says why nothing can begin with it.
        """
        try:
            return self._begun(found, record)
        except NoUse:
            raise
        except HushstreamError as error:
            raise NoUse(f"offset {found.offset}: {error}") from None

    def _begun(self, found: Found, record: InputRecord) -> Begun:
        checkpoint, (snapshot, users) = self.states.checkpoint(found), self.states.state(found)
        genesis = found.head.genesis
        machine: Machine = self.make.of_journal(self.home, genesis, resumed=True)
        machine.start(genesis)
        spills = spilling(machine)
        if spills is not None:
            spills.keep_users(self.users(users), self.resident)
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
        return Begun(machine, genesis, checkpoint, record, found.publication, found.time_ms)


def in_order(states: PublishedCopy, start: From) -> Iterator[Found]:
    """The publications in the order in which a check tries to begin with them."""
    return iter(states.found) if start is From.CHECKPOINT else reversed(states.found)


def ends_with(journal: PartitionCopy, found: Found) -> InputRecord:
    """The record of a journal that a published state says it ends with.

    Raises:
        NoUse: the journal does not hold it.
    """
    head = found.head
    for index in range(journal.place(head.journal_offset) - 1, -1, -1):
        record = journal.records[index]
        if record_digest(record.value) == head.record:
            return record
    raise NoUse(f"offset {found.offset}: expected the journal to hold record {head.sequence}, it does not")
