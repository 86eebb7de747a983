"""Measures one learner worker on an embedded broker, compared with a bare Faust agent.

Every rate is taken from the broker's log times, between the first and the last record that a process wrote, with all
inputs in the log before. So it contains neither the start of a process nor the speed of the reader.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hushstream.replay.bench.rows import BenchRow, Progress, at_least, at_most, figure
from hushstream.replay.bench.stream.long_life import long_life, long_life_rows
from hushstream.replay.bench.stream.runs import BATCH_ROWS, Round, StreamSizes, open_bench, prepare_deployment

EVENT_TARGET = 3.5
BATCH_TARGET = 5.0
P99_TARGET_MS = 100.0
GROWTH_TARGET = 1.1


def stream_rows(progress: Progress, rounds: int = 5, sizes: StreamSizes | None = None) -> list[BenchRow]:
    """Measure throughput, latency and memory of one learner worker, and what an old deployment costs.

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
        lived = await long_life(folder, system, sizes, progress)
    rows = [*_rate_rows(measured, sizes), *_latency_rows(measured, sizes), *_memory_rows(peaks, sizes)]
    return [*rows, *long_life_rows(lived, sizes)]


def _tell(progress: Progress, where: str, what: str) -> None:
    progress(f"{where}: {what}")


def _rate_rows(rounds: Sequence[Round], sizes: StreamSizes) -> list[BenchRow]:
    events, batches = sizes.event_pairs, sizes.batch_pairs
    shape = f"d={sizes.dimension}, K={sizes.arms}, {sizes.users} users"
    one = f"one event a record ({events} contexts + {events} rewards, {shape})"
    many = f"columnar records of {BATCH_ROWS} ({batches} contexts + {batches} rewards, {shape})"
    bare = "bare Faust agent with producer.send"
    ratios = [(r.events.per_second / r.passthrough, r.batches.per_second / r.passthrough) for r in rounds]
    return [
        figure(f"{bare}, {2 * events} records", [r.passthrough for r in rounds], "events/s"),
        figure(f"learner worker, {one}", [r.events.per_second for r in rounds], "events/s"),
        figure(f"learner worker, {many}", [r.batches.per_second for r in rounds], "events/s"),
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
