"""Bounded buffers between the fetch thread and the folds: whole batches in, slices out."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.schemas.errors import HushstreamError

_offset = attrgetter("offset")


class InputBuffer:
    """What has arrived of one input partition and is not folded yet.

    A record is taken only at the expected offset. One below it was seen before and is dropped; one above it
    asks for a seek, because it may be the rest of an older fetch: only a hole that is seen again right after
    that seek is a real one.
    """

    def __init__(
        self, source: TopicPartition, position: int, limit_records: int, limit_bytes: int, begins: int | None = None
    ) -> None:
        """Start empty at ``position``; ``limit_*`` bound what may wait here.

        What lies before ``begins`` is lost, by an operator's word: the first slice covers it, without a record.
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
        """Bytes of the values that wait."""
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
        """Note that the fetcher now stands at ``next_offset``."""
        self._wants_seek = False

    def offer(self, records: Sequence[InputRecord]) -> bool:
        """Take a batch in offset order; False if it begins past the expected offset (then seek)."""
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
        """The oldest unfolded records, at most so many; None if there are none. Nothing is removed."""
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
        """Everything that waits, oldest first."""
        return self._records

    def advance(self, position: int) -> None:
        """Forget what lies below ``position``: it was folded."""
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
    """All buffers that one fetcher fills, by the broker's topic name and partition."""

    def __init__(self) -> None:
        self._buffers: dict[TopicPartition, InputBuffer] = {}
        self._has_capacity = asyncio.Event()
        self.epoch = 0
        """Raised at every rebalance: what was fetched in an older epoch is not delivered."""

    def attach(self, buffers: Mapping[TopicPartition, InputBuffer]) -> None:
        """Deliver to these buffers from now on (each is sought first)."""
        self._buffers.update(buffers)
        self._has_capacity.set()

    def detach(self, sources: Iterable[TopicPartition]) -> None:
        """Stop delivering; what was not folded is dropped with the buffer."""
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
        """Where the fetcher must seek before it goes on."""
        return {source: buffer.next_offset for source, buffer in self._buffers.items() if buffer.wants_seek}

    @property
    def any_full(self) -> bool:
        """Whether some source is paused."""
        return any(buffer.full for buffer in self._buffers.values())

    def notify_capacity(self) -> None:
        """Tell a waiting fetcher that a buffer was emptied."""
        self._has_capacity.set()

    async def wait_for_capacity(self, timeout_seconds: float) -> None:
        """Wait until a buffer was attached or emptied, or the time is over."""
        self._has_capacity.clear()
        try:
            await asyncio.wait_for(self._has_capacity.wait(), timeout_seconds)
        except TimeoutError:
            return
