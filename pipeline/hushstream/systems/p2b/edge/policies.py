"""What an `EdgeAgent` chooses and learns with: a kernel, the shared models by track, and how slots are encoded.

One policy serves all agents of a process. What a user learned alone is a state, which is passed to the policy.

*Shared models.* The shared models of a process: the newest one of every track, and older ones that users still need.

*State.* The state from which the next decision of a user follows, if features are declared.

*New items.* Estimates an item that was added to a running deployment, by a prior from known items.

A released row is the posterior under a prior that is the same for all items: each coefficient around 0 (the constant
around the mean of all), with the variance T of its block. In a running deployment that prior is wrong. Known items are
shown to users who like them, so the mean click rate is that of liked items, and a new item without data would be shown
to everybody. A better prior is what known items say about a cell: mean m0 and variance S0, which contains their own
uncertainty and the differences between them. A model whose priors items' features shape (`server.prior`) needs none of
this: there a new item's row already has the prior of items with its features.

First the prior that shrank the data of the windows is removed. With m, D the released coefficient and its variance, and
c the mean of its prior, the sums alone have the precision and the weighted mean

    s = 1/D - 1/T        s r = m/D - c/T

and the row becomes 1/D' = 1/S0 + s, m' = D' (m0/S0 + s r). T is not released. It is at least each D of its block, and
about the mean of (m - c)^2 + D over the known rows; the larger one is used. So a row without data (D = T) becomes m0,
S0, and a row with many slots stays as it was released.

The variance between users (`OWN_TASTE`) is part of each constant's D, and is not changed by this.
Everything here is post-processing of releases: it costs no privacy.

*Declared features.* The policy of an `EdgeAgent` where features are declared: it chooses and learns with sparse
kernels.

A context is the bytes of one feature row, so a decision that waits for feedback keeps a few bytes. A row's cells and
values are computed when they are needed, for all rows that are scored or learned from together
(`hushstream.features.compiled`).

Where items have names, a row of the model stands for one item, and later for another. A decision keeps the version of
the catalogue behind its context. That version goes into the slot. If the row's item entered the catalogue after it,
nobody learns from the decision. What a user learned of an item is dropped when its row gets another item, and the
shared models start that row again (`FeaturePolicy.entered`) from the known items.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import Catalogue, CatalogueRules
from hushstream.learners.exploration import Highest, LearnerError
from hushstream.learners.linucb import LinUCBState
from hushstream.learners.sparse import (
    MOST_STEPS,
    OWN_TASTE,
    OwnSteps,
    SparseContext,
    SparseModel,
    SparseUCB,
)
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.slots import FeatureLayout, pack_null, pack_reports, shapes_priors

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class SharedModel(Generic[State]):
    """A published model, ready to score with: its version (0: nothing learned yet) and its state."""

    version: int
    state: State


class SharedModels(Generic[State]):
    """Shared models by track and version.

    A user's state consists of the model that they started from and of what they learned since. Its bytes only name the
    version of the model. So a version is kept as long as some user, in memory or not, started from it.
    """

    __slots__ = ("_newest", "_retained", "_users")

    def __init__(self, tracks: Iterable[str], cold: State) -> None:
        """Start every track with the state of a model that has seen nothing."""
        model = SharedModel(0, cold)
        self._newest: dict[str, SharedModel[State]] = dict.fromkeys(tracks, model)
        self._retained: dict[tuple[str, int], State] = {}
        self._users: dict[tuple[str, int], int] = {}

    @property
    def tracks(self) -> tuple[str, ...]:
        """The names of the tracks."""
        return tuple(self._newest)

    def newest(self, track: str) -> SharedModel[State]:
        """The newest model of a track."""
        return self._newest[track]

    def adopt(self, track: str, version: int, state: State) -> None:
        """Make a model the newest of its track.

        Raises:
            HushstreamError: there is no such track.
        """
        if track not in self._newest:
            raise HushstreamError(f"model track: expected one of {sorted(self._newest)}, got {track!r}")
        self._newest[track] = SharedModel(version, state)

    def retain(self, track: str) -> SharedModel[State]:
        """The newest model of a track; from now on one more user needs it."""
        model = self._newest[track]
        place = (track, model.version)
        self._retained[place] = model.state
        self._users[place] = self._users.get(place, 0) + 1
        return model

    def retained(self, track: str, version: int) -> State:
        """A model that some user started from.

        Raises:
            HushstreamError: no user started from it.
        """
        state = self._retained.get((track, version))
        if state is None:
            raise HushstreamError(f"model: expected a version of {track!r} that a user started from, got {version}")
        return state

    def drop(self, track: str, version: int) -> None:
        """Note that one user fewer needs a model, and drop it after the last one."""
        place = (track, version)
        self._users[place] -= 1
        if not self._users[place]:
            del self._users[place], self._retained[place]

    def models(self) -> list[SharedModel[State]]:
        """Every model that may still be scored with, each state once."""
        retained = [SharedModel(version, state) for (_, version), state in self._retained.items()]
        return list({id(model.state): model for model in [*self._newest.values(), *retained]}.values())

    def dump(self, pack: Callable[[State], bytes]) -> list[dict[str, Any]]:
        """All models as plain values, for a snapshot."""
        states = {(track, model.version): model.state for track, model in self._newest.items()} | self._retained
        return [
            {
                "line": track,
                "version": version,
                "users": self._users.get((track, version), 0),
                "newest": self._newest[track].version == version,
                "state": pack(states[track, version]),
            }
            for track, version in sorted(states)
        ]

    def restore(self, dumped: Iterable[Mapping[str, Any]], unpack: Callable[[bytes], State]) -> None:
        """Replace everything by what `dump` gave.

        Raises:
            HushstreamError: it names a track that does not exist here.
        """
        self._retained, self._users = {}, {}
        for item in dumped:
            place, state = (item["line"], item["version"]), unpack(item["state"])
            if item["newest"]:
                self.adopt(*place, state)
            if item["users"]:
                self._retained[place] = state
                self._users[place] = item["users"]


class FeatureState(NamedTuple):
    """A shared model.

    Attributes:
        model: the shared model.
        entries: (K,) int32, for each row of the model the catalogue version at which the row's item entered. It changes
            with the model's rows.
        late: (K,) bool, whether the row's item entered when the model already knew other items. Such a row began from
            these items, and later models mix them in as long as the item is there (`lean`). It changes with the
            model's rows.
    """

    model: SparseModel
    entries: NDArray[np.int32]
    late: NDArray[np.bool_]


class UserState(OwnSteps):
    """The steps that one user learned alone since they started from a shared model.

    Attributes:
        model: the shared model's.
        catalogue: the version of the catalogue up to which steps are dropped if their items have left their rows.
    """

    __slots__ = ("catalogue", "model")

    model: SparseModel
    catalogue: int


LearnerState: TypeAlias = LinUCBState | FeatureState | UserState


class Lesson(NamedTuple):
    """An interaction that is to be learned: the user's own state, the context (`SharedPolicy.kept`), the arm on screen
    and the reward.
    """

    state: Any
    context: bytes
    arm: int
    reward: float


COLD = "cold"
"""The track without a shared model."""


class SharedPolicy(Protocol):
    """The kernel of a deployment together with its shared models.

    Attributes:
        arms: K.
        highest: chooses the arm with the highest of `scores`.
        context_dimension: d, entries of a context as it comes.
    """

    arms: int
    highest: Highest
    context_dimension: int

    @property
    def catalogue(self) -> Catalogue | None:
        """The items that arms are; None if they have no rules (*Rules* in `edge.agent`)."""

    def shared(self, track: str) -> SharedModel[Any]:
        """The newest model of a track."""

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """Make a published model the newest of its track; the arrays are those of its `PublishedModel`."""

    def begin(self, track: str) -> tuple[int, Any]:
        """The version of the newest model of a track, and the state of a new user who starts from it."""

    def end(self, track: str, version: int) -> None:
        """Note that a user's own state is deleted; ``version`` is what `begin` gave."""

    def kept(self, contexts: NDArray[Any]) -> bytes:
        """What decisions keep of contexts (n, d) until they are learned from: of each its bytes, and what is behind."""

    def scores_of(self, states: Sequence[Any], contexts: NDArray[Any]) -> NDArray[np.floating]:
        """(n, K) `scores` of n states and their contexts (n, d), with the same bits; the caller may overwrite them."""

    def scores(self, state: Any, context: NDArray[Any]) -> NDArray[np.floating]:
        """(K,) the score of every arm, which the caller may overwrite; valid until the next call of the policy."""

    def learn_all(self, lessons: Sequence[Lesson]) -> None:
        """Fold an interaction of each of n different users into their own states, which change in place."""

    def contents(self, contexts: Sequence[bytes], arms: Sequence[int], levels: Sequence[int]) -> list[bytes]:
        """The contents of slots that hold these interactions, at least one; their contexts are `kept` ones."""

    def null(self) -> bytes:
        """The content of a slot that holds nothing."""

    def dump_own(self, state: Any) -> bytes:
        """The bytes of what a user learned alone, without the model that they started from."""

    def load_own(self, track: str, version: int, dumped: bytes) -> Any:
        """The state that `dump_own` wrote, of a user who started from that version and is counted as its user."""

    def dump_models(self) -> list[dict[str, Any]]:
        """The shared models (`SharedModels.dump`)."""

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        """Replace the shared models by what `dump_models` gave."""


Float64 = NDArray[np.float64]

_LEAST = 1e-9
"""The smallest variance: smaller ones are replaced by it."""


class Neighbours(NamedTuple):
    """The prior of each cell of a new item, from known items.

    Attributes:
        means: (P,) the mean of the known items' means.
        variances: (P,) the mean of the known items' variances, plus the variance between their means.
    """

    means: Float64
    variances: Float64


def neighbours(model: SparseModel, others: NDArray[np.intp]) -> Neighbours:
    """Combine some rows (n,), at least one, of a model of P cells into a prior."""
    means, variances = _columns(model, others)
    return Neighbours(means.mean(axis=1), variances.mean(axis=1) + means.var(axis=1))


def begin(model: SparseModel, row: int, start: Neighbours) -> None:
    """Set a row of a model to the means and variances of a prior."""
    model.table[:, row], model.table[:, model.arms + row] = start


def lean(model: SparseModel, layout: FeatureLayout, row: int, others: NDArray[np.intp]) -> None:
    """Replace the prior that a row was released with by the prior from its neighbours; see the module.

    Args:
        model: as released; the row changes.
        layout: the layout of the model's cells.
        row: the row of an item that entered late.
        others: (n,) rows of items that did not enter late, at least one.
    """
    own = np.zeros(len(model.table))
    own[0] = (OWN_TASTE * model.reward_variance) ** 2
    start = neighbours(model, others)
    (means, variances), (mean, variance) = _columns(model, others), _columns(model, np.array([row]))
    middle = np.zeros_like(own)
    middle[0] = means[0].mean()
    spread = np.maximum(variance[:, 0] - own, _LEAST)
    prior = _prior(layout, means - middle[:, None], np.maximum(variances - own[:, None], _LEAST), spread)
    precision = np.maximum(1.0 / spread - 1.0 / prior, 0.0)
    weighted = np.where(precision > 0.0, mean[:, 0] / spread - middle / prior, 0.0)
    before = np.maximum(start.variances - own, _LEAST)
    after = 1.0 / (1.0 / before + precision)
    begin(model, row, Neighbours(after * (start.means / before + weighted), after + own))


def _prior(layout: FeatureLayout, apart: Float64, variances: Float64, spread: Float64) -> Float64:
    """(P,) T of each cell's block, from known rows' (P, n) distances from the middle and variances, and the row's."""
    found = np.empty(len(spread))
    for block in layout.blocks:
        cells = slice(block.first_cell, block.first_cell + block.cells)
        usual = (apart[cells] ** 2 + variances[cells]).mean()
        found[cells] = max(usual, variances[cells].max(), spread[cells].max())
    return found


def _columns(model: SparseModel, rows: NDArray[np.intp]) -> tuple[Float64, Float64]:
    """(P, n) means and variances of some rows."""
    table = model.table.astype(np.float64)
    return table[:, rows], table[:, model.arms + rows]


_COUNT = struct.Struct("<I")
_MODEL = struct.Struct("<IId")
_CATALOGUE = struct.Struct("<i")


class FeaturePolicy:
    """The policy whose model has one normal coefficient for each arm and cell, independent of all others.

    See `hushstream.learners.sparse`.
    """

    def __init__(self, layout: FeatureLayout, cold: SparseModel, tracks: tuple[str, ...]) -> None:
        """Start every track with a model that has seen nothing, among items that are named by numbers."""
        self.arms = layout.arms
        self.context_dimension = layout.schema.row_bytes
        self._layout = layout
        self._kernel = SparseUCB(layout.arms, layout.cells, layout.places)
        self.highest = self._kernel.highest
        self.catalogue = Catalogue(CatalogueRules(layout.arms, None, b"", numbered=True))
        self._models: SharedModels[FeatureState] = SharedModels(tracks, self._as_entered(cold))
        self._rows = layout.schema.compiled
        self._cold = cold

    def follow(self, catalogue: Catalogue) -> None:
        """Decide among the items of a catalogue, which its owner changes in place."""
        self.catalogue = catalogue
        for track in self._models.tracks:
            self._models.adopt(track, 0, self._as_entered(self._models.newest(track).state.model.copy()))

    def entered(self, row: int) -> None:
        """Start a row of every model again, because another item entered it."""
        for model in self._models.models():
            self._begin_row(model.state, row, released=bool(model.version))

    def shared(self, track: str) -> SharedModel[FeatureState]:
        return self._models.newest(track)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`.

        The arrays are means (K, P), variances (K, P), the variance of a reward (1,), and the catalogue version at which
        each row's item entered, (K,); without the last one, the rows are those of the catalogue as it is now.
        """
        means, variances, reward_variance, *entries = arrays
        model = SparseModel.of(means, variances, float(reward_variance[0]))
        state = self._as_entered(model)
        if entries:
            known = entries[0].astype(np.int32)
            state = state._replace(entries=known)
            self._lean_rows(state, self._models.newest(track))
            for row in np.flatnonzero(self.catalogue.offered & (known < self.catalogue.entries)):
                self._begin_row(state, int(row), released=True)
        self._models.adopt(track, version, state)

    def begin(self, track: str) -> tuple[int, UserState]:
        model = self._models.retain(track)
        own = UserState(self._layout.cells)
        own.model, own.catalogue = model.state.model, self.catalogue.version
        return model.version, own

    def end(self, track: str, version: int) -> None:
        self._models.drop(track, version)

    def kept(self, contexts: NDArray[np.uint8]) -> bytes:
        """See `SharedPolicy.kept`; the version of the catalogue follows each context."""
        version = np.frombuffer(_CATALOGUE.pack(self.catalogue.version), np.uint8)
        found = np.empty((len(contexts), self.context_dimension + len(version)), np.uint8)
        found[:, : self.context_dimension], found[:, self.context_dimension :] = contexts, version
        return found.tobytes()

    def scores_of(self, states: Sequence[FeatureState | UserState], contexts: NDArray[np.uint8]) -> NDArray[np.float32]:
        """See `SharedPolicy.scores_of`; a user's steps on items that have left their rows are dropped first."""
        if len(states) == 1:
            return self.scores(states[0], contexts[0])[None].copy()
        owns, some, models = [*map(self._own, states)], self._read(contexts.tobytes()), [one.model for one in states]
        if models.count(models[0]) == len(models):
            return self._kernel.scores_of(models[0], owns, some)
        scores = np.empty((len(states), self.arms), np.float32)
        for model, rows in _by_model(models, range(len(models))):
            scores[rows] = self._kernel.scores_of(model, [owns[row] for row in rows], some.at(np.array(rows)))
        return scores

    def scores(self, state: FeatureState | UserState, context: NDArray[np.uint8]) -> NDArray[np.floating]:
        return self._kernel.scores(state.model, self._own(state), self._read(context.tobytes()).at(0))

    def learn_all(self, lessons: Sequence[Lesson]) -> None:
        states, kept, given, earned = zip(*lessons, strict=True)
        owns, arms, rewards = [*map(self._own, states)], np.array(given), np.array(earned)
        contexts, decided_under = self._parts(kept)
        current = np.flatnonzero(self.catalogue.entries[arms] <= decided_under).tolist()
        for model, rows in _by_model([state.model for state in states], current):
            mine = [own for own in map(owns.__getitem__, rows) if own is not None]
            self._kernel.learn(model, mine, self._read(contexts[rows].tobytes()), arms[rows], rewards[rows])

    def contents(self, contexts: Sequence[bytes], arms: Sequence[int], levels: Sequence[int]) -> list[bytes]:
        layout, (rows, decided_under) = self._layout, self._parts(contexts)
        units = layout.units_of(layout.schema.blocks(layout.schema.read(rows.tobytes())))
        return pack_reports(layout, np.array(arms), np.array(levels), decided_under, units)

    def null(self) -> bytes:
        return pack_null(self._layout)

    def dump_own(self, state: UserState) -> bytes:
        """See `SharedPolicy.dump_own`: a number, then the steps' arms, vectors and gains.

        The number is the count of steps plus the row of the oldest step. That row is 0 until there are `MOST_STEPS`
        steps, so both can be read from the sum. The version of the catalogue stands at the end.
        """
        arms, vectors, gains = state.taken
        parts = (arms.astype("<i4"), vectors.astype("<f4"), gains.astype("<f4"))
        dated = _CATALOGUE.pack(state.catalogue)
        return _COUNT.pack(state.count + state.oldest) + b"".join(part.tobytes() for part in parts) + dated

    def load_own(self, track: str, version: int, dumped: bytes) -> UserState:
        """See `SharedPolicy.load_own`.

        Raises:
            LearnerError: not such bytes.
        """
        cells, packed = self._layout.cells, 0
        if len(dumped) >= _COUNT.size + _CATALOGUE.size:
            (packed,) = _COUNT.unpack_from(dumped)
        count = min(packed, MOST_STEPS)
        expected = _COUNT.size + count * (4 + 4 * cells + 4) + _CATALOGUE.size
        if len(dumped) != expected:
            raise LearnerError(f"expected {expected} bytes of {count} steps, got {len(dumped)}")
        (catalogue,) = _CATALOGUE.unpack(dumped[-_CATALOGUE.size :])
        arms = np.frombuffer(dumped, "<i4", count, _COUNT.size)
        vectors = np.frombuffer(dumped, "<f4", count * cells, _COUNT.size + 4 * count).reshape(count, cells)
        gains = np.frombuffer(dumped, "<f4", count, _COUNT.size + 4 * count + 4 * count * cells)
        own = UserState.restored(arms, vectors, gains, packed - count)
        own.model, own.catalogue = self._models.retained(track, version).model, catalogue
        return own

    def dump_models(self) -> list[dict[str, Any]]:
        return self._models.dump(_dump_model)

    def restore_models(self, dumped: Iterable[Mapping[str, Any]]) -> None:
        self._models.restore(dumped, _load_model)

    def _parts(self, kept: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        """Contexts (n, d), and the version of the catalogue that held when each was decided, of `kept` ones."""
        both = np.frombuffer(b"".join(kept), np.uint8).reshape(len(kept), -1)
        return both[:, : self.context_dimension], both[:, self.context_dimension :].copy().view("<i4")[:, 0]

    def _own(self, state: FeatureState | UserState) -> UserState | None:
        """What a user learned of the items that rows stand for now; what they learned of earlier items is dropped."""
        if isinstance(state, FeatureState):
            return None
        catalogue = self.catalogue
        if state.catalogue != catalogue.version:
            state.forget(catalogue.entries > state.catalogue)
            state.catalogue = catalogue.version
        return state

    def _as_entered(self, model: SparseModel) -> FeatureState:
        """The state of a model whose rows are those of the catalogue as it is now."""
        return FeatureState(model, self.catalogue.entries.copy(), np.zeros(self.arms, dtype=np.bool_))

    def _begin_row(self, state: FeatureState, row: int, released: bool) -> None:
        """Set a new item's row in a model: the mean of the known items on offer, and their spread.

        Where the model knows no item, the row is what a user starts from before any release. An item that was known
        before the start has its row in every model already. Before any release, only such items are known.

        Args:
            state: the model's state; its row, ``entries`` and ``late`` are changed.
            row: the row that an item entered.
            released: whether the model was made from released windows.
        """
        catalogue = self.catalogue
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
            begin(state.model, row, neighbours(state.model, others))
        else:
            table = state.model.table
            table[:, [row, self.arms + row]] = self._cold.table[:, [row, self.arms + row]]
        state.entries[row], state.late[row] = catalogue.entries[row], bool(others.size)

    def _lean_rows(self, state: FeatureState, before: SharedModel[FeatureState]) -> None:
        """Mix into rows that the earlier model began from other items what the newer model knows of those items.

        Before the first released model nothing was known that a row could begin from, unless items were known before
        the start. Rows of a model whose priors items' features shape are left as they are.
        """
        catalogue = self.catalogue
        if not before.version and not catalogue.rules.known:
            return
        state.late[:] = before.state.late & (before.state.entries == state.entries)
        others = np.flatnonzero(catalogue.offered & (state.entries == catalogue.entries) & ~state.late)
        shaped = shapes_priors(catalogue.rules.features, state.entries)
        for row in np.flatnonzero(state.late & catalogue.offered) if others.size and not shaped else ():
            lean(state.model, self._layout, int(row), others)

    def _read(self, content: bytes) -> SparseContext:
        """Sparse contexts of rows that lie one behind the other."""
        return SparseContext(*self._rows.read(content))


def _by_model(models: Sequence[SparseModel], rows: Iterable[int]) -> Iterable[tuple[SparseModel, list[int]]]:
    """Some rows, by their models."""
    groups: dict[int, list[int]] = {}
    for row in rows:
        groups.setdefault(id(models[row]), []).append(row)
    return [(models[some[0]], some) for some in groups.values()]


def _dump_model(state: FeatureState) -> bytes:
    table, entries, late = state.model.table, state.entries, state.late
    dated = entries.astype("<i4").tobytes() + late.tobytes()
    return _MODEL.pack(*table.shape, state.model.reward_variance) + table.astype("<f4").tobytes() + dated


def _load_model(dumped: bytes) -> FeatureState:
    rows, columns, reward_variance = _MODEL.unpack_from(dumped)
    table = np.frombuffer(dumped, "<f4", rows * columns, _MODEL.size).reshape(rows, columns).astype(np.float32)
    model, arms, place = SparseModel(table, reward_variance), columns // 2, _MODEL.size + 4 * table.size
    entries = np.frombuffer(dumped, "<i4", arms, place).astype(np.int32)
    return FeatureState(model, entries, np.frombuffer(dumped, np.bool_, offset=place + 4 * arms).copy())
