"""What an `EdgeAgent` chooses and learns with where features are declared: sparse kernels on blocks of rows.

A context is the bytes of a row. Its blocks are found once for all rows that are scored together (`prepare`), and again
from the bytes where one is learned from later: so a decision that waits keeps a few bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.errors import LearnerError
from hushstream.learners.sparse import MOST_STEPS, OwnSteps, SparseContext, SparseModel, SparseUCB, contexts_of
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import pack_null, pack_reports
from hushstream.systems.p2b.edge.feature_state import FeatureState
from hushstream.systems.p2b.edge.policy import UNSCORED
from hushstream.systems.p2b.edge.shared import SharedModel, SharedModels

_MOST_PREPARED = 4096
_COUNT = struct.Struct("<I")
_MODEL = struct.Struct("<IId")
_FIRST_CATALOGUE = 0
"""Items have no versions yet."""


class FeaturePolicy:
    """Independent normal coefficients of every arm and cell; see `hushstream.learners.sparse`."""

    context_type: type[np.generic] = np.uint8

    def __init__(self, layout: FeatureLayout, cold: SparseModel, tracks: tuple[str, ...]) -> None:
        """Start every track with a model that has seen nothing."""
        self.arms = layout.arms
        self.context_dimension = layout.schema.row_bytes
        self._layout = layout
        self._kernel = SparseUCB(layout.arms, layout.cells, layout.places)
        self._models: SharedModels[FeatureState] = SharedModels(tracks, FeatureState(cold))
        self._prepared: dict[bytes, SparseContext] = {}

    def shared(self, track: str) -> SharedModel[FeatureState]:
        return self._models.newest(track)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`: means and variances (K, P), and the variance of a reward (1,)."""
        means, variances, reward_variance = arrays
        model = SparseModel.of(means, variances, float(reward_variance[0]))
        self._models.adopt(track, version, FeatureState(model))

    def begin(self, track: str) -> tuple[int, FeatureState]:
        model = self._models.hold(track)
        return model.version, FeatureState(model.state.model, OwnSteps(self._layout.cells))

    def end(self, track: str, version: int) -> None:
        self._models.let_go(track, version)

    def prepare(self, contexts: NDArray[np.uint8]) -> None:
        if len(self._prepared) > _MOST_PREPARED:
            self._prepared = {}
        rows = self._layout.schema.read(contexts.tobytes())
        for row, found in zip(contexts, self._contexts(rows), strict=True):
            self._prepared[row.tobytes()] = found

    def choose(
        self,
        state: FeatureState,
        context: NDArray[np.uint8],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        return self._kernel.choose(state.model, state.own, self._context(context), pick, eligible)

    def best(self, states: Sequence[FeatureState], contexts: NDArray[np.uint8]) -> Sequence[int]:
        """See `SharedPolicy.best`: what contexts share is found by `prepare`."""
        return [UNSCORED] * len(states)

    def score_gap(self, state: FeatureState, context: NDArray[np.uint8], arm: int, other: int) -> float:
        scores = self._kernel.scores(state.model, state.own, self._context(context))
        return abs(float(scores[arm]) - float(scores[other]))

    def learned(self, state: FeatureState, context: NDArray[np.uint8], arm: int, reward: float) -> FeatureState:
        assert state.own is not None, "a shared state never learns"
        self._kernel.learn(state.model, state.own, self._context(context), arm, reward)
        return state

    def content(self, context: NDArray[np.uint8], arm: int, level: int) -> bytes:
        layout = self._layout
        units = layout.units_of(layout.schema.blocks(layout.schema.read(context.tobytes())))
        (content,) = pack_reports(layout, np.array([arm]), np.array([level]), _FIRST_CATALOGUE, units)
        return content

    def null(self) -> bytes:
        return pack_null(self._layout)

    def dump_own(self, state: FeatureState) -> bytes:
        """See `SharedPolicy.dump_own`: the number of steps plus the oldest one's row, then arms, vectors and gains.

        The oldest is row 0 until `MOST_STEPS` are taken, so the sum tells both.
        """
        assert state.own is not None, "a shared state is nobody's own"
        arms, vectors, gains = state.own.taken
        parts = (arms.astype("<i4"), vectors.astype("<f4"), gains.astype("<f4"))
        return _COUNT.pack(state.own.count + state.own.oldest) + b"".join(part.tobytes() for part in parts)

    def load_own(self, track: str, version: int, dumped: bytes) -> FeatureState:
        """See `SharedPolicy.load_own`.

        Raises:
            LearnerError: not such bytes.
        """
        cells, told = self._layout.cells, 0
        if len(dumped) >= _COUNT.size:
            (told,) = _COUNT.unpack_from(dumped)
        count = min(told, MOST_STEPS)
        expected = _COUNT.size + count * (4 + 4 * cells + 4)
        if len(dumped) != expected:
            raise LearnerError(f"expected {expected} bytes of {count} steps, got {len(dumped)}")
        arms = np.frombuffer(dumped, "<i4", count, _COUNT.size)
        vectors = np.frombuffer(dumped, "<f4", count * cells, _COUNT.size + 4 * count).reshape(count, cells)
        gains = np.frombuffer(dumped, "<f4", count, _COUNT.size + 4 * count + 4 * count * cells)
        own = OwnSteps.restored(arms, vectors, gains, told - count)
        return FeatureState(self._models.held(track, version).model, own)

    def dump_models(self) -> list[dict[str, Any]]:
        return self._models.dump(_dump_model)

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        self._models.restore(dumped, _load_model)

    def _context(self, context: NDArray[np.uint8]) -> SparseContext:
        found = self._prepared.get(context.tobytes())
        if found is None:
            (found,) = self._contexts(self._layout.schema.read(context.tobytes()))
        return found

    def _contexts(self, rows: NDArray[np.void]) -> list[SparseContext]:
        """Of checked rows: the constant's cell with value 1, then the blocks."""
        blocks, size = self._layout.schema.blocks(rows), len(rows)
        cells = np.concatenate([np.zeros((size, 1), dtype=np.int64), blocks.cells + 1], axis=1)
        return contexts_of(cells, np.concatenate([np.ones((size, 1)), blocks.values], axis=1))


def _dump_model(state: FeatureState) -> bytes:
    table = state.model.table
    return _MODEL.pack(*table.shape, state.model.reward_variance) + table.astype("<f4").tobytes()


def _load_model(dumped: bytes) -> FeatureState:
    rows, columns, reward_variance = _MODEL.unpack_from(dumped)
    table = np.frombuffer(dumped, "<f4", rows * columns, _MODEL.size).reshape(rows, columns).astype(np.float32)
    return FeatureState(SparseModel(table, reward_variance))
