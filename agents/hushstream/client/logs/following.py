"""Reads a deployment's answers for one client: the partitions that it has asked in, and no others.

A client that read all partitions would receive what every other process of the application was answered, too: the
traffic would grow with the number of processes, at one rate of questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from hushstream.agents.observe.rate_limited_log import RateLimitedLog
from hushstream.schemas.errors import HushstreamError

_POLL_MILLISECONDS = 1000

_RETRY_SECONDS = 0.5
END_SECONDS = 5.0
"""How long a first question of a partition waits for the broker to tell where its answers end."""


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
            quiet: is told of a broker that is away.
        """
        self._consumer = consumer
        self._topic = topic
        self._deliver = deliver
        self._limited_log = limited_log
        self._next: dict[int, int] = {}
        self._beginning: dict[int, asyncio.Task[None]] = {}
        self._wanted: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._asked = asyncio.Event()
        self._ended = False

    @property
    def partitions(self) -> frozenset[int]:
        """The followed partitions."""
        return frozenset(self._next)

    async def follow(self, partition: int) -> None:
        """Read a partition from now on; returns when nothing that is appended to it later can be missed.

        Raises:
            HushstreamError: the broker does not tell where it ends, or nothing is read any more.
        """
        if self._ended:
            raise _closed()
        if partition in self._next:
            return
        if partition not in self._beginning:
            begun = self._beginning[partition] = asyncio.create_task(self._begin(partition))
            begun.add_done_callback(partial(self._begun, partition))
        # Others may wait for the same partition.
        await asyncio.shield(self._beginning[partition])

    async def run(self) -> None:
        """Deliver until cancelled; a broker that is away is waited for."""
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
                waiting.exception()  # Known to be there, also when nobody waits any more.

    def _begun(self, partition: int, task: asyncio.Task[None]) -> None:
        del self._beginning[partition]
        if not task.cancelled():
            task.exception()  # Known to be there, also when nobody waits any more.

    async def _begin(self, partition: int) -> None:
        """Beside the reading: a partition that has no leader now keeps nobody from the answers of the others."""
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
        await known

    def _widen(self) -> None:
        """Assign the wanted partitions too; a new assignment knows no positions, so each is sought again."""
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
        """Deliver what is there, or wait for it, or for another partition that is wanted."""
        self._asked.clear()
        if self._wanted:
            return
        if not self._next:
            await self._asked.wait()
            return
        fetching = asyncio.create_task(self._consumer.getmany(timeout_ms=_POLL_MILLISECONDS))
        asked = asyncio.create_task(self._asked.wait())
        try:
            await asyncio.wait((fetching, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Cancelled while it waits, a fetch has taken nothing yet; what it had taken, it returns.
            for task in (fetching, asked):
                task.cancel()
            await asyncio.wait((fetching, asked))
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
