"""95 % intervals of means and ratios, by empirical likelihood.

Importance-weighted terms are mostly 0, and a few are as large as 1 / propensity. If their mean is too low by chance,
their standard deviation is too small as well. So an interval of 1.96 standard errors ends below the true mean too
often. The interval of empirical likelihood (Owen 1988; for logs of bandits Karampatziakis, Langford, Mineiro, NeurIPS
2020) takes its shape from the terms. It contains the means under all weightings of the rows whose likelihood is not
much below that of equal weights.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Float64 = npt.NDArray[np.float64]

_STEPS = 60
_MOST_ROUNDS = 50
_FARTHEST = 1e12
"""The start of the search for v beyond the largest term, in ranges of the terms; there the weights are nearly equal."""


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def likelihood_interval(numerators: Float64, denominators: Float64 | None = None) -> Interval:
    """The interval of sum(numerators) / sum(denominators) by empirical likelihood.

    Minus twice the logarithm of the likelihood ratio is compared with F(1, m - 1), where m rows count (Owen,
    "Empirical likelihood ratio confidence regions", Annals of Statistics 1990, section 3). An end is the largest ratio
    of weighted sums within that distance: where r is the ratio, the largest mean of ``numerators - r denominators`` is
    0, which Dinkelbach's steps reach (Management Science 1967).

    Args:
        numerators: (n,).
        denominators: (n,), >= 0 and not all 0; None for the interval of a mean. Rows with 0 in both do not count.

    Returns:
        The interval; infinite where fewer than two rows count, a point where all terms are equal.
    """
    below = np.ones_like(numerators) if denominators is None else denominators
    counts = (numerators != 0) | (below != 0)
    rows = int(np.count_nonzero(counts))
    if rows < 2:
        return Interval(-math.inf, math.inf)
    pairs, times = np.unique(np.stack([numerators[counts], below[counts]]), axis=1, return_counts=True)
    limit = float(stdtrit(rows - 1, 0.975)) ** 2
    low, high = (_end(side * pairs[0], pairs[1], times.astype(np.float64), limit) for side in (-1.0, 1.0))
    return Interval(-low, high)


def _end(above: Float64, below: Float64, times: Float64, limit: float) -> float:
    """The largest ratio of weighted sums within the limit, over rows (m,) that occur ``times`` times each."""
    ratio = float((times * above).sum() / (times * below).sum())
    for _ in range(_MOST_ROUNDS):
        weights = _tilted(above - ratio * below, times, limit)
        found = float((weights * above).sum() / (weights * below).sum())
        if found <= ratio + 1e-12 * max(1.0, abs(ratio)):
            return ratio
        ratio = found
    return ratio


def _tilted(terms: Float64, times: Float64, limit: float) -> Float64:
    """The weights (m,), up to a factor, with the largest mean of the terms within the limit.

    They are 1 / (v - term) for some v above all terms; they are closer to equal for a larger v.
    """
    spread = float(terms.max() - terms.min())
    if spread <= 0.0:
        return times
    rows, gaps = float(times.sum()), (terms.max() - terms) / spread
    near, far = math.log(1.0 / _FARTHEST), math.log(_FARTHEST)
    for _ in range(_STEPS):
        middle = (near + far) / 2
        logs = -np.log(gaps + math.exp(middle))
        # Divided by the largest weight, so that nothing overflows.
        total = float(logs.max()) + math.log(float((times * np.exp(logs - logs.max())).sum()))
        distance = 2.0 * (rows * (total - math.log(rows)) - float((times * logs).sum()))
        near, far = (middle, far) if distance > limit else (near, middle)
    return np.asarray(times / (gaps + math.exp(far)), dtype=np.float64)
