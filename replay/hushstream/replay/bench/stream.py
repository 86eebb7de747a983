"""Measures one learner worker on a broker: its rates beside a bare Faust agent, its latency and its memory.

Every rate is taken from the broker's log times, between the first and the last record that a process wrote, with all
inputs in the log before. So it contains neither the start of a process nor the speed of the reader.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex

import numpy as np
from aiokafka import AIOKafkaProducer

from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.bench.journal import DecisionsTail, baseline_paces, log_times, paces, waits_ms
from hushstream.replay.bench.load import (
    Load,
    append_all,
    context_values,
    draw_rewards,
    make_load,
    reward_values,
)
from hushstream.replay.bench.processes import CpuMeter, Running, embedded_broker, prepared, started
from hushstream.replay.experiments.rows import BenchFailed, BenchRow, Progress, at_least, at_most, figure
from hushstream.schemas.topics import physical
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig

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


@dataclass(frozen=True, slots=True)
class Round:
    """One round's figures: records/s of the baseline, events/s of each form, and the waits of the paced contexts."""

    passthrough: float
    events: float
    batches: float
    p50_ms: float
    p99_ms: float


def prepare_deployment(folder: Path, sizes: StreamSizes) -> System:
    """Make the deployment's folder inside ``folder``, with the keys of its workers' zones."""
    folder.mkdir(parents=True, exist_ok=True)
    place = folder / DEPLOYMENT
    config = P2BConfig(
        "bench",
        sizes.arms,
        ContextConfig(sizes.dimension),
        expected_slots=1000,
        encoder=EncoderConfig(codes=8),
    )
    return prepared(place, config)


@asynccontextmanager
async def open_bench(
    folder: Path, system: System, sizes: StreamSizes, bootstrap: str | None = None
) -> AsyncIterator[Bench]:
    """Open a broker and a producer on it; ``folder`` is made beside that of the deployment.

    Args:
        folder: folder for the files of the processes.
        system: the deployment.
        sizes: how large the runs are.
        bootstrap: ``host:port`` of a running broker, whose topics of the run stay; None: an embedded one.
    """
    folder.mkdir()  # noqa: ASYNC240 - one call, before anything else runs
    broker = nullcontext(bootstrap) if bootstrap else embedded_broker(folder)
    async with (
        broker as address,
        AIOKafkaProducer(bootstrap_servers=address, acks="all", max_batch_size=256 * 1024) as producer,
    ):
        yield Bench(folder, Connection(address, f"bench-{token_hex(4)}."), producer, system, sizes)


class Bench:
    """The runs of one round.

    Attributes:
        system: the deployment.
    """

    def __init__(
        self, folder: Path, connection: Connection, producer: AIOKafkaProducer, system: System, sizes: StreamSizes
    ) -> None:
        self._folder = folder
        self._connection = connection
        self._producer = producer
        self.system = system
        self._sizes = sizes

    async def round(self, progress: Progress) -> Round:
        """Measure each form once."""
        progress("pass-through")
        passthrough, _ = await self.baseline("forward")
        progress("learner, one event a record, then paced")
        events, waits = await self.events()
        progress("learner, columnar records")
        batches, _ = await self.rates("batches", self._sizes.batch_pairs, BATCH_ROWS)
        p50, p99 = np.percentile(waits, [50, 99])
        return Round(passthrough, events, batches, float(p50), float(p99))

    async def baseline(self, name: str) -> tuple[float, float]:
        """Records per second, and per second of its CPU time, of one of `hushstream.replay.bench.baselines.STREAMS`.

        They are records as of the learner with one event to each, in one topic, a reward after its context.
        """
        pairs = self._sizes.event_pairs
        load = self.load(pairs)
        rewards = reward_values(load, [0] * pairs, draw_rewards(pairs, SEED), 1)
        values = [value for pair in zip(context_values(load, 1), rewards, strict=True) for value in pair]
        answered = 2 * pairs if name == "forward" else pairs
        return await baseline_paces(name, self._connection, self._producer, values, answered, self._folder)

    async def events(self) -> tuple[float, list[int]]:
        """The rate with one event a record, and the waits (ms) of contexts that come at a fixed pace."""
        sizes = self._sizes
        values = context_values(self.load(2 * sizes.event_pairs + round(sizes.pace * sizes.paced_seconds)), 1)
        learner = await self.prepared("events", sizes.event_pairs, 1)
        async with learner.running() as worker:
            rate, _ = await learner.rates(worker, 2 * sizes.event_pairs, sizes.event_pairs, 1)
            low = learner.tail.position("contexts")
            times = await self._paced(learner, values[2 * sizes.event_pairs :], worker, sizes.pace)
        return rate, waits_ms(learner.tail.records, low, times)

    async def rates(self, name: str, pairs: int, rows: int) -> tuple[float, float]:
        """A worker's events per second, and per second of its CPU time, with records of ``rows`` events each."""
        learner = await self.prepared(name, pairs, rows)
        records = -(-pairs // rows)
        async with learner.running() as worker:
            return await learner.rates(worker, 2 * records, records, pairs / records)

    async def prepared(self, name: str, pairs: int, rows: int) -> Learner:
        """A run that has decided ``pairs`` contexts; their rewards and as many contexts wait, ``rows`` to a record."""
        load = self.load(2 * pairs)
        first, second = load.part(0, pairs), load.part(pairs, 2 * pairs)
        learner = await self.learner(name)
        await learner.append("contexts", context_values(first, rows))
        async with learner.running() as worker:
            await learner.tail.until(-(-pairs // rows), 0, worker.check)
        arms, rewards = learner.tail.arms(), draw_rewards(pairs, SEED)
        await learner.append("clicks", reward_values(first, arms, rewards, rows))
        await learner.append("contexts", context_values(second, rows))
        return learner

    async def _paced(self, learner: Learner, contexts: Sequence[bytes], worker: Running, pace: int) -> list[int]:
        """Append contexts at a pace (1/s); return their log times."""
        low, begun, sent, tasks = learner.tail.position("contexts"), time.monotonic(), 0, []
        while sent < len(contexts):
            due = min(len(contexts), round((time.monotonic() - begun) * pace))
            if due > sent:
                tasks.append(asyncio.create_task(learner.append("contexts", contexts[sent:due])))
                sent = due
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        end = low + len(contexts)
        await learner.tail.until(end, learner.tail.position("clicks"), worker.check)
        times = await log_times(learner.connection, ("contexts", 0), len(contexts), worker, low)
        appended = (len(times) - 1) * 1000 / max(1, times[-1] - times[0])
        if appended < PACE_TOLERANCE * pace:
            raise BenchFailed(f"expected {pace} contexts/s to be appended, got {appended:.0f}")
        return times

    async def memory(self) -> tuple[int, int]:
        """Peak bytes of a worker after the mark and at the end; it takes snapshots all the time."""
        sizes = self._sizes
        learner = await self.learner("memory")
        load = self.load(sizes.memory_events // 2)
        contexts = clicks = early = done = 0
        async with learner.running("--snapshot-interval", "1") as worker:
            while done < len(load):
                part = load.part(done, done + sizes.memory_chunk)
                values = context_values(part, BATCH_ROWS)
                contexts += len(values)
                await learner.append("contexts", values)
                await learner.tail.until(contexts, clicks, worker.check)
                arms = learner.tail.arms()[-len(part) :]
                clicks += len(values)
                await learner.append("clicks", reward_values(part, arms, draw_rewards(len(part), done), BATCH_ROWS))
                await learner.tail.until(contexts, clicks, worker.check)
                done += len(part)
                if not early and 2 * done >= sizes.memory_mark:
                    early = worker.peak_memory_bytes()
            return early, worker.peak_memory_bytes()

    def load(self, events: int) -> Load:
        """Requests of the users."""
        return make_load(events, self._sizes.users, self._sizes.dimension, SEED)

    async def learner(self, name: str) -> Learner:
        """A run of the deployment with topics of its own."""
        connection = Connection(self._connection.bootstrap, f"{self._connection.prefix}{name}.")
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

    async def append(self, topic: str, values: Sequence[bytes]) -> None:
        """Append to a topic, by its name without prefix."""
        await append_all(self.producer, physical(self.connection.prefix, topic), values)

    async def rates(self, worker: Running, contexts: int, clicks: int, events_per_record: float) -> tuple[float, float]:
        """Events per second, and per second of its CPU time, that one worker folds of records on the log already.

        Args:
            worker: it has begun.
            contexts, clicks: the offsets up to which it folds.
            events_per_record: how many events an input record has.
        """
        seen = len(self.tail.records)
        async with CpuMeter([worker]) as meter:
            await self.tail.until(contexts, clicks, worker.check)
        return paces([(one.log_time_ms, one.inputs * events_per_record) for one in self.tail.records[seen:]], meter)

    @asynccontextmanager
    async def running(self, *options: str) -> AsyncIterator[Running]:
        """Run a learner's worker while the context is open; it goes on with the state of the one before."""
        arguments = ["-m", "hushstream.cli", "worker", "learner", "--state", str(self.folder / self.name)]
        arguments += ["--deployment", str(self.folder.parent / DEPLOYMENT)]
        arguments += ["--bootstrap", self.connection.bootstrap, "--prefix", self.connection.prefix]
        arguments += ["--group", f"{self.connection.prefix}learner", *options]
        async with started(self.name, arguments, self.folder) as worker:
            yield worker


EVENT_TARGET = 3.5
BATCH_TARGET = 5.0
P99_TARGET_MS = 100.0
GROWTH_TARGET = 1.1


def stream_rows(progress: Progress, rounds: int = 5, sizes: StreamSizes | None = None) -> list[BenchRow]:
    """Measure throughput, latency and memory of one learner worker.

    Args:
        progress: called with what is being measured.
        rounds: rounds of throughput and latency; figures are medians, ratios are taken within a round.
        sizes: how large the runs are; None: the sizes for which targets are stated.

    Raises:
        BenchFailed: a process ended, or made no more progress.
    """
    return asyncio.run(_measure(progress, rounds, sizes or StreamSizes()))


async def _measure(progress: Progress, rounds: int, sizes: StreamSizes) -> list[BenchRow]:
    with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as name:
        folder = Path(name)
        system = prepare_deployment(folder, sizes)
        measured = []
        for number in range(1, rounds + 1):
            async with open_bench(folder / f"round-{number}", system, sizes) as bench:
                measured.append(await bench.round(partial(_tell, progress, f"round {number} of {rounds}")))
        async with open_bench(folder / "memory", system, sizes) as bench:
            progress(f"memory over {sizes.memory_events} events")
            peaks = await bench.memory()
    return [*_rate_rows(measured, sizes), *_latency_rows(measured, sizes), *_memory_rows(peaks, sizes)]


def _tell(progress: Progress, where: str, what: str) -> None:
    progress(f"{where}: {what}")


def _rate_rows(rounds: Sequence[Round], sizes: StreamSizes) -> list[BenchRow]:
    events, batches = sizes.event_pairs, sizes.batch_pairs
    shape = f"d={sizes.dimension}, K={sizes.arms}, {sizes.users} users"
    one = f"one event a record ({events} contexts + {events} rewards, {shape})"
    many = f"columnar records of {BATCH_ROWS} ({batches} contexts + {batches} rewards, {shape})"
    bare = "bare Faust agent with producer.send"
    ratios = [(r.events / r.passthrough, r.batches / r.passthrough) for r in rounds]
    return [
        figure(f"{bare}, {2 * events} records", [r.passthrough for r in rounds], "events/s"),
        figure(f"learner worker, {one}", [r.events for r in rounds], "events/s"),
        figure(f"learner worker, {many}", [r.batches for r in rounds], "events/s"),
        at_least(f"learner worker, {one} / {bare}", [found for found, _ in ratios], "x", EVENT_TARGET),
        at_least(
            f"learner worker, {many} / {bare}",
            [found for _, found in ratios],
            "x",
            BATCH_TARGET,
        ),
    ]


def _latency_rows(rounds: Sequence[Round], sizes: StreamSizes) -> list[BenchRow]:
    name = f"append to decision at {sizes.pace} contexts/s, one event a record, {sizes.paced_seconds:g} s"
    return [
        figure(f"{name}: p50", [r.p50_ms for r in rounds], "ms"),
        at_most(f"{name}: p99", [r.p99_ms for r in rounds], "ms", P99_TARGET_MS),
    ]


def _memory_rows(peaks: tuple[int, int], sizes: StreamSizes) -> list[BenchRow]:
    early, late = peaks
    name = f"peak memory of a learner worker ({sizes.users} users, half contexts, half rewards)"
    return [
        figure(f"{name} after {sizes.memory_mark} events", [early / 1e6], "MB"),
        figure(f"{name} after {sizes.memory_events} events", [late / 1e6], "MB"),
        at_most(f"{name}, {sizes.memory_events} / {sizes.memory_mark} events", [late / early], "x", GROWTH_TARGET),
    ]
