"""Computes numbers with independent noise from a counter's releases, and the laws of these numbers.

A `Reading` has numbers about the first leaf, for attacks on it; all other leaves are 0. Digit trees: after b^l leaves
the release is the first leaf plus one node of level l, so each such release is one number. Buffered
Toeplitz: releases r are L (C x + z), so L^-1 r is c, the first column of C, times the leaf, plus fresh noise.

An `Unmixed` has all single draws, for known leaves. Releases are A x + L z with known factors L (`Factorisation`), so
with known content L z is known. Digit trees: each release adds further nodes, and the pseudo-inverse of L gives the
noise of each node as it was drawn. Counters with Gaussian noise: with L L^T = C C^T and C lower triangular, C^-1 L z
has independent entries with the variance of one draw, one for each release: what that release adds to all before it
(its innovation).

Solving in floats has an error of about 1e-16 of the input, so a draw of exactly 0 comes out as a rounding error whose
sign depends on the machine's linear algebra. `hushstream.privacy.audits` tests signs, and the signs of
rounding errors agree for reasons that have nothing to do with noise. So draws are rounded to the whole numbers that
they are (`Unmixed.step`). Innovations are not whole numbers. They are rounded to a grid that is much coarser than any
rounding error. It is so fine that a value is rounded to 0 with probability below 1e-6. Rounding small values to 0,
whatever their sign, leaves the signs of the others balanced.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, NegativeDigitTree, Plan, PureLength
from hushstream.privacy.amounts import epsilon_float
from hushstream.privacy.audits import (
    LAPLACE_STEPS,
    Family,
    Sizes,
    gamma_sizes,
    gaussian_curve,
    gaussian_pair,
    half_normal_sizes,
    laplace_pair,
    lattice_sizes,
    length_pair,
    pure,
)
from hushstream.privacy.mechanisms.gaussian import gaussian_truncation
from hushstream.schemas.errors import HushstreamError

EPSILON = 1.0
DELTA = 1e-6
BUDGET = Concentrated(0.5, DELTA)
STEP = 2
"""Sensitivity of Gaussian and K-norm noise of the audited mechanisms, in steps of the lattice."""


def of_rho(curve: Callable[[float], Callable[[float], float]], delta: float) -> Family:
    """A family with the setting rho; its price is the epsilon that a budget states for rho."""

    def epsilon(rho: float) -> float:
        return epsilon_float(Concentrated(rho, delta).cost(0, gaussian_truncation(1, 1)).epsilon_micro)

    return Family(curve, epsilon, largest=16.0)


LAPLACE_FAMILY = pure(lambda epsilon: laplace_pair(epsilon).power)
GAUSSIAN_FAMILY = of_rho(lambda rho: gaussian_pair(STEP**2 / (2 * rho), STEP).power, DELTA)

_MANY_DRAWS = 32
"""With at least this many draws, one step per shift bounds the curve well, as each draw reveals very little."""

_MOVES = 1_500
"""Curves of vectors with noise over more moves than this take too much memory: bounds below them are given as 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """The numbers that contain the first leaf.

    Attributes:
        times: (n,) for each used release, the number of leaves before it.
        solve: (n, n) float64: computes the numbers from these releases.
        moves: how far a first leaf of 1 moves each number, (n,).
        variances: variance of each number's noise, in units of one draw's, (n,).
        share: the share of the counter's price (epsilon, or rho) that an attacker uses who sees the draws behind the
            numbers.
    """

    times: tuple[int, ...]
    solve: NDArray[np.float64]
    moves: NDArray[np.float64]
    variances: NDArray[np.float64]
    share: float

    @property
    def steps(self) -> int:
        """The number of leaves that an attack feeds."""
        return self.times[-1]

    def linear_score(self, seen: NDArray[np.int64], step: int) -> NDArray[np.float64]:
        """The likelihood ratio of Gaussian numbers, up to a factor.

        Args:
            seen: the releases at ``times``, (n, width, m).
            step: how far the leaf moved each of m coordinates.

        Returns:
            (width,): above 0 where the leaf seems to be in the releases.
        """
        numbers = self._numbers(seen) / step - self.moves[:, None, None] / 2
        return np.asarray(((self.moves / self.variances) @ numbers.sum(axis=2)), dtype=np.float64)

    def clipped_score(self, seen: NDArray[np.int64] | NDArray[np.float64], step: int) -> NDArray[np.float64]:
        """`linear_score` for Laplace noise: exact where a number is one draw."""
        numbers = 2 * np.clip(self._numbers(seen) / step, 0, 1) - 1
        return np.asarray(1 / self.variances @ numbers.sum(axis=2), dtype=np.float64)

    def length_score(self, seen: NDArray[np.int64], step: int) -> NDArray[np.float64]:
        """The likelihood ratio of vectors with K-norm noise whose first entry moved by ``step``, up to a factor."""
        vectors = self._numbers(seen) / step
        there = vectors.copy()
        there[..., 0] -= 1
        return np.asarray((np.linalg.norm(vectors, axis=2) - np.linalg.norm(there, axis=2)).sum(axis=0))

    def _numbers(self, seen: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.tensordot(self.solve, seen.astype(np.float64), axes=1), dtype=np.float64)


def reading_of(plan: Plan, most: int) -> Reading:
    """The numbers that can be computed about one counter.

    Args:
        plan: the counter's plan.
        most: the most leaves that an attack may feed; a longer counter is attacked by its first releases, and the bound
            uses the curve of these.

    Raises:
        HushstreamError: no attack is known for this counter, or no leaf may be fed.
    """
    # Only one vector is used, as its curve is exact; several vectors have no closed form.
    most = min(most, 1 if isinstance(plan.budget, PureLength) else plan.horizon)
    if most < 1:
        raise HushstreamError(f"audit: expected at least one step of a counter, got {most}")
    if isinstance(plan, BufferedToeplitz):
        return _buffered(plan, most)
    if isinstance(plan, NegativeDigitTree):
        times = tuple(plan.base**level for level in range(plan.levels) if plan.base**level <= most)
        ones = np.ones(len(times))
        return Reading(times, np.diag(ones), ones, ones, len(times) / plan.levels)
    raise HushstreamError(f"audit: expected a digit tree or a buffered counter, got {plan.mechanism}")


def _buffered(plan: BufferedToeplitz, most: int) -> Reading:
    factors = plan.factorisation(most)
    moves = factors.right[:, 0].copy()
    share = float(moves @ moves) / float(plan.shape.squared_norm(plan.horizon))
    solve = np.asarray(np.linalg.inv(factors.left), dtype=np.float64)
    return Reading(tuple(range(1, most + 1)), solve, moves, np.ones(most), share)


def reading_family(plan: Plan, reading: Reading, coordinates: int) -> Family:
    """The exact curves of an attacker who sees the draws behind a reading; the leaf moves ``coordinates`` equally.

    Gaussian noise is on a lattice far finer than the move, so its curve is that of two normal distributions.
    """
    if isinstance(plan.budget, Concentrated):
        delta = float(plan.budget.delta)
        return of_rho(lambda rho: gaussian_curve(math.sqrt(2 * rho * reading.share)), delta)
    if isinstance(plan.budget, PureLength) and plan.dimension > 1:
        vector = partial(length_pair, dimension=plan.dimension)
        wide = plan.dimension + 6 * math.sqrt(plan.dimension) + 18
        smallest = max(1 / 4, wide / (_MOVES * reading.share))
        return Family(lambda epsilon: vector(epsilon * reading.share).power, lambda epsilon: epsilon, smallest)
    draws = coordinates * len(reading.times)
    steps = LAPLACE_STEPS if draws < _MANY_DRAWS else 1
    return pure(lambda epsilon: laplace_pair(epsilon * reading.share, draws, steps).power)


_SIZES = Family(lambda epsilon: laplace_pair(epsilon).power, lambda epsilon: epsilon, smallest=1 / 8)
_COARSE = 1 << 10
"""The fewest lattice steps for one scale; all lattices here have more than 2^20."""

INNOVATION_STEPS = 1 << 20
"""Steps of the grid in one standard deviation of an innovation."""


@dataclass(frozen=True, slots=True, eq=False)
class Unmixed:
    """The computation of a counter's draws from its first releases.

    Attributes:
        solve: float64 (draws, leaves): computes draws from the noise of releases, both in lattice units.
        holders: bool (draws, leaves): which draws hold which leaf.
        law: distribution of one draw's size in these units.
        unit: for pure epsilon the numerator of a draw's scale over epsilon, else its deviation; in lattice units.
        step: draws are multiples of it, in lattice units.
        spreads: float64 (leaves,): the noise of each release divided by these is stochastically at least as large as a
            draw.
    """

    solve: NDArray[np.float64]
    holders: NDArray[np.bool_]
    law: Sizes
    unit: float
    step: float
    spreads: NDArray[np.float64]

    @property
    def draws(self) -> int:
        """The number of draws."""
        return len(self.solve)

    def __call__(self, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute draws (draws, ...), multiples of ``step`` over ``unit``, from the noise of releases (leaves, ...)."""
        solved = np.tensordot(self.solve, noise, axes=1)
        return np.asarray(np.rint(solved / self.step) * (self.step / self.unit))


def unmixed(plan: Plan, leaves: int) -> Unmixed:
    """Prepare the computation of the draws behind the first ``leaves`` releases of a counter.

    Raises:
        HushstreamError: the single draws of this counter cannot be computed.
    """
    factors = plan.factorisation(leaves)
    if isinstance(plan.budget, Concentrated):
        fine = plan.fine_bits if isinstance(plan, BufferedToeplitz) else 0
        covariance = factors.left @ factors.left.T
        solve = np.linalg.inv(np.linalg.cholesky(covariance))
        scale = plan.noise.variance**0.5 * 2.0**-fine
        if scale < _COARSE:
            raise HushstreamError(f"audit: expected Gaussian noise of {_COARSE} lattice units or more, got {scale:.3g}")
        law = half_normal_sizes(float(plan.budget.rho), GAUSSIAN_FAMILY)
        spreads = scale * np.sqrt(np.diag(covariance))
        step = scale / INNOVATION_STEPS
        return Unmixed(solve, np.tri(leaves, dtype=np.bool_), law, scale, step, spreads)
    if not isinstance(plan, NegativeDigitTree):
        raise HushstreamError(f"audit: expected a digit tree or Gaussian noise, got {plan.mechanism}")
    inverse = np.linalg.pinv(factors.left)
    # At the end of the releases two nodes may appear only as a sum; these are left out.
    alone = np.abs(inverse @ factors.left - np.eye(factors.left.shape[1])).max(axis=1) < 1e-6
    spread = plan.levels * plan.sensitivity
    spreads = np.full(leaves, float(spread))
    return Unmixed(inverse[alone], factors.right[alone] > 0, _law(plan, spread), spread, 1.0, spreads)


def _law(plan: NegativeDigitTree, spread: int) -> Sizes:
    if isinstance(plan.budget, PureLength):
        return gamma_sizes(plan.dimension, _SIZES)
    return lattice_sizes(spread, _SIZES) if spread <= _COARSE else gamma_sizes(1, _SIZES)
