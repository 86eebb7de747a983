"""Chooses which of the records that have arrived make the next batch.

A learner's inputs are merged by log time (`hushstream.engine.learner.batch`), contexts last at equal log times. No
batch may hold a context while another input has records left that come before it. So the outputs do not depend on where
one batch ends and the next begins. The first of a machine's inputs, the *leading* one, sets the pace: the number of its
records in a batch depends on that log only, never on the number of clicks, which is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Protocol

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.engine.records import Awaited, InputRecord, InputSlice, TopicPartition

OrderKey = tuple[int, bool, TopicPartition]
"""The order of records of several logs: by log time, then the leading input last, then by source.

A record with a log time before that of its predecessor in the same log counts with the predecessor's log time.
"""


class Schedule(Protocol):
    """Divides the records in the buffers into batches."""

    def next_batch(self) -> Sequence[InputSlice]:
        """The records that may be folded next (possibly none); removes nothing from the buffers."""

    def held_back(self, awaited: Awaited | None) -> bool:
        """Note that the machine folded nothing of the last batch; whether a larger one can be offered at once.

        Args:
            awaited: the record that the machine waits for, if it is known.
        """

    def folded(self) -> None:
        """Note that the machine folded records of the last batch."""

    @property
    def wants_ends(self) -> bool:
        """Whether ``set_ends`` must be called before the schedule can go on."""

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Take the current end of each input log."""


class LiveSchedule:
    """Offers everything that has arrived, up to a number of records and bytes for each input.

    If a log has more records than the batch takes, the other logs are taken only up to the last record that the batch
    takes of this one, in the order of `OrderKey`. A log that was read to its end limits no other log: its next records
    get later log times. That end is the one at the last fetch. A record that was appended after this fetch, but before
    another log's fetch, may be folded after that log's records. The journal records this order; a reward that is late
    for this reason is lost, for its own user only.
    """

    wants_ends = False

    def __init__(
        self,
        buffers: Sequence[InputBuffer],
        inputs: Sequence[TopicPartition],
        ends: Callable[[TopicPartition], int],
        batch_records: int,
        batch_bytes: int,
    ) -> None:
        """Make batches from ``buffers``, in this order.

        Args:
            buffers: the buffers of all inputs and broadcasts.
            inputs: the leading input, then the inputs for whose records it may wait.
            ends: gives the end of a log when it was last fetched.
            batch_records: the most records of one input in a batch.
            batch_bytes: the most bytes of one input in a batch.
        """
        self._buffers = buffers
        self._leading, *self._awaited = inputs
        self._ends = ends
        self._records = batch_records
        self._bytes = batch_bytes
        self._cut = False
        self._reach: Awaited | None = None
        """The awaited record up to which its input is offered, even beyond the order by log time."""

    def next_batch(self) -> Sequence[InputSlice]:
        parts = {buffer.source: buffer.slice(self._records, self._bytes) for buffer in self._buffers}
        reached = {b.source: self._last_key(parts[b.source], b.source) for b in self._buffers if self._more(b, parts)}
        batch = []
        self._cut = False
        for source, part in parts.items():
            others = [key for other, key in reached.items() if other != source]
            if part is not None and others:
                part = self._before(part, min(others))
            if part is not None:
                batch.append(part)
        return batch

    def held_back(self, awaited: Awaited | None) -> bool:
        """Whether the last batch left out records of an awaited input: the first context may name a later click.

        The next batch then holds all clicks up to that one, and they come before the context.
        """
        if not self._cut or awaited is None or awaited == self._reach:
            return False
        self._reach = awaited
        return True

    def folded(self) -> None:
        """Take every log in the order by log time again."""
        self._reach = None

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Do nothing: this schedule never wants ends."""

    def _more(self, buffer: InputBuffer, parts: Mapping[TopicPartition, InputSlice | None]) -> bool:
        part = parts[buffer.source]
        # If the buffer is empty, an operator has said that records below the next offset are lost: they never come.
        taken_to = buffer.next_offset if part is None else part.high
        return taken_to < max(buffer.next_offset, self._ends(buffer.source))

    def _last_key(self, part: InputSlice | None, source: TopicPartition) -> OrderKey:
        last_ms = max((record.timestamp_ms for record in part.records), default=0) if part is not None else 0
        return last_ms, source == self._leading, source

    def _before(self, part: InputSlice, key: OrderKey) -> InputSlice | None:
        """The part of a slice up to ``key``; None if it is empty. Notes if it cut off records of an awaited input."""
        source = (part.topic, part.partition)
        count = next(
            (n for n, r in enumerate(part.records) if (r.timestamp_ms, source == self._leading, source) > key), None
        )
        if count is not None and self._reach is not None and source == self._reach.source:
            count = _reached(part.records, count, self._reach)
        if count is None or count >= len(part.records):
            return part
        self._cut |= source in self._awaited
        return part._replace(high=part.records[count].offset, records=part.records[:count]) if count else None


class FixedSchedule:
    """Merges by log time, the leading input last, then topic and offset; a batch has ``count`` leading records.

    The batches depend on the logs only. So a run over finished logs makes the same batches, however often it was
    interrupted: each batch starts where a journal record ended. The schedule waits for a log that has more records, and
    makes a last, shorter batch only when every log was read to its end.
    """

    def __init__(self, buffers: Sequence[InputBuffer], leading: TopicPartition, count: int) -> None:
        """Merge ``buffers``; ``count`` records of the ``leading`` input and all records before them make a batch."""
        self._buffers = buffers
        self._leading = leading
        self._count = count
        self._wanted = count
        self._ends: Mapping[TopicPartition, int] | None = None
        for buffer in buffers:
            buffer.limit_bytes = 1 << 62
        self._make_room()

    @property
    def wants_ends(self) -> bool:
        return self._ends is None

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        self._ends = ends

    def next_batch(self) -> Sequence[InputSlice]:
        if self._ends is None:
            return []
        ends = self._ends
        taken = self._first_merged()
        drained = [b for b in self._buffers if taken[b.source] == len(b) and b.next_offset < ends.get(b.source, 0)]
        for buffer in drained:
            buffer.limit_records = max(buffer.limit_records, 2 * len(buffer))
        if drained:
            return []
        if taken[self._leading] < self._wanted:
            # A shorter batch is right only at the true ends of the logs, so ask for the ends again each time.
            self._ends = None
        return [_prefix(buffer, taken[buffer.source]) for buffer in self._buffers if taken[buffer.source]]

    def held_back(self, awaited: Awaited | None) -> bool:
        """Offer ``count`` more leading records next time, unless all were offered; only the logs decide, as before."""
        if self._ends is None:
            return False
        self._wanted += self._count
        self._make_room()
        return True

    def folded(self) -> None:
        """Offer ``count`` leading records again."""
        self._wanted = self._count

    def _first_merged(self) -> dict[TopicPartition, int]:
        taken = {buffer.source: 0 for buffer in self._buffers}
        for _, leads, source in merge(*(self._order_keys(buffer) for buffer in self._buffers)):
            taken[source] += 1
            if leads and taken[source] == self._wanted:
                break
        return taken

    def _make_room(self) -> None:
        for buffer in self._buffers:
            buffer.limit_records = max(buffer.limit_records, 2 * self._wanted)

    def _order_keys(self, buffer: InputBuffer) -> Iterator[OrderKey]:
        last_ms = 0
        for record in buffer.peek():
            last_ms = max(last_ms, record.timestamp_ms)
            yield last_ms, buffer.source == self._leading, buffer.source


def _reached(records: Sequence[InputRecord], count: int, reach: Awaited) -> int:
    """The number of records (at least ``count``) up to the awaited one, or up to one that shows it will not come."""
    for number in range(count, len(records)):
        if records[number].offset > reach.offset:
            return number
        if records[number].timestamp_ms > reach.until_ms:
            return number + 1
    return len(records)


def _prefix(buffer: InputBuffer, count: int) -> InputSlice:
    records: tuple[InputRecord, ...] = tuple(buffer.peek()[:count])
    return InputSlice(*buffer.source, buffer.low, records[-1].offset + 1, records)
