"""Plays Table 1 of Wang et al. 2020 with the true epsilon of every calibration, and mechanisms that need less noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table
from rich.text import Text

from hushstream.privacy.promises.promise import NOT_PRIVATE, Guarantee
from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings, targets_table
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.colin.experiments.grid import (
    DP_ALGORITHMS,
    NONPRIVATE_ALGORITHMS,
    collect,
    play_tasks,
    seed_columns,
    trust_words,
)
from hushstream.replay.studies.colin.experiments.mechanisms import (
    BETTER,
    CALIBRATIONS,
    PAPER,
    SOUND_PAPER_TREE,
    Calibration,
    NoiseAt,
    find_calibration,
    guarantee_of,
)
from hushstream.replay.studies.colin.experiments.play import (
    NONPRIVATE,
    Played,
    Policy,
    Task,
    Tuning,
    WorldSetting,
    exposure_for,
)
from hushstream.systems.colin.ridge_rule import REWARD_RIDGE_PER_NOISE, SUMS_RIDGE_PER_NOISE

NAME = "colin-table1"
TITLE = "Cumulative regret by calibration, algorithm and epsilon"
SOURCE = "Wang et al. 2020 (Global and Local Differential Privacy for Collaborative Bandits), Table 1"

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
MAIN = "table"
"""The part of the grid that has the layout of the paper's table and is compared with targets."""

ALPHA = 0.1
TIE_WEIGHT = {NONPRIVATE: 1.0, "local-reward": 1.0, PAPER: 20.0}
SUMS_TIE_WEIGHT = 10.0
RIDGE_PER_NOISE = {PAPER: 0.02, "local-reward": REWARD_RIDGE_PER_NOISE}

PAPER_FIGURES: Mapping[str, tuple[float, ...]] = {
    "DP-LinUCB": (3082.90, 2683.69, 1504.14, 910.97, 496.11),
    "DP-CoLin": (2619.56, 2450.70, 1327.70, 884.19, 297.18),
    "DP-GOBLin": (2672.56, 2550.22, 964.63, 685.65, 246.92),
    "LDP-CoLin": (3310.53, 3095.10, 2389.05, 1795.40, 938.76),
    "LDP-GOBLin": (3268.70, 3004.80, 2334.62, 1743.57, 1060.53),
}
"""The regret that the paper prints, at `EPSILONS`, from a generator that it does not state."""

SETTINGS = (
    f"alpha = {ALPHA:g} for every learner. Ridge 1 without privacy; with it 1 + c s, s the known root mean square of"
    " the noise on a projected sum (for local-reward: its variance), which is post-processing: c ="
    f" {RIDGE_PER_NOISE[PAPER]:g} for the paper's calibration, {RIDGE_PER_NOISE['local-reward']:g} for local-reward,"
    f" {SUMS_RIDGE_PER_NOISE:g} for all others; used values in column ridge.",
    "alpha, c and the weight of ties were chosen on seeds 0 to 3 and 20 to 27 of the uniform world with d = 5.",
    "Unit: one reward; contexts, arms shown, graph and timing are public. A person with T/N rewards has the epsilon"
    " in column lifetime_epsilon.",
    "user-* and local-reward keep each user's counter or noise with the user: the DP and LDP rows are one run.",
    "All rows of a seed share world and noise up to its scale, from keys that are seeded: REPRODUCIBLE, NOT PRIVATE.",
)
TIES = (
    "GOBLin's graph has ties of weight 1 without privacy and for local-reward,"
    f" {TIE_WEIGHT[PAPER]:g} for the paper's calibration, else {SUMS_TIE_WEIGHT:g}."
)


@dataclass(frozen=True, slots=True)
class Block:
    """A part of the grid: one world, some calibrations, some epsilons.

    Attributes:
        part: its name in rows.
        variant: variant of the simulator.
        dimension: d.
        events: T.
        calibrations: the calibrations of its rows.
        epsilons: the epsilons of its rows.
    """

    part: str
    variant: str
    dimension: int
    events: int
    calibrations: tuple[Calibration, ...]
    epsilons: tuple[float, ...]

    def world(self, seed: int, **options: Any) -> WorldSetting:
        """The world under a seed."""
        named = {"variant": self.variant, "dimension": self.dimension, **options}
        return WorldSetting("colin", tuple(sorted(named.items())), self.events, seed)


def tuning_of(calibration: str, policy: Policy) -> Tuning:
    """The settings of a learner under a calibration; see `SETTINGS`."""
    if calibration == NONPRIVATE:
        return Tuning(ALPHA)
    tie_weight = TIE_WEIGHT.get(calibration, SUMS_TIE_WEIGHT) if policy == "goblin" else 1.0
    return Tuning(ALPHA, RIDGE_PER_NOISE.get(calibration, SUMS_RIDGE_PER_NOISE), tie_weight)


def private_task(world: WorldSetting, algorithm: str, calibration: Calibration, epsilon: float) -> Task:
    """A run of one of the paper's private algorithms."""
    policy, noise_at = DP_ALGORITHMS[algorithm]
    trusted: NoiseAt = "learner" if noise_at == "learner" else "server"
    return Task(world, policy, calibration.key, trusted, epsilon, tuning_of(calibration.key, policy))


def plain_task(world: WorldSetting, algorithm: str) -> Task:
    """A run without privacy, or the random policy."""
    policy: Policy = "random" if algorithm == "random" else NONPRIVATE_ALGORITHMS[algorithm]
    return Task(world, policy, tuning=tuning_of(NONPRIVATE, policy))


def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid."""
    findings = play_blocks(_blocks(scale.quick), (10,) if scale.quick else tuple(range(10, 15)), progress)
    return findings if scale.quick else replace(findings, targets=targets(findings.rows))


def play_blocks(blocks: Sequence[Block], seeds: Sequence[int], progress: Progress | None = None) -> TableFindings:
    """Play parts of the grid under each seed, without comparing them with targets."""
    tasks = [task for block in blocks for seed in seeds for task in _tasks(block, seed)]
    played = play_tasks(tasks, progress)
    rows = [row for block in blocks for row in _rows(block, seeds, played)]
    description = Description(NAME, TITLE, SOURCE, _worlds(blocks), tuple(seeds), (TIES, *SETTINGS))
    return TableFindings(description, rows, [])


def _blocks(quick: bool) -> tuple[Block, ...]:
    if quick:
        return (Block(MAIN, "uniform", 5, 1000, CALIBRATIONS, (0.5, 10.0)),)
    few = tuple(find_calibration(key) for key in (PAPER, "laplace-l1", "user-laplace", "local-reward"))
    return (
        Block(MAIN, "uniform", 5, 10_000, CALIBRATIONS, EPSILONS),
        Block("d=25", "uniform", 25, 10_000, CALIBRATIONS, (2.0,)),
        *(Block(variant, variant, 5, 10_000, few, (2.0,)) for variant in ("nonnegative", "unit-sphere", "masked")),
    )


def _worlds(blocks: Sequence[Block]) -> tuple[str, ...]:
    return tuple(
        f"{block.part}: colin/{block.variant}, N = 10 users in turn, d = {block.dimension}, 10 of 1,000 arms shown,"
        f" T = {block.events:,}, reward noise 0.1, edges above the 0.3 quantile of similarity"
        for block in blocks
    )


def _tasks(block: Block, seed: int) -> Iterator[Task]:
    world = block.world(seed)
    for algorithm in ("random", *NONPRIVATE_ALGORITHMS):
        yield plain_task(world, algorithm)
    for calibration in block.calibrations:
        for algorithm in DP_ALGORITHMS:
            for epsilon in block.epsilons:
                yield private_task(world, algorithm, calibration, epsilon)


def _rows(block: Block, seeds: Sequence[int], played: Mapping[Task, Played]) -> Iterator[Row]:
    for algorithm in ("random", *NONPRIVATE_ALGORITHMS):
        tasks = [plain_task(block.world(seed), algorithm) for seed in seeds]
        yield {**_front(block, NONPRIVATE, algorithm), "trust": "", **regret_columns(tasks, played)}
    for calibration in block.calibrations:
        for algorithm in DP_ALGORITHMS:
            for epsilon in block.epsilons:
                tasks = [private_task(block.world(seed), algorithm, calibration, epsilon) for seed in seeds]
                yield {
                    **_front(block, calibration.key, algorithm),
                    "trust": trust_words(calibration, algorithm),
                    "epsilon_asked": epsilon,
                    **regret_columns(tasks, played),
                    **privacy_columns(worst_guarantee(tasks)),
                }


def _front(block: Block, calibration: str, algorithm: str) -> Row:
    return {
        "part": block.part,
        "variant": block.variant,
        "d": block.dimension,
        "calibration": calibration,
        "algorithm": algorithm,
    }


def regret_columns(tasks: Sequence[Task], played: Mapping[Task, Played]) -> Row:
    """Mean and standard deviation over seeds of the regret at the end, and the mean ridge."""
    ridge = collect(played, tasks, lambda one: np.array([one.ridge])).mean()
    regret = seed_columns("regret", collect(played, tasks, lambda one: one.regret[-1:])[:, 0])
    return {**regret, "ridge": float(ridge), "alpha": tasks[0].tuning.alpha}


def worst_guarantee(tasks: Sequence[Task]) -> Guarantee:
    """The guarantee with the largest epsilon over seeds, whose graphs and features differ."""
    found = [
        guarantee_of(find_calibration(task.calibration), exposure_for(task), task.noise_at, task.epsilon)
        for task in tasks
    ]
    return max(found, key=lambda one: one.epsilon_micro)


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The targets: orderings of the paper's results, and the best calibration here against the paper's sound tree."""
    table = {(r["calibration"], r["algorithm"], r.get("epsilon_asked")): r["regret"] for r in rows if r["part"] == MAIN}
    epsilons = sorted({key[2] for key in table if key[2] is not None})

    def paper(algorithm: str) -> list[float]:
        return [table[PAPER, algorithm, epsilon] for epsilon in epsilons]

    found = []
    for algorithm in DP_ALGORITHMS:
        regrets = paper(algorithm)
        steps = max(after / before for before, after in pairwise(regrets))
        found.append(_below(f"paper: {algorithm}, regret over that of the epsilon before, largest", steps))
    for better, worse in (
        ("DP-CoLin", "DP-LinUCB"),
        ("DP-GOBLin", "DP-LinUCB"),
        ("DP-LinUCB", "LDP-CoLin"),
        ("DP-LinUCB", "LDP-GOBLin"),
    ):
        ratio = max(low / high for low, high in zip(paper(better), paper(worse), strict=True))
        found.append(_below(f"paper: {better} over {worse}, largest over epsilon", ratio))
    for algorithm in DP_ALGORITHMS:
        ratios = [
            min(table[key, algorithm, epsilon] for key in BETTER)
            / min(table[key, algorithm, epsilon] for key in SOUND_PAPER_TREE)
            for epsilon in epsilons
        ]
        found.append(_below(f"{algorithm}: best sound here over best sound one of the paper's tree", max(ratios)))
    return found


def _below(name: str, ratio: float) -> BenchRow:
    return BenchRow(name, ratio, "regret ratio", "below 1", ratio < 1.0)


class TableFindings(Findings):
    """Findings with the layout of the paper's table: a line for each algorithm, a column for each epsilon."""

    __slots__ = ()

    def table(self) -> Group:
        """All parts with their calibrations, then targets and facts."""
        parts = list(dict.fromkeys(row["part"] for row in self.rows))
        tables = [_layout([row for row in self.rows if row["part"] == part], part) for part in parts]
        return Group(*tables, targets_table(self.targets), Text("\n".join(self.description.facts())))


def _layout(rows: Sequence[Row], part: str) -> Table:
    epsilons = list(dict.fromkeys(row["epsilon_asked"] for row in rows if "epsilon_asked" in row))
    table = Table(
        "calibration",
        "algorithm",
        *(f"eps {epsilon:g}" for epsilon in epsilons),
        title=f"{part}: colin/{rows[0]['variant']}, d = {rows[0]['d']}; regret, mean ± std over seeds",
    )
    for calibration in dict.fromkeys(row["calibration"] for row in rows):
        chosen = [row for row in rows if row["calibration"] == calibration]
        for algorithm in dict.fromkeys(row["algorithm"] for row in chosen):
            line = [row for row in chosen if row["algorithm"] == algorithm]
            table.add_row(calibration, algorithm, *(regret_text(row) for row in _spread(line, len(epsilons))))
            if calibration == PAPER and part == MAIN:
                table.add_row("", f"{algorithm}, printed in the paper", *_printed(algorithm, epsilons), style="dim")
        if "epsilon" in chosen[0]:
            for name, column in _price_lines(calibration):
                prices = [_largest(chosen, epsilon, column) for epsilon in epsilons]
                table.add_row("", name, *(f"{price:,.4g}" for price in prices), style="dim")
        table.add_section()
    return table


def _spread(line: Sequence[Row], columns: int) -> list[Row]:
    """One row for each column; a value that does not depend on epsilon is repeated."""
    return list(line) if len(line) == columns else [line[0]] * columns


def _printed(algorithm: str, epsilons: Sequence[float]) -> list[str]:
    known = dict(zip(EPSILONS, PAPER_FIGURES[algorithm], strict=True))
    return [f"{known[epsilon]:.0f}" if epsilon in known else "" for epsilon in epsilons]


def _price_lines(calibration: str) -> list[tuple[str, str]]:
    true = f"{NOT_PRIVATE}; true epsilon" if calibration == PAPER else "epsilon of one reward"
    return [(true, "epsilon"), ("epsilon of a person, T/N rewards", "lifetime_epsilon")]


def _largest(rows: Sequence[Row], epsilon: float, column: str) -> float:
    return max(float(row[column]) for row in rows if row["epsilon_asked"] == epsilon)


def regret_text(row: Row) -> str:
    """Mean and standard deviation, as the paper prints them."""
    std = float(row["regret_std"])
    return f"{row['regret']:.0f}" if math.isnan(std) else f"{row['regret']:.0f} ± {std:.0f}"
