"""CoLin in its textbook form, which the product's fast one must equal."""

from __future__ import annotations

import numpy as np

from hushstream.systems.colin.relation import Float64, Relation


class TextbookCollaborative:
    """Wang et al., DP-CoLin, Algorithm 1, lines 2 to 9, with A and b in float64.

    Attributes:
        gram: A, (dN, dN).
        target: b, (dN,), of exact or released rewards.
    """

    def __init__(self, relation: Relation, dimension: int, ridge: float) -> None:
        """Begin before the first row (line 2)."""
        self.relation = relation
        self.dimension = dimension
        self.gram: Float64 = ridge * np.eye(relation.users * dimension)
        self.target: Float64 = np.zeros(relation.users * dimension)

    def project(self, user: int, features: Float64) -> Float64:
        """Features of shape (..., d) as (..., dN): ``w_u (x) x`` (line 4)."""
        projected: Float64 = np.kron(self.relation.matrix[user], features)
        return projected

    def observe(self, user: int, features: Float64) -> None:
        """Add (d,) features that a user was shown to A (line 7)."""
        projected = self.project(user, features)
        self.gram += np.outer(projected, projected)

    def learn(self, user: int, features: Float64, reward: float) -> None:
        """Do what `observe` does, and add the exact reward to b (line 7)."""
        self.observe(user, features)
        self.target += reward * self.project(user, features)

    def set_moment(self, moment: Float64) -> None:
        """Put raw sums by user, (N, d), in place of b; they are projected here."""
        self.target = (self.relation.matrix.T @ moment).ravel()

    def theta(self) -> Float64:
        """The estimate ``A^-1 b``, one row a user, (N, d)."""
        solved: Float64 = np.linalg.solve(self.gram, self.target).astype(np.float64, copy=False)
        return solved.reshape(-1, self.dimension)

    def parameters(self) -> Float64:
        """Score vectors by user, (N, d): ``sum_j w_uj theta_j`` (Equation 2)."""
        return self.relation.matrix @ self.theta()

    def ucb(self, user: int, features: Float64, alpha: float) -> Float64:
        """Upper confidence bounds of (n, d) features (line 5), (n,)."""
        projected = self.project(user, features)
        widths = np.sqrt(np.vecdot(projected, np.linalg.solve(self.gram, projected.T).T))
        bounds: Float64 = projected @ self.theta().ravel() + alpha * widths
        return bounds

    def choose(self, user: int, features: Float64, alpha: float) -> int:
        """The row of (n, d) features with the highest bound, the first of equals."""
        return int(self.ucb(user, features, alpha).argmax())
