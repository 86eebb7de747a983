"""Checks one role's logs while they grow: the journal of each home partition, and the output partitions.

A follower begins where `verify --from checkpoint` begins: at the journal's first record, or at the oldest published
state from which the rest can be followed. Then it checks each journal record once
(`hushstream.ops.check.journal.Walker`), and keeps only the inputs that the next records are made from.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hushstream.agents.errors import DiskRefused
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.notes import Note, notes_in
from hushstream.engine.machine import Machine, StoredUser, UserStore
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.ops.check.checkpoints import From, PublishedCopy, Restored, beginner, begun
from hushstream.ops.check.findings import Status, Tally
from hushstream.ops.check.journal import Expected, Place, Walker
from hushstream.ops.check.matching import Matcher, Writer, unexplained_record
from hushstream.ops.check.verify import also_allowed
from hushstream.ops.log_copy import LogCopy, PartitionCopy, RoleLogs
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule

PORTION_RECORDS = 256
"""How many journal records are read and recomputed at a time."""
_RANGE_OFFSETS = 1 << 20
"""No journal record covers more offsets of an input. A record that says so is foreign, and its inputs are not read."""


class CannotBegin(HushstreamError):
    """The journal has neither its first record nor a published state from which it can be followed."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where logs begin and end. The ends of outputs were read first, then those of journals, then those of inputs.

    So the journals hold every record from which one of the outputs follows, and the inputs every record from which one
    of the journal records follows.
    """

    lows: Mapping[TopicPartition, int]
    highs: Mapping[TopicPartition, int]


class _Window:
    """The input records that were read for one machine, and that its next journal records may need."""

    def __init__(self) -> None:
        self._kept: dict[TopicPartition, PartitionCopy] = {}

    async def read(self, reader: LogReader, source: TopicPartition, low: int, high: int) -> None:
        """Read the records with ``low <= offset < high``, unless the window has them."""
        kept = self._kept.get(source)
        if kept is None or not kept.low <= low <= kept.high:
            kept = PartitionCopy(low, low, [])
        if high > kept.high:
            kept = PartitionCopy(kept.low, high, [*kept.records, *await reader.read(source, kept.high, high)])
        self._kept[source] = kept

    def forget(self, ends: Mapping[TopicPartition, int]) -> None:
        """Drop the records before these ends, which the chain has passed."""
        for source, end in ends.items():
            kept = self._kept.get(source)
            if kept is not None and kept.low < end <= kept.high:
                self._kept[source] = PartitionCopy(end, kept.high, list(kept.read(end, kept.high)))

    def copy(self, bounds: Bounds) -> LogCopy:
        """The window as a copy of the logs, which also says where they begin and end."""
        parts = {
            source: PartitionCopy(bounds.lows[source], bounds.highs[source], kept.records)
            for source, kept in self._kept.items()
        }
        # If a journal record names inputs outside the window, only the ends of the logs can say what is wrong.
        rest = {source: PartitionCopy(low, bounds.highs[source], []) for source, low in bounds.lows.items()}
        return LogCopy({**rest, **parts})


class Follower:
    """Follows one journal.

    Attributes:
        machine: recomputes the records; its state contains the journal up to the walker's position.
        walker: checks the records.
        genesis: the journal's first record.
    """

    def __init__(self, machine: Machine, walker: Walker, genesis: bytes, record: bytes = b"") -> None:
        """Go on from the walker's position; ``record`` is the digest of the last record of the chain so far."""
        self.machine, self.walker, self.genesis = machine, walker, genesis
        self._window, self._record = _Window(), record

    @property
    def record(self) -> bytes:
        """`record_digest` of the last record on the chain."""
        last = self.walker.last_record
        return self._record if last is None else record_digest(last.value)

    @property
    def position(self) -> int:
        """The offset of the next journal record."""
        return self.walker.place.offset

    @property
    def sources(self) -> tuple[TopicPartition, ...]:
        """All logs that the follower reads: the journal and its inputs."""
        return (self.machine.journal, *self.machine.inputs, *self.machine.broadcasts)

    def snapshot(self) -> Snapshot:
        """The state from which `Beginning.kept` can go on."""
        place = self.walker.place
        return Snapshot(place.sequence, place.offset, self.genesis, self.machine.snapshot(), 0, self.record)

    async def go_on(self, reader: LogReader, bounds: Bounds) -> Mapping[TopicPartition, list[Expected]]:
        """Check the next portion of the journal; returns the outputs that follow from it, by output partition."""
        journal = self.machine.journal
        end = min(bounds.highs[journal], self.position + PORTION_RECORDS)
        records = await reader.read(journal, self.position, end)
        ends = await self._read_inputs(reader, records, bounds)
        self.walker.copy = self._window.copy(bounds)
        for record in records:
            self.walker.step(record)
        self.walker.skip_to(end)
        self._window.forget(ends)
        expected, self.walker.walk.expected = self.walker.walk.expected, {}
        return expected

    async def _read_inputs(
        self, reader: LogReader, records: list[InputRecord], bounds: Bounds
    ) -> Mapping[TopicPartition, int]:
        """Read the inputs that these records name; returns the highest offset named, for each input."""
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        ends: dict[TopicPartition, int] = {}
        for record in records:
            try:
                inputs = self.machine.entry(record.value).inputs
            except HushstreamError:
                continue  # the walker reports it
            for part in inputs:
                source = (part.topic, part.partition)
                # A foreign record may name any inputs.
                if source in self.sources[1:] and part.high - part.low <= _RANGE_OFFSETS:
                    low, high = ranges.get(source, (part.low, part.high))
                    ranges[source] = (min(low, part.low), max(high, part.high))
                    ends[source] = part.high
        for source, (low, high) in ranges.items():
            first, last = max(low, bounds.lows[source]), min(high, bounds.highs[source])
            if first < last:
                await self._window.read(reader, source, first, last)
        return ends


@dataclass(frozen=True, slots=True)
class Beginning:
    """Makes the followers of one role.

    Attributes:
        of: the role whose journals are followed.
        snapshots: the store in which this auditor saves machines.
        resident: about how many users of a learner are kept in memory.
    """

    of: RoleLogs
    snapshots: SnapshotStore
    resident: int

    async def fresh(self, home: int, reader: LogReader, bounds: Bounds, start: From) -> Follower | None:
        """Make a follower from the journal's first record or a published state; None if the journal is empty.

        Args:
            home: the partition.
            reader: a reader, which forgets the partitions that it had open.
            bounds: the beginnings and ends of the role's logs.
            start: whether to begin at the first record (if it is there) or at a published state, and at which.

        Raises:
            CannotBegin: there is neither.
            HushstreamError: the zone's key does not open the journal.
        """
        journal = (self.of.role.journal, home)
        low, high = bounds.lows[journal], bounds.highs[journal]
        if low == high == 0:
            return None
        if start is not From.LAST_CHECKPOINT and low == 0:
            first = await reader.read(journal, 0, min(high, PORTION_RECORDS))
            machine, genesis = self.of.machine(home, PartitionCopy(0, high, first))
            if machine.spills_users:
                machine.keep_users(self._users(home), self.resident)
            return Follower(machine, Walker(self.of, machine, LogCopy({})), genesis)
        state = await self._begun(home, reader, bounds, start)
        return Follower(state.machine, Walker(self.of, state.machine, LogCopy({}), state), state.genesis)

    def kept(self, home: int, place: Place, record: bytes) -> Follower | None:
        """Make a follower that goes on from this auditor's saved state; None if that belongs to another position."""
        spills = self.of.make(home).spills_users
        users = self.snapshots.users(home) if spills else None
        snapshot = self.snapshots.load(home)
        if snapshot is None or snapshot.record != record:
            return None
        if (snapshot.sequence, snapshot.journal_offset) != (place.sequence, place.offset):
            return None
        machine: Machine = self.of.make.of_journal(home, snapshot.genesis, resumed=True)
        machine.start(snapshot.genesis)
        if users is not None:
            machine.keep_users(users, self.resident)
        machine.restore(snapshot.state)
        return Follower(machine, Walker(self.of, machine, LogCopy({}), place=place), snapshot.genesis, record)

    async def _begun(self, home: int, reader: LogReader, bounds: Bounds, start: From) -> Restored:
        """Begin with the first usable published state; its spilled users go into this auditor's own store."""
        journal, topic = (self.of.role.journal, home), (self.of.role.state.name, home)
        low, high = bounds.lows[topic], bounds.highs[topic]
        states = PartitionCopy(low, high, await reader.read(topic, low, high))
        wanted = {found.head.record for found in PublishedCopy(states, self.of.states(home)).found}
        ends, notes = await self._scan(home, reader, bounds, wanted)
        begins = beginner(self.of, home, states, bounds.lows, notes, partial(self._users, home), self.resident)
        found, why = begun(begins, ends, start)
        if found is not None:
            return found
        raise CannotBegin(
            f"{journal[0]}/{home} begins at offset {bounds.lows[journal]}, and no published state leads on from there"
            f"{''.join(f'; {one}' for one in why)}"
        )

    async def _scan(
        self, home: int, reader: LogReader, bounds: Bounds, wanted: Collection[bytes]
    ) -> tuple[PartitionCopy, list[Note]]:
        """Read a whole journal, but keep only the records with which published states end, and operators' notes."""
        journal, ends, notes = (self.of.role.journal, home), list[InputRecord](), list[Note]()
        low, high = bounds.lows[journal], bounds.highs[journal]
        for first in range(low, high, PORTION_RECORDS):
            records = await reader.read(journal, first, min(high, first + PORTION_RECORDS))
            notes += notes_in(records, self.of.notes(home)).values()
            ends += [record for record in records if record_digest(record.value) in wanted]
        return PartitionCopy(low, high, ends), notes

    def _users(self, home: int, users: Sequence[StoredUser] = ()) -> UserStore:
        """Make the store of spilled users, with only these users in it.

        Raises:
            DiskRefused: the disk has no room for them.
        """
        store = self.snapshots.users(home)
        store.clear()
        if users and not store.put(users):
            raise DiskRefused("the auditor's folder has no room for the users of a published state")
        return store


_PORTION_OFFSETS = 512
_DIGEST_BYTES = 16


@dataclass(slots=True)
class OutputPartition:
    """Checks one output partition.

    Attributes:
        source: topic and partition.
        matcher: compares the partition with the journals.
        alone: whether only this role's partitions write there; then their journals must explain every record.
        early: whether records may come before the journal record that explains them (dead letters).
        start: the offset at which reading began.
        deleted: the offset up to which retention had deleted records at that time.
        position: the next offset to read.
        parked: records that no journal explains yet, by offset, with the ends of the inputs when they were read. If a
            journal has covered these ends and does not explain the record, it never will.
    """

    source: TopicPartition
    matcher: Matcher
    alone: bool
    early: bool
    start: int = 0
    deleted: int = 0
    position: int = 0
    parked: dict[int, tuple[InputRecord, Mapping[TopicPartition, int]]] = field(default_factory=dict)

    async def go_on(
        self, reader: LogReader, end: int, inputs: Mapping[TopicPartition, int], behind: bool, complete: bool
    ) -> None:
        """Read and check the next records, up to an end.

        Args:
            reader: a reader that has the partition open.
            end: the partition's end, read before the journals' ends.
            inputs: the inputs' ends, read after the journals' ends.
            behind: whether a journal is not followed to its end yet: then an unexplained record is read again later.
            complete: whether all journals could be followed.
        """
        while self.position < end:
            stop = min(end, self.position + _PORTION_OFFSETS)
            for record in await reader.read(self.source, self.position, stop):
                if not self.matcher.count(record, self.start) and not self._judge(record, inputs, behind, complete):
                    self.position = record.offset
                    return
            self.position = stop

    def _judge(self, record: InputRecord, inputs: Mapping[TopicPartition, int], behind: bool, complete: bool) -> bool:
        """Handle a record that no journal explains; False if it is to be read again later."""
        if not self.alone:
            self.matcher.tally.count(Status.SKIPPED)
        elif behind:
            return False
        elif self.early:
            self.parked[record.offset] = (record, dict(inputs))
        else:
            unexplained_record(self.matcher.tally, record.offset, complete)
        return True

    def begin(self, since: int, low: int) -> None:
        """Begin to read at an offset; the log begins at ``low``."""
        self.start = self.position = max(since, low)
        self.deleted = low if since < low else 0

    def settle(self, folded: Mapping[TopicPartition, int], complete: bool) -> None:
        """Compare parked records again, and report those that no journal can explain any more.

        Args:
            folded: the offsets up to which the journals cover the inputs.
            complete: whether all journals could be followed.
        """
        for offset, (record, ends) in list(self.parked.items()):
            if self.matcher.count(record, self.start):
                del self.parked[offset]
            elif all(folded.get(source, 0) >= end for source, end in ends.items()):
                unexplained_record(self.matcher.tally, offset, complete)
                del self.parked[offset]

    @property
    def checked(self) -> int:
        """The offset up to which every record was explained or reported."""
        return min(self.parked, default=self.position)

    def as_json(self) -> dict[str, Any]:
        """The state that the next process needs to go on with this partition."""
        waiting = {
            f"{topic}/{partition}": [[one.digest.hex(), one.offset] for _, one in writer.missing()]
            for (topic, partition), writer in self.matcher.writers.items()
        }
        known = b"".join(self.matcher.known).hex()
        return {
            "start": self.start, "deleted": self.deleted, "position": self.checked,
            "unexplained": self.matcher.unexplained, "waiting": waiting, "known": known,
        }  # fmt: skip


class Outputs:
    """Checks all output partitions of a role; its journal is not among them."""

    def __init__(self, system: System, role: Role) -> None:
        """Begin without any expected output."""
        self._system, self._role = system, role
        self.parts: dict[TopicPartition, OutputPartition] = {}
        for name in role_topics(role, system).writes:
            for partition in range(system.partitions[name]):
                self._begin((name, partition))

    def _begin(self, source: TopicPartition) -> None:
        system, role = self._system, self._role
        topic = topic_of(system, source[0])
        at_home = topic.partition_rule is PartitionRule.HOME
        homes = [source[1]] if at_home else range(system.homes(role))
        writing = [Writer((role.journal, home)) for home in homes if home < system.homes(role)]
        ticked = also_allowed(topic, system)
        others = [one for one in system.roles if source[0] in role_topics(one, system).writes and one.name != role.name]
        alone = not others and system.devices.get(source[0]) != "Write"
        matcher = Matcher(Tally(role.name, source), topic, writing, ticked)
        self.parts[source] = OutputPartition(source, matcher, alone, topic.holds_dead_letters)

    def expect(self, journal: TopicPartition, expected: Mapping[TopicPartition, Sequence[Expected]]) -> None:
        """Add outputs that follow from a journal."""
        for source, outputs in expected.items():
            self.parts[source].matcher.expect(journal, outputs)

    def of_journal(self, journal: TopicPartition) -> list[OutputPartition]:
        """The output partitions to which a journal's home partition writes."""
        return [part for part in self.parts.values() if journal in part.matcher.writers]

    @property
    def tallies(self) -> Iterable[Tally]:
        """The counts and findings of each partition."""
        return [part.matcher.tally for part in self.parts.values()]

    def as_json(self) -> dict[str, Any]:
        """The state that the next process needs to go on with all partitions."""
        return {f"{source[0]}/{source[1]}": part.as_json() for source, part in self.parts.items()}

    def restore(self, kept: Mapping[str, Any], journals: Collection[TopicPartition]) -> None:
        """Go on from a state of `as_json`, for the outputs of these journals."""
        for source, part in self.parts.items():
            found = kept[f"{source[0]}/{source[1]}"]
            part.start, part.deleted, part.position = found["start"], found["deleted"], found["position"]
            part.matcher.unexplained = found["unexplained"]
            known = bytes.fromhex(found["known"])
            part.matcher.restore_known(known[at : at + _DIGEST_BYTES] for at in range(0, len(known), _DIGEST_BYTES))
            for journal in part.matcher.writers:
                if journal in journals:
                    name = f"{journal[0]}/{journal[1]}"
                    waiting = [Expected(bytes.fromhex(digest), offset) for digest, offset in found["waiting"][name]]
                    part.matcher.expect(journal, waiting)
