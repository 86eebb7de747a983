"""The log of a deployment whose slots come from devices: reads published topics, and writes to that of slots."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from hushstream.agents.kafka.administration import READ, check_rights
from hushstream.agents.kafka.logs import batches_stay_compressed
from hushstream.agents.process import RateLimitedLog
from hushstream.agents.security import Cluster, Security
from hushstream.client.kafka import KafkaEventLog
from hushstream.engine.declare.declaration import Conversation
from hushstream.engine.records import InputRecord
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_POLL_MS = 1000
_log = logging.getLogger(__name__)

OnRecord = Callable[[str, InputRecord], None]


class SlotLog(Protocol):
    """The operations that a gateway for devices, and whoever ends their rounds, needs on a log."""

    async def start(self, on_record: OnRecord) -> None:
        """Deliver what is published by topic, then return, and deliver later records as they come."""

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it."""

    async def stop(self) -> None:
        """Flush and close."""


class KafkaSlotLog:
    """The log on a Kafka cluster."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        security: Security | None = None,
        *,
        published: tuple[str, ...],
        slots: str = "updates",
        newest: bool = False,
    ) -> None:
        """Name the cluster and the deployment's topic prefix.

        Args:
            bootstrap: ``host:port`` of one or more brokers, separated by commas.
            prefix: what the deployment's topic names begin with.
            security: SASL and TLS.
            published: the topics that are read, each of one partition.
            slots: the topic that is written. No answer comes to a slot: only the release that contains it shows its
                effect.
            newest: whether the last record of each published topic contains all that earlier ones say, so that these
                are not read.

        Raises:
            PlaintextRefused: slots would leave this machine unencrypted.
        """
        self._out = KafkaEventLog(bootstrap, prefix, security=security, topics=Conversation(slots, (), None))
        self._cluster = Cluster(bootstrap, security or Security())
        self._names = {physical(prefix, topic): topic for topic in published}
        self._newest = newest
        self._consumer: AIOKafkaConsumer | None = None
        self._reader: asyncio.Task[None] | None = None
        self._limited_log = RateLimitedLog(_log)

    async def start(self, on_record: OnRecord) -> None:
        """Deliver what is published, then return, and deliver later records as they come.

        Raises:
            AccessDenied: the account may not read what is published, or not write slots.
            HushstreamError: no broker answers, or the deployment's topics do not exist there.
        """
        await self._out.start(_nothing)
        try:
            await check_rights(self._cluster, {name: {READ} for name in self._names})
            self._consumer = AIOKafkaConsumer(
                auto_offset_reset="earliest",
                key_deserializer=batches_stay_compressed,
                enable_auto_commit=False,
                fetch_max_wait_ms=100,
                **self._cluster.client_options(),
            )
            await self._consumer.start()
            await self._catch_up(self._consumer, on_record)
        except KafkaError as error:
            await self.stop()
            raise HushstreamError(f"client: reading what is published failed: {type(error).__name__}") from error
        except BaseException:
            await self.stop()
            raise
        self._reader = asyncio.create_task(self._read(self._consumer, on_record))

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it.

        Raises:
            HushstreamError: the broker refused the record.
        """
        return await self._out.append(topic, partition, value)

    async def stop(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self._consumer is not None:
            await self._consumer.stop()
        self._reader = self._consumer = None
        await self._out.stop()

    async def _catch_up(self, consumer: AIOKafkaConsumer, on_record: OnRecord) -> None:
        assigned = [TopicPartition(name, 0) for name in self._names]
        consumer.assign(assigned)
        await consumer.seek_to_beginning(*assigned)
        ends = await consumer.end_offsets(assigned)
        if self._newest:
            begins = await consumer.beginning_offsets(assigned)
            for place in assigned:
                consumer.seek(place, max(begins[place], ends[place] - 1))
        while any([await consumer.position(place) < ends[place] for place in assigned]):
            await self._deliver(consumer, on_record)

    async def _read(self, consumer: AIOKafkaConsumer, on_record: OnRecord) -> None:
        while True:
            try:
                await self._deliver(consumer, on_record)
            except (KafkaError, ConnectionError, TimeoutError) as error:
                self._limited_log.warning("client: reading what is published failed (%s), again", type(error).__name__)
                await asyncio.sleep(0.5)

    async def _deliver(self, consumer: AIOKafkaConsumer, on_record: OnRecord) -> None:
        for place, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
            for record in records:
                on_record(self._names[place.topic], InputRecord(record.offset, record.timestamp, record.value))


def _nothing(partition: int, offset: int, value: bytes) -> None:
    """Ignore a record: there are no answers to slots."""
