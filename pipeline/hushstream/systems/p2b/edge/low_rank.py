"""A user's LinUCB state as the shared model plus their own few updates, and the kernel for both forms.

A step of Sherman-Morrison takes one outer product off an arm's block ``(A^-1, theta)``: that of ``u`` with
``w = (u, s)``, where ``v = A^-1 x``, ``c = 1/sqrt(1 + x'v)``, ``u = c v`` and ``s = c (theta'x - r)`` (see
`hushstream.learners.linucb`). So after ``n`` steps, by Woodbury's identity in product form,

    A_a^-1  = A0_a^-1  - sum u_j u_j'        theta_a = theta0_a - sum s_j u_j      (steps j on arm a)

and it is enough to keep the shared model's arrays, which all its users share, and one row ``w_j`` of D + 1
float32 for each step: with D = K = 10 and ten steps 440 bytes in place of 4,400. A score needs
``q_j = u_j'x`` alone:

    width_a^2 = x'A0_a^-1 x - sum q_j^2      mean_a = theta0_a'x - sum q_j s_j

Beyond `rows_limit` rows the state becomes dense, once and for good.

Equality: scores are those of the dense form up to rounding (float32; a test holds them to 1e-5). Arms with
equal histories have equal bits here too, whatever lies between their rows, because every sum runs over the
rows of one arm in their order; only a history that lies on both sides of the change to the dense form may differ
from its equal in the last bit, and then the tie is no tie.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import sqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import Float32, LinUCB, LinUCBState

Arms: TypeAlias = npt.NDArray[np.intp]

TOGETHER_AT_MOST, TOGETHER_BYTES = 64, 256 * 1024
"""Contexts that are scored in one go, and the memory that their products take: it should stay in a core's cache."""

ROWS_AT_LEAST = 16
"""A user of a small model has so many rows before they become dense, if that saves memory at all."""

_HEADER = struct.Struct("<4sBxxxIII")
_MAGIC = b"HLUF"
_VERSION = 1
# Local names, as in `hushstream.learners.linucb`.
_add, _bincount, _concatenate, _matmul = np.add, np.bincount, np.concatenate, np.matmul
_maximum, _multiply, _sqrt, _subtract, _vecdot = np.maximum, np.multiply, np.sqrt, np.subtract, np.vecdot


def rows_limit(arms: int, dimension: int) -> int:
    """Rows up to which a state stays of low rank: about D, and never more than a quarter of the dense bytes."""
    return max(1, min(max(ROWS_AT_LEAST, dimension), arms * dimension // 4))


class OwnUpdates:
    """The shared model's state and n steps of one user.

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
        """Bit a: whether arm a has a step (looking it up in ``arms`` would cost more than a product)."""
        for arm in arms.tolist():
            self.touched |= 1 << arm

    @classmethod
    def none(cls, base: LinUCBState) -> OwnUpdates:
        """A user who has learned nothing yet."""
        return cls(base, np.empty(0, np.intp), np.empty((0, base.packed.shape[2]), np.float32))

    @property
    def inverse(self) -> Float32:
        """``A^-1`` by arm, (K, D, D); made for this call."""
        return self.dense().inverse

    @property
    def theta(self) -> Float32:
        """``theta`` by arm, (K, D); made for this call."""
        return self.dense().theta

    def dense(self) -> LinUCBState:
        """The same knowledge in the dense form, owning its arrays."""
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
    """The state of a user who started from ``base``, from the bytes that ``dump`` of either form wrote.

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
    """`LinUCB` for states of both forms; `learn` gives the state back, as it may have become dense."""

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

    def _take_off(self, state: OwnUpdates, context: Float32, means: Float32, widths: Float32) -> None:
        """What a user's own steps take off the base's means and squared widths of a context, (K,) each."""
        rows, arms = state.rows, state.arms
        along = _vecdot(rows[:, : self.dimension], context)
        _subtract(means, _bincount(arms, along * rows[:, self.dimension], self.arms), means, casting="same_kind")
        _multiply(along, along, along)
        _subtract(widths, _bincount(arms, along, self.arms), widths, casting="same_kind")

    def best(self, states: Sequence[UserState], contexts: Float32) -> list[int]:
        """The arm that `choose` gives for each of n states with its context where none is as good, -1 for the others.

        A product has the shape that it has for one context alone, as one product for all of them would round otherwise;
        what follows it is done for many at once, and rounds alike. So scores have the bits that `scores` gives.

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
        """The state with one interaction folded in: the same object, or its dense form in place of it."""
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
