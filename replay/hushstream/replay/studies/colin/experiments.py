"""The table and figures of Wang et al. 2020.

Plays Table 1 of Wang et al. 2020 with the true epsilon of every calibration, and mechanisms that need less noise.

Figures 1 and 2 of Wang et al. 2020: regret and estimation error over time, regret by users, reward on Last.fm.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import numpy as np

from hushstream.engine.declare.plan import Audience
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.findings import Curve, Findings, Foretold, Scale, experiment
from hushstream.replay.experiments.rows import BenchRow, Row, beside_alone, privacy_columns
from hushstream.replay.experiments.systems import Paper, sound_epsilon
from hushstream.replay.studies.colin.play import (
    CALIBRATIONS,
    DP_ALGORITHMS,
    NONPRIVATE,
    NONPRIVATE_ALGORITHMS,
    PAPER,
    Calibration,
    Float64,
    NoiseAt,
    Played,
    Policy,
    Task,
    Tuning,
    WorldSetting,
    canonical,
    collect,
    exposure_for,
    find_calibration,
    guarantee_of,
    play_tasks,
    seed_columns,
    stage_of,
    trust_words,
)
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.colin.configuration import (
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
)
from hushstream.systems.colin.deployment import REWARD_RIDGE_PER_NOISE, SUMS_RIDGE_PER_NOISE
from hushstream.systems.colin.plan import plan

NAME = "colin-table1"
_SOURCE = "Wang et al. 2020 (Global and Local Differential Privacy for Collaborative Bandits)"

EPSILONS = (0.5, 1.0, 2.0, 5.0, 10.0)
BETTER = ("user-laplace", "local-reward")
MAIN = "table"
"""The part of the grid that has the layout of the paper's table and is compared with targets."""

ALPHA = 0.1
EPSILON = 2.0
LASTFM_TIE_WEIGHT = 0.1
TIE_WEIGHT = {NONPRIVATE: 1.0, "local-reward": 1.0, PAPER: 20.0}
SUMS_TIE_WEIGHT = 10.0
RIDGE_PER_NOISE = {PAPER: 0.02, "local-reward": REWARD_RIDGE_PER_NOISE}

SETTINGS = (
    f"alpha = {ALPHA:g} for every learner. Ridge 1 without privacy (alone, each user with an exact LinUCB of their own:"
    f" .2 a feature, at least 1); with it 1 + c s, s the known root mean square of"
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
class Grid:
    """Runs without privacy, and of every calibration and private algorithm, in one or more worlds; what rows show.

    Attributes:
        worlds: the variants in words.
        settings: one world for each seed of each point: columns, and the world under a seed.
        seeds: seeds of worlds and keys.
        columns: which values of a run the rows hold, by name.
        over_time: whether there is a row for each checkpoint, or only one at the end.
        facts: notes shown with the rows.
        calibrations, epsilons: of the private runs.
    """

    worlds: tuple[str, ...]
    settings: tuple[tuple[Row, Callable[[int], WorldSetting]], ...]
    seeds: Sequence[int]
    columns: Mapping[str, Callable[[Played], Float64]]
    over_time: bool = False
    facts: tuple[str, ...] = (TIES, *SETTINGS)
    calibrations: tuple[Calibration, ...] = CALIBRATIONS
    epsilons: tuple[float, ...] = (EPSILON,)


def play_grids(grids: Sequence[Grid], progress: Progress | None = None) -> Findings:
    """Play all runs of some grids, without comparing them with targets."""
    lines = [
        (grid, {**columns, **front}, tasks)
        for grid in grids
        for columns, world in grid.settings
        for front, tasks in _lines(grid, world)
    ]
    played = play_tasks([task for _, _, tasks in lines for task in tasks], progress)
    rows = [row for grid, front, tasks in lines for row in _rows(grid, front, tasks, played)]
    worlds = tuple(world for grid in grids for world in grid.worlds)
    return Findings(rows, [], worlds, grids[0].seeds, grids[0].facts)


def _lines(grid: Grid, world: Callable[[int], WorldSetting]) -> Iterator[tuple[Row, list[Task]]]:
    """Every line of a grid: its columns, and a task for each seed."""
    worlds = [world(seed) for seed in grid.seeds]
    for algorithm in ("random", *NONPRIVATE_ALGORITHMS):
        tasks = [_adapted(plain_task(one, algorithm)) for one in worlds]
        yield {"calibration": NONPRIVATE, "algorithm": algorithm, "trust": ""}, tasks
    for calibration, algorithm, epsilon in product(grid.calibrations, DP_ALGORITHMS, grid.epsilons):
        tasks = [_adapted(private_task(one, algorithm, calibration, epsilon)) for one in worlds]
        front = {"calibration": calibration.key, "algorithm": algorithm, "trust": trust_words(calibration, algorithm)}
        yield {**front, "epsilon_asked": epsilon, **privacy_columns(worst_guarantee(tasks))}, tasks


def _adapted(task: Task) -> Task:
    """Set the weight of ties for Last.fm, whose graph counts friendships."""
    if task.world.name != "lastfm" or task.policy != "goblin":
        return task
    return replace(task, tuning=replace(task.tuning, tie_weight=LASTFM_TIE_WEIGHT))


def _rows(grid: Grid, front: Row, tasks: Sequence[Task], played: Mapping[Task, Played]) -> Iterator[Row]:
    values = {name: collect(played, tasks, figure) for name, figure in grid.columns.items()}
    ridge = float(collect(played, tasks, lambda one: np.array([one.ridge])).mean())
    events = collect(played, tasks, lambda one: one.events.astype(float))[0].astype(int)
    for place in range(len(events)) if grid.over_time else (-1,):
        row = {**front, **({"events": int(events[place])} if grid.over_time else {})}
        for name, of_seeds in values.items():
            row |= seed_columns(name, of_seeds[:, place])
        if not all(math.isnan(row[name]) for name in values):
            yield {**row, "ridge": ridge, "alpha": tasks[0].tuning.alpha}


def simulator(events: int, **options: Any) -> Callable[[int], WorldSetting]:
    """The simulator of ten users by seed, with other options."""
    named = tuple(sorted({"variant": "uniform", "dimension": 5, **options}.items()))
    return lambda seed: WorldSetting("colin", named, events, seed)


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


@experiment(
    NAME,
    "Cumulative regret by calibration, algorithm and epsilon",
    f"{_SOURCE}, Table 1",
    Curve(
        "Regret by calibration against epsilon",
        ("regret",),
        "epsilon_asked",
        by=("calibration",),
        panels=("algorithm",),
        where={"part": MAIN},
        log="xy",
        label="cumulative regret (less is better)",
    ),
)
def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid."""
    if scale.quick:
        return play_grids([table_of(MAIN, "uniform", 5, range(10, 11), 1_000, (0.5, 10.0))], progress)
    seeds = range(10, 15)
    others = (("d=25", "uniform", 25), *((variant, variant, 5) for variant in ("nonnegative", "unit-sphere", "masked")))
    grids = [table_of(MAIN, "uniform", 5, seeds, epsilons=EPSILONS), *(table_of(*one, seeds) for one in others)]
    findings = play_grids(grids, progress)
    return replace(findings, targets=targets(findings.rows))


def table_of(
    part: str,
    variant: str,
    dimension: int,
    seeds: Sequence[int],
    events: int = 10_000,
    epsilons: tuple[float, ...] = (EPSILON,),
    calibrations: tuple[Calibration, ...] = CALIBRATIONS,
) -> Grid:
    """A part of the table: the regret at the end in one world of the simulator."""
    world = (
        f"{part}: colin/{variant}, N = 10 users in turn, d = {dimension}, 10 of 1,000 arms shown,"
        f" T = {events:,}, reward noise 0.1, edges above the 0.3 quantile of similarity"
    )
    named = {"part": part, "variant": variant, "d": dimension}
    return Grid(
        (world,),
        ((named, simulator(events, variant=variant, dimension=dimension)),),
        seeds,
        {"regret": lambda one: one.regret[-1:]},
        calibrations=calibrations,
        epsilons=epsilons,
    )


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
            min(table[key, algorithm, epsilon] for key in BETTER) / table["laplace-l1", algorithm, epsilon]
            for epsilon in epsilons
        ]
        found.append(_below(f"{algorithm}: best sound here over the paper's tree made sound", max(ratios)))
    return found


def _below(name: str, ratio: float) -> BenchRow:
    return BenchRow(name, ratio, "regret ratio", "below 1", ratio < 1.0)


FIG1 = "colin-fig1"
LASTFM = "colin-lastfm"


@experiment(
    FIG1,
    "Cumulative regret and error of the estimated parameters over time, and regret by users, epsilon 2",
    f"{_SOURCE}, Figure 1",
    Curve(
        "Regret over time by calibration",
        ("regret",),
        "events",
        by=("algorithm",),
        panels=("calibration",),
        where={"part": "time"},
        suffix="a",
    ),
    Curve(
        "Error of the estimated parameters over time by calibration",
        ("error",),
        "events",
        by=("algorithm",),
        panels=("calibration",),
        where={"part": "time"},
        log="y",
        suffix="b",
    ),
    Curve(
        "Regret against the number of users by calibration",
        ("regret",),
        "users",
        by=("algorithm",),
        panels=("calibration",),
        where={"part": "users"},
        suffix="c",
    ),
)
def fig1(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 1: part ``time`` has (a) and (b), part ``users`` has (c)."""
    events, fewer = (1_000, 1_000) if scale.quick else (30_000, 10_000)
    users = (5, 10, 20) if scale.quick else (5, 10, 20, 25, 40, 50)
    seeds = tuple(range(10, 12 if scale.quick else 15))
    time = Grid(
        (f"colin/uniform, N = 10 users in turn, d = 5, 10 of 1,000 arms shown, T = {events:,}, reward noise 0.1",),
        (({"part": "time", "users": 10, "T": events}, simulator(events)),),
        seeds,
        {"regret": lambda one: one.regret, "error": lambda one: one.error},
        over_time=True,
        facts=(
            "Error: mean over users of the L2 distance between the vector that scores for a user and sum_j w_uj"
            " theta_j.",
            TIES,
            *SETTINGS,
        ),
    )
    by_users = replace(
        time,
        worlds=(f"colin/uniform, N = {users[0]} to {users[-1]} users in turn, d = 5, 10 of 1,000 arms, T = {fewer:,}",),
        settings=tuple(
            ({"part": "users", "users": count, "T": fewer}, simulator(fewer, users=count)) for count in users
        ),
        columns={"regret": lambda one: one.regret[-1:]},
        over_time=False,
    )
    found, other = play_grids([time], progress), play_grids([by_users], progress)
    return replace(
        found,
        rows=[*found.rows, *other.rows],
        targets=[*_targets("regret", found.rows), *_targets("regret", other.rows)],
        worlds=(*found.worlds, *other.worlds),
    )


@experiment(
    LASTFM,
    "Cumulative reward on Last.fm, epsilon 2",
    f"{_SOURCE}, Figure 2",
    Curve("Reward on Last.fm by calibration", ("reward",), "events", by=("algorithm",), panels=("calibration",)),
    data="hetrec2011-lastfm-2k",
)
def lastfm(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 2 on Last.fm.

    Raises:
        DatasetError: the dataset is absent.
    """
    events = 1_000 if scale.quick else 10_000

    def world(seed: int) -> WorldSetting:
        return WorldSetting("lastfm", tuple(scale.world_options.items()), events, seed)

    plot = Grid(
        (f"lastfm/spectral, 100 clusters in turn, d = 25, 25 artists shown, T = {events:,}",),
        (({"users": 100, "T": events}, world),),
        (10,) if scale.quick else (10, 11, 12),
        {"reward": lambda one: one.reward},
        over_time=True,
        facts=(f"GOBLin's ties are friendships between clusters times {LASTFM_TIE_WEIGHT:g}.", *SETTINGS),
    )
    found = play_grids([plot], progress)
    return replace(found, targets=_targets("reward", found.rows))


def _targets(column: str, rows: Sequence[Row]) -> list[BenchRow]:
    """Targets on the last values: the pure calibrations here against the paper's tree with a sound calibration."""
    last = rows[-1].get("events")
    part = f"{rows[-1]['part']}, " if "part" in rows[-1] else ""
    found = []
    for key in BETTER:
        ratios = []
        for algorithm in DP_ALGORITHMS:
            here, there = (_at(rows, one, algorithm, last, column) for one in (key, "laplace-l1"))
            ratios += [a / b for a, b in zip(here, there, strict=True)]
        worst = min(ratios) if column == "reward" else max(ratios)
        found.append(
            BenchRow(f"{part}{key} over laplace-l1 at the end, worst of all algorithms", worst, f"{column} ratio")
        )
    return found


def _at(rows: Sequence[Row], calibration: str, algorithm: str, events: int | None, column: str) -> list[float]:
    return [
        float(row[column])
        for row in rows
        if (row["calibration"], row["algorithm"], row.get("events")) == (calibration, algorithm, events)
    ]


def run_shared(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play CoLin with noise on each reward, with dark visits too, and behind a counter, beside users alone.

    200 rewards a user.
    """
    seeds = range(30, 32 if scale.quick else 40)
    kinds = [("uniform", 10, 0.1)] if scale.quick else [("uniform", 10, 0.1), ("uniform", 30, 0.3), ("masked", 30, 0.1)]
    rows: list[Row] = []
    for variant, users, noise in kinds:
        named = {"variant": variant, "dimension": 25, "users": users, "noise_std": noise}
        worlds = [WorldSetting("colin", tuple(sorted(named.items())), 200 * users, seed) for seed in seeds]
        plain = {name: [plain_task(world, name) for world in worlds] for name in ("random", "alone", "CoLin")}
        noised = {
            key: [private_task(world, "LDP-CoLin", find_calibration(key), 1.0) for world in worlds]
            for key in ("local-reward", *(() if scale.compared else ("user-laplace",)))
        }
        mixed = [replace(task, mixed=True) for task in noised["local-reward"]]
        lines = {**plain, **noised, "mixture": mixed}
        played = play_tasks([task for tasks in lines.values() for task in tasks], progress)
        regret = {name: collect(played, tasks, lambda one: one.regret[-1:])[:, 0] for name, tasks in lines.items()}
        of_random = {name: 100 * found / regret["random"] for name, found in regret.items()}
        rows += [
            {
                "world": f"colin/{variant}, {users} users, reward noise {noise:g}",
                "measure": "regret, % of a random policy's",
                "form": key,
                "epsilon_asked": 1.0,
                **beside_alone(
                    True,
                    of_random["alone"],
                    joined=of_random[key],
                    without_privacy=of_random["CoLin"],
                    **({"mixture": of_random["mixture"]} if key == "local-reward" else {}),
                ),
                "seeds": len(seeds),
                **privacy_columns(worst_guarantee(tasks)),
            }
            for key, tasks in noised.items()
        ]
    return Findings(rows, [], tuple(dict.fromkeys(row["world"] for row in rows)), seeds, SETTINGS)


LEAST_SPREAD, MOST_SPREAD, LEAST_GAIN = 0.1, 0.22, 1.1
"""A tenth more than users alone gain is the luck of one world."""


def foretold(seed: int) -> Foretold:
    """A drawn world, its plan, and what sharing gains in the last quarter, over what users alone gain there.

    Both are counted from a random policy; users alone have the better of two ridges, .2 a feature and 1.

    4 to 64 users, in half of the worlds nearly alike and all tied, 5 to 25 features, 50 to 200 rewards each, clicks or
    rewards with noise .05 to .4, epsilon .5 to 10; a user's mean rewards differ over arms by .1 to .22.
    """
    draw = Draws(seed, "colin-foretold").generator()
    users, each = int(draw.choice([4, 8, 16, 32, 64])), int(50 * 4 ** draw.random())
    epsilon, alike = float(0.5 * 20 ** draw.random()), float(draw.choice([0.0, 0.0, 0.7, 0.95]))
    clicks = bool(draw.integers(2))
    algorithm = str(draw.choice(["DP-LinUCB", "LDP-CoLin", "LDP-GOBLin"], p=[0.2, 0.4, 0.4]))
    noise, spread = float(0.05 * 8 ** draw.random()), 0.0
    while not LEAST_SPREAD <= spread <= MOST_SPREAD:
        named = {
            "variant": str(draw.choice(["uniform", "nonnegative", "masked", "unit-sphere"])),
            "dimension": int(draw.integers(5, 26)),
            "edge_quantile": 0.0 if alike else float(draw.uniform(0.0, 0.9)),
            "users": users,
            "noise_std": noise,
            "clicks": clicks,
            "alike": alike,
        }
        world = WorldSetting("colin", tuple(sorted(named.items())), each * users, seed)
        expected = stage_of(world).expected
        spread = float(expected.std(axis=1).mean())
    ours = private_task(world, algorithm, find_calibration("local-reward"), epsilon)
    plain = [plain_task(world, "random"), plain_task(world, "alone"), Task(world, "linucb", tuning=Tuning(ALPHA))]
    played = play_tasks([ours, *plain], processes=1)
    late = collect(played, [ours, *plain], lambda one: np.diff(one.regret[[-len(one.regret) // 4, -1]]))
    shared, random, *alone = late[:, 0].tolist()
    config = _configured(ours)
    # The mean number of rewards in the last quarter is 7/8 of all.
    ahead = plan(config, users, Audience(users, round(each * 7 / 8), 365.0, rate=float(expected.mean())))
    return Foretold(
        world=f"{users} users ({named['variant']}, {algorithm}), {each} rewards of {named['dimension']} features, "
        f"{'clicks' if clicks else f'noise {noise:.2g}'}, alike {alike:g}, epsilon {epsilon:.2g}",
        measure=ahead.measure,
        said=ahead.values["this deployment"],
        beats=ahead.beats,
        gain=(random - shared) / (random - min(alone)),
        guarantee=worst_guarantee([ours]),
        least=LEAST_GAIN,
    )


def _configured(task: Task) -> CollaborativeConfig:
    """The configuration of a deployment that does what a run with noise on each reward does."""
    stage = stage_of(task.world)
    return CollaborativeConfig(
        "study",
        stage.world.arms,
        FeatureConfig(stage.world.feature_dimension),
        CollaborationConfig(algorithm=task.policy),  # type: ignore[arg-type]
        release=ContinualConfig(
            mechanism="noisy-reward", epsilon=task.epsilon, rewards_per_user=task.world.events // stage.world.users
        ),
    )


ALGORITHM, OURS = "DP-CoLin", "local-reward"
CLAIM = Paper(
    system="colin",
    source="Wang et al., Global and Local Differential Privacy for Collaborative Bandits (DP-CoLin; RecSys 2020, "
    "doi:10.1145/3383313.3412254)",
    claimed_epsilon=2.0,
    claimed_as="δ 0, replace-one; in its Table 1",
    audit="colin-paper",
    fails="its noise covers an L2 distance, where Laplace noise has to cover the L1 distance (ε is that of the sums; "
    "arms tell at most that). Its log T, as we read it log₂ T = 13.3, is less than the tree's 14 levels. Ours covers "
    "both",
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
        published=theirs,
        reached=reached,
        local_only=apart,
        tuned=with_our_ridge,
        random=by_chance,
        first_seed=seeds[0],
    )


EXPERIMENTS = (run, fig1, lastfm)
