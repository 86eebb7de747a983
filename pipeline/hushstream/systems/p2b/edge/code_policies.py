"""The policies of deployments whose slots hold codes: LinUCB on contexts as they are, and on one-hot codes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import Float32, LinUCB, LinUCBModel, LinUCBState
from hushstream.learners.onehot import OneHotModel, OneHotState, OneHotUCB
from hushstream.systems.p2b.contribution.encoder import Encoder
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.edge.low_rank import OwnUpdates, UserState, load_user_state, rows_limit
from hushstream.systems.p2b.edge.policy import COLD, UNSCORED
from hushstream.systems.p2b.edge.shared import SharedModel, SharedModels

TOGETHER_AT_MOST, TOGETHER_BYTES = 64, 256 * 1024
"""How many contexts are scored together at most, and how many bytes their products may take, to fit a core's cache."""

_ROW = struct.Struct("<I")
# Local names, as in `hushstream.learners.linucb`.
_add, _bincount, _concatenate, _matmul = np.add, np.bincount, np.concatenate, np.matmul
_maximum, _multiply, _sqrt, _subtract, _vecdot = np.maximum, np.multiply, np.sqrt, np.subtract, np.vecdot


class _OnCodes:
    """The common part of policies whose contexts are histograms and whose slots hold codes."""

    context_type: type[np.generic] = np.float32
    _encoder: Encoder
    _models: SharedModels[Any]

    def shared(self, track: str) -> SharedModel[Any]:
        return self._models.newest(track)

    def end(self, track: str, version: int) -> None:
        self._models.drop(track, version)

    def prepare(self, contexts: NDArray[np.float32]) -> None:
        """See `SharedPolicy.prepare`: there is nothing to do beforehand."""

    def kept(self, context: NDArray[np.float32]) -> NDArray[np.float32]:
        """See `SharedPolicy.kept`."""
        return context.copy()

    def encode(self, context: NDArray[np.float32]) -> int:
        """The code of a context (d,)."""
        return self._encoder.encode_one(context)

    def content(self, context: NDArray[np.float32], arm: int, level: int) -> bytes:
        return pack(Report(self.encode(context), arm, level))

    def null(self) -> bytes:
        return pack(None)


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
        alone: list[int] = np.where(tied == 1, arms, -1).tolist()
        return alone

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


class LinUCBPolicy(_OnCodes, UserLinUCB):
    """LinUCB on contexts as they are; shared models were learned on centroids (of public data, on raw contexts)."""

    def __init__(
        self, encoder: Encoder, arms: int, dimension: int, alpha: float, ridge: float, tracks: tuple[str, ...]
    ):
        """Start every track cold."""
        super().__init__(arms, dimension, alpha)
        self.context_dimension = encoder.dimension
        self._encoder = encoder
        cold = LinUCBModel.cold(arms, dimension, ridge).state()
        self._models: SharedModels[LinUCBState] = SharedModels((COLD, *tracks), cold)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`: gram (K, D, D) and moment (K, D)."""
        gram, moment = arrays
        self._models.adopt(track, version, LinUCBModel(gram, moment).state())

    def begin(self, track: str) -> tuple[int, UserState]:
        model = self._models.retain(track)
        return model.version, OwnUpdates.none(model.state)

    def dump_own(self, state: UserState) -> bytes:
        return state.dump()

    def load_own(self, track: str, version: int, dumped: bytes) -> UserState:
        return load_user_state(self._models.retained(track, version), dumped)

    def dump_models(self) -> list[dict[str, Any]]:
        return self._models.dump(LinUCBState.dump)

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        self._models.restore(dumped, LinUCBState.load)


class OneHotPolicy(_OnCodes):
    """LinUCB on one-hot codes: every context is encoded first, and a learner's state is a table."""

    def __init__(self, encoder: Encoder, arms: int, codes: int, alpha: float, ridge: float, tracks: tuple[str, ...]):
        """Start every track cold."""
        self.arms = arms
        self.context_dimension = encoder.dimension
        self._encoder = encoder
        self._alpha = alpha
        self._kernel = OneHotUCB(arms, codes, alpha)
        self.highest = self._kernel.highest
        cold = OneHotModel.cold(arms, codes, ridge).state(alpha)
        self._models: SharedModels[OneHotState] = SharedModels((COLD, *tracks), cold)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`: gram holds the diagonals, (K, k), moment is (K, k)."""
        gram, moment = arrays
        self._models.adopt(track, version, OneHotModel(gram, moment).state(self._alpha))

    def begin(self, track: str) -> tuple[int, OneHotState]:
        model = self._models.retain(track)
        return model.version, model.state.fork()

    def best(self, states: Sequence[OneHotState], contexts: NDArray[np.float32]) -> Sequence[int]:
        """See `SharedPolicy.best`: codes are found one by one, and a score is read from a table."""
        return [UNSCORED] * len(states)

    def scores(self, state: OneHotState, context: NDArray[np.float32]) -> NDArray[np.floating]:
        """See `SharedPolicy.scores`: a copy, because the kernel's scores are a view of the table."""
        return self._kernel.scores(state, self.encode(context)).copy()

    def learned(self, state: OneHotState, context: NDArray[np.float32], arm: int, reward: float) -> OneHotState:
        self._kernel.learn(state, self.encode(context), arm, reward)
        return state

    def dump_own(self, state: OneHotState) -> bytes:
        """See `SharedPolicy.dump_own`: for each code in which the user learned, the code and its row, (3, K)."""
        own = state.own
        return b"".join(_ROW.pack(code) + row.astype("<f8", copy=False).tobytes() for code, row in own.items())

    def load_own(self, track: str, version: int, dumped: bytes) -> OneHotState:
        """See `SharedPolicy.load_own`.

        Raises:
            LearnerError: not such bytes.
        """
        state = self._models.retained(track, version).fork()
        width = 8 * 3 * self.arms
        if len(dumped) % (_ROW.size + width):
            raise LearnerError(f"expected rows of {_ROW.size + width} bytes, got {len(dumped)} bytes")
        for start in range(0, len(dumped), _ROW.size + width):
            (code,) = _ROW.unpack_from(dumped, start)
            if code >= len(state.table):
                raise LearnerError(f"expected a code below {len(state.table)}, got {code}")
            row = np.frombuffer(dumped, "<f8", 3 * self.arms, start + _ROW.size)
            state.own[code] = row.astype(np.float64).reshape(3, self.arms)
        return state

    def dump_models(self) -> list[dict[str, Any]]:
        return self._models.dump(OneHotState.dump)

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        self._models.restore(dumped, OneHotState.load)
