"""The policy of an `EdgeAgent` where features are declared: it chooses and learns with sparse kernels.

A context is the bytes of one feature row. A row's blocks (the cells of each feature and their values) are computed for
all rows that are scored together (`prepare`), or when one row is needed. They are cached for the last few thousand
rows; for older rows they are computed from the bytes again. So a decision that waits for feedback keeps a few bytes.

Where items have names, a row of the model stands for one item, and later for another. A decision keeps the version of
the catalogue behind its context. That version goes into the slot. If the row's item entered the catalogue after it,
nobody learns from the decision. What a user learned of an item is dropped when its row gets another item, and the
shared models start that row again (`FeaturePolicy.entered`) from items that are like the new one (`new_items`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue
from hushstream.learners.errors import LearnerError
from hushstream.learners.sparse import MOST_STEPS, SparseContext, SparseModel, SparseUCB, contexts_of
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import pack_null, pack_reports
from hushstream.systems.p2b.edge.feature_state import DatedSteps, FeatureState
from hushstream.systems.p2b.edge.new_items import begin, lean, neighbours
from hushstream.systems.p2b.edge.policy import UNSCORED
from hushstream.systems.p2b.edge.shared import SharedModel, SharedModels

_MOST_PREPARED = 4096
_COUNT = struct.Struct("<I")
_MODEL = struct.Struct("<IId")
_CATALOGUE = struct.Struct("<i")
_UNNAMED = 0
"""The version of the catalogue that slots carry where items have no names."""


class FeaturePolicy:
    """The policy whose model has one normal coefficient for each arm and cell, independent of all others.

    See `hushstream.learners.sparse`.
    """

    context_type: type[np.generic] = np.uint8

    def __init__(self, layout: FeatureLayout, cold: SparseModel, tracks: tuple[str, ...]) -> None:
        """Start every track with a model that has seen nothing."""
        self.arms = layout.arms
        self.context_dimension = layout.schema.row_bytes
        self._layout = layout
        self._kernel = SparseUCB(layout.arms, layout.cells, layout.places)
        self.highest = self._kernel.highest
        self._models: SharedModels[FeatureState] = SharedModels(tracks, FeatureState(cold))
        self._prepared: dict[bytes, SparseContext] = {}
        self._cold = cold
        self._catalogue: Catalogue | None = None

    def follow(self, catalogue: Catalogue) -> None:
        """Where items have names: decide among the items of a catalogue, which its owner changes in place."""
        self._catalogue = catalogue
        for track in self._models.tracks:
            self._models.adopt(track, 0, _unentered(self._models.newest(track).state.model))

    def entered(self, row: int) -> None:
        """Start a row of every model again, because another item entered it."""
        for model in self._models.models():
            self._begin_row(model.state, row, released=bool(model.version))

    def shared(self, track: str) -> SharedModel[FeatureState]:
        return self._models.newest(track)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`.

        The arrays are means (K, P), variances (K, P) and the variance of a reward (1,). Where items have names, the
        catalogue version at which each row's item entered, (K,), follows.
        """
        means, variances, reward_variance, *entries = arrays
        model = SparseModel.of(means, variances, float(reward_variance[0]))
        state = FeatureState(model)
        if self._catalogue is not None and entries:
            known = entries[0].astype(np.int32)
            state = FeatureState(model, None, known, np.zeros(self.arms, dtype=np.bool_))
            self._lean_rows(state, self._models.newest(track))
            for row in np.flatnonzero(self._catalogue.offered & (known < self._catalogue.entries)):
                self._begin_row(state, int(row), released=True)
        self._models.adopt(track, version, state)

    def begin(self, track: str) -> tuple[int, FeatureState]:
        model = self._models.retain(track)
        own = DatedSteps(self._layout.cells)
        own.catalogue = self._version
        return model.version, model.state._replace(own=own)

    def end(self, track: str, version: int) -> None:
        self._models.drop(track, version)

    def prepare(self, contexts: NDArray[np.uint8]) -> None:
        self._make_room()
        rows = self._layout.schema.read(contexts.tobytes())
        for row, found in zip(contexts, self._contexts(rows), strict=True):
            self._prepared[row.tobytes()] = found

    def kept(self, context: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """See `SharedPolicy.kept`; where items have names, the version of the catalogue follows the context."""
        if self._catalogue is None:
            return context.copy()
        return np.frombuffer(context.tobytes() + _CATALOGUE.pack(self._version), np.uint8)

    def best(self, states: Sequence[FeatureState], contexts: NDArray[np.uint8]) -> Sequence[int]:
        """See `SharedPolicy.best`: scores no context here, because `prepare` has done the work that contexts share."""
        return [UNSCORED] * len(states)

    def scores(self, state: FeatureState, context: NDArray[np.uint8]) -> NDArray[np.floating]:
        return self._kernel.scores(state.model, self._own(state), self._context(context))

    def learned(self, state: FeatureState, context: NDArray[np.uint8], arm: int, reward: float) -> FeatureState:
        own = self._own(state)
        assert own is not None, "a shared state never learns"
        if self._catalogue is None or self._catalogue.entries[arm] <= self._decided_under(context):
            self._kernel.learn(state.model, own, self._context(context), arm, reward)
        return state

    def content(self, context: NDArray[np.uint8], arm: int, level: int) -> bytes:
        layout = self._layout
        row = context[: layout.schema.row_bytes]
        units = layout.units_of(layout.schema.blocks(layout.schema.read(row.tobytes())))
        (content,) = pack_reports(layout, np.array([arm]), np.array([level]), self._decided_under(context), units)
        return content

    def null(self) -> bytes:
        return pack_null(self._layout)

    def dump_own(self, state: FeatureState) -> bytes:
        """See `SharedPolicy.dump_own`: a number, then the steps' arms, vectors and gains.

        The number is the count of steps plus the row of the oldest step. That row is 0 until there are `MOST_STEPS`
        steps, so both can be read from the sum. Where items have names, the version of the catalogue stands at the end.
        """
        assert state.own is not None, "a shared state is nobody's own"
        arms, vectors, gains = state.own.taken
        parts = (arms.astype("<i4"), vectors.astype("<f4"), gains.astype("<f4"))
        dated = b"" if self._catalogue is None else _CATALOGUE.pack(state.own.catalogue)
        return _COUNT.pack(state.own.count + state.own.oldest) + b"".join(part.tobytes() for part in parts) + dated

    def load_own(self, track: str, version: int, dumped: bytes) -> FeatureState:
        """See `SharedPolicy.load_own`.

        Raises:
            LearnerError: not such bytes.
        """
        cells, packed, catalogue = self._layout.cells, 0, _UNNAMED
        if self._catalogue is not None and len(dumped) >= _COUNT.size + _CATALOGUE.size:
            (catalogue,) = _CATALOGUE.unpack(dumped[-_CATALOGUE.size :])
            dumped = dumped[: -_CATALOGUE.size]
        if len(dumped) >= _COUNT.size:
            (packed,) = _COUNT.unpack_from(dumped)
        count = min(packed, MOST_STEPS)
        expected = _COUNT.size + count * (4 + 4 * cells + 4)
        if len(dumped) != expected:
            raise LearnerError(f"expected {expected} bytes of {count} steps, got {len(dumped)}")
        arms = np.frombuffer(dumped, "<i4", count, _COUNT.size)
        vectors = np.frombuffer(dumped, "<f4", count * cells, _COUNT.size + 4 * count).reshape(count, cells)
        gains = np.frombuffer(dumped, "<f4", count, _COUNT.size + 4 * count + 4 * count * cells)
        own = DatedSteps.restored(arms, vectors, gains, packed - count)
        own.catalogue = catalogue
        shared = self._models.retained(track, version)
        return shared._replace(own=own)

    def dump_models(self) -> list[dict[str, Any]]:
        return self._models.dump(_dump_model)

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        self._models.restore(dumped, _load_model)

    @property
    def _version(self) -> int:
        return _UNNAMED if self._catalogue is None else self._catalogue.version

    def _decided_under(self, context: NDArray[np.uint8]) -> int:
        """The version of the catalogue that held when the decision on a kept context was made."""
        if self._catalogue is None:
            return _UNNAMED
        (version,) = _CATALOGUE.unpack(context[self.context_dimension :].tobytes())
        return int(version)

    def _own(self, state: FeatureState) -> DatedSteps | None:
        """What a user learned of the items that rows stand for now; what they learned of earlier items is dropped."""
        own, catalogue = state.own, self._catalogue
        if own is not None and catalogue is not None and own.catalogue != catalogue.version:
            own.forget(catalogue.entries > own.catalogue)
            own.catalogue = catalogue.version
        return own

    def _begin_row(self, state: FeatureState, row: int, released: bool) -> None:
        """Set a new item's row in a model: the mean of the known items on offer, weighed by likeness, and their spread.

        Where the model knows no item, the row is what a user starts from before any release. An item that was known
        before the start has its row in every model already. Before any release, only such items are known.

        Args:
            state: the model's state; its row, ``entries`` and ``late`` are changed.
            row: the row that an item entered.
            released: whether the model was made from released windows.
        """
        catalogue = self._catalogue
        assert catalogue is not None, "items have no names here"
        assert state.entries is not None, "a model of named items says when they entered"
        assert state.late is not None, "a model of named items says which of them are new"
        if state.entries[row] >= catalogue.entries[row]:
            return
        if catalogue.known[row]:
            state.entries[row] = catalogue.entries[row]
            return
        known = catalogue.offered & (state.entries == catalogue.entries)
        if catalogue.rules.known and not released:
            known &= catalogue.known
        known[row] = False
        others = np.flatnonzero(known)
        if others.size:
            begin(state.model, row, neighbours(state.model, others, catalogue.likeness(row, others)))
        else:
            table = state.model.table
            table[:, [row, self.arms + row]] = self._cold.table[:, [row, self.arms + row]]
        state.entries[row], state.late[row] = catalogue.entries[row], bool(others.size)

    def _lean_rows(self, state: FeatureState, before: SharedModel[FeatureState]) -> None:
        """Mix into rows that the earlier model began from other items what the newer model knows of those items.

        Before the first released model nothing was known that a row could begin from, unless items were known before
        the start.
        """
        catalogue = self._catalogue
        assert catalogue is not None, "items have no names here"
        assert state.entries is not None, "a model of named items says when they entered"
        assert state.late is not None, "a model of named items says which of them are new"
        if not before.version and not catalogue.rules.known:
            return
        assert before.state.late is not None, "a model of named items says which of them are new"
        state.late[:] = before.state.late & (before.state.entries == state.entries)
        others = np.flatnonzero(catalogue.offered & (state.entries == catalogue.entries) & ~state.late)
        for row in np.flatnonzero(state.late & catalogue.offered) if others.size else ():
            lean(state.model, self._layout, int(row), others, catalogue.likeness(int(row), others))

    def _context(self, context: NDArray[np.uint8]) -> SparseContext:
        row = context[: self.context_dimension].tobytes()
        found = self._prepared.get(row)
        if found is None:
            self._make_room()
            (found,) = self._contexts(self._layout.schema.read(row))
            # The decision is learned from later: on a device, computing the blocks is half of a decision's time.
            self._prepared[row] = found
        return found

    def _make_room(self) -> None:
        if len(self._prepared) > _MOST_PREPARED:
            self._prepared = {}

    def _contexts(self, rows: NDArray[np.void]) -> list[SparseContext]:
        """Make sparse contexts from checked rows: the constant's cell with value 1, then the cells of the blocks."""
        blocks, size = self._layout.schema.blocks(rows), len(rows)
        cells = np.concatenate([np.zeros((size, 1), dtype=np.int64), blocks.cells + 1], axis=1)
        return contexts_of(cells, np.concatenate([np.ones((size, 1)), blocks.values], axis=1))


def _unentered(model: SparseModel) -> FeatureState:
    """The state of a model of named items before any release: no row stands for an item yet."""
    return FeatureState(model.copy(), None, np.zeros(model.arms, dtype=np.int32), np.zeros(model.arms, dtype=np.bool_))


def _dump_model(state: FeatureState) -> bytes:
    table, entries, late = state.model.table, state.entries, state.late
    dated = b"" if entries is None or late is None else entries.astype("<i4").tobytes() + late.tobytes()
    return _MODEL.pack(*table.shape, state.model.reward_variance) + table.astype("<f4").tobytes() + dated


def _load_model(dumped: bytes) -> FeatureState:
    rows, columns, reward_variance = _MODEL.unpack_from(dumped)
    table = np.frombuffer(dumped, "<f4", rows * columns, _MODEL.size).reshape(rows, columns).astype(np.float32)
    model, arms, place = SparseModel(table, reward_variance), columns // 2, _MODEL.size + 4 * table.size
    if place == len(dumped):
        return FeatureState(model)
    entries = np.frombuffer(dumped, "<i4", arms, place).astype(np.int32)
    return FeatureState(model, None, entries, np.frombuffer(dumped, np.bool_, offset=place + 4 * arms).copy())
