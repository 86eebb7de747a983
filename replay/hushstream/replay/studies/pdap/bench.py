"""The benchmarks of P-DAP: stages alone, and a vendor's learner on a stream.

Measures how fast P-DAP chooses and learns, and the time of a model, for ``make bench``.

Choose and learn: a batch of contexts is answered, and its outcomes go into the counter. Windows are closed, and models
drawn and applied, outside of that time, as on the stream. Rates are per second of the thread's CPU time, medians over
rounds.

Measures P-DAP on a stream: a vendor's learner next to a bare Faust agent, and its answers while windows close.

Rates and waits are computed from the broker's log times, as in every stream benchmark. In the paced run a counter and
an aggregator run beside the learner, on outcomes of other vendors at the same pace, so that windows close and models
are drawn and adopted while the learner answers.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from aiokafka import AIOKafkaProducer
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys, seeded_key
from hushstream.replay.bench.journal import DecisionsTail, log_times, passthrough_rate, timed, waits_ms
from hushstream.replay.bench.load import append_all
from hushstream.replay.bench.processes import Running, embedded_broker, started
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, at_most, figure
from hushstream.replay.studies.pdap.play import keyed_noise
from hushstream.replay.studies.pdap.worlds import names as names_from
from hushstream.schemas import codec
from hushstream.schemas.topics import of_party, physical
from hushstream.systems.pdap.algorithm.aggregate import NAME_BYTES, Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.serving import Decisions, Serving
from hushstream.systems.pdap.cells import ROOT
from hushstream.systems.pdap.configuration import BlockConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.counter import Counter
from hushstream.systems.pdap.records import outcome_fields

Contexts: TypeAlias = NDArray[np.float32]

DIMENSION, VENDORS, ARMS = 5, 4, 1_000
BATCH = 256
EVENTS = 64 * BATCH
WARM = 60_000
"""The number of outcomes of a window; after two windows about 1,000 cells are open."""


class _Deployment:
    """A warm model, and batches that were not seen before."""

    def __init__(self, seed: int) -> None:
        names = tuple(VendorConfig(f"vendor-{place}", ARMS) for place in range(VENDORS))
        self.config = PdapConfig("bench", names, DIMENSION, release=BlockConfig(first_window=WARM))
        key = seeded_key(seed, "counter")
        self.counter = Counter(self.config, keyed_noise(self.config, key, 0))
        self.aggregate = Aggregate(self.config)
        self.serving = Serving(self.config.grid, key)
        self.serving.apply(self.aggregate.publish())
        self.draws = np.random.default_rng(seed)
        self.users = [b"user %08d" % place for place in range(EVENTS)]
        self.events = [b"%d" % place for place in range(EVENTS)]
        self.learn(WARM, WARM)
        self.turn()
        self.learn(WARM, WARM)
        self.seconds = self.turn()

    def learn(self, count: int, batch: int, alone: bool = False) -> float:
        """Answer ``count`` contexts in batches, or each alone, and count their outcomes; return the CPU seconds."""
        choose = self.one_by_one if alone else self.serving.choose
        contexts = self.draws.random((count, DIMENSION)).astype(np.float32)
        clicks = (self.draws.random(count) < 0.4).astype(np.int64)
        users, events = (names * (-(-count // EVENTS)) for names in (self.users, self.events))
        begin = time.thread_time()
        for first in range(0, count, batch):
            part = slice(first, first + batch)
            some = contexts[part]
            found = choose(some, users[part], events[part])
            named = names_from(self.counter.taken, len(some))
            self.counter.take(Outcomes(found.cells, found.arrivals, found.arms, clicks[part], named))
        return time.thread_time() - begin

    def one_by_one(self, contexts: Contexts, users: Sequence[bytes], events: Sequence[bytes]) -> Decisions:
        """Decide as a worker does: the cells of a batch at once, then each context by itself."""
        paths = self.config.grid.paths(contexts).tolist()
        answers = [self.serving.one(*row) for row in zip(paths, users, events, strict=True)]
        arms, propensities, cells, arrivals, tickets = np.array(answers, dtype=np.int64).T
        return Decisions(arms, propensities, cells, arrivals, tickets.astype(np.uint8), self.serving.version)

    def turn(self) -> float:
        """Close the window and publish a model; return the CPU seconds."""
        begin = time.thread_time()
        self.aggregate.fold(self.counter.close(self.counter.window))
        self.serving.apply(self.aggregate.publish())
        return time.thread_time() - begin


def pdap_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure choosing and learning in batches and one at a time, and the close of a window with its model.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    progress("P-DAP")
    with threadpool_limits(limits=1):
        deployments = [_Deployment(seed) for seed in range(rounds)]
        batched = [EVENTS / one.learn(EVENTS, BATCH) for one in deployments]
        alone = [EVENTS / one.learn(EVENTS, BATCH, alone=True) for one in deployments]
        single = [EVENTS / 8 / one.learn(EVENTS // 8, 1) for one in deployments]
    shape = f"d={DIMENSION}, {VENDORS} x {ARMS:,} arms"
    cells = [float(len(one.aggregate.partition)) for one in deployments]
    return [
        at_least(f"P-DAP, choose and learn in batches of {BATCH}, {shape}", batched, "events/CPU s", 160_000),
        at_least(
            f"P-DAP, choose one at a time, cells and outcomes of {BATCH}, {shape}", alone, "events/CPU s", 110_000
        ),
        figure(f"P-DAP, choose and learn in batches of 1, {shape}", single, "events/CPU s"),
        figure(f"P-DAP, close a window of {WARM:,} and publish a model", [one.seconds for one in deployments], "CPU s"),
        figure("P-DAP, open cells of that model", cells, "cells"),
    ]


STREAM_DIMENSION, STREAM_VENDORS, STREAM_ARMS, USERS = 5, 4, 1_000, 400
TARGET, P99_TARGET_MS = 3.5, 100.0
FIRST = "vendor-0"
_PREFIX, _BATCH = "bench.", 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the run that measures the rate, and of the paced run.

    Attributes:
        pairs: contexts in the run that measures the rate, and reports of what was shown.
        pace: contexts per second in the paced run.
        seconds: how long the paced run takes.
        window: outcomes of the first window; each later one is a fifth larger than the one before.
    """

    pairs: int = 40_000
    pace: int = 8_000
    seconds: float = 8.0
    window: int = 8_000


@dataclass(frozen=True, slots=True)
class _Round:
    passthrough: float
    rate: float
    p50_ms: float
    p99_ms: float
    windows: int


def pdap_stream_rows(progress: Progress, rounds: int = 5, sizes: Sizes | None = None) -> list[BenchRow]:
    """Measure the rate and the waits of one vendor's learner.

    Args:
        progress: called with what is being measured.
        rounds: figures are medians over them; ratios are taken within a round.
        sizes: how large the runs are; None: the sizes for which targets are stated.

    Raises:
        BenchFailed: a process ended, or made no more progress.
    """
    given = sizes or Sizes()
    with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as name:
        system = _prepared(Path(name), given)
        found = []
        for number in range(1, rounds + 1):
            progress(f"P-DAP on a stream, round {number} of {rounds}")
            found.append(asyncio.run(_round(Path(name), f"round-{number}", system, given)))
    return _rows(found, given)


def _prepared(folder: Path, sizes: Sizes) -> System:
    vendors = tuple(VendorConfig(f"vendor-{place}", STREAM_ARMS) for place in range(STREAM_VENDORS))
    release = BlockConfig(first_window=sizes.window, window_ratio=1.2)
    system = prepare(folder / "deployment", PdapConfig("bench", vendors, STREAM_DIMENSION, release=release))
    generate_keys(folder / "deployment" / KEYS, (of_party("edge", FIRST), "counter"))
    return system


async def _round(folder: Path, name: str, system: System, sizes: Sizes) -> _Round:
    place = folder / name
    place.mkdir()
    async with embedded_broker(place) as bootstrap:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=256 * 1024)
        await producer.start()
        try:
            connection = Connection(bootstrap, _PREFIX)
            tail = DecisionsTail(connection.settings(), party=FIRST)
            run = _Run(folder, place, system, connection, producer, tail)
            await apply_async(run.connection, system, replication=1)
            values = [*_contexts(0, sizes.pairs), *_shown(0, [0] * sizes.pairs)]
            passthrough = await passthrough_rate(bootstrap, "baseline.", producer, values, place)
            rate = await run.rate(sizes)
            waits = await run.paced(sizes)
            logs = await copy_async(run.connection, {"releases": 1}, {"releases"})
        finally:
            await producer.stop()
    p50, p99 = np.percentile(waits, [50, 99])
    return _Round(passthrough, rate, float(p50), float(p99), len(logs.part(("releases", 0)).records))


@dataclass(slots=True)
class _Run:
    """One round's topics and processes."""

    folder: Path
    place: Path
    system: System
    connection: Connection
    producer: AIOKafkaProducer
    tail: DecisionsTail
    done: int = 0
    """How many contexts were appended."""

    async def append(self, topic: str, values: Sequence[bytes]) -> None:
        await append_all(self.producer, physical(self.connection.prefix, of_party(topic, FIRST)), values)

    @asynccontextmanager
    async def worker(self, role: str) -> AsyncIterator[Running]:
        """Run a worker; the next one of its role continues where this one ended."""
        arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self.folder / "deployment")]
        arguments += ["--bootstrap", self.connection.bootstrap, "--prefix", self.connection.prefix]
        async with started(role, [*arguments, "--state", str(self.place / role)], self.place) as running:
            yield running

    async def rate(self, sizes: Sizes) -> float:
        """Contexts and reports per second of a learner, with both on the log already."""
        pairs = sizes.pairs
        await self.append("contexts", _contexts(0, pairs))
        async with self.worker(of_party("learner", FIRST)) as learner:
            await self.tail.until(pairs, 0, learner.check)
        await self.append("clicks", _shown(0, self.tail.arms()))
        await self.append("contexts", _contexts(pairs, pairs))
        seen, self.done = len(self.tail.records), 2 * pairs
        async with self.worker(of_party("learner", FIRST)) as learner:
            await self.tail.until(2 * pairs, pairs, learner.check)
        return timed(self.tail.records[seen:], 1).per_second

    async def paced(self, sizes: Sizes) -> list[int]:
        """Milliseconds from append to decision at a fixed pace, while windows close and models arrive."""
        count, low = round(sizes.pace * sizes.seconds), self.done
        values, others = _contexts(low, count), _outcomes(self.system, count)
        outcomes = physical(self.connection.prefix, "outcomes")
        async with (
            self.worker("counter"),
            self.worker("aggregator"),
            self.worker(of_party("learner", FIRST)) as learner,
        ):
            # The first context is sent alone, and the paced ones start when it was answered.
            await self.append("contexts", _contexts(low + count, 1))
            await self.tail.until(low + 1, 0, learner.check)
            before, begun, sent = len(self.tail.records), time.monotonic(), 0
            while sent < count:
                due = min(count, round((time.monotonic() - begun) * sizes.pace))
                await self.append("contexts", values[sent:due])
                await append_all(self.producer, outcomes, others[sent // _BATCH : due // _BATCH])
                sent = due
                await asyncio.sleep(0.005)
            await self.tail.until(low + 1 + count, 0, learner.check)
            source = (of_party("contexts", FIRST), 0)
            times = await log_times(self.connection, source, low + 1 + count, learner, low + 1)
        return waits_ms(self.tail.records[before:], low + 1, times)


def _contexts(first: int, count: int) -> list[bytes]:
    points = np.random.default_rng(first).random((count, STREAM_DIMENSION)).astype("<f4")
    return [
        codec.encode(
            "Context",
            {
                "event_id": f"event-{first + number:08d}",
                "user": f"user-{(first + number) % USERS:04d}",
                "line": FIRST,
                "context": point.tobytes(),
            },
        )
        for number, point in enumerate(points)
    ]


def _outcomes(system: System, count: int) -> list[bytes]:
    """Outcomes of other vendors' users in records of `_BATCH`, in the root cell, for random arms."""
    draws, grid = np.random.default_rng(1), system.core.config.grid
    found = []
    for _ in range(count // _BATCH):
        arms, clicks = draws.integers(0, STREAM_VENDORS * STREAM_ARMS, _BATCH), draws.integers(0, 2, _BATCH)
        paths = grid.paths(draws.random((_BATCH, STREAM_DIMENSION)).astype(np.float32))
        arrivals = np.array([grid.cell_at(path, 1) for path in paths.tolist()], dtype=np.int64)
        names = draws.integers(0, 256, (_BATCH, NAME_BYTES)).astype(np.uint8)
        outcomes = Outcomes(np.full(_BATCH, ROOT, dtype=np.int64), arrivals, arms, clicks, names)
        found.append(codec.encode("Outcomes", outcome_fields(0, system.digest, outcomes)))
    return found


def _shown(first: int, arms: Sequence[int]) -> list[bytes]:
    """Reports of the shown arm for each of these events, in order."""
    return [
        codec.encode(
            "Feedback",
            {
                "kind": "shown",
                "event_id": f"event-{first + number:08d}",
                "user": f"user-{(first + number) % USERS:04d}",
                "arm": arm,
                "reward": 0.0,
            },
        )
        for number, arm in enumerate(arms)
    ]


def _rows(rounds: Sequence[_Round], sizes: Sizes) -> list[BenchRow]:
    shape = f"d={STREAM_DIMENSION}, {STREAM_VENDORS} x {STREAM_ARMS:,}"
    what = f"one event a record ({sizes.pairs} contexts + {sizes.pairs} shown), {shape}"
    windows = round(float(np.median([one.windows for one in rounds])))
    paced = f"P-DAP, append to decision at {sizes.pace} contexts/s while {windows} windows close"
    ratios = [one.rate / one.passthrough for one in rounds]
    return [
        figure(f"P-DAP, a vendor's learner, {what}", [one.rate for one in rounds], "events/s"),
        at_least("P-DAP, a vendor's learner / bare Faust agent", ratios, "x", TARGET),
        figure(f"{paced}: p50", [one.p50_ms for one in rounds], "ms"),
        at_most(f"{paced}: p99", [one.p99_ms for one in rounds], "ms", P99_TARGET_MS),
    ]
