"""Reads the inputs that every worker reads in full, without a group: one consumer for all of its partitions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.errors import KafkaError

from hushstream.agents.kafka.compressed_batches import batches_stay_compressed
from hushstream.agents.kafka.intake import InputBuffer
from hushstream.agents.kafka.logs import as_records
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.records import TopicPartition

logger = logging.getLogger(__name__)

_POLL_MILLISECONDS = 200
_RETRY_SECONDS = 0.5


class BroadcastReader:
    """Reads broadcast partitions and offers every record to each buffer that wants it.

    If a new buffer starts at an earlier offset, the consumer seeks back to it, and the other buffers drop what they
    have already seen. Broadcast inputs are few and small (models), so this costs little.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        """Prepare; `run` does the work."""
        self._settings = settings
        self._buffers: dict[TopicPartition, list[InputBuffer]] = {}
        self._changed = asyncio.Event()
        self._stale = False

    def attach(self, buffers: Iterable[InputBuffer]) -> None:
        """Deliver to these buffers from now on, each from its position."""
        for buffer in buffers:
            self._buffers.setdefault(buffer.source, []).append(buffer)
            self._changed_now()

    def detach(self, buffers: Iterable[InputBuffer]) -> None:
        """Deliver to these buffers no longer."""
        for buffer in buffers:
            readers = self._buffers.get(buffer.source, [])
            if buffer in readers:
                readers.remove(buffer)
        self._changed_now()

    async def run(self) -> None:
        """Read until cancelled; while no broker answers, try again."""
        while True:
            await self._changed.wait()
            consumer = AIOKafkaConsumer(
                **self._settings.client_options(),
                group_id=None,
                key_deserializer=batches_stay_compressed,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                fetch_max_wait_ms=self._settings.fetch_wait_milliseconds,
            )
            try:
                await consumer.start()
                await self._read(consumer)
            except (KafkaError, ConnectionError, TimeoutError) as error:
                logger.warning("broadcast inputs: %s, trying again", type(error).__name__)
                self._stale = True
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                await consumer.stop()

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        self._stale = True
        while True:
            if self._stale:
                self._assign(consumer)
            if not consumer.assignment():
                self._changed.clear()
                await self._changed.wait()
                continue
            if any(b.full for readers in self._buffers.values() for b in readers):
                await asyncio.sleep(_POLL_MILLISECONDS / 1000)
                continue
            found = await consumer.getmany(timeout_ms=_POLL_MILLISECONDS)
            if not self._stale:
                self._deliver(found)

    def _assign(self, consumer: AIOKafkaConsumer) -> None:
        self._stale = False
        wanted = {source: readers for source, readers in self._buffers.items() if readers}
        consumer.assign([self._at(source) for source in wanted])
        for source, readers in wanted.items():
            consumer.seek(self._at(source), min(buffer.next_offset for buffer in readers))
            for buffer in readers:
                buffer.sought()

    def _deliver(self, found: dict[BrokerPartition, list[object]]) -> None:
        prefix = len(self._settings.topic_prefix)
        for place, fetched in found.items():
            records = as_records(fetched)
            for buffer in self._buffers.get((place.topic[prefix:], place.partition), ()):
                if not buffer.offer(records):
                    self._stale = True

    def _changed_now(self) -> None:
        self._stale = True
        self._changed.set()

    def _at(self, source: TopicPartition) -> BrokerPartition:
        return BrokerPartition(self._settings.physical(source[0]), source[1])
