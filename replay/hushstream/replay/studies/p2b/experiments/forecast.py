"""Compares P2B's forecast with the whole simulation, with true and assumed spreads; codes with true ones only.

No part of the forecast for declared features was fitted on these worlds: it is derived
(`hushstream.systems.p2b.reports.planning.forecast`). The formula for cold learners of codes was changed after three of
these worlds were seen. True spreads are those of a world as it was drawn: the least-squares fit of its log-odds on the
blocks, over 20,000 visits. The residuals of the fit are the part that no model can learn. Assumed spreads follow from
the number of features alone. Codes are played in softmax worlds, with log-odds fitted on the histogram itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from hushstream.privacy.mechanisms.noise import laplace_scale, laplace_variance
from hushstream.replay.bench.rows import at_least
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings, Provenance
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.runners.grid import play_all
from hushstream.replay.studies.p2b.clear_model import written_out
from hushstream.replay.studies.p2b.experiments.feature_play import (
    ROUNDS,
    Line,
    Task,
    guarantee_of,
    layout_for,
    play,
    tree_of,
    world_of,
)
from hushstream.replay.studies.p2b.experiments.points import Line as CodesLine
from hushstream.replay.studies.p2b.experiments.points import Point, WorldSpec
from hushstream.replay.studies.p2b.experiments.points import play as play_point
from hushstream.replay.worlds.mixed_table import MixedTable
from hushstream.systems.p2b.configuration import ReleaseConfig
from hushstream.systems.p2b.edge.candidates import click_chance
from hushstream.systems.p2b.reports.planning.forecast import (
    Forecast,
    Sample,
    Spreads,
    UserBehaviour,
    forecast_codes,
    forecast_features,
)
from hushstream.systems.p2b.reports.planning.plan import ASSUMED_REST, FACTORS, assumed_for

NAME = "p2b-forecast"
TITLE = "The forecast of a plan compared with the whole simulation"
SEEDS = (1, 2, 3, 4, 5)
SETTINGS = (
    "Gains are expected rewards over the first ten interactions of new users, over those of cold learners; means over"
    " worlds.",
    "The forecast with true spreads knows the spread of each feature's effects in the world, and the click "
    "rate of a random item; with assumed spreads it knows the number of features and that rate.",
    "Nothing was fitted on these worlds.",
)

_DIMENSION = 10
_VISITS = 20_000
_JUDGED_USERS = 1 << 31
_WITHIN = 0.15


@dataclass(frozen=True, slots=True)
class Case:
    """One configuration: a kind of world, and one way to release.

    Attributes:
        task: the task of the world, without lines and with any seed.
        line: the release.
        seeds: seeds of worlds.
    """

    task: Task
    line: Line
    seeds: tuple[int, ...] = SEEDS

    def played(self) -> tuple[Task, ...]:
        """The tasks of all worlds."""
        return tuple(
            replace(self.task, seed=seed, lines=(Line("cold"), self.line, self.spreads)) for seed in self.seeds
        )

    @property
    def spreads(self) -> Line:
        """The line by which the same release estimates spreads."""
        return replace(self.line, form="spreads")


@dataclass(frozen=True, slots=True)
class ForecastCheck:
    """The result of a case: means over its worlds.

    Attributes:
        case: what was played.
        gain: gain in the whole simulation.
        forecast: forecast with true spreads.
        low, assumed, high: forecast with assumed spreads.
        released_low, released, released_high: forecast with the spreads that the release itself estimates.
    """

    case: Case
    gain: float
    forecast: float
    low: float
    assumed: float
    high: float
    released_low: float
    released: float
    released_high: float

    @property
    def within(self) -> bool:
        """Whether the forecast with true spreads is within 15 % of the gain."""
        return abs(self.forecast - self.gain) <= _WITHIN * abs(self.gain)

    @property
    def in_assumed(self) -> bool:
        """Whether the range of the assumed spreads holds the gain."""
        return self.low <= self.gain <= self.high

    @property
    def in_released(self) -> bool:
        """Whether the range of the released spreads holds the gain."""
        return self.released_low <= self.gain <= self.released_high


_MIXED, _MANY, _PAIRS = Task("mixed", 10, 0), Task("mixed", 25, 0), Task("interactions", 10, 0)
CASES = (
    *(Case(_MIXED, Line("linear", slots, epsilon)) for slots in (10_000, 50_000) for epsilon in (0.5, 1.0, 8.0)),
    Case(_MIXED, Line("linear", 50_000, 1.0, "ten fresh")),
    Case(_MIXED, Line("linear", 50_000, 1.0, "ten counted")),
    Case(_MANY, Line("linear", 25_000, 4.0)),
    Case(_MANY, Line("linear", 50_000, 1.0)),
    Case(_PAIRS, Line("linear", 50_000, 1.0)),
    Case(_PAIRS, Line("linear", 50_000, 4.0)),
)
"""Twelve cases, with at least 10,000 slots each."""

SAMPLE = Case(Task("mixed", 8, 0, evaluated=1_500), Line("linear", 10_000, 2.0), (21, 22))
"""A small case, for a test."""


def check_forecasts(
    cases: Sequence[Case], progress: Progress | None = None, processes: int | None = None
) -> list[ForecastCheck]:
    """Play every world of every case once, and compute its forecasts; ``processes`` as in `play_all`."""
    together: dict[Task, dict[Line, None]] = {}
    for case in cases:
        for task in case.played():
            together.setdefault(replace(task, lines=()), {}).update(dict.fromkeys(task.lines))
    tasks = {bare: replace(bare, lines=tuple(lines)) for bare, lines in together.items()}
    found = play_all(play, tasks.values(), NAME, progress, processes)
    return [_check(case, [found[tasks[replace(task, lines=())]] for task in case.played()]) for case in cases]


def _check(case: Case, played: Sequence[dict[Line, tuple[float, ...]]]) -> ForecastCheck:
    gains = [float(np.mean(one[case.line])) - one[Line("cold")][0] for one in played]
    true, assumed, released = [], [], []
    for task, one in zip(case.played(), played, strict=True):
        spreads = true_spreads(task)
        true.append(forecast_of(task, case.line, spreads).gain)
        guess = assumed_for([*spreads.blocks], spreads.rate)
        assumed.append([forecast_of(task, case.line, guess.times(factor)).gain for factor in FACTORS])
        least, most, rate, arms, *blocks = one[case.spreads]
        found = Spreads(arms, dict(zip(spreads.blocks, blocks, strict=True)), ASSUMED_REST, rate)
        released.append([forecast_of(task, case.line, found.times(factor)).gain for factor in (least, 1.0, most)])
    ranges = (*np.mean(assumed, axis=0).tolist(), *np.mean(released, axis=0).tolist())
    return ForecastCheck(case, float(np.mean(gains)), float(np.mean(true)), *ranges)


def forecast_of(task: Task, line: Line, spreads: Spreads) -> Forecast:
    """The forecast of a line in a world of these spreads."""
    layout = layout_for(task, line)
    behaviour = UserBehaviour(task.arms, ROUNDS, ROUNDS, click_chance(world_of(task).click_rate))
    return forecast_features(layout, spreads, behaviour, Sample(line.slots, line.slots * ROUNDS, _variance(task, line)))


def _variance(task: Task, line: Line) -> float:
    layout = layout_for(task, line)
    if line.windows == "ten counted":
        tree = tree_of(layout, line)
        return float(10 * tree.mean_square(10) - 9 * tree.mean_square(9))
    windows = 10 if line.windows == "ten fresh" else 1
    return windows * laplace_variance(*laplace_scale(str(line.epsilon), layout.sensitivity))


@lru_cache(maxsize=64)
def true_spreads(task: Task) -> Spreads:
    """The spread of effects over items in a world of the mixed table, as it was drawn; see the module."""
    world = world_of(replace(task, lines=()))
    assert isinstance(world, MixedTable), "expected a world of the mixed table"
    truth = world.true_values(np.arange(_VISITS, dtype=np.int64) + _JUDGED_USERS)
    contexts = written_out(world.schema, truth.rows).astype(np.float64)
    # As each block sums to 1, several coefficient vectors give the same function; the shortest one is taken.
    found = np.linalg.lstsq(contexts, truth.effects, rcond=None)[0]
    blocks = {}
    for block in world.schema.table:
        across = slice(1 + block.first_cell, 1 + block.first_cell + block.cells)
        part = contexts[:, across] @ found[across]
        blocks[block.name] = _spread(part - part.mean(axis=0))
    arms = float(truth.effects.mean(axis=0).std(ddof=1))
    return Spreads(arms, blocks, _spread(truth.effects - contexts @ found), truth.rate)


def _spread(effects: np.ndarray) -> float:
    """Standard deviation over items at a visit, root mean square over visits."""
    return float(np.sqrt(effects.var(axis=1, ddof=1).mean()))


@dataclass(frozen=True, slots=True)
class CodesCase:
    """Sums over codes in one softmax world: (reward scale, weight scale), users, items, codes and epsilon."""

    scales: tuple[float, float]
    users: int
    arms: int
    codes: int
    epsilon: float

    @property
    def point(self) -> Point:
        """The point that is played."""
        reward, weight = self.scales
        world = WorldSpec(
            f"softmax-{reward:g}", "softmax", "synthetic", {"reward_scale": reward, "weight_scale": weight}
        )
        line = CodesLine("slot sums", self.codes, ReleaseConfig(epsilon=self.epsilon))
        return Point(NAME, {"part": "codes"}, world, self.users, ROUNDS, _DIMENSION, self.arms, (line,))


CODES = (
    CodesCase((1.0, 5.0), 20_000, 10, 8, 1.0),
    CodesCase((1.0, 5.0), 20_000, 10, 32, 0.7),
    CodesCase((0.5, 5.0), 20_000, 10, 16, 1.0),
    CodesCase((0.5, 5.0), 20_000, 10, 32, 0.5),
    CodesCase((0.2, 5.0), 60_000, 10, 16, 1.0),
    CodesCase((0.5, 3.0), 40_000, 5, 16, 0.5),
    CodesCase((0.3, 4.0), 40_000, 20, 16, 1.0),
)
CODES_SEEDS = (0, 1, 2, 3)


def codes_row(case: CodesCase, seeds: Sequence[int]) -> Row:
    """A case of codes: the simulated gain and its forecast with true spreads, means over worlds."""
    point = case.point
    played = play_point(point, seeds)
    slots = point.contributors
    variance = laplace_variance(*laplace_scale(str(case.epsilon), 1))
    behaviour = UserBehaviour(case.arms, ROUNDS, ROUNDS, None, float(np.sqrt(2 / (_DIMENSION + 1))), returning=False)
    forecasts = [
        forecast_codes(_DIMENSION, case.codes, _spreads_of(point, seed), behaviour, Sample(slots, slots, variance)).gain
        for seed in seeds
    ]
    gain, forecast = float((played.means[:, 2] - played.means[:, 0]).mean()), float(np.mean(forecasts))
    return {
        "world": f"softmax, reward scale {case.scales[0]:g}, W scale {case.scales[1]:g}",
        "form": "codes",
        "items": case.arms,
        "slots": slots,
        "windows": "one",
        "gain": gain,
        "forecast": forecast,
        "error": forecast / gain - 1,
        "within": abs(forecast - gain) <= _WITHIN * gain,
        "seeds": len(seeds),
        **privacy_columns(played.guarantees[0]),
    }


def _spreads_of(point: Point, seed: int) -> Spreads:
    """The spread of log-odds over items in a softmax world, as it was drawn."""
    world = point.world.make(point.users, point.rounds, point.dimension, point.arms, seed)
    users = np.arange(5_000, dtype=np.int64)
    contexts = world.contexts(users, 0).astype(np.float64)
    means = [world.expected(users, 0, np.full(len(users), arm)) for arm in range(point.arms)]
    chances = np.stack([one for one in means if one is not None], axis=1)
    odds = np.log(chances / (1 - chances))
    fit = contexts @ np.linalg.lstsq(contexts, odds, rcond=None)[0]
    arms = fit.mean(axis=0)
    return Spreads(
        float(arms.std(ddof=1)), {"context": _spread(fit - arms)}, _spread(odds - fit), float(chances.mean())
    )


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play all twelve cases; quick: only the small one, without targets."""
    cases = (SAMPLE,) if scale.quick else CASES
    found = check_forecasts(cases, progress)
    worlds = tuple(dict.fromkeys(f"{world_of(one.task).name}, {one.task.arms} items" for one in cases))
    description = Description(
        NAME, TITLE, "hushstream's linear sums", worlds, cases[0].seeds, SETTINGS, _provenance(cases)
    )
    targets = [
        at_least("of 12: forecasts with true spreads within 15 %", [sum(one.within for one in found)], "cases", 11),
        at_least("of 12: gains in the range of assumed spreads", [sum(one.in_assumed for one in found)], "cases", 12),
        at_least("of 12: gains in the range of released spreads", [sum(one.in_released for one in found)], "cases", 11),
    ]
    rows = [_row(one) for one in found]
    if scale.quick:
        return Findings(description, rows, [])
    coded = [codes_row(case, CODES_SEEDS) for case in CODES]
    within = sum(row["within"] for row in coded)
    targets.append(at_least("of 7 with codes: forecasts with true spreads within 15 %", [within], "cases", 5))
    return Findings(description, [*rows, *coded], targets)


def _row(one: ForecastCheck) -> Row:
    task, line = one.case.task, one.case.line
    stated = guarantee_of(task, line)
    return {
        "world": "mixed table" if task.kind == "mixed" else "mixed table, strong pairs",
        "form": "features",
        "items": task.arms,
        "slots": line.slots,
        "windows": line.windows,
        "gain": one.gain,
        "forecast": one.forecast,
        "error": one.forecast / one.gain - 1,
        "assumed_low": one.low,
        "assumed": one.assumed,
        "assumed_high": one.high,
        "released_low": one.released_low,
        "released": one.released,
        "released_high": one.released_high,
        "within": one.within,
        "covered": one.in_assumed,
        "told": one.in_released,
        "seeds": len(one.case.seeds),
        **({"marks": ""} if stated is None else privacy_columns(stated)),
    }


def _provenance(cases: Sequence[Case]) -> tuple[Provenance, ...]:
    found = []
    for case in cases:
        stated = guarantee_of(case.task, case.line)
        if stated is not None:
            label = f"linear sums, {case.task.arms} items, eps {case.line.epsilon:g}, {case.line.slots:,} slots"
            found.append(Provenance(label, stated, world_of(case.task).schema.digest.hex()))
    return tuple(found)
