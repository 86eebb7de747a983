"""Estimates what each arm earns in each cell from released blocks: random effects of vendors, and the tree of cells.

A block gives y = S/n with known noise: the rewards' own variance sigma2/n and that of the release, V/n^2. So its
precision is P = 1 / (sigma2/n + V/n^2), and the precisions of blocks of one (cell, arm) add up. An arm's value in a
cell is its vendor's mean there plus its own deviation:

* the vendor's mean: arms scatter around it with variance omega, so one arm has the weight w = 1 / (omega + 1/P); cells
  are smoothed over the tree. The prior mean is ``prior_share`` of the mean reward of all blocks, because the arms that
  are played are better than the others;
* the deviation: `beliefs` on the tree, after the vendor's mean was subtracted from the observations. All of this is
  post-processing of releases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdap.algorithm.beliefs import Float64, Levels, posterior
from hushstream.systems.pdap.cells import Int64
from hushstream.systems.pdap.configuration import EstimateConfig

_COLUMNS_AT_ONCE = 256
"""Number of arms whose trees are solved together: more need more memory, fewer need more calls."""


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Sums over all blocks: one row for each (row of a cell, arm) with blocks, (n,) each.

    Attributes:
        rows: of the open cells.
        arms: global numbers.
        precision: sum of P.
        weighted: sum of P y.
    """

    rows: Int64
    arms: Int64
    precision: Float64
    weighted: Float64

    @classmethod
    def none(cls) -> Observed:
        """Sums of no block."""
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty, np.zeros(0), np.zeros(0))

    def plus(self, more: Observed) -> Observed:
        """The sums of both, by (row, arm), added in the order of releases."""
        rows, arms = np.concatenate([self.rows, more.rows]), np.concatenate([self.arms, more.arms])
        _, first, group = np.unique(rows << 32 | arms, return_index=True, return_inverse=True)
        precision = _added(group, np.concatenate([self.precision, more.precision]), len(first))
        weighted = _added(group, np.concatenate([self.weighted, more.weighted]), len(first))
        return Observed(rows[first], arms[first], precision, weighted)


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """Beliefs about each arm of a pool in each open cell.

    Attributes:
        pool: (p,) arms.
        mean: (rows, p).
        deviation: (rows, p) standard deviations around the vendor's mean.
        vendor_deviation: (rows, vendors) standard deviations of the vendors' means themselves.
    """

    pool: Int64
    mean: Float64
    deviation: Float64
    vendor_deviation: Float64


def precisions(counts: Int64, variances: Float64, sigma2: float) -> Float64:
    """P of blocks with ``counts`` outcomes whose sums were released with noise of ``variances``."""
    sizes = counts.astype(np.float64)
    return np.asarray(1.0 / (sigma2 / sizes + variances / (sizes * sizes)))


def believe(
    levels: Levels,
    observed: Observed,
    pool: Int64,
    owners: NDArray[np.int64],
    grand: float,
    terms: EstimateConfig,
    arm_steps: Sequence[float],
    vendor_steps: Sequence[float],
) -> Beliefs:
    """Mean and standard deviation of each arm of ``pool`` in each cell.

    Args:
        levels: the tree of open cells, see `beliefs`.
        observed: of all arms, whether in the pool or not.
        pool: the arms that may be shown.
        owners: the vendor of every arm.
        grand: mean reward of all blocks.
        terms: variances.
        arm_steps: of an arm's deviation, to level 1, 2, ...
        vendor_steps: of a vendor's mean.
    """
    rows = sum(len(level[0]) for level in levels)
    means, vendor_variances = vendor_means(levels, rows, observed, owners, grand, terms, vendor_steps)
    mu, sd = np.empty((rows, len(pool))), np.empty((rows, len(pool)))
    for begin in range(0, len(pool), _COLUMNS_AT_ONCE):
        arms = pool[begin : begin + _COLUMNS_AT_ONCE]
        precision, weighted = _dense(observed, arms, rows, len(owners))
        around = means[:, owners[arms]]
        weighted -= around * precision
        deviation, variance = posterior(levels, precision, weighted, terms.arm_variance, arm_steps)
        mu[:, begin : begin + len(arms)] = around + deviation
        sd[:, begin : begin + len(arms)] = np.sqrt(variance)
    return Beliefs(pool, mu, sd, np.sqrt(vendor_variances))


def vendor_means(
    levels: Levels,
    rows: int,
    observed: Observed,
    owners: NDArray[np.int64],
    grand: float,
    terms: EstimateConfig,
    steps: Sequence[float],
) -> tuple[Float64, Float64]:
    """The mean of each vendor's arms in each cell and its variance, (rows, vendors)."""
    vendors = int(owners.max()) + 1
    weights = 1.0 / (terms.arm_spread + 1.0 / observed.precision)
    prior = terms.prior_share * grand
    place = observed.rows * vendors + owners[observed.arms]
    precision = _added(place, weights, rows * vendors).reshape(rows, vendors)
    offsets = weights * (observed.weighted / observed.precision - prior)
    weighted = _added(place, offsets, rows * vendors).reshape(rows, vendors)
    means, variances = posterior(levels, precision, weighted, terms.vendor_variance, steps)
    return prior + means, variances


def _added(places: Int64, values: Float64, size: int) -> Float64:
    # Without any value, bincount returns whole numbers.
    return np.bincount(places, values, size).astype(np.float64, copy=False)


def _dense(observed: Observed, arms: Sequence[int] | Int64, rows: int, known: int) -> tuple[Float64, Float64]:
    column = np.full(known, -1, dtype=np.int64)
    column[arms] = np.arange(len(arms))
    places = column[observed.arms]
    here = places >= 0
    precision, weighted = np.zeros((rows, len(arms))), np.zeros((rows, len(arms)))
    precision[observed.rows[here], places[here]] = observed.precision[here]
    weighted[observed.rows[here], places[here]] = observed.weighted[here]
    return precision, weighted
