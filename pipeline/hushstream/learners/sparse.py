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
_add, _bincount, _maximum, _multiply, _sqrt, _subtract = (
    np.add,
    np.bincount,
    np.maximum,
    np.multiply,
    np.sqrt,
    np.subtract,
)
_sum = np.add.reduce
_ZERO = np.zeros((), dtype=np.float32)

_TOGETHER_BYTES = 128 * 1024
"""How many bytes of a model's rows are gathered at once at most, to fit a core's cache."""

MOST_STEPS = 256
"""Interactions of one user that are kept, and read by every decision of that user: 4 P + 8 bytes each in an array."""

MOST_PACKED = 8
"""So many of them lie packed."""


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
        powers: (places, 2) or (n, places, 2) float32, the values and their squares.
    """

    cells: Integers
    powers: Float32

    @classmethod
    def of(cls, cells: Integers, values: Floats) -> Self:
        """From cells and values of n contexts, (n, places) each."""
        powers = np.empty((*values.shape, 2), np.float32)
        powers[..., 0] = values
        np.square(powers[..., 0], out=powers[..., 1])
        return cls(cells.astype(np.intp, copy=False), powers)

    def at(self, rows: int | Integers) -> SparseContext:
        """One context of n by its number, or some of them by theirs."""
        return SparseContext(self.cells[rows], self.powers[rows])


class OwnSteps:
    """A user's own learning: a row for each of their newest `MOST_STEPS` interactions.

    `SparseUCB.learn` adds one. When all rows are taken, a new step replaces the oldest. Without u_i the width can only
    be larger (each step subtracts the square of u_i'x), so a user explores again after a step was dropped.

    Up to `MOST_PACKED` rows lie packed, because most of their numbers are 0: first a bit for each number of each row
    that is not 0, then these numbers. So a first step takes a fifth of the memory. More rows lie in an array, which is
    read in a fifth of the time.

    Attributes:
        cells: P.
        count: number of steps, n.
        oldest: the row of the oldest one; 0 until all rows are taken.
    """

    __slots__ = ("_held", "cells", "count", "oldest")

    def __init__(self, cells: int) -> None:
        """Begin without steps."""
        self.cells, self.count, self.oldest = cells, 0, 0
        self._held: bytes | Float32 = b""

    @classmethod
    def restored(cls, arms: Integers, vectors: Floats, gains: Floats, oldest: int) -> Self:
        """Restore from `taken` and `oldest`.

        Raises:
            LearnerError: more steps than are kept, or an oldest one that is none.
        """
        count = len(gains)
        if count > MOST_STEPS or not 0 <= oldest < (MOST_STEPS if count == MOST_STEPS else 1):
            raise LearnerError(f"expected at most {MOST_STEPS} steps and the oldest among them, got {count}, {oldest}")
        own = cls(vectors.shape[1])
        own._set(np.column_stack((vectors, gains, arms)).astype(np.float32))
        own.oldest = oldest
        return own

    def _set(self, rows: Float32) -> None:
        """Replace all rows."""
        self.count, self._held = len(rows), rows
        if self.count <= MOST_PACKED:
            taken, values = _packed(rows)
            self._held = taken.tobytes() + values.tobytes()

    @property
    def packed(self) -> tuple[bytes, bytes] | None:
        """The bits of all rows, and the numbers that are not 0; None if they lie in an array."""
        if not isinstance(self._held, bytes):
            return None
        bits = self.count * ((self.cells + 9) // 8)
        return self._held[:bits], self._held[bits:]

    @property
    def rows(self) -> Float32:
        """(n, P + 2) a step's vector u, gain e and arm; arms are below 2^24, so float32 holds them."""
        return steps_of((self,), self.cells) if isinstance(self._held, bytes) else self._held[: self.count]

    @property
    def taken(self) -> tuple[Integers, Float32, Float32]:
        """The steps' arms (n,) intp, vectors (n, P) and gains (n,)."""
        rows = self.rows
        return rows[:, -1].astype(np.intp), rows[:, :-2], rows[:, -2]

    def append(self, step: Float32, taken: bytes, values: bytes) -> None:
        """One more row, in the place of the oldest where all are taken; ``taken`` and ``values`` are it, packed."""
        row, packed = self.count, self.packed
        if packed is not None and row < MOST_PACKED:
            self.count, self._held = row + 1, b"".join((packed[0], taken, packed[1], values))
            return
        rows = self.rows if isinstance(self._held, bytes) else self._held
        if row == MOST_STEPS:
            # Rows stay where they are: sums over steps in another order would round otherwise after a restore.
            row, self.oldest = self.oldest, (self.oldest + 1) % MOST_STEPS
        else:
            self.count += 1
            if row == len(rows):
                rows = np.concatenate([rows, rows[: MOST_STEPS - row]])
        rows[row], self._held = step, rows

    def forget(self, arms: Bools) -> None:
        """Drop the steps of some arms, (K,) bool. Other steps stay, because coefficients of arms are independent."""
        by_age = np.roll(np.arange(self.count), -self.oldest)
        kept = by_age[~arms[self.taken[0][by_age]]]
        if kept.size < self.count:
            self._set(self.rows[kept])
            self.oldest = 0


def _packed(rows: Float32) -> tuple[NDArray[np.uint8], Float32]:
    """The bits of n rows (n, bytes), and their numbers that are not 0, in order. A bit is set for -0.0, too."""
    taken = rows.view(np.uint32) != 0
    return np.packbits(taken, axis=1, bitorder="little"), rows.ravel()[taken.ravel().nonzero()[0]]


def steps_of(owns: Sequence[OwnSteps], cells: int) -> Float32:
    """(n, P + 2) the rows of some users with P cells, one user behind the other."""
    parts = [own.packed for own in owns]
    packed = [part for part in parts if part is not None]
    bits = np.frombuffer(b"".join([taken for taken, _ in packed]), np.uint8).reshape(-1, (cells + 9) // 8)
    taken = np.unpackbits(bits, axis=1, count=cells + 2, bitorder="little")
    flat = np.zeros(taken.size, np.float32)
    # By place, which takes a third of the time of an assignment by truth.
    flat[taken.ravel().nonzero()[0]] = np.frombuffer(b"".join([values for _, values in packed]), np.float32)
    rows = flat.reshape(taken.shape)
    if len(packed) == len(parts):
        return rows
    ends = np.cumsum([own.count if part is not None else 0 for own, part in zip(owns, parts, strict=True)])
    pieces = zip(owns, parts, ends.tolist(), strict=True)
    return np.concatenate([rows[end - own.count : end] if part else own.rows for own, part, end in pieces])


class SparseUCB:
    """The kernels: they hold scratch memory, model and state are passed in. One kernel serves one thread.

    Sums are in an order that depends on nothing but their own terms, and no linear algebra library takes part: so the
    bits of a user are the same on every CPU, and whoever else is scored with them.
    """

    def __init__(self, arms: int, cells: int, places: int) -> None:
        """For K arms, P cells and contexts of exactly ``places`` places (a place that is not needed has value 0)."""
        if min(arms, cells, places) < 1:
            raise LearnerError(f"expected at least one arm, cell and place, got {arms}, {cells} and {places}")
        self.arms, self.cells, self.places = arms, cells, places
        self._together = max(1, _TOGETHER_BYTES // (8 * places * arms))
        self._rows = np.empty((places, 2 * arms), dtype=np.float32)
        self._sums = np.empty(2 * arms, dtype=np.float32)
        self._means, self._variances = self._sums[:arms], self._sums[arms:]
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
        _multiply(self._rows, powers.repeat(self.arms, 1), self._rows)
        _sum(self._rows, 0, out=self._sums)
        means, scores = self._means, self._variances
        if own is None or not own.count:
            return _add(_sqrt(scores, scores), means, scores)
        rows = own.rows
        along = _sum(rows.take(cells, 1) * powers[:, 0], 1)
        return _with_own(means, scores, rows[:, -1].astype(np.intp), along, rows[:, -2])

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
        """(n, K) the scores of n users of a model in a context each, with the bits of `scores`."""
        cells, powers = contexts
        size, arms = len(cells), self.arms
        sums = np.empty((size, 2 * arms), dtype=np.float32)
        for low in range(0, size, self._together):
            some = slice(low, low + self._together)
            # Places first: so whole runs of contexts are multiplied and added at once.
            terms = model.table.take(cells[some].T, 0)
            _sum(_multiply(terms, powers[some].swapaxes(0, 1).repeat(arms, 2), terms), 0, out=sums[some])
        means, scores = sums[:, :arms], sums[:, arms:]
        learned = [(row, own) for row, own in enumerate(owns) if own is not None and own.count]
        if not learned:
            return _add(_sqrt(scores, scores), means, scores)
        rows = steps_of([own for _, own in learned], self.cells)
        owners = np.repeat([row for row, _ in learned], [own.count for _, own in learned])
        along = _along(rows, owners, contexts)
        return _with_own(means, scores, owners * arms + rows[:, -1].astype(np.intp), along, rows[:, -2])

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
        cells, values = contexts.cells, contexts.powers[:, :, 0]
        size, places = len(cells), cells * (2 * self.arms) + arms[:, None]
        table = model.table.ravel()
        # Summed, not assigned: a place that is not needed names a cell that another place may use.
        at = cells + (np.arange(size) * (self.cells + 2))[:, None]
        summed = _bincount(at.ravel(), (values * table.take(places + self.arms)).ravel(), size * (self.cells + 2))
        steps = summed.astype(np.float32).reshape(size, -1)
        vectors = steps[:, :-2]
        means = _sum(table.take(places) * values, 1).astype(np.float64)
        self._subtract_past(vectors, means, owns, contexts, arms)
        widths = _sum(steps.take(at) * values, 1).astype(np.float64)
        shrink = 1.0 / np.sqrt(model.reward_variance + np.maximum(widths, 0.0))
        vectors *= shrink.astype(np.float32)[:, None]
        steps[:, -2], steps[:, -1] = (rewards - means) * shrink, arms
        bits, numbers = _packed(steps)
        width, taken, nonzero, low = bits.shape[1], bits.tobytes(), numbers.tobytes(), 0
        for row, own in enumerate(owns):
            one = taken[row * width : (row + 1) * width]
            high = low + 4 * int.from_bytes(one, "little").bit_count()
            own.append(steps[row], one, nonzero[low:high])
            low = high

    def _subtract_past(
        self, vectors: Float32, means: Floats, owns: Sequence[OwnSteps], contexts: SparseContext, arms: Integers
    ) -> None:
        """Take what users' steps on the same arms explain off their next steps' vectors, and add it to their means."""
        taught = [row for row, own in enumerate(owns) if own.count]
        if not taught:
            return
        held = np.array([owns[row].count for row in taught])
        steps = steps_of([owns[row] for row in taught], self.cells)
        same = steps[:, -1] == arms[taught].repeat(held)
        owners, steps = np.repeat(taught, held)[same], steps[same]
        if not owners.size:
            return
        rows, counts = np.unique(owners, return_counts=True)
        along = _along(steps, owners, contexts)
        vectors[rows] -= np.add.reduceat(steps[:, :-2] * along[:, None], np.cumsum(counts) - counts)
        means += _bincount(owners, along * steps[:, -2], len(means))


def _along(rows: Float32, owners: Integers, contexts: SparseContext) -> Float32:
    """(n,) u'x of n steps in the contexts of their owners."""
    places = contexts.cells.take(owners, 0)
    places += (np.arange(len(rows)) * rows.shape[1])[:, None]
    found: Float32 = _sum(rows.take(places) * np.ascontiguousarray(contexts.powers[:, :, 0]).take(owners, 0), 1)
    return found


def _with_own(means: Float32, variances: Float32, keys: Integers, along: Float32, gains: Float32) -> Float32:
    """Scores, in place of variances, from steps: the score that each one counts for, its u'x, and its gain."""
    size, shape = variances.size, variances.shape
    _subtract(variances, _bincount(keys, along * along, size).reshape(shape), variances, casting="unsafe")
    # Rounding may carry the square of a vanishing width below zero.
    _sqrt(_maximum(variances, _ZERO, out=variances), variances)
    _add(variances, means, variances)
    return _add(variances, _bincount(keys, along * gains, size).reshape(shape), variances, casting="unsafe")
