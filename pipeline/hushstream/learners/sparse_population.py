"""Many users in lockstep who start from one normal prior, for experiments: `learners.sparse` for all of them at once.

The prior of an arm may be diagonal (a private model, or a cold start) or full (ridge regression on raw interactions).
Scores agree with the per-event kernel up to rounding (a test checks this).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.errors import LearnerError

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


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
