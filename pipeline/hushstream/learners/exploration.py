"""Choices with an exactly known propensity: integer weights of arms that sum to 10^9, and one random number.

A decision record states a propensity in whole billionths. So probabilities are whole billionths, too: each arm owns as
many of the numbers 0 to 10^9 - 1 as its weight. One such number is drawn, and the weight of its owner is the
probability of the draw. Nothing is rounded after the draw.

* `EpsilonMixture`: with probability ``share`` any eligible arm, else the best one. Of n eligible arms each owns
  q = floor(share 10^9 / n). The arms with the highest score divide the rest; if it does not divide evenly, the first
  of them by number own one more each.
* `Softmax`: arm a with probability proportional to exp(s_a / temperature). Scores are rounded to 64ths of the
  temperature below the best one, at most 20 temperatures below. Each arm owns at least one number, and the first of
  the best arms owns the remainder of the division. Weights come from a table that is computed with `decimal`, which
  rounds the same way on every machine.

Source: Sutton and Barto 2018, sections 2.2 and 2.8; Horvitz and Thompson 1952 for what propensities are good for.

*The highest arm.* Chooses the arm with the highest score; the caller says how ties are broken. All kernels end with
this step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError

WHOLE = 10**9
"""Propensities are whole numbers of billionths; an arm of weight `WHOLE` is certain."""

STEPS = 64
"""Steps of a temperature to which softmax rounds scores."""

_LOWEST = 20 * STEPS
_LARGEST_WEIGHT = 1 << 31

Scores = NDArray[np.floating]
Weights = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Drawn(NamedTuple):
    """An arm, and its propensity in billionths."""

    arm: int
    propensity: int


class Exploration(Protocol):
    """A rule that turns scores into weights."""

    def weights(self, scores: Scores, eligible: Bools | None) -> Weights:
        """How many of the numbers 0 to `WHOLE` - 1 each arm owns, (K,) int64, 0 for those not eligible.

        Args:
            scores: (K,).
            eligible: bool (K,); None for all.

        Raises:
            NoEligibleArm: none is eligible.
            LearnerError: the best score is no number.
        """

    def tie_gap(self, scores: Scores, eligible: Bools | None, number: int, other: Drawn) -> float:
        """By how much scores must differ (as by another processor's rounding) so that ``number`` gives ``other``.

        Args:
            scores: (K,).
            eligible: as in `weights`.
            number: the drawn number, from 0 to `WHOLE` - 1.
            other: an answer that differs from that of these scores.

        Returns:
            A distance of scores; infinite if no rounding explains the difference.
        """


def draw(weights: Weights, number: int) -> Drawn:
    """The arm that owns a number from 0 to `WHOLE` - 1, arms in order."""
    arm = int(np.searchsorted(np.cumsum(weights), number, side="right"))
    return Drawn(arm, int(weights[arm]))


@dataclass(frozen=True, slots=True)
class EpsilonMixture:
    """With a chance of ``share`` billionths any eligible arm, else one with the highest score."""

    share: int

    def weights(self, scores: Scores, eligible: Bools | None) -> Weights:
        best = highest(scores, eligible)
        return self._weights(np.equal(scores, best) if eligible is None else (scores == best) & eligible, eligible)

    def tie_gap(self, scores: Scores, eligible: Bools | None, number: int, other: Drawn) -> float:
        best = highest(scores, eligible)
        allowed = range(len(scores)) if eligible is None else np.flatnonzero(eligible).tolist()
        gaps = (
            best - float(scores[arm])
            for arm in allowed
            if draw(self._weights(np.arange(len(scores)) == arm, eligible), number) == other
        )
        return min(gaps, default=float("inf"))

    def _weights(self, tied: Bools, eligible: Bools | None) -> Weights:
        count = len(tied) if eligible is None else int(eligible.sum())
        each = self.share // count
        weights = np.full(len(tied), each, dtype=np.int64)
        if eligible is not None:
            weights[~eligible] = 0
        best = np.flatnonzero(tied)
        left, over = divmod(WHOLE - each * count, len(best))
        weights[best] += left
        weights[best[:over]] += 1
        return weights


@dataclass(frozen=True, slots=True)
class Softmax:
    """Arms by the exponential of their score over ``temperature``."""

    temperature: float

    def weights(self, scores: Scores, eligible: Bools | None) -> Weights:
        best = highest(scores, eligible)
        steps = np.rint((best - scores.astype(np.float64)) * (STEPS / self.temperature))
        parts = _exponentials()[np.clip(np.nan_to_num(steps, nan=_LOWEST), 0, _LOWEST).astype(np.intp)]
        if eligible is not None:
            parts = np.where(eligible, parts, 0)
        allowed = parts > 0
        count = int(allowed.sum())
        # Below 2^31 10^9, so within 64 bits.
        weights = np.where(allowed, 1 + parts * (WHOLE - count) // int(parts.sum()), 0)
        weights[int(parts.argmax())] += WHOLE - int(weights.sum())
        return weights

    def tie_gap(self, scores: Scores, eligible: Bools | None, number: int, other: Drawn) -> float:
        """See `Exploration.tie_gap`: each score may be a step off, so weights differ by a factor e^(2/64) at most."""
        if not 0 <= other.arm < len(scores):
            return float("inf")
        weights = self.weights(scores, eligible)
        owned = int(weights[other.arm])
        above = int(np.cumsum(weights)[other.arm])
        # e^(2/64) < 1 + 1/16; every end of an interval moves by less than that share of all numbers.
        near = above - owned - WHOLE // 16 <= number < above + WHOLE // 16
        similar = owned > 0 and 16 * abs(other.propensity - owned) <= owned + 16
        return 0.0 if near and similar else float("inf")


def highest(scores: Scores, eligible: Bools | None) -> float:
    """The highest score of an eligible arm.

    Raises:
        NoEligibleArm: none is eligible.
        LearnerError: it is no number.
    """
    if eligible is not None and not eligible.any():
        raise NoEligibleArm(len(scores))
    found = float(scores.max() if eligible is None else scores[eligible].max())
    if not np.isfinite(found):
        raise LearnerError("expected finite scores, got NaN or infinity")
    return found


def highest_gap(scores: Scores, eligible: Bools | None, other: Drawn) -> float:
    """By how much scores must differ so that one of the highest arms, drawn evenly, is ``other``.

    Its propensity tells how many arms tied. So the arm, and as many others, must be that near to the best.

    Args:
        scores: (K,).
        eligible: as in `Exploration.weights`.
        other: an answer that differs from that of these scores.

    Returns:
        A distance of scores; infinite if no rounding explains the difference.
    """
    if not 0 <= other.arm < len(scores) or not (eligible is None or eligible[other.arm]):
        return float("inf")
    best = highest(scores, eligible)
    gaps = np.sort(best - (scores if eligible is None else scores[eligible]).astype(np.float64))
    tied = next((count for count in range(1, len(gaps) + 1) if WHOLE // count == other.propensity), None)
    return float("inf") if tied is None else max(best - float(scores[other.arm]), float(gaps[tied - 1]))


@lru_cache(maxsize=1)
def _exponentials() -> Weights:
    """floor(2^31 e^(-k/64)) for k = 0 to 20 * 64."""
    context = Context(prec=40)
    powers = (context.exp(Decimal(-step) / STEPS) for step in range(_LOWEST + 1))
    return np.array([int(context.multiply(power, Decimal(_LARGEST_WEIGHT))) for power in powers], dtype=np.int64)


class LearnerError(HushstreamError):
    """A model, state or context is invalid for a learner. The message says what was expected and what was given."""


class NoEligibleArm(LearnerError):
    """A choice without any eligible arm."""

    def __init__(self, arms: int) -> None:
        super().__init__(f"expected at least one eligible arm among {arms}, got none")


# A local name: at a few microseconds an event, looking a function up in a module is a visible cost.
_equal = np.equal


class Highest:
    """Scratch memory for K scores; one serves one thread."""

    def __init__(self, arms: int) -> None:
        self._arms = arms
        self._excluded = np.empty(arms, dtype=np.bool_)
        # The comparison writes straight into a bytearray: counting bytes is far cheaper than a reduction.
        self._tied = bytearray(arms)
        self._is_best = np.ndarray(arms, np.bool_, self._tied)

    def choose(self, scores: Scores, tie: int | Callable[[int], int], eligible: Bools | None = None) -> tuple[int, int]:
        """The arm with the highest of (K,) scores, and how many arms share that score.

        Args:
            scores: of every arm; that of an arm that is not eligible is replaced by minus infinity.
            tie: which of ``n > 1`` tied arms to take: a callable is given ``n`` and returns a uniform draw
                from 0 to ``n - 1``; an integer ``tie`` takes number ``tie mod n`` (draw it from many more
                values than there are arms). Either way the propensity of the chosen arm is ``1/n``.
            eligible: (K,) bool, the arms allowed; None allows all.

        Raises:
            NoEligibleArm: ``eligible`` allows none.
            LearnerError: the scores are not numbers.
        """
        if eligible is not None:
            if not eligible.any():
                raise NoEligibleArm(self._arms)
            np.copyto(scores, -np.inf, where=np.logical_not(eligible, out=self._excluded))
        arm = int(scores.argmax())
        _equal(scores, scores[arm : arm + 1], self._is_best)
        ties = self._tied.count(1)
        if ties == 1:
            return arm, 1
        if ties == 0 or not np.isfinite(scores[arm]):
            raise LearnerError("expected finite scores, got NaN or infinity")
        position = -1
        number = (tie(ties) if callable(tie) else tie) % ties
        for _ in range(number + 1):
            position = self._tied.find(1, position + 1)
        return position, ties


def best_of(scores: Scores, tie: Callable[[int, int], int]) -> tuple[list[int], list[int]]:
    """For each of (n, K) scores the arm with the highest one, and how many arms share it, as `Highest.choose` does.

    Args:
        scores: those of arms that are not eligible are minus infinity.
        tie: given a row and the number of its tied arms, which of these to take.

    Raises:
        LearnerError: the scores are not numbers.
    """
    arms = scores.argmax(1)
    best = scores[np.arange(len(scores)), arms]
    if not np.isfinite(best).all():
        raise LearnerError("expected finite scores of eligible arms, got NaN or infinity")
    tied = scores == best[:, None]
    ties: list[int] = np.add.reduce(tied, 1, np.intp).tolist()
    found: list[int] = arms.tolist()
    if sum(ties) > len(ties):
        rows = [row for row, count in enumerate(ties) if count > 1]
        taken = np.array([tie(row, ties[row]) for row in rows])
        ranks = np.add.accumulate(tied[rows], 1, np.intp)
        for row, arm in zip(rows, (ranks > taken[:, None]).argmax(1).tolist(), strict=True):
            found[row] = arm
    return found, ties
