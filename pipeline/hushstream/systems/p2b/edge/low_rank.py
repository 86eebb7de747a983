"""A user's LinUCB state, kept as the shared model plus the user's own few updates; and the kernel for both forms.

One update (a Sherman-Morrison step) subtracts one outer product from an arm's block ``(A^-1, theta)``: that of ``u``
and ``w = (u, s)``, where ``v = A^-1 x``, ``c = 1/sqrt(1 + x'v)``, ``u = c v`` and ``s = c (theta'x - r)`` (see
`hushstream.learners.linucb`). So after ``n`` steps, by Woodbury's identity in product form,

    A_a^-1  = A0_a^-1  - sum u_j u_j'        theta_a = theta0_a - sum s_j u_j      (steps j on arm a)

It is therefore enough to keep one row ``w_j`` of D + 1 float32 for each step, beside the shared model's arrays, which
all its users share. With D = K = 10 and ten steps these rows are 440 bytes, where the dense form has 4,400. A score
needs ``q_j = u_j'x`` alone:

    width_a^2 = x'A0_a^-1 x - sum q_j^2      mean_a = theta0_a'x - sum q_j s_j

A state with more than `rows_limit` rows becomes dense, and stays dense.

Equality: scores equal those of the dense form up to rounding (float32; a test allows 1e-5). Two arms with equal
histories have equal bits in this form too, however their steps are interleaved, because every sum runs over the rows
of one arm in their order. One exception: if the state becomes dense between the steps of two equal histories, their
scores may differ in the last bit, and then they no longer tie.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import Bools, Float32, LinUCB, LinUCBState

Arms: TypeAlias = npt.NDArray[np.intp]

TOGETHER_AT_MOST, TOGETHER_BYTES = 64, 256 * 1024
"""How many contexts are scored together at most, and how many bytes their products may take, to fit a core's cache."""

ROWS_AT_LEAST = 16
"""In a small model, too, a state keeps this many rows before it becomes dense, if rows save memory at all."""

_HEADER = struct.Struct("<4sBxxxIII")
_MAGIC = b"HLUF"
_VERSION = 1
# Local names, as in `hushstream.learners.linucb`.
_add, _bincount, _concatenate, _matmul = np.add, np.bincount, np.concatenate, np.matmul
_maximum, _multiply, _sqrt, _subtract, _vecdot = np.maximum, np.multiply, np.sqrt, np.subtract, np.vecdot


def rows_limit(arms: int, dimension: int) -> int:
    """How many rows a state may have before it becomes dense: about D, and at most a quarter of the dense bytes."""
    return max(1, min(max(ROWS_AT_LEAST, dimension), arms * dimension // 4))


class OwnUpdates:
    """One user's state: the shared model's state and the n updates that the user has learned since.

    Attributes:
        base: the state of the model that the user started from; never written.
        arms: (n,) the arm of each step.
        rows: (n, D + 1) float32, ``(u, s)`` of each step.
    """

    __slots__ = ("arms", "base", "rows", "touched")

    def __init__(self, base: LinUCBState, arms: Arms, rows: Float32) -> None:
        self.base = base
        self.arms = arms
        self.rows = rows
        self.touched = 0
        """Bit mask: bit a is set if arm a has a step. Searching ``arms`` would take longer than a product."""
        for arm in arms.tolist():
            self.touched |= 1 << arm

    @classmethod
    def none(cls, base: LinUCBState) -> OwnUpdates:
        """A user who has learned nothing yet."""
        return cls(base, np.empty(0, np.intp), np.empty((0, base.packed.shape[2]), np.float32))

    @property
    def inverse(self) -> Float32:
        """``A^-1`` of each arm, (K, D, D), in a new array."""
        return self.dense().inverse

    @property
    def theta(self) -> Float32:
        """``theta`` of each arm, (K, D), in a new array."""
        return self.dense().theta

    def dense(self) -> LinUCBState:
        """Return the same state in the dense form, with arrays of its own."""
        packed = self.base.packed.copy()
        for arm, row in zip(self.arms.tolist(), self.rows, strict=True):
            packed[arm] -= np.multiply.outer(row[:-1], row)
        return LinUCBState(packed, shared=False)

    def dump(self) -> bytes:
        """The steps as bytes: a 20-byte header (magic, version, K, D, n), n uint16 arms, then the rows."""
        arms, dimension, _ = self.base.packed.shape
        header = _HEADER.pack(_MAGIC, _VERSION, arms, dimension, len(self.arms))
        return header + self.arms.astype("<u2").tobytes() + self.rows.astype("<f4", copy=False).tobytes()


UserState: TypeAlias = LinUCBState | OwnUpdates


def load_user_state(base: LinUCBState, dumped: bytes) -> UserState:
    """Load the state of a user who started from ``base`` from the bytes that ``dump`` of either form wrote.

    Raises:
        LearnerError: not such bytes, or of another version, shape or length.
    """
    if dumped[:4] != _MAGIC:
        return LinUCBState.load(dumped)
    if len(dumped) < _HEADER.size:
        raise LearnerError(f"expected at least {_HEADER.size} bytes of a user's updates, got {len(dumped)}")
    _, version, *shape, count = _HEADER.unpack_from(dumped)
    arms, dimension, _ = base.packed.shape
    expected = _HEADER.size + count * (2 + 4 * (dimension + 1))
    if version != _VERSION or shape != [arms, dimension] or len(dumped) != expected:
        raise LearnerError(f"expected updates of version {_VERSION} and shape {(arms, dimension)}, got others")
    place = np.frombuffer(dumped, "<u2", count, _HEADER.size)
    rows = np.frombuffer(dumped, "<f4", offset=_HEADER.size + 2 * count).reshape(count, dimension + 1)
    if count and int(place.max()) >= arms:
        raise LearnerError(f"expected arms below {arms}, got another one")
    return OwnUpdates(base, place.astype(np.intp), rows.astype(np.float32))


class UserLinUCB(LinUCB):
    """`LinUCB` for states of both forms; `learned` returns the state, because it may have become dense."""

    def __init__(self, arms: int, dimension: int, alpha: float = 1.0) -> None:
        super().__init__(arms, dimension, alpha)
        self._limit = rows_limit(arms, dimension)
        self._together = max(1, min(TOGETHER_AT_MOST, TOGETHER_BYTES // (4 * arms * (dimension + 1))))
        self._many = np.empty((self._together, arms, dimension + 1), dtype=np.float32)
        self._many_scores = np.empty((self._together, arms), dtype=np.float32)
        self._number = np.arange(arms, dtype=np.intp)[:, None]

    def scores(self, state: UserState, context: Float32) -> Float32:
        if isinstance(state, LinUCBState):
            return super().scores(state, context)
        scores, means = self._scores, self._means
        _matmul(context, state.base.packed, self._products)
        _vecdot(self._inverse_products, context, scores)
        self._take_off(state, context, means, scores)
        if self.alpha != 1.0:
            _multiply(scores, self._alpha_squared, scores)
        # Rounding may carry the square of a vanishing width below zero.
        _maximum(scores, self._zero, out=scores)
        _sqrt(scores, scores)
        _add(means, scores, scores)
        return scores

    def choose(
        self,
        state: UserState,
        context: Float32,
        tie: int | Callable[[int], int] = 0,
        eligible: Bools | None = None,
    ) -> tuple[int, int]:
        return self._highest.choose(self.scores(state, context), tie, eligible)

    def _take_off(self, state: OwnUpdates, context: Float32, means: Float32, widths: Float32) -> None:
        """Subtract what a user's own steps change from the base's means and squared widths of a context, (K,) each."""
        rows, arms = state.rows, state.arms
        along = _vecdot(rows[:, : self.dimension], context)
        _subtract(means, _bincount(arms, along * rows[:, self.dimension], self.arms), means, casting="same_kind")
        _multiply(along, along, along)
        _subtract(widths, _bincount(arms, along, self.arms), widths, casting="same_kind")

    def best(self, states: Sequence[UserState], contexts: Float32) -> list[int]:
        """For each of n states and its context, the arm with the highest score, or -1 where arms tie for it.

        The scores have the same bits as those of `scores`: every matrix product is made for one context alone, because
        one product for all of them would round differently. The later operations run on many contexts at once, which
        rounds in the same way.

        Args:
            states: of this kernel's shape.
            contexts: (n, D) float32, C-contiguous and finite.
        """
        found: list[int] = []
        for first in range(0, len(states), self._together):
            part = slice(first, first + self._together)
            found += self._best(states[part], contexts[part])
        return found

    def _best(self, states: Sequence[UserState], contexts: Float32) -> list[int]:
        products = self._many[: len(states)]
        own = [(row, state) for row, state in enumerate(states) if isinstance(state, OwnUpdates)]
        for state, context, product in zip(states, contexts, products, strict=True):
            _matmul(context, (state.base if isinstance(state, OwnUpdates) else state).packed, product)
        means, scores = products[:, :, self.dimension], self._many_scores[: len(states)]
        directions = contexts
        if self.alpha != 1.0:
            directions = contexts * self._alpha_squared
            for row, _ in own:
                directions[row] = contexts[row]
        _vecdot(products[:, :, : self.dimension], directions[:, None, :], scores)
        for row, state in own:
            self._take_off(state, contexts[row], means[row], scores[row])
            if self.alpha != 1.0:
                _multiply(scores[row], self._alpha_squared, scores[row])
        _maximum(scores, self._zero, out=scores)
        _sqrt(scores, scores)
        _add(means, scores, scores)
        arms = scores.argmax(axis=1)
        tied = (scores == scores.max(axis=1, keepdims=True)).sum(axis=1)
        return np.where(tied == 1, arms, -1).tolist()  # type: ignore[no-any-return]

    def learned(self, state: UserState, context: Float32, arm: int, reward: float) -> UserState:
        """Learn one interaction; return the same state object, or its dense form, which replaces it."""
        if isinstance(state, LinUCBState):
            self.learn(state, context, arm, reward)
            return state
        if len(state.arms) >= self._limit:
            dense = state.dense()
            self.learn(dense, context, arm, reward)
            return dense
        self._append(state, context, arm, reward)
        return state

    def _append(self, state: OwnUpdates, context: Float32, arm: int, reward: float) -> None:
        product = self._product
        context.dot(state.base.packed[arm], product)
        if state.touched >> arm & 1:
            rows = state.rows.compress(state.arms == arm, 0)
            _subtract(product, _vecdot(rows[:, : self.dimension], context) @ rows, product)
        shrink = 1.0 / sqrt(1.0 + max(float(self._inverse_product.dot(context)), 0.0))
        surprise = (float(product[-1]) - reward) * shrink
        self._shrink[()] = shrink
        _multiply(product, self._shrink, product)
        product[-1] = surprise
        state.rows = _concatenate((state.rows, self._row))
        state.arms = _concatenate((state.arms, self._number[arm]))
        state.touched |= 1 << arm
