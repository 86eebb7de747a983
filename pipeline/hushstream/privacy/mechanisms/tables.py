"""Integer tables from which a discrete Laplace variable is drawn with comparisons alone.

Let q = exp(-1/s) for the scale s. Two facts make the draw exact, up to the rounding of the tables:

1. *Sign.* X with P(X = x) = (1-q)/(1+q) q^|x| is G with probability 1/(1+q) and -1-G otherwise, where G is
   geometric, P(G = g) = (1-q) q^g. Check: for x >= 0, (1-q) q^x / (1+q); for x < 0 the coin's other side has
   probability q/(1+q) and G = -x-1, so q (1-q) q^(-x-1) / (1+q) = (1-q)/(1+q) q^(-x). One geometric
   variable and one coin; zero is not counted twice and nothing is rejected.
2. *Digits.* Written in base 256, G = d_0 + 256 d_1 + ..., its digits are independent with
   P(d_i = j) proportional to q^(256^i j), since q^G is the product of q^(256^i d_i). Given G < 256^L the
   first L digits have exactly that law, and P(G >= 256^L) = q^(256^L) = exp(-256^L / s).

A digit is the number of thresholds at or below a uniform 64-bit word. The thresholds are the cumulative
probabilities times 2^64, rounded to the nearest integer. They are computed at 320 bits with integers only
(mpmath), so every machine has the same tables, and the truncation error (the total variation distance between the law
drawn and the exact law) is computed beside them, rounded up.

*Lookup.* The number of thresholds at or below a uniform word, by the word's first bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.conversions import context, to_fraction
from hushstream.privacy.errors import BadNoise

_FIRST_BITS = 14
"""2^14 entries of two bytes stay in a core's first cache; 255 thresholds leave 1.6 % of the words undecided."""

_SHIFT = np.uint64(64 - _FIRST_BITS)
_UNDECIDED = -1
_FEW = 256
"""For fewer words than this a binary search is faster."""


class ThresholdLookup:
    """`numpy.searchsorted(thresholds, words, side="right")` for uniform words, several times as fast.

    A table has this number for those first bits for which it is the same for all words. The few other words are
    searched for. Both are integer comparisons, so the results are the same everywhere.
    """

    __slots__ = ("_counts", "_thresholds")

    def __init__(self, thresholds: NDArray[np.uint64]) -> None:
        """Make the table.

        Args:
            thresholds: (n,) uint64, ascending, fewer than 2^15.
        """
        first = np.arange(1 << _FIRST_BITS, dtype=np.uint64) << _SHIFT
        counts = np.searchsorted(thresholds, first, side="right").astype(np.int16)
        within = (thresholds >> _SHIFT).astype(np.int64)
        # A threshold that is the first word of an entry lies between this entry and the one before: inside neither.
        counts[within[thresholds != first[within]]] = _UNDECIDED
        self._counts = counts
        self._thresholds = thresholds

    def passed(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How many thresholds are at or below each word, int64, for words of shape (n,)."""
        if len(words) < _FEW:
            return np.searchsorted(self._thresholds, words, side="right").astype(np.int64, copy=False)
        counts = self._counts.take((words >> _SHIFT).astype(np.int64))
        undecided = np.flatnonzero(counts < 0)
        counts[undecided] = np.searchsorted(self._thresholds, words[undecided], side="right")
        return counts.astype(np.int64)


BASE_BITS = 8
BASE = 1 << BASE_BITS
WORD_BITS = 64
LARGEST_DIGITS = 7
"""Seven digits stay below 2^56, so a draw can be added to most sums without nearing 2^63."""

TAIL_EXPONENT = 56
"""Digits are added until P(G >= 256^L) <= exp(-56) < 2^-80."""

_CONTEXT = context()
_ROUNDING = Fraction(1, 1 << 200)
"""Allowance for the arithmetic of the truncation error itself: 256 operations at 320 bits are off by far less."""

_EXACT_BITS = 400
"""A digit's cumulative probabilities are 1/256 at least, so these are whole numbers of 2^-400 as they are computed."""
_WORD_SHIFT = _EXACT_BITS - WORD_BITS


@dataclass(frozen=True, slots=True)
class LaplaceTables:
    """Tables of one scale.

    Attributes:
        digits: for each base-256 digit, least significant first, its increasing uint64 thresholds; values
            that round to 2^64 are left out, since no word reaches them.
        lookups: of each digit's thresholds.
        negative_below: words below this give a negative draw, P(X < 0) = q/(1+q) in units of 2^-64.
        truncation: upper bound on the total variation distance of one draw from the exact law.
    """

    digits: tuple[NDArray[np.uint64], ...]
    lookups: tuple[ThresholdLookup, ...]
    negative_below: np.uint64
    truncation: Fraction


def laplace_tables(scale_numerator: int, scale_denominator: int) -> LaplaceTables:
    """Tables for P(x) proportional to exp(-|x| denominator/numerator), built once per scale.

    Raises:
        BadNoise: the scale is not positive, or above 2^56/56 (about 1.3e15), where a draw could near 2^63.
    """
    for name, value in (("numerator", scale_numerator), ("denominator", scale_denominator)):
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise BadNoise(f"scale {name}: expected a whole number above 0, got {value!r}")
    common = gcd(scale_numerator, scale_denominator)
    return _laplace_tables(scale_numerator // common, scale_denominator // common)


@lru_cache(maxsize=256)
def _laplace_tables(numerator: int, denominator: int) -> LaplaceTables:
    count = next(
        (n for n in range(1, LARGEST_DIGITS + 1) if BASE**n * denominator >= TAIL_EXPONENT * numerator),
        None,
    )
    if count is None:
        raise BadNoise(f"scale: expected at most 2^56/56, got about {numerator / denominator:.3g}")
    rate = _CONTEXT.mpf(denominator) / numerator
    digits: list[NDArray[np.uint64]] = []
    truncation = to_fraction(_CONTEXT.exp(-rate * BASE**count)) + _ROUNDING
    for place in range(count):
        thresholds, error = _digit_table(_CONTEXT.exp(-rate * BASE**place))
        digits.append(thresholds)
        truncation += error
    ratio = _CONTEXT.exp(-rate)
    negative = ratio / (1 + ratio)
    negative_below = _nearest(negative)
    truncation += abs(Fraction(negative_below, 1 << WORD_BITS) - to_fraction(negative)) + _ROUNDING
    lookups = tuple(ThresholdLookup(thresholds) for thresholds in digits)
    return LaplaceTables(tuple(digits), lookups, np.uint64(negative_below), truncation)


def _digit_table(ratio: Any) -> tuple[NDArray[np.uint64], Fraction]:
    """Thresholds of a digit with P(j) proportional to ratio^j; their total variation error, bounded above."""
    full = 1 - ratio**BASE
    power = _CONTEXT.mpf(1)
    before_exact, before_rounded, error = 0, 0, 0
    thresholds: list[int] = []
    for digit in range(BASE):
        power *= ratio
        exact = 1 << _EXACT_BITS if digit == BASE - 1 else int(_CONTEXT.ldexp((1 - power) / full, _EXACT_BITS))
        rounded = (exact + (1 << (_WORD_SHIFT - 1))) >> _WORD_SHIFT
        error += abs(((rounded - before_rounded) << _WORD_SHIFT) - (exact - before_exact))
        before_exact, before_rounded = exact, rounded
        if rounded < 1 << WORD_BITS:
            thresholds.append(rounded)
    table = np.array(thresholds, dtype=np.uint64)
    table.setflags(write=False)
    return table, Fraction(error, 2 << _EXACT_BITS) + _ROUNDING


def _nearest(probability: Any) -> int:
    """A probability in units of 2^-64, rounded to the nearest integer."""
    return int(_CONTEXT.floor(probability * (1 << WORD_BITS) + _CONTEXT.mpf(0.5)))
