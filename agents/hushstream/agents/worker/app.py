"""Makes the Faust app of a role, with settings that are known to be safe, and passes fetched records on in batches.

Faust runs the group membership, the rebalances and the producer. Records go from its fetch thread to the folds as whole
batches, without an event object or a queue entry for each record. The classes below override private API of
faust-streaming 0.15.3. `PRIVATE_API` lists it, and a test fails when its source changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import faust
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.group_coordinator import CoordinatorGroupRebalance, GroupCoordinator
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import CommitFailedError, ConsumerStoppedError, IllegalStateError, KafkaError
from aiokafka.structs import OffsetAndMetadata
from faust.tables import TableManager
from faust.transport.consumer import Consumer as FaustConsumer
from faust.transport.consumer import Fetcher, ThreadDelegateConsumer
from faust.transport.drivers import aiokafka as driver
from mode.threads import MethodQueue, QueueServiceThread
from yarl import URL

from hushstream.agents.errors import DENIED, JournalLost
from hushstream.agents.kafka.compressed_batches import batches_stay_compressed
from hushstream.agents.kafka.intake import Intake
from hushstream.agents.kafka.logs import as_records
from hushstream.agents.security import CLIENT_ID
from hushstream.agents.settings import BATCH_BYTES, RECORD_BYTES_LIMIT, WorkerSettings

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_PAUSED_POLL_SECONDS = 0.02
_RETRY_SECONDS = 0.2

PRIVATE_API: Mapping[str, Any] = {
    "Consumer._drain_messages": FaustConsumer._drain_messages,
    "Consumer.perform_seek": FaustConsumer.perform_seek,
    "Consumer.verify_all_partitions_active": FaustConsumer.verify_all_partitions_active,
    "Fetcher._fetcher": Fetcher._fetcher.fun,
    "ThreadDelegateConsumer._getmany": ThreadDelegateConsumer._getmany,
    "AIOKafkaConsumerThread._create_worker_consumer": driver.AIOKafkaConsumerThread._create_worker_consumer,
    "AIOKafkaConsumerThread.on_thread_stop": driver.AIOKafkaConsumerThread.on_thread_stop,
    "GroupCoordinator._maybe_leave_group": GroupCoordinator._maybe_leave_group,
    "CoordinatorGroupRebalance.perform_group_join": CoordinatorGroupRebalance.perform_group_join,
    "AIOKafkaConsumerThread._seek_wait": driver.AIOKafkaConsumerThread._seek_wait,
    "AIOKafkaConsumerThread._fetch_records": driver.AIOKafkaConsumerThread._fetch_records,
    "AIOKafkaConsumerThread._highwaters": driver.AIOKafkaConsumerThread._highwaters,
    "QueueServiceThread.method_queue": QueueServiceThread.method_queue.fget,
    "QueueServiceThread.call_thread": QueueServiceThread.call_thread,
    "Consumer._new_consumer_thread": driver.Consumer._new_consumer_thread,
    "TableManager.on_start": TableManager.on_start,
    "Producer._settings_default": driver.Producer._settings_default,
}
"""The private functions of Faust and aiokafka that the classes below override or call."""


class BulkConsumerThread(driver.AIOKafkaConsumerThread):  # type: ignore[misc] # faust is untyped here
    """The fetch thread: assigns co-partitioned inputs together, waits briefly for records, and commits with a mark."""

    _method_queue: MethodQueue | None

    @property
    def method_queue(self) -> MethodQueue:
        """The queue of calls into the thread. It runs four at once (Faust's: two), so no commit waits for a fetch."""
        if self._method_queue is None:
            self._method_queue = MethodQueue(num_workers=4, loop=self.thread_loop, beacon=self.beacon)
        return self._method_queue

    def _create_worker_consumer(self, transport: Any) -> AIOKafkaConsumer:
        settings: WorkerSettings = self.app.hushstream_settings
        conf = self.app.conf
        # Faust's round-robin assignor could give the contexts and the clicks of one partition to different workers.
        # The range assignor keeps them together, because all inputs of a role have the same number of partitions.
        self._assignor = RangePartitionAssignor
        return AIOKafkaConsumer(
            **settings.client_options(),
            group_id=conf.id,
            group_instance_id=self.app.hushstream_instance,
            key_deserializer=batches_stay_compressed,
            partition_assignment_strategy=[self._assignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            max_poll_interval_ms=int(conf.broker_max_poll_interval * 1000),
            max_partition_fetch_bytes=conf.consumer_max_fetch_size,
            fetch_max_wait_ms=settings.fetch_wait_milliseconds,
            request_timeout_ms=int(conf.broker_request_timeout * 1000),
            session_timeout_ms=int(conf.broker_session_timeout * 1000),
            rebalance_timeout_ms=int(conf.broker_rebalance_timeout * 1000),
            heartbeat_interval_ms=int(conf.broker_heartbeat_interval * 1000),
        )

    @property
    def member_id(self) -> str:
        """This process's member id in the group; empty before it has joined."""
        consumer = self._consumer
        return "" if consumer is None else str(getattr(consumer._coordinator, "member_id", ""))

    async def on_thread_stop(self) -> None:
        """Leave the group; Faust calls this. aiokafka alone would let a static member's session run out."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        if coordinator is not None:
            coordinator._group_instance_id = None
        await super().on_thread_stop()

    async def commit_marked(self, offsets: Mapping[Any, tuple[int, str]]) -> bool:
        """Commit (offset, mark) for assigned partitions; False if the commit failed and is to be tried again."""
        return bool(await self.call_thread(self._commit_marked, offsets))

    async def _commit_marked(self, offsets: Mapping[Any, tuple[int, str]]) -> bool:
        consumer = self._ensure_consumer()
        try:
            await consumer.commit(
                {driver.ensure_aiokafka_TP(tp): OffsetAndMetadata(*place) for tp, place in offsets.items()}
            )
        except (CommitFailedError, IllegalStateError):
            return False  # a rebalance came first: the next owner commits
        except DENIED:
            raise
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("commit failed (%s), trying again", type(error).__name__)
            return False
        return True


class BulkConsumer(driver.Consumer):  # type: ignore[misc] # faust is untyped here
    """Delivers each fetch as a whole to the buffers of the intake."""

    def _new_consumer_thread(self) -> BulkConsumerThread:
        return BulkConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def intake(self) -> Intake:
        """The buffers that fetched records go into."""
        found: Intake = self.app.hushstream_intake
        return found

    async def perform_seek(self) -> None:
        """Seek to the offsets at which the machines go on, not to the committed ones, which may be further back."""
        await self._seek_wanted()

    async def verify_all_partitions_active(self) -> None:
        """Do nothing: Faust's livelock warnings are about its own streams and acks, which are not used here."""

    async def _drain_messages(self, fetcher: Any) -> None:
        """Fetch until the consumer is stopped; Faust's fetcher service calls this."""
        try:
            while not (self._stopped.is_set() or fetcher._stopped.is_set()):
                if not self.flow_active:
                    await self.wait(self.can_resume_flow)
                    continue
                await self._fetch_once()
        except self.consumer_stopped_errors:
            if not self.app.should_stop:
                raise

    async def _fetch_once(self) -> None:
        intake = self.intake
        try:
            await self._seek_wanted()
            sources = intake.open_sources()
            if not sources:
                await intake.wait_for_capacity(_POLL_SECONDS)
                return
            epoch = intake.epoch
            timeout = _PAUSED_POLL_SECONDS if intake.any_full else _POLL_SECONDS
            found = await self._thread.getmany({driver.TP(*source) for source in sources}, timeout)
        except (*DENIED, ConsumerStoppedError):
            raise
        except IllegalStateError:
            await asyncio.sleep(_RETRY_SECONDS)  # the partition was revoked, and its buffers are detached with it
            return
        except (KafkaError, ConnectionError, TimeoutError) as error:
            logger.warning("fetch failed (%s), trying again", type(error).__name__)
            await asyncio.sleep(_RETRY_SECONDS)
            return
        if epoch == intake.epoch and self.flow_active:
            for place, fetched in found.items():
                await self._deliver(place, fetched)

    async def _deliver(self, place: Any, fetched: list[Any]) -> None:
        buffer = self.intake.get((place.topic, place.partition))
        if buffer is None or buffer.offer(as_records(fetched)):
            return
        first = (await self._thread.earliest_offsets(place))[place]
        if first > buffer.next_offset:
            # The recovery that follows says what is lost, and whether the operator has accepted the loss.
            buffer.failed(
                JournalLost(
                    f"{buffer.source[0]}/{buffer.source[1]}: must be read from offset {buffer.next_offset}, "
                    f"but the log begins at {first}"
                )
            )

    async def _seek_wanted(self) -> None:
        intake = self.intake
        wanted = intake.seeks()
        if not wanted:
            return
        assigned = self.assignment()
        places = {driver.TP(*source): offset for source, offset in wanted.items() if source in assigned}
        await self._thread.seek_wait(places)
        for place in places:
            buffer = intake.get((place.topic, place.partition))
            if buffer is not None and buffer.next_offset == places[place]:
                buffer.sought()


class IdempotentProducer(driver.Producer):  # type: ignore[misc] # faust is untyped here
    """Faust's producer, made idempotent: a retry writes no record twice, and records keep their order."""

    def _settings_default(self) -> Mapping[str, Any]:
        settings: WorkerSettings = self.app.hushstream_settings
        defaults = dict(super()._settings_default())
        return {**defaults, "acks": "all", "enable_idempotence": True, **settings.client_options()}

    def _settings_auth(self) -> Mapping[str, Any]:
        settings: WorkerSettings = self.app.hushstream_settings
        return settings.security.client_options()


class NoTables(TableManager):  # type: ignore[misc] # faust is untyped here
    """Faust's recovery service, without the second that it waits for tables: this app has none."""

    async def on_start(self) -> None:
        """Start at once; Faust calls this."""
        await self._update_channels()
        await self.recovery.start()


class BulkTransport(driver.Transport):  # type: ignore[misc] # faust is untyped here
    """The aiokafka transport with the consumer and producer above."""

    Consumer = BulkConsumer
    Producer = IdempotentProducer


for _service in (BulkConsumerThread, BulkConsumer, IdempotentProducer, NoTables):
    _service.logger = driver.logger  # Faust logs the life cycle of these services


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
    broker = [URL(f"kafka://{server}") for server in settings.cluster.servers]
    app = faust.App(
        settings.group,
        broker=broker,
        datadir=str(settings.datadir / "faust" / settings.role),
        store="memory://",
        TableManager=NoTables,
        HttpClient=object,  # as in `hushstream.agents.kafka.faust_types`: it is never made
        processing_guarantee="at_least_once",
        broker_client_id=CLIENT_ID,
        broker_session_timeout=settings.session_timeout_seconds,
        broker_heartbeat_interval=settings.heartbeat_seconds,
        broker_commit_interval=settings.commit_interval_seconds,
        consumer_auto_offset_reset="earliest",
        producer_acks=-1,
        producer_linger=settings.linger_milliseconds / 1000,
        producer_max_batch_size=BATCH_BYTES,
        producer_max_request_size=RECORD_BYTES_LIMIT,
        stream_wait_empty=False,
        stream_recovery_delay=0.0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=0,
        web_enabled=False,
        web_bind="127.0.0.1",
        web_host="127.0.0.1",
    )
    app.hushstream_settings = settings
    app.hushstream_intake = intake
    app.hushstream_instance = instance
    app.finalize()
    app.transport = BulkTransport(broker, app)
    app.producer_transport = app.transport
    for name in inputs:
        # The topics need no agent: Faust's conductor subscribes to them, and our consumer puts their records into the
        # intake.
        app.topics.add(app.topic(settings.physical(name), key_type=bytes, value_type=bytes, key_serializer="raw"))
    return app
