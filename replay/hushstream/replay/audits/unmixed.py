"""Computes the single draws of a counter's noise from its releases, for known leaves.

Releases are A x + L z with known factors L (`Factorisation`), so with known content L z is known. Digit trees: each
release adds further nodes, and the pseudo-inverse of L gives the noise of each node as it was drawn. Counters with
Gaussian noise: with L L^T = C C^T and C lower triangular, C^-1 L z has independent entries with the variance of one
draw, one for each release: what that release adds to all before it (its innovation).

Solving in floats has an error of about 1e-16 of the input, so a draw of exactly 0 comes out as a rounding error whose
sign depends on the machine's linear algebra. `hushstream.privacy.audits.structure` tests signs, and the signs of
rounding errors agree for reasons that have nothing to do with noise. So draws are rounded to the whole numbers that
they are (`Unmixed.step`). Innovations are not whole numbers. They are rounded to a grid that is much coarser than any
rounding error. It is so fine that a value is rounded to 0 with probability below 1e-6. Rounding small values to 0,
whatever their sign, leaves the signs of the others balanced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, NegativeDigitTree, Plan, PureLength
from hushstream.privacy.audits.laws import Family, Sizes, gamma_sizes, half_normal_sizes, laplace_pair, lattice_sizes
from hushstream.replay.audits.mechanisms import GAUSSIAN_FAMILY
from hushstream.schemas.errors import HushstreamError

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
