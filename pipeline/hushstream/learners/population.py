"""Many users in lockstep, each with an own learner that starts from one shared model; for experiments.

A user with t interactions differs from the shared model by t rank-one steps. With Sherman-Morrison in the form of
`hushstream.learners.linucb`, after the steps ``s`` of a user on an arm its values are

    A^-1 = A_0^-1 - sum u_s u_s'          theta = theta_0 - sum g_s u_s

so a user's whole state is ``u_s`` (D floats), ``g_s`` and the arm of each step. A score is the shared model's (one
matrix product for a chunk of users that fits the cache), with ``(u_s'x)^2`` taken from the squared width and ``g_s
u_s'x`` from the mean of the arm of each step.

A round t costs O(K D^2 + t D) a user, of which the first part is one product for all users, and stores
D + 3 numbers. Stacked inverses (U, K, D, D) would cost K D^2 numbers read and written a user and round.
Measured on one core in one run, against stacked inverses stepped in lockstep: 0.5 s against 0.8 s for
U=100,000, T=10, K=10, d=10; 0.6 s against 1.0 s for U=20,000, T=20, K=20, d=20; the same at T=100; 4.6 s
against 1.9 s for U=3,000, T=300, K=40, d=10, the longest life in the paper.

*Sparse contexts.* Many users in lockstep who start from one normal prior, for experiments: `learners.sparse` for all of
them at once.

The prior of an arm may be diagonal (a private model, or a cold start) or full (ridge regression on raw interactions).
Scores agree with the per-event kernel up to rounding (a test checks this).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import LearnerError
from hushstream.learners.linucb import Float32, Float64, LinUCBState

Int64 = npt.NDArray[np.int64]

_CACHE_FLOATS = 1 << 18


class Population:
    """``users`` learners of LinUCB that all take one step a round.

    Agrees with the per-event kernels to float32's rounding, with the same rule for ties.
    """

    def __init__(self, start: LinUCBState, users: int, rounds: int, alpha: float = 1.0) -> None:
        """Start everyone from a shared state.

        Args:
            start: the model that all users begin with; never written.
            users: U.
            rounds: T, the most interactions that a user will learn from; memory is U * T * (4 D + 12) bytes.
            alpha: the width's factor.
        """
        if users < 1 or rounds < 1:
            raise LearnerError(f"expected at least one user and round, got {users} and {rounds}")
        self.users = users
        self.rounds = rounds
        self.learned = 0
        """Rounds learned so far."""
        arms, dimension, _ = start.packed.shape
        self.arms, self.dimension = arms, dimension
        self._alpha = np.float32(alpha)
        # Arms with equal models (all of them, cold) are scored once, which also keeps their ties exact.
        distinct, self._kind = np.unique(start.packed.reshape(arms, -1), axis=0, return_inverse=True)
        self._kinds: Float32 = distinct.reshape(-1, dimension, dimension + 1).transpose(0, 2, 1).copy()
        self._steps = np.empty((users, rounds, dimension), dtype=np.float32)
        self._gains = np.empty((users, rounds), dtype=np.float32)
        self._arms = np.empty((users, rounds), dtype=np.int64)
        self._chunk = max(64, _CACHE_FLOATS // (len(distinct) * (dimension + 1) + 3 * arms))

    def choose(self, contexts: Float32, ties: Int64) -> tuple[Int64, Int64]:
        """Every user's best arm, and how many arms tied for it.

        Args:
            contexts: (U, D) float32, one for each user.
            ties: (U,) uniform draws of at least 0; of n tied arms number ``ties mod n`` is taken.

        Returns:
            Arms and counts of tied arms, (U,) int64 each.
        """
        self._require(contexts)
        arms = np.empty(self.users, dtype=np.int64)
        counts = np.empty(self.users, dtype=np.int64)
        for low in range(0, self.users, self._chunk):
            part = slice(low, min(low + self._chunk, self.users))
            arms[part], counts[part] = _best_arms(self._scores(contexts[part], part), ties[part])
        return arms, counts

    def learn(self, contexts: Float32, arms: Int64, rewards: Float64) -> None:
        """Fold one interaction of every user into their learner.

        Args:
            contexts: (U, D) float32.
            arms: (U,) integers in [0, K).
            rewards: (U,) floats.

        Raises:
            LearnerError: more rounds than were reserved.
        """
        self._require(contexts)
        if self.learned == self.rounds:
            raise LearnerError(f"expected at most {self.rounds} rounds, got one more")
        now = self.learned
        self._arms[:, now] = arms
        for low in range(0, self.users, self._chunk):
            part = slice(low, min(low + self._chunk, self.users))
            self._learn(now, part, contexts[part], arms[part], rewards[part].astype(np.float32))
        self.learned = now + 1

    def _require(self, contexts: Float32) -> None:
        if contexts.shape != (self.users, self.dimension) or contexts.dtype != np.float32:
            raise LearnerError(
                f"expected float32 contexts of shape ({self.users}, {self.dimension}),"
                f" got {contexts.dtype} {contexts.shape}"
            )

    def _products(self, contexts: Float32) -> Float32:
        """``A_0^-1 x`` and ``theta_0'x`` of each kind of arm, (kinds, D + 1, n)."""
        products: Float32 = np.matmul(self._kinds, np.ascontiguousarray(contexts.T))
        return products

    def _along(self, contexts: Float32, part: slice) -> Float32:
        """``u_s'x`` of every step so far, (n, t)."""
        # Not `matmul`: OpenBLAS's small kernels may raise the flag of an invalid value from lanes that they never use.
        along: Float32 = np.einsum("utd,ud->ut", self._steps[part, : self.learned], contexts)
        return along

    def _gathered(self, cells: Int64, values: Float32) -> Float32:
        """Sums by arm and user, (K, n)."""
        sums = np.bincount(cells.ravel(), weights=values.ravel(), minlength=self.arms * len(cells))
        return sums.reshape(len(cells), self.arms).T.astype(np.float32)

    def _scores(self, contexts: Float32, part: slice) -> Float32:
        products = self._products(contexts)
        means = products[self._kind, self.dimension]
        products = products[:, : self.dimension]
        products *= contexts.T
        squares = products.sum(axis=1)[self._kind]
        along = self._along(contexts, part)
        if along.size:
            # Cells in the order of (user, arm); arms without a step get an exact zero, so their ties hold.
            cells = self._arms[part, : self.learned] + self.arms * np.arange(len(contexts))[:, None]
            means -= self._gathered(cells, along * self._gains[part, : self.learned])
            squares -= self._gathered(cells, along * along)
        np.maximum(squares, 0.0, out=squares)
        np.sqrt(squares, out=squares)
        squares *= self._alpha
        means += squares
        return means

    def _learn(self, now: int, part: slice, contexts: Float32, arms: Int64, rewards: Float32) -> None:
        products = self._products(contexts)
        mine = products[self._kind[arms], :, np.arange(len(contexts))]
        direction, mean = mine[:, : self.dimension], mine[:, self.dimension]
        along = self._along(contexts, part)
        if along.size:
            along[self._arms[part, :now] != arms[:, None]] = 0.0
            mean -= np.vecdot(self._gains[part, :now], along)
            direction -= np.matmul(along[:, None, :], self._steps[part, :now])[:, 0]
        shrink = 1.0 / np.sqrt(1.0 + np.maximum(np.vecdot(direction, contexts), 0.0))
        np.multiply(direction, shrink[:, None], out=self._steps[part, now])
        np.multiply(mean - rewards, shrink, out=self._gains[part, now])


def _best_arms(scores: Float32, ties: Int64) -> tuple[Int64, Int64]:
    """The best arm of each column of (K, n) scores, ties by number."""
    best = scores == scores.max(axis=0)
    counts = np.count_nonzero(best, axis=0)
    arms = best.argmax(axis=0)
    tied = np.flatnonzero(counts > 1)
    if len(tied):
        ranks = best[:, tied].cumsum(axis=0)
        arms[tied] = (ranks > ties[tied] % counts[tied]).argmax(axis=0)
    return arms, counts


@dataclass(frozen=True, slots=True, eq=False)
class NormalPrior:
    """Independent normal coefficients of arms, for contexts of P entries.

    Attributes:
        means: (K, P).
        covariance: (K, P), diagonals; or (K, P, P).
        reward_variance: g.
    """

    means: Float32
    covariance: Float32
    reward_variance: float

    @classmethod
    def of(cls, means: Float64, covariance: Float64, reward_variance: float) -> NormalPrior:
        """From float64 arrays.

        Raises:
            LearnerError: shapes that do not fit.
        """
        full = (*means.shape, means.shape[1]) if means.ndim == 2 else ()
        if means.ndim != 2 or covariance.shape not in (means.shape, full):
            raise LearnerError(f"expected means (K, P) and a covariance to fit, got {means.shape}, {covariance.shape}")
        return cls(means.astype(np.float32), covariance.astype(np.float32), reward_variance)

    def widths(self, contexts: Float32) -> Float32:
        """(n, K) variances x'Cx of n contexts (n, P)."""
        if self.covariance.ndim == 2:
            return np.asarray(np.square(contexts) @ self.covariance.T)
        return np.stack([((contexts @ one) * contexts).sum(axis=1) for one in self.covariance], axis=1)

    def spread(self, contexts: Float32, arms: Int64) -> Float32:
        """(n, P) C_a x of each context with its arm."""
        if self.covariance.ndim == 2:
            return np.asarray(self.covariance[arms] * contexts)
        found = np.empty_like(contexts)
        for arm in np.unique(arms):
            rows = arms == arm
            found[rows] = contexts[rows] @ self.covariance[arm]
        return found


class SparsePopulation:
    """n users with their own steps. In each round all users choose, then all learn, up to a number of rounds."""

    def __init__(self, prior: NormalPrior, users: int, rounds: int) -> None:
        self._prior = prior
        self._vectors = np.empty((users, rounds, prior.means.shape[1]), dtype=np.float32)
        self._gains = np.empty((users, rounds), dtype=np.float32)
        self._arms = np.empty((users, rounds), dtype=np.int64)
        self._everyone = np.arange(users)
        self._count = 0

    def scores(self, contexts: Float32) -> Float32:
        """(n, K) the score of every arm in the users' contexts (n, P)."""
        means = contexts @ self._prior.means.T
        widths = self._prior.widths(contexts)
        along = self._along(contexts)
        for step in range(self._count):
            place = (self._everyone, self._arms[:, step])
            means[place] += along[:, step] * self._gains[:, step]
            widths[place] -= along[:, step] ** 2
        return np.asarray(means + np.sqrt(np.maximum(widths, 0.0)))

    def learn(self, contexts: Float32, arms: Int64, rewards: Float64) -> None:
        """Fold one interaction of every user in.

        Raises:
            LearnerError: more rounds than there is room for.
        """
        if self._count == self._gains.shape[1]:
            raise LearnerError(f"expected at most {self._count} rounds, got another one")
        steps = self._count
        same = (self._arms[:, :steps] == arms[:, None]) * self._along(contexts)
        vectors = self._prior.spread(contexts, arms)
        vectors -= np.matmul(same[:, None, :], self._vectors[:, :steps])[:, 0]
        means = (self._prior.means[arms] * contexts).sum(axis=1) + (same * self._gains[:, :steps]).sum(axis=1)
        variance = self._prior.reward_variance + np.maximum((vectors * contexts).sum(axis=1), 0.0)
        shrink = 1.0 / np.sqrt(variance)
        self._vectors[:, steps] = vectors * shrink[:, None]
        self._gains[:, steps] = (rewards - means) * shrink
        self._arms[:, steps] = arms
        self._count += 1

    def _along(self, contexts: Float32) -> Float32:
        """(n, steps) u'x of each of a user's steps."""
        return np.asarray(np.matmul(self._vectors[:, : self._count], contexts[:, :, None])[:, :, 0])
