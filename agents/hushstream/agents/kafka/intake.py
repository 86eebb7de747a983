"""Bounded buffers between the fetch thread and the folds: they take whole batches and give slices."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.schemas.errors import HushstreamError

_offset = attrgetter("offset")


class InputBuffer:
    """Holds the records of one input partition that have arrived and are not folded yet.

    A record is taken only at the expected offset. A record below it was seen before and is dropped. A record above it
    makes the fetcher seek, because it may come from an older fetch: the gap is real only if it is still there right
    after that seek.
    """

    def __init__(
        self, source: TopicPartition, position: int, limit_records: int, limit_bytes: int, begins: int | None = None
    ) -> None:
        """Start empty at ``position``; ``limit_records`` and ``limit_bytes`` bound what may wait here.

        If ``begins`` is given, an operator has accepted that the records before it are lost: the first slice covers
        their offsets without any record.
        """
        self.source = source
        self.limit_records = limit_records
        self.limit_bytes = limit_bytes
        self.arrived: Callable[[], None] = lambda: None
        self.failed: Callable[[HushstreamError], None] = lambda reason: None
        self._records: list[InputRecord] = []
        self._bytes = 0
        self._low = position
        self._next = position if begins is None else begins
        self._wants_seek = True
        self._hole_at = -1

    def __len__(self) -> int:
        return len(self._records)

    @property
    def size(self) -> int:
        """The bytes of all values in the buffer."""
        return self._bytes

    @property
    def low(self) -> int:
        """The first offset that is not folded yet."""
        return self._low

    @property
    def next_offset(self) -> int:
        """The next offset to fetch."""
        return self._next

    @property
    def wants_seek(self) -> bool:
        """Whether the fetcher must seek to ``next_offset`` before it delivers again."""
        return self._wants_seek

    @property
    def full(self) -> bool:
        """Whether fetching must pause."""
        return len(self._records) >= self.limit_records or self._bytes >= self.limit_bytes

    def sought(self) -> None:
        """Note that the fetcher has sought to ``next_offset``."""
        self._wants_seek = False

    def offer(self, records: Sequence[InputRecord]) -> bool:
        """Take a batch in offset order; False if it begins above the expected offset, so that a seek is needed."""
        if self._wants_seek:
            return True
        if records and records[0].offset < self._next:
            records = records[bisect_left(records, self._next, key=_offset) :]
        if not records:
            return True
        first = records[0].offset
        if first > self._next and first != self._hole_at:
            self._hole_at = first
            self._wants_seek = True
            return False
        self._hole_at = -1
        self._records.extend(records)
        self._bytes += sum([len(record.value) for record in records])
        self._next = records[-1].offset + 1
        self.arrived()
        return True

    def slice(self, limit_records: int, limit_bytes: int) -> InputSlice | None:
        """The oldest unfolded records, up to the limits; None if there are none. Nothing is removed."""
        records = self._records
        if not records:
            return None
        count = min(len(records), limit_records)
        if self._bytes > limit_bytes:
            count = _count_within(records, count, limit_bytes)
        if count == len(records):
            return InputSlice(*self.source, self._low, self._next, tuple(records))
        return InputSlice(*self.source, self._low, records[count - 1].offset + 1, tuple(records[:count]))

    def peek(self) -> Sequence[InputRecord]:
        """All records in the buffer, oldest first."""
        return self._records

    def advance(self, position: int) -> None:
        """Remove the records below ``position``: they were folded."""
        if position <= self._low:
            return
        self._low = position
        keep = bisect_left(self._records, position, key=_offset)
        self._bytes -= sum([len(record.value) for record in self._records[:keep]])
        del self._records[:keep]


def _count_within(records: Sequence[InputRecord], count: int, limit_bytes: int) -> int:
    total = 0
    for index in range(count):
        total += len(records[index].value)
        if total > limit_bytes:
            return max(index, 1)
    return count


class Intake:
    """Holds all buffers that one fetcher fills, by the broker's topic name and partition."""

    def __init__(self) -> None:
        self._buffers: dict[TopicPartition, InputBuffer] = {}
        self._has_capacity = asyncio.Event()
        self.epoch = 0
        """Increased at every rebalance: records that were fetched in an older epoch are not delivered."""

    def attach(self, buffers: Mapping[TopicPartition, InputBuffer]) -> None:
        """Deliver to these buffers from now on; the fetcher first seeks to the position of each."""
        self._buffers.update(buffers)
        self._has_capacity.set()

    def detach(self, sources: Iterable[TopicPartition]) -> None:
        """Stop delivering to these buffers; unfolded records are dropped with them."""
        for source in sources:
            self._buffers.pop(source, None)
        self.epoch += 1

    def get(self, source: TopicPartition) -> InputBuffer | None:
        """The buffer of one source, if it is attached."""
        return self._buffers.get(source)

    def open_sources(self) -> set[TopicPartition]:
        """The sources that may be fetched now."""
        return {source for source, buffer in self._buffers.items() if not buffer.full}

    def seeks(self) -> dict[TopicPartition, int]:
        """The offsets to which the fetcher must seek before it goes on, by source."""
        return {source: buffer.next_offset for source, buffer in self._buffers.items() if buffer.wants_seek}

    @property
    def any_full(self) -> bool:
        """Whether any buffer is full, so that fetching its source pauses."""
        return any(buffer.full for buffer in self._buffers.values())

    def notify_capacity(self) -> None:
        """Wake a fetcher that waits until a buffer was emptied."""
        self._has_capacity.set()

    async def wait_for_capacity(self, timeout_seconds: float) -> None:
        """Wait until a buffer is attached or emptied, or until the timeout."""
        self._has_capacity.clear()
        try:
            await asyncio.wait_for(self._has_capacity.wait(), timeout_seconds)
        except TimeoutError:
            return
