"""The best that an attacker can reach: exact trade-off curves of the mechanisms under audit.

A pair of laws has the probability of each outcome without and with the unit. By Neyman and Pearson the most powerful
test at a false-alarm rate takes the outcomes with the largest likelihood ratio first, so the curve follows from the
pair. A family is a mechanism at every calibration. The smallest epsilon whose curve reaches an attacker's rates is a
lower bound on the calibration of the mechanism that ran. This finds more than a bound on epsilon alone: for a tree of h
levels, even with half the noise, the best test is far weaker than (epsilon, 0)-DP would allow.

Source: Dong, Roth, Su 2022 (Gaussian Differential Privacy), section 2, for trade-off curves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from hushstream.privacy.errors import PrivacyError

LAPLACE_STEPS = 16
"""Steps of a shift, if the real lattice is finer; see `laplace_pair`."""

_REACH = 12
_BISECTIONS = 20
_PLANE_REACH = 32
_LENGTH_REACH = 18
_SIDES = 8
_LENGTHS = 60
"""Largest noise, in scales."""
_GRID = 4_000
"""Steps of a grid to which sizes are rounded down."""

Curve = Callable[[float], float]
"""False-alarm rate -> largest rate of true alarms."""


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two laws over the same outcomes.

    Attributes:
        null: probability of each outcome without the unit, float64 (n,).
        moved: with it.
    """

    null: NDArray[np.float64]
    moved: NDArray[np.float64]
    _false: NDArray[np.float64] = field(init=False, repr=False)
    _true: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what is no pair of laws, and put its outcomes in the order of the most powerful test.

        Raises:
            PrivacyError: other shapes, or masses that do not sum to 1.
        """
        sums = float(self.null.sum()), float(self.moved.sum())
        if self.null.shape != self.moved.shape or max(abs(total - 1) for total in sums) > 1e-9:
            raise PrivacyError(f"pair of laws: expected two of one shape that sum to 1, got sums {sums}")

        seen = (self.null > 0) | (self.moved > 0)
        null, moved = self.null[seen], self.moved[seen]
        ratio = np.divide(moved, null, out=np.full(len(null), np.inf), where=null > 0)
        order = np.argsort(-ratio, kind="stable")
        object.__setattr__(self, "_false", np.concatenate([[0.0], np.cumsum(null[order])]))
        object.__setattr__(self, "_true", np.concatenate([[0.0], np.cumsum(moved[order])]))

    def power(self, false_rate: float) -> float:
        """The largest probability to see the unit at this false-alarm rate."""
        return float(np.interp(false_rate, self._false, self._true))


@dataclass(frozen=True, slots=True)
class Family:
    """One mechanism at every calibration, with less noise as the setting grows.

    Attributes:
        curve: trade-off curve of a setting.
        epsilon: claimed for a setting, at the delta of the claim.
        smallest: smallest setting of the search; below it the bound is 0.
        largest: largest setting of the search.
    """

    curve: Callable[[float], Curve]
    epsilon: Callable[[float], float]
    smallest: float = 1 / 128
    largest: float = 64.0

    def lower_bound(self, true_rate: Fraction, false_rate: Fraction) -> float:
        """Epsilon of the smallest setting whose curve reaches the rates; 0 if every setting does."""
        return _last(lambda setting: self.curve(setting)(float(false_rate)) < true_rate, self)


def pure(curve: Callable[[float], Curve]) -> Family:
    """A family whose setting is epsilon."""
    return Family(curve, lambda epsilon: epsilon)


def laplace_pair(epsilon: float, draws: int = 1, steps: int = 1) -> Pair:
    """Pair of noised integers, of which ``draws`` move, each by ``steps`` and each at the price epsilon/``draws``.

    An integer's likelihood ratio depends on min(max(z, 0), steps) alone, and logarithms of ratios add over draws.

    A finer lattice than ``steps`` to the shift only helps privacy, so the pair is an upper bound for all multiples of
    ``steps``: a discrete Laplace variable is the difference of two geometric ones, a geometric variable is
    independently its remainder by c and c times a coarser one (`hushstream.privacy.mechanisms.tables`), and so noise
    on the fine lattice is c times that of the coarse one plus something independent of it.
    """
    ratio = math.exp(-epsilon / (draws * steps))
    single = (1 - ratio) / (1 + ratio) * ratio ** np.arange(steps + 1.0)
    single[0] = 1 / (1 + ratio)
    single[-1] = ratio**steps / (1 + ratio)
    total = single
    for _ in range(draws - 1):
        total = np.convolve(total, single)
    return Pair(total, total[::-1].copy())


def gaussian_pair(variance: float, shift: int, draws: int = 1) -> Pair:
    """Integers with discrete Gaussian noise, ``draws`` of which move by ``shift``: their sum decides.

    ``variance`` is the parameter s of P(x) ~ exp(-x^2 / (2 s)). The logarithm of the likelihood ratio is linear in
    each integer, with one slope for all.
    """
    reach = math.ceil(_REACH * math.sqrt(variance)) + shift
    single = np.exp(-(np.arange(-reach, reach + 1.0) ** 2) / (2 * variance))
    single /= single.sum()
    total = single
    for _ in range(draws - 1):
        total = np.convolve(total, single)
    beyond = np.zeros(shift * draws)
    return Pair(np.concatenate([total, beyond]), np.concatenate([beyond, total]))


def gaussian_curve(distance: float) -> Curve:
    """Two normal laws of variance 1 at a distance: the curve of all Gaussian noise on a fine lattice."""
    return lambda false_rate: float(special.ndtr(distance + special.ndtri(false_rate)))


def plane_pair(scale: float, shift: int) -> Pair:
    """Two integers with noise ~ exp(-length/scale), of which the first moves by ``shift``."""
    reach = math.ceil(_PLANE_REACH * scale) + shift
    first, second = np.meshgrid(np.arange(-reach, reach + 1.0), np.arange(-reach, reach + 1.0), indexing="ij")
    null = np.exp(-np.hypot(first, second) / scale).ravel()
    moved = np.exp(-np.hypot(first - shift, second) / scale).ravel()
    return Pair(null / null.sum(), moved / moved.sum())


def length_pair(epsilon: float, dimension: int) -> Pair:
    """A vector with noise ~ exp(-epsilon * length) that moves by 1, on a lattice far finer than that.

    Both laws are symmetric around the axis of the move, so an outcome is its place on that axis and its distance r
    from it, which weighs r^(dimension - 2). Both are summed over the midpoints of squares with a side of an eighth of
    the noise's scale (more for long vectors, whose noise is wider), up to where less than 1e-9 is left: rates are exact
    to 1e-4. A vector of one number is `laplace_pair`'s, of many steps.

    Args:
        epsilon: for the whole vector.
        dimension: coordinates, at least 2.
    """
    root = math.sqrt(dimension)
    per_move = math.ceil(_SIDES * epsilon / max(1.0, root / 4))
    # A length follows a gamma law of mean ``dimension``: this many scales are beyond its tail.
    reach = math.ceil((dimension + 6 * root + _LENGTH_REACH) / epsilon * per_move)
    along = (np.arange(-reach, reach + per_move) + 0.5) / per_move
    away = (np.arange(reach) + 0.5) / per_move
    # In logarithms, as the weights of long vectors leave the range of floats.
    heights = [(dimension - 2) * np.log(away) - epsilon * np.hypot(along[:, None] - move, away) for move in (0.0, 1.0)]
    null, moved = (np.exp(height - height.max()) for height in heights)
    return Pair((null / null.sum()).ravel(), (moved / moved.sum()).ravel())


def sampled_pair(chance: float, others: int, threshold: int) -> Pair:
    """Pair of Bin(others, chance) and Bin(others + 1, chance), where counts below ``threshold`` are shown as 0."""
    laws = []
    for trials in (others, others + 1):
        counts = np.arange(others + 2.0)
        mass = special.comb(trials, counts) * chance**counts * (1 - chance) ** np.maximum(trials - counts, 0)
        hidden = counts < threshold
        laws.append(np.concatenate([[mass[hidden].sum()], mass[~hidden]]))
    return Pair(*laws)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The law of the size of a noise at every calibration; sizes shrink as the setting grows.

    Attributes:
        law: setting -> sizes, and their probabilities.
        family: epsilon of settings, and range of the search.
    """

    law: Callable[[float], tuple[NDArray[np.float64], NDArray[np.float64]]]
    family: Family

    def lower_bound(self, mean_size: float, draws: int, false_alarm: float) -> float:
        """Epsilon of the smallest setting at which such a small mean size is not surprising.

        By Chernoff the mean size of n draws is at most m with probability at most (E exp(-t (size - m)))^n, for every t
        > 0, so any t that the search finds gives a bound.

        Args:
            mean_size: m.
            draws: n, independent.
            false_alarm: probability with which the bound may exceed the true epsilon.
        """
        limit = math.log(false_alarm) / draws

        def surprising(setting: float) -> bool:
            sizes, masses = self.law(setting)
            expected = float(sizes @ masses)
            if expected <= mean_size:
                return False
            beyond = sizes - mean_size

            def exponent(tilt: float) -> float:
                return float(special.logsumexp(-math.exp(tilt) / expected * beyond, b=masses))

            return bool(optimize.minimize_scalar(exponent, bounds=(-12, 4), method="bounded").fun < limit)

        return _last(surprising, self.family)


def lattice_sizes(spread: int, family: Family) -> Sizes:
    """|x| of discrete Laplace noise of scale ``spread``/epsilon, in units of ``spread``."""

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        whole = np.arange(int(_LENGTHS * spread / epsilon) + 2.0)
        masses = np.exp(-whole * epsilon / spread) * np.where(whole > 0, 2, 1)
        return whole / spread, masses / masses.sum()

    return Sizes(law, family)


def gamma_sizes(dimension: int, family: Family) -> Sizes:
    """Lengths of vectors with noise ~ exp(-epsilon * length), on a lattice far finer than 1/epsilon, rounded down.

    With one dimension that is Laplace noise.
    """

    def law(epsilon: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        edges = np.linspace(0, dimension + 8 * math.sqrt(dimension) + _LENGTHS, _GRID)
        return edges / epsilon, np.diff(special.gammainc(dimension, edges), append=1.0)

    return Sizes(law, family)


def half_normal_sizes(rho: float, family: Family) -> Sizes:
    """Sizes of Gaussian noise, on a lattice far finer than it, in units of its deviation at ``rho``; rounded down."""

    def law(setting: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        edges = np.linspace(0, _REACH, _GRID)
        return edges * math.sqrt(rho / setting), np.diff(special.erf(edges / math.sqrt(2)), append=1.0)

    return Sizes(law, family)


def _last(surprising: Callable[[float], bool], family: Family) -> float:
    """Epsilon of the last setting that is surprising."""
    if not surprising(family.smallest):
        return 0.0
    low, high = family.smallest, family.largest
    for _ in range(_BISECTIONS):
        middle = math.sqrt(low * high)
        if surprising(middle):
            low = middle
        else:
            high = middle
    return family.epsilon(low)
