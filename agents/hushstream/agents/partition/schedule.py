"""Chooses which of the records that have arrived make the next batch.

A learner's inputs are merged by log time (`hushstream.engine.learner.batch`), contexts last at equal log times,
and no batch may hold a context while another input has records left that come before it: then where batches are cut
changes nothing that leaves. The first of a machine's inputs, here the *leading* one, sets the pace: how many of its
records make a batch follows from that log alone, never from how many clicks there are, as each of them is private.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Protocol

from hushstream.agents.kafka.intake import InputBuffer
from hushstream.engine.records import Awaited, InputRecord, InputSlice, TopicPartition

OrderKey = tuple[int, bool, TopicPartition]
"""The order of records of several logs: by log time, then whether it is the leading input, then source.

A record whose log time lies before its predecessor's counts as if it had that one's.
"""


class Schedule(Protocol):
    """Cuts what waits in the buffers into batches."""

    def next_batch(self) -> Sequence[InputSlice]:
        """What may be folded next (possibly nothing); removes nothing from the buffers."""

    def held_back(self, awaited: Awaited | None) -> bool:
        """The machine folded nothing of the last batch; whether a larger one can be offered at once.

        Args:
            awaited: what it waits for, as far as that is known.
        """

    def folded(self) -> None:
        """The machine folded some of the last batch."""

    @property
    def wants_ends(self) -> bool:
        """Whether ``set_ends`` must be called before the schedule can go on."""

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Tell where each input log ends now."""


class LiveSchedule:
    """Everything that has arrived, up to a number of records and bytes for each input.

    While more of a log is known to be there than a batch takes of it, no other log is taken further than the place of
    the last record that is, in the order of `OrderKey`. A log that was read to its end holds nothing back: what comes
    later gets a later log time. That end is the one of the last fetch. What was appended in the moment between it and
    the fetch of another log's records may come behind them; the journal then says so, and a reward that thereby is late
    is lost to its own user.
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
        """Cut from ``buffers``, in this order.

        Args:
            buffers: of all inputs and broadcasts.
            inputs: the leading one, and those that it may wait for.
            ends: where a log ended when it was last read.
            batch_records: the most records of one input.
            batch_bytes: the most bytes of one input.
        """
        self._buffers = buffers
        self._leading, *self._awaited = inputs
        self._ends = ends
        self._records = batch_records
        self._bytes = batch_bytes
        self._cut = False
        self._reach: Awaited | None = None
        """What is offered of an awaited input ahead of its order."""

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
        """Yes, if some was cut off of what is awaited: the first context may name a click of a later log time.

        Then all clicks up to that one come before it, so each is folded in order.
        """
        if not self._cut or awaited is None or awaited == self._reach:
            return False
        self._reach = awaited
        return True

    def folded(self) -> None:
        """Every log in order again."""
        self._reach = None

    def set_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Never asked for."""

    def _more(self, buffer: InputBuffer, parts: Mapping[TopicPartition, InputSlice | None]) -> bool:
        part = parts[buffer.source]
        # Where nothing waits, what lies below the next offset is lost, by an operator's word: it will never come.
        taken_to = buffer.next_offset if part is None else part.high
        return taken_to < max(buffer.next_offset, self._ends(buffer.source))

    def _last_key(self, part: InputSlice | None, source: TopicPartition) -> OrderKey:
        last_ms = max((record.timestamp_ms for record in part.records), default=0) if part is not None else 0
        return last_ms, source == self._leading, source

    def _before(self, part: InputSlice, key: OrderKey) -> InputSlice | None:
        """What of a slice comes before ``turn``."""
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
    """Merge by log time, the leading input last, then topic and offset; cut after every ``count`` leading records.

    The cut depends on the logs alone, so a run over finished logs gives the same batches however often it was
    interrupted: each batch starts where a journal record ended. It waits for a log that has more to give, and
    cuts a last, shorter batch only when every log was read to its end.
    """

    def __init__(self, buffers: Sequence[InputBuffer], leading: TopicPartition, count: int) -> None:
        """Merge ``buffers``; ``count`` records of the ``leading`` one make a batch, with all that come before."""
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
            # A shorter batch is right only at the true ends: look once more each time.
            self._ends = None
        return [_prefix(buffer, taken[buffer.source]) for buffer in self._buffers if taken[buffer.source]]

    def held_back(self, awaited: Awaited | None) -> bool:
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
    """How many records come up to what is awaited, ``count`` or more; or to one that shows that it never comes."""
    for number in range(count, len(records)):
        if records[number].offset > reach.offset:
            return number
        if records[number].timestamp_ms > reach.until_ms:
            return number + 1
    return len(records)


def _prefix(buffer: InputBuffer, count: int) -> InputSlice:
    records: tuple[InputRecord, ...] = tuple(buffer.peek()[:count])
    return InputSlice(*buffer.source, buffer.low, records[-1].offset + 1, records)
