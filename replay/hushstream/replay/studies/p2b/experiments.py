"""The figures of P2B's paper.

P2B, Figure 3: epsilon against the probability of taking part, with the true delta.

P2B, Figures 4 to 7: reward against the number of users, the dimension, and the interactions of a user.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import delta_value, float_up
from hushstream.privacy.mechanisms.guarantee import paper_guarantee, tuples_guarantee
from hushstream.privacy.mechanisms.tuples import curve_epsilon, exact_delta, smallest_threshold
from hushstream.replay.datasets.builtin import AbsentDatasetError, find_dataset
from hushstream.replay.datasets.store import locate, remedy
from hushstream.replay.experiments.findings import Curve, Findings, Scale, experiment
from hushstream.replay.experiments.rows import BenchRow, Row, columns, over_seeds
from hushstream.replay.runners.to_end import play_all
from hushstream.replay.studies.p2b.play import (
    COLD,
    CONDITION_NAMES,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    Line,
    Played,
    Point,
    WorldSpec,
    play_points,
)
from hushstream.replay.studies.p2b.run import GAIN, P2BOptions, run_p2b
from hushstream.replay.study import Progress
from hushstream.systems.p2b.configuration import ReleaseConfig

PAPER = "P2B (Malekzadeh et al. 2020)"
_CONDITIONS = ("condition", "line")

FIG3 = "p2b-fig3"
THRESHOLDS = (10, 20, 50, 100)
PUBLISHED = "delta_of_the_published_release"
TARGET_DELTA = Fraction(1, 10**6)

_DELTAS_AT_HALF = {10: 7.6e-3, 20: 6.0e-4, 50: 9.2e-7, 100: 5.3e-11}
_SMALLEST = {0.1: 36, 0.25: 41, 0.5: 50, 0.75: 73, 0.9: 148}


@experiment(
    FIG3,
    "Epsilon against the probability p that a report is kept, with the exact delta of each threshold",
    f"{PAPER}, Figure 3 and Equation 3, by our formulas: thresholds count equal tuples, as our mode `tuples` does;"
    " the paper's counts codes alone, and has delta p at any threshold",
    Curve("The privacy cost of a report: epsilon against p", ("epsilon",), "p"),
    Curve(
        "The privacy cost of a report: delta against p",
        (*(f"delta_threshold_{threshold}" for threshold in THRESHOLDS), PUBLISHED),
        "p",
        log="y",
        suffix="-delta",
        label="exact delta",
    ),
    takes="seconds",
)
def fig3(scale: Scale, progress: Progress | None = None) -> Findings:
    """Compute the curve at every hundredth (quick: every twentieth) of p."""
    steps = 20 if scale.quick else 100
    rows: list[Row] = []
    for step in range(1, steps):
        rows.append(_row(Fraction(step, steps)))
        if progress is not None:
            progress(step, steps - 1, "p")
    settings = (
        f"Relation: {tuples_guarantee(50, Fraction(1, 2)).relation}.",
        "Epsilon is -ln(1-p), rounded up to millionths; the delta of a threshold is exact for release mode tuples, for"
        " the worst number of other reports.",
        "One slot a user; the shuffler draws the coin after the window has closed.",
    )
    return Findings(rows, _fig3_targets(rows), (), (), settings)


def _row(chance: Fraction) -> Row:
    epsilon = curve_epsilon(chance)
    row: Row = {"p": float(chance), "epsilon": float(epsilon), "formula": -math.log1p(-float(chance))}
    for threshold in THRESHOLDS:
        row[f"delta_threshold_{threshold}"] = float(exact_delta(threshold, chance, epsilon))
    row[PUBLISHED] = _published_delta(chance)
    row["smallest_threshold"] = smallest_threshold(chance, epsilon, TARGET_DELTA)
    return row


def _published_delta(chance: Fraction) -> float:
    """The delta of the paper's release, at any threshold."""
    return float_up(delta_value(paper_guarantee(THRESHOLDS[0], chance).delta_units))


def _fig3_targets(rows: list[Row]) -> list[BenchRow]:
    # Amounts are whole millionths, rounded up.
    off = max(abs(row["epsilon"] - row["formula"]) for row in rows)
    found = [BenchRow("epsilon against -ln(1-p), largest difference", off, "epsilon", "at most 1e-06", off <= 1e-6)]
    half = Fraction(1, 2)
    for threshold, known in _DELTAS_AT_HALF.items():
        delta = float(exact_delta(threshold, half, curve_epsilon(half)))
        name = f"delta at p=0.5, threshold {threshold}"
        found.append(BenchRow(name, delta, "delta", f"{known:g} to two digits", f"{delta:.1e}" == f"{known:.1e}"))
    published = _published_delta(half)
    found.append(BenchRow("delta of the published release at p=0.5", published, "delta", "p", published == half))
    for chance, known_threshold in _SMALLEST.items():
        p = Fraction(str(chance))
        least = smallest_threshold(p, curve_epsilon(p), TARGET_DELTA)
        name = f"smallest threshold for delta 1e-6 at p={chance:g}"
        found.append(BenchRow(name, float(least), "reports", f"{known_threshold}", least == known_threshold))
    return found


FIG4, FIG5, FIG6, FIG7 = "p2b-fig4", "p2b-fig5", "p2b-fig6", "p2b-fig7"

ONE_SLOT, SLOT_EVERY_10 = "one slot in a life", "a slot every 10 interactions"
"""The number of slots of an agent in Figure 6."""

LN_2 = math.log(2)
PAPER_RELEASE = ReleaseConfig(mode="paper", sampling=0.5)
SLOT_SUMS_LN_2 = ReleaseConfig(mode="slot-sums", epsilon=LN_2)

TEXT = WorldSpec(
    "text", "softmax (the paper's text): W scale 5, reward scale 0.1, clicks", "synthetic", {"reward_scale": 0.1}
)
CODE = WorldSpec("code", "linear (the public code): reward scale 0.1, clicks", "synthetic", {"variant": "linear"})
SETTINGS = (
    "Of the users 70 % contribute one slot each and 30 % are compared; each of them is played once for each condition"
    " with the same contexts, clicks and ties.",
    "LinUCB with alpha 1 and ridge 1; contexts are histograms with one decimal digit.",
    "All slots are released in one window. Slot sums: epsilon ln 2 a slot; codes from configuration alone.",
    "Paper mode: p = 0.5, threshold 10 counted on the code alone.",
    "The non-private condition learns from every slot's interaction in clear.",
    "Intervals: 95 % over seeds (Student's t), each with its own world, coins and keys.",
)


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of Figure 6.

    Attributes:
        dataset: its name.
        label: its name in captions.
        agents: how many agents there are, contributors and evaluated ones together.
        arms: K.
        gap: how many points of accuracy non-private agents are ahead in the paper.
        quick: agents and interactions of a quick run.
    """

    dataset: str
    label: str
    agents: int
    arms: int
    gap: float
    quick: tuple[int, tuple[int, ...]]

    def world(self, options: dict[str, str]) -> WorldSpec:
        """The world at 20 features a context."""
        what = f"{self.label}, 20 features by chi-squared, {self.arms} labels"
        return WorldSpec(self.dataset, what, self.dataset, options)


PANELS = (
    Panel("tmc2007", "TMC2007", 275, 20, 3.6, (275, (10, 30))),
    Panel("mediamill", "MediaMill", 425, 40, 2.6, (60, (10, 20))),
)


def lines(codes: int) -> tuple[Line, ...]:
    """The paper's release with ``codes`` codes, and the default release with codes from the configuration."""
    return (Line(f"paper mode, k={codes}", codes, PAPER_RELEASE), Line("slot sums, auto k", "auto", SLOT_SUMS_LN_2))


@experiment(
    FIG4,
    "Mean reward against the number of users, for 10, 20 and 50 arms",
    f"{PAPER}, Figure 4 (top, middle, bottom)",
    Curve(
        "Gain of a warm start against the size of the population",
        ("reward",),
        "users",
        by=_CONDITIONS,
        panels=("world", "arms"),
        log="x",
    ),
)
def fig4(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play reward against users: d=10, T=10, K=10, 20, 50 in the text's world; and K=10 in the code's."""
    seeds = range(2) if scale.quick else range(5)
    users = (500, 1_500) if scale.quick else (1_000, 10_000, 100_000)
    panels = ((TEXT, 10),) if scale.quick else ((TEXT, 10), (TEXT, 20), (TEXT, 50), (CODE, 10))
    codes = 64 if scale.quick else 1024
    points = [
        Point(FIG4, {"arms": arms}, world, size, 10, 10, arms, lines(codes)) for world, arms in panels for size in users
    ]
    played = play_points(points, seeds, progress)
    return _findings(played, seeds, _drop_targets(_fig4_targets(played, users[-1], codes), scale.quick))


@experiment(
    FIG5,
    "Mean reward against the dimension of the context",
    f"{PAPER}, Figure 5",
    Curve("Reward falls as contexts grow", ("reward",), "dimension", by=_CONDITIONS),
    takes="minutes",
)
def fig5(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play reward against dimension: K=20, T=20, U=20,000, d=6 to 20."""
    seeds = range(2) if scale.quick else range(5)
    dimensions = (6, 10) if scale.quick else (6, 8, 10, 12, 16, 20)
    users, codes = (1_000, 64) if scale.quick else (20_000, 1024)
    points = [Point(FIG5, {"dimension": d}, TEXT, users, 20, d, 20, lines(codes)) for d in dimensions]
    played = play_points(points, seeds, progress)
    return _findings(played, seeds, _drop_targets(_fig5_targets(played), scale.quick))


@experiment(
    FIG6,
    "Accuracy on TMC2007 and MediaMill against the interactions of an agent",
    f"{PAPER}, Figure 6",
    Curve(
        "Accuracy with 20 features and 20 or 40 labels", ("reward",), "rounds", by=_CONDITIONS, panels=("world", "plan")
    ),
    takes="minutes",
    data="tmc2007, mediamill",
)
def fig6(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play accuracy, d=20, T=10 to 100, k=2^5: TMC2007 with K=20 and 275 agents, MediaMill with K=40 and 425.

    A panel without its dataset is left out, and the findings say which files it needs.

    Raises:
        AbsentDatasetError: neither dataset is there.
    """
    seeds = range(2) if scale.quick else range(20)
    shown, needs = _panels_here(scale.data_dir)
    points: list[Point] = []
    for panel in shown:
        agents, lives = panel.quick if scale.quick else (panel.agents, (10, 25, 50, 100))
        world = panel.world(scale.world_options)
        once, often = lines(32), (Line("slot sums, auto k", "auto", SLOT_SUMS_LN_2),)
        for life in lives:
            columns = {"rounds": life, "plan": ONE_SLOT}
            points.append(Point(FIG6, columns, world, agents, life, 20, panel.arms, once))
        for life in (life for life in lives if life % 10 == 0):
            columns = {"rounds": life, "plan": SLOT_EVERY_10}
            points.append(Point(FIG6, columns, world, agents, life, 20, panel.arms, often, slot_every=10))
    played = play_points(points, seeds, progress)
    targets: list[BenchRow] = []
    for panel in shown:
        single = [one for one in played if (one.point.world.key, one.point.slot_every) == (panel.dataset, None)]
        targets += _fig6_targets(panel, single)
    return _findings(played, seeds, _drop_targets(targets, scale.quick), needs)


@experiment(
    FIG7,
    "Click-through on Criteo's log against the interactions of an agent",
    f"{PAPER}, Figure 7",
    Curve("Click-through on Criteo's log, d = 10, K = 40", ("reward",), "rounds", by=_CONDITIONS),
    data="criteo",
)
def fig7(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play click-through on Criteo's log: d=10, K=40, 3,000 agents, T=20 to 300, k=2^5 and 2^7.

    Raises:
        AbsentDatasetError: the log is not there.
    """
    seeds = range(2) if scale.quick else range(5)
    agents, lives = (300, (10, 20)) if scale.quick else (3_000, (20, 100, 200, 300))
    world = WorldSpec("criteo", "Criteo, 10 numbers, the 40 most frequent hashed values", "criteo", scale.world_options)
    compared = (*lines(32)[:1], *lines(128))
    points = [Point(FIG7, {"rounds": life}, world, agents, life, 10, 40, compared) for life in lives]
    played = play_points(points, seeds, progress)
    return _findings(played, seeds, _drop_targets(_fig7_targets(played[-1]), scale.quick))


def _panels_here(data_dir: str | None) -> tuple[list[Panel], tuple[str, ...]]:
    """The panels whose files are present, and a sentence for each other panel."""
    shown: list[Panel] = []
    needs: list[str] = []
    for panel in PANELS:
        try:
            locate(panel.dataset, data_dir)
        except AbsentDatasetError as error:
            needs.append(f"{panel.label} is left out, as its files are absent: {remedy(find_dataset(panel.dataset))}.")
            if len(needs) == len(PANELS):
                raise AbsentDatasetError(f"{FIG6}: expected tmc2007 or mediamill; {error}") from error
        else:
            shown.append(panel)
    return shown, tuple(needs)


def ratio_target(name: str, played: Played, line: int, condition: str, bound: float) -> BenchRow:
    """A line's reward divided by that of own learning or without privacy, which should reach a bound."""
    value, low, high = played.ratio(line, condition)
    title = f"{name}: private over {CONDITION_NAMES[condition]} (95 %: {low:.3f} to {high:.3f})"
    return BenchRow(title, value, "ratio", f"at least {bound:g}", value >= bound)


def _drop_targets(targets: list[BenchRow], unfit: bool) -> list[BenchRow]:
    """Remove the targets from figures of a run that they are not stated for, such as a quick run."""
    return [BenchRow(row.name, row.value, row.unit) for row in targets] if unfit else targets


def _fig4_targets(played: Sequence[Played], users: int, codes: int) -> list[BenchRow]:
    """Targets are stated for 10 arms only: with more arms there are fewer reports for each."""
    found: list[BenchRow] = []
    for one in played:
        if one.point.users == users:
            name = f"paper mode, k={codes}, U={users:,}, K={one.point.arms}, {one.point.world.key}"
            pair = [ratio_target(name, one, 0, WARM_NONPRIVATE, 0.9), ratio_target(name, one, 0, COLD, 2.0)]
            found += _drop_targets(pair, unfit=one.point.arms != 10)
    return found


def _fig5_targets(played: Sequence[Played]) -> list[BenchRow]:
    names = (CONDITION_NAMES[COLD], CONDITION_NAMES[WARM_NONPRIVATE], *(line.label for line in played[0].point.lines))
    ends = f"d={played[0].point.dimension} minus d={played[-1].point.dimension}"
    found = []
    for column, name in enumerate(names):
        fall, *_ = over_seeds(played[0].means[:, column] - played[-1].means[:, column])
        target = ("above 0 (the paper, of every agent that learns)", fall > 0) if column else ("", None)
        found.append(BenchRow(f"{name}: reward at {ends}", fall, "reward", *target))
    return found


def _fig6_targets(panel: Panel, played: Sequence[Played]) -> list[BenchRow]:
    first, last = played[0], played[-1]
    found = []
    names = (CONDITION_NAMES[COLD], CONDITION_NAMES[WARM_NONPRIVATE], *(line.label for line in first.point.lines))
    for column, name in enumerate(names):
        rise = _points(last.means[:, column] - first.means[:, column])
        # The model from exact data cannot rise much more here, so the target is for the others.
        target = ("above 0", rise > 0) if column != 1 else ("", None)
        title = f"{panel.label}, {name}: accuracy at T={last.point.rounds} minus T={first.point.rounds}"
        found.append(BenchRow(title, rise, "points", *target))
    for index, line in enumerate(last.point.lines):
        gap = _points(last.means[:, 1] - last.means[:, 2 + index])
        title = f"{panel.label}, non-private minus {line.label} at T={last.point.rounds}"
        found.append(BenchRow(title, gap, "points", f"at most {panel.gap:g} (the paper's gap)", gap <= panel.gap))
    return found


def _fig7_targets(last: Played) -> list[BenchRow]:
    """Private agents should be ahead; the paper has them ahead by 0.0025 of click-through."""
    found = []
    for index, line in enumerate(last.point.lines):
        ahead, *_ = over_seeds(last.means[:, 2 + index] - last.means[:, 1])
        title = f"{line.label} minus non-private at T={last.point.rounds}"
        found.append(BenchRow(title, ahead, "click-through", "above 0 (the paper has 0.0025)", ahead > 0))
    return found


def _points(values: NDArray[np.float64]) -> float:
    return 100.0 * over_seeds(values)[0]


def worlds_of(played: Sequence[Played]) -> tuple[str, ...]:
    """The worlds of some points, each once, by key and settings."""
    return tuple(dict.fromkeys(f"{one.point.world.key}: {one.point.world.label}" for one in played))


def _findings(
    played: list[Played], seeds: Sequence[int], targets: list[BenchRow], needs: tuple[str, ...] = ()
) -> Findings:
    rows = [row for one in played for row in one.rows()]
    return Findings(rows, targets, worlds_of(played), seeds, SETTINGS + needs)


EPSILONS = "p2b-epsilon"


@experiment(
    EPSILONS,
    "What sharing brings 1,500 visitors of the shop, by epsilon",
    "the demo's shop",
    Curve(
        "Gain over own learning by epsilon", ("gain",), "epsilon_asked", log="x", label="gain, mean reward a decision"
    ),
    takes="minutes",
)
def run_epsilons(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the shop at three epsilons; each seed decides the visitors, their choices and the noise."""
    seeds, users = (range(2), 100) if scale.quick else (range(10), 1_500)
    tasks = [(epsilon, seed, users) for epsilon in (0.1, 0.5, 2.0) for seed in seeds]
    found = play_all(_gain_of, tasks, EPSILONS, progress)
    rows: list[Row] = [
        {"epsilon_asked": epsilon, **columns("gain", [found[epsilon, seed, users] for seed in seeds])}
        for epsilon in dict.fromkeys(epsilon for epsilon, _, _ in tasks)
    ]
    settings = (f"Gain: {GAIN}, a decision.",)
    world = f"shop, {users:,} visitors, of whom seven in ten contribute"
    return Findings(rows, [], (world,), seeds, settings)


def _gain_of(task: tuple[float, int, int]) -> float:
    epsilon, seed, users = task
    options = P2BOptions(
        dataset="shop",
        seed=seed,
        world={"users": users},
        config={"privacy": {"epsilon": epsilon}},
        conditions=(COLD, WARM_PRIVATE),
        verify=False,
    )
    payoff = run_p2b(options).payoff
    assert payoff is not None
    return payoff.gap.value


SOFTMAX = WorldSpec("softmax-1", "softmax: W scale 5, reward scale 1, clicks", "synthetic")
MODES = {
    "slot-sums": ReleaseConfig(mode="slot-sums", epsilon=LN_2),
    "tuples": ReleaseConfig(mode="tuples", sampling=0.5),
    "paper": ReleaseConfig(mode="paper", sampling=0.5),
}


EXPERIMENTS = (run_epsilons, fig3, fig4, fig5, fig6, fig7)
