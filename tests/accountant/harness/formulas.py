"""Privacy formulas, written from the papers and from PRIVACY.md: nothing here calls the product.

So a forgotten factor in the product is not forgotten here in the same way. Amounts are exact fractions, or mpmath
numbers of 320 bits; whoever compares them with the product's whole amounts rounds up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cache

import numpy as np
from mpmath import mp, mpf
from scipy import stats

mp.prec = 320

MICRO = 10**6
UNITS = 2**80
"""Delta is counted in units of 2^-80."""

ORDERS = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""The Renyi orders at which a filter may hold: a setting of the product, not a formula."""


def decimal(value: float) -> Fraction:
    """The number that somebody typed, not the float next to it."""
    return Fraction(Decimal(repr(float(value))))


def micro(value: float) -> int:
    """An epsilon of a configuration in millionths, rounded up."""
    return math.ceil(decimal(value) * MICRO)


def real(value: Fraction | int) -> mpf:
    return mpf(value.numerator) / value.denominator


# From one currency to another.


@cache
def epsilon_of_rho(rho_micro: int, delta_units: int) -> int:
    """Millionths of epsilon at a delta: Canonne, Kamath, Steinke 2020, Proposition 12, at the best whole order.

    epsilon = a rho + (ln(1/delta) - ln a) / (a - 1) + ln(1 - 1/a), over a = 2, 3, ...: the best a is near
    1 + sqrt(ln(1/delta) / rho), and all up to four times that are tried.
    """
    if not rho_micro:
        return 0
    logarithm = -math.log(delta_units / UNITS)
    most = int(4 * math.sqrt(logarithm * MICRO / rho_micro)) + 10
    orders = np.arange(2, most, dtype=np.float64)
    found = orders * (rho_micro / MICRO) + (logarithm - np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    best = int(orders[found.argmin()])
    exact = best * mpf(rho_micro) / MICRO + (mp.log(mpf(UNITS) / delta_units) - mp.log(best)) / (best - 1)
    return max(0, int(mp.ceil((exact + mp.log(1 - mpf(1) / best)) * MICRO)))


@cache
def rho_of_epsilon(epsilon_micro: int, delta_units: int) -> int:
    """The largest rho in millionths that costs at most epsilon at a delta."""
    return largest(lambda rho: epsilon_of_rho(rho, delta_units) <= epsilon_micro)


@cache
def renyi_of_pure(epsilon_micro: int, order: int) -> int:
    """Millionths of the divergence of randomised response, the worst law of a pure epsilon (Bun, Steinke 2016, B.1)."""
    likely = mp.exp(mpf(epsilon_micro) / MICRO) / (1 + mp.exp(mpf(epsilon_micro) / MICRO))
    rest = 1 - likely
    moment = likely**order * rest ** (1 - order) + rest**order * likely ** (1 - order)
    return min(epsilon_micro, int(mp.ceil(mp.log(moment) / (order - 1) * MICRO)))


def epsilon_of_renyi(divergence_micro: int, order: int, delta_units: int) -> int:
    """The same proposition at one order."""
    logarithms = (mp.log(mpf(UNITS) / delta_units) - mp.log(order)) / (order - 1) + mp.log(1 - mpf(1) / order)
    return max(0, int(mp.ceil((mpf(divergence_micro) / MICRO + logarithms) * MICRO)))


def largest(holds: Callable[[int], bool], most: int = 1 << 62) -> int:
    """The largest whole number, at most ``most``, up to which a condition holds, or 0."""
    low, high = 0, 1
    while high <= most and holds(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# What the noise's tables leave out.


@cache
def laplace_off(numerator: int, denominator: int) -> Fraction:
    """Total variation between a draw of rounded tables and discrete Laplace noise of this scale.

    A draw is a sign and base-256 digits of a geometric variable, each from cumulative probabilities that are rounded to
    2^-64: half of the sum over all digits' |rounded - exact| each, the sign's rounding, and the tail that no digit
    reaches. Digits are added until that tail is below e^-56.
    """
    scale = mpf(numerator) / denominator
    places = 1
    while Fraction(256**places * denominator, numerator) < 56:
        places += 1
    off = mp.exp(-(mpf(256) ** places) / scale)
    for place in range(places):
        off += _digit_off(-mp.expm1(-(mpf(256) ** place) / scale))
    negative = 1 / (1 + mp.exp(1 / scale))
    off += abs(mp.nint(negative * 2**64) / mpf(2) ** 64 - negative)
    return _fraction(off)


def _digit_off(miss: mpf) -> mpf:
    """Of one digit: P(j) is proportional to (1 - miss)^j. In whole numbers of 2^-400, for speed."""
    one = 1 << 400
    ratio = one - int(mp.floor(miss * one))
    powers = [one]
    for _ in range(256):
        powers.append(powers[-1] * ratio >> 400)
    full = one - powers[-1]
    off, before = 0, 0
    for power in powers[1:]:
        reached = ((one - power) << 400) // full if full else one
        rounding = ((reached + (1 << 335)) >> 336 << 336) - reached
        off += abs(rounding - before)
        before = rounding
    return mpf(off) / 2 / one


@cache
def gaussian_off(variance: Fraction) -> tuple[Fraction, Fraction]:
    """Mass of a discrete Gaussian beyond the reach of its tables, from below and from above.

    The reach is twelve deviations in buckets of a power of two, of which 64 to 128 make a deviation, and two more. The
    mass is that of the normal law (variances here are far above 1); a geometric series bounds it within 2 %.
    """
    length = 1
    while 64**2 * (2 * length) ** 2 <= variance:
        length *= 2
    reach = (math.isqrt(int(144 * variance / length**2)) + 2) * length
    mass = mp.erfc((mpf(reach) - mpf(1) / 2) / mp.sqrt(2 * real(variance)))
    return _fraction(mass) * Fraction(98, 100), _fraction(mass) * Fraction(103, 100)


@cache
def k_norm_off(scale: Fraction, dimension: int) -> tuple[Fraction, Fraction]:
    """Total variation of one vector of K-norm noise, a mixture of discrete Gaussians over a grid of variances.

    The trapezoid rule with step h = ln 2 / n is off by 2 cos(t)^-(d + 1/2) e^(sqrt(d)/s) / (e^(2 pi t/h) - 1) for any
    angle t; the fewest n are taken (from 4 on, an eighth more each time) with which that is at most 2^-84. Rounded
    weights and each coordinate's tail add less than d 2^-99 and some thousand times 2^-128.
    """
    steps = 4
    while (bound := _trapezoid_off(scale, dimension, steps)) > mpf(2) ** -84:
        steps += max(1, steps // 8)
    found = _fraction(bound)
    return found, found + Fraction(dimension + 1, 2**99) + Fraction(1 << 16, 2**128)


def _trapezoid_off(scale: Fraction, dimension: int, steps: int) -> mpf:
    half = dimension + mpf(1) / 2
    angle = mpf(math.atan(2 * math.pi * steps / math.log(2) / float(half)))
    spread = mp.cos(angle) ** -half * mp.exp(mp.sqrt(dimension) / real(scale))
    return 2 * spread / mp.expm1(2 * mp.pi * angle * steps / mp.log(2))


def tail_units(variation: Fraction, epsilon_micro: int) -> int:
    """(1 + e^epsilon) times a total variation, in units of 2^-80: what is beyond e^100 is no promise."""
    if epsilon_micro > 100 * MICRO:
        return UNITS if variation else 0
    return min(UNITS, int(mp.ceil(real(variation) * (1 + mp.exp(mpf(epsilon_micro) / MICRO)) * UNITS)))


def _fraction(value: mpf) -> Fraction:
    mantissa, exponent = value.man_exp
    return Fraction(int(mantissa)) * Fraction(2) ** int(exponent)


# Counters.


def tree_levels(base: int, horizon: int) -> int:
    """Digits from -((b-1)//2) to b//2 reach (b//2) (1 + b + ... + b^(h-1)): the fewest that reach the horizon."""
    levels, reached = 0, 0
    while reached < horizon:
        reached += (base // 2) * base**levels
        levels += 1
    return levels


def toeplitz_length(pairs: Sequence[tuple[float, float]], horizon: int) -> float:
    """L2 norm of the first column 1, c_1, c_2, ... with c_k = sum_i w_i (1 - gap_i)^(k-1): each gap by itself."""
    steps = np.arange(horizon - 1, dtype=np.float64)
    column = np.zeros(horizon - 1)
    for weight, gap in pairs:
        column += weight * np.exp(steps * math.log1p(-gap))
    return math.sqrt(1 + float(np.dot(column, column)))


def toeplitz_rounding(pairs: Sequence[tuple[float, float]], horizon: int) -> float:
    """How far roundings move a coordinate of one step: one unit, and what buffers of 18 guard bits keep of theirs."""
    kept = sum(weight * min(horizon, 1 / gap) for weight, gap in pairs)
    return 1 + (len(pairs) + kept) / 2**18


# Crowds above a threshold.


@cache
def crowd_delta(threshold: int, kept: float, epsilon: float, slots: int) -> float:
    """Hockey-stick divergence of a thresholded Bin(n + m, p) and Bin(n, p), in both directions, for the worst n.

    For each n both laws are compared outcome by outcome, all counts below the threshold being one. Every n up to where
    the threshold is far below the mean is tried on a grid, then all of them around the worst.
    """

    def off(others: int) -> float:
        counts = np.arange(threshold, others + slots + 1)
        more, fewer = (stats.binom.pmf(counts, others + extra, kept) for extra in (slots, 0))
        low = [stats.binom.cdf(threshold - 1, others + extra, kept) for extra in (slots, 0)]
        factor = math.exp(epsilon)
        forward = np.maximum(more - factor * fewer, 0).sum() + max(low[0] - factor * low[1], 0)
        backward = np.maximum(fewer - factor * more, 0).sum() + max(low[1] - factor * low[0], 0)
        return float(max(forward, backward))

    first, last = max(0, threshold - slots), math.ceil(4 * (threshold + slots + 10) / kept)
    step = max(1, (last - first) // 60)
    while True:
        grid = range(first, last + 1, step)
        worst = max(grid, key=off)
        if step == 1:
            return off(worst)
        first, last, step = max(0, worst - 2 * step), worst + 2 * step, max(1, step // 15)


def worst_split(total: int, price: Callable[[int], float]) -> float:
    """The largest sum of prices over all ways to deal ``total`` slots out to crowds."""
    best = [0.0]
    for count in range(1, total + 1):
        best.append(max(best[count - part] + price(part) for part in range(1, count + 1)))
    return best[total]


# Budgets.


class Filter:
    """What a budget admits: sums of one price, by basic, zCDP or Renyi composition."""

    def __init__(self, kind: str, epsilon: float, delta: float, share: Fraction = Fraction(1)) -> None:
        self.kind = kind
        most, whole = math.floor(decimal(epsilon) * MICRO), math.floor(decimal(delta) * UNITS)
        self.half = whole // 2
        self.order = 0
        if kind == "basic":
            limits = most, whole
        elif kind == "zcdp":
            limits = rho_of_epsilon(most, self.half), whole - self.half
        else:
            reach = {one: largest(lambda price, one=one: self._at(price, one) <= most) for one in ORDERS}
            self.order = max(ORDERS, key=lambda one: reach[one] / one)
            limits = reach[self.order], whole - self.half
        self.limits = int(limits[0] * share), int(limits[1] * share)

    def _at(self, divergence: int, order: int) -> int:
        return epsilon_of_renyi(divergence, order, self.half)

    def price(self, epsilon_micro: int, delta_units: int) -> tuple[int, int]:
        """Of an (epsilon, delta)."""
        if self.kind == "basic":
            return epsilon_micro, delta_units
        if self.kind == "zcdp":
            return math.ceil(Fraction(epsilon_micro**2, 2 * MICRO)), delta_units
        return renyi_of_pure(epsilon_micro, self.order), delta_units

    def price_of_rho(self, rho_micro: int, beside: int) -> tuple[int, int]:
        """Of a Gaussian mechanism, under zCDP or Renyi accounting."""
        return (rho_micro if self.kind == "zcdp" else self.order * rho_micro), beside

    def admits(self, total: tuple[int, int]) -> bool:
        return total[0] <= self.limits[0] and total[1] <= self.limits[1]

    def room(self, price: tuple[int, int]) -> int:
        """How often one price fits."""
        return min(limit // part if part else 1_000_000 for limit, part in zip(self.limits, price, strict=True))

    def cost(self, total: tuple[int, int]) -> tuple[int, int]:
        """The (epsilon, delta) of a sum."""
        if self.kind == "basic":
            return total
        if not any(total):
            return 0, 0
        main = total[0]
        found = epsilon_of_rho(main, self.half) if self.kind == "zcdp" else (self._at(main, self.order) if main else 0)
        return found, total[1] + (self.half if found else 0)
