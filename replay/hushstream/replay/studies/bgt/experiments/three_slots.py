"""Measures three slots against baselines without data of others and without privacy, and with lost slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hushstream.replay.bench.rows import BenchRow, at_least, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, pick
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.bgt.baselines import NAMES, Baseline, baseline
from hushstream.replay.studies.bgt.play import Played, Task, play
from hushstream.replay.studies.bgt.rows import (
    EPSILONS,
    SEEDS,
    SETTINGS,
    SOURCE,
    promised,
    score_columns,
    value_columns,
    within,
)

NAME = "bgt-three-slots"
TITLE = "Three slots compared with predictors on the device alone and without privacy"
LOST_NAME = "bgt-dropouts"
LOST_TITLE = "Slots that never arrive"

LOST = (0.0, 0.2, 0.5, 0.9)
LOST_AIMS = {0.2: 0.1872, 0.5: 0.1892, 0.9: 0.1960}
"""RMSE to reach on MovieLens-100K with features at epsilon 10, by the share of slots that are lost."""

SLOT_A = {"filmtrust": {10.0: 0.240, 1.0: 0.243}, "ml-100k": {10.0: 0.193, 1.0: 0.204}}
MARGIN = {"filmtrust": 0.003, "ml-100k": 0.015}
WITH_FEATURES = {10.0: 0.188, 3.0: 0.192, 1.0: 0.198}


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play both forms at every epsilon, with public features where there are some, and the baselines."""
    worlds, seeds, epsilons = (
        (("tastes",), (0, 1), (10.0,)) if scale.quick else (("filmtrust", "ml-100k"), SEEDS, EPSILONS)
    )
    tasks = [task for world in worlds for task in _tasks(world, epsilons, scale.data_dir)]
    played = play_all(play, _seeded(tasks, seeds), NAME, progress)
    bases = [Baseline(world, name, 0, scale.data_dir) for world in worlds for name in NAMES if _serves(world, name)]
    found = play_all(baseline, [replace(one, seed=seed) for one in bases for seed in seeds], NAME, progress)
    rows = [
        {
            "world": one.world,
            "form": one.name,
            "features": one.name == "local with features",
            **score_columns([found[replace(one, seed=seed)] for seed in seeds]),
            "seeds": len(seeds),
        }
        for one in bases
    ]
    rows += [_row(task, played, seeds) for task in tasks]
    description = Description(NAME, TITLE, SOURCE, worlds, tuple(seeds), SETTINGS)
    return Findings(description, rows, [] if scale.quick else targets(rows))


def run_lost(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play one configuration with a growing share of slots lost."""
    world, seeds, lost = ("tastes", (0, 1), (0.0, 0.5)) if scale.quick else ("ml-100k", SEEDS, LOST)
    tasks = [Task(world, "three", 10.0, 0, not scale.quick, share, data_dir=scale.data_dir) for share in lost]
    played = play_all(play, _seeded(tasks, seeds), LOST_NAME, progress)
    rows = [_row(task, played, seeds) for task in tasks]
    settings = ("Each slot is lost with the stated probability, independently in each round.", *SETTINGS)
    description = Description(LOST_NAME, LOST_TITLE, SOURCE, (world,), tuple(seeds), settings)
    return Findings(description, rows, [] if scale.quick else lost_targets(rows))


def _tasks(world: str, epsilons: Sequence[float], data_dir: str | None) -> list[Task]:
    kinds = (False, True) if world == "ml-100k" else (False,)
    noised = [
        Task(world, form, epsilon, 0, features, data_dir=data_dir)
        for features in kinds
        for form in ("items", "three")
        for epsilon in epsilons
    ]
    return noised + [Task(world, "three", None, 0, features, data_dir=data_dir) for features in kinds]


def _serves(world: str, name: str) -> bool:
    return name != "local with features" or world == "ml-100k"


def _seeded(tasks: Sequence[Task], seeds: Sequence[int]) -> list[Task]:
    return [replace(task, seed=seed) for task in tasks for seed in seeds]


def _row(task: Task, played: Mapping[Task, Played], seeds: Sequence[int]) -> Row:
    runs = [played[replace(task, seed=seed)] for seed in seeds]
    return {
        "world": task.world,
        "form": "slot A alone" if task.form == "items" else "three slots",
        "features": task.features,
        "epsilon_asked": "none" if task.epsilon is None else task.epsilon,
        **score_columns([(run.rmse, run.f1, run.balanced) for run in runs]),
        "lost": task.lost,
        "factors": sum(run.factors for run in runs) / len(runs),
        **value_columns("edge_ratio", [run.ratio for run in runs]),
        "seeds": len(runs),
        **promised(task),
    }


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """Compare the results with the figures to reach."""
    found: list[BenchRow] = []
    for world, aims in SLOT_A.items():
        for epsilon, most in aims.items():
            found.append(
                at_most(f"{world}, slot A alone, epsilon {epsilon:g}", [_rmse(rows, world, epsilon)], "RMSE", most)
            )
        gap = _rmse_of(rows, world, "local") - _rmse(rows, world, 10.0)
        found.append(at_least(f"{world}, slot A below the local mean, epsilon 10", [gap], "RMSE", MARGIN[world]))
        worse = _rmse(rows, world, 10.0, form="three slots") - _rmse(rows, world, 10.0)
        found.append(at_most(f"{world}, three slots above slot A, epsilon 10", [worse], "RMSE", 0.001))
    for epsilon, most in WITH_FEATURES.items():
        value = _rmse(rows, "ml-100k", epsilon, True)
        found.append(at_most(f"ml-100k, slot A with features, epsilon {epsilon:g}", [value], "RMSE", most))
    gap = _rmse_of(rows, "ml-100k", "local with features") - _rmse(rows, "ml-100k", 10.0, True)
    found.append(at_least("ml-100k, below local with features, epsilon 10", [gap], "RMSE", 0.012))
    three = _rmse(rows, "ml-100k", 10.0, True, "three slots")
    return [*found, at_most("ml-100k, three slots with features, epsilon 10", [three], "RMSE", 0.1885)]


def lost_targets(rows: Sequence[Row]) -> list[BenchRow]:
    """Compare the results with lost slots with the figures to reach."""
    return [
        within(f"ml-100k, {lost:.0%} of slots lost", float(pick(rows, lost=lost)["rmse"]), aim, 0.003)
        for lost, aim in LOST_AIMS.items()
    ]


def _rmse(rows: Sequence[Row], world: str, epsilon: float, features: bool = False, form: str = "slot A alone") -> float:
    return float(pick(rows, world=world, form=form, epsilon_asked=epsilon, features=features)["rmse"])


def _rmse_of(rows: Sequence[Row], world: str, form: str) -> float:
    return float(pick(rows, world=world, form=form)["rmse"])
