"""Rational bounds, always on the stated side, for the exponentials and logarithms in privacy formulas.

Computed with mpmath at 320 bits, whose elementary functions are off by a few units in the last place;
the bounds allow a relative error of 2^-256. mpmath computes with integers, so every machine gets the same.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

from hushstream.privacy.errors import BadAmount

PRECISION_BITS = 320
LARGEST_EXPONENT = 1_000
_SLACK = Fraction(1, 1 << 256)


@cache
def context(precision_bits: int = PRECISION_BITS) -> Any:
    """A separate mpmath context: the library's global precision is neither used nor changed.

    There is one context for each precision, which nobody changes, because making one takes longer than most imports.
    The library is imported with the first: a device reads prices and computes none.
    """
    from mpmath import MPContext

    own = MPContext()
    own.prec = precision_bits
    return own


def to_fraction(value: Any) -> Fraction:
    """The exact rational value of a finite mpmath number."""
    mantissa, exponent = value.man_exp
    signed = -int(mantissa) if value < 0 else int(mantissa)
    return Fraction(signed << exponent) if exponent >= 0 else Fraction(signed, 1 << -exponent)


def exp_above(exponent: Fraction) -> Fraction:
    """A number not below e^exponent, and above it by at most a relative 2^-255.

    Raises:
        BadAmount: the exponent is beyond +-1,000 (no privacy formula needs it).
    """
    return _exp(exponent) * (1 + _SLACK)


def exp_below(exponent: Fraction) -> Fraction:
    """A number not above e^exponent, and below it by at most a relative 2^-255.

    Raises:
        BadAmount: the exponent is beyond +-1,000.
    """
    return _exp(exponent) * (1 - _SLACK)


def log_above(value: Fraction) -> Fraction:
    """A number not below ln(value), above it by at most 2^-255 of the larger of 1 and its size.

    Raises:
        BadAmount: the value is not positive.
    """
    if value <= 0:
        raise BadAmount("logarithm: expected a number above 0")
    result = to_fraction(context().log(context().mpf(value.numerator) / value.denominator))
    return result + _SLACK * max(Fraction(1), abs(result))


def _exp(exponent: Fraction) -> Fraction:
    if abs(exponent) > LARGEST_EXPONENT:
        raise BadAmount(f"exponential: expected an exponent within +-{LARGEST_EXPONENT}, got {float(exponent):.3g}")
    return to_fraction(context().exp(context().mpf(exponent.numerator) / exponent.denominator))
