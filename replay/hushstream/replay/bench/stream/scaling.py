"""Measures whether two workers do twice the work of one, each worker on one core, without other load.

Every worker is pinned to a core of its own, and all input is in the log before the measured time begins: no producer
runs during it. On a machine with two cores the broker and this process share the workers' cores, so the run with two
workers loses wall-clock time to them. The workers' CPU time per event shows the difference: it grows only if two
workers of one group slow each other down.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from hushstream.replay.bench.cpu import CpuMeter, cores, pin
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import DecisionsTail, Folded, Timed, inputs_between
from hushstream.replay.bench.load import context_events, draw_rewards, reward_events
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, at_least, figure
from hushstream.replay.bench.stream.runs import SEED, Bench, Learner, StreamSizes, open_bench, prepare_deployment

SCALING_TARGET = 1.7

WORKERS = 2
START_SECONDS = 60.0

_AT_RECORD = re.compile(r"partition \d+: at journal record \d+ \((\d+) replayed")
_STEADY_SECONDS = 1.5
_LEAST_MS = 200


@dataclass(frozen=True, slots=True)
class ScalingRun:
    """One measured run: events a second over all partitions, CPU time per event, cores used by others, free cores."""

    per_second: float
    cpu_micros: float
    others_cores: float
    free_cores: float


async def scaled(folder: Path, bootstrap: str, sizes: StreamSizes, pairs: int) -> tuple[ScalingRun, ScalingRun]:
    """Measure one worker with all partitions, then as many workers as partitions.

    Args:
        folder: folder for the files of the processes.
        bootstrap: address of the Kafka cluster.
        sizes: sizes of the learner.
        pairs: contexts, and as many rewards, of each partition.

    Raises:
        BenchFailed: fewer cores than workers, too few events, or a process ended.
    """
    system = prepare_deployment(folder, sizes, learners=WORKERS)
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        return await _share(bench, "one", 1, pairs), await _share(bench, "two", WORKERS, pairs)


async def _share(bench: Bench, name: str, workers: int, pairs: int) -> ScalingRun:
    learner = await bench.learner(name)
    tails = [DecisionsTail(learner.connection.settings(), home) for home in range(WORKERS)]
    loads = [bench.load(2 * pairs, home) for home in range(WORKERS)]
    firsts = [load.part(0, pairs) for load in loads]
    more = [context_events(load.part(pairs, 2 * pairs)) for load in loads]
    async with AsyncExitStack() as stack:
        running = [await stack.enter_async_context(learner.running(number=n)) for n in range(1, workers + 1)]
        for worker, core in zip(running, cores(workers), strict=True):
            pin(worker, core)
            await recovered(worker, WORKERS // workers)
        await _until_shared(running)
        for home, tail in enumerate(tails):
            await learner.append("contexts", context_events(firsts[home]), home)
            await tail.until(pairs, 0, running[0].check)
        drawn = draw_rewards(pairs, SEED)
        rewards = [reward_events(first, tail.arms(), drawn) for first, tail in zip(firsts, tails, strict=True)]
        seen = [len(tail.records) for tail in tails]
        async with CpuMeter(running) as meter:
            await _append(learner, rewards, more)
            appended_ms = time.time() * 1000
            for tail in tails:
                await tail.until(2 * pairs, pairs, running[0].check)
    return _measured([tail.records[n:] for tail, n in zip(tails, seen, strict=True)], appended_ms, meter)


async def _append(learner: Learner, rewards: Sequence[Sequence[bytes]], contexts: Sequence[Sequence[bytes]]) -> None:
    for topic, homes in (("clicks", rewards), ("contexts", contexts)):
        for home, values in enumerate(homes):
            await learner.append(topic, values, home)


def _measured(partitions: Sequence[Sequence[Folded]], begun_ms: float, meter: CpuMeter) -> ScalingRun:
    """Compute the rate of folding from ``begun_ms`` until one partition has no input left."""
    ended_ms = min(records[-1].log_time_ms for records in partitions)
    if ended_ms - begun_ms < _LEAST_MS:
        raise BenchFailed(
            f"expected {_LEAST_MS} ms of folding after the last append, got {ended_ms - begun_ms:.0f} ms: "
            f"too few events"
        )
    folded = sum(inputs_between(records, begun_ms, ended_ms) for records in partitions)
    return ScalingRun(
        Timed(round(begun_ms), ended_ms, folded).per_second,
        meter.seconds(begun_ms, ended_ms) * 1e6 / folded,
        meter.others_cores(begun_ms, ended_ms),
        meter.free_cores(begun_ms, ended_ms),
    )


async def recovered(worker: Running, partitions: int) -> list[int]:
    """Wait until a worker has started this many partitions; return how many records it replayed for each."""
    deadline = time.monotonic() + START_SECONDS
    while len(found := _replayed_of_partitions(worker)) < partitions:
        worker.check()
        if time.monotonic() > deadline:
            raise BenchFailed(f"{worker.name}: expected {partitions} partitions within {START_SECONDS:g} s")
        await asyncio.sleep(0.05)
    return found


async def _until_shared(running: Sequence[Running]) -> None:
    """Wait until the group is stable, with no partition being assigned."""
    before = -1
    while (now := sum(len(_replayed_of_partitions(worker)) for worker in running)) != before:
        before = now
        await asyncio.sleep(_STEADY_SECONDS)


def _replayed_of_partitions(worker: Running) -> list[int]:
    return [int(number) for number in _AT_RECORD.findall(worker.log.read_text(errors="replace", encoding="utf-8"))]


def scaling_rows(measured: Sequence[tuple[ScalingRun, ScalingRun]], sizes: StreamSizes) -> list[BenchRow]:
    """Make the rows of some rounds."""
    shape = f"one event a record, {WORKERS} partitions, d={sizes.dimension}, K={sizes.arms}, {sizes.users} users"
    one, many = f"one learner worker on one core, {shape}", f"{WORKERS} learner workers on a core each, {shape}"
    arms = ((one, [found for found, _ in measured]), (many, [found for _, found in measured]))
    rows = []
    for name, shares in arms:
        rows += [
            figure(name, [share.per_second for share in shares], "events/s"),
            figure(f"{name}: the workers' CPU time", [share.cpu_micros for share in shares], "us/event"),
            figure(f"{name}: broker and all else meanwhile", [share.others_cores for share in shares], "cores"),
        ]
    wall = [found.per_second / base.per_second for base, found in measured]
    left = [min(WORKERS, found.free_cores) / min(1.0, base.free_cores) for base, found in measured]
    work = [WORKERS * base.cpu_micros / found.cpu_micros for base, found in measured]
    return [
        *rows,
        at_least(f"{WORKERS} workers / one by the wall clock, {shape}", wall, "x", SCALING_TARGET),
        figure(f"{WORKERS} workers / one: the cores that broker, bench and all else left for them", left, "x"),
        at_least(f"{WORKERS} workers / one by their CPU time ({WORKERS} x us/event)", work, "x", SCALING_TARGET),
    ]
