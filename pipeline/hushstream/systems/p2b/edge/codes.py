"""The policy of deployments whose slots hold codes: LinUCB on contexts as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.linucb import Float32, LinUCB, LinUCBModel, LinUCBState
from hushstream.systems.p2b.codebook import Encoder
from hushstream.systems.p2b.edge.policies import COLD, Lesson, SharedModel, SharedModels
from hushstream.systems.p2b.slots import Report, pack

TOGETHER_AT_MOST, TOGETHER_BYTES = 64, 256 * 1024
"""How many contexts are scored together at most, and how many bytes their products may take, to fit a core's cache."""

# Local names, as in `hushstream.learners.linucb`.
_add, _matmul, _maximum, _sqrt, _vecdot = np.add, np.matmul, np.maximum, np.sqrt, np.vecdot


class UserLinUCB(LinUCB):
    """`LinUCB` that also scores the contexts of many users together."""

    def __init__(self, arms: int, dimension: int, alpha: float = 1.0) -> None:
        super().__init__(arms, dimension, alpha)
        self._together = max(1, min(TOGETHER_AT_MOST, TOGETHER_BYTES // (4 * arms * (dimension + 1))))
        self._many = np.empty((self._together, arms, dimension + 1), dtype=np.float32)

    def scores_of(self, states: Sequence[LinUCBState], contexts: Float32) -> Float32:
        """(n, K) the scores of n states, each in its context.

        They have the same bits as those of `scores`: every matrix product is made for one context alone, because
        one product for all of them would round differently. The later operations run on many contexts at once, which
        rounds in the same way.

        Args:
            states: of this kernel's shape.
            contexts: (n, D) float32, C-contiguous and finite.
        """
        found = np.empty((len(states), self.arms), np.float32)
        for first in range(0, len(states), self._together):
            some, part = states[first : first + self._together], contexts[first : first + self._together]
            products, scores = self._many[: len(some)], found[first : first + self._together]
            for state, context, product in zip(some, part, products, strict=True):
                _matmul(context, state.packed, product)
            directions = part if self.alpha == 1.0 else part * self._alpha_squared
            _vecdot(products[:, :, : self.dimension], directions[:, None, :], scores)
            _maximum(scores, self._zero, out=scores)
            _sqrt(scores, scores)
            _add(products[:, :, self.dimension], scores, scores)
        return found

    def learn_all(self, lessons: Sequence[Lesson]) -> None:
        """See `SharedPolicy.learn_all`: one after the other."""
        for state, context, arm, reward in lessons:
            self.learn(state, np.frombuffer(context, np.float32), arm, reward)


class LinUCBPolicy(UserLinUCB):
    """LinUCB on contexts as they are, which are histograms; shared models were learned on centroids of their codes."""

    catalogue: None = None

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

    def shared(self, track: str) -> SharedModel[Any]:
        return self._models.newest(track)

    def end(self, track: str, version: int) -> None:
        self._models.drop(track, version)

    def kept(self, contexts: NDArray[np.float32]) -> bytes:
        """See `SharedPolicy.kept`."""
        return contexts.tobytes()

    def contents(self, contexts: Sequence[bytes], arms: Sequence[int], levels: Sequence[int]) -> list[bytes]:
        rows = np.frombuffer(b"".join(contexts), np.float32).reshape(len(contexts), -1)
        return [*map(pack, map(Report, self._encoder.encode(rows).tolist(), arms, levels))]

    def null(self) -> bytes:
        return pack(None)
