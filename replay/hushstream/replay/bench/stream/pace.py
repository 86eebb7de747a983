"""Measures a deployment at half of a learner's rate: the waits for decisions and models, and the learner's lag.

The load has the form of the runs that measured the rate: a reward for every context. A bare producer sends most of it.
A client also requests a few decisions a second; its wait is the time from the call to the answer. In the run with many
users and snapshots all the time, the learner runs alone. It has a large state then, and a snapshot must not delay its
answers.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.kafka.logs import LogReader
from hushstream.client import Client, connect
from hushstream.replay.bench.baseline import log_times
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import STALL_SECONDS, Folded
from hushstream.replay.bench.load import context_events, draw_rewards, reward_events
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, at_most, figure
from hushstream.replay.bench.stream.runs import (
    SEED,
    Bench,
    Learner,
    StreamSizes,
    open_bench,
    prepare_deployment,
)
from hushstream.replay.bench.trail import read_trail
from hushstream.systems.p2b.configuration import ReleaseConfig, SlotConfig

P99_TARGET_MS = 100.0

PROBES_PER_SECOND = 50

SLOT = SlotConfig(after_interactions=10, lifetime_slots=100_000, settle_seconds=0.0)
"""A user's slot is due after ten decisions and leaves at once.

A settle time, which is a wait by design, would hide the latency.
"""

WINDOWS = 50
"""Approximate number of windows that close during the measured time."""

SNAPSHOT_SECONDS = 1.0
"""Time between two snapshots of the crowded learner."""

_STEADY_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Paced:
    """The results at a fixed pace.

    Attributes:
        pace: contexts a second, and rewards a second.
        waits_ms: waits of the client's calls.
        lags: how many contexts were unanswered at each answer.
        models_ms: times from the last reward of a window to its model.
        window_slots: how many slots a window has.
    """

    pace: int
    waits_ms: Sequence[float]
    lags: Sequence[int]
    models_ms: Sequence[int]
    window_slots: int


@dataclass(frozen=True, slots=True)
class Crowded:
    """The results at a fixed pace, of a learner with many users that takes snapshots all the time.

    Attributes:
        pace, waits_ms: as in `Paced`.
        users: how many users there are.
        silence_ms: the longest time between two records of decisions.
    """

    pace: int
    users: int
    waits_ms: Sequence[float]
    silence_ms: int


async def at_half(folder: Path, bootstrap: str, sizes: StreamSizes, events_per_second: float) -> Paced:
    """Run all roles at half of a rate; half of the events are contexts, half rewards.

    Raises:
        BenchFailed: a process ended, the load could not be appended in time, or no model was published.
    """
    pace = round(events_per_second / 4)
    count = round(pace * sizes.paced_seconds)
    release = ReleaseConfig(window_slots=max(1, count // SLOT.after_interactions // WINDOWS), sums="fresh")
    system = prepare_deployment(folder, sizes, slot=SLOT, release=release)
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        learner = await bench.learner("paced")
        contexts, rewards = await _prepared(bench, learner, count)
        async with AsyncExitStack() as stack:
            worker = await stack.enter_async_context(learner.running())
            for role in ("shuffler", "aggregator"):
                await stack.enter_async_context(learner.running(role=role))
            await _until_models_rest(learner)
            waits, decisions = await _loaded(bench, learner, worker, sizes, pace, (contexts, rewards))
            times = await log_times(learner.connection, ("contexts", 0), learner.tail.position("contexts"), worker)
            models = await _model_waits(learner, worker, sizes)
        if not models:
            raise BenchFailed(f"expected models from {count} contexts and rewards, got none in {STALL_SECONDS:g} s")
        return Paced(pace, waits, list(_lags(decisions, times)), models, release.window_slots)


async def crowded_at_half(folder: Path, bootstrap: str, sizes: StreamSizes, events_per_second: float) -> Crowded:
    """Run a learner alone at half of a rate (half contexts, half rewards), with snapshots all the time.

    Raises:
        BenchFailed: the worker ended, or the load could not be appended in time.
    """
    pace = round(events_per_second / 4)
    system = prepare_deployment(folder, sizes, slot=SLOT)
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        learner = await bench.learner("crowded")
        load = await _prepared(bench, learner, round(pace * sizes.paced_seconds))
        async with learner.running("--snapshot-interval", f"{SNAPSHOT_SECONDS:g}") as worker:
            waits, decisions = await _loaded(bench, learner, worker, sizes, pace, load)
    silence = np.diff([record.log_time_ms for record in decisions]).max()
    return Crowded(pace, sizes.users, waits, int(silence))


async def _loaded(
    bench: Bench,
    learner: Learner,
    worker: Running,
    sizes: StreamSizes,
    pace: int,
    load: tuple[Sequence[bytes], Sequence[bytes]],
) -> tuple[list[float], Sequence[Folded]]:
    """Append contexts and rewards at a pace; return the client's waits in that time (ms), and the decisions."""
    contexts, rewards = load
    async with connect(learner.connection.bootstrap, "bench", prefix=learner.connection.prefix) as client:
        await client.decide("probe-first", "probe-0", _even(sizes), timeout=STALL_SECONDS)
        await learner.tail.until(learner.tail.position("contexts") + 1, 0, worker.check)
        before = len(learner.tail.records)
        probing = asyncio.create_task(_probe(client, sizes))
        try:
            await bench.paced(learner, {"contexts": contexts, "clicks": rewards}, worker, pace)
        finally:
            waits = await probing
    return waits, learner.tail.records[before:]


async def _prepared(bench: Bench, learner: Learner, count: int) -> tuple[list[bytes], list[bytes]]:
    """Make ``count`` contexts, and the rewards of as many other contexts that are decided already."""
    load = bench.load(2 * count)
    first, second = load.part(0, count), load.part(count, 2 * count)
    await learner.append("contexts", context_events(first))
    async with learner.running() as worker:
        await learner.tail.until(count, 0, worker.check)
    return context_events(second), reward_events(first, learner.tail.arms(), draw_rewards(count, SEED))


async def _until_models_rest(learner: Learner) -> None:
    """Wait until the slots of earlier decisions are in models, and the learner has adopted all of these."""
    deadline = time.monotonic() + STALL_SECONDS
    source, before = ("models", 0), -1
    async with LogReader(learner.connection.settings()) as reader:
        while time.monotonic() < deadline:
            end = (await reader.end_offsets([source]))[source]
            if end == before and end > 0:
                return
            before = end
            await asyncio.sleep(_STEADY_SECONDS)


async def _model_waits(learner: Learner, worker: Running, sizes: StreamSizes) -> Sequence[int]:
    """Milliseconds from the last reward of a window to the first decision by its model; empty if there is none.

    A model counts only if a decision follows it, and on a busy machine some models come after the end of the load. So
    this requests further decisions.
    """
    deadline, asked = time.monotonic() + STALL_SECONDS, itertools.count()
    async with connect(learner.connection.bootstrap, "bench", prefix=learner.connection.prefix) as client:
        while not (waits := await _waits_now(learner)) and time.monotonic() < deadline:
            await client.decide(f"probe-model-{next(asked)}", "probe-0", _even(sizes), timeout=STALL_SECONDS)
            await learner.tail.until(learner.tail.position("contexts") + 1, 0, worker.check)
            await asyncio.sleep(_STEADY_SECONDS)
    return waits


async def _waits_now(learner: Learner) -> Sequence[int]:
    return (await read_trail(learner.connection.settings(), learner.tail.records)).waits_ms()


def _even(sizes: StreamSizes) -> NDArray[np.float32]:
    """A context with equal entries, (d,)."""
    return np.full(sizes.dimension, 1 / sizes.dimension, np.float32)


async def _probe(client: Client, sizes: StreamSizes) -> list[float]:
    """Call `Client.decide` a few times a second during the load; yield the milliseconds of each call."""
    context = _even(sizes)
    waits: list[float] = []

    async def ask(number: int) -> None:
        begun = time.perf_counter()
        await client.decide(f"probe-{number}", f"probe-{number % sizes.users}", context, timeout=10.0)
        waits.append((time.perf_counter() - begun) * 1000)

    async with asyncio.TaskGroup() as group:
        for number in range(1, round(PROBES_PER_SECOND * sizes.paced_seconds)):
            group.create_task(ask(number))
            await asyncio.sleep(1 / PROBES_PER_SECOND)
    return waits


def _lags(records: Sequence[Folded], times_ms: Sequence[int]) -> Iterator[int]:
    """At each append of decisions, how many contexts were in the log but not decided."""
    for record in records:
        if record.contexts[1]:
            yield max(0, int(np.searchsorted(times_ms, record.log_time_ms, "right")) - record.contexts[1])


def crowded_rows(crowded: Sequence[Crowded]) -> list[BenchRow]:
    """Make the rows of some rounds."""
    pace = round(float(np.median([one.pace for one in crowded])))
    load = (
        f"at {pace} contexts/s and {pace} rewards/s of {crowded[0].users} users, "
        f"a snapshot every {SNAPSHOT_SECONDS:g} s"
    )
    waits = [np.percentile(one.waits_ms, [50, 95, 99]) for one in crowded]
    name = f"context to decision at the client, {load}"
    return [
        figure(f"{name}: p50", [float(found[0]) for found in waits], "ms"),
        figure(f"{name}: p95", [float(found[1]) for found in waits], "ms"),
        at_most(f"{name}: p99", [float(found[2]) for found in waits], "ms", P99_TARGET_MS),
        figure(f"longest time without a decision, {load}", [float(one.silence_ms) for one in crowded], "ms"),
    ]


def paced_rows(paced: Sequence[Paced]) -> list[BenchRow]:
    """Make the rows of some rounds."""
    pace = round(float(np.median([one.pace for one in paced])))
    load = f"{pace} contexts/s and {pace} rewards/s (half the rate)"
    waits = [np.percentile(one.waits_ms, [50, 95, 99]) for one in paced]
    lags = [np.percentile(one.lags, [50, 99]) for one in paced]
    models = [np.percentile(one.models_ms, [50, 99]) for one in paced]
    count = round(float(np.median([len(one.models_ms) for one in paced])))
    name = f"context to decision at the client, at {load}"
    windows = f"{count} windows of {round(float(np.median([one.window_slots for one in paced])))} slots"
    model = f"last reward of a window to its model in the learner ({windows}), at {load}"
    return [
        figure(f"{name}: p50", [float(found[0]) for found in waits], "ms"),
        figure(f"{name}: p95", [float(found[1]) for found in waits], "ms"),
        at_most(f"{name}: p99", [float(found[2]) for found in waits], "ms", P99_TARGET_MS),
        figure(f"{model}: p50", [float(found[0]) for found in models], "ms"),
        figure(f"{model}: p99", [float(found[1]) for found in models], "ms"),
        figure(f"lag of the learner at {load}: p50", [float(found[0]) for found in lags], "contexts"),
        figure(f"lag of the learner at {load}: p99", [float(found[1]) for found in lags], "contexts"),
    ]
