"""Measures P-DAP on a stream: a vendor's learner next to a bare Faust agent, and its answers while windows close.

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

import numpy as np
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.baseline import log_times, passthrough_rate
from hushstream.replay.bench.journal import DecisionsTail, timed, waits_ms
from hushstream.replay.bench.load import append_all
from hushstream.replay.bench.processes import Running, embedded_broker, started
from hushstream.replay.bench.rows import BenchRow, Progress, at_least, at_most, figure
from hushstream.schemas import codec
from hushstream.schemas.topics import of_party, physical
from hushstream.systems.pdap.algorithm.outcomes import NAME_BYTES, Outcomes
from hushstream.systems.pdap.cells import ROOT
from hushstream.systems.pdap.configuration import BlockConfig, PdapConfig, VendorConfig
from hushstream.systems.pdap.records import outcome_fields

DIMENSION, VENDORS, ARMS, USERS = 5, 4, 1_000, 400
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
    vendors = tuple(VendorConfig(f"vendor-{place}", ARMS) for place in range(VENDORS))
    release = BlockConfig(first_window=sizes.window, window_ratio=1.2)
    system = prepare(folder / "deployment", PdapConfig("bench", vendors, DIMENSION, release=release))
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
    points = np.random.default_rng(first).random((count, DIMENSION)).astype("<f4")
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
        arms, clicks = draws.integers(0, VENDORS * ARMS, _BATCH), draws.integers(0, 2, _BATCH)
        paths = grid.paths(draws.random((_BATCH, DIMENSION)).astype(np.float32))
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
    what = f"one event a record ({sizes.pairs} contexts + {sizes.pairs} shown), d={DIMENSION}, {VENDORS} x {ARMS:,}"
    windows = round(float(np.median([one.windows for one in rounds])))
    paced = f"P-DAP, append to decision at {sizes.pace} contexts/s while {windows} windows close"
    ratios = [one.rate / one.passthrough for one in rounds]
    return [
        figure(f"P-DAP, a vendor's learner, {what}", [one.rate for one in rounds], "events/s"),
        at_least("P-DAP, a vendor's learner / bare Faust agent", ratios, "x", TARGET),
        figure(f"{paced}: p50", [one.p50_ms for one in rounds], "ms"),
        at_most(f"{paced}: p99", [one.p99_ms for one in rounds], "ms", P99_TARGET_MS),
    ]
