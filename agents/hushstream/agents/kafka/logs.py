"""Reads ranges of logs without a consumer group, for recovery and checks; no reader unpacks a compressed batch."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from operator import attrgetter
from types import TracebackType
from typing import Any, Self

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import OffsetOutOfRangeError
from aiokafka.record.default_records import DefaultRecord

from hushstream.agents.errors import InputsDeleted, TopicsReplaced
from hushstream.agents.kafka.administration import administering
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.schemas.codec import COMPRESSED

_Original = fetcher.PartitionRecords
_offset = attrgetter("offset")
_POLL_MILLISECONDS = 500
_AT_ONCE = 512
_RETRY_MILLISECONDS = 20
"""aiokafka sleeps this long for each new topic, one after the other. With its default of 100 a recovery, which reads
seven topics, spent most of its time asleep."""


class LogReader:
    """Reads ranges of some partitions, without a group; use it as an async context manager.

    A range that begins where the last one ended needs no seek, so a recovery reads at the speed of the log.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Prepare to read; no connection is opened yet."""
        self._settings = settings
        self._consumer = AIOKafkaConsumer(
            **settings.client_options(),
            group_id=None,
            key_deserializer=batches_stay_compressed,
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=settings.fetch_wait_milliseconds,
            retry_backoff_ms=_RETRY_MILLISECONDS,
        )
        self._cursors: dict[TopicPartition, _Cursor] = {}
        self._assigned = False

    async def __aenter__(self) -> Self:
        try:
            await self._consumer.start()
        except BaseException:
            # __aexit__ is not called after an error here, so close what is open.
            await self._consumer.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._consumer.stop()

    def open(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from now on, each from its position, and no others."""
        self._cursors = {source: _Cursor(position) for source, position in positions.items()}
        self._assigned = False

    def _assign(self) -> None:
        # Assign only when something is read: aiokafka 0.14 may hang if it is stopped right after an assignment.
        self._consumer.assign([self._at(source) for source in self._cursors])
        for source, cursor in self._cursors.items():
            self._consumer.seek(self._at(source), cursor.position)
        self._assigned = True

    async def first_offsets(self, sources: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset of the first record that each log still has."""
        found = await self._consumer.beginning_offsets([self._at(source) for source in sources])
        return {source: found[self._at(source)] for source in sources}

    async def end_offsets(self, sources: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset that the next record of each log will get."""
        found = await self._consumer.end_offsets([self._at(source) for source in sources])
        return {source: found[self._at(source)] for source in sources}

    async def offsets_since(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The offset of each log's first record that is not older than a log time; the log's end if all are older."""
        found = await self._consumer.offsets_for_times({self._at(one): ms for one, ms in times_ms.items()})
        ends = await self.end_offsets(list(times_ms))
        there = {source: found.get(self._at(source)) for source in times_ms}
        return {source: ends[source] if one is None else one.offset for source, one in there.items()}

    async def all_records(self, source: TopicPartition) -> AsyncIterator[InputRecord]:
        """Open one partition, and yield all records that it holds now."""
        first, end = (await self.first_offsets([source]))[source], (await self.end_offsets([source]))[source]
        self.open({source: first})
        for low in range(first, end, _AT_ONCE):
            for record in await self.read(source, low, min(end, low + _AT_ONCE)):
                yield record

    async def read(self, source: TopicPartition, low: int, high: int) -> list[InputRecord]:
        """All records with ``low <= offset < high`` of an opened partition.

        Raises:
            InputsDeleted: the log begins above ``low``.
            TopicsReplaced: the log ends below ``high``.
        """
        return as_records(await self.fetched(source, low, high))

    async def fetched(self, source: TopicPartition, low: int, high: int) -> list[Any]:
        """Read as `read` does, but return the client's records, which have keys."""
        if low >= high:
            return []
        cursor = self._cursors[source]
        if not self._assigned:
            self._assign()
        if not cursor.rewind(low):
            self._consumer.seek(self._at(source), low)
        while cursor.position < high:
            await self._fill(source, cursor, high)
        return cursor.take(high)

    async def _fill(self, source: TopicPartition, cursor: _Cursor, high: int) -> None:
        place = self._at(source)
        try:
            found = await self._consumer.getmany(place, timeout_ms=_POLL_MILLISECONDS)
        except OffsetOutOfRangeError:
            first = (await self.first_offsets([source]))[source]
            if first > cursor.position:
                raise InputsDeleted(
                    f"{source[0]}/{source[1]}: records from offset {cursor.position} are needed, "
                    f"but the log begins at {first}"
                ) from None
            raise self._replaced(source, high, (await self.end_offsets([source]))[source]) from None
        cursor.extend(found.get(place, ()), await self._consumer.position(place))
        if not found:
            end = (await self.end_offsets([source]))[source]
            if end < high:
                raise self._replaced(source, high, end)

    @staticmethod
    def _replaced(source: TopicPartition, high: int, end: int) -> TopicsReplaced:
        return TopicsReplaced(
            f"{source[0]}/{source[1]}: the journal names records up to offset {high}, "
            f"but the log ends at {end}; the topic was wiped or replaced"
        )

    def _at(self, source: TopicPartition) -> BrokerPartition:
        return BrokerPartition(self._settings.physical(source[0]), source[1])


class _Cursor:
    """Holds the records of one partition that were read ahead."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._records: list[Any] = []
        self._start = 0
        self._low = position

    def rewind(self, low: int) -> bool:
        """Go to ``low``; False if that record was not read ahead, so that a seek is needed."""
        if self._low <= low <= self.position:
            self._start = bisect_left(self._records, low, self._start, key=_offset)
            self._low = low
            return True
        self._records, self._start, self._low, self.position = [], 0, low, low
        return False

    def extend(self, records: Iterable[Any], position: int) -> None:
        if self._start:
            del self._records[: self._start]
            self._start = 0
        self._records.extend(records)
        self.position = max(position, self._records[-1].offset + 1 if self._records else position)

    def take(self, high: int) -> list[Any]:
        stop = bisect_left(self._records, high, self._start, key=_offset)
        taken = self._records[self._start : stop]
        self._start = stop
        self._low = high
        return taken


def as_records(fetched: Iterable[object]) -> list[InputRecord]:
    """Turn the client's records into plain ones; a record without a value (a tombstone) has empty bytes."""
    return [InputRecord(r.offset, r.timestamp, r.value or b"") for r in fetched]  # type: ignore[attr-defined]


async def partition_counts(settings: WorkerSettings, topics: Collection[str]) -> dict[str, int]:
    """The number of partitions of each logical topic; 0 if the topic does not exist."""
    async with administering(settings.cluster) as admin:
        names = {settings.physical(topic): topic for topic in topics}
        described = await admin.describe_topics(list(names))
        return {names[found["topic"]]: len(found["partitions"]) for found in described}


def batches_stay_compressed(key: bytes | None) -> bytes | None:
    """Return the key unchanged. A consumer that has this function as ``key_deserializer`` keeps batches compressed.

    A megabyte on the wire may be a gigabyte in memory. No writer of a deployment compresses
    (`hushstream.schemas.topics`: sizes would tell what is in a record), so a compressed batch is from somebody else.
    The header of a batch names its codec, in clear. A reader gets one record in place of a compressed batch: at the
    batch's last offset, with the value `codec.COMPRESSED`. Decoding refuses that value, and reading goes on behind it.
    Every reader gets the same record, so what follows from a log does not depend on who reads it.

    A topic with ``compression.type=uncompressed`` would not help: the broker then unpacks, in its own memory.
    """
    return key


class _Closed:
    """A compressed batch with the interface that the fetcher expects; it yields one record in place of its content."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        yield DefaultRecord(batch.next_offset - 1, batch.max_timestamp, batch.timestamp_type, None, COMPRESSED, [])


class _ClosedBatches:
    """The batches of a fetch, with each compressed one as `_Closed`."""

    __slots__ = ("_records",)

    def __init__(self, records: Any) -> None:
        self._records = records

    def has_next(self) -> bool:
        return bool(self._records.has_next())

    def next_batch(self) -> Any:
        batch = self._records.next_batch()
        return _Closed(batch) if batch.compression_type else batch


class _PartitionRecords(_Original):  # type: ignore[misc, valid-type]  # the library declares no types for it
    """Keeps batches compressed for a consumer with `batches_stay_compressed`; for any other it changes nothing."""

    def __init__(
        self, place: Any, records: Any, aborted: Any, offset: int, key_deserializer: Any, *others: Any
    ) -> None:
        if key_deserializer is batches_stay_compressed:
            records = _ClosedBatches(records)
        super().__init__(place, records, aborted, offset, key_deserializer, *others)


fetcher.PartitionRecords = _PartitionRecords
