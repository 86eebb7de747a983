"""Declares the study of collaborative bandits, which `hushstream.replay.study` finds.

Its benchmark measures choices and learning one event at a time. Rates are per second of the thread's CPU time, medians
over rounds. BLAS may use only this thread.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.replay.catalogue import make_world
from hushstream.replay.datasets.builtin import simulated_dataset
from hushstream.replay.experiments.findings import Scale
from hushstream.replay.experiments.rows import BenchRow, Row, at_least
from hushstream.replay.experiments.rows import Progress as Told
from hushstream.replay.experiments.systems import Paper, foretold_worlds, sound_epsilon
from hushstream.replay.studies.colin import audits
from hushstream.replay.studies.colin.audits import audit_config
from hushstream.replay.studies.colin.experiments import (
    EXPERIMENTS,
    RIDGE_PER_NOISE,
    foretold,
    plain_task,
    private_task,
    run_shared,
    tuning_of,
    worst_guarantee,
)
from hushstream.replay.studies.colin.play import (
    PAPER,
    CollaborativeLoop,
    CollaborativeOptions,
    CollaborativePlan,
    WorldSetting,
    canonical,
    find_calibration,
    play_tasks,
    relation_graph,
    run_collaborative,
)
from hushstream.replay.studies.colin.worlds import CollaborativeWorld, colin, lastfm
from hushstream.replay.study import Progress, Sample, Study
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.deployment import inputs_of
from hushstream.systems.colin.relation import Relation

COLIN = simulated_dataset(
    "colin",
    "Simulator of collaborative bandits: users of a public graph, features of every arm",
    page="https://doi.org/10.1145/3383313.3412254",
)


def _plays(made: Any) -> bool:
    """Whether an object is a class of worlds of related users."""
    return hasattr(made, "relation")


ALGORITHM, OURS = "DP-CoLin", "local-reward"
CLAIM = Paper(
    system="colin",
    source="Wang et al., Global and Local Differential Privacy for Collaborative Bandits (DP-CoLin; RecSys 2020, "
    "doi:10.1145/3383313.3412254)",
    claimed_epsilon=2.0,
    claimed_as="δ 0, replace-one; in its Table 1",
    audit="colin-paper",
    fails="its noise covers an L2 distance and log₂ T = 13.3 levels. Laplace noise has to cover the L1 distance, and "
    "the tree has 14 levels (ε is that of the sums; arms tell at most that). Ours covers both",
    protects="one reward",
    protects_here="one reward",
    printed_in_paper="1,328 ± 24 (Table 1, T = 10,000), without its d, σ, λ and edge threshold",
    measure="cumulative regret",
    better="less is better",
    local_only_is="each user's own exact LinUCB",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: DP-CoLin with the paper's noise, and noised rewards at the same true cost.

    The paper's noise is played with our ridge, too, so that the difference is not one of ridges.
    """
    events, seeds = (1_000, range(10, 11)) if scale.quick else (10_000, range(30, 40))
    worlds = [WorldSetting("colin", (("dimension", 5), ("variant", "uniform")), events, seed) for seed in seeds]
    claimed = CLAIM.claimed_epsilon
    printed = [private_task(world, ALGORITHM, find_calibration(PAPER), claimed) for world in worlds]
    true = worst_guarantee(printed)
    ours = [private_task(world, ALGORITHM, find_calibration(OURS), sound_epsilon(claimed, true)) for world in worlds]
    alone = [plain_task(world, "alone") for world in worlds]
    tuned = [replace(task, tuning=tuning_of(OURS, task.policy)) for task in printed]
    chance = [plain_task(world, "random") for world in worlds]
    every = (printed, ours, alone, tuned, chance)
    played = play_tasks([task for tasks in every for task in tasks], progress)
    theirs, reached, apart, with_our_ridge, by_chance = (
        [float(played[canonical(task)].regret[-1]) for task in tasks] for tasks in every
    )
    return CLAIM.row(
        f"uniform world, 10 users, d = 5, {events:,} interactions; ridge per unit of noise: "
        f"{RIDGE_PER_NOISE[PAPER]:g} (published form; our choice), {RIDGE_PER_NOISE[OURS]:g} (ours)",
        true,
        worst_guarantee(ours),
        reimplemented=theirs,
        reached=reached,
        local_only=apart,
        tuned=with_our_ridge,
        random=by_chance,
        first_seed=seeds[0],
    )


_DATASET = "colin"
_NEVER_SECONDS = 1e6


def sample(
    folder: Path,
    *,
    users: int = 200,
    dimension: int = 10,
    arms: int = 10,
    rounds: int = 20,
    rounds_per_phase: int = 10,
    rows: int = 200,
) -> Sample:
    """A deployment in which every user gets a decision in each round."""
    world: Any = make_world(_DATASET, users=users, dimension=dimension, arms=arms, seed=1)
    assert isinstance(world, CollaborativeWorld)
    lengths = {"norm": world.largest_feature_norm(2) + 1e-6, "norm_l1": world.largest_feature_norm(1) + 1e-6}
    config = parse_config(
        {
            "system": "colin",
            "deployment": "sizes",
            "items": {"capacity": world.arms},
            "features": {"dimension": world.feature_dimension, **lengths},
            "feedback": {"attribution_window_seconds": _NEVER_SECONDS, "settle_seconds": _NEVER_SECONDS},
            "privacy": {"units_per_person": rounds + 1},
            "release": {"window_units": rows},
        }
    )
    system = prepare(folder, config, inputs_of(relation_graph(world, _DATASET)), public_dataset=_DATASET)
    loop = CollaborativeLoop(world, CollaborativePlan(rounds, rounds_per_phase))
    return Sample(system, users, users * rounds, loop.run)


BENCH_DIMENSION = 25
BENCH_ARMS = 25
BENCH_ALPHA = 0.1
BOUNDS = {10: 30_000, 50: 12_000, 100: 5_000}
"""The target in events per second, by number of users."""

_EVENTS = {10: 6_400, 50: 2_560, 100: 1_280}


def collaborative_rows(progress: Told, rounds: int = 5) -> list[BenchRow]:
    """Measure CoLin with 10, 50 and 100 users.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    rows = []
    with threadpool_limits(limits=1):
        for users, bound in BOUNDS.items():
            progress(f"collaborative learners: {users} users")
            rates = [_rate(users, _EVENTS[users], number) for number in range(rounds)]
            name = f"CoLin, choose and learn, N={users}, d={BENCH_DIMENSION}, {BENCH_ARMS} arms"
            rows.append(at_least(name, rates, "events/CPU s", bound))
    return rows


def _rate(users: int, events: int, seed: int) -> float:
    """Events per second of CPU time from a cold state, all users in turn."""
    draws = np.random.default_rng(seed)
    weights = draws.random((users, users))
    learner = CollaborativeState(Relation("colin", weights / weights.sum(axis=0)), BENCH_DIMENSION, 1.0)
    arms = draws.random((200, BENCH_ARMS, BENCH_DIMENSION))
    arms /= np.linalg.norm(arms, axis=2, keepdims=True)
    rewards = draws.random(events).tolist()
    begin = time.thread_time()
    for event, reward in enumerate(rewards):
        user, shown = event % users, arms[event % len(arms)]
        chosen = learner.choose(user, shown, BENCH_ALPHA)
        learner.learn(user, shown[chosen], reward)
    return events / (time.thread_time() - begin)


STUDY = Study(
    system="colin",
    options=CollaborativeOptions,
    dataset="colin",
    play=run_collaborative,
    worlds={"colin": colin, "lastfm": lastfm},
    datasets=(COLIN,),
    plays=_plays,
    experiments=lambda: EXPERIMENTS,
    paper=paper_line,
    forecast=partial(foretold_worlds, foretold),
    joining=run_shared,
    audits=audits.rows,
    audit_config=audit_config,
    bench=collaborative_rows,
    sample=sample,
)
