"""Reads a deployment's answers for one client: the partitions that it has asked in, and no others.

A client that read all partitions would also receive the answers to every other process of the application. At the same
total rate of questions, traffic would then grow with the number of processes.

*Appending.* To one partition, in batches that are made before the records reach the producer.

A producer makes batches too, but needs as much time for one record as this module for a batch. Only one batch is under
way at a time, as an idempotent producer requires. Records that come meanwhile make the next batch, so batches grow with
the load. Under load records also linger longer: readers are the bottleneck, and a reader needs as much time for a batch
as for a dozen single records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from hushstream.agents.process import RateLimitedLog
from hushstream.engine.records import InputRecord
from hushstream.schemas.errors import HushstreamError


class EventLog(Protocol):
    """Acknowledged appends, and delivery of answers."""

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        """Begin to deliver records of answers: ``on_answers(partition, offset, value)`` in log order."""

    def append(self, topic: str, partition: int, value: bytes) -> Awaitable[int]:
        """Append; gives the offset once the log has acknowledged it."""

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """All records of a public topic from offset ``low`` to its present end."""

    def partitions(self) -> int:
        """Number of partitions of requests and of answers."""

    async def stop(self) -> None:
        """Flush and close."""


_POLL_MILLISECONDS = 1000

_RETRY_SECONDS = 0.5
END_SECONDS = 5.0
"""How long the first question in a partition waits for the broker's answer, at which offset the partition ends."""


class AnswersFollowed:
    """Follows partitions of one topic, each from its end at the time of the first request."""

    def __init__(
        self,
        consumer: AIOKafkaConsumer,
        topic: str,
        deliver: Callable[[int, int, bytes], None],
        limited_log: RateLimitedLog,
    ) -> None:
        """Follow nothing yet.

        Args:
            consumer: started, without a group; nobody else may use it while `run` does.
            topic: the broker's name of the topic.
            deliver: is given partition, offset and value of each record, in log order.
            limited_log: takes the warnings about a broker that does not answer.
        """
        self._consumer = consumer
        self._topic = topic
        self._deliver = deliver
        self._limited_log = limited_log
        self._next: dict[int, int] = {}
        self._beginning: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._asked = asyncio.Event()
        self._fetching: asyncio.Future[Any] | None = None
        self._ended = False

    @property
    def partitions(self) -> frozenset[int]:
        """The followed partitions."""
        return frozenset(self._next)

    async def follow(self, partition: int) -> None:
        """Read a partition from now on; returns when its end is known, so that no later record can be missed.

        Raises:
            HushstreamError: the broker does not tell where it ends, or this reader has been stopped.
        """
        if self._ended:
            raise _closed()
        if partition in self._next:
            return
        if partition not in self._beginning:
            begun = self._beginning[partition] = asyncio.create_task(self._begin(partition))
            begun.add_done_callback(partial(self._begun, partition))
        # Shielded: another call may wait for the same partition when this one is cancelled.
        await asyncio.shield(self._beginning[partition])

    async def run(self) -> None:
        """Deliver until cancelled; tries again while a broker does not answer."""
        try:
            while True:
                try:
                    self._widen()
                    await self._fetch()
                except (KafkaError, ConnectionError, TimeoutError) as error:
                    self._limited_log.warning("client: reading answers failed (%s), trying again", type(error).__name__)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            self._ended = True
            for _, waiting in self._wanted.values():
                waiting.set_exception(_closed())
                waiting.exception()  # Marks it as retrieved: else asyncio logs an error if nobody waits any more.

    def _begun(self, partition: int, task: asyncio.Task[None]) -> None:
        del self._beginning[partition]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved, as in `run`.

    async def _begin(self, partition: int) -> None:
        """Ask where a partition ends, in its own task: one without a leader must not delay answers of the others."""
        place = self._at(partition)
        try:
            async with asyncio.timeout(END_SECONDS):
                end = (await self._consumer.end_offsets([place]))[place]
        except (KafkaError, ConnectionError, TimeoutError) as error:
            raise HushstreamError(
                f"client: expected the broker to tell where {self._topic}/{partition} ends, got {type(error).__name__}"
            ) from error
        if self._ended:
            raise _closed()
        known = asyncio.get_running_loop().create_future()
        self._wanted[partition] = end, known
        self._asked.set()
        if self._fetching is not None:
            self._fetching.cancel()
        await known

    def _widen(self) -> None:
        """Add the wanted partitions to the assignment; a new one has no positions, so seek in every partition again."""
        new, self._wanted = self._wanted, {}
        if not new:
            return
        self._next.update({partition: end for partition, (end, _) in new.items()})
        self._consumer.assign([self._at(partition) for partition in self._next])
        for partition, offset in self._next.items():
            self._consumer.seek(self._at(partition), offset)
        for _, known in new.values():
            known.set_result(None)

    async def _fetch(self) -> None:
        """Wait until records come, and deliver them, or until another partition is wanted."""
        self._asked.clear()
        if self._wanted:
            return
        if not self._next:
            await self._asked.wait()
            return
        # No record is lost: a fetch that is cancelled has taken none, and one that has some returns them.
        fetching = self._fetching = asyncio.ensure_future(self._consumer.getmany(timeout_ms=_POLL_MILLISECONDS))
        await asyncio.gather(fetching, return_exceptions=True)
        if not fetching.cancelled():
            self._give(fetching.result())

    def _give(self, found: Mapping[TopicPartition, Iterable[Any]]) -> None:
        for place, records in found.items():
            for record in records:
                self._next[place.partition] = record.offset + 1
                self._deliver(place.partition, record.offset, record.value)

    def _at(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


def _closed() -> HushstreamError:
    return HushstreamError("client: expected answers to be read, the client was closed")


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
