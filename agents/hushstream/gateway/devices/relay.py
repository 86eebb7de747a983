"""Relays devices' slots: it appends many slots together, in an order that does not show which came first.

An appended record has no key and no headers, and comes from one producer. Its partition follows from the report id,
which is a pseudorandom function under a key that only the device has. The order within a batch is that of a digest
under a key of this process. The relay does not hide in which batch a slot came.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from hushstream.gateway.bounded_log import SILENT_SECONDS
from hushstream.gateway.problems import LogBusy

REMEMBERED_SLOTS = 100_000
"""How many digests of acknowledged slots are kept, so that a slot whose device got no answer is not appended twice."""

_DIGEST_BYTES = 16

Append = Callable[[int, bytes], Awaitable[object]]
"""Appends a record to a partition, and returns once the log has acknowledged it."""


class SlotRelay:
    """Collects slots, and appends them in batches."""

    def __init__(
        self,
        append: Append,
        partitions: int,
        seconds: float,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with no waiting slots.

        Args:
            append: appends to the topic of slots.
            partitions: how many partitions that topic has.
            seconds: how long the first slot of a batch waits for others.
            most: how many slots may wait or be unacknowledged at the same time.
            clock: the time in seconds.
        """
        self._append = append
        self._partitions = partitions
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._order = secrets.token_bytes(32)
        self._batch: dict[bytes, tuple[int, bytes]] = {}
        self._waiting: dict[bytes, tuple[asyncio.Future[None], float]] = {}
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._flushing: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many slots wait or are not acknowledged yet."""
        return len(self._waiting)

    @property
    def answers(self) -> bool:
        """Whether the log acknowledges slots: none waits longer than it may."""
        oldest = next((begun for _, begun in self._waiting.values()), None)
        return oldest is None or self._clock() - oldest < SILENT_SECONDS + self._seconds

    async def send(self, report_id: bytes, value: bytes) -> None:
        """Append a slot and return once the log has acknowledged it; a slot that the log has is not appended again.

        Raises:
            LogBusy: as many slots wait as the limit allows.
            HushstreamError: the log refused it.
        """
        digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES, key=self._order).digest()
        if digest in self._known:
            # Wait as long as for a new slot: an observer of the answer's time must not see that the slot was known.
            await asyncio.sleep(self._seconds)
            return
        if digest not in self._waiting:
            if len(self._waiting) >= self._most:
                raise LogBusy(f"log: expected fewer than {self._most} slots that await their acknowledgement")
            self._waiting[digest] = asyncio.get_running_loop().create_future(), self._clock()
            if not self._batch:
                flushing = asyncio.create_task(self._flush())
                self._flushing.add(flushing)
                flushing.add_done_callback(self._flushing.discard)
            self._batch[digest] = int.from_bytes(report_id[:8], "little") % self._partitions, value
        # Shielded: a caller that gives up does not stop its slot.
        await asyncio.shield(self._waiting[digest][0])

    async def stop(self) -> None:
        """Append all waiting slots."""
        await asyncio.gather(*self._flushing)

    async def _flush(self) -> None:
        await asyncio.sleep(self._seconds)
        batch, self._batch = self._batch, {}
        # Sorted by keyed digest, so that the order does not show which slot came first.
        await asyncio.gather(*(self._appended(digest, *batch[digest]) for digest in sorted(batch)))

    async def _appended(self, digest: bytes, partition: int, value: bytes) -> None:
        try:
            await self._append(partition, value)
        except Exception as error:  # noqa: BLE001 - raised to whoever waits for this slot
            waiting = self._waiting.pop(digest)[0]
            waiting.set_exception(error)
            waiting.exception()  # Marks it as retrieved: else asyncio logs an error if nobody waits any more.
            return
        self._known[digest] = None
        if len(self._known) > REMEMBERED_SLOTS:
            self._known.popitem(last=False)
        self._waiting.pop(digest)[0].set_result(None)
