"""Declares the study of collaborative bandits, which `hushstream.replay.study` finds.

Its benchmark measures choices and learning one event at a time. Rates are per second of the thread's CPU time, medians
over rounds. BLAS may use only this thread.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.replay.catalogue import make_world
from hushstream.replay.datasets.builtin import simulated_dataset
from hushstream.replay.experiments.rows import BenchRow, at_least
from hushstream.replay.experiments.rows import Progress as Told
from hushstream.replay.experiments.systems import foretold_worlds
from hushstream.replay.studies.colin import audits
from hushstream.replay.studies.colin.audits import audit_config
from hushstream.replay.studies.colin.experiments import (
    EXPERIMENTS,
    foretold,
    paper_line,
    run_shared,
)
from hushstream.replay.studies.colin.play import (
    CollaborativeLoop,
    CollaborativeOptions,
    CollaborativePlan,
    relation_graph,
    run_collaborative,
)
from hushstream.replay.studies.colin.worlds import CollaborativeWorld, colin, lastfm
from hushstream.replay.study import Sample, Study
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
