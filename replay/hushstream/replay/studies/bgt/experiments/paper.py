"""Plays the paper's form: federated matrix factorisation with noise on each row of a client's update.

A client uploads the ids of its items in clear, with pseudo items among them. For each item it uploads a row: the
gradient of the item's factors and bias, clipped to `CLIP` separately and noised at the round's full level. The server
averages rows by item. In each round the test error is measured exactly and given to the planner. Half of the ratings
exist at the start; the others come evenly.

This has no finite guarantee, because ids and rewards leave in clear. If both were hidden, a row would cost the
schedule's rho (3.19 of zCDP for epsilon 10 at delta e^-5, as the paper counts it), and a client would cost that times
its number of rows. `row_guarantee` states this.

The noise is drawn at once for an item's sum over clients: sums of independent normal draws are normal, and a sum of n
Laplace draws is the difference of two gamma draws of shape n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.linalg import svds

from hushstream.privacy.amounts import DELTA_ONE, MICRO, Cost
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.promises.promise import Claim, Guarantee, Lifetime
from hushstream.replay.studies.bgt.experiments.planner import LEVELS, Planner
from hushstream.replay.studies.bgt.play import scored
from hushstream.replay.studies.bgt.worlds.ratings import Float64, Int64, Split, make_world
from hushstream.replay.worlds.draws import Draws

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
        relation="null-slot: neighbours differ in the ratings of one client, or none",
        unit="all updates of one client",
        cost=nothing,
        replace_one=nothing,
        lifetime=Lifetime(1, 1, nothing, nothing),
        sensitivity=1,
        norm="L2 norm of one row, in clips",
        zone="server",
        deployment="edge",
        residue_units=0,
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
