"""Appends to one partition, in batches that are made before the records reach the producer.

A producer makes batches too, but needs as much time for one record as this module for a batch. Only one batch is under
way at a time, as an idempotent producer requires. Records that come meanwhile make the next batch, so batches grow with
the load. Under load records also linger longer: readers are the bottleneck, and a reader needs as much time for a batch
as for a dozen single records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

Send = Callable[[Sequence[bytes]], Awaitable[tuple[int, int]]]
"""Appends a batch. Returns how many of the values, from the first, were appended, and the offset of the first."""


_MANY = 4.0
"""If on average at least this number of records comes within the wait, the wait is doubled."""

_SMOOTHING = 8
"""Number of batches over which the rate is averaged."""


class Wait:
    """How long a record waits for others: twice as long at a high rate.

    Attributes:
        seconds: the present wait.
    """

    def __init__(self, seconds: float) -> None:
        """Begin at a low rate."""
        self._least = self.seconds = seconds
        self._pace = self._sent_at = 0.0

    def sent(self, records: int, now: float) -> None:
        """Note a batch of a number of records, sent at a time in seconds on a monotonic clock."""
        self._pace += (records / max(now - self._sent_at, 1e-3) - self._pace) / _SMOOTHING
        self._sent_at = now
        self.seconds = self._least * (2 if self._pace * self._least >= _MANY else 1)


class _Append(NamedTuple):
    value: bytes
    offset: asyncio.Future[int]


class Linger:
    """The appends to one partition."""

    def __init__(self, send: Send, linger_seconds: float) -> None:
        """Begin without records.

        Args:
            send: appends a batch; its errors are raised to all who wait for one of its records.
            linger_seconds: how long a record may wait for others; see `Wait`.
        """
        self._send = send
        self._wait = Wait(linger_seconds)
        self._gathered: list[_Append] = []
        self._since = 0.0
        self._sending: asyncio.Task[None] | None = None

    def append(self, value: bytes) -> asyncio.Future[int]:
        """Append; gives the offset once the log has acknowledged it. A cancelled append may still be in the log."""
        loop = asyncio.get_running_loop()
        one = _Append(value, loop.create_future())
        if not self._gathered:
            self._since = loop.time()
        self._gathered.append(one)
        if self._sending is None:
            self._sending = loop.create_task(self._send_all())
        return one.offset

    async def flush(self) -> None:
        """Returns when nothing is under way."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send_all(self) -> None:
        try:
            while self._gathered:
                loop = asyncio.get_running_loop()
                left = self._since + self._wait.seconds - loop.time()
                if left > 0:
                    await asyncio.sleep(left)
                self._wait.sent(len(self._gathered), loop.time())
                await self._send_batch()
        finally:
            self._sending = None

    async def _send_batch(self) -> None:
        batch, self._gathered = self._gathered, []
        try:
            taken, base = await self._send([one.value for one in batch])
        except asyncio.CancelledError:
            for one in batch:
                one.offset.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            for one in batch:
                if not one.offset.done():
                    one.offset.set_exception(error)
                    one.offset.exception()  # Marks it as retrieved: else asyncio logs an error if nobody waits.
            return
        self._gathered[:0] = batch[taken:]
        for place, one in enumerate(batch[:taken]):
            if not one.offset.done():
                one.offset.set_result(base + place)
