"""The experiments of BGTplanner: the paper's form and table, and three slots.

The paper's planner, which chooses a level of budget for each round (Zhang et al. 2024, sections V-A to V-D).

*Predictor* (equations 4, 5): a Gaussian process over [level, context] with the kernel (1 - alpha)^(|t - t'| / 2)
exp(-|z - z'|^2 / (2 s^2)); the paper prints the distance without its square, which is not the Gaussian kernel.

*Constrainer* (equations 6 to 8): one dual variable, because all clients have the same budget. Mirror descent under
negative entropy multiplies it by exp(-step x gradient); it is capped at Lambda. As printed, equation 11 adds the price
of a level to its score. So spending is rewarded, and since every level costs at least an even share, the dual falls to
0. With ``mended``, both signs are reversed.

*Allocator* (equations 12, 13): inverse gap weighting, gamma = 2 sqrt(A T / ((U + 2) ln T)).

It is no better than chance: gamma times the widest gap of scores, Lambda (highest level - lowest), is below 1 for
the paper's datasets (MovieLens-100K: .68 x 30 x .043 = .88), so every level's probability stays within [.17, .32].

Plays the paper's form: federated matrix factorisation with noise on each row of a client's update.

A client uploads the ids of its items in clear, with pseudo items among them. For each item it uploads a row: the
gradient of the item's factors and bias, clipped to `CLIP` separately and noised at the round's full level. The server
averages rows by item. In each round the test error is measured exactly and given to the planner. Half of the ratings
exist at the start; the others come evenly.

This has no finite guarantee, because ids and rewards leave in clear. If both were hidden, a row would cost the
schedule's rho (3.19 of zCDP for epsilon 10 at delta e^-5, as the paper counts it), and a client would cost that times
its number of rows. `row_guarantee` states this.

The noise is drawn at once for an item's sum over clients: sums of independent normal draws are normal, and a sum of n
Laplace draws is the difference of two gamma draws of shape n.

Plays the paper's table: its printed results, our results with its form, its true guarantee, and the sound form.

Measures three slots against baselines without data of others and without privacy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from hushstream.engine.declare.plan import Audience
from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.promises.promise import Claim, Guarantee, Lifetime
from hushstream.replay.experiments.findings import JOINING_SEEDS, Curve, Findings, Foretold, Scale, experiment
from hushstream.replay.experiments.rows import (
    BenchRow,
    Row,
    at_most,
    beside_alone,
    columns,
    pick,
    privacy_columns,
)
from hushstream.replay.experiments.systems import NAME, Paper, sound_epsilon
from hushstream.replay.runners.to_end import play_seeds
from hushstream.replay.studies.bgt.play import (
    EPSILONS,
    NAMES,
    SEEDS,
    SETTINGS,
    SOURCE,
    Baseline,
    Played,
    Task,
    baseline,
    baseline_of,
    configuration,
    guarantee_of,
    play,
    play_world,
    promised,
    score_columns,
    scored,
)
from hushstream.replay.studies.bgt.worlds import Float64, Int64, Split, make_world, tastes
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.bgt.guarantee import epoch_guarantee
from hushstream.systems.bgt.plan import GAIN, LEAST_GAIN, plan

Sign = Literal["printed", "mended"]

LEVELS = 5
EACH = 5
"""T0, the number of rounds that each level gets at the start."""

LENGTH, FADING = 0.2, 0.001
_NOISE = 1e-4
"""Variance of a reward around its prediction; the paper names none."""


class Planner:
    """Chooses levels, and learns from rewards."""

    def __init__(self, levels: Sequence[float], rounds: int, clients: int, sign: Sign, seed: int) -> None:
        """Make a planner before the first round.

        Args:
            levels: shares of the total that a round may cost, rising.
            rounds: T.
            clients: U.
            sign: ``printed`` or ``mended``; see the module.
            seed: seed of its choices.
        """
        self.levels, self._rounds, self._clients = np.array(levels), rounds, clients
        self._sign = 1.0 if sign == "printed" else -1.0
        self._draw = np.random.default_rng(seed)
        self._inputs: list[Float64] = []
        self._rewards: list[float] = []
        self._radius = 0.0
        self._dual = 0.0
        self.probabilities: list[Float64] = []

    def choose(self, context: Float64) -> int:
        """Choose a level and return its number: each level in turn at first, then at random, then by scores."""
        done, count = len(self._rewards), len(self.levels)
        if done < count * EACH:
            return done // EACH
        if done < (count + 1) * EACH:
            return int(self._draw.integers(count))
        if done == (count + 1) * EACH:
            self._radius = self._estimate()
            self._dual = self._radius * self._draw.random()
        chances = self._chances(self._scores(context))
        self.probabilities.append(chances)
        return int(self._draw.choice(count, p=chances))

    def learn(self, level: int, context: Float64, reward: float) -> None:
        """Learn from the reward of a round."""
        self._inputs.append(self._input(level, context))
        self._rewards.append(reward)
        if self._radius > 0:
            gradient = -self._sign * self._over(level)
            largest = float(np.abs(1 / self._rounds - self.levels).max())
            step = math.sqrt(math.log(2) / self._rounds) / largest
            self._dual = min(self._radius, self._dual * math.exp(-step * gradient))

    def _over(self, level: int) -> float:
        """An even share of the budget minus what the level costs."""
        return 1 / self._rounds - float(self.levels[level])

    def _scores(self, context: Float64) -> Float64:
        """Equation 11, with prices as shares of the total; Lambda is per unit of epsilon, and the total is one unit."""
        scores = [self._predict(level, context) for level in range(len(self.levels))]
        over = np.array([self._over(level) for level in range(len(self.levels))])
        return np.array(scores) - self._sign * over * self._dual

    def _chances(self, scores: Float64) -> Float64:
        count = len(scores)
        gamma = 2 * math.sqrt(count * self._rounds / ((self._clients + 2) * math.log(self._rounds)))
        chances = 1 / (count + gamma * (scores.max() - scores))
        best = int(scores.argmax())
        chances[best] = 0.0
        chances[best] = 1 - chances.sum()
        return np.asarray(chances)

    def _input(self, level: int, context: Float64) -> Float64:
        return np.concatenate(([level / max(1, len(self.levels) - 1)], context))

    def _predict(self, level: int, context: Float64) -> float:
        """Equation 5: the predicted reward."""
        known = np.array(self._inputs)
        now, times = len(known), np.arange(float(len(known)))
        between = self._kernel(known, known, times[:, None] - times)
        toward = self._kernel(self._input(level, context)[None], known, now - times[None])[0]
        weights = np.linalg.solve(between + _NOISE * np.eye(now), np.array(self._rewards))
        return float(toward @ weights)

    @staticmethod
    def _kernel(one: Float64, other: Float64, apart: Float64) -> Float64:
        squares = ((one[:, None] - other[None]) ** 2).sum(axis=2)
        return np.asarray((1 - FADING) ** (np.abs(apart) / 2) * np.exp(-squares / (2 * LENGTH**2)))

    def _estimate(self) -> float:
        """Lambda of equations 9 and 10: T / total (OPT + M), where the total is one."""
        recent = self._rewards[-EACH:]
        predicted = [float(np.mean(self._rewards))] * EACH
        error = float(np.mean((np.array(recent) - predicted) ** 2))
        margin = math.sqrt(len(self.levels) * error + 4 * math.log(self._rounds * self._clients) / EACH)
        best = max(float(np.mean(self._rewards[first : first + EACH])) for first in range(0, EACH * LEVELS, EACH))
        return self._rounds * (max(0.0, best) + margin)


Schedule = Literal["fedsgd", "even-100", "even-82", "random", "planner", "planner, mended", "adpml", "adap"]
SCHEDULES: tuple[Schedule, ...] = (
    "fedsgd", "even-100", "even-82", "random", "planner", "planner, mended", "adpml", "adap",
)  # fmt: skip
Law = Literal["gaussian", "laplace"]

ROUNDS, LEAST_ROUNDS = 100, 70
"""T, and the number of rounds if every round has the highest level."""

EPSILON = 10.0
PAPER_DELTA = math.exp(-5)
"""Delta as the paper prints it."""

FACTORS, CLIP = 8, 0.1
PSEUDO = 50
_STEP, _OWN_STEP, _REGULAR = 1.0, 0.3, 0.02
_START = 0.1
_CONTEXT = 4
_SHRINKING, _GROWTH = 0.99, 1.02
_FASTER, _MOST_TIMES = 1 / 0.9, 10.0


@dataclass(frozen=True, slots=True)
class PaperTask:
    """One run.

    Attributes:
        world: name of the world.
        schedule: see `SCHEDULES`.
        law: distribution of the noise.
        seed: seed of split, noise and choices.
        rounds: T.
        data_dir: see `hushstream.replay.datasets.store.locate`.
    """

    world: str
    schedule: Schedule
    law: Law
    seed: int
    rounds: int = ROUNDS
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class PaperPlayed:
    """The outcome of a run.

    Attributes:
        rmse, f1, balanced: scores of the last model.
        rounds: how many rounds were played before the budget ended.
        chances: smallest and largest probability that the planner gave a level; (0, 0) without a planner.
    """

    rmse: float
    f1: float
    balanced: float
    rounds: int
    chances: tuple[float, float]


def play_paper(task: PaperTask) -> PaperPlayed:
    """Play one run."""
    return _Run(task, make_world(task.world, task.data_dir).split(task.seed)).play()


def total_rho(epsilon: float = EPSILON, delta: float = PAPER_DELTA) -> float:
    """The zCDP (rho) that the paper's accountant allows; found by bisection."""
    units, low, high = int(DELTA_ONE * delta), 0, 1 << 40
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if rho_to_epsilon_micro(middle, units) <= epsilon * MICRO else (low, middle)
    return low / MICRO


def row_guarantee() -> Guarantee:
    """The guarantee of the paper's form: none."""
    nothing = Cost(0, DELTA_ONE)
    return Guarantee(
        mechanism="rows of clients' updates, each clipped and noised by itself; ids and rewards in clear",
        relation="zero-out: neighbours differ in the ratings of one client, or none",
        unit="all updates of one client",
        cost=nothing,
        replace_one=nothing,
        lifetime=Lifetime(1, 1, nothing, nothing),
        sensitivity=1,
        norm="L2 norm of one row, in clips",
        zone="server",
        deployment="edge",
        truncation_units=0,
        not_protected=("which items a client rated, hidden only among pseudo items", "the error of every round"),
        private_as_stated=False,
        claimed=Claim(int(EPSILON * MICRO), "e^-5", "Zhang et al. 2024, section VII-A"),
        reproducible=True,
    )


class _Run:
    """The model, the clients and the schedule of a run."""

    def __init__(self, task: PaperTask, split: Split) -> None:
        world = split.world
        self._task, self._split, self._world = task, split, world
        # All schedules use the same draws, so their results do not differ by noise.
        self._draw = Draws(task.seed, "bgt-paper").generator()
        self._choices = Draws(task.seed, "bgt-paper-choices").generator()
        order = self._draw.permutation(split.earlier)
        self._users, self._items, self._values = world.users[order], world.items[order], world.values[order]
        self._mean = 0.7
        self._bias = np.zeros(world.item_count)
        self._item = _START * self._draw.standard_normal((world.item_count, FACTORS))
        self._own = np.zeros(world.user_count)
        self._user = _START * self._draw.standard_normal((world.user_count, FACTORS))
        self._total = total_rho() if task.law == "gaussian" else EPSILON
        self._spent = 0.0

    def play(self) -> PaperPlayed:
        """Play all rounds that the budget allows."""
        levels = np.linspace(1, ROUNDS / LEAST_ROUNDS, LEVELS) / self._task.rounds
        sign = "mended" if self._task.schedule == "planner, mended" else "printed"
        planner = Planner(levels, self._task.rounds, self._world.user_count, sign, self._task.seed)  # type: ignore[arg-type]
        before, done = self._error()[0], 0
        for number in range(self._task.rounds):
            pseudo = self._draw.integers(0, self._world.item_count, (self._world.user_count, PSEUDO))
            context = self._context(number, pseudo) if self._task.schedule.startswith("planner") else np.zeros(0)
            level = planner.choose(context)
            share = self._share(number, level, levels)
            if self._task.schedule != "fedsgd" and self._spent + share > 1 + 1e-9:
                break
            self._spent += share
            self._round(number, share, pseudo)
            after, done = self._error()[0], number + 1
            if self._task.schedule.startswith("planner"):
                planner.learn(level, context, before - after)
            before = after
        chances = np.array(planner.probabilities)
        ends = (float(chances.min()), float(chances.max())) if chances.size else (0.0, 0.0)
        return PaperPlayed(*self._error(), done, ends)

    def _share(self, number: int, level: int, levels: Float64) -> float:
        """The share of the total budget that a round costs."""
        rounds, schedule = self._task.rounds, self._task.schedule
        if schedule == "even-82":
            return float(levels.mean())
        if schedule == "random":
            return float(levels[self._choices.integers(LEVELS)])
        if schedule in ("planner", "planner, mended"):
            return float(levels[level])
        if schedule in ("adpml", "adap"):
            growth = _FASTER if schedule == "adpml" else _GROWTH
            sizes = np.minimum(growth ** np.arange(rounds), _MOST_TIMES)
            return float(sizes[number] / sizes.sum())
        return 1 / rounds

    def _there(self, number: int) -> int:
        """How many ratings have arrived by a round."""
        half = len(self._users) // 2
        return half + (len(self._users) - half) * number // self._task.rounds

    def _round(self, number: int, share: float, pseudo: Int64) -> None:
        count = self._there(number)
        users, items = self._users[:count], self._items[:count]
        error = self._values[:count] - np.clip(self._predict(users, items), 0, 1)
        rows = np.column_stack(
            (error[:, None] * self._user[users] - _REGULAR * self._item[items], error - _REGULAR * self._bias[items])
        )
        clip = CLIP * (_SHRINKING**number if self._task.schedule == "adap" else 1.0)
        rows *= np.minimum(1.0, clip / np.maximum(np.linalg.norm(rows, axis=1), 1e-12))[:, None]
        self._learn_alone(users, items, error)
        uploads = np.bincount(items, minlength=len(self._bias)) + np.bincount(pseudo.ravel(), minlength=len(self._bias))
        sums = np.stack([np.bincount(items, column, len(self._bias)) for column in rows.T], axis=1)
        # A pseudo item's row is pure noise. It hides which item is real, but counts in the average like a real one.
        noised = sums + self._noise(share, clip, uploads)
        step = _STEP * noised / np.maximum(uploads, 1)[:, None]
        self._item += step[:, :-1]
        self._bias += step[:, -1]

    def _learn_alone(self, users: Int64, items: Int64, error: Float64) -> None:
        """Move each client's offset and factors one step along its mean gradient; they never leave the client."""
        rated = np.maximum(np.bincount(users, minlength=len(self._own)), 1)
        own = np.bincount(users, error, len(self._own)) / rated
        columns = [np.bincount(users, error * self._item[items, place], len(rated)) for place in range(FACTORS)]
        self._own += _OWN_STEP * (own - _REGULAR * self._own)
        self._user += _OWN_STEP * (np.stack(columns, axis=1) / rated[:, None] - _REGULAR * self._user)

    def _noise(self, share: float, clip: float, uploads: Int64) -> Float64:
        shape = len(uploads), FACTORS + 1
        if self._task.schedule == "fedsgd":
            return np.zeros(shape)
        if self._task.law == "gaussian":
            deviation = clip / math.sqrt(2 * share * self._total)
            return np.asarray(self._draw.standard_normal(shape) * (deviation * np.sqrt(uploads))[:, None])
        # The scale uses the L2 clip, as the paper's comparison does; epsilon needs sqrt(row length) times as much.
        scale = clip / (share * self._total)
        times = np.broadcast_to(np.maximum(uploads, 1e-9)[:, None], shape)
        return np.asarray(scale * (self._draw.gamma(times) - self._draw.gamma(times)))

    def _context(self, number: int, pseudo: Int64) -> Float64:
        """The largest singular values of the matrix of uploads (client, item), divided by the largest one."""
        count = self._there(number)
        rows = np.concatenate((self._users[:count], np.repeat(np.arange(len(pseudo)), PSEUDO)))
        columns = np.concatenate((self._items[:count], pseudo.ravel()))
        shape = len(self._own), len(self._bias)
        matrix = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=shape)
        values = np.sort(svds(matrix, _CONTEXT, return_singular_vectors=False, v0=np.ones(min(shape))))[::-1]
        return np.asarray(values / values[0])

    def _predict(self, users: Int64, items: Int64) -> Float64:
        found = self._mean + self._own[users] + self._bias[items]
        return np.asarray(found + (self._user[users] * self._item[items]).sum(axis=1))

    def _error(self) -> tuple[float, float, float]:
        rows = self._split.later
        found = self._predict(self._world.users[rows], self._world.items[rows])
        return scored(np.clip(found, 0, 1), self._world.values[rows])


TABLE = "bgt-table"
REPRODUCED = (
    "Reproduced: planner and random give equal results, and gain over 100 even rounds what 82 even rounds gain."
)

PRINTED: Mapping[tuple[str, Schedule, Law], tuple[float, float]] = {
    ("filmtrust", "fedsgd", "gaussian"): (0.2905, 0.8354),
    ("filmtrust", "planner", "gaussian"): (0.3746, 0.6685),
    ("filmtrust", "planner", "laplace"): (0.4114, 0.6517),
    ("filmtrust", "adpml", "gaussian"): (0.3898, 0.6395),
    ("filmtrust", "adap", "gaussian"): (0.3970, 0.6389),
    ("filmtrust", "even-100", "gaussian"): (0.4093, 0.6680),
    ("ml-100k", "fedsgd", "gaussian"): (0.2017, 0.9018),
    ("ml-100k", "planner", "gaussian"): (0.3223, 0.6444),
    ("ml-100k", "planner", "laplace"): (0.3449, 0.6421),
    ("ml-100k", "adpml", "gaussian"): (0.3442, 0.6358),
    ("ml-100k", "adap", "gaussian"): (0.3553, 0.6366),
    ("ml-100k", "even-100", "gaussian"): (0.3356, 0.6412),
}
"""Table II: RMSE and F1."""

PLAIN = ("constant", "alone", "all positive")
WORLDS = ("filmtrust", "ml-100k")


@experiment(
    TABLE,
    "RMSE of BGTplanner's schedules: as printed, reimplemented, and of our three rounds",
    f"{SOURCE}, Table II",
    Curve(
        "The paper's schedules on a matrix factorisation, and ours",
        ("rmse",),
        by=("form",),
        panels=("world",),
        label="RMSE (less is better)",
    ),
    takes="minutes",
    data="filmtrust, ml-100k",
)
def run_table(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play every schedule, then the baselines and the sound form."""
    worlds, seeds, rounds = (("tastes",), (0, 1), 40) if scale.quick else (WORLDS, SEEDS, ROUNDS)
    tasks = [
        PaperTask(world, schedule, law, 0, rounds, scale.data_dir)
        for world in worlds
        for law, schedules in _listed(scale.quick).items()
        for schedule in schedules
    ]
    played = play_seeds(play_paper, tasks, seeds, TABLE, progress)
    rows = [_paper_row(task, runs) for task, runs in played.items()]
    rows += _plain_rows(worlds, PLAIN, seeds, scale.data_dir, TABLE, progress)
    rows += _sound_rows(worlds, seeds, scale.data_dir, progress)
    settings = (
        "The paper's form is NOT PRIVATE AS STATED: ids of items and each round's error leave in clear, so no epsilon"
        f" is finite. Were both hidden, a row would cost rho {total_rho():.2f} (epsilon {EPSILON:g} at delta e^-5, as"
        " the paper counts), and a client as many times that as it sends rows a round, some 135 on ml-100k.",
        "Base model here: federated matrix factorisation with biases, 8 factors, each row clipped to .1; the paper's is"
        " a graph network whose step, clip and size it does not name, so its absolute figures are not reproduced.",
        *(() if scale.quick else (REPRODUCED,)),
        *SETTINGS,
    )
    return Findings(rows, [] if scale.quick else table_targets(rows), worlds, seeds, settings)


def _listed(quick: bool) -> Mapping[Law, tuple[Schedule, ...]]:
    if quick:
        return {"gaussian": ("fedsgd", "even-82", "planner")}
    return {"gaussian": SCHEDULES, "laplace": ("even-100", "random", "planner")}


def _paper_row(task: PaperTask, runs: Sequence[PaperPlayed]) -> Row:
    printed = PRINTED.get((task.world, task.schedule, task.law))
    noised = task.schedule != "fedsgd"
    return {
        "world": task.world,
        "form": f"{task.schedule}, {task.law}" if noised else "fedsgd, no noise",
        "schedule": task.schedule,
        "law": task.law,
        **score_columns([(run.rmse, run.f1, run.balanced) for run in runs]),
        **({} if printed is None else {"printed": printed[0], "printed_f1": printed[1]}),
        **columns("rounds", [float(run.rounds) for run in runs]),
        "least_chance": min(run.chances[0] for run in runs),
        "largest_chance": max(run.chances[1] for run in runs),
        "seeds": len(runs),
        **(privacy_columns(row_guarantee()) if noised else {"marks": ""}),
    }


def _plain_rows(
    worlds: Sequence[str],
    names: Sequence[str],
    seeds: Sequence[int],
    data_dir: str | None,
    title: str,
    progress: Progress | None,
) -> list[Row]:
    bases = [Baseline(world, name, 0, data_dir) for world in worlds for name in names]
    found = play_seeds(baseline, bases, seeds, title, progress)
    return [
        {
            "world": one.world,
            "form": one.name,
            "features": one.name == "alone" and one.world == "ml-100k",
            **score_columns(scores),
            "seeds": len(seeds),
            "marks": "",
        }
        for one, scores in found.items()
    ]


def _sound_rows(
    worlds: Sequence[str], seeds: Sequence[int], data_dir: str | None, progress: Progress | None
) -> list[Row]:
    tasks = [Task(world, EPSILON, 0, data_dir=data_dir) for world in worlds]
    rows = []
    for task, runs in play_seeds(play, tasks, seeds, TABLE, progress).items():
        scores = score_columns([(run.rmse, run.f1, run.balanced) for run in runs])
        rows.append({"world": task.world, "form": "three slots", **scores, "seeds": len(seeds), **promised(task)})
    return rows


def table_targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The targets: which results of the paper's table are reproduced."""
    found = []
    for world in WORLDS:
        planner, random, even, shorter = (
            float(pick(rows, world=world, schedule=name, law="gaussian")["rmse"])
            for name in ("planner", "random", "even-100", "even-82")
        )
        found.append(at_most(f"{world}, planner against random", [abs(planner - random)], "RMSE", 0.004))
        found.append(at_most(f"{world}, even-82 minus planner", [shorter - planner], "RMSE", 0.002))
        if world == "filmtrust":
            found.append(at_most(f"{world}, planner minus even-100", [planner - even], "RMSE", 0.0))
        sound = float(pick(rows, world=world, form="three slots")["rmse"])
        found.append(at_most(f"{world}, three slots minus the paper's planner", [sound - planner], "RMSE", 0.0))
    return found


THREE_SLOTS = "what joining brings, bgt"


def run_three_slots(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play three slots at every epsilon, with public features where there are some, and the baselines."""
    worlds, seeds, epsilons = (
        (("tastes",), (0, 1), (10.0,)) if scale.quick else (("filmtrust", "ml-100k"), JOINING_SEEDS, EPSILONS)
    )
    tasks = [task for world in worlds for task in _tasks(world, epsilons, scale.data_dir)]
    if scale.compared:
        tasks = [one for one in tasks if one.features == (one.world == "ml-100k") and one.epsilon in (1.0, 10.0)]
    played = play_seeds(play, tasks, seeds, THREE_SLOTS, progress)
    rows = [] if scale.compared else _plain_rows(worlds, NAMES, seeds, scale.data_dir, THREE_SLOTS, progress)
    exact = {
        (world, name): [baseline(Baseline(world, form, seed, scale.data_dir))[0] for seed in seeds]
        for world in worlds
        for name, form in (("alone", "alone"), ("without_privacy", "user and item bias"))
    }
    rows += [
        _row(task, runs, {name: values for (world, name), values in exact.items() if world == task.world})
        for task, runs in played.items()
    ]
    return Findings(rows, [], worlds, seeds, SETTINGS)


def _tasks(world: str, epsilons: Sequence[float], data_dir: str | None) -> list[Task]:
    kinds = (False, True) if world == "ml-100k" else (False,)
    return [Task(world, epsilon, 0, features, data_dir=data_dir) for features in kinds for epsilon in (*epsilons, None)]


def _row(task: Task, runs: Sequence[Played], exact: Mapping[str, Sequence[float]]) -> Row:
    """A row of slots beside the errors of devices that mix, of devices alone, and of biases without privacy."""
    policies = {"joined": [run.released for run in runs], "mixture": [run.rmse for run in runs]}
    return {
        "world": task.world,
        "measure": "RMSE, ratings from 0 to 1",
        "form": "three slots",
        "features": task.features,
        "epsilon_asked": "none" if task.epsilon is None else task.epsilon,
        **score_columns([(run.rmse, run.f1, run.balanced) for run in runs]),
        **beside_alone(True, **exact, **policies),
        "factors": sum(run.factors for run in runs) / len(runs),
        **columns("edge_ratio", [run.ratio for run in runs]),
        "seeds": len(runs),
        **promised(task),
    }


def foretold(seed: int) -> Foretold:
    """A drawn world, its plan, and what three slots gain over each device alone.

    Users log-evenly from 50 to 3,000, 100 to 600 items, 10 to 60 ratings each, epsilon from .5 to 8; items differ by
    .07 to .14 and users by 0 to .1, and popularity is steeper or flatter than the plan assumes. Small populations are
    drawn up to ten times, and their gain is the mean.
    """
    draw = Draws(seed, "bgt-foretold").generator()
    users, items = int(50 * 60 ** draw.random()), int(draw.integers(100, 601))
    ratings, epsilon = min(items // 5, int(10 * 6 ** draw.random())), float(0.5 * 16 ** draw.random())
    drawn = {
        "factors": int(draw.integers(0, 3)),
        "strength": float(draw.uniform(0.0, 0.1)),
        "item_spread": float(draw.uniform(0.07, 0.14)),
        "user_spread": float(draw.uniform(0.0, 0.1)),
        "head": float(3 * 10 ** draw.random()),
    }
    gains = []
    for again in range(seed, seed + 10_000 * min(10, math.ceil(2_000 / users)), 10_000):
        world = tastes(users=users, items=items, ratings=ratings, seed=again, **drawn)  # type: ignore[arg-type]
        task = Task("tastes", epsilon, again)
        gains.append(baseline_of(world, "alone", again)[0] - play_world(task, world).rmse)
    config = configuration(task, world)
    ahead = plan(config, Audience(users, len(world.split(seed).earlier) // users, 365.0, visit_days=1.0))
    return Foretold(
        world=f"{users:,} users with {ratings} ratings of {items} items, epsilon {epsilon:.2g}",
        measure="RMSE below that of each device alone",
        said=ahead.values[GAIN],
        beats=ahead.beats,
        gain=float(np.mean(gains)),
        guarantee=epoch_guarantee(config).under_key(True),
        least=LEAST_GAIN,
    )


CLAIM = Paper(
    system="bgt",
    source=SOURCE,
    claimed_epsilon=EPSILON,
    claimed_as="δ e^-5 = 0.0067, perhaps meant as 1e-5; its default",
    audit="bgt-paper",
    fails="item ids are hidden only among pseudo items, the same real ones each round (attacked). Even with hidden ids "
    "noise scaled for one row, of a user's several, has ε 14.4 for two (calculated). Ours covers all that a user's "
    "report moves",
    protects="a user's ratings",
    protects_here="a user's ratings",
    printed_in_paper="0.3746 with a graph network (Table II)",
    measure="RMSE, ratings from 0 to 1",
    better="less is better",
    local_only_is="each device's own learner",
    reading="its footnote 2 leaves open how ids are hidden, attacked are the 50 pseudo items of its experiments; what "
    "its noise covers it does not say",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: the planner as published against three slots a user, on FilmTrust."""
    world, rounds, seeds = ("tastes", 40, range(1)) if scale.quick else ("filmtrust", ROUNDS, range(10))
    data, true = scale.data_dir, row_guarantee()
    planner = PaperTask(world, "planner", "gaussian", 0, rounds, data)
    slots = Task(world, sound_epsilon(EPSILON, true), 0, data_dir=data)
    bases = [Baseline(world, name, 0, data) for name in ("alone", "constant", "random")]
    alone, constant, random = (
        [one[0] for one in runs] for runs in play_seeds(baseline, bases, seeds, NAME, progress).values()
    )
    return CLAIM.row(
        f"{world}; planner: {rounds} rounds on a matrix factorisation; ours: three, mixed with own means",
        true,
        guarantee_of(slots),
        published=[one.rmse for one in play_seeds(play_paper, [planner], seeds, NAME, progress)[planner]],
        reached=[one.rmse for one in play_seeds(play, [slots], seeds, NAME, progress)[slots]],
        local_only=alone,
        constant=constant,
        random=random,
    )


EXPERIMENTS = (run_table,)
