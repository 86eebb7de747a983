"""Measures the stream on a Kafka cluster: next to the embedded broker, with two workers, at half rate, after a kill.

Rates come from the broker's log times, as in `hushstream.replay.bench.stream`. The topics of the runs are deleted at
their end; the broker's groups expire by themselves.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hushstream.agents.worker.session import KAFKA_LEAST_SECONDS
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.load import Load, context_batches, draw_rewards, reward_batches
from hushstream.replay.bench.rows import BenchRow, Progress, at_least, at_most, figure
from hushstream.replay.bench.stream.pace import at_half, crowded_at_half, crowded_rows, paced_rows
from hushstream.replay.bench.stream.runs import (
    BATCH_ROWS,
    SEED,
    Learner,
    Rate,
    StreamSizes,
    open_bench,
    prepare_deployment,
)
from hushstream.replay.bench.stream.scaling import WORKERS, ScalingRun, recovered, scaled, scaling_rows

EMBEDDED_TARGET = 0.7
RECOVERY_TARGET_SECONDS = 30.0
SESSION_SECONDS = KAFKA_LEAST_SECONDS + 1.0
"""The longest time until a group notices that a worker was killed."""
NO_SNAPSHOT_SECONDS = 86_400.0
"""An interval between snapshots that is longer than a run, so that none is taken."""

_FORMS = {"events": "one event a record", "batches": f"columnar records of {BATCH_ROWS}"}


@dataclass(frozen=True, slots=True)
class KafkaSizes:
    """How large the runs are.

    Attributes:
        stream: sizes of the runs on both brokers, and of those at half the rate.
        scaled_pairs: contexts, and as many rewards, of each partition of the scaling runs.
        crowded_users: how many users there are in the run at half the rate that takes snapshots all the time.
        recovered: sizes of the run whose worker is killed; each of its users gets one decision and one reward.
    """

    stream: StreamSizes = field(default_factory=lambda: StreamSizes(paced_seconds=5.0))
    scaled_pairs: int = 60_000
    crowded_users: int = 20_000
    recovered: StreamSizes = field(default_factory=lambda: StreamSizes(dimension=10, arms=10, users=100_000))


@dataclass(frozen=True, slots=True)
class _Beside:
    """One worker's rate on the given broker, and on the embedded one."""

    given: Rate
    embedded: Rate


def kafka_rows(bootstrap: str, progress: Progress, rounds: int = 3, sizes: KafkaSizes | None = None) -> list[BenchRow]:
    """Measure learner workers on a Kafka cluster; ratios are taken within a round, figures are medians.

    Args:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
        progress: called with what is being measured.
        rounds: repetitions.
        sizes: how large the runs are; None: the sizes for which targets are stated.

    Raises:
        BenchFailed: a process ended, or made no more progress; or this machine has a single core.
    """
    return asyncio.run(_measure(bootstrap, progress, rounds, sizes or KafkaSizes()))


async def _measure(bootstrap: str, progress: Progress, rounds: int, sizes: KafkaSizes) -> list[BenchRow]:
    beside: dict[str, list[_Beside]] = {form: [] for form in _FORMS}
    shares: list[tuple[ScalingRun, ScalingRun]] = []
    paced = []
    crowded = []
    with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as name:
        folder = Path(name)
        for number in range(1, rounds + 1):
            place = folder / f"round-{number}"
            where = f"round {number} of {rounds}"
            for form in _FORMS:
                progress(f"{where}: {form}, given and embedded broker")
                beside[form].append(await _beside(place / form, bootstrap, sizes.stream, form, number))
            progress(f"{where}: one worker and {WORKERS}")
            shares.append(await scaled(place / "scaled", bootstrap, sizes.stream, sizes.scaled_pairs))
            progress(f"{where}: at half the rate")
            rate = beside["events"][-1].given.per_second
            paced.append(await at_half(place / "paced", bootstrap, sizes.stream, rate))
            progress(f"{where}: at half the rate, {sizes.crowded_users} users and snapshots")
            many = replace(sizes.stream, users=sizes.crowded_users)
            crowded.append(await crowded_at_half(place / "crowded", bootstrap, many, rate))
        progress(f"recovery of {sizes.recovered.users} users")
        lost = await _recovery(folder / "recovery", bootstrap, sizes.recovered)
    rows = [row for form, found in beside.items() for row in _rate_rows(form, found, sizes.stream)]
    scaling = scaling_rows(shares, sizes.stream)
    return [*rows, *scaling, *paced_rows(paced), *crowded_rows(crowded), *_recovery_rows(lost, sizes.recovered)]


async def _beside(folder: Path, bootstrap: str, sizes: StreamSizes, form: str, number: int) -> _Beside:
    """Measure one worker on both brokers; every other round begins with the other broker."""
    system = prepare_deployment(folder, sizes)
    found: dict[str | None, Rate] = {}
    for given in (bootstrap, None) if number % 2 else (None, bootstrap):
        place = folder / ("embedded" if given is None else "given")
        async with open_bench(place, system, replace(sizes, paced_seconds=0.0), given) as bench:
            found[given] = (await bench.events())[0] if form == "events" else await bench.batches()
    return _Beside(found[bootstrap], found[None])


async def _recovery(folder: Path, bootstrap: str, sizes: StreamSizes) -> tuple[float, float]:
    """Seconds from the start of a worker to its first fold: from its snapshot, and from the journal alone."""
    system = prepare_deployment(folder, sizes)
    users = [f"user-{number:06d}" for number in range(sizes.users)]
    async with open_bench(folder / "runs", system, sizes, bootstrap) as bench:
        learner = await bench.learner("lost")
        load = replace(bench.load(sizes.users), users=users)
        await _fed(learner, load)
        # Wait until the group notices that the worker was killed.
        await asyncio.sleep(SESSION_SECONDS)
        lost = await _restart(learner, 2, journal=True)
        return await _restart(learner, 2, journal=False), lost


async def _fed(learner: Learner, load: Load) -> None:
    """Decide and reward every context, and kill the worker before it saves or publishes a state."""
    values = context_batches(load, BATCH_ROWS)
    await learner.append("contexts", values)
    async with learner.running("--snapshot-interval", f"{NO_SNAPSHOT_SECONDS:g}", kill=True) as worker:
        await learner.tail.until(len(values), 0, worker.check)
        rewards = draw_rewards(len(load), SEED)
        await learner.append("clicks", reward_batches(load, learner.tail.arms(), rewards, BATCH_ROWS))
        await learner.tail.until(len(values), len(values), worker.check)


async def _restart(learner: Learner, number: int, *, journal: bool) -> float:
    """Start a worker on an earlier data directory or an empty one, stop it; return the seconds to its first fold."""
    (learner.folder / f"{learner.name}-{number}.log").unlink(missing_ok=True)
    begun = time.monotonic()
    async with learner.running(number=number) as worker:
        (replayed,) = await recovered(worker, 1)
        seconds = time.monotonic() - begun
    if journal != (replayed > 0):
        raise BenchFailed(f"expected records to be replayed: {journal}, got {replayed}")
    return seconds


def _rate_rows(form: str, measured: Sequence[_Beside], sizes: StreamSizes) -> list[BenchRow]:
    shape = f"d={sizes.dimension}, K={sizes.arms}, {sizes.users} users"
    name = f"learner worker, {_FORMS[form]} ({shape})"
    ratios = [found.given.per_second / found.embedded.per_second for found in measured]
    cpu = f"{name}: the worker's CPU time"
    return [
        figure(f"{name}, given broker", [found.given.per_second for found in measured], "events/s"),
        figure(f"{name}, embedded broker", [found.embedded.per_second for found in measured], "events/s"),
        at_least(f"{name}, given / embedded broker", ratios, "x", EMBEDDED_TARGET),
        figure(f"{cpu}, given broker", [found.given.cpu_micros for found in measured], "us/event"),
        figure(f"{cpu}, embedded broker", [found.embedded.cpu_micros for found in measured], "us/event"),
    ]


def _recovery_rows(recovery: tuple[float, float], sizes: StreamSizes) -> list[BenchRow]:
    name = f"start of a learner worker with {sizes.users} users (d={sizes.dimension}, K={sizes.arms})"
    kept, lost = recovery
    return [
        at_most(f"{name}, from its snapshot", [kept], "s", RECOVERY_TARGET_SECONDS),
        at_most(f"{name}, from the journal alone", [lost], "s", RECOVERY_TARGET_SECONDS),
    ]
