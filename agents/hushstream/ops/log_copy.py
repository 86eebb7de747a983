"""A copy of a deployment's logs, which verify, the budget and the tools for dead letters read.

A copy may come from a log in memory, from an export, or from a broker; readers cannot tell which. Several copies of one
deployment, such as archives of deleted parts and the current logs, can be joined; long readings report their progress.

*One role.* One role of a deployment as the operator's tools see it: its machines, its keys, and what is sealed under
them.

*Release marks in a copy.* The workers' rule (`hushstream.agents.recovery.marks`) needs record keys: a foreign record
has replaced a mark only if it has the key of a mark. Copies of a running deployment keep the keys of these topics;
exports and logs in memory keep none. There a foreign record counts as one that may have replaced a mark, and the
finding says so, unless a note names the record: `logs check` saw its key.

*Live logs.* Reads the logs of a running deployment, without a consumer group, up to ends that are fixed at the start.
"""

from __future__ import annotations

import asyncio
import gc
from bisect import bisect_left, bisect_right
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol, overload

from hushstream.agents.errors import PartitionCountWrong, TopicMissing
from hushstream.agents.kafka.administration import READ, check_rights
from hushstream.agents.kafka.logs import LogReader, as_records
from hushstream.agents.kafka.logs import partition_counts as counts_on_broker
from hushstream.agents.recovery.marks import MarkWalk, ReadMarks
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System, role_of
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.chain import Digester, PublicDigester
from hushstream.engine.journal.marks import Mark, MarkSeal
from hushstream.engine.journal.notes import NoteSeal
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.published import StateSeal
from hushstream.ops.connection import Connection, client_errors
from hushstream.privacy.keys import key_path
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

Progress = Callable[[int, int, str], None]
"""Called with the steps that are done, the total number of steps, and the name of the work."""

_REPORTS = 500


def unreported(_done: int, _total: int, _what: str) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Steps:
    """Counts the steps that are done, and reports some hundreds of times in all, for any number of steps.

    Attributes:
        report: takes the reports.
        total: the total number of steps.
        what: the name of the work.
        done: the steps that are done.
    """

    report: Progress
    total: int
    what: str
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Report that the work begins."""
        self.report(0, self.total, self.what)

    def up_to(self, done: int) -> None:
        """Note that ``done`` steps are done in all, or need not be done."""
        if done > self.done:
            self.step(done - self.done)

    def step(self, count: int = 1) -> None:
        """Note that ``count`` more steps are done."""
        often = max(1, self.total // _REPORTS)
        before, self.done = self.done, self.done + count
        if self.done // often > before // often or self.done == self.total:
            self.report(self.done, self.total, self.what)


class HoldsPartitions(Protocol):
    """A log in memory, such as the direct runner's."""

    def partitions(self) -> Iterable[tuple[TopicPartition, Sequence[InputRecord]]]:
        """Every partition with all of its records, by logical topic name."""


@dataclass(frozen=True, slots=True)
class PartitionCopy:
    """A copy of one partition: its records with ``low <= offset < high``.

    Attributes:
        low: the first offset of the log (above 0 if retention has deleted earlier records).
        high: the offset that the next record would have got.
        records: the records in offset order; offsets may have gaps.
        keys: the record key of each; None if keys were not kept.

    Records are no part of its text: at its end `asyncio.run` makes the text of what it returns, twice.
    """

    low: int
    high: int
    records: Sequence[InputRecord] = field(repr=False)
    keys: Sequence[bytes | None] | None = field(default=None, repr=False)

    def read(self, low: int, high: int) -> Sequence[InputRecord]:
        """The records with ``low <= offset < high``."""
        return self.records[self.place(low) : self.place(high)]

    def behind(self, count: int) -> PartitionCopy:
        """All but the first ``count`` records."""
        low = self.records[count].offset if count < len(self.records) else self.high
        return PartitionCopy(low, self.high, self.records[count:], self.keys and self.keys[count:])

    def place(self, offset: int) -> int:
        """The number of records below an offset."""
        return bisect_left(self.records, offset, key=_offset)


_EMPTY = PartitionCopy(0, 0, ())


@dataclass(frozen=True, slots=True)
class LogCopy:
    """All partitions of a copy, by logical topic name.

    Attributes:
        parts: the partitions that were copied; one that never held a record may be missing.
        consistent: whether nothing was written while the ends of the logs were read, so that they belong to one moment.
            In a copy of a busy deployment a journal may name inputs beyond the copy's end, or outputs may still be in
            flight.
    """

    parts: Mapping[TopicPartition, PartitionCopy]
    consistent: bool = True

    def part(self, source: TopicPartition) -> PartitionCopy:
        """One partition; an empty one if the copy does not have it."""
        return self.parts.get(source, _EMPTY)

    def of_topic(self, topic: str) -> list[tuple[int, PartitionCopy]]:
        """The partitions of one topic, by number."""
        return sorted((number, part) for (name, number), part in self.parts.items() if name == topic)

    def records(self, topics: Iterable[str]) -> Iterator[InputRecord]:
        """The records of some topics, partition by partition."""
        return (record for topic in topics for _, part in self.of_topic(topic) for record in part.records)

    @classmethod
    def of(cls, log: HoldsPartitions) -> LogCopy:
        """Make a view of a log in memory; the records are shared, not copied."""
        return cls({source: whole(records) for source, records in log.partitions()})


def whole(records: Sequence[InputRecord]) -> PartitionCopy:
    """Make a complete partition: it begins at offset 0 and ends after its last record."""
    return PartitionCopy(0, records[-1].offset + 1 if records else 0, records)


def _offset(record: InputRecord) -> int:
    return record.offset


_ERASED = b""


class NotOneLog(HushstreamError):
    """The copies do not continue one another, or differ where they overlap."""


def joined(copies: Sequence[LogCopy], compacted: Collection[str]) -> LogCopy:
    """Join copies into one; where two overlap, the records of the earlier copy are used.

    Args:
        copies: the copies, the oldest first.
        compacted: the compacted topics; of each, the last copy that has it is used.

    Raises:
        NotOneLog: two copies of a partition have a gap between them, or hold different records.
    """
    parts = dict(copies[0].parts)
    for copy in copies[1:]:
        for source, part in copy.parts.items():
            known = parts.get(source)
            parts[source] = part if known is None or source[0] in compacted else _continued(source, known, part)
    return LogCopy(parts, copies[-1].consistent)


def _continued(source: TopicPartition, known: PartitionCopy, later: PartitionCopy) -> PartitionCopy:
    name = f"{source[0]}/{source[1]}"
    if later.low > known.high:
        raise NotOneLog(f"{name}: expected a copy that goes on at offset {known.high}, got one from {later.low} on")
    there, again = known.read(later.low, later.high), later.read(known.low, known.high)
    if len(there) != len(again) or not all(map(_alike, there, again)):
        raise NotOneLog(f"{name}: expected copies of one log, got other records from offset {later.low} on")
    rest = later.read(known.high, later.high)
    return PartitionCopy(known.low, max(known.high, later.high), _Chained((known.records, rest)))


def _alike(one: InputRecord, other: InputRecord) -> bool:
    """Whether both are the same record; one of them may be erased."""
    erased = _ERASED in (one.value, other.value)
    return one[:2] == other[:2] and (erased or one.value == other.value)


class _Chained(Sequence[InputRecord]):
    """Several sequences of records as one, without copying."""

    def __init__(self, parts: Sequence[Sequence[InputRecord]]) -> None:
        self._parts = [part for part in parts if len(part)]
        self._ends = list(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[InputRecord]:
        for part in self._parts:
            yield from part

    @overload
    def __getitem__(self, index: int) -> InputRecord: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[InputRecord]: ...

    def __getitem__(self, index: int | slice) -> InputRecord | Sequence[InputRecord]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(index)
        part = bisect_right(self._ends, place)
        return self._parts[part][place - (self._ends[part - 1] if part else 0)]


class RoleLogs:
    """Opens what one role keeps in its journals, marks and published states.

    Attributes:
        role: the role.
        system: the deployment.
        make: its machines.
        topics: its topics.
    """

    def __init__(self, role: Role, system: System, keys: KeySource) -> None:
        """Load the role's keys.

        Raises:
            HushstreamError: a key was not given, or cannot be used.
        """
        work = role_work(role.name, system, keys)
        self.role, self.system, self.make, self.topics = role, system, work.make_machine, work.topics

    @property
    def homes(self) -> range:
        """The home partitions."""
        return range(self.system.homes(self.role))

    def notes(self, home: int) -> NoteSeal:
        """Opens and makes the operators' notes in a journal."""
        return NoteSeal(self.system.config.deployment, self.role.name, home, self.make.state_keys())

    def states(self, home: int) -> StateSeal:
        """Opens the published states of a home partition."""
        return StateSeal(self.system.config.deployment, self.role.name, home, self.make.state_keys())

    def marks(self, home: int) -> MarkSeal:
        """Opens and makes the release marks of a home partition."""
        return MarkSeal(self.system.config.deployment, self.role.name, home, self.make.mark_keys())

    def digesters(self) -> Sequence[Digester]:
        """The keys of the role's zone, between which a journal may rotate, or the public digester."""
        zone = self.role.key_zone
        return (PublicDigester(),) if zone is None else tuple(self.make.keys.ring(zone).kept())

    def machine(self, home: int, journal: PartitionCopy) -> tuple[Machine, bytes]:
        """The machine of a journal, under the key with which it began, and its first record; a fresh one if it is gone.

        Raises:
            RetiredKey, KeyFileError: the key that it began with was destroyed, or was not given.
            CodecError: its first record cannot be read.
        """
        if journal.low > 0 or not journal.records:
            return self.make(home), b""
        genesis = _genesis_in(journal)
        return self.make.of_journal(home, genesis), genesis


def roles_asked(system: System, names: Collection[str] | None) -> list[Role]:
    """The roles with these names (None: all), in the order in which data flows.

    Raises:
        HushstreamError: the deployment has no such role.
    """
    wanted = None if names is None else [role_of(system, name) for name in names]
    return [role for role in system.roles if wanted is None or role in wanted]


def lacking_zones(zones: Collection[str], keys: KeySource) -> list[str]:
    """Those of some zones whose key files were not given."""
    if keys.seed is not None:
        return []
    return [zone for zone in zones if keys.folder is None or not key_path(keys.folder, zone).exists()]


def _genesis_in(journal: PartitionCopy) -> bytes:
    """The genesis of a journal: its first record that is one; records before it are foreign."""
    for record in journal.records:
        with suppress(CodecError):
            codec.decode(record.value, frozenset({"Genesis"}))
            return record.value
    return journal.records[0].value


def mark_topics(system: System) -> tuple[str, ...]:
    """The topics of the roles' release marks."""
    return tuple(role.marks for role in system.roles if role.marks is not None)


def copied_marks(
    part: PartitionCopy,
    unpack: Callable[[bytes], Mark | None],
    role: str,
    home: int,
    noted: Callable[[int], bool] = lambda offset: False,
) -> ReadMarks:
    """Read the marks of one home partition.

    Args:
        part: the copy of the partition.
        unpack: opens the record of a mark (`MarkSeal.unpack`, or `read_public` without the zone's key).
        role: the role that writes the marks.
        home: its home partition.
        noted: whether a note names the record at an offset; it is asked only where keys were not kept.
    """
    walk = MarkWalk(unpack, role, home)
    if part.keys is None:
        for record in part.records:
            if not noted(record.offset):
                walk.take_without_key(record.offset, record.value)
    else:
        for record, key in zip(part.records, part.keys, strict=True):
            walk.take(record.offset, record.value, key)
    return walk.end(part.low)


_OFFSETS_AT_ONCE = 512
_DOING = "read logs"


@dataclass(frozen=True, slots=True)
class Cut:
    """Where each partition begins and where the copy of it ends.

    Attributes:
        bounds: ``(low, high)`` by partition.
        consistent: whether nothing was written between two reads of all ends, so that they belong to one moment.
    """

    bounds: Mapping[TopicPartition, tuple[int, int]]
    consistent: bool


@dataclass(frozen=True, slots=True)
class Pause:
    """How long a pause without any write must be, for the ends of logs to fit together, and how long to wait for it."""

    moment_seconds: float = 0.3
    within_seconds: float = 3.0


class LiveLogs:
    """An open view of some topics of a deployment up to fixed ends; made by `open_logs`."""

    def __init__(self, reader: LogReader, cut: Cut) -> None:
        """View ``cut`` through a started reader."""
        self._reader = reader
        self.cut = cut

    async def records(self, source: TopicPartition, before: int | None = None) -> AsyncIterator[list[InputRecord]]:
        """Yield the records of one partition in portions; if an offset is given, only those below it."""
        async for portion in self.fetched(source, before):
            yield as_records(portion)

    async def part(self, source: TopicPartition) -> PartitionCopy:
        """One partition in memory."""
        return PartitionCopy(*self.cut.bounds[source], [one async for part in self.records(source) for one in part])

    async def fetched(self, source: TopicPartition, before: int | None = None) -> AsyncIterator[list[Any]]:
        """As `records`, as the client gives them: with their keys."""
        low, high = self.cut.bounds[source]
        high = high if before is None else before
        self._reader.open({source: low})
        for start in range(low, high, _OFFSETS_AT_ONCE):
            yield await self._reader.fetched(source, start, min(high, start + _OFFSETS_AT_ONCE))

    async def copy(self, progress: Progress = unreported, keyed: Collection[str] = ()) -> LogCopy:
        """Read everything into memory.

        Args:
            progress: gets the number of offsets that were read.
            keyed: the topics of which the record keys are kept too.
        """
        steps = Steps(progress, sum(high - low for low, high in self.cut.bounds.values()), "reading the logs")
        parts = {}
        for source, (low, high) in self.cut.bounds.items():
            before, records, keys = steps.done, list[InputRecord](), list[bytes | None]()
            async for portion in self.fetched(source):
                records += as_records(portion)
                keys += [record.key for record in portion] if source[0] in keyed else []
                steps.step(min(_OFFSETS_AT_ONCE, before + high - low - steps.done))
            parts[source] = PartitionCopy(low, high, records, keys if source[0] in keyed else None)
        return LogCopy(parts, self.cut.consistent)


@asynccontextmanager
async def open_logs(
    connection: Connection, counts: Mapping[str, int], topics: Collection[str] | None = None, pause: Pause | None = None
) -> AsyncIterator[LiveLogs]:
    """Open a deployment's logs up to their current ends.

    Args:
        connection: where the deployment is.
        counts: the number of its partitions by logical topic (`System.partitions`).
        topics: the topics to open; None for all of them.
        pause: how long to wait for a moment in which nobody writes.

    Raises:
        TopicMissing, PartitionCountWrong: the topics are not as the deployment's configuration says.
        BrokerUnreachable, AccessDenied, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    wanted = {topic: count for topic, count in counts.items() if topics is None or topic in topics}
    sources = [(topic, partition) for topic, count in wanted.items() for partition in range(count)]
    async with client_errors(connection, _DOING), asyncio.timeout(connection.timeout_seconds):
        await _require(connection, wanted)
    async with reading(connection, wanted) as reader:
        yield LiveLogs(reader, await _cut(reader, sources, pause or Pause()))


@asynccontextmanager
async def reading(
    connection: Connection, topics: Collection[str], settings: WorkerSettings | None = None
) -> AsyncIterator[LogReader]:
    """Open a reader of some topics. Without a right to read, one that holds no record would look empty.

    Raises:
        AccessDenied: names the topic, the right, and how to allow it.
        BrokerUnreachable, BrokerRefused: see `hushstream.ops.connection.client_errors`.
    """
    async with client_errors(connection, _DOING):
        await check_rights(connection.cluster, {physical(connection.prefix, topic): {READ} for topic in topics})
        async with LogReader(settings or connection.settings()) as reader:
            yield reader


async def copy_async(
    connection: Connection,
    counts: Mapping[str, int],
    topics: Collection[str] | None = None,
    pause: Pause | None = None,
    progress: Progress = unreported,
    keyed: Collection[str] = (),
) -> LogCopy:
    """Copy topics into memory; if the logs do not fit, export them and open the export.

    Arguments and errors are those of `open_logs` and `LiveLogs.copy`.
    """
    async with open_logs(connection, counts, topics, pause) as logs:
        return await logs.copy(progress, keyed)


def copy(
    connection: Connection,
    counts: Mapping[str, int],
    topics: Collection[str] | None = None,
    progress: Progress = unreported,
    keyed: Collection[str] = (),
) -> LogCopy:
    """`copy_async`, for code without an event loop.

    The garbage collector is off: it would look at all records again and again, which no cycle holds.
    """
    gc.disable()
    try:
        return asyncio.run(copy_async(connection, counts, topics, progress=progress, keyed=keyed))
    finally:
        gc.enable()


async def _require(connection: Connection, counts: Mapping[str, int]) -> None:
    found = await counts_on_broker(connection.settings(), counts)
    for topic, count in counts.items():
        name = physical(connection.prefix, topic)
        if not found[topic]:
            await check_rights(connection.cluster, {name: {READ}})  # without it, a topic cannot be described
            raise TopicMissing(f"{_DOING}: expected topic {name}, there is none; `hushstream topics apply` makes it")
        if found[topic] < count:  # nothing of ours is in partitions that somebody has added
            raise PartitionCountWrong(f"{_DOING}: topic {name}: expected {count} partitions, found {found[topic]}")


async def _cut(reader: LogReader, sources: Collection[TopicPartition], pause: Pause) -> Cut:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + pause.within_seconds
    ends = await reader.end_offsets(sources)
    while True:
        await asyncio.sleep(pause.moment_seconds)
        before, ends = ends, await reader.end_offsets(sources)
        still = before == ends
        if still or loop.time() > deadline:
            firsts = await reader.first_offsets(sources)
            return Cut({source: (min(firsts[source], ends[source]), ends[source]) for source in sources}, still)
