"""Figures 1 and 2 of Wang et al. 2020: regret and estimation error over time, regret by users, reward on Last.fm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.colin.experiments.grid import (
    DP_ALGORITHMS,
    NONPRIVATE_ALGORITHMS,
    collect,
    play_tasks,
    seed_columns,
)
from hushstream.replay.studies.colin.experiments.mechanisms import PAPER, find_calibration
from hushstream.replay.studies.colin.experiments.play import NONPRIVATE, Float64, Played, Task, WorldSetting
from hushstream.replay.studies.colin.experiments.table1 import (
    SETTINGS,
    TIES,
    plain_task,
    private_task,
    worst_guarantee,
)

FIG1A = "colin-fig1a"
FIG1A_TITLE = "Cumulative regret over time, epsilon 2"
FIG1B = "colin-fig1b"
FIG1B_TITLE = "Error of the estimated parameters over time, epsilon 2"
FIG1C = "colin-fig1c"
FIG1C_TITLE = "Cumulative regret against the number of users, epsilon 2"
LASTFM = "colin-lastfm"
LASTFM_TITLE = "Cumulative reward on Last.fm, epsilon 2"

SHOWN = (PAPER, "laplace-l1", "user-laplace", "local-reward")
"""The calibrations in the figures: the paper's, a sound one of its tree, and better ones with pure epsilon."""

EPSILON = 2.0
LASTFM_TIE_WEIGHT = 0.1

_SOURCE = "Wang et al. 2020 (Global and Local Differential Privacy for Collaborative Bandits)"


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure: the runs of one or more worlds, and the values that it shows.

    Attributes:
        name: name of the experiment.
        title: its title in a line.
        source: the paper's figure.
        worlds: the variants in words.
        settings: one world for each seed of each point: columns, and the world under a seed.
        seeds: seeds of worlds and keys.
        columns: which values of a run the rows hold, by name.
        over_time: whether there is a row for each checkpoint, or only one at the end.
        facts: notes shown with the figure.
    """

    name: str
    title: str
    source: str
    worlds: tuple[str, ...]
    settings: tuple[tuple[Row, Callable[[int], WorldSetting]], ...]
    seeds: tuple[int, ...]
    columns: Mapping[str, Callable[[Played], Float64]]
    over_time: bool
    facts: tuple[str, ...] = (TIES, *SETTINGS)


def fig1a(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 1(a)."""
    return play_plot(_over_time(FIG1A, FIG1A_TITLE, "Figure 1(a)", "regret", scale.quick), progress)


def fig1b(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 1(b)."""
    plot = _over_time(FIG1B, FIG1B_TITLE, "Figure 1(b)", "error", scale.quick)
    said = "Error: mean over users of the L2 distance between the vector that scores for a user and sum_j w_uj theta_j."
    return play_plot(replace(plot, facts=(said, TIES, *SETTINGS)), progress)


def fig1c(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 1(c)."""
    users = (5, 10, 20) if scale.quick else (5, 10, 20, 25, 40, 50)
    events = 1_000 if scale.quick else 10_000
    points = tuple(({"users": count, "T": events}, _simulator(events, users=count)) for count in users)
    worlds = (f"colin/uniform, N = {users[0]} to {users[-1]} users in turn, d = 5, 10 of 1,000 arms, T = {events:,}",)
    plot = Plot(
        FIG1C,
        FIG1C_TITLE,
        f"{_SOURCE}, Figure 1(c)",
        worlds,
        points,
        _seeds(scale.quick),
        {"regret": lambda one: one.regret[-1:]},
        over_time=False,
    )
    return play_plot(plot, progress)


def lastfm(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 2 on Last.fm.

    Raises:
        DatasetError: the dataset is absent.
    """
    events = 1_000 if scale.quick else 10_000

    def world(seed: int) -> WorldSetting:
        return WorldSetting("lastfm", tuple(scale.world_options.items()), events, seed)

    plot = Plot(
        LASTFM,
        LASTFM_TITLE,
        f"{_SOURCE}, Figure 2",
        (f"lastfm/spectral, 100 clusters in turn, d = 25, 25 artists shown, T = {events:,}",),
        (({"users": 100, "T": events}, world),),
        (10,) if scale.quick else (10, 11, 12),
        {"reward": lambda one: one.reward},
        over_time=True,
        facts=(f"GOBLin's ties are friendships between clusters times {LASTFM_TIE_WEIGHT:g}.", *SETTINGS),
    )
    return play_plot(plot, progress)


def _over_time(name: str, title: str, figure: str, column: str, quick: bool) -> Plot:
    events = 1_000 if quick else 30_000
    return Plot(
        name,
        title,
        f"{_SOURCE}, {figure}",
        (f"colin/uniform, N = 10 users in turn, d = 5, 10 of 1,000 arms shown, T = {events:,}, reward noise 0.1",),
        (({"users": 10, "T": events}, _simulator(events)),),
        _seeds(quick),
        {column: lambda one: getattr(one, column)},
        over_time=True,
    )


def _simulator(events: int, **options: Any) -> Callable[[int], WorldSetting]:
    named = tuple(sorted({"variant": "uniform", "dimension": 5, **options}.items()))
    return lambda seed: WorldSetting("colin", named, events, seed)


def _seeds(quick: bool) -> tuple[int, ...]:
    return tuple(range(10, 12 if quick else 15))


def play_plot(plot: Plot, progress: Progress | None = None) -> Findings:
    """Play all runs of a figure."""
    lines = [(columns, line) for columns, world in plot.settings for line in _lines(plot, world)]
    played = play_tasks([task for _, (_, tasks) in lines for task in tasks], progress)
    rows = [row for columns, (front, tasks) in lines for row in _rows(plot, {**columns, **front}, tasks, played)]
    description = Description(plot.name, plot.title, plot.source, plot.worlds, plot.seeds, plot.facts)
    return Findings(description, rows, _targets(plot, rows))


def _lines(plot: Plot, world: Callable[[int], WorldSetting]) -> Iterator[tuple[Row, list[Task]]]:
    """Every line of the figure: its columns, and a task for each seed."""
    worlds = [world(seed) for seed in plot.seeds]
    for algorithm in ("random", *NONPRIVATE_ALGORITHMS):
        tasks = [_adapted(plain_task(one, algorithm)) for one in worlds]
        yield {"calibration": NONPRIVATE, "algorithm": algorithm}, tasks
    for key in SHOWN:
        calibration = find_calibration(key)
        for algorithm in DP_ALGORITHMS:
            tasks = [_adapted(private_task(one, algorithm, calibration, EPSILON)) for one in worlds]
            yield {"calibration": key, "algorithm": algorithm, **privacy_columns(worst_guarantee(tasks))}, tasks


def _adapted(task: Task) -> Task:
    """Set the weight of ties for Last.fm, whose graph counts friendships."""
    if task.world.name != "lastfm" or task.policy != "goblin":
        return task
    return replace(task, tuning=replace(task.tuning, tie_weight=LASTFM_TIE_WEIGHT))


def _rows(plot: Plot, front: Row, tasks: Sequence[Task], played: Mapping[Task, Played]) -> Iterator[Row]:
    values = {name: collect(played, tasks, figure) for name, figure in plot.columns.items()}
    events = collect(played, tasks, lambda one: one.events.astype(float))[0].astype(int)
    for place in range(len(events)) if plot.over_time else (-1,):
        row = {**front, "events": int(events[place])}
        for name, of_seeds in values.items():
            row.update(seed_columns(name, of_seeds[:, place]))
        if not all(math.isnan(row[name]) for name in values):
            yield row


def _targets(plot: Plot, rows: Sequence[Row]) -> list[BenchRow]:
    """Targets on the last values: the pure calibrations here against the paper's tree with a sound calibration."""
    column = next(iter(plot.columns))
    last = rows[-1]["events"]
    found = []
    for key in ("user-laplace", "local-reward"):
        ratios = []
        for algorithm in DP_ALGORITHMS:
            here, there = (_at(rows, one, algorithm, last, column) for one in (key, "laplace-l1"))
            ratios += [a / b for a, b in zip(here, there, strict=True)]
        worst = min(ratios) if column == "reward" else max(ratios)
        found.append(BenchRow(f"{key} over laplace-l1 at the end, worst of all algorithms", worst, f"{column} ratio"))
    return found


def _at(rows: Sequence[Row], calibration: str, algorithm: str, events: int, column: str) -> list[float]:
    return [
        float(row[column])
        for row in rows
        if (row["calibration"], row["algorithm"], row["events"]) == (calibration, algorithm, events)
    ]
