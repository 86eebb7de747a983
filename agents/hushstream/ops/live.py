"""Reads the logs of a running deployment, without a consumer group, up to ends that are fixed at the start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hushstream.agents.errors import PartitionCountWrong, TopicMissing
from hushstream.agents.kafka.logs import LogReader, as_records
from hushstream.agents.kafka.logs import partition_counts as counts_on_broker
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.log_copy import LogCopy, PartitionCopy
from hushstream.ops.progress import Progress, Steps, unreported
from hushstream.schemas.topics import physical

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
        low, high = self.cut.bounds[source]
        async for portion in self._fetched(source, low, high if before is None else before):
            yield as_records(portion)

    async def _fetched(self, source: TopicPartition, low: int, high: int) -> AsyncIterator[list[Any]]:
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
            async for portion in self._fetched(source, low, high):
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
    async with client_errors(connection, _DOING):
        async with asyncio.timeout(connection.timeout_seconds):
            await _require(connection, wanted)
        async with LogReader(connection.settings()) as reader:
            yield LiveLogs(reader, await _cut(reader, sources, pause or Pause()))


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
    """`copy_async`, for code without an event loop."""
    return asyncio.run(copy_async(connection, counts, topics, progress=progress, keyed=keyed))


async def _require(connection: Connection, counts: Mapping[str, int]) -> None:
    found = await counts_on_broker(connection.settings(), counts)
    for topic, count in counts.items():
        name = physical(connection.prefix, topic)
        if not found[topic]:
            raise TopicMissing(f"{_DOING}: expected topic {name}, there is none (or it may not be described)")
        if found[topic] != count:
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
