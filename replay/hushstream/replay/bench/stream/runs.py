"""The runs of a stream benchmark: each fills topics, starts a process on them, and reads the result from the logs."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from aiokafka import AIOKafkaProducer
from aiokafka.errors import for_code

from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.configuration import PartitionConfig
from hushstream.engine.declare.declaration import System, request_partitions
from hushstream.ops.connection import Connection, guard_code
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.baseline import log_times, passthrough_rate
from hushstream.replay.bench.cpu import CpuMeter
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import DecisionsTail, timed, waits_ms
from hushstream.replay.bench.load import (
    Load,
    append_all,
    context_batches,
    context_events,
    draw_rewards,
    make_load,
    reward_batches,
    reward_events,
)
from hushstream.replay.bench.processes import Running, embedded_broker, started
from hushstream.replay.bench.rows import Progress
from hushstream.schemas.topics import physical
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    ReleaseConfig,
    SlotConfig,
)

BATCH_ROWS = 256
SEED = 0

DEPLOYMENT = "deployment"

PACE_TOLERANCE = 0.97
"""A run at a fixed pace counts only if it appended at least this share of the planned records."""


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How large the runs are.

    Attributes:
        dimension, arms, users: sizes of the learner.
        event_pairs, batch_pairs: contexts, and as many rewards, of a round with one event a record, and of one with
            columnar records.
        pace: contexts a second in the run that measures latency.
        paced_seconds: length of that run.
        memory_events: contexts and rewards together in the run that measures memory.
        memory_mark: the number of events after which its peak should not grow.
        memory_chunk: contexts that its load generator appends at a time.
        long_interactions: contexts, each rewarded, in the run whose learner is killed at its end.
        modest_pace: contexts, and as many rewards, a second in the run that measures the disk use of small folds.
        modest_pairs: contexts, and as many rewards, in that run.
    """

    dimension: int = 25
    arms: int = 25
    users: int = 400
    event_pairs: int = 40_000
    batch_pairs: int = 20 * 16 * BATCH_ROWS
    pace: int = 8_000
    paced_seconds: float = 8.0
    memory_events: int = 1_000_000
    memory_mark: int = 200_000
    memory_chunk: int = 100 * BATCH_ROWS
    long_interactions: int = 1_000_000
    modest_pace: int = 300
    modest_pairs: int = 3_000


@dataclass(frozen=True, slots=True)
class Rate:
    """How many events a worker folds a second, and the CPU time (us) for one event."""

    per_second: float
    cpu_micros: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round's figures: records/s of the baseline, rates of each form, and the waits of the paced contexts."""

    passthrough: float
    events: Rate
    batches: Rate
    p50_ms: float
    p99_ms: float


def prepare_deployment(
    folder: Path,
    sizes: StreamSizes,
    learners: int = 1,
    slot: SlotConfig | None = None,
    release: ReleaseConfig | None = None,
) -> System:
    """Make the deployment's folder inside ``folder``, with the keys of its workers' zones."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / DEPLOYMENT
    config = P2BConfig(
        "bench",
        sizes.arms,
        ContextConfig(sizes.dimension),
        expected_slots=1000,
        encoder=EncoderConfig(codes=8),
        slot=slot or SlotConfig(),
        release=release or ReleaseConfig(),
        partitions=PartitionConfig(learners),
    )
    system = prepare(place, config)
    generate_keys(place / KEYS, ("edge", "shuffler"))
    return system


def _new_folder(folder: Path) -> None:
    folder.mkdir()


@asynccontextmanager
async def open_bench(
    folder: Path, system: System, sizes: StreamSizes, given: str | None = None
) -> AsyncIterator[Bench]:
    """Open a broker and a producer on it; ``folder`` is made beside that of the deployment.

    Everything that the runs leave on a given broker is deleted at the end, also after an error.

    Args:
        folder: folder for the files of the processes.
        system: the deployment.
        sizes: how large the runs are.
        given: a broker's address; None: start an embedded broker.
    """
    _new_folder(folder)
    async with AsyncExitStack() as stack:
        bootstrap = await stack.enter_async_context(embedded_broker(folder)) if given is None else given
        prefix = f"bench-{secrets.token_hex(4)}."  # the given broker may have topics of earlier runs
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=256 * 1024)
        await producer.start()
        try:
            yield Bench(folder, Connection(bootstrap, prefix), producer, system, sizes)
        finally:
            await producer.stop()
            if given is not None:
                await delete_topics(Connection(given, prefix))


class Bench:
    """The runs of one round.

    Attributes:
        system: the deployment.
    """

    def __init__(
        self, folder: Path, connection: Connection, producer: AIOKafkaProducer, system: System, sizes: StreamSizes
    ) -> None:
        self._folder = folder
        self._bootstrap = connection.bootstrap
        self._prefix = connection.prefix
        self._producer = producer
        self.system = system
        self._sizes = sizes

    async def round(self, progress: Progress) -> Round:
        """Measure each form once."""
        progress("pass-through")
        passthrough = await self._passthrough()
        progress("learner, one event a record, then paced")
        events, waits = await self.events()
        progress("learner, columnar records")
        batches = await self.batches()
        p50, p99 = np.percentile(waits, [50, 99])
        return Round(passthrough, events, batches, float(p50), float(p99))

    async def _passthrough(self) -> float:
        """Records per second through a bare Faust agent; they are the same records as the learner's, in one topic."""
        pairs = self._sizes.event_pairs
        load = self.load(pairs)
        values = [*context_events(load), *reward_events(load, [0] * pairs, draw_rewards(pairs, SEED))]
        return await passthrough_rate(self._bootstrap, self._prefix, self._producer, values, self._folder)

    async def events(self) -> tuple[Rate, list[int]]:
        """The rate with one event a record, and the waits (ms) of contexts that come at a fixed pace."""
        sizes = self._sizes
        paced = round(sizes.pace * sizes.paced_seconds)
        load = self.load(2 * sizes.event_pairs + paced)
        first, second, third = _split(load, sizes.event_pairs)
        learner = await self.learner("events")
        await learner.append("contexts", context_events(first))
        async with learner.running() as worker:
            await learner.tail.until(len(first), 0, worker.check)
        rewards = draw_rewards(len(first), SEED)
        await learner.append("clicks", reward_events(first, learner.tail.arms(), rewards))
        await learner.append("contexts", context_events(second))
        values = context_events(third)
        async with learner.running() as worker:
            rate = await learner.rate(worker, 2 * sizes.event_pairs, sizes.event_pairs, 1)
            low = learner.tail.position("contexts")
            times = await self.paced(learner, {"contexts": values}, worker, sizes.pace) if values else []
        return rate, waits_ms(learner.tail.records, low, times)

    async def paced(
        self, learner: Learner, inputs: Mapping[str, Sequence[bytes]], worker: Running, pace: int
    ) -> list[int]:
        """Append records of each topic at a pace (1/s); return the log times of the contexts."""
        values = inputs["contexts"]
        low, clicks = learner.tail.position("contexts"), learner.tail.position("clicks")
        begun = time.monotonic()
        sent = 0
        tasks = []
        while sent < len(values):
            due = min(len(values), round((time.monotonic() - begun) * pace))
            if due > sent:
                tasks += [asyncio.create_task(learner.append(topic, part[sent:due])) for topic, part in inputs.items()]
                sent = due
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        await learner.tail.until(low + len(values), clicks + len(inputs.get("clicks", ())), worker.check)
        times = await log_times(learner.connection, ("contexts", 0), low + len(values), worker, low)
        appended = (len(times) - 1) * 1000 / max(1, times[-1] - times[0])
        if appended < PACE_TOLERANCE * pace:
            raise BenchFailed(f"expected {pace} contexts/s to be appended, got {appended:.0f}")
        return times

    async def batches(self) -> Rate:
        """The rate with columnar records."""
        pairs = self._sizes.batch_pairs
        first, second, _ = _split(self.load(2 * pairs), pairs)
        learner = await self.learner("batches")
        records = -(-pairs // BATCH_ROWS)
        await learner.append("contexts", context_batches(first, BATCH_ROWS))
        async with learner.running() as worker:
            await learner.tail.until(records, 0, worker.check)
        rewards = draw_rewards(pairs, SEED)
        await learner.append("clicks", reward_batches(first, learner.tail.arms(), rewards, BATCH_ROWS))
        await learner.append("contexts", context_batches(second, BATCH_ROWS))
        async with learner.running() as worker:
            return await learner.rate(worker, 2 * records, records, pairs / records)

    async def memory(self) -> tuple[int, int]:
        """Peak bytes of a worker after the mark and at the end; it takes snapshots all the time."""
        sizes = self._sizes
        learner = await self.learner("memory")
        load = self.load(sizes.memory_events // 2)
        contexts = clicks = early = done = 0
        async with learner.running("--snapshot-interval", "1") as worker:
            while done < len(load):
                part = load.part(done, done + sizes.memory_chunk)
                values = context_batches(part, BATCH_ROWS)
                contexts += len(values)
                await learner.append("contexts", values)
                await learner.tail.until(contexts, clicks, worker.check)
                arms = learner.tail.arms()[-len(part) :]
                clicks += len(values)
                await learner.append("clicks", reward_batches(part, arms, draw_rewards(len(part), done), BATCH_ROWS))
                await learner.tail.until(contexts, clicks, worker.check)
                done += len(part)
                if not early and 2 * done >= sizes.memory_mark:
                    early = worker.peak_memory_bytes()
            return early, worker.peak_memory_bytes()

    def load(self, events: int, home: int = 0) -> Load:
        """Requests of the users of one partition."""
        partitions = request_partitions(self.system)
        return make_load(events, self._sizes.users, self._sizes.dimension, SEED, home, partitions)

    async def learner(self, name: str) -> Learner:
        """A run of the deployment with topics of its own."""
        connection = Connection(self._bootstrap, f"{self._prefix}{name}.")
        await apply_async(connection, self.system, replication=1)
        return Learner(name, self._folder, connection, self._producer, DecisionsTail(connection.settings()))


@dataclass(frozen=True, slots=True)
class Learner:
    """The topics and the worker of one run, and the reader of its decisions."""

    name: str
    folder: Path
    connection: Connection
    producer: AIOKafkaProducer
    tail: DecisionsTail

    async def append(self, topic: str, values: Sequence[bytes], partition: int = 0) -> None:
        """Append to a topic, by its name without prefix."""
        await append_all(self.producer, physical(self.connection.prefix, topic), values, partition)

    async def rate(self, worker: Running, contexts: int, clicks: int, events_per_record: float) -> Rate:
        """The rate at which one worker folds records that are on the log already, up to these offsets."""
        seen = len(self.tail.records)
        async with CpuMeter([worker]) as meter:
            await self.tail.until(contexts, clicks, worker.check)
        found = timed(self.tail.records[seen:], events_per_record)
        return Rate(found.per_second, meter.seconds(found.begun_ms, found.ended_ms) * 1e6 / found.events)

    @asynccontextmanager
    async def running(
        self, *options: str, number: int = 1, role: str = "learner", kill: bool = False
    ) -> AsyncIterator[Running]:
        """Run a worker of a role while the context is open.

        It continues with the data directory of an earlier worker of the same ``number``; ``kill`` ends it by
        SIGKILL.
        """
        name = f"{self.name}-{number}" if role == "learner" else f"{self.name}-{role}"
        arguments = ["-m", "hushstream.cli", "worker", role]
        arguments += [
            "--deployment",
            str(self.folder.parent / DEPLOYMENT),
            "--state",
            str(self.folder / name),
        ]
        arguments += ["--bootstrap", self.connection.bootstrap, "--prefix", self.connection.prefix]
        arguments += ["--group", f"{self.connection.prefix}{role}", *options]
        async with started(name, arguments, self.folder, kill=kill) as worker:
            yield worker


def _split(load: Load, count: int) -> tuple[Load, Load, Load]:
    return load.part(0, count), load.part(count, 2 * count), load.part(2 * count, len(load))


async def delete_topics(connection: Connection) -> None:
    """Delete all topics that begin with the connection's prefix.

    Raises:
        HushstreamError: the broker does not answer, or refuses it.
    """
    async with connection.admin("delete topics") as admin:
        names = [name for name in await admin.list_topics() if name.startswith(connection.prefix)]
        for name, code in (await admin.delete_topics(names)).topic_error_codes:
            guard_code(f"delete topic {name}", code, None, for_code)
