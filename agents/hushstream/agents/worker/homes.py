"""Runs a worker's home partitions: starts them when they are assigned, and stops them when they are revoked.

*Broadcast.* Reads the inputs that every worker reads in full, without a group: one consumer for all of its partitions.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as BrokerPartition
from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from hushstream.agents.datadir import DatadirUnusable
from hushstream.agents.errors import DENIED, AllStopped, DiskRefused, JournalLost, PartitionError, code_of, from_client
from hushstream.agents.kafka.administration import committed_marks, pack_mark
from hushstream.agents.kafka.intake import InputBuffer, Intake
from hushstream.agents.kafka.logs import LogReader, as_records, batches_stay_compressed, partition_counts
from hushstream.agents.kafka.stream import Stream
from hushstream.agents.observe.metrics import Metrics
from hushstream.agents.partition.driver import PartitionDriver, Tools
from hushstream.agents.recovery.journal import genesis_of
from hushstream.agents.recovery.losses import NeededWords
from hushstream.agents.recovery.marks import ForeignRecords, HighWater, ReleaseMarks
from hushstream.agents.recovery.recovery import Observe, Recovery, Superseded
from hushstream.agents.recovery.snapshots import MachineFactory, RecoveredMachine, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.preflight import RoleTopics
from hushstream.engine.journal.chain import OtherRelease
from hushstream.engine.journal.notes import NoteSeal
from hushstream.engine.records import ReplayMismatch, TopicPartition
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import PartitionRule

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


logger = logging.getLogger(__name__)

_STOPS_ONE = (PartitionError, ReplayMismatch, OtherRelease)
"""Errors that stop one partition; the other partitions go on."""
_RELOAD_SECONDS = (0.05, 0.2, 0.5, 1.0, 2.0, 5.0)
_COMMIT_TIMEOUT_SECONDS = 5.0
_RENEW_SECONDS = 2.0
"""A commit is renewed after this time, even if nothing has changed. So its age shows whether the group's coordinator
still answers, and still knows this worker."""
_FORGOTTEN = 6
"""A refusal of the disk no longer counts after this many times `WorkerSettings.let_go_seconds`. That is longer than any
pause between two attempts to write."""

_DRAIN_SHARE = 0.4
"""Share of the session timeout that giving up partitions may take, so that this worker still owns them at the end."""


class Homes:
    """Holds the drivers of the partitions that are owned now, and the machines of those that were owned before."""

    def __init__(
        self,
        settings: WorkerSettings,
        make_machine: MachineFactory,
        topics: RoleTopics,
        stream: Stream,
        intake: Intake,
        metrics: Metrics,
        observe: Observe,
        fatal: Callable[[BaseException], None],
    ) -> None:
        """Own no partition yet. The first input is the home topic; ``fatal`` takes an error that ends the worker."""
        self._settings = settings
        self._make_machine = make_machine
        self._inputs = topics.inputs
        self._home_topic, self._journal = topics.inputs[0], topics.journal
        self._followed = topics.followed
        self._stream = stream
        self._intake = intake
        self._metrics = metrics
        self._fatal = fatal
        self._snapshots = SnapshotStore(settings, make_machine)
        remedy = settings.command(f"logs check --role {settings.role}")
        self._foreign = ForeignRecords(metrics.foreign, self._is_note, remedy)
        self._words = NeededWords()
        self._marks = _marks(settings, make_machine, topics, stream, self._foreign, self._words)
        self._states = _states(settings, make_machine, topics, stream, self._snapshots, self._foreign)
        self.broadcast = BroadcastReader(settings)
        self._tools = Tools(
            settings, stream, self._snapshots, self._marks, self._states, metrics, observe,
            stream.end_offsets, stream.fetched_end, stream.read_journal, intake.notify_capacity, self._on_lost,
            self._foreign,
        )  # fmt: skip
        self.drivers: dict[int, PartitionDriver] = {}
        self._cache: dict[int, RecoveredMachine] = {}
        self._stopped: dict[int, str] = {}
        self._attempts: dict[int, int] = {}
        self._refusing: tuple[float, float] | None = None
        """When the disk first and last refused a write; None after a release has succeeded."""
        self._reloading: set[asyncio.Task[None]] = set()
        self._assigned = 0
        self._epoch = 0
        self._lock = asyncio.Lock()

    @property
    def occupied(self) -> bool:
        """Whether a partition is owned (running or stopped), or is being assigned or revoked."""
        return bool(self.drivers or self._stopped or self._reloading) or self._lock.locked()

    @property
    def snapshot_age(self) -> float:
        """Seconds since the last save of the partition whose state was saved longest ago, running or in recovery."""
        return max((self._tools.clock() - saved for saved in self._tools.saved.values()), default=0.0)

    @property
    def published_age(self) -> float:
        """Seconds since the last published state of the partition that published longest ago; 0 if none is known."""
        return 0.0 if self._states is None else self._states.age(self.drivers.keys())

    async def require_same_configuration(self, homes: int) -> None:
        """Compare the configuration and the key with those that the role's journals began with; call before joining.

        If the refusal came only after joining, the group would rebalance twice, and all other workers would stop and
        recover their partitions each time. All journals of a role begin with the same configuration and key, so the
        first one that can be read is enough.

        Raises:
            HushstreamError: the configuration or the key is another one; says which.
        """
        journals = [(self._journal, home) for home in range(homes)]
        async with LogReader(self._settings) as reader:
            firsts, ends = await reader.first_offsets(journals), await reader.end_offsets(journals)
            for journal in journals:
                if ends[journal] and await self._has_same_configuration(journal, firsts[journal], reader):
                    return

    async def _has_same_configuration(self, journal: TopicPartition, first: int, reader: LogReader) -> bool:
        """Compare with a journal's first record, or a published state if that was deleted; False without either."""
        if first == 0:
            return await genesis_of(reader, self._make_machine, journal, before=1) is not None
        if self._states is None:
            return False
        async with aclosing(self._states.candidates(journal[1], reader, [])) as candidates:
            async for found in candidates:
                genesis = found.head.genesis
                self._make_machine.of_journal(journal[1], genesis, resumed=True).start(genesis)
                return True
        return False

    async def on_assigned(self) -> None:
        """Recover and start every assigned partition, unless a newer rebalance begins before that is done."""
        self._epoch += 1
        epoch = self._epoch
        async with self._lock:
            homes = self._stream.assigned(self._home_topic)
            self._assigned = len(homes)
            self._show()
            await self._bring_up(sorted(homes - self.drivers.keys()), epoch)

    async def on_revoked(self, *, snapshot: bool) -> None:
        """Stop all folds, wait for the acknowledgements of what was sent, and commit; no window is closed early."""
        self._epoch += 1
        async with self._lock:
            drivers, self.drivers = self.drivers, {}
            timeout = self._settings.session_timeout_seconds * _DRAIN_SHARE
            recovered = await asyncio.gather(*(driver.close(timeout, snapshot) for driver in drivers.values()))
            await self._commit(drivers)
            for (partition, driver), machine in zip(drivers.items(), recovered, strict=True):
                self._detach(driver)
                if machine is not None:
                    self._cache[partition] = machine
            self._stopped.clear()
            self._tools.saved.clear()
            self._assigned = 0
        self._show()

    async def commit(self) -> None:
        """Commit what was released since the last commit; does nothing during a rebalance."""
        if not self._lock.locked():
            await self._commit(dict(self.drivers), renew=self._stream.commit_age >= _RENEW_SECONDS)

    def cancel(self) -> None:
        """Cancel all reloads that wait."""
        for task in self._reloading:
            task.cancel()

    async def _bring_up(self, partitions: list[int], epoch: int) -> None:
        """Recover machines and start their drivers; the caller holds the lock."""
        if not partitions:
            return
        generation = self._stream.generation

        def still_owner() -> bool:
            return self._epoch == epoch and self._stream.generation == generation

        recovery = Recovery(
            self._settings, self._make_machine, self._stream, self._snapshots, still_owner, self._marks, self._states,
            self._followed, self._foreign, self._words,
        )  # fmt: skip
        try:
            # A machine may read only some of its role's inputs, and commits only those.
            marks = await committed_marks(self._settings, [(topic, p) for topic in self._inputs for p in partitions])
        except Exception as error:  # noqa: BLE001 - judged below, together with what the recoveries met
            self._judge(partitions, [error] * len(partitions))
            return
        found = await asyncio.gather(
            *(self._recover(recovery, p, [marks.get((topic, p)) for topic in self._inputs]) for p in partitions),
            return_exceptions=True,
        )
        self._judge(partitions, found)

    def _judge(self, partitions: list[int], found: Sequence[BaseException | None]) -> None:
        """Act on the outcome of each recovery.

        No error may leave this method: in Faust's signal handler it would end the app silently.
        """
        for partition, error in zip(partitions, found, strict=True):
            if isinstance(error, _STOPS_ONE):
                self._stop_partition(partition, error)
            elif isinstance(error, (*DENIED, OutOfOrderSequenceNumber)):
                self._fatal(from_client(error, "recovering"))
            elif isinstance(error, (KafkaError, ConnectionError, TimeoutError, JournalLost)):
                told = error if isinstance(error, JournalLost) else type(error).__name__
                logger.warning("partition %d: recovery failed (%s), trying again", partition, told)
                self._reload_later(partition, error)
            elif error is not None and not isinstance(error, Superseded):
                self._fatal(error)

    async def _recover(self, recovery: Recovery, partition: int, metadata: Sequence[str | None]) -> None:
        started = time.monotonic()
        commits = [found for found in metadata if found is not None]
        recovered = await recovery.run(partition, commits, self._cache.pop(partition, None))
        if not recovery.still_owner():
            raise Superseded
        seconds = time.monotonic() - started
        self._metrics.recovered(seconds)
        for word in self._words.not_needed(partition, self._settings.accept_loss):
            logger.warning(
                "partition %d: nothing was refused that --accept-loss %s accepts; look for a typing error, or take the "
                "word away", partition, word,
            )  # fmt: skip
        logger.info(
            "partition %d: at journal record %d (%d replayed, %d outputs sent again, %.2f s)",
            partition, recovered.sequence, recovered.replayed, recovered.resent, seconds,
        )  # fmt: skip
        self._start(partition, recovered)

    def _start(self, partition: int, recovered: RecoveredMachine) -> None:
        driver = PartitionDriver(partition, recovered, self._tools)
        self.drivers[partition] = driver
        self._intake.attach({self._physical(buffer.source): buffer for buffer in driver.inputs})
        self.broadcast.attach(driver.broadcasts)
        driver.start()
        self._show()

    def _detach(self, driver: PartitionDriver) -> None:
        self._intake.detach([self._physical(buffer.source) for buffer in driver.inputs])
        self.broadcast.detach(driver.broadcasts)

    def _on_lost(self, partition: int, reason: BaseException) -> None:
        """Handle a driver that cannot go on: reload its partition, stop it, or end the worker."""
        driver = self.drivers.pop(partition, None)
        if driver is None:
            return
        self._detach(driver)
        self._show()
        if isinstance(reason, JournalLost):
            logger.warning("partition %d: %s; reloading from the journal", partition, reason)
            self._reload_later(partition, reason)
        elif isinstance(reason, _STOPS_ONE):
            self._stop_partition(partition, reason)
        else:
            self._fatal(reason)

    def _reload_later(self, partition: int, reason: BaseException) -> None:
        self._metrics.reloaded()
        if isinstance(reason, DiskRefused):
            self._leave_if_disk_refuses(reason)
        attempt = self._attempts.get(partition, 0)
        self._attempts[partition] = attempt + 1
        delay = _RELOAD_SECONDS[min(attempt, len(_RELOAD_SECONDS) - 1)]
        task = asyncio.create_task(self._reload(partition, self._epoch, delay))
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    def _leave_if_disk_refuses(self, reason: DiskRefused) -> None:
        """Leave the group if the disk keeps refusing writes, so that a worker with another disk can take over."""
        now, limit = time.monotonic(), self._settings.let_go_seconds
        first, last = self._refusing or (now, now)
        # Forget a refusal of long ago: the partition may have had nothing to release since, so nothing cleared it.
        first = now if now - last > _FORGOTTEN * limit else first
        self._refusing = (first, now)
        if now - first >= limit:
            self._fatal(DatadirUnusable(f"nothing could be released for {limit:g} s: {reason}"))

    async def _reload(self, partition: int, epoch: int, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        async with self._lock:
            owned = partition in self._stream.assigned(self._home_topic)
            if self._epoch == epoch and partition not in self.drivers and owned:
                await self._bring_up([partition], epoch)

    def _stop_partition(self, partition: int, reason: HushstreamError) -> None:
        """Stop one partition for good; the others go on."""
        code = code_of(reason)
        self._stopped[partition] = code
        said = f"partition {partition} stopped ({code}): {reason}"
        logger.error("%s", said)
        self._show()
        if not self.drivers and set(self._stopped) >= self._stream.assigned(self._home_topic):
            self._fatal(AllStopped(said, code))

    def _is_note(self, partition: int, value: bytes) -> bool:
        settings = self._settings
        seal = NoteSeal(settings.deployment, settings.role, partition, self._make_machine.state_keys())
        return seal.unpack(value) is not None

    async def _commit(self, drivers: Mapping[int, PartitionDriver], renew: bool = False) -> None:
        """Commit all these partitions in one request."""
        found = {p: c for p, driver in drivers.items() if (c := driver.committable(renew)) is not None}
        places: dict[TopicPartition, tuple[int, str]] = {}
        for partition, (offsets, mark) in found.items():
            metadata = pack_mark(drivers[partition].label, mark)
            places.update({source: (offset, metadata) for source, offset in offsets.items()})
        if not places:
            return
        try:
            async with asyncio.timeout(_COMMIT_TIMEOUT_SECONDS):
                done = await self._stream.commit(places)
        except TimeoutError:
            return
        if done:
            for partition, place in found.items():
                self._attempts.pop(partition, None)
                self._refusing = None
                drivers[partition].committed(*place)

    def _physical(self, source: TopicPartition) -> Any:
        return (self._settings.physical(source[0]), source[1])

    def _show(self) -> None:
        self._metrics.partitions(self._assigned, len(self.drivers), len(self._stopped))
        self._metrics.stopped(self._stopped)


def _marks(
    settings: WorkerSettings,
    make_machine: MachineFactory,
    topics: RoleTopics,
    stream: Stream,
    foreign: ForeignRecords,
    words: NeededWords,
) -> ReleaseMarks | None:
    """The store of a role's release marks; None if the role has none."""
    if topics.marks is None:
        return None
    disk = HighWater(settings)
    return ReleaseMarks(
        settings, topics.marks, topics.evidence, topics.declared, make_machine, stream, disk, foreign, words
    )


def _states(
    settings: WorkerSettings,
    make_machine: MachineFactory,
    topics: RoleTopics,
    stream: Stream,
    snapshots: SnapshotStore,
    foreign: ForeignRecords,
) -> PublishedStates | None:
    """The store of a role's published states; None if the role has no state topic."""
    if topics.state is None:
        return None
    ends = OutputEnds(settings, topics)
    return PublishedStates(settings, topics.state, make_machine, stream, snapshots, ends, foreign)


@dataclass(frozen=True, slots=True)
class OutputEnds:
    """Asks the broker for the ends of a role's outputs.

    Attributes:
        settings: the worker's.
        topics: those of its role.
    """

    settings: WorkerSettings
    topics: RoleTopics
    _counts: dict[str, int] = field(default_factory=dict)

    async def __call__(self, home: int) -> Mapping[TopicPartition, int]:
        """The ends of all partitions that this home partition may have written outputs to.

        The journal, and other topics that the role writes for itself, are not among them.

        Raises:
            KafkaError: the broker does not answer.
        """
        if not self._counts:
            # The number of partitions never changes in a deployment, so one request is enough.
            self._counts.update(await partition_counts(self.settings, set(self.topics.writes)))
        places = [(topic, number) for topic in self.topics.writes for number in self._partitions(topic, home)]
        async with LogReader(self.settings) as reader:
            return await reader.end_offsets(places) if places else {}

    def _partitions(self, topic: str, home: int) -> range:
        declared = self.topics.declared.get(topic)
        if declared is not None and declared.partition_rule is PartitionRule.HOME:
            return range(home, home + 1)
        return range(self._counts[topic])
