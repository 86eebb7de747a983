"""Plays many runs of collaborative bandits, seed by seed, in as many processes as there are processors."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.replay.experiments.rows import Row, over_seeds
from hushstream.replay.progress import Progress
from hushstream.replay.studies.colin.experiments.mechanisms import Calibration, find_calibration
from hushstream.replay.studies.colin.experiments.noise import forget_noise
from hushstream.replay.studies.colin.experiments.play import (
    NONPRIVATE,
    Float64,
    Played,
    Policy,
    Task,
    WorldSetting,
    play,
)

DP_ALGORITHMS: Mapping[str, tuple[Policy, str]] = {
    "DP-LinUCB": ("linucb", "server"),
    "DP-CoLin": ("colin", "server"),
    "DP-GOBLin": ("goblin", "server"),
    "LDP-CoLin": ("colin", "learner"),
    "LDP-GOBLin": ("goblin", "learner"),
}
"""The paper's private algorithms: the learner, and who adds the noise."""

NONPRIVATE_ALGORITHMS: Mapping[str, Policy] = {"LinUCB": "linucb", "CoLin": "colin", "GOBLin": "goblin"}


def canonical(task: Task) -> Task:
    """The same run under one name: where DP and LDP versions are the same, both are the LDP one."""
    if task.calibration != NONPRIVATE and find_calibration(task.calibration).paired:
        return replace(task, noise_at="learner")
    return task


def play_tasks(
    tasks: Iterable[Task], progress: Progress | None = None, processes: int | None = None
) -> dict[Task, Played]:
    """Play every task once.

    Args:
        tasks: in any order; equal ones (after `canonical`) are played once.
        progress: called with (runs done, runs in all, what).
        processes: the largest number of processes; None for one per processor. The results do not depend on it.
    """
    wanted = list(dict.fromkeys(canonical(task) for task in tasks))
    by_world: dict[WorldSetting, list[Task]] = defaultdict(list)
    for task in wanted:
        by_world[task.world].append(task)
    bundles = [_ordered(of_world) for of_world in by_world.values()]
    count = min(len(bundles), processes or os.cpu_count() or 1)
    done: dict[Task, Played] = {}

    def take(bundle: Sequence[Task], results: Sequence[Played]) -> None:
        done.update(zip(bundle, results, strict=True))
        if progress is not None:
            progress(len(done), len(wanted), f"{bundle[0].world.name}, seed {bundle[0].world.seed}")

    if count == 1:
        for bundle in bundles:
            take(bundle, _play_bundle(bundle))
        return done
    # New interpreters, as a forked process would inherit locks that threads of this process hold.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        for bundle, results in zip(bundles, pool.map(_play_bundle, bundles), strict=True):
            take(bundle, results)
    return done


def _ordered(tasks: Sequence[Task]) -> list[Task]:
    """Order runs so that those with the same noise are neighbours, and it is drawn once."""
    return sorted(tasks, key=lambda task: (task.calibration, task.noise_at, task.policy, task.epsilon))


def _play_bundle(tasks: Sequence[Task]) -> list[Played]:
    # With one thread of linear algebra, the learner's results are the same to the bit in each run.
    with threadpool_limits(limits=1):
        results = [play(task) for task in tasks]
    forget_noise()
    return results


def seed_columns(name: str, values: Float64) -> Row:
    """One value a seed, (n,), as mean, standard deviation (n - 1) and 95 % interval; of a single one only the mean."""
    mean, low, high = over_seeds(values)
    std = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return {name: mean, f"{name}_std": std, f"{name}_low": low, f"{name}_high": high, "seeds": len(values)}


def collect(played: Mapping[Task, Played], tasks: Sequence[Task], figure: Callable[[Played], Float64]) -> Float64:
    """One figure of each task, stacked in the order of the tasks (one a seed)."""
    return np.stack([figure(played[canonical(task)]) for task in tasks])


def trust_words(calibration: Calibration, algorithm: str) -> str:
    """The words for the trust model of a row."""
    if calibration.paired:
        return "nobody"
    return "server" if DP_ALGORITHMS[algorithm][1] == "server" else "nobody"
