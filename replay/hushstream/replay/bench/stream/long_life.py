"""Measures a deployment after a million interactions: its size on disk, and how fast it restarts from its state.

The learner publishes its state, continues for one more chunk, and is killed. Another learner, without any files of the
first, starts from that state and replays what came after it; `verify` begins with it too. Neither should depend on the
age of the journals, and this benchmark measures that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KEYS, KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System
from hushstream.engine.state.published import StateSeal
from hushstream.ops.check.checkpoints import From, PublishedCopy
from hushstream.ops.check.findings import Status
from hushstream.ops.check.verify import verified_topics, verify
from hushstream.ops.live import copy_async
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import waits_ms
from hushstream.replay.bench.load import (
    Load,
    context_batches,
    context_events,
    draw_rewards,
    reward_batches,
    reward_events,
)
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, Progress, at_most, figure
from hushstream.replay.bench.stream.runs import (
    BATCH_ROWS,
    DEPLOYMENT,
    SEED,
    Bench,
    Learner,
    StreamSizes,
    open_bench,
)
from hushstream.replay.bench.stream.scaling import recovered

RECORD_BATCH_BYTES = 70
"""Bytes that Kafka's log adds to the value of a record that is appended alone: the headers of batch and record."""

JOURNAL, STATE = "decisions", "state-learner"
SNAPSHOT_SECONDS, PUBLISHED_SECONDS = 5.0, 300.0
SESSION_SECONDS = 1.0 + WorkerSettings.model_fields["session_timeout_seconds"].default
RECOVERY_TARGET_SECONDS, VERIFY_TARGET_SECONDS, BYTES_TARGET = 10.0, 60.0, 60.0


@dataclass(frozen=True, slots=True)
class Modest:
    """The bytes that an interaction takes where events come one by one at `StreamSizes.modest_pace`, and their waits.

    Attributes:
        rows, fixed, envelope: bytes of the learner's journal: of the rows in its records, of the rest of its records,
            and of what the broker's log adds to them.
        inputs: bytes that clients send, by topic, without the bytes that the broker adds to their batches.
        waits_ms: times from a context's append to that of its decision.
    """

    rows: float
    fixed: float
    envelope: float
    inputs: Mapping[str, float]
    waits_ms: Sequence[int]

    @property
    def journal(self) -> float:
        """Bytes of the learner's journal."""
        return self.rows + self.fixed + self.envelope


@dataclass(frozen=True, slots=True)
class LongRun:
    """The results of the run.

    Attributes:
        journal_bytes: bytes of the learner's journal per interaction, with columnar input that was on the log before
            the start.
        alone, modest: bytes with events that come one by one: without linger, and with the default settings.
        state_bytes: bytes of the states that the broker keeps.
        replayed: how many journal records lie between the last published state and the end.
        recovery_seconds: from the start of a process to its first fold, after the killed one's session has ended.
        verify_seconds: time to verify the learner's journal from its newest state, with the copy of the topics.
        recomputed, skipped: how many journal records were recomputed, and skipped.
    """

    journal_bytes: float
    alone: Modest
    modest: Modest
    state_bytes: int
    replayed: int
    recovery_seconds: float
    verify_seconds: float
    recomputed: int
    skipped: int


async def long_life(folder: Path, system: System, sizes: StreamSizes, progress: Progress) -> LongRun:
    """Feed a learner, kill it, and continue from what it published.

    Args:
        folder: folder of the prepared deployment; the run gets a folder inside.
        system: the deployment.
        sizes: how large the run is.
        progress: called with what is being measured.

    Raises:
        BenchFailed: a process ended, or the journal does not verify.
    """
    async with open_bench(folder / "long", system, sizes) as bench:
        progress(f"{sizes.modest_pairs} interactions at {sizes.modest_pace} a second")
        alone = await _modest(bench, sizes, "alone", "--gather", "0")
        modest = await _modest(bench, sizes, "modest")
        progress(f"{sizes.long_interactions} interactions, and a start and a check from the last state")
        learner = await bench.learner("long")
        await _fed(bench, learner, sizes, folder)
        # Not part of the recovery time: the group waits for the killed member until its session expires, whatever its
        # state.
        await asyncio.sleep(SESSION_SECONDS)
        begun = time.monotonic()
        async with learner.running(number=2) as worker:
            (replayed,) = await recovered(worker, 1)
            recovery = time.monotonic() - begun
        written = await _bytes(learner, system)
        begun = time.monotonic()
        counts = await _verified(learner, system, folder)
        seconds = time.monotonic() - begun
    per_interaction = written[JOURNAL] / sizes.long_interactions
    return LongRun(per_interaction, alone, modest, written[STATE], replayed, recovery, seconds, *counts)


async def _modest(bench: Bench, sizes: StreamSizes, name: str, *options: str) -> Modest:
    """Send contexts and rewards at a fixed rate, one event a record."""
    learner = await bench.learner(name)
    load = bench.load(2 * sizes.modest_pairs)
    first, second = load.part(0, sizes.modest_pairs), load.part(sizes.modest_pairs, len(load))
    await learner.append("contexts", context_events(first))
    async with learner.running(*options) as worker:
        await learner.tail.until(len(first), 0, worker.check)
        before = len(learner.tail.records)
        rewards = reward_events(first, learner.tail.arms(), draw_rewards(len(first), SEED))
        inputs = {"contexts": context_events(second), "clicks": rewards}
        low = learner.tail.position("contexts")
        times = await bench.paced(learner, inputs, worker, sizes.modest_pace)
    records, count = learner.tail.records[before:], len(second)
    rows = sum(record.rows_size for record in records)
    fixed = sum(record.size for record in records) - rows
    taken = (rows / count, fixed / count, RECORD_BATCH_BYTES * len(records) / count)
    sent = {topic: sum(map(len, values)) / count for topic, values in inputs.items()}
    return Modest(*taken, sent, waits_ms(records, low, times))


async def _fed(bench: Bench, learner: Learner, sizes: StreamSizes, folder: Path) -> None:
    """Decide and reward every interaction, publish a state before the last chunk, and kill the worker at the end.

    Raises:
        BenchFailed: the worker ended, or published no state.
    """
    load, chunk = bench.load(sizes.long_interactions), sizes.memory_chunk
    last = (len(load) - 1) // chunk * chunk
    records = 0
    async with learner.running("--snapshot-interval", f"{SNAPSHOT_SECONDS:g}", kill=True) as worker:
        for first in range(0, last, chunk):
            records += await _fold(learner, worker, load.part(first, first + chunk), records)
        await _published(bench, learner, worker, folder)
        await _fold(learner, worker, load.part(last, len(load)), records)


async def _published(bench: Bench, learner: Learner, worker: Running, folder: Path) -> None:
    """Wait until a published state contains everything that was folded."""
    work = role_work("learner", bench.system, KeySource(folder=folder / DEPLOYMENT / KEYS))
    seal = StateSeal(bench.system.config.deployment, "learner", 0, work.make_machine.state_keys())
    folded = learner.tail.position("contexts") + learner.tail.position("clicks")
    deadline = time.monotonic() + PUBLISHED_SECONDS
    while time.monotonic() < deadline:
        worker.check()
        logs = await copy_async(learner.connection, bench.system.partitions, (STATE,))
        if any(found.head.folded >= folded for found in PublishedCopy(logs.part((STATE, 0)), seal).found):
            return
        await asyncio.sleep(1.0)
    raise BenchFailed(f"expected a published state within {PUBLISHED_SECONDS:g} s, got none")


async def _fold(learner: Learner, worker: Running, part: Load, before: int) -> int:
    """Append a part's contexts, then its rewards, after ``before`` records of each; return how many records it has."""
    values = context_batches(part, BATCH_ROWS)
    end = before + len(values)
    await learner.append("contexts", values)
    await learner.tail.until(end, before, worker.check)
    arms = learner.tail.arms()[-len(part) :]
    await learner.append("clicks", reward_batches(part, arms, draw_rewards(len(part), before), BATCH_ROWS))
    await learner.tail.until(end, end, worker.check)
    return len(values)


async def _bytes(learner: Learner, system: System) -> dict[str, int]:
    """Bytes of the learner's journal and of its published states in the log, with each record in a batch of its own."""
    logs = await copy_async(learner.connection, system.partitions, (JOURNAL, STATE))
    return {
        name: sum(RECORD_BATCH_BYTES + len(record.value) for record in logs.records([name]))
        for name in (JOURNAL, STATE)
    }


async def _verified(learner: Learner, system: System, folder: Path) -> tuple[int, int]:
    """Verify the learner from its newest state; return how many journal records were recomputed, and skipped."""
    topics = verified_topics(system, ["learner"], From.LAST_CHECKPOINT)
    logs = await copy_async(learner.connection, system.partitions, topics)
    keys = KeySource(folder=folder / DEPLOYMENT / KEYS)
    found = await asyncio.to_thread(verify, logs, system, keys, ["learner"], From.LAST_CHECKPOINT)
    if not found.ok:
        raise BenchFailed(f"expected a journal that verifies from its last state, got {found.totals}")
    counts = found.of(JOURNAL)
    return counts[Status.EQUAL], counts[Status.SKIPPED]


def long_life_rows(found: LongRun, sizes: StreamSizes) -> list[BenchRow]:
    """Make the rows of one run."""
    age = f"after {sizes.long_interactions} interactions (d={sizes.dimension}, K={sizes.arms}, {sizes.users} users)"
    paced = f"at {sizes.modest_pace} interactions/s, one event a record"
    modest = f"the learner's journal {paced}"
    start = f"start of a learner worker from its last published state, {age}"
    check = f"verify of the learner from its newest state, {age}"
    return [
        at_most(modest, [found.modest.journal], "bytes/interaction", BYTES_TARGET),
        figure(f"{modest}: the broker's share of records and batches", [found.modest.envelope], "bytes/interaction"),
        figure(f"{modest}: what a record holds beside its rows", [found.modest.fixed], "bytes/interaction"),
        *(
            figure(f"{topic} {paced}, values alone", [size], "bytes/interaction")
            for topic, size in found.modest.inputs.items()
        ),
        *_wait_rows(found.modest, paced),
        figure(f"{modest}, if none waits for another", [found.alone.journal], "bytes/interaction"),
        *_wait_rows(found.alone, f"{paced}, if none waits for another"),
        at_most(
            f"the learner's journal, columnar records of {BATCH_ROWS}",
            [found.journal_bytes],
            "bytes/interaction",
            BYTES_TARGET,
        ),
        figure(f"published states on the broker {age}", [found.state_bytes / 1e6], "MB"),
        at_most(start, [found.recovery_seconds], "s", RECOVERY_TARGET_SECONDS),
        figure(f"{start}: replayed", [found.replayed], "records"),
        at_most(check, [found.verify_seconds], "s", VERIFY_TARGET_SECONDS),
        figure(f"{check}: recomputed", [found.recomputed], "records"),
        figure(f"{check}: skipped", [found.skipped], "records"),
    ]


def _wait_rows(found: Modest, paced: str) -> list[BenchRow]:
    p50, p99 = np.percentile(found.waits_ms, [50, 99])
    wait = f"append to decision {paced}"
    return [figure(f"{wait}: p50", [float(p50)], "ms"), figure(f"{wait}: p99", [float(p99)], "ms")]
