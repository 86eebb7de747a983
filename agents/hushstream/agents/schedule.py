"""Which of the records that have arrived make the next batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Protocol

from hushstream.agents.intake import InputBuffer
from hushstream.roles.machine import InputRecord, InputSlice, TopicPartition


class Schedule(Protocol):
    """Cuts what waits in the buffers into batches."""

    def next_batch(self) -> Sequence[InputSlice]:
        """What may be folded next (possibly nothing); removes nothing from the buffers."""

    def held_back(self) -> bool:
        """The machine folded nothing of the last batch; whether a larger one can be offered at once."""

    def folded(self) -> None:
        """The machine folded some of the last batch."""

    @property
    def wants_ends(self) -> bool:
        """Whether ``set_ends`` must be called before the schedule can go on."""

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Tell where each input log ends now."""


class LiveSchedule:
    """Everything that has arrived, up to a number of records and bytes for each input."""

    wants_ends = False

    def __init__(self, buffers: Sequence[InputBuffer], batch_records: int, batch_bytes: int) -> None:
        """Cut from ``buffers``, in this order."""
        self._buffers = buffers
        self._records = batch_records
        self._bytes = batch_bytes

    def next_batch(self) -> Sequence[InputSlice]:
        """See `Schedule`."""
        slices = [buffer.slice(self._records, self._bytes) for buffer in self._buffers]
        return [part for part in slices if part is not None]

    def held_back(self) -> bool:
        """No: only more input may release what is held."""
        return False

    def folded(self) -> None:
        """Nothing to do."""

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Never asked for."""


class FixedSchedule:
    """Merge by (log time, topic, offset) and cut after every ``count`` records.

    The cut depends on the logs alone, so a run over finished logs gives the same batches however often it was
    interrupted: each batch starts where a journal record ended. It waits for a log that has more to give, and
    cuts a last, shorter batch only when every log was read to its end.
    """

    def __init__(self, buffers: Sequence[InputBuffer], count: int) -> None:
        """Merge ``buffers``; ``count`` records make a batch."""
        self._buffers = buffers
        self._count = count
        self._wanted = count
        self._ends: Mapping[TopicPartition, int] | None = None
        for buffer in buffers:
            buffer.limit_bytes = 1 << 62
        self._make_room()

    @property
    def wants_ends(self) -> bool:
        """See `Schedule`."""
        return self._ends is None

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """See `Schedule`."""
        self._ends = ends

    def next_batch(self) -> Sequence[InputSlice]:
        """See `Schedule`."""
        if self._ends is None:
            return []
        ends = self._ends
        taken = self._first_merged()
        drained = [b for b in self._buffers if taken[b.source] == len(b)]
        if any(b.next_offset < ends.get(b.source, 0) for b in drained):
            return []
        if sum(taken.values()) < self._wanted:
            # A shorter batch is right only at the true ends: look once more each time.
            self._ends = None
        return [_prefix(buffer, taken[buffer.source]) for buffer in self._buffers if taken[buffer.source]]

    def held_back(self) -> bool:
        """Offer one more unit next time, unless all was offered; the cut stays a function of the logs."""
        if self._ends is None:
            return False
        self._wanted += self._count
        self._make_room()
        return True

    def folded(self) -> None:
        """Back to the plain unit."""
        self._wanted = self._count

    def _first_merged(self) -> dict[TopicPartition, int]:
        taken = {buffer.source: 0 for buffer in self._buffers}
        streams = [_ordered(buffer) for buffer in self._buffers]
        for index, (_, source, _) in enumerate(merge(*streams)):
            if index == self._wanted:
                break
            taken[source] += 1
        return taken

    def _make_room(self) -> None:
        for buffer in self._buffers:
            buffer.limit_records = max(buffer.limit_records, 2 * self._wanted)


def _ordered(buffer: InputBuffer) -> Iterator[tuple[int, TopicPartition, int]]:
    for record in buffer.peek():
        yield record.timestamp_ms, buffer.source, record.offset


def _prefix(buffer: InputBuffer, count: int) -> InputSlice:
    records: tuple[InputRecord, ...] = tuple(buffer.peek()[:count])
    return InputSlice(*buffer.source, buffer.low, records[-1].offset + 1, records)
