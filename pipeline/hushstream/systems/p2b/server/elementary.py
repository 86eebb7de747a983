"""Logarithm and exponential from additions, multiplications and divisions of a fixed order: the same bits on every CPU.

The functions of a mathematical library differ in the last bit between processors, so `verify` on another machine would
not find the same model. IEEE 754 fixes the result of each operation used here. Arrays are summed by `math.fsum`, which
rounds the exact sum once, whatever the order is.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

_LN2_HIGH = 0.693147180369123816490
"""ln 2 to 32 bits: its products with exponents are exact (as in FreeBSD's msun)."""

_LN2_LOW = 1.90821492927058770002e-10
_LN2 = 0.6931471805599453
_INVERSE_LN2 = 1.44269504088896338700
_SQRT_HALF = 0.70710678118654752440
_LOG_TERMS = 12
_EXP_TERMS = 14
_LARGEST_EXPONENT = 700.0


def log(values: Float64) -> Float64:
    """Natural logarithm of positive finite numbers; within 2 units in the last place.

    With ``x = 2^e m``, m in [sqrt(1/2), sqrt(2)), and ``s = (m - 1)/(m + 1)``: ln m = 2 (s + s^3/3 + s^5/5 + ...).
    """
    mantissa, exponent = np.frexp(values)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent - small.astype(np.float64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for term in range(_LOG_TERMS - 1, 0, -1):
        series = (series + 1.0 / (2 * term + 1)) * square
    return np.asarray(exponent * _LN2_HIGH + (2.0 * (ratio + ratio * series) + exponent * _LN2_LOW))


def exp(values: Float64) -> Float64:
    """Exponential, of arguments moved into [-700, 700]; within 2 units in the last place.

    With ``x = k ln 2 + r``, |r| <= ln(2)/2: 2^k times the Taylor sum of e^r.
    """
    clipped = np.clip(values, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    powers = np.rint(clipped * _INVERSE_LN2)
    rest = (clipped - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.ones_like(rest)
    for term in range(_EXP_TERMS, 0, -1):
        series = 1.0 + series * rest / term
    return np.asarray(np.ldexp(series, powers.astype(np.int64)))


def logistic(values: Float64) -> Float64:
    """1 / (1 + e^-x)."""
    return np.asarray(1.0 / (1.0 + exp(-values)))


def logit(values: Float64) -> Float64:
    """ln(p / (1 - p)) of numbers strictly between 0 and 1."""
    return log(values / (1.0 - values))


def total(values: Float64) -> float:
    """The sum of all entries, rounded once."""
    return math.fsum(values.ravel().tolist())


def halving(steps: float) -> float:
    """2^(-1/steps): the factor that gives one half when it is applied ``steps`` times."""
    return float(exp(np.array([-_LN2 / steps]))[0])
