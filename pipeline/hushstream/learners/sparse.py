"""Upper confidence bounds for independent normal coefficients and sparse contexts, one at a time and in batches.

An arm's coefficients start as N(m, diag(D)), the same for all users of a model; a context has few non-zero places
(j, x_j). A user's own interactions move their copy by Kalman's update (as Sherman and Morrison's, with reward
variance g): with S = g + x'Cx and u = C x / sqrt(S),

    C <- C - u u'        m <- m + u e        e = (r - m'x) / sqrt(S),

so n interactions are n vectors u (P float32 each) with their arm and e (the newest `MOST_STEPS` are kept, so that a
user's memory and the work of a decision are bounded), and for another context

    mean_a = sum m_aj x_j + sum_i e_i (u_i'x)        width_a^2 = sum D_aj x_j^2 - sum_i (u_i'x)^2      (i on arm a).

The score is mean + width. With theta = sqrt(F + 1) m, A = g / ((F + 1) D) and contexts x / sqrt(F + 1) this is LinUCB
(Li et al. 2010, Algorithm 1) with alpha = sqrt(g).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.exploration import Highest, LearnerError

Float32 = NDArray[np.float32]
Floats = NDArray[np.floating]
Integers = NDArray[np.integer]
Bools = NDArray[np.bool_]

# Local names: at a few microseconds an event, looking a function up in a module is a visible cost.
_add, _bincount, _dot, _matmul = np.add, np.bincount, np.dot, np.matmul
_maximum, _sqrt, _subtract, _vecdot = np.maximum, np.sqrt, np.subtract, np.vecdot

_TOGETHER_BYTES = 256 * 1024
"""How many bytes of a model's rows are gathered at once at most, to fit a core's cache."""

MOST_STEPS = 256
"""Interactions of one user that are kept: 4 P + 12 bytes each, read by every decision of that user."""


OWN_TASTE = 0.3
"""Standard deviation of users' own differences in the log-odds of an arm; it is part of D of each arm's constant."""


@dataclass(frozen=True, slots=True, eq=False)
class SparseModel:
    """The prior that all users of a model start from.

    Attributes:
        table: (P, 2 K) float32, C-contiguous: of each cell the means of all arms, then their variances.
        reward_variance: g, positive.
    """

    table: Float32
    reward_variance: float

    @classmethod
    def of(cls, means: Floats, variances: Floats, reward_variance: float) -> SparseModel:
        """From (K, P) means and variances.

        Raises:
            LearnerError: shapes that differ, a variance that is not positive, or values that are not finite.
        """
        if means.ndim != 2 or means.shape != variances.shape or 0 in means.shape:
            raise LearnerError(
                f"expected means and variances of one shape (K, P), got {means.shape}, {variances.shape}"
            )
        table = np.ascontiguousarray(np.concatenate([means.T, variances.T], axis=1), dtype=np.float32)
        if not np.isfinite(table).all() or not (variances > 0).all() or not 0 < reward_variance < np.inf:
            raise LearnerError("expected finite means and positive finite variances, got others")
        return cls(table, reward_variance)

    def copy(self) -> SparseModel:
        """A copy with its own table."""
        return SparseModel(self.table.copy(), self.reward_variance)

    @property
    def arms(self) -> int:
        """K."""
        return int(self.table.shape[1] // 2)

    @property
    def cells(self) -> int:
        """P."""
        return int(self.table.shape[0])


class SparseContext(NamedTuple):
    """One context as the kernels read it, or n of them.

    Attributes:
        cells: (places,) or (n, places) intp in [0, P), distinct where the values of a context are not 0.
        powers: (2, places) or (n, 2, places) float32, the values and their squares.
    """

    cells: Integers
    powers: Float32

    @classmethod
    def of(cls, cells: Integers, values: Floats) -> Self:
        """From cells and values of n contexts, (n, places) each."""
        powers = np.empty((len(values), 2, values.shape[1]), np.float32)
        powers[:, 0] = values
        np.square(powers[:, 0], out=powers[:, 1])
        return cls(cells.astype(np.intp, copy=False), powers)

    def at(self, rows: int | Integers) -> SparseContext:
        """One context of n by its number, or some of them by theirs."""
        return SparseContext(self.cells[rows], self.powers[rows])


class OwnSteps:
    """A user's own learning: a row for each of their newest `MOST_STEPS` interactions.

    `SparseUCB.learn` adds one. When all rows are taken, a new step replaces the oldest. Without u_i the width can only
    be larger (each step subtracts the square of u_i'x), so a user explores again after a step was dropped.

    Attributes:
        count: number of steps, n.
        oldest: the row of the oldest one; 0 until all rows are taken.
        taken: their arms (n,) intp, vectors u (n, P) float32 and gains e (n,) float32.
    """

    __slots__ = ("_arms", "_gains", "_vectors", "count", "oldest", "taken")

    def __init__(self, cells: int, capacity: int = 4) -> None:
        self._arms = np.empty(capacity, dtype=np.intp)
        self._vectors = np.empty((capacity, cells), dtype=np.float32)
        self._gains = np.empty(capacity, dtype=np.float32)
        self.oldest = 0
        self._show(0)

    @classmethod
    def restored(cls, arms: Integers, vectors: Floats, gains: Floats, oldest: int) -> Self:
        """Restore from `taken` and `oldest`.

        Raises:
            LearnerError: more steps than are kept, or an oldest one that is none.
        """
        count = len(gains)
        if count > MOST_STEPS or not 0 <= oldest < (MOST_STEPS if count == MOST_STEPS else 1):
            raise LearnerError(f"expected at most {MOST_STEPS} steps and the oldest among them, got {count}, {oldest}")
        own = cls(vectors.shape[1], max(count, 1))
        own._arms[:count], own._vectors[:count], own._gains[:count] = arms, vectors, gains
        own.oldest = oldest
        own._show(count)
        return own

    def append(self, vector: Float32, gain: float, arm: int) -> None:
        """One more step, in the place of the oldest where all rows are taken."""
        row = self.count
        if row == MOST_STEPS:
            # Rows stay where they are: sums over steps in another order would round otherwise after a restore.
            row, self.oldest = self.oldest, (self.oldest + 1) % MOST_STEPS
        elif row == len(self._gains):
            capacity = min(2 * row, MOST_STEPS) - row
            self._arms = np.concatenate([self._arms, self._arms[:capacity]])
            self._vectors = np.concatenate([self._vectors, self._vectors[:capacity]])
            self._gains = np.concatenate([self._gains, self._gains[:capacity]])
        self._arms[row], self._vectors[row], self._gains[row] = arm, vector, gain
        self._show(min(self.count + 1, MOST_STEPS))

    def forget(self, arms: Bools) -> None:
        """Drop the steps of some arms, (K,) bool. Other steps stay, because coefficients of arms are independent."""
        by_age = np.roll(np.arange(self.count), -self.oldest)
        kept = by_age[~arms[self._arms[by_age]]]
        if kept.size < self.count:
            for held in (self._arms, self._vectors, self._gains):
                held[: kept.size] = held[kept]
            self.oldest = 0
            self._show(kept.size)

    def _show(self, count: int) -> None:
        self.count = count
        self.taken = (self._arms[:count], self._vectors[:count], self._gains[:count])


class SparseUCB:
    """The kernels: they hold scratch memory, model and state are passed in. One kernel serves one thread."""

    def __init__(self, arms: int, cells: int, places: int) -> None:
        """For K arms, P cells and contexts of exactly ``places`` places (a place that is not needed has value 0)."""
        if min(arms, cells, places) < 1:
            raise LearnerError(f"expected at least one arm, cell and place, got {arms}, {cells} and {places}")
        self.arms, self.cells, self.places = arms, cells, places
        self._together = max(1, _TOGETHER_BYTES // (8 * places * arms))
        self._rows = np.empty((places, 2 * arms), dtype=np.float32)
        self._products = np.empty((2, 2 * arms), dtype=np.float32)
        self._means, self._variances = self._products[0, :arms], self._products[1, arms:]
        self._scores = np.empty(arms, dtype=np.float32)
        self._zero = np.zeros((), dtype=np.float32)
        self.highest = Highest(arms)

    def scores(self, model: SparseModel, own: OwnSteps | None, context: SparseContext) -> Float32:
        """The score of every arm, (K,) float32, in scratch memory of the kernel.

        Args:
            model: of this kernel's shape.
            own: the user's own steps; None for a new user.
            context: of this kernel's shape, checked where records are decoded.
        """
        cells, powers = context
        # "clip" writes into the buffer at once; the default would copy, to be able to refuse.
        model.table.take(cells, 0, self._rows, "clip")
        # Half of the products are not needed: one call costs less than two of half the size.
        _dot(powers, self._rows, self._products)
        scores = self._scores
        if own is None or not own.count:
            _sqrt(self._variances, scores)
            return _add(self._means, scores, scores)
        steps, vectors, gains = own.taken
        along = vectors.take(cells, 1, mode="clip").dot(powers[0])
        _subtract(self._variances, _bincount(steps, along * along, self.arms), scores, casting="unsafe")
        # Rounding may carry the square of a vanishing width below zero.
        _maximum(scores, self._zero, out=scores)
        _sqrt(scores, scores)
        _add(scores, self._means, scores)
        return _add(scores, _bincount(steps, along * gains, self.arms), scores, casting="unsafe")

    def choose(
        self,
        model: SparseModel,
        own: OwnSteps | None,
        context: SparseContext,
        tie: int | Callable[[int], int] = 0,
        eligible: Bools | None = None,
    ) -> tuple[int, int]:
        """The arm with the highest score, and how many share it; ``tie`` and ``eligible`` as in `LinUCB.choose`.

        Raises:
            NoEligibleArm: ``eligible`` allows none.
            LearnerError: the scores are not numbers.
        """
        return self.highest.choose(self.scores(model, own, context), tie, eligible)

    def scores_of(self, model: SparseModel, owns: Sequence[OwnSteps | None], contexts: SparseContext) -> Float32:
        """(n, K) the scores of n users of a model in a context each, with the bits of `scores`.

        Every product is made for one context alone, as in `scores`: one for all of them would round differently.
        """
        cells, powers = contexts
        size, arms = len(cells), self.arms
        products = np.empty((size, 2, 2 * arms), dtype=np.float32)
        for low in range(0, size, self._together):
            some = slice(low, low + self._together)
            _matmul(powers[some], model.table.take(cells[some], 0), products[some])
        scores, means = products[:, 1, arms:], products[:, 0, :arms]
        learned = [(row, own.taken) for row, own in enumerate(owns) if own is not None and own.count]
        along = [taken[1].take(cells[row], 1, mode="clip").dot(powers[row, 0]) for row, taken in learned]
        if along:
            keys = np.concatenate([taken[0] + row * arms for row, taken in learned])
            flat, gains = np.concatenate(along), np.concatenate([taken[2] for _, taken in learned])
            drawn = _bincount(keys, flat * flat, size * arms).reshape(size, arms)
            _subtract(scores, drawn, scores, casting="unsafe")
        _sqrt(_maximum(scores, self._zero, out=scores), scores)
        _add(scores, means, scores)
        if along:
            _add(scores, _bincount(keys, flat * gains, size * arms).reshape(size, arms), scores, casting="unsafe")
        return scores

    def learn(
        self,
        model: SparseModel,
        owns: Sequence[OwnSteps],
        contexts: SparseContext,
        arms: Integers,
        rewards: Floats,
    ) -> None:
        """Fold one interaction of each of n different users into what they learned alone.

        The result of a user does not depend on the others. Arms and rewards are (n,).
        """
        cells, values = contexts.cells, contexts.powers[:, 0]
        size, places = len(cells), cells * (2 * self.arms) + arms[:, None]
        table = model.table.ravel()
        vectors = np.zeros((size, self.cells), dtype=np.float32)
        # Summed, not assigned: a place that is not needed names a cell that another place may use.
        keys = cells + np.arange(size)[:, None] * self.cells
        np.add.at(vectors.ravel(), keys.ravel(), (values * table.take(places + self.arms)).ravel())
        means = _vecdot(table.take(places), values).astype(np.float64)
        for row, own in enumerate(owns):
            if own.count:
                means[row] += self._subtracted(vectors[row], own, contexts.at(row), arms[row])
        widths = _vecdot(vectors.ravel().take(keys), values).astype(np.float64)
        shrink = 1.0 / np.sqrt(model.reward_variance + np.maximum(widths, 0.0))
        vectors *= shrink.astype(np.float32)[:, None]
        gains = (rewards - means) * shrink
        for own, vector, gain, arm in zip(owns, vectors, gains, arms.tolist(), strict=True):
            own.append(vector, gain, arm)

    def _subtracted(self, vector: Float32, own: OwnSteps, context: SparseContext, arm: int) -> float:
        """Take what a user's steps on an arm explain off the next step's vector; returns what they add to its mean."""
        steps, vectors, gains = own.taken
        mine = np.flatnonzero(steps == arm)
        if not mine.size:
            return 0.0
        past = vectors[mine]
        along = past[:, context.cells].dot(context.powers[0])
        vector -= along.dot(past)
        return float(along.dot(gains[mine]))
