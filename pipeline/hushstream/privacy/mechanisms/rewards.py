"""A reward that is noised once, where it arises, so that all later uses of it are private.

A reward is a whole number of M steps. Two mechanisms give pure epsilon for replacing it by any other:

- *laplace*: discrete Laplace noise of scale M/epsilon (`noise.discrete_laplace`); any integer can come out.
- *response*: one bit, 1 with probability q + (p - q) r/M, where p = e^eps / (1 + e^eps) and q = 1 - p. For M = 1
  this is randomised response; for larger M the reward is rounded to 0 or M at random first (Duchi, Jordan,
  Wainwright 2018), both in one coin.

The estimate (bit - q) / (p - q) is unbiased. Its variance is at most 1/(4 (p-q)^2), and p q/(p-q)^2 for M = 1: half
of what Laplace noise has there, at every epsilon. For larger M Laplace noise wins from epsilon 2.2 or so on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import DELTA_ONE, Cost, Number, count_text, epsilon_text, epsilon_value, ratio_text
from hushstream.privacy.conversions import exp_above, exp_below
from hushstream.privacy.errors import BadGuarantee, BadNoise
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
    truncation,
)
from hushstream.privacy.mechanisms.tuples import WORD_ONE, checked_epsilon, require_within
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

LARGEST_LEVELS = 1 << 16
CONTEXTS_OPEN = "contexts, which arm was shown, and that and when a reward came"
RewardLaw = Literal["laplace", "response"]


@dataclass(frozen=True, slots=True)
class LocalReward:
    """How one reward is noised.

    Attributes:
        levels: M; a reward is 0..M steps.
        epsilon_micro: epsilon in millionths.
        law: ``laplace`` or ``response``.
    """

    levels: int
    epsilon_micro: int
    law: RewardLaw

    @classmethod
    def of(cls, levels: int, epsilon: Number, law: RewardLaw | Literal["auto"] = "auto") -> LocalReward:
        """The configured mechanism; ``auto`` takes the one with the smaller variance in the worst case.

        Raises:
            BadNoise: levels not in 1..2^16, epsilon not above 0 and at most 40, or an unknown law.
            BadAmount: epsilon is no number.
        """
        if not isinstance(levels, int) or isinstance(levels, bool) or not 1 <= levels <= LARGEST_LEVELS:
            raise BadNoise(f"reward levels: expected a whole number from 1 to {LARGEST_LEVELS}, got {levels!r}")
        micro = checked_epsilon(epsilon)
        if law == "auto":
            choices = (cls(levels, micro, "response"), cls(levels, micro, "laplace"))
            return min(choices, key=lambda one: one.variance)
        if law not in ("laplace", "response"):
            raise BadNoise(f"reward noise: expected laplace, response or auto, got {law!r}")
        return cls(levels, micro, law)

    @property
    def variance(self) -> float:
        """Largest variance of one estimate over all rewards, in squared units of the reward (0 to 1)."""
        if self.law == "laplace":
            return laplace_variance(*self._scale) / self.levels**2
        low = int(_thresholds(1, self.epsilon_micro)[0]) / WORD_ONE
        chance = low * (1 - low) if self.levels == 1 else 0.25
        return chance / (1 - 2 * low) ** 2

    def draw(self, stream: KeyedStream, rewards: NDArray[np.int64]) -> NDArray[np.int64]:
        """Noise every reward once.

        Args:
            stream: the keyed words of these rewards.
            rewards: int64 (n,), each in 0..M.

        Returns:
            int64 (n,): the reward plus noise, or a bit. The first n do not depend on later rewards.

        Raises:
            BadNoise: another type or shape, or a reward out of range; nothing was drawn.

        Guarantee:
            Computational, against parties without the key. Laplace: pure epsilon and the tables' truncation error
            (`noise.discrete_laplace`, sensitivity M). Response: with the thresholds t_0 <= ... <= t_M in units of
            2^-64, P(1) lies in [t_0, t_M] and P(0) in [1 - t_M, 1 - t_0], and t_M = 1 - t_0; t_0 is rounded up
            to t_0 >= 1/(1 + e^eps), so both ratios are at most (1 - t_0)/t_0 <= e^eps: pure epsilon, no truncation
            error.
        """
        require_within(rewards, self.levels, "rewards")
        if self.law == "laplace":
            return rewards + discrete_laplace(stream, *self._scale, len(rewards))
        words = stream.words(len(rewards), "reward-response", self.levels, self.epsilon_micro)
        return (words < _thresholds(self.levels, self.epsilon_micro)[rewards]).astype(np.int64)

    def estimate(self, noised: NDArray[np.int64]) -> NDArray[np.float64]:
        """Unbiased estimates of the rewards (0 to 1), float64 of the same shape; they may leave [0, 1]."""
        if self.law == "laplace":
            return np.asarray(noised / self.levels, dtype=np.float64)
        low = int(_thresholds(1, self.epsilon_micro)[0]) / WORD_ONE
        return np.asarray((noised - low) / (1 - 2 * low), dtype=np.float64)

    def guarantee(
        self, rewards: int = 1, devices: int = 1, deployment: Deployment = "edge", zone: str = "edge"
    ) -> Guarantee:
        """The guarantee of one reward, and of all ``rewards`` of one person on ``devices`` devices.

        Raises:
            BadGuarantee: a number of rewards or devices below 1.
        """
        if rewards < 1 or devices < 1:
            raise BadGuarantee(f"rewards, devices: expected whole numbers above 0, got {rewards!r}, {devices!r}")
        one, life = self._cost(1), self._cost(rewards * devices)
        return Guarantee(
            mechanism=f"noisy-reward: {self._words()} on each reward (in {count_text(self.levels, 'step')}), drawn"
            f" once in the {zone} zone",
            relation="replace-one: neighbours differ in one reward of one user, any two values",
            unit="one reward",
            cost=one,
            replace_one=one,
            lifetime=Lifetime(rewards, devices, life, life),
            sensitivity=self.levels,
            norm="distance of one reward, in steps",
            zone=zone,
            deployment=deployment,
            truncation_units=one.delta_units,
            any_content=True,
            not_protected=(
                CONTEXTS_OPEN,
                "what holds for the population, and what follows from it for anyone",
            ),
        )

    @property
    def _scale(self) -> tuple[int, int]:
        return laplace_scale(epsilon_value(self.epsilon_micro), self.levels)

    def _cost(self, rewards: int) -> Cost:
        micro = rewards * self.epsilon_micro
        if self.law == "response":
            return Cost(micro)
        if epsilon_value(micro) > 100:
            return Cost(micro, DELTA_ONE)
        variation = rewards * truncation(*self._scale) * (1 + exp_above(epsilon_value(micro)))
        return Cost(micro, min(DELTA_ONE, math.ceil(variation * DELTA_ONE)))

    def _words(self) -> str:
        if self.law == "laplace":
            numerator, denominator = self._scale
            return f"discrete Laplace noise of scale {ratio_text(numerator, denominator)}"
        return f"randomised response of one bit with epsilon {epsilon_text(self.epsilon_micro)}"


@lru_cache(maxsize=64)
def _thresholds(levels: int, epsilon_micro: int) -> NDArray[np.uint64]:
    """P(bit = 1) for each reward 0..M in units of 2^-64, uint64 (M + 1,)."""
    low = math.ceil(WORD_ONE / (1 + exp_below(epsilon_value(epsilon_micro))))
    span = WORD_ONE - 2 * low
    table = np.array([low + span * reward // levels for reward in range(levels + 1)], dtype=np.uint64)
    table.setflags(write=False)
    return table
