"""What an `EdgeAgent` chooses and learns with: a kernel, the shared models by line, and the encoder.

One object serves all agents of a process; a user's own knowledge is a state that the kernel is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.contribution.encoder import Encoder
from hushstream.learners.linucb import LinUCB, LinUCBModel, LinUCBState
from hushstream.learners.onehot import OneHotModel, OneHotState, OneHotUCB
from hushstream.schemas.errors import HushstreamError

LearnerState: TypeAlias = LinUCBState | OneHotState

COLD = "cold"
"""The line without a shared model."""


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A published model, ready to score with: its version (0: nothing learned yet) and its state."""

    version: int
    state: LearnerState


class SharedPolicy(Protocol):
    """The kernel of a deployment together with its shared models.

    Attributes:
        arms: K.
        context_dimension: d, entries of a context as it comes.
    """

    arms: int
    context_dimension: int

    def shared(self, line: str) -> SharedModel:
        """The newest model of a line."""

    def adopt(self, line: str, version: int, gram: NDArray[np.float64], moment: NDArray[np.float64]) -> None:
        """Make a published model the newest of its line."""

    def own(self, state: LearnerState) -> LearnerState:
        """A user's state that starts from a shared one (copied when it first learns)."""

    def choose(
        self,
        state: LearnerState,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        """Arm and number of tied arms; ``pick(n)`` settles a tie among n arms."""

    def score_gap(self, state: LearnerState, context: NDArray[np.float32], arm: int, other: int) -> float:
        """How far apart the scores of two arms are."""

    def learn(self, state: LearnerState, context: NDArray[np.float32], arm: int, reward: float) -> None:
        """Fold one interaction into a user's own state."""

    def encode(self, context: NDArray[np.float32]) -> int:
        """The code of a context (d,)."""

    def load(self, dumped: bytes) -> LearnerState:
        """The state that a state's ``dump`` wrote."""

    def reinstate(self, line: str, version: int, dumped: bytes) -> None:
        """Make a dumped shared state the newest model of its line."""


class LinUCBPolicy:
    """LinUCB on contexts as they are; the server learned on centroids (or, for public data, on raw contexts)."""

    def __init__(self, encoder: Encoder, arms: int, dimension: int, alpha: float, ridge: float, lines: tuple[str, ...]):
        """Start every line cold."""
        self.arms = arms
        self.context_dimension = encoder.dimension
        self._encoder = encoder
        self._kernel = LinUCB(arms, dimension, alpha)
        cold = SharedModel(0, LinUCBModel.cold(arms, dimension, ridge).state())
        self._models: dict[str, SharedModel] = dict.fromkeys((COLD, *lines), cold)

    def shared(self, line: str) -> SharedModel:
        """See `SharedPolicy.shared`."""
        return self._models[line]

    def adopt(self, line: str, version: int, gram: NDArray[np.float64], moment: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`."""
        _require_line(line, self._models)
        self._models[line] = SharedModel(version, LinUCBModel(gram, moment).state())

    def own(self, state: LearnerState) -> LearnerState:
        """See `SharedPolicy.own`."""
        return state.fork()

    def choose(
        self,
        state: LearnerState,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        """See `SharedPolicy.choose`."""
        return self._kernel.choose(_linucb(state), context, pick, eligible)

    def score_gap(self, state: LearnerState, context: NDArray[np.float32], arm: int, other: int) -> float:
        """See `SharedPolicy.score_gap`."""
        scores = self._kernel.scores(_linucb(state), context)
        return abs(float(scores[arm]) - float(scores[other]))

    def learn(self, state: LearnerState, context: NDArray[np.float32], arm: int, reward: float) -> None:
        """See `SharedPolicy.learn`."""
        self._kernel.learn(_linucb(state), context, arm, reward)

    def encode(self, context: NDArray[np.float32]) -> int:
        """See `SharedPolicy.encode`."""
        return self._encoder.encode_one(context)

    def load(self, dumped: bytes) -> LearnerState:
        """See `SharedPolicy.load`."""
        return LinUCBState.load(dumped)

    def reinstate(self, line: str, version: int, dumped: bytes) -> None:
        """See `SharedPolicy.reinstate`."""
        _require_line(line, self._models)
        self._models[line] = SharedModel(version, LinUCBState.load(dumped).fork())


class OneHotPolicy:
    """LinUCB on one-hot codes: every context is encoded first, and a learner is a table."""

    def __init__(self, encoder: Encoder, arms: int, codes: int, alpha: float, ridge: float, lines: tuple[str, ...]):
        """Start every line cold."""
        self.arms = arms
        self.context_dimension = encoder.dimension
        self._encoder = encoder
        self._alpha = alpha
        self._kernel = OneHotUCB(arms, codes, alpha)
        cold = SharedModel(0, OneHotModel.cold(arms, codes, ridge).state(alpha))
        self._models: dict[str, SharedModel] = dict.fromkeys((COLD, *lines), cold)

    def shared(self, line: str) -> SharedModel:
        """See `SharedPolicy.shared`."""
        return self._models[line]

    def adopt(self, line: str, version: int, gram: NDArray[np.float64], moment: NDArray[np.float64]) -> None:
        """See `SharedPolicy.adopt`; ``gram`` holds the diagonals, (K, k)."""
        _require_line(line, self._models)
        self._models[line] = SharedModel(version, OneHotModel(gram, moment).state(self._alpha))

    def own(self, state: LearnerState) -> LearnerState:
        """See `SharedPolicy.own`."""
        return state.fork()

    def choose(
        self,
        state: LearnerState,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        pick: Callable[[int], int],
    ) -> tuple[int, int]:
        """See `SharedPolicy.choose`."""
        return self._kernel.choose(_onehot(state), self.encode(context), pick, eligible)

    def score_gap(self, state: LearnerState, context: NDArray[np.float32], arm: int, other: int) -> float:
        """See `SharedPolicy.score_gap`."""
        scores = self._kernel.scores(_onehot(state), self.encode(context))
        return abs(float(scores[arm]) - float(scores[other]))

    def learn(self, state: LearnerState, context: NDArray[np.float32], arm: int, reward: float) -> None:
        """See `SharedPolicy.learn`."""
        self._kernel.learn(_onehot(state), self.encode(context), arm, reward)

    def encode(self, context: NDArray[np.float32]) -> int:
        """See `SharedPolicy.encode`."""
        return self._encoder.encode_one(context)

    def load(self, dumped: bytes) -> LearnerState:
        """See `SharedPolicy.load`."""
        return OneHotState.load(dumped)

    def reinstate(self, line: str, version: int, dumped: bytes) -> None:
        """See `SharedPolicy.reinstate`."""
        _require_line(line, self._models)
        self._models[line] = SharedModel(version, OneHotState.load(dumped))


def _linucb(state: LearnerState) -> LinUCBState:
    assert isinstance(state, LinUCBState)
    return state


def _onehot(state: LearnerState) -> OneHotState:
    assert isinstance(state, OneHotState)
    return state


def _require_line(line: str, models: Mapping[str, SharedModel]) -> None:
    if line not in models:
        raise HushstreamError(f"model line: expected one of {sorted(models)}, got {line!r}")
