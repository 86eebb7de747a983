"""Measures the speed of P2B's parts in one thread, for ``make bench``.

Every figure is a median over rounds, and a ratio is taken within a round, because speeds of machines vary. All rates
and times are of the thread's CPU time, which other programs on the machine disturb least. BLAS may use only this
thread.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.agents.process import no_full_collections
from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.learners.exploration import best_of
from hushstream.learners.linucb import LinUCB, LinUCBModel
from hushstream.learners.sparse import SparseContext, SparseModel, SparseUCB
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, discrete_laplace, laplace_scale
from hushstream.replay.catalogue import make_world
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, at_most, cpu_seconds, figure
from hushstream.replay.studies.p2b.play import fitted_system, run_population
from hushstream.replay.worlds.mixed_table import MixedTable
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import ContextConfig, EncoderConfig, P2BConfig, ReleaseConfig, SlotConfig
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.machines.learner import LearnerMachine
from hushstream.systems.p2b.server.estimate import cold_start
from hushstream.systems.p2b.shuffler import linear_sums, noised_sums
from hushstream.systems.p2b.slots import FeatureLayout, layout_of, pack_reports, unpack_reports

DIMENSION = ARMS = 25
BATCH = 256
WINDOW = 50_000
USERS = 100_000
FOLDED = 2_048

Rows = Callable[[int], list[BenchRow]]
"""A function that measures one subject in a number of rounds, and makes its rows."""


def compute_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure every subject.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    rows: list[BenchRow] = []
    with threadpool_limits(limits=1):
        for name, measure in SUBJECTS.items():
            progress(name)
            rows += measure(rounds)
    return rows


def learner_rows(rounds: int) -> list[BenchRow]:
    """Measure LinUCB at d=25, K=25, one event at a time."""
    single = [_per_event(*_events(20_000, number)) for number in range(rounds)]
    shape = f"d={DIMENSION}, K={ARMS}"
    return [at_least(f"LinUCB, choose and learn one event at a time, {shape}", single, "events/CPU s", 100_000)]


def agent_rows(rounds: int) -> list[BenchRow]:
    """Measure one choice and learning step of `EdgeAgent` at d=25, K=25, for new and old agents."""
    config = P2BConfig(
        "bench", ARMS, ContextConfig(DIMENSION), 1_000, encoder=EncoderConfig(codes=8), slot=SlotConfig(100, 1)
    )
    terms = fitted_system(config).edge_terms()
    key = seeded_key(0, "edge")
    quantiles: list[tuple[float, float]] = []
    for number in range(rounds):
        contexts, rewards = _events(5_000, number)
        agents = [EdgeAgent(terms, key.derive("user", f"user-{index}"), "cold") for index in range(100)]
        taken = np.empty(len(contexts))
        for event, context in enumerate(contexts):
            agent, name = agents[event % len(agents)], f"event-{event}"
            begin = time.thread_time()
            arm = agent.decide(name, context, 0).arm
            agent.rewarded(name, arm, float(rewards[event, arm]))
            taken[event] = time.thread_time() - begin
        median, high = np.quantile(taken, (0.5, 0.99)) * 1000.0
        quantiles.append((float(median), float(high)))
    name = f"EdgeAgent, choose and learn, d={DIMENSION}, K={ARMS}"
    return [
        figure(f"{name}: p50", [median for median, _ in quantiles], "CPU ms"),
        at_most(f"{name}: p99", [high for _, high in quantiles], "CPU ms", 1.0),
    ]


def population_rows(rounds: int) -> list[BenchRow]:
    """Measure a run with Figure 4's largest population (cold, non-private, private), without the encoder's fit."""
    contributors = USERS * 7 // 10
    config = P2BConfig(
        "bench",
        10,
        ContextConfig(10),
        contributors,
        encoder=EncoderConfig(codes=1024),
        slot=SlotConfig(10, 1),
        release=ReleaseConfig(mode="paper", sampling=0.5, window_slots=contributors),
    )
    system = fitted_system(config)
    seconds = []
    for number in range(rounds):
        world = make_world("synthetic", users=USERS, reward_scale=0.1, seed=number)
        seconds.append(cpu_seconds(run_population, system, world, contributors, USERS - contributors, number))
    return [at_most(f"population run, U={USERS:,}, T=10, d=10, K=10, k=1024, three arms", seconds, "CPU s", 60.0)]


def feature_rows(rounds: int) -> list[BenchRow]:
    """Measure declared features (83 cells of a mixed table): choices for new users, and the sums of a window."""
    found: list[BenchRow] = []
    for arms, single, batched, whole in ((10, 150_000, 400_000, 40_000), (100, 40_000, 100_000, 20_000)):
        world = MixedTable(0, arms)
        layout = layout_of(world.schema, arms, 1, 1.0, 50_000)
        start = cold_start(arms, layout.cells, len(world.schema.table))
        model, kernel = SparseModel.of(*start), SparseUCB(arms, layout.cells, layout.places)
        blocks = world.schema.blocks(world.visits(np.arange(BATCH), 0).rows)
        cells = np.concatenate([np.zeros((BATCH, 1), dtype=np.int64), blocks.cells + 1], axis=1)
        contexts = SparseContext.of(cells, np.concatenate([np.ones((BATCH, 1)), blocks.values], axis=1))
        shape = f"d={layout.cells}, K={arms}"
        each = [contexts.at(row) for row in range(BATCH)]
        rates = [20 * BATCH / cpu_seconds(_choose_each, kernel, model, each, 20) for _ in range(rounds)]
        found.append(at_least(f"declared features, choose one at a time, {shape}", rates, "events/CPU s", single))
        rates = [20 * BATCH / cpu_seconds(_choose_all, kernel, model, contexts, 20) for _ in range(rounds)]
        found.append(
            at_least(f"declared features, choose in batches of {BATCH}, {shape}", rates, "events/CPU s", batched)
        )
        for together, target in ((1, None), (BATCH, whole)):
            rates = [FOLDED / _folded(world, arms, together) for _ in range(rounds)]
            name = f"declared features, the learner's whole fold, events in folds of {together}, {shape}"
            unit = "events/CPU s"
            found.append(figure(name, rates, unit) if target is None else at_least(name, rates, unit, target))
    world = MixedTable(0, 10)
    layout = layout_of(world.schema, 10, 1, 1.0, WINDOW)
    numbers = np.arange(WINDOW, dtype=np.int64)
    units = layout.units_of(world.schema.blocks(world.visits(numbers, 0).rows))
    contents = pack_reports(layout, numbers % 10, numbers % 2, 0, units)
    rates = [WINDOW / cpu_seconds(_sum_up, layout, contents) for _ in range(rounds)]
    cells_of_all = 2 * layout.arms * layout.cells
    name = f"shuffler, slots of declared features to {cells_of_all:,} sums"
    return [*found, at_least(name, rates, "slots/CPU s", 100_000)]


SUBJECTS: dict[str, Rows] = {
    "learner": learner_rows,
    "agent": agent_rows,
    "population": population_rows,
    "features": feature_rows,
}
"""The subjects that `compute_rows` measures; more may be added."""


def _events(count: int, seed: int) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """Contexts (n, d), and a click (1) or none (0) for every arm (n, K)."""
    generator = np.random.default_rng(seed)
    contexts = generator.dirichlet(np.ones(DIMENSION), count).astype(np.float32)
    chances = contexts @ generator.random((DIMENSION, ARMS))
    return contexts, (generator.random((count, ARMS)) < chances).astype(np.float64)


def _per_event(contexts: NDArray[np.float32], rewards: NDArray[np.float64]) -> float:
    kernel = LinUCB(ARMS, DIMENSION)
    state = LinUCBModel.cold(ARMS, DIMENSION).state()
    given = rewards.tolist()
    begin = time.thread_time()
    for context, row in zip(contexts, given, strict=True):
        arm, _ = kernel.choose(state, context)
        kernel.learn(state, context, arm, row[arm])
    return len(contexts) / (time.thread_time() - begin)


def _folded(world: MixedTable, arms: int, together: int) -> float:
    """Seconds in which a learner decodes, decides and journals contexts of new users, ``together`` records a fold.

    The learner has a model whose arms differ, as after any first window; without one, every choice would be a tie.
    """
    configuration = {
        "system": "p2b",
        "deployment": "bench",
        "items": {"capacity": arms},
        "features": world.schema.plain,
        "expected_slots": WINDOW,
        "release": {"form": "features"},
    }
    with tempfile.TemporaryDirectory() as folder:
        system = prepare(Path(folder) / "bench", parse_config(configuration))
    learner = LearnerMachine(system.core, 0, seeded_key(0, "edge"))
    learner.start(learner.genesis(bytes(32)))
    cells = layout_of(world.schema, arms, 1, 1.0, WINDOW).cells
    means, variances, reward_variance = cold_start(arms, cells, len(world.schema.table))
    means = means + np.random.default_rng(0).normal(0.0, 0.1, means.shape)
    learner.terms.policy.adopt("private", 1, means, variances, np.array([reward_variance]))
    rows = world.visits(np.arange(FOLDED), 0).rows
    plain = {"line": "private", "features_digest": world.schema.digest}
    values = [
        codec.encode("FeatureContext", {**plain, "event_id": f"e{number}", "user": f"u{number}", "row": row.tobytes()})
        for number, row in enumerate(rows)
    ]
    records = [InputRecord(number, number, value) for number, value in enumerate(values)]
    parts = [
        InputSlice("contexts", 0, low, low + together, records[low : low + together])
        for low in range(0, FOLDED, together)
    ]

    def fold() -> None:
        for part in parts:
            learner.fold(learner.ready([part]))

    with no_full_collections():
        return cpu_seconds(fold)


def _choose_each(kernel: SparseUCB, model: SparseModel, contexts: Sequence[SparseContext], times: int) -> None:
    for _ in range(times):
        for context in contexts:
            kernel.choose(model, None, context)


def _choose_all(kernel: SparseUCB, model: SparseModel, contexts: SparseContext, times: int) -> None:
    new = [None] * len(contexts.cells)
    for _ in range(times):
        best_of(kernel.scores_of(model, new, contexts), lambda row, count: 0)


def _sum_up(layout: FeatureLayout, contents: Sequence[bytes]) -> None:
    """Read, check and add up the slots of a window, and draw its noise."""
    reports = unpack_reports(layout, contents)
    exact = linear_sums(layout, reports, np.ones(len(contents), dtype=np.bool_))
    address = NoiseAddress("release-noise", "bench", bytes(32), "p2b", "linear-sums", {}, bytes(16), 0)
    shape = (2, layout.arms, layout.cells)
    scale = laplace_scale(1, layout.sensitivity)
    noise = discrete_laplace(KeyedStream(seeded_key(0, "shuffler"), address), *scale, int(np.prod(shape)))
    noised_sums(exact, noise.reshape(shape))
