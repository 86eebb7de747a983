"""Plays P-DAP and GP-DAP as in their paper, and the paper's baselines, for its table.

Each vendor keeps its own adaptive partition and, per cell, counts and exact mean clicks of its items. A context of its
own user goes through three phases (Algorithm 1): show an item of one's own that was shown fewer than G1 times; train a
neighbour that was sent fewer than K G3 contexts; explore one whose answers were seen fewer than G2 times; else draw an
item of one's own by the exponential mechanism (without privacy: take the best), and show it or ask the best neighbour,
whichever mean is larger. A forwarded context (Algorithm 2) is answered by an item shown fewer than G3 times, else by
the exact best, and its click goes back with Laplace noise of scale K log2(T) / eps.

    G1 = c m^(2 alpha l) ln T      G2 = c m^(2 alpha l) ln t + m^(alpha l) Gamma / 4      K G3 = c m^(2 alpha l) ln t
    Gamma = (M - 1) log2(T)^2 ln((M - 1) T log2(T) / sigma) / eps, sigma = .05; GP-DAP: eps = eps0 m^(alpha l)

c is 1 in the paper. At its scale (four vendors of 1,000 items, 200,000 contexts) exploration alone would then take
longer than the run, so c = `CONTROL`. Choices where the paper is silent: children inherit their parent's counts, both
algorithms share statistics, L = 1.

Source: Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation with Multimedia Big
Data in Social Networks (P-DAP), Algorithms 1 and 2, sections V and VI.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from hushstream.privacy.amounts import DELTA_ONE, Cost, epsilon_micro
from hushstream.privacy.promises.promise import Claim, Guarantee, Lifetime
from hushstream.replay.studies.pdap.worlds.vendors import Arrivals, Float64, Int64, Vendors, vendors
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.cells import ROOT, Grid
from hushstream.systems.pdap.promise import RELATION, UNIT

PaperForm = Literal["P-DAP", "GP-DAP", "DAP", "DUP", "CAP", "random", "neighbour-only"]

CONTROL = 0.05
ALPHA, SPLIT_AT, GROWTH = 0.5, 2_500.0, 0.7
SIGMA = 0.05
LEVELS = 5
UNIFORM_LEVEL = 2
"""The level of DUP's cells: 4 x 4 cells in two dimensions."""


@dataclass(frozen=True, slots=True)
class PaperTask:
    """A run of the paper's experiment.

    Attributes:
        form: the algorithm.
        epsilon: the claimed epsilon; not used by forms without privacy.
        training: T, contexts before the test.
        tests: numbers of further contexts after which accuracy is measured.
        seed: seed of world and coins.
        arms: items of each vendor.
        vendors: M.
    """

    form: PaperForm
    epsilon: float
    training: int
    tests: tuple[int, ...]
    seed: int
    arms: int = 1000
    vendors: int = 4


def paper_guarantee(form: PaperForm, epsilon: float) -> Guarantee:
    """The guarantee of the paper's form: none at any epsilon.

    Guarantee:
        Claimed (Theorems 4 and 5): epsilon. True: delta = 1 at every epsilon, that is, an infinite epsilon. Let two
        items of a vendor have the same mean, and let a context be forwarded to it: Algorithm 2, line 8, answers with
        the exact argmax. One more click on the second item makes it the argmax: the next shown item has probability 1
        under one history and 0 under the other, and no factor e^eps changes a 0. The last comparison of Algorithm 1
        (line 16) and its exploration, whose counts are exact, reveal clicks in the same way; contexts travel in clear.
    """
    nothing = Cost(epsilon_micro(epsilon), DELTA_ONE)
    return Guarantee(
        mechanism=f"{form} as in its paper: choices by exact means, besides an exponential draw and noise of scale K "
        "log2(T)/epsilon",
        relation=RELATION,
        unit=UNIT,
        cost=nothing,
        replace_one=nothing,
        lifetime=Lifetime(1, 1, nothing, nothing),
        sensitivity=1,
        norm="the exact means decide: no sensitivity bounds an argmax",
        zone="counter",
        deployment="hosted",
        residue_units=0,
        public_participation=True,
        not_protected=("clicks, from observers of the next shown items", "contexts, from every vendor that gets them"),
        private_as_stated=False,
        claimed=Claim(epsilon_micro(epsilon), "0", "Zhou et al. (P-DAP), Theorems 4 and 5"),
    )


@dataclass(slots=True, eq=False)
class PaperCell:
    """The statistics of a vendor on its items and its neighbours in one cell."""

    level: int
    arrivals: int
    shown: Int64
    clicks: Float64
    trained: list[int]
    asked: list[int]
    answers: list[float]

    def child(self) -> PaperCell:
        """A cell one level below, with the same statistics and no arrivals."""
        return PaperCell(
            self.level + 1,
            0,
            self.shown.copy(),
            self.clicks.copy(),
            list(self.trained),
            list(self.asked),
            list(self.answers),
        )


class PaperRun:
    """All vendors of one run, served one context at a time."""

    def __init__(self, task: PaperTask, world: Vendors) -> None:
        """Make all vendors before the first context."""
        self._task = task
        self._world = world
        # The coins are the same at every epsilon, so rows do not differ by chance.
        self._coins = Draws(task.seed, "pdap-paper").generator()
        self._grid = Grid(world.dimension, 2, LEVELS)
        self._horizon = task.training + max(task.tests, default=0)
        self._private = task.form in ("P-DAP", "GP-DAP")
        self._cells = [self._start() for _ in range(task.vendors)]
        self._time = 1

    def _start(self) -> dict[int, PaperCell]:
        first = 0 if self._task.form != "DUP" else UNIFORM_LEVEL
        arms, others = self._task.arms, self._task.vendors
        # DUP's cells are made when a context first falls into them; the root is used until then.
        empty = np.zeros(arms, dtype=np.int64), np.zeros(arms)
        return {ROOT: PaperCell(first, 0, *empty, [0] * others, [0] * others, [0.0] * others)}

    def serve(self, arrivals: Arrivals) -> float:
        """Answer contexts in order; return the sum of the click probabilities of the shown items."""
        paths = [
            self._grid.at_level(self._grid.paths(arrivals.contexts), level).tolist() for level in range(LEVELS + 1)
        ]
        total = 0.0
        points = arrivals.contexts.astype(np.float64).tolist()
        for place, (point, home) in enumerate(zip(points, arrivals.homes.tolist(), strict=True)):
            total += self._one([level[place] for level in paths], point, home)
            self._time += 1
        return total

    def _one(self, path: list[int], point: list[float], home: int) -> float:
        if self._task.form == "random":
            return self._show(int(self._coins.integers(len(self._world.owners))), point)[0]
        cell = self.cell(home, path)
        arm, neighbour, read = self._choose(cell, home)
        if neighbour is None:
            chance, click = self._show(home * self._task.arms + arm, point)
            cell.shown[arm] += 1
            cell.clicks[arm] += click
        else:
            chance, click = self.forward(neighbour, path, point)
            if read:
                cell.asked[neighbour] += 1
                cell.answers[neighbour] += self._noised(click, cell.level) if self._private else click
        self._arrived(home, path, cell)
        return chance

    def _choose(self, cell: PaperCell, home: int) -> tuple[int, int | None, bool]:
        """Algorithm 1, lines 4 to 16: an item of one's own, or a neighbour, and whether to learn from its answer."""
        form, growth = self._task.form, 2.0 ** (2 * ALPHA * cell.level)
        least = int(cell.shown.argmin())
        if form != "neighbour-only" and cell.shown[least] < CONTROL * growth * math.log(self._horizon):
            return least, None, False
        if form == "CAP":
            return int((cell.clicks / cell.shown).argmax()), None, False
        others = [vendor for vendor in range(self._task.vendors) if vendor != home]
        train = CONTROL * growth * math.log(self._time)
        for vendor in others:
            if cell.trained[vendor] < train:
                cell.trained[vendor] += 1
                return 0, vendor, False
        explore = train + self._noise_rounds(cell.level)
        for vendor in others:
            if cell.asked[vendor] < explore:
                return 0, vendor, True
        return self._exploit(cell, others)

    def _exploit(self, cell: PaperCell, others: Sequence[int]) -> tuple[int, int | None, bool]:
        best = max(others, key=lambda vendor: cell.answers[vendor] / max(1, cell.asked[vendor]))
        if self._task.form == "neighbour-only":
            return 0, best, True
        means = cell.clicks / np.maximum(cell.shown, 1)
        arm = self._drawn(means, cell.level) if self._private else int(means.argmax())
        if means[arm] >= cell.answers[best] / max(1, cell.asked[best]):
            return arm, None, False
        return 0, best, True

    def _drawn(self, means: Float64, level: int) -> int:
        """The exponential mechanism with the sensitivity that the paper states, m^(-alpha l)."""
        weights = np.exp(self._epsilon(level) * 2.0 ** (ALPHA * level) / 2 * (means - means.max()))
        running = np.cumsum(weights)
        return int(np.searchsorted(running, self._coins.random() * running[-1]))

    def forward(self, vendor: int, path: list[int], point: list[float]) -> tuple[float, int]:
        """Algorithm 2: ``vendor`` answers another's context; returns its click probability, and the click."""
        cell = self.cell(vendor, path)
        least = int(cell.shown.argmin())
        few = CONTROL * 2.0 ** (2 * ALPHA * cell.level) * math.log(self._time) / self._task.arms
        arm = least if cell.shown[least] < few else int((cell.clicks / np.maximum(cell.shown, 1)).argmax())
        chance, click = self._show(vendor * self._task.arms + arm, point)
        cell.shown[arm] += 1
        cell.clicks[arm] += click
        self._arrived(vendor, path, cell)
        return chance, click

    def _show(self, arm: int, point: list[float]) -> tuple[float, int]:
        world = self._world
        (x, y), (a, b) = point, world.centres[arm]
        near = ((x - a) ** 2 + (y - b) ** 2) / world.widths[arm] ** 2
        chance = 0.05 + float(world.heights[0, arm]) * math.exp(-near)
        return chance, int(self._coins.random() < chance)

    def _epsilon(self, level: int) -> float:
        return self._task.epsilon * (2.0 ** (ALPHA * level) if self._task.form == "GP-DAP" else 1.0)

    def _noised(self, click: int, level: int) -> float:
        return click + float(
            self._coins.laplace(0.0, self._task.arms * math.log2(self._horizon) / self._epsilon(level))
        )

    def _noise_rounds(self, level: int) -> float:
        if not self._private:
            return 0.0
        others, rounds = self._task.vendors - 1, math.log2(self._horizon)
        gamma = others * rounds**2 * math.log(others * self._horizon * rounds / SIGMA) / self._epsilon(level)
        return float(2.0 ** (ALPHA * level) * gamma / 4)

    def cell(self, vendor: int, path: list[int]) -> PaperCell:
        """The statistics of ``vendor`` in the cell of a context whose cells from the root down are ``path``."""
        known = self._cells[vendor]
        if self._task.form == "DUP":
            cell = path[UNIFORM_LEVEL]
            if cell not in known:
                known[cell] = self._start()[ROOT]
            return known[cell]
        return known[next(cell for cell in path if cell in known)]

    def _arrived(self, vendor: int, path: list[int], cell: PaperCell) -> None:
        cell.arrivals += 1
        if self._task.form == "DUP" or cell.level == LEVELS or cell.arrivals < SPLIT_AT * 2.0 ** (GROWTH * cell.level):
            return
        here, known = path[cell.level], self._cells[vendor]
        del known[here]
        first = ((cell.level + 1) << 57) | ((here & ((1 << 57) - 1)) * self._grid.children)
        known.update({first + child: cell.child() for child in range(self._grid.children)})


@lru_cache(maxsize=4)
def _world(task_world: tuple[int, int, int]) -> Vendors:
    return vendors(vendors=task_world[0], arms=task_world[1], seed=task_world[2])


def play_paper(task: PaperTask) -> dict[int, float]:
    """Mean click probability over the first N contexts after training, for each N of ``tests``."""
    world = _world((task.vendors, task.arms, task.seed))
    draws = Draws(task.seed, "pdap-paper-contexts").generator()
    run = PaperRun(task, world)
    run.serve(world.arrivals(task.training, draws))
    found, earned, before = {}, 0.0, 0
    for total in task.tests:
        earned += run.serve(world.arrivals(total - before, draws))
        found[total], before = earned / total, total
    return found
