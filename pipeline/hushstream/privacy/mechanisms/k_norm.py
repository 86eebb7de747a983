"""Keyed K-norm noise on the integer lattice: vectors z with P(z) proportional to exp(-||z||_2 / s), exactly.

For a vector that one unit moves by at most Delta in L2, s = Delta/epsilon gives pure epsilon (Hardt, Talwar 2010, for
the L2 ball), at noise s sqrt(d+1) on a coordinate where independent Laplace noise needs s sqrt(2 d). No float
decides a draw: the law is a mixture of discrete Gaussians, and those are drawn exactly (`gaussian`).

1. *Mixture.* For u >= 0, e^-u is the integral over all x of f(x) = pi^(-1/2) exp(x/2 - e^x - u^2 e^-x / 4). With
   u = ||z||/s the last factor is exp(-||z||^2 / (2 v)) for v = 2 s^2 e^x.
2. *Sum for the integral.* The sum S(u) = h sum_k f(k h) differs from it by little: by Poisson's summation the
   difference is the sum of the Fourier transform of f at the non-zero multiples of 2 pi/h. Moving its contour
   to x + i t, 0 < t < pi/2, and then x by ln cos t, bounds it at frequency w by (cos t)^(-1/2) exp(-w t - u cos t). So
   |S(u) - e^-u| <= 2 (cos t)^(-1/2) e^(-u cos t) / (e^(2 pi t/h) - 1).
3. *Over the lattice.* A point of the cell around z is within sqrt(d)/2 of z, so lattice sums of exp(-a ||z||) lie
   within factors exp(+-a sqrt(d)/2) of the integral, which is proportional to a^-d. Summed, the bound of step 2 in
   total variation is 2 (cos t)^(-d-1/2) exp(sqrt(d)/s) / (e^(2 pi t/h) - 1): below 2^-84 by the choice
   of h, for any t.
4. *Draw.* h = ln 2 / n. Node k has v = 2 s^2 2^(k/n) and weight exp(k h/2 - e^(k h)) g(v)^d, where g(v) = sum_x
   exp(-x^2 / (2 v)) normalises a discrete Gaussian. The weights are rounded to whole numbers of 2^-128; two words
   choose a node and then every coordinate is a discrete Gaussian of that v. The 2^(j/n), j < 2 n, are
   rounded to 2^-128; nodes a factor of four apart share tables. Below v = 1/256 all nodes are one: their vectors
   are zero but for 2 e^-128 a coordinate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.conversions import context, to_fraction
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.gaussian import (
    LARGEST_VARIANCE,
    discrete_gaussian_joint,
    gaussian_reach,
    gaussian_variance,
)
from hushstream.privacy.mechanisms.noise import KeyedStream

CHOICE_BITS = 128
LARGEST_DIMENSION = 4_096
LARGEST_STEPS = 1_024
SMALLEST_SCALE = Fraction(1, 4)
SMALLEST_VARIANCE = Fraction(1, 256)
GAUSSIAN_TRUNCATION = Fraction(1, 1 << 100)
"""No discrete Gaussian's truncation error is above 2 e^-72 + 2^-200: its reach is at least 12 sigma."""

_TARGET = Fraction(1, 1 << 84)
_FINE_SCALE = 1 << 20
_NEGLIGIBLE_BITS = CHOICE_BITS + 20
_LARGEST_USEFUL_EXPONENT = 100
_CONTEXT = context()


@dataclass(frozen=True, slots=True)
class KNormTables:
    """The mixture of one scale and dimension.

    Attributes:
        variances: v of each node, exact.
        thresholds: cumulative weights but the last, whole numbers of 2^-128.
        truncation error: upper bound on the total variation distance of one vector from the exact law.
    """

    variances: tuple[Fraction, ...]
    thresholds: tuple[int, ...]
    truncation: Fraction


def k_norm_tables(scale_numerator: int, scale_denominator: int, dimension: int) -> KNormTables:
    """Tables for P(z) proportional to exp(-||z||_2 denominator/numerator), built once per scale and dimension.

    Raises:
        BadNoise: the scale is below 1/4 or so large that a draw could near 2^52, or the dimension is not from 1 to
            4,096.
    """
    for name, value in (("numerator", scale_numerator), ("denominator", scale_denominator)):
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise BadNoise(f"scale {name}: expected a whole number above 0, got {value!r}")
    if not isinstance(dimension, int) or isinstance(dimension, bool) or not 1 <= dimension <= LARGEST_DIMENSION:
        raise BadNoise(f"dimension: expected a whole number from 1 to {LARGEST_DIMENSION}, got {dimension!r}")
    scale = Fraction(scale_numerator, scale_denominator)
    if scale < SMALLEST_SCALE:
        raise BadNoise(f"scale: expected at least {SMALLEST_SCALE} of the lattice's step, got {float(scale):.3g}")
    common = gcd(scale_numerator, scale_denominator)
    return _k_norm_tables(scale_numerator // common, scale_denominator // common, dimension)


@lru_cache(maxsize=64)
def _k_norm_tables(numerator: int, denominator: int, dimension: int) -> KNormTables:
    scale = Fraction(numerator, denominator)
    steps, quadrature = _steps(scale, dimension)
    places, heights, beyond = _nodes(scale, dimension, steps)
    total = sum(heights)
    shares = [int(_CONTEXT.floor(height / total * (1 << CHOICE_BITS))) for height in heights]
    shares[heights.index(max(heights))] += (1 << CHOICE_BITS) - sum(shares)
    nodes: dict[Fraction, int] = {}
    for place, share in zip(places, shares, strict=True):
        if share:
            variance = max(SMALLEST_VARIANCE, _variance(scale, place, steps))
            nodes[variance] = nodes.get(variance, 0) + share
    variances = tuple(nodes)
    if variances[-1] > LARGEST_VARIANCE:
        raise BadNoise(f"scale: expected below about 2^46 / sqrt(2 dimension), got {float(scale):.3g}")
    thresholds, reached = [], 0
    for share in list(nodes.values())[:-1]:
        reached += share
        thresholds.append(reached)
    truncation = (
        quadrature
        + Fraction(len(places) + 1, 1 << CHOICE_BITS)
        + to_fraction(beyond / total)
        + dimension * (GAUSSIAN_TRUNCATION + Fraction(1, 1 << 124))
    )
    return KNormTables(variances, tuple(thresholds), truncation)


def _steps(scale: Fraction, dimension: int) -> tuple[int, Fraction]:
    """The fewest nodes to a doubling that reach the target, and the bound of step 3 for them."""
    steps = 4
    while steps <= LARGEST_STEPS:
        bound = _quadrature(scale, dimension, steps)
        if bound <= _TARGET:
            return steps, bound
        steps += max(1, steps // 8)
    raise BadNoise(f"scale: expected one that {LARGEST_STEPS} nodes to a doubling serve, got {float(scale):.3g}")


def _quadrature(scale: Fraction, dimension: int, steps: int) -> Fraction:
    """Step 3 of the module's docstring; any angle gives a bound, and this one nearly the best."""
    rate = 2 * math.pi * steps / math.log(2)
    angle = _CONTEXT.mpf(math.atan(rate / (dimension + 0.5)))
    decay = 2 * _CONTEXT.pi * angle * steps / _CONTEXT.ln2
    spread = -(dimension + _CONTEXT.mpf(0.5)) * _CONTEXT.log(_CONTEXT.cos(angle)) + _CONTEXT.sqrt(dimension) / _real(
        scale
    )
    return to_fraction(2 * _CONTEXT.exp(spread) / (_CONTEXT.exp(decay) - 1)) * (1 + Fraction(1, 1 << 200))


def _nodes(scale: Fraction, dimension: int, steps: int) -> tuple[list[int], list[Any], Any]:
    """Places k, their weights, and a bound on the weight of all other places.

    The logarithm of the weight has slope 1/2 - e^x + d E[y^2 / (2 v)] in x, and E[y^2] of a discrete Gaussian is
    between 0 and v. So below e^x = 1/4 it climbs at least by h/4 a step, and above e^x = (d+1)/2 + n it falls at
    least by ln 2 a step: what lies beyond an end is below the end's weight over 1 - e^(-h/4), or the weight itself.
    """
    peak = round(steps * math.log2((dimension + 1) / 2)) if dimension > 1 else 0
    top = _weight(scale, dimension, steps, peak)
    floor = _CONTEXT.ldexp(top, -_NEGLIGIBLE_BITS)
    low = peak
    while (weight_low := _weight(scale, dimension, steps, low)) > floor or low > -2 * steps:
        low -= 1
    high = peak
    ceiling = steps * math.log2((dimension + 1) / 2 + steps)
    while (weight_high := _weight(scale, dimension, steps, high)) > floor or high < ceiling:
        high += 1
    places = list(range(low, high + 1))
    heights = [_weight(scale, dimension, steps, place) for place in places]
    beyond = weight_low / (1 - _CONTEXT.exp(-_CONTEXT.ln2 / (4 * steps))) + weight_high
    return places, heights, beyond


@lru_cache(maxsize=1 << 14)
def _weight(scale: Fraction, dimension: int, steps: int, place: int) -> Any:
    power = _CONTEXT.exp(_CONTEXT.ln2 * place / steps)
    return _CONTEXT.sqrt(power) * _CONTEXT.exp(-power) * _normaliser(2 * _real(scale) ** 2 * power) ** dimension


def _normaliser(variance: Any) -> Any:
    """sum_x exp(-x^2 / (2 v)): from v = 1 on by Poisson's summation, whose terms then fall faster."""
    if variance < 1:
        return 1 + 2 * _sum_over_squares(_CONTEXT.exp(-1 / (2 * variance)), 24)
    waves = _sum_over_squares(_CONTEXT.exp(-2 * _CONTEXT.pi**2 * variance), 4)
    return _CONTEXT.sqrt(2 * _CONTEXT.pi * variance) * (1 + 2 * waves)


def _sum_over_squares(base: Any, count: int) -> Any:
    """sum of base^(x^2) for x from 1 to ``count``, each from the one before: (x+1)^2 = x^2 + (2 x + 1)."""
    total, term, odd, square = _CONTEXT.mpf(0), base, base, base * base
    for _ in range(count):
        total += term
        odd *= square
        term *= odd
    return total


def _variance(scale: Fraction, place: int, steps: int) -> Fraction:
    octaves, step = divmod(place, 2 * steps)
    root = _CONTEXT.exp(_CONTEXT.ln2 * step / steps)
    rounded = Fraction(int(_CONTEXT.floor(root * (1 << CHOICE_BITS) + _CONTEXT.mpf(0.5))), 1 << CHOICE_BITS)
    return 2 * scale**2 * rounded * Fraction(4) ** octaves


def discrete_k_norm_joint(
    streams: Sequence[KeyedStream], scale_numerator: int, scale_denominator: int, dimension: int
) -> NDArray[np.int64]:
    """Draw vectors z of ``dimension`` integers with P(z) proportional to exp(-||z||_2 denominator/numerator).

    Each stream is read twice: two words for the node, and the seed of the discrete Gaussians. What it gives does not
    depend on the streams beside it.

    Args:
        streams: the keyed words of each vector.
        scale_numerator: numerator of s = Delta_2/epsilon in steps of the lattice (`noise.laplace_scale`).
        scale_denominator: its denominator.
        dimension: d.

    Returns:
        int64, shape (number of streams, d).

    Raises:
        BadNoise: see `k_norm_tables`.

    Source: Hardt, Talwar 2010 (On the Geometry of Differential Privacy), section 4, on the lattice.

    Guarantee:
        Computational, against parties without the key. On the lattice the law's normaliser is the same around
        every integer vector, so with ||f(D) - f(D')||_2 <= Delta_2 the triangle inequality gives P(f(D) + z = y) <=
        exp(Delta_2/s) P(f(D') + z = y): pure epsilon = Delta_2/s. The law drawn is within ``k_norm_truncation`` of it
        in total variation per vector, to be accounted for in delta as with `noise.discrete_laplace`.
    """
    tables = k_norm_tables(scale_numerator, scale_denominator, dimension)
    label = ("discrete-k-norm", scale_numerator, scale_denominator, dimension)
    words = [stream.words(2, *label).tolist() for stream in streams]
    nodes = np.array([bisect_right(tables.thresholds, high << 64 | low) for high, low in words], dtype=np.int64)
    result = np.zeros((len(streams), dimension), dtype=np.int64)
    for node in np.unique(nodes).tolist():
        rows = np.flatnonzero(nodes == node)
        variance = tables.variances[node]
        owners = [streams[row] for row in rows.tolist()]
        result[rows] = discrete_gaussian_joint(owners, variance.numerator, variance.denominator, dimension)
    return result


def k_norm_truncation(scale_numerator: int, scale_denominator: int, dimension: int) -> Fraction:
    """Upper bound on the total variation distance of one vector from the exact law."""
    return k_norm_tables(scale_numerator, scale_denominator, dimension).truncation


@lru_cache(maxsize=64)
def k_norm_reach(scale_numerator: int, scale_denominator: int, dimension: int) -> int:
    """Largest absolute value of a coordinate of a vector: the reach of the widest discrete Gaussians.

    A variance that is a power of four times another has that many powers of two times its reach, so it is enough to
    look at those within a factor of four of the largest.
    """
    variances = k_norm_tables(scale_numerator, scale_denominator, dimension).variances
    widest = [variance for variance in variances if 4 * variance > max(variances)]
    return max(gaussian_reach(variance.numerator, variance.denominator) for variance in widest)


def k_norm_variance(scale_numerator: int, scale_denominator: int, dimension: int) -> float:
    """Variance of one coordinate: from the mixture, and from s = 2^20 on its limit s^2 (d + 1).

    Sums over the lattice differ from integrals by the Fourier transforms of exp(-||z||/s) and ||z||^2 exp(-||z||/s) at
    whole frequencies, which fall as (2 pi s)^-(d+1) relative to those at zero: below 1e-12 there.
    """
    scale = Fraction(scale_numerator, scale_denominator)
    if scale >= _FINE_SCALE:
        return float(scale * scale * (dimension + 1))
    tables = k_norm_tables(scale_numerator, scale_denominator, dimension)
    ends = (0, *tables.thresholds, 1 << CHOICE_BITS)
    shares = (float(Fraction(after - before, 1 << CHOICE_BITS)) for before, after in pairwise(ends))
    return math.fsum(
        share * gaussian_variance(variance.numerator, variance.denominator)
        for share, variance in zip(shares, tables.variances, strict=True)
    )


def _real(value: Fraction) -> Any:
    return _CONTEXT.mpf(value.numerator) / value.denominator
