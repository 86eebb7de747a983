"""Follows the growing journal of one home partition, and recomputes it by the code of `verify`.

A follower begins where `verify --from checkpoint` begins: at the journal's first record, or at the oldest published
state from which the rest can be followed. Then it checks each journal record once
(`hushstream.ops.check.journal.Walker`), and keeps only the inputs that the next records are made from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hushstream.agents.errors import DiskRefused
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.worker.roles import RoleWork
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import Digester, PublicDigester
from hushstream.engine.journal.notes import LOST, Note, NoteSeal, notes_in
from hushstream.engine.machine import Machine, spilling
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.published import StateSeal, record_digest
from hushstream.engine.state.spilled import StoredUser, UserStore
from hushstream.ops.check.checkpoints import Beginner, From, NoUse, PublishedCopy, Restored, ends_with, in_order
from hushstream.ops.check.journal import Expected, Place, Walker
from hushstream.ops.check.verify import genesis_in
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.schemas.errors import HushstreamError

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
        system: the deployment.
        role: the role whose journals are followed.
        work: its machines and topics.
        snapshots: the store in which this auditor saves machines.
        resident: about how many users of a learner are kept in memory.
    """

    system: System
    role: Role
    work: RoleWork
    snapshots: SnapshotStore
    resident: int

    async def fresh(
        self, home: int, reader: LogReader, bounds: Bounds, start: From, published_before_ms: float
    ) -> Follower | None:
        """Make a follower from the journal's first record or a published state; None if the journal is empty.

        Args:
            home: the partition.
            reader: a reader, which forgets the partitions that it had open.
            bounds: the beginnings and ends of the role's logs.
            start: whether to begin at the first record (if it is there) or at a published state, and at which.
            published_before_ms: states that were published later are skipped.

        Raises:
            CannotBegin: there is neither.
            HushstreamError: the zone's key does not open the journal.
        """
        journal = (self.role.journal, home)
        low, high = bounds.lows[journal], bounds.highs[journal]
        if low == high == 0:
            return None
        if start is not From.LAST_CHECKPOINT and low == 0:
            first = await reader.read(journal, 0, min(high, PORTION_RECORDS))
            genesis = genesis_in(PartitionCopy(0, high, first))
            machine: Machine = self.work.make_machine.of_journal(home, genesis)
            spills = spilling(machine)
            if spills is not None:
                spills.keep_users(self._users(home), self.resident)
            return Follower(machine, self._walker(home, machine), genesis)
        begun = await self._begun(home, reader, bounds, start, published_before_ms)
        return Follower(begun.machine, self._walker(home, begun.machine, begun), begun.genesis)

    def kept(self, home: int, place: Place, record: bytes) -> Follower | None:
        """Make a follower that goes on from this auditor's saved state; None if that belongs to another position."""
        spills = spilling(self.work.make_machine(home)) is not None
        users = self.snapshots.users(home) if spills else None
        snapshot = self.snapshots.load(home)
        if snapshot is None or snapshot.record != record:
            return None
        if (snapshot.sequence, snapshot.journal_offset) != (place.sequence, place.offset):
            return None
        machine: Machine = self.work.make_machine.of_journal(home, snapshot.genesis, resumed=True)
        machine.start(snapshot.genesis)
        keeping = spilling(machine)
        if keeping is not None and users is not None:
            keeping.keep_users(users, self.resident)
        machine.restore(snapshot.state)
        return Follower(machine, self._walker(home, machine, place=place), snapshot.genesis, record)

    def _walker(self, home: int, machine: Machine, begun: Restored | None = None, place: Place | None = None) -> Walker:
        maker, zone = self.work.make_machine, self.role.key_zone
        digesters: list[Digester] = [PublicDigester()] if zone is None else list(maker.keys.ring(zone).kept())
        seal = self._notes(home)
        return Walker(self.role.name, machine, digesters, self.work.topics.declared, seal, LogCopy({}), begun, place)

    def _notes(self, home: int) -> NoteSeal:
        return NoteSeal(self.system.config.deployment, self.role.name, home, self.work.make_machine.state_keys())

    async def _begun(
        self, home: int, reader: LogReader, bounds: Bounds, start: From, published_before_ms: float
    ) -> Restored:
        """Begin with the first usable published state; its spilled users go into this auditor's own store."""
        journal, topic = (self.role.journal, home), (self.role.state.name, home)
        maker = self.work.make_machine
        seal = StateSeal(self.system.config.deployment, self.role.name, home, maker.state_keys())
        low, high = bounds.lows[topic], bounds.highs[topic]
        states = PublishedCopy(PartitionCopy(low, high, await reader.read(topic, low, high)), seal)
        machine, followed = maker(home), self.work.topics.followed
        needed = (*machine.inputs, *(source for source in machine.broadcasts if source[0] in followed))
        lows = {source: bounds.lows[source] for source in needed}
        ends, notes = await self._scan(home, reader, bounds, {found.head.record for found in states.found})
        for note in notes:
            if note.kind == LOST and note.low <= lows.get(note.source, 0) <= note.high:
                lows[note.source] = note.low
        beginner = Beginner(home, maker, states, lows, partial(self._users, home), self.resident)
        why = list(states.ignored)
        for found in in_order(states, start):
            if found.time_ms > published_before_ms:
                continue
            try:
                return beginner.begin(found, ends_with(ends, found))
            except NoUse as error:
                why.append(str(error))
        raise CannotBegin(
            f"{journal[0]}/{home} begins at offset {bounds.lows[journal]}, and no published state leads on from there"
            f"{''.join(f'; {one}' for one in why)}"
        )

    async def _scan(
        self, home: int, reader: LogReader, bounds: Bounds, wanted: Collection[bytes]
    ) -> tuple[PartitionCopy, list[Note]]:
        """Read a whole journal, but keep only the records with which published states end, and operators' notes."""
        journal, ends, notes = (self.role.journal, home), list[InputRecord](), list[Note]()
        low, high = bounds.lows[journal], bounds.highs[journal]
        for first in range(low, high, PORTION_RECORDS):
            records = await reader.read(journal, first, min(high, first + PORTION_RECORDS))
            notes += notes_in(records, self._notes(home)).values()
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
