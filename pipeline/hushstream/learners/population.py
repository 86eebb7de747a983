"""Many users in lockstep, each with an own learner that starts from one shared model; for experiments.

A user with t interactions differs from the shared model by t rank-one steps. With Sherman-Morrison in the form of
`hushstream.learners.linucb`, after the steps ``s`` of a user on an arm its values are

    A^-1 = A_0^-1 - sum u_s u_s'          theta = theta_0 - sum g_s u_s

so a user's whole state is ``u_s`` (D floats), ``g_s`` and the arm of each step. A score is the shared model's, with
``(u_s'x)^2`` taken from the squared width and ``g_s u_s'x`` from the mean of the arm of each step. The shared model is
a normal prior of each arm: of LinUCB with covariance A_0^-1 and rewards of variance 1, or diagonal for sparse contexts
(`learners.sparse`). Scores agree with the per-event kernels up to rounding (a test checks this).

A round t costs O(K D^2 + t D) a user, of which the first part is a product for all users, and stores D + 3 numbers.
Stacked inverses (U, K, D, D) would cost K D^2 numbers read and written a user and round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import LearnerError
from hushstream.learners.linucb import Float32, Float64, LinUCBState

Int64 = npt.NDArray[np.int64]

_CACHE_FLOATS = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class NormalPrior:
    """Independent normal coefficients of arms, for contexts of P entries.

    Arms with equal coefficients are of one kind: it is scored once, so that their ties are exact.

    Attributes:
        means: (kinds, P).
        covariance: (kinds, P), diagonals; or (kinds, P, P).
        kinds: (K,) the kind of each arm.
        reward_variance: g.
    """

    means: Float32
    covariance: Float32
    kinds: Int64
    reward_variance: float

    @classmethod
    def of(cls, means: Float64 | Float32, covariance: Float64 | Float32, reward_variance: float = 1.0) -> NormalPrior:
        """From the means (K, P) and the covariance (K, P) or (K, P, P) of each arm.

        Raises:
            LearnerError: shapes that do not fit.
        """
        full = (*means.shape, means.shape[1]) if means.ndim == 2 else ()
        if means.ndim != 2 or covariance.shape not in (means.shape, full):
            raise LearnerError(f"expected means (K, P) and a covariance to fit, got {means.shape}, {covariance.shape}")
        rows = np.concatenate([means, covariance.reshape(len(means), -1)], axis=1).astype(np.float32)
        distinct, kinds = np.unique(rows, axis=0, return_inverse=True)
        wide = means.shape[1]
        return cls(distinct[:, :wide], distinct[:, wide:].reshape(-1, *covariance.shape[1:]), kinds, reward_variance)

    @classmethod
    def of_state(cls, state: LinUCBState) -> NormalPrior:
        """The prior of LinUCB's users who start from a state."""
        return cls.of(state.theta, state.inverse)

    def scored(self, contexts: Float32) -> tuple[Float32, Float32]:
        """Means x'm and variances x'Cx of n contexts (n, P), by arm: (n, K) each."""
        if self.covariance.ndim == 2:
            squares = np.square(contexts) @ self.covariance.T
        else:
            squares = np.stack([((contexts @ one) * contexts).sum(axis=1) for one in self.covariance], axis=1)
        return (contexts @ self.means.T)[:, self.kinds], squares[:, self.kinds]

    def spread(self, contexts: Float32, arms: Int64) -> Float32:
        """(n, P) C_a x of each context with its arm."""
        kinds = self.kinds[arms]
        if self.covariance.ndim == 2:
            return np.asarray(self.covariance[kinds] * contexts)
        found = np.empty_like(contexts)
        for kind in np.unique(kinds):
            rows = kinds == kind
            found[rows] = contexts[rows] @ self.covariance[kind]
        return found


class Population:
    """Users who all take one step a round, with the per-event kernels' rule for ties."""

    def __init__(self, prior: NormalPrior, users: int, rounds: int, alpha: float = 1.0) -> None:
        """Start everyone from a shared prior.

        Args:
            prior: what all users begin with.
            users: U.
            rounds: T, the most interactions that a user will learn from; memory is U * T * (4 P + 12) bytes.
            alpha: the width's factor.
        """
        if users < 1 or rounds < 1:
            raise LearnerError(f"expected at least one user and round, got {users} and {rounds}")
        self.users = users
        self.rounds = rounds
        self.learned = 0
        """Rounds learned so far."""
        kinds, self.dimension = prior.means.shape
        self.arms = len(prior.kinds)
        self._prior, self._alpha = prior, np.float32(alpha)
        self._steps = np.empty((users, rounds, self.dimension), dtype=np.float32)
        self._gains = np.empty((users, rounds), dtype=np.float32)
        self._arms = np.empty((users, rounds), dtype=np.int64)
        self._chunk = max(64, _CACHE_FLOATS // (kinds * (self.dimension + 1) + 3 * self.arms))

    def choose(self, contexts: Float32, ties: Int64) -> tuple[Int64, Int64]:
        """Every user's best arm, and how many arms tied for it.

        Args:
            contexts: (U, P) float32, one for each user.
            ties: (U,) uniform draws of at least 0; of n tied arms number ``ties mod n`` is taken.

        Returns:
            Arms and counts of tied arms, (U,) int64 each.
        """
        scores = self.scores(contexts)
        best = scores == scores.max(axis=1, keepdims=True)
        counts = np.count_nonzero(best, axis=1)
        arms = best.argmax(axis=1)
        tied = np.flatnonzero(counts > 1)
        if len(tied):
            ranks = best[tied].cumsum(axis=1)
            arms[tied] = (ranks > (ties[tied] % counts[tied])[:, None]).argmax(axis=1)
        return arms, counts

    def scores(self, contexts: Float32) -> Float32:
        """(U, K) the score of every arm in the users' contexts (U, P)."""
        self._require(contexts)
        return np.concatenate([self._scores(contexts[part], part) for part in self._parts()])

    def learn(self, contexts: Float32, arms: Int64, rewards: Float64) -> None:
        """Fold one interaction of every user into their learner.

        Args:
            contexts: (U, P) float32.
            arms: (U,) integers in [0, K).
            rewards: (U,) floats.

        Raises:
            LearnerError: more rounds than were reserved.
        """
        self._require(contexts)
        if self.learned == self.rounds:
            raise LearnerError(f"expected at most {self.rounds} rounds, got one more")
        self._arms[:, self.learned] = arms
        for part in self._parts():
            self._learn(part, contexts[part], arms[part], rewards[part].astype(np.float32))
        self.learned += 1

    def _parts(self) -> list[slice]:
        """Chunks of users that fit the cache."""
        return [slice(low, min(low + self._chunk, self.users)) for low in range(0, self.users, self._chunk)]

    def _require(self, contexts: Float32) -> None:
        if contexts.shape != (self.users, self.dimension) or contexts.dtype != np.float32:
            raise LearnerError(
                f"expected float32 contexts of shape ({self.users}, {self.dimension}),"
                f" got {contexts.dtype} {contexts.shape}"
            )

    def _along(self, contexts: Float32, part: slice) -> Float32:
        """``u_s'x`` of every step so far, (n, t)."""
        # Not `matmul`: OpenBLAS's small kernels may raise the flag of an invalid value from lanes that they never use.
        along: Float32 = np.einsum("utd,ud->ut", self._steps[part, : self.learned], contexts)
        return along

    def _gathered(self, cells: Int64, values: Float32) -> Float32:
        """Sums by user and arm, (n, K); an arm without a step gets an exact zero, so its ties hold."""
        sums = np.bincount(cells.ravel(), weights=values.ravel(), minlength=self.arms * len(cells))
        return sums.reshape(len(cells), self.arms).astype(np.float32)

    def _scores(self, contexts: Float32, part: slice) -> Float32:
        means, squares = self._prior.scored(contexts)
        along = self._along(contexts, part)
        if along.size:
            cells = self._arms[part, : self.learned] + self.arms * np.arange(len(contexts))[:, None]
            means -= self._gathered(cells, along * self._gains[part, : self.learned])
            squares -= self._gathered(cells, along * along)
        return np.asarray(means + self._alpha * np.sqrt(np.maximum(squares, 0.0)), dtype=np.float32)

    def _learn(self, part: slice, contexts: Float32, arms: Int64, rewards: Float32) -> None:
        now, prior = self.learned, self._prior
        direction = prior.spread(contexts, arms)
        mean = np.vecdot(prior.means[prior.kinds[arms]], contexts)
        along = self._along(contexts, part)
        if along.size:
            along[self._arms[part, :now] != arms[:, None]] = 0.0
            mean -= np.vecdot(self._gains[part, :now], along)
            direction -= np.matmul(along[:, None, :], self._steps[part, :now])[:, 0]
        variance = np.float32(prior.reward_variance) + np.maximum(np.vecdot(direction, contexts), 0.0)
        shrink = 1.0 / np.sqrt(variance)
        np.multiply(direction, shrink[:, None], out=self._steps[part, now])
        np.multiply(mean - rewards, shrink, out=self._gains[part, now])
