"""Bounded buffers between the agent and the folds: they take whole fetches and give slices."""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from aiokafka.errors import KafkaError
from faust.types import TP

from hushstream.agents.errors import DENIED, JournalLost
from hushstream.agents.kafka.logs import as_records
from hushstream.engine.records import InputRecord, InputSlice, TopicPartition
from hushstream.schemas.errors import HushstreamError

logger = logging.getLogger(__name__)

_offset = attrgetter("offset")
_LOOK_SECONDS = 0.01
_RETRY_SECONDS = 0.2


class InputBuffer:
    """Holds the records of one input partition that have arrived and are not folded yet.

    A record is taken only at the expected offset. A record below it was seen before and is dropped. A record above it
    makes the consumer seek, because it may come from an older fetch: the gap is real only if it is still there right
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
        """Whether the consumer must seek to ``next_offset``: until it has, only a fetch that has that offset counts."""
        return self._wants_seek

    @property
    def full(self) -> bool:
        """Whether fetching must pause."""
        return len(self._records) >= self.limit_records or self._bytes >= self.limit_bytes

    @property
    def half_empty(self) -> bool:
        """Whether fetching may go on after a pause."""
        return len(self._records) * 2 <= self.limit_records and self._bytes * 2 <= self.limit_bytes

    @property
    def at_gap(self) -> bool:
        """Whether the seek is wanted because the last fetch began above the expected offset."""
        return self._wants_seek and self._hole_at >= 0

    def sought(self) -> None:
        """Note that the consumer has sought to ``next_offset``."""
        self._wants_seek = False

    def offer(self, records: Sequence[InputRecord]) -> bool:
        """Take a batch in offset order; False if it begins above the expected offset, so that a seek is needed."""
        if self._wants_seek and not (records and records[0].offset <= self._next <= records[-1].offset):
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
    """Holds the buffers that one agent fills, and lets its consumer fetch where there is room.

    A partition whose buffer is full is fetched no further until the buffer is half empty.
    """

    def __init__(self) -> None:
        self._app: Any = None
        self._buffers: dict[TP, InputBuffer] = {}
        self._paused: set[TP] = set()
        self._seek_wanted = asyncio.Event()

    def use(self, app: Any) -> None:
        """Fetch with the consumer of this app."""
        self._app = app

    def attach(self, buffers: Mapping[TopicPartition, InputBuffer]) -> None:
        """Fill these buffers from now on, by topic on the broker and partition; `run` seeks to where each begins."""
        for source, buffer in buffers.items():
            place = TP(*source)
            self._buffers[place] = buffer
            self._app.consumer.thread.pause(place, False)
        self._seek_wanted.set()

    def detach(self, sources: Iterable[TopicPartition]) -> None:
        """Stop filling these buffers; unfolded records are dropped with them."""
        for source in sources:
            self._buffers.pop(TP(*source), None)
            self._paused.discard(TP(*source))

    def open_sources(self) -> set[TP]:
        """The partitions that are fetched now."""
        return {place for place, buffer in self._buffers.items() if not buffer.full}

    def take(self, source: TopicPartition, fetched: Sequence[Any]) -> None:
        """Put a fetch into the buffer of its partition.

        If the partition is not recovered yet, or was stopped, the fetch is dropped, and none follows until `attach`.
        """
        place = TP(*source)
        buffer = self._buffers.get(place)
        if buffer is None:
            self._app.consumer.thread.pause(place, True)
            return
        if not buffer.offer(as_records(fetched)):
            self._seek_wanted.set()
        if buffer.full and place not in self._paused:
            self._paused.add(place)
            self._app.consumer.thread.pause(place, True)

    def notify_capacity(self) -> None:
        """Note that buffers were emptied: go on fetching where there is room."""
        for place in [place for place in self._paused if self._buffers[place].half_empty]:
            self._paused.discard(place)
            self._app.consumer.thread.pause(place, False)

    async def run(self) -> None:
        """Seek for the buffers that want it, until cancelled.

        Raises:
            KafkaError: the broker's access rules forbid reading.
        """
        while True:
            await self._seek_wanted.wait()
            self._seek_wanted.clear()
            try:
                await self._seek()
            except DENIED:
                raise
            except (KafkaError, ConnectionError, TimeoutError) as error:
                logger.warning("a seek failed (%s), trying again", type(error).__name__)
                self._seek_wanted.set()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _seek(self) -> None:
        # At the end of a rebalance Faust seeks to what is committed, which may be elsewhere.
        while self._app.rebalancing:  # noqa: ASYNC110 - Faust has no event for it
            await asyncio.sleep(_LOOK_SECONDS)
        consumer = self._app.consumer
        assigned = consumer.assignment()
        wanted = {place: one for place, one in self._buffers.items() if one.wants_seek and place in assigned}
        if not wanted:
            return
        gaps = [place for place, buffer in wanted.items() if buffer.at_gap]
        begins = await consumer.earliest_offsets(*gaps) if gaps else {}
        offsets = {place: buffer.next_offset for place, buffer in wanted.items()}
        await consumer.seek_wait(offsets)
        for place, buffer in wanted.items():
            first = begins.get(place, 0)
            if first > offsets[place]:
                # The recovery that follows says what is lost, and whether the operator has accepted the loss.
                buffer.failed(
                    JournalLost(
                        f"{buffer.source[0]}/{buffer.source[1]}: must be read from offset {offsets[place]}, "
                        f"but the log begins at {first}"
                    )
                )
            else:
                buffer.sought()  # what it took meanwhile comes again, and is dropped
