"""The paper's planner, which chooses a level of budget for each round (Zhang et al. 2024, sections V-A to V-D).

*Predictor* (equations 4, 5): a Gaussian process over [level, context] with the kernel (1 - alpha)^(|t - t'| / 2)
exp(-|z - z'|^2 / (2 s^2)); the paper prints the distance without its square, which is not the Gaussian kernel.

*Constrainer* (equations 6 to 8): one dual variable, because all clients have the same budget. Mirror descent under
negative entropy multiplies it by exp(-step x gradient); it is capped at Lambda. As printed, equation 11 adds the price
of a level to its score. So spending is rewarded, and since every level costs at least an even share, the dual falls to
0. With ``mended``, both signs are reversed.

*Allocator* (equations 12, 13): inverse gap weighting, gamma = 2 sqrt(A T / ((U + 2) ln T)).

It is no better than chance: gamma times the widest gap of scores, Lambda (highest level - lowest), is below 1 for
the paper's datasets (MovieLens-100K: .68 x 30 x .043 = .88), so every level's probability stays within [.17, .32].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hushstream.replay.studies.bgt.worlds.ratings import Float64

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
