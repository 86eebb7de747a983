"""The Faust app of a role: one agent over all inputs, which gets what a fetch brought of a partition as one event.

Faust runs the group, the rebalances, the fetches and the timers. Its own form of an event is one record, and costs a
queue entry and several objects for each. Here an event is a whole fetch of a partition (`WholeFetches`), so a record
costs a few microseconds. The agent puts the records into the buffer of its input, from where the driver of the home
partition folds them (`hushstream.agents.partition.driver`).

What is used of Faust and aiokafka is public, but for `PRIVATE_NAMES`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from faust.app.base import BootStrategy
from faust.tables import TableManager
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.transports import SchedulingStrategyT

from hushstream.agents.kafka.intake import Intake
from hushstream.agents.kafka.logs import batches_stay_compressed
from hushstream.agents.security import CLIENT_ID
from hushstream.agents.settings import WorkerSettings

PRIVATE_NAMES: Mapping[str, str] = {
    "faust.transport.drivers.aiokafka.Consumer._new_consumer_thread": (
        "gives Faust the fetch thread below, which no setting names"
    ),
    "faust.transport.drivers.aiokafka.AIOKafkaConsumerThread._create_worker_consumer": (
        "makes the consumer: Faust has no setting for how long a fetch waits (1.5 s, during which no other partition "
        "of that broker is fetched), for the deserializer that keeps batches compressed, and for the metadata of a "
        "commit"
    ),
    "aiokafka.consumer.fetcher.PartitionRecords": (
        "is where a batch is decompressed: a megabyte on the wire may be a gigabyte in memory "
        "(`hushstream.agents.kafka.logs.batches_stay_compressed`)"
    ),
}
"""Every private name of a library that agents use, with the reason; a test fails when its source changes."""


class Fetch:
    """All records of one partition in one fetch, with the attributes that Faust reads of a record."""

    __slots__ = (
        "checksum", "headers", "key", "offset", "partition", "serialized_key_size", "serialized_value_size",
        "timestamp", "timestamp_type", "topic", "value",
    )  # fmt: skip

    def __init__(self, place: Any, records: Sequence[Any]) -> None:
        """Stand at the offset and the time of the last record."""
        last = records[-1]
        self.topic, self.partition, self.offset = place.topic, place.partition, last.offset
        self.timestamp, self.timestamp_type = last.timestamp, last.timestamp_type
        self.key, self.value, self.headers = None, records, ()
        self.checksum = self.serialized_key_size = self.serialized_value_size = None


class WholeFetches(SchedulingStrategyT):  # type: ignore[misc] # faust is untyped here
    """Makes one event of what a fetch brought of a partition."""

    def iterate(self, records: Mapping[Any, Sequence[Any]]) -> Iterator[tuple[Any, Fetch]]:
        """Each partition once; Faust calls this for each fetch."""
        for place, found in records.items():
            if found:
                yield place, Fetch(place, found)


class FetchThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc] # faust is untyped here
    """Faust's fetch thread, with a consumer of ours.

    Attributes:
        kafka: the consumer; None before the thread has started.
    """

    kafka: AIOKafkaConsumer | None = None

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        settings: WorkerSettings = self.app.hushstream_settings
        conf = self.app.conf
        self.kafka = AIOKafkaConsumer(
            **settings.client_options(),
            group_id=conf.id,
            group_instance_id=conf.consumer_group_instance_id,
            key_deserializer=batches_stay_compressed,
            # All inputs of a role have the same number of partitions: ranges keep those of one number together.
            partition_assignment_strategy=[RangePartitionAssignor],
            enable_auto_commit=False,
            auto_offset_reset=conf.consumer_auto_offset_reset,
            # A topic that is made again is assigned again when the metadata is read again.
            metadata_max_age_ms=5_000,
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=settings.fetch_wait_milliseconds,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
        )
        return self.kafka

    def pause(self, place: TP, paused: bool) -> None:
        """Fetch a partition no further, or fetch it again.

        Faust's own way lets the partitions of the next poll be chosen. A poll that has begun waits for a second, so
        what may be fetched again meanwhile would wait, too.
        """
        self.thread_loop.call_soon_threadsafe(self._pause, place, paused)

    def _pause(self, place: TP, paused: bool) -> None:
        if self.kafka is not None and place in self.kafka.assignment():
            (self.kafka.pause if paused else self.kafka.resume)(BrokerPartition(*place))


class FetchingConsumer(driver.Consumer):  # type: ignore[misc] # faust is untyped here
    """Faust's consumer, with the fetch thread above as `thread`."""

    thread: FetchThread

    def _new_consumer_thread(self) -> FetchThread:
        self.thread = FetchThread(self, loop=self.loop, beacon=self.beacon)
        return self.thread


class FetchingTransport(driver.Transport):  # type: ignore[misc] # faust is untyped here
    """The aiokafka transport with the consumer above."""

    Consumer = FetchingConsumer


class NoTables(TableManager):  # type: ignore[misc] # faust is untyped here
    """Faust's recovery service, without the second that it waits for tables to be declared: this app has none."""

    async def on_start(self) -> None:
        """Start at once; Faust calls this."""
        await self.recovery.start()

    async def wait_until_tables_registered(self) -> None:
        """Return at once; Faust calls this before it subscribes."""


class OwnProducer(BootStrategy):  # type: ignore[misc] # faust is untyped here
    """Starts no producer of Faust's, which cannot be idempotent: `hushstream.agents.kafka.stream.Stream` has one."""

    enable_kafka_producer = False


class RoleApp(faust.App):  # type: ignore[misc] # faust is untyped here
    """A Faust app that starts as above."""

    BootStrategy = OwnProducer


for _service in (FetchThread, FetchingConsumer, NoTables):
    _service.logger = logging.getLogger("faust.hushstream")  # Faust logs the life cycle of these services


def make_app(settings: WorkerSettings, inputs: tuple[str, ...], intake: Intake, instance: str | None = None) -> Any:
    """The Faust app of one worker.

    Args:
        settings: see `WorkerSettings`.
        inputs: the co-partitioned input topics, by logical name.
        intake: where fetched records go.
        instance: the instance id (static membership) by which the group recognizes this worker after a restart.

    Returns:
        A `faust.App` that is not started yet.
    """
    app = RoleApp(
        settings.group,
        broker=[f"kafka://{server}" for server in settings.cluster.servers],
        datadir=str(settings.datadir / "faust" / settings.role),
        store="memory://",
        TableManager=NoTables,
        ConsumerScheduler=WholeFetches,
        processing_guarantee="at_least_once",
        broker_client_id=CLIENT_ID,
        broker_session_timeout=settings.session_timeout_seconds,
        broker_heartbeat_interval=settings.heartbeat_seconds,
        broker_commit_interval=_NEVER_SECONDS,
        consumer_auto_offset_reset="earliest",
        consumer_group_instance_id=instance,
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        web_enabled=False,
        web_bind="127.0.0.1",
        web_host="127.0.0.1",
    )
    app.hushstream_settings = settings
    app.finalize()
    app.transport = FetchingTransport(app.conf.broker_consumer, app)
    intake.use(app)
    # Faust acknowledges nothing (``acks=False``): what may be committed is what was released, as only a driver knows.
    names = map(settings.physical, inputs)
    log = app.topic(*names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=False)

    @app.agent(log, name=settings.role)  # type: ignore[untyped-decorator] # faust is untyped here
    async def fold(stream: Any) -> None:
        """Put the records of each fetch into the buffer of their input."""
        async for event in stream.events():
            intake.take(event.message.tp, event.message.value)

    return app


_NEVER_SECONDS = 1e9
"""Faust commits nothing by itself, and need not look whether it could."""
