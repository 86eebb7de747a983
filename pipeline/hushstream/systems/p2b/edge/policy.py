"""What an `EdgeAgent` chooses and learns with: a kernel, the shared models by track, and how slots are encoded.

One policy serves all agents of a process. What a user learned alone is a state, which is passed to the policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.highest import Highest
from hushstream.learners.onehot import OneHotState
from hushstream.systems.p2b.edge.feature_state import FeatureState
from hushstream.systems.p2b.edge.low_rank import UserState
from hushstream.systems.p2b.edge.shared import SharedModel

LearnerState: TypeAlias = UserState | OneHotState | FeatureState

COLD = "cold"
"""The track without a shared model."""

UNSCORED = -1
"""In place of the best arm of a context: `SharedPolicy.highest` must choose."""


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

    def best(self, states: Sequence[Any], contexts: NDArray[Any]) -> Sequence[int]:
        """For each of n states and its context of (n, d), the arm that `highest` chooses, from scores of equal bits.

        It is `UNSCORED` if arms are tied, or if scoring many contexts together saves nothing.
        """

    def scores(self, state: Any, context: NDArray[Any]) -> NDArray[np.floating]:
        """(K,) the score of every arm, which the caller may overwrite; valid until the next call of the policy."""

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
