"""Compares five schedules of a budget at equal rho, for gradient rounds with user-level noise.

In a round each user sends the residuals of their ratings at the published biases, clipped as one vector. The server
adds noise, and takes a step along the sum divided by the item's count. A part of rho, `COUNTS`, pays for noised counts
beforehand. A planner's reward is the decrease of the users' squared error. With ``charged`` the reward is noised, too,
and costs the part `REWARDS` of each round's rho. With ``free`` it is exact, which no guarantee covers.

On static data a schedule makes no difference. Where clips do not bind, round t sees R_t = S - N b_t plus noise of
variance C^2 / (2 rho_t). So each round gives an estimate R_t + N b_t of the same S. Their mean, weighted by precision,
has the variance C^2 / (2 sum rho_t), however the budget is split.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from hushstream.privacy.promises.promise import NOT_PRIVATE, REPRODUCIBLE
from hushstream.replay.bench.rows import BenchRow, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.bgt.experiments.planner import LEVELS, Planner
from hushstream.replay.studies.bgt.play import Task as SlotTask
from hushstream.replay.studies.bgt.play import configuration, evaluate
from hushstream.replay.studies.bgt.rows import SETTINGS, SOURCE, promised, value_columns
from hushstream.replay.studies.bgt.worlds.ratings import Float64, Int64, make_world
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.edge.solving import offsets_of
from hushstream.systems.bgt.price.sensitivity import total_rho_micro
from hushstream.systems.bgt.rounds import Model

NAME = "bgt-schedules"
TITLE = "Schedules of a budget at equal rho"

Schedule = Literal["even", "increasing", "decreasing", "random", "planner, free", "planner, charged"]
SCHEDULES: tuple[Schedule, ...] = ("even", "increasing", "decreasing", "random", "planner, free", "planner, charged")

ROUNDS = 40
COUNTS, REWARDS = 0.3, 0.1
_EPSILON = 10.0
_STEP = 0.3
_CLIP = 0.25
"""Clip of residuals that are scaled as counts are: a user's mean square is about .04, so few are clipped."""

_RATING, _BIAS = 0.04, 0.01
"""Variances of a rating and of a bias."""

_SEEDS = tuple(range(6))


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes:
        world: name of the world.
        schedule: see `SCHEDULES`.
        seed: seed of split, noise and choices.
        rounds: T.
        epsilon: epsilon of a user over all rounds.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    schedule: Schedule
    seed: int
    rounds: int = ROUNDS
    epsilon: float = _EPSILON
    data_dir: str | None = None


def play_rounds(task: Task) -> float:
    """Play a run and return the RMSE of its last biases."""
    world = make_world(task.world, task.data_dir).without_features()
    config = configuration(SlotTask(task.world, "items", task.epsilon, task.seed), world)
    split = world.split(task.seed)
    known = split.known(config)
    draw = Draws(task.seed, f"bgt-rounds-{task.schedule}").generator()
    total = total_rho_micro(config.release.epsilon, config.release.delta) / 1e6
    counts = _counts(known.items, known.counts, world.item_count, COUNTS * total, draw)
    left, spent = (1 - COUNTS) * total, 0.0
    levels = np.array([0.5, 0.75, 1.0, 1.25, 1.5]) / task.rounds
    assert len(levels) == LEVELS
    planner = Planner(levels.tolist(), task.rounds, known.users, "mended", task.seed)
    biases, nothing, before = np.zeros(world.item_count), np.zeros((world.item_count, 0)), _START
    for number in range(task.rounds):
        level = planner.choose(np.zeros(0))
        share = min(_share(task, number, level, levels, draw), 1 - spent)
        if share <= 0:
            break
        spent += share
        charged = REWARDS if task.schedule == "planner, charged" else 0.0
        rest = known.values - config.scale.middle - biases[known.items]
        rest -= offsets_of(known, rest, config.model.lone_ridge)[known.owners]
        biases = biases + _step(rest, known, counts, share * left * (1 - charged), config.release.clip, draw)
        if task.schedule.startswith("planner"):
            after = _reward(rest, known, charged * share * left, draw)
            planner.learn(level, np.zeros(0), before - after)
            before = after
    return evaluate(split, known, Model(biases, nothing), config)[0]


_START = 0.05
"""The users' mean squared error that is assumed before the first measurement."""


def _counts(items: Int64, each: Int64, count: int, rho: float, draw: np.random.Generator) -> Float64:
    """Noised counts of items; each user's counts are scaled to norm 1."""
    scaled = np.repeat(1 / np.sqrt(np.maximum(each, 1)), each)
    noised = np.bincount(items, scaled, count) + draw.standard_normal(count) / math.sqrt(2 * rho)
    return np.maximum(noised, 0.0)


def _step(
    rest: Float64, known: Ratings, counts: Float64, rho: float, clip: float, draw: np.random.Generator
) -> Float64:
    """The step of the biases: noised sums of clipped residuals divided by counts, shrunk where counts are small."""
    each = np.maximum(known.counts, 1)
    # Scaled as counts are, so that a sum divided by a count is a mean. Then clipped, which affects few users.
    values = rest / np.sqrt(each)[known.owners]
    norms = np.sqrt(known.sums(values**2))
    bound = clip * _CLIP
    values = values * np.minimum(1.0, bound / np.maximum(norms, 1e-12))[known.owners]
    deviation = bound / math.sqrt(2 * rho)
    sums = np.bincount(known.items, values, len(counts)) + deviation * draw.standard_normal(len(counts))
    return np.asarray(_STEP * sums * counts / (counts**2 + (deviation**2 + counts * _RATING) / _BIAS + 1e-9))


def _reward(rest: Float64, known: Ratings, rho: float, draw: np.random.Generator) -> float:
    """The mean of the users' squared errors, each clipped to 1; noised where the reward is charged."""
    each = np.minimum(1.0, known.sums(rest**2) / np.maximum(known.counts, 1))
    noise = draw.standard_normal() / math.sqrt(2 * rho) if rho else 0.0
    return float((each.sum() + noise) / known.users)


def _share(task: Task, number: int, level: int, levels: Float64, draw: np.random.Generator) -> float:
    """The share of a round in the rho that is left after counts."""
    place = (number + 0.5) / task.rounds
    return {
        "even": lambda: 1 / task.rounds,
        "increasing": lambda: (0.5 + place) / task.rounds,
        "decreasing": lambda: (1.5 - place) / task.rounds,
        "random": lambda: float(levels[draw.integers(LEVELS)]),
    }.get(task.schedule, lambda: float(levels[level]))()


def _promised(task: Task) -> Row:
    """The guarantee of a schedule; none if it learns from exact rewards."""
    if task.schedule == "planner, free":
        return {"marks": f"{NOT_PRIVATE}; {REPRODUCIBLE}", "private_as_stated": False}
    return promised(SlotTask(task.world, "items", task.epsilon, 0, data_dir=task.data_dir))


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play all schedules; differences are to the even schedule under the same seed."""
    worlds, seeds, rounds = (("tastes",), (0, 1), 8) if scale.quick else (("filmtrust", "ml-100k"), _SEEDS, ROUNDS)
    tasks = [Task(world, schedule, 0, rounds, data_dir=scale.data_dir) for world in worlds for schedule in SCHEDULES]
    played = play_all(play_rounds, [replace(task, seed=seed) for task in tasks for seed in seeds], NAME, progress)
    rows: list[Row] = []
    for task in tasks:
        values = [played[replace(task, seed=seed)] for seed in seeds]
        even = [played[replace(task, schedule="even", seed=seed)] for seed in seeds]
        apart = [one - other for one, other in zip(values, even, strict=True)]
        rows.append(
            {
                "world": task.world,
                "schedule": task.schedule,
                "epsilon_asked": task.epsilon,
                **value_columns("rmse", values),
                **value_columns("difference", apart),
                "seeds": len(seeds),
                **_promised(task),
            }
        )
    settings = (
        f"{rounds} gradient rounds, {COUNTS:.0%} of rho for counts beforehand, the rest by schedule; noise of simulated"
        " draws. A free reward leaves exact, so that row is not covered by the epsilon beside it.",
        *SETTINGS,
    )
    description = Description(NAME, TITLE, f"{SOURCE}, section V", worlds, tuple(seeds), settings)
    return Findings(description, rows, [] if scale.quick else targets(rows))


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """No schedule differs from the even one by more than .002."""
    return [
        at_most(f"{row['world']}, {row['schedule']} against even", [abs(row["difference"])], "RMSE", 0.002)
        for row in rows
        if row["schedule"] != "even"
    ]
