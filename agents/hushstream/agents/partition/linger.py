"""Decides how long arrived records linger, so that several share one journal record.

A journal record and its batch in the broker's log take some 190 bytes before they hold a row, so at a modest rate the
overhead of records fills the disk. Arrived records therefore wait for a bounded time; but only at a rate at which
another record of the leading input can be expected within it, and only until enough of them wait. The leading input
alone decides when to fold. What came from other inputs is folded along with it; how much that is never moves the end of
a batch, as clicks are private.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hushstream.agents.kafka.intake import InputBuffer

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
    """Decides when one partition folds the records in its buffers.

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
