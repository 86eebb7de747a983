"""LinUCB on one-hot codes: the gram matrix is diagonal, so a learner is a table.

With the code ``c`` of k as the one-hot context, LinUCB (Li et al. 2010) reduces to one cell per (code, arm):
``score = moment/gram + alpha/sqrt(gram)``. The score of every cell is cached and only the cell that learns
is computed anew. A user's state shares the model's table and copies a code's row when it first learns there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import Highest, LearnerError

Float64 = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]

_HEADER = struct.Struct("<4sBxxxIId")
_MAGIC = b"HOHC"
_VERSION = 1
_GRAM, _MOMENT, _SCORE = 0, 1, 2


class OneHotState:
    """The state of one user's learner: rows of (gram, moment, score) by code, shared until learned in."""

    __slots__ = ("alpha", "own", "table")

    def __init__(self, table: Float64, alpha: float) -> None:
        self.table = table
        """(k, 3, K): gram, moment and score of every arm, by code; never written."""
        self.alpha = alpha
        """The width's factor that the cached scores hold."""
        self.own: dict[int, Float64] = {}
        """The rows, (3, K), of codes in which this user has learned."""

    def row(self, code: int) -> Float64:
        """Gram, moment and score of every arm under a code, (3, K)."""
        own = self.own.get(code)
        return self.table[code] if own is None else own

    def fork(self) -> OneHotState:
        """A second state with the same content; rows are copied before either writes."""
        forked = OneHotState(self.table, self.alpha)
        forked.own = {code: row.copy() for code, row in self.own.items()}
        return forked

    def dense(self) -> Float64:
        """The whole table, (k, 3, K), own rows included; a copy."""
        table = self.table.copy()
        for code, row in self.own.items():
            table[code] = row
        return table

    def dump(self) -> bytes:
        """The state as bytes: header (magic, version, k, K, alpha), then little-endian float64 sums."""
        codes, _, arms = self.table.shape
        sums = self.dense()[:, :_SCORE].astype("<f8", copy=False)
        return _HEADER.pack(_MAGIC, _VERSION, codes, arms, self.alpha) + sums.tobytes()

    @classmethod
    def load(cls, dumped: bytes) -> OneHotState:
        """The state that `dump` wrote.

        Raises:
            LearnerError: not such bytes, or of another version or length.
        """
        if len(dumped) < _HEADER.size:
            raise LearnerError(f"expected at least {_HEADER.size} bytes of a one-hot state, got {len(dumped)}")
        magic, version, codes, arms, alpha = _HEADER.unpack_from(dumped)
        if magic != _MAGIC or version != _VERSION:
            raise LearnerError(f"expected a one-hot state of version {_VERSION}, got something else")
        expected = _HEADER.size + codes * 2 * arms * 8
        if len(dumped) != expected or codes < 1 or arms < 1:
            raise LearnerError(f"expected {expected} bytes of a one-hot state, got {len(dumped)}")
        sums = np.frombuffer(dumped, dtype="<f8", offset=_HEADER.size).reshape(codes, 2, arms)
        return cls(_with_scores(sums[:, _GRAM], sums[:, _MOMENT], alpha), alpha)


@dataclass(frozen=True, slots=True, eq=False)
class OneHotModel:
    """The published sums of all arms.

    Attributes:
        gram: (K, k) float64, the diagonals, the ridge included, all positive.
        moment: (K, k) float64.
    """

    gram: Float64
    moment: Float64

    def __post_init__(self) -> None:
        """Refuse shapes and values that give no scores."""
        if self.gram.ndim != 2 or self.gram.shape != self.moment.shape:
            raise LearnerError(
                f"expected gram and moment of shape (K, k), got {self.gram.shape} and {self.moment.shape}"
            )
        if not (np.isfinite(self.gram).all() and np.isfinite(self.moment).all() and (self.gram > 0).all()):
            raise LearnerError("expected finite sums and a positive gram, got others")

    @classmethod
    def cold(cls, arms: int, codes: int, ridge: float = 1.0) -> OneHotModel:
        """The model of a learner that has seen nothing."""
        return cls(np.full((arms, codes), ridge), np.zeros((arms, codes)))

    def state(self, alpha: float = 1.0) -> OneHotState:
        """A state to start users from (`OneHotState.fork` gives each their own)."""
        return OneHotState(_with_scores(self.gram.T, self.moment.T, alpha), alpha)


class OneHotUCB:
    """The kernels on one-hot codes; same calls as `hushstream.learners.linucb.LinUCB`, code for context.

    Holds scratch memory: one kernel serves one thread.
    """

    def __init__(self, arms: int, codes: int, alpha: float = 1.0) -> None:
        if arms < 1 or codes < 1:
            raise LearnerError(f"expected at least one arm and one code, got {arms} and {codes}")
        if not 0.0 <= alpha < np.inf:
            raise LearnerError(f"expected a finite alpha of at least 0, got {alpha}")
        self.arms = arms
        self.codes = codes
        self.alpha = alpha
        self.highest = Highest(arms)

    def scores(self, state: OneHotState, code: int) -> Float64:
        """The upper confidence bound of every arm, (K,); a view, not to be written."""
        if state.alpha != self.alpha:
            raise LearnerError(f"expected a state with alpha {self.alpha}, got {state.alpha}")
        scores: Float64 = state.row(code)[_SCORE]
        return scores

    def choose(
        self,
        state: OneHotState,
        code: int,
        tie: int | Callable[[int], int] = 0,
        eligible: Bools | None = None,
    ) -> tuple[int, int]:
        """The arm with the highest score, and how many arms share it (see `LinUCB.choose`).

        Raises:
            NoEligibleArm: ``eligible`` allows none.
        """
        scores = self.scores(state, code)
        return self.highest.choose(scores if eligible is None else scores.copy(), tie, eligible)

    def learn(self, state: OneHotState, code: int, arm: int, reward: float) -> None:
        """Fold one interaction into the state."""
        row = state.own.get(code)
        if row is None:
            row = state.own[code] = state.table[code].copy()
        gram = row.item(_GRAM, arm) + 1.0
        moment = row.item(_MOMENT, arm) + reward
        row[_GRAM, arm] = gram
        row[_MOMENT, arm] = moment
        row[_SCORE, arm] = moment / gram + state.alpha / sqrt(gram)


def _with_scores(gram: Float64, moment: Float64, alpha: float) -> Float64:
    """(k, 3, K) from two (k, K) arrays."""
    return np.ascontiguousarray(np.stack([gram, moment, moment / gram + alpha / np.sqrt(gram)], axis=1))
