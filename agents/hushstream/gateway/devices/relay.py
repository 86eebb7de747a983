"""Relays devices' slots: it appends many slots together, in an order that does not show which came first.

An appended record has no key and no headers, and comes from one producer. Its partition follows from the report id,
which is a pseudorandom function under a key that only the device has. The order within a batch is that of a digest
under a key of this process. The relay does not hide in which batch a slot came. It keeps nothing of what it appended:
a slot that the log has is appended and acknowledged as a new one, and its shuffler counts it once. So neither an answer
nor its time tells whose slot was known, also where the log is slow, refuses, or is down.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from hushstream.gateway.listening import SILENT_SECONDS
from hushstream.gateway.problems import LogBusy

_DIGEST_BYTES = 16

Append = Callable[[int, bytes], Awaitable[object]]
"""Appends a record to a partition, and returns once the log has acknowledged it."""


class _Waiting(NamedTuple):
    """A slot of a batch, and the answer that all wait for who sent it."""

    partition: int
    value: bytes
    answer: asyncio.Future[None]


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
        self._batch: dict[bytes, _Waiting] = {}
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._flushing: set[asyncio.Task[None]] = set()

    @property
    def waiting(self) -> int:
        """How many slots wait or are not acknowledged yet."""
        return len(self._waiting)

    @property
    def answers(self) -> bool:
        """Whether the log acknowledges slots: none waits longer than it may."""
        oldest = next(iter(self._waiting.values()), None)
        return oldest is None or self._clock() - oldest < SILENT_SECONDS + self._seconds

    async def send(self, report_id: bytes, value: bytes) -> None:
        """Append a slot and return once the log has acknowledged its batch; the same slot waits once in a batch.

        Raises:
            LogBusy: as many slots wait as the limit allows.
            HushstreamError: the log refused it.
        """
        digest = hashlib.blake2b(value, digest_size=_DIGEST_BYTES, key=self._order).digest()
        # Asked of every slot: if one that waits were taken where others are refused, its answer would tell of it.
        if len(self._waiting) >= self._most:
            raise LogBusy(f"log: expected fewer than {self._most} slots that await their acknowledgement")
        if digest not in self._batch:
            if not self._batch:
                flushing = asyncio.create_task(self._flush())
                self._flushing.add(flushing)
                flushing.add_done_callback(self._flushing.discard)
            answer = asyncio.get_running_loop().create_future()
            self._waiting[answer] = self._clock()
            self._batch[digest] = _Waiting(int.from_bytes(report_id[:8], "little") % self._partitions, value, answer)
        # Shielded: a caller that gives up does not stop its slot.
        await asyncio.shield(self._batch[digest].answer)

    async def stop(self) -> None:
        """Append all waiting slots."""
        await asyncio.gather(*self._flushing)

    async def _flush(self) -> None:
        await asyncio.sleep(self._seconds)
        # Sorted by keyed digest, so that the order does not show which slot came first.
        batch, self._batch = [self._batch[digest] for digest in sorted(self._batch)], {}
        ended = await asyncio.gather(*(self._append(one.partition, one.value) for one in batch), return_exceptions=True)
        for one, outcome in zip(batch, ended, strict=True):
            del self._waiting[one.answer]
            if isinstance(outcome, BaseException):
                one.answer.set_exception(outcome)
                one.answer.exception()  # Marks it as retrieved: else asyncio logs an error if nobody waits any more.
            else:
                one.answer.set_result(None)
