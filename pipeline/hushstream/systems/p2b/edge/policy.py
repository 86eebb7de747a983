"""The policies with which an `EdgeAgent` chooses and learns: a kernel, the shared models by track, and the encoder.

One policy serves all agents of a process. What a user learned alone is a state, which is passed to the policy.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.errors import LearnerError
from hushstream.learners.linucb import LinUCBModel, LinUCBState
from hushstream.learners.onehot import OneHotModel, OneHotState, OneHotUCB
from hushstream.systems.p2b.contribution.encoder import Encoder
from hushstream.systems.p2b.contribution.slots import Report, pack
from hushstream.systems.p2b.edge.feature_state import FeatureState
from hushstream.systems.p2b.edge.low_rank import OwnUpdates, UserLinUCB, UserState, load_user_state
from hushstream.systems.p2b.edge.shared import SharedModel, SharedModels

LearnerState: TypeAlias = UserState | OneHotState | FeatureState

COLD = "cold"
"""The track without a shared model."""

UNSCORED = -1
"""In place of the best arm of a context: `SharedPolicy.choose` must choose."""

_ROW = struct.Struct("<I")


class SharedPolicy(Protocol):
    """The kernel of a deployment together with its shared models.

    Attributes:
        arms: K.
        context_dimension: d, entries of a context as it comes.
    """

    arms: int
    context_dimension: int

    @property
    def context_type(self) -> type[np.generic]:
        """The type of an entry of a context."""

    def shared(self, track: str) -> SharedModel[Any]:
        """The newest model of a track."""

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """Make a published model the newest of its track; the arrays are those of its `PublishedModel`."""

    def begin(self, track: str) -> tuple[int, Any]:
        """The version of the newest model of a track, and the state of a new user who starts from it."""

    def end(self, track: str, version: int) -> None:
        """Note that a user's own state is deleted; ``version`` is what `begin` gave."""

    def kept(self, context: NDArray[Any]) -> NDArray[Any]:
        """The copy of a context (d,) that a decision keeps until it is learned from."""

    def choose(
        self,
        state: Any,
        context: NDArray[Any],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        """Arm and number of tied arms; ``pick(n)`` settles a tie among n arms."""

    def best(self, states: Sequence[Any], contexts: NDArray[Any]) -> Sequence[int]:
        """For each of n states and its context of (n, d), the arm that `choose` would give, from scores of equal bits.

        It is `UNSCORED` if arms are tied, or if scoring many contexts together saves nothing.
        """

    def scores(self, state: Any, context: NDArray[Any]) -> NDArray[np.floating]:
        """(K,) the score of every arm, by which `choose` chooses; valid until the next call of the policy."""

    def learned(self, state: Any, context: NDArray[Any], arm: int, reward: float) -> Any:
        """A user's own state with one interaction folded in; it may be the same object, which has changed."""

    def prepare(self, contexts: NDArray[Any]) -> None:
        """Prepare for contexts (n, d) that are scored next: does their common work at once, and changes no result."""

    def content(self, context: NDArray[Any], arm: int, level: int) -> bytes:
        """The content of a slot that holds this interaction."""

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


class LinUCBPolicy(_OnCodes):
    """LinUCB on contexts as they are; shared models were learned on centroids (of public data, on raw contexts)."""

    def __init__(
        self, encoder: Encoder, arms: int, dimension: int, alpha: float, ridge: float, tracks: tuple[str, ...]
    ):
        """Start every track cold."""
        self.arms = arms
        self.context_dimension = encoder.dimension
        self._encoder = encoder
        self._kernel = UserLinUCB(arms, dimension, alpha)
        cold = LinUCBModel.cold(arms, dimension, ridge).state()
        self._models: SharedModels[LinUCBState] = SharedModels((COLD, *tracks), cold)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`: gram (K, D, D) and moment (K, D)."""
        gram, moment = arrays
        self._models.adopt(track, version, LinUCBModel(gram, moment).state())

    def begin(self, track: str) -> tuple[int, UserState]:
        model = self._models.retain(track)
        return model.version, OwnUpdates.none(model.state)

    def choose(
        self,
        state: UserState,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        return self._kernel.choose(state, context, pick, eligible)

    def best(self, states: Sequence[UserState], contexts: NDArray[np.float32]) -> Sequence[int]:
        return self._kernel.best(states, contexts)

    def scores(self, state: UserState, context: NDArray[np.float32]) -> NDArray[np.floating]:
        return self._kernel.scores(state, context)

    def learned(self, state: UserState, context: NDArray[np.float32], arm: int, reward: float) -> UserState:
        return self._kernel.learned(state, context, arm, reward)

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
        cold = OneHotModel.cold(arms, codes, ridge).state(alpha)
        self._models: SharedModels[OneHotState] = SharedModels((COLD, *tracks), cold)

    def adopt(self, track: str, version: int, *arrays: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`: gram holds the diagonals, (K, k), moment is (K, k)."""
        gram, moment = arrays
        self._models.adopt(track, version, OneHotModel(gram, moment).state(self._alpha))

    def begin(self, track: str) -> tuple[int, OneHotState]:
        model = self._models.retain(track)
        return model.version, model.state.fork()

    def choose(
        self,
        state: OneHotState,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        return self._kernel.choose(state, self.encode(context), pick, eligible)

    def best(self, states: Sequence[OneHotState], contexts: NDArray[np.float32]) -> Sequence[int]:
        """See `SharedPolicy.best`: codes are found one by one, and a score is read from a table."""
        return [UNSCORED] * len(states)

    def scores(self, state: OneHotState, context: NDArray[np.float32]) -> NDArray[np.floating]:
        return self._kernel.scores(state, self.encode(context))

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
