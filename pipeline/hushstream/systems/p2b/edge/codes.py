"""The policies of deployments whose slots hold codes: LinUCB on contexts as they are, and on one-hot codes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.exploration import LearnerError, only_best
from hushstream.learners.linucb import Float32, LinUCB, LinUCBModel, LinUCBState
from hushstream.learners.onehot import OneHotModel, OneHotState, OneHotUCB
from hushstream.systems.p2b.codebook import Encoder
from hushstream.systems.p2b.edge.policies import COLD, UNSCORED, Lesson, SharedModel, SharedModels
from hushstream.systems.p2b.slots import Report, pack

TOGETHER_AT_MOST, TOGETHER_BYTES = 64, 256 * 1024
"""How many contexts are scored together at most, and how many bytes their products may take, to fit a core's cache."""

_ROW = struct.Struct("<I")
# Local names, as in `hushstream.learners.linucb`.
_add, _matmul, _maximum, _sqrt, _vecdot = np.add, np.matmul, np.maximum, np.sqrt, np.vecdot


class _OnCodes:
    """The common part of policies whose contexts are histograms and whose slots hold codes."""

    catalogue: None = None
    context_type: type[np.generic] = np.float32
    _encoder: Encoder
    _models: SharedModels[Any]

    def shared(self, track: str) -> SharedModel[Any]:
        return self._models.newest(track)

    def end(self, track: str, version: int) -> None:
        self._models.drop(track, version)

    def kept(self, context: NDArray[np.float32]) -> bytes:
        """See `SharedPolicy.kept`."""
        return context.tobytes()

    def encode(self, context: NDArray[np.float32]) -> int:
        """The code of a context (d,)."""
        return self._encoder.encode_one(context)

    def content(self, context: bytes, arm: int, level: int) -> bytes:
        return pack(Report(self.encode(np.frombuffer(context, np.float32)), arm, level))

    def null(self) -> bytes:
        return pack(None)


class UserLinUCB(LinUCB):
    """`LinUCB` that also scores the contexts of many users together."""

    def __init__(self, arms: int, dimension: int, alpha: float = 1.0) -> None:
        super().__init__(arms, dimension, alpha)
        self._together = max(1, min(TOGETHER_AT_MOST, TOGETHER_BYTES // (4 * arms * (dimension + 1))))
        self._many = np.empty((self._together, arms, dimension + 1), dtype=np.float32)
        self._many_scores = np.empty((self._together, arms), dtype=np.float32)

    def best(self, states: Sequence[LinUCBState], contexts: Float32) -> list[int]:
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
            some, part = states[first : first + self._together], contexts[first : first + self._together]
            products, scores = self._many[: len(some)], self._many_scores[: len(some)]
            for state, context, product in zip(some, part, products, strict=True):
                _matmul(context, state.packed, product)
            directions = part if self.alpha == 1.0 else part * self._alpha_squared
            _vecdot(products[:, :, : self.dimension], directions[:, None, :], scores)
            _maximum(scores, self._zero, out=scores)
            _sqrt(scores, scores)
            _add(products[:, :, self.dimension], scores, scores)
            found += only_best(scores)
        return found

    def learn_all(self, lessons: Sequence[Lesson]) -> None:
        """See `SharedPolicy.learn_all`: one after the other."""
        for state, context, arm, reward in lessons:
            self.learn(state, np.frombuffer(context, np.float32), arm, reward)


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

    def begin(self, track: str) -> tuple[int, LinUCBState]:
        model = self._models.retain(track)
        return model.version, model.state.fork()

    def dump_own(self, state: LinUCBState) -> bytes:
        return state.dump()

    def load_own(self, track: str, version: int, dumped: bytes) -> LinUCBState:
        return LinUCBState.load(dumped)

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

    def learn_all(self, lessons: Sequence[Lesson]) -> None:
        for state, context, arm, reward in lessons:
            self._kernel.learn(state, self.encode(np.frombuffer(context, np.float32)), arm, reward)

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
