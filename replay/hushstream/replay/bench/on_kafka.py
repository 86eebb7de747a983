"""The stream on a given Kafka: beside the embedded broker, with two workers, at half its rate, and after a loss.

Rates are by the broker's log times, as in `hushstream.replay.bench.stream`; the wait for a decision is the
client's own, from the call to the answer, while most of the load comes from a bare producer.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hushstream.client import connect
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import DecisionsTail, Folded
from hushstream.replay.bench.load import (
    Load,
    context_batches,
    context_events,
    draw_rewards,
    reward_batches,
    reward_events,
)
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, Progress, at_least, at_most, figure
from hushstream.replay.bench.runs import (
    BATCH_ROWS,
    SEED,
    Bench,
    Learner,
    StreamSizes,
    log_times,
    open_bench,
    prepare_deployment,
)

EMBEDDED_TARGET = 0.7
SCALING_TARGET = 1.7
P99_TARGET_MS = 100.0
RECOVERY_TARGET_SECONDS = 30.0

SCALED = 2
PROBES_PER_SECOND = 50
START_SECONDS = 60.0

_AT_RECORD = re.compile(r"partition \d+: at journal record \d+ \((\d+) replayed")


@dataclass(frozen=True, slots=True)
class KafkaSizes:
    """How large the runs are.

    Attributes:
        stream: of the runs that the embedded broker does as well, and of those at half the rate.
        scaled_pairs: contexts, and as many rewards, of each partition of the scaling runs.
        recovered: of the run whose worker is lost; each of its users decides once and is rewarded.
    """

    stream: StreamSizes = field(default_factory=lambda: StreamSizes(paced_seconds=5.0))
    scaled_pairs: int = 60_000
    recovered: StreamSizes = field(default_factory=lambda: StreamSizes(dimension=10, arms=10, users=100_000))


@dataclass(frozen=True, slots=True)
class Paced:
    """What was seen at a pace: waits of the client's calls, and contexts that lay unanswered at each answer."""

    pace: int
    waits_ms: Sequence[float]
    lags: Sequence[int]


def kafka_rows(bootstrap: str, progress: Progress, rounds: int = 3, sizes: KafkaSizes | None = None) -> list[BenchRow]:
    """Measure learner workers on a Kafka; ratios are taken within a round, figures are medians.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        progress: told what is being measured.
        rounds: repetitions.
        sizes: of the runs; None for those that the targets are stated for.

    Raises:
        BenchFailed: a process ended, or stopped to go on.
    """
    return asyncio.run(_measure(bootstrap, progress, rounds, sizes or KafkaSizes()))


async def _measure(bootstrap: str, progress: Progress, rounds: int, sizes: KafkaSizes) -> list[BenchRow]:
    rows: dict[str, list[tuple[float, ...]]] = {"events": [], "batches": [], "scaled": []}
    with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as name:
        folder = Path(name)
        paced = []
        for number in range(1, rounds + 1):
            place = folder / f"round-{number}"
            where = f"round {number} of {rounds}"
            for form in ("events", "batches"):
                progress(f"{where}: {form}, given and embedded broker")
                rows[form].append(await _beside(place / form, bootstrap, sizes.stream, form))
            progress(f"{where}: one worker and {SCALED}")
            rows["scaled"].append(await _scaled(place / "scaled", bootstrap, sizes))
            progress(f"{where}: at half the rate")
            paced.append(await _at_half(place / "paced", bootstrap, sizes.stream, rows["events"][-1][0]))
        progress(f"recovery of {sizes.recovered.users} users")
        recovered = await _recovery(folder / "recovery", bootstrap, sizes.recovered)
    return [*_rate_rows(rows, sizes), *_paced_rows(paced), *_recovery_rows(recovered, sizes.recovered)]


async def _beside(folder: Path, bootstrap: str, sizes: StreamSizes, form: str) -> tuple[float, float]:
    """Events per second of one worker: on the given broker, and on the embedded one."""
    system = prepare_deployment(folder, sizes)
    found = []
    for name, given in (("given", bootstrap), ("embedded", None)):
        async with open_bench(folder / name, system, replace(sizes, paced_seconds=1.0), given) as bench:
            found.append((await bench.events())[0] if form == "events" else await bench.batches())
    return found[0], found[1]


async def _scaled(folder: Path, bootstrap: str, sizes: KafkaSizes) -> tuple[float, float]:
    """Events per second of one worker with all partitions, and of as many workers as partitions."""
    system = prepare_deployment(folder, sizes.stream, learners=SCALED)
    async with open_bench(folder / "runs", system, sizes.stream, bootstrap) as bench:
        return await _rate(bench, "one", 1, sizes.scaled_pairs), await _rate(bench, "two", SCALED, sizes.scaled_pairs)


async def _rate(bench: Bench, name: str, workers: int, pairs: int) -> float:
    """Events per second over all partitions, while none of them waits for input or has nothing left."""
    learner = await bench.learner(name)
    tails = [DecisionsTail(learner.connection.settings(), home) for home in range(SCALED)]
    load = bench.load(2 * pairs)
    first, second = load.part(0, pairs), load.part(pairs, 2 * pairs)
    contexts, more = context_events(first), context_events(second)
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(learner.running(number=n)) for n in range(1, workers + 1)]
        for worker in running:
            await _recovered(worker, 1 if workers > 1 else SCALED)
        await _until_shared(learner, running)
        for home, tail in enumerate(tails):
            await learner.append("contexts", contexts, home)
            await tail.until(pairs, 0, running[0].check)
        rewards = [reward_events(first, tail.arms(), draw_rewards(pairs, SEED)) for tail in tails]
        seen = [len(tail.records) for tail in tails]
        for home in range(SCALED):
            await learner.append("clicks", rewards[home], home)
        for home in range(SCALED):
            await learner.append("contexts", more, home)
        appended_ms = time.time() * 1000
        for tail in tails:
            await tail.until(2 * pairs, pairs, running[0].check)
    return _rate_between([tail.records[n:] for tail, n in zip(tails, seen, strict=True)], appended_ms)


def _rate_between(partitions: Sequence[Sequence[Folded]], begun_ms: float) -> float:
    """Events per second from ``begun_ms`` until the first partition has nothing left."""
    ended_ms = min(records[-1].log_time_ms for records in partitions)
    if ended_ms - begun_ms < 500:
        raise BenchFailed(
            f"expected half a second of folding after the last append, got {ended_ms - begun_ms:.0f} ms: too few events"
        )
    counted = [r for records in partitions for r in records if begun_ms < r.log_time_ms <= ended_ms]
    folded = sum(part[1] - part[0] for record in counted for part in (record.contexts, record.clicks))
    return folded * 1000 / (ended_ms - begun_ms)


async def _recovered(worker: Running, partitions: int) -> list[int]:
    """Wait until a worker has taken up so many partitions; gives the records that it replayed for each."""
    deadline = time.monotonic() + START_SECONDS
    while len(found := _AT_RECORD.findall(_log_of(worker))) < partitions:
        worker.check()
        if time.monotonic() > deadline:
            raise BenchFailed(f"{worker.name}: expected {partitions} partitions within {START_SECONDS:g} s")
        await asyncio.sleep(0.05)
    return [int(number) for number in found]


def _log_of(worker: Running) -> str:
    return worker.log.read_text(errors="replace")


async def _until_shared(learner: Learner, running: Sequence[Running]) -> None:
    """Wait until the group is stable: nobody takes up a partition any more."""
    before = -1
    while (now := sum(len(_AT_RECORD.findall(_log_of(worker))) for worker in running)) != before:
        before = now
        await asyncio.sleep(1.5)


async def _at_half(folder: Path, bootstrap: str, sizes: StreamSizes, rate: float) -> Paced:
    """The client's waits, and the lag, at half of a rate."""
    system = prepare_deployment(folder, sizes)
    pace = round(rate / 2)
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        learner = await bench.learner("paced")
        values = context_events(bench.load(round(pace * sizes.paced_seconds)))
        async with learner.running() as worker:
            await _recovered(worker, 1)
            probing = asyncio.create_task(_probe(learner, sizes))
            try:
                await bench.paced(learner, values, worker, pace)
            finally:
                waits = await probing
            times = await log_times(learner.connection, ("contexts", 0), learner.tail.position("contexts"), worker)
        return Paced(pace, waits, list(_lags(learner.tail.records, times)))


async def _probe(learner: Learner, sizes: StreamSizes) -> list[float]:
    """Milliseconds that calls of `Client.decide` took, a few a second beside the load."""
    client = connect(learner.connection.bootstrap, "bench", prefix=learner.connection.prefix)
    context = np.full(sizes.dimension, 1 / sizes.dimension, np.float32)
    waits: list[float] = []

    async def ask(number: int) -> None:
        begun = time.perf_counter()
        await client.decide(f"probe-{number}", f"probe-{number % sizes.users}", context, timeout=10.0)
        waits.append((time.perf_counter() - begun) * 1000)

    async with client, asyncio.TaskGroup() as group:
        await group.create_task(ask(0))
        waits.clear()  # the first one finds its way to the partition
        for number in range(1, round(PROBES_PER_SECOND * sizes.paced_seconds)):
            group.create_task(ask(number))
            await asyncio.sleep(1 / PROBES_PER_SECOND)
    return waits


def _lags(records: Sequence[Folded], times_ms: Sequence[int]) -> Iterator[int]:
    """At each append of decisions: how many contexts stood in the log and were not decided."""
    for record in records:
        if record.contexts[1]:
            yield max(0, int(np.searchsorted(times_ms, record.log_time_ms, "right")) - record.contexts[1])


async def _recovery(folder: Path, bootstrap: str, sizes: StreamSizes) -> tuple[float, float]:
    """Seconds from the start of a process to its first fold: with the snapshot, and with the journal alone."""
    system = prepare_deployment(folder, sizes)
    users = [f"user-{number:06d}" for number in range(sizes.users)]
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        learner = await bench.learner("lost")
        load = replace(bench.load(sizes.users), users=users)
        await _fed(learner, load)
        return await _taken_up(learner, 1, journal=False), await _taken_up(learner, 2, journal=True)


async def _fed(learner: Learner, load: Load) -> None:
    values = context_batches(load, BATCH_ROWS)
    await learner.append("contexts", values)
    async with learner.running() as worker:
        await learner.tail.until(len(values), 0, worker.check)
        rewards = draw_rewards(len(load), SEED)
        await learner.append("clicks", reward_batches(load, learner.tail.arms(), rewards, BATCH_ROWS))
        await learner.tail.until(len(values), len(values), worker.check)


async def _taken_up(learner: Learner, number: int, *, journal: bool) -> float:
    """Start a worker on its data directory (a number that was there before), or on an empty one."""
    (learner.folder / f"{learner.name}-{number}.log").unlink(missing_ok=True)
    begun = time.monotonic()
    async with learner.running(number=number) as worker:
        (replayed,) = await _recovered(worker, 1)
        seconds = time.monotonic() - begun
    if journal != (replayed > 0):
        raise BenchFailed(f"expected records to be replayed: {journal}, got {replayed}")
    return seconds


def _rate_rows(rows: dict[str, list[tuple[float, ...]]], sizes: KafkaSizes) -> list[BenchRow]:
    found = []
    shape = f"d={sizes.stream.dimension}, K={sizes.stream.arms}, {sizes.stream.users} users"
    for form, text in (("events", "one event a record"), ("batches", f"columnar records of {BATCH_ROWS}")):
        name, measured = f"learner worker, {text} ({shape})", rows[form]
        ratios = [given / embedded for given, embedded in measured]
        found += [
            figure(f"{name}, given broker", [given for given, _ in measured], "events/s"),
            figure(f"{name}, embedded broker", [embedded for _, embedded in measured], "events/s"),
            at_least(f"{name}, given / embedded broker", ratios, "x", EMBEDDED_TARGET),
        ]
    name, measured = f"one event a record, {SCALED} partitions, {shape}", rows["scaled"]
    ratios = [many / one for one, many in measured]
    return [
        *found,
        figure(f"one learner worker, {name}", [one for one, _ in measured], "events/s"),
        figure(f"{SCALED} learner workers, {name}", [many for _, many in measured], "events/s"),
        at_least(f"{SCALED} workers / one, {name}", ratios, "x", SCALING_TARGET),
    ]


def _paced_rows(paced: Sequence[Paced]) -> list[BenchRow]:
    pace = round(float(np.median([one.pace for one in paced])))
    waits = [np.percentile(one.waits_ms, [50, 95, 99]) for one in paced]
    lags = [np.percentile(one.lags, [50, 99]) for one in paced]
    name = f"context to decision at the client, at {pace} contexts/s (half the rate)"
    return [
        figure(f"{name}: p50", [float(found[0]) for found in waits], "ms"),
        figure(f"{name}: p95", [float(found[1]) for found in waits], "ms"),
        at_most(f"{name}: p99", [float(found[2]) for found in waits], "ms", P99_TARGET_MS),
        figure(f"lag at {pace} contexts/s: p50", [float(found[0]) for found in lags], "contexts"),
        figure(f"lag at {pace} contexts/s: p99", [float(found[1]) for found in lags], "contexts"),
    ]


def _recovery_rows(recovered: tuple[float, float], sizes: StreamSizes) -> list[BenchRow]:
    name = f"start of a learner worker with {sizes.users} users (d={sizes.dimension}, K={sizes.arms})"
    kept, lost = recovered
    return [
        at_most(f"{name}, from its snapshot", [kept], "s", RECOVERY_TARGET_SECONDS),
        at_most(f"{name}, from the journal alone", [lost], "s", RECOVERY_TARGET_SECONDS),
    ]
