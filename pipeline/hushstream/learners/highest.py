"""Chooses the arm with the highest score; the caller says how ties are broken. All kernels end with this step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.errors import LearnerError, NoEligibleArm

Scores = NDArray[np.floating[Any]]
Bools = NDArray[np.bool_]

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
