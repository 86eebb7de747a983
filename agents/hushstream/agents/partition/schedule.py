"""Chooses when a batch is made, and which of the records that have arrived make it.

A learner's inputs are merged by log time (`hushstream.engine.learner.batch`), contexts last at equal log times. No
batch may hold a context while another input has records left that come before it. So the outputs do not depend on where
one batch ends and the next begins. The first of a machine's inputs, the *leading* one, sets the pace: the number of its
records in a batch depends on that log only, never on the number of clicks, which is private.

*Input ends.* What a running partition learns from the ends of its input logs: that one was wiped, or that a click never
comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Protocol

from aiokafka.errors import KafkaError

from hushstream.agents.errors import Command, TopicsReplaced, ends_at, replaced
from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.process import RateLimitedLog
from hushstream.engine.machine import Machine
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


_ENOUGH_RECORDS = 16
"""With this many rows, the overhead of a journal record is small compared with the rows."""

_ENOUGH_BYTES = 4096
"""About the size of `_ENOUGH_RECORDS` records of one row each; one record in columns is already as large."""

_WAITS = 10
"""Records of other inputs wait this many times as long if no leading record waits, since then no user waits for an
answer. A pause between two records counts as no longer than this in the average, so that the average soon fits again
after a long pause."""

_SMOOTHING = 8
"""The pace is averaged over this many records."""


class Linger:
    """Decides how long arrived records of one partition linger, so that several share one journal record.

    A journal record and its batch in the broker's log take some 190 bytes before they hold a row, so at a modest rate
    the overhead of records fills the disk. Arrived records therefore wait for a bounded time; but only at a rate at
    which another record of the leading input can be expected within it, and only until enough of them wait. The leading
    input alone decides when to fold. What came from other inputs is folded along with it; how much that is never moves
    the end of a batch, as clicks are private.

    Times are seconds on a clock that only goes forward; the caller reads it.

    Attributes:
        last_arrival: the time of the last arrival.
    """

    def __init__(self, leading: InputBuffer, buffers: Sequence[InputBuffer], wait_seconds: float, now: float) -> None:
        """Watch buffers from now on.

        Args:
            leading: the buffer of the input that sets the pace, one of ``buffers``.
            buffers: all buffers of the partition.
            wait_seconds: the longest time that a record of the leading input waits for another; 0: it never waits.
            now: the current time.
        """
        self._leading = leading
        self._buffers = buffers
        self._wait = wait_seconds
        self._gap = wait_seconds * _WAITS
        """The average number of seconds from one record of the leading input to the next, smoothed."""
        self._seen = leading.next_offset
        self.last_arrival = self._last_leading = now
        self._since: float | None = None
        """When the first of the waiting records arrived; None if none waits."""
        self._leading_since: float | None = None

    def arrived(self, now: float) -> None:
        """Note that records arrived in one of the buffers."""
        self.last_arrival = now
        self._since = now if self._since is None else self._since
        count = self._leading.next_offset - self._seen
        if count > 0:
            gap = min((now - self._last_leading) / count, self._wait * _WAITS)
            self._gap += (gap - self._gap) * min(1.0, count / _SMOOTHING)
            self._seen, self._last_leading = self._leading.next_offset, now
            self._leading_since = now if self._leading_since is None else self._leading_since

    def folded(self) -> None:
        """Note that records were folded. Those that are left in a buffer keep the time since which they wait."""
        if not len(self._leading):
            self._leading_since = None
        if not any(len(buffer) for buffer in self._buffers):
            self._since = None

    def seconds_left(self, now: float) -> float:
        """Seconds to wait for more records; 0 if it is time to fold, or no record waits."""
        if self._since is None or self._gap > self._wait or self._enough:
            return 0.0
        if self._leading_since is not None:
            return max(0.0, self._leading_since + self._wait - now)
        return max(0.0, self._last_leading + self._wait * _WAITS - now)

    @property
    def _enough(self) -> bool:
        return len(self._leading) >= _ENOUGH_RECORDS or self._leading.size >= _ENOUGH_BYTES

    async def until_enough(self, arrived: asyncio.Event, clock: Callable[[], float]) -> None:
        """Wait until it is time to fold, by ``clock``; ``arrived`` must be set at each arrival."""
        while (left := self.seconds_left(clock())) > 0:
            arrived.clear()
            try:
                await asyncio.wait_for(arrived.wait(), left)
            except TimeoutError:
                return


logger = logging.getLogger(__name__)

EndOffsets = Callable[[list[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]


async def wiped(
    buffers: Sequence[InputBuffer],
    fetched_end: Callable[[TopicPartition], int | None],
    end_offsets: EndOffsets,
    command: Command,
) -> TopicsReplaced | None:
    """The error for which a partition must stop, or None: an input log ends before the offset it was folded up to.

    Such a log was wiped while the worker was running. The end that the last fetch saw may be too low for a moment after
    another broker has become the leader, so the broker is asked before the partition stops.
    """
    ends = {buffer.source: fetched_end(buffer.source) for buffer in buffers}
    short = [b for b in buffers if (end := ends[b.source]) is not None and end < b.low]
    if not short:
        return None
    try:
        now = await end_offsets([buffer.source for buffer in short])
    except (KafkaError, ConnectionError, TimeoutError) as error:
        logger.warning("%s: the ends of its inputs could not be read (%s)", short[0].source, type(error).__name__)
        return None
    found = next((buffer for buffer in short if now[buffer.source] < buffer.low), None)
    return None if found is None else replaced(command, found.source, found.low, ends_at(now[found.source]))


class NamedWait:
    """Holds what the first record of one partition waits for, and since when.

    A context may name a click, and waits for it. When it has waited long enough, the partition asks the broker for the
    end of the clicks' log. If the log ends before the click, the click does not exist: the context waits no longer, and
    the machine refuses it. The partition asks only after a wait, because a broker that has just become the leader may
    not show the last records yet. Contexts that have arrived behind the first one by then are decided with it, without
    own waits.

    Times are seconds on a clock that only goes forward; the caller reads it.
    """

    def __init__(
        self, machine: Machine, leading: InputBuffer, seconds: float, end_offsets: EndOffsets, metrics: Metrics
    ) -> None:
        """Begin without a wait.

        Args:
            machine: the partition's machine.
            leading: the buffer of its first input.
            seconds: how long a record waits before the broker is asked for the end of the awaited log.
            end_offsets: asks the broker.
            metrics: count the waits for clicks that do not exist.
        """
        self._machine = machine
        self._leading = leading
        self._seconds = seconds
        self._end_offsets = end_offsets
        self._metrics = metrics
        self._awaited: Awaited | None = None
        self._since = 0.0
        self._limited_log = RateLimitedLog(logger)

    def awaited(self, now: float) -> Awaited | None:
        """What the machine waits for now; call this after each `Machine.ready`."""
        awaited = self._machine.awaited
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now
        return awaited

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the broker is to be asked; None if no record waits."""
        return None if self._awaited is None else max(0.0, self._since + self._seconds - now)

    async def end(self, now: float) -> bool:
        """Ask the broker, if the wait was long enough; returns whether the record need not wait any longer."""
        awaited = self._awaited
        if awaited is None or self.seconds_left(now):
            return False
        self._since = now
        arrived = self._leading.next_offset
        topic, partition = awaited.source
        try:
            end = (await self._end_offsets([awaited.source]))[awaited.source]
        except (KafkaError, ConnectionError, TimeoutError) as error:
            self._limited_log.warning("%s/%d: cannot read the log's end (%s)", topic, partition, type(error).__name__)
            return False
        if awaited.offset < end:
            return False
        self._machine.ends_at(arrived, end)
        self._metrics.waited_in_vain()
        self._limited_log.warning(
            "partition %d: a record names a record of %s that does not exist; after %g s it is refused, and so are all "
            "other waiting records that name missing ones", partition, topic, self._seconds,
        )  # fmt: skip
        return True
