"""Conversions of privacy prices: pure epsilon, zCDP, Renyi at fixed orders, (epsilon, delta).

All amounts are whole numbers (epsilon, rho and Renyi divergence in millionths, delta in units of 2^-80) and every
conversion rounds up, so no conversion lowers a price.

========================  ======================================================================================
from pure epsilon         zCDP: rho = eps^2/2 (Bun, Steinke 2016, Proposition 3.3).
                          Renyi, order a: ln((sinh(a eps) - sinh((a-1) eps)) / sinh(eps)) / (a-1), what randomised
                          response has (the same, Lemma B.1); never above eps.
from (epsilon, delta)     delta beside the curve: of two (eps, delta)-close laws, all but a part delta is
                          eps-close (Murtagh, Vadhan 2016, after Kairouz, Oh, Viswanath 2015).
from zCDP                 Renyi, order a: a rho.
from Renyi, order a       (eps, delta) for any delta: eps = D + ln(1/delta)/(a-1) + ln(1-1/a) - ln(a)/(a-1) (Canonne,
                          Kamath, Steinke 2020, Proposition 12). Any order is a valid bound.
no conversion             from (epsilon, delta) to a curve without a delta.
========================  ======================================================================================

Composition by these rules agrees with Google's dp-accounting, which the tests use as the oracle; at run time only
whole-number arithmetic and bounds on the stated side are needed, so the package depends on neither its floats
nor its version.

*Bounds.* Rational bounds, always on the stated side, for the exponentials and logarithms in privacy formulas.

Computed with mpmath at 320 bits, whose elementary functions are off by a few units in the last place;
the bounds allow a relative error of 2^-256. mpmath computes with integers, so every machine gets the same.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache, lru_cache
from typing import Any

from hushstream.privacy.amounts import DELTA_ONE, MICRO, delta_value, epsilon_value
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


ORDERS: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 256, 512, 1024)
"""The fixed Renyi orders: every curve in a ledger has a price at each of them."""


def pure_to_rho_micro(epsilon_micro: int) -> int:
    """eps^2/2 in millionths of rho, rounded up."""
    return math.ceil(epsilon_value(_checked(epsilon_micro, "epsilon")) ** 2 / 2 * MICRO)


@lru_cache(maxsize=4096, typed=True)
def pure_to_renyi_micro(epsilon_micro: int, order: int) -> int:
    """Renyi divergence of a pure epsilon at a whole order above 1, in millionths, rounded up.

    With x = e^eps the quotient of hyperbolic sines is (x^a + x^(1-a)) / (x + 1): 1 at x = 1, and no difference of
    near numbers is taken. Its logarithm is a eps + ln(1 + x^(1-2a)) - ln(1 + x).
    """
    epsilon = epsilon_value(_checked(epsilon_micro, "epsilon"))
    _check_order(order)
    if epsilon > LARGEST_EXPONENT:
        return epsilon_micro
    near = log_above(1 + exp_above(max(Fraction(-LARGEST_EXPONENT), (1 - 2 * order) * epsilon)))
    logarithm = order * epsilon + near + log_above(1 / (1 + exp_below(epsilon)))
    return min(epsilon_micro, math.ceil(logarithm / (order - 1) * MICRO))


def rho_to_renyi_micro(rho_micro: int, order: int) -> int:
    """Renyi divergence of zCDP at an order, in millionths."""
    _check_order(order)
    return order * _checked(rho_micro, "rho")


def renyi_to_epsilon_micro(divergence_micro: int, order: int, delta_units: int) -> int:
    """The epsilon at ``delta_units`` that a Renyi divergence at one order gives, in millionths, rounded up.

    Raises:
        BadAmount: a delta that is not above 0 and below 1.
    """
    _check_order(order)
    if not 0 < delta_units < DELTA_ONE:
        raise BadAmount(f"delta: expected above 0 and below 1, got {delta_units} units of 2^-80")
    logarithms = log_above(1 / delta_value(delta_units)) + log_above(Fraction(1, order))
    epsilon = epsilon_value(_checked(divergence_micro, "divergence")) + logarithms / (order - 1)
    return max(0, math.ceil((epsilon + log_above(1 - Fraction(1, order))) * MICRO))


@lru_cache(maxsize=4096, typed=True)
def rho_to_epsilon_micro(rho_micro: int, delta_units: int) -> int:
    """The epsilon at ``delta_units`` that zCDP gives, in millionths, rounded up.

    Every whole order gives a valid bound. The bound falls and then climbs with the order: a float search doubles the
    order while that helps, then cuts the interval by thirds; the order that it picks is priced exactly.

    Raises:
        BadAmount: a delta that is not above 0 and below 1.
    """
    if rho_micro == 0:
        return 0
    if not 0 < delta_units < DELTA_ONE:
        raise BadAmount(f"delta: expected above 0 and below 1, got {delta_units} units of 2^-80")
    rho, logarithm = rho_micro / MICRO, -math.log(delta_units / DELTA_ONE)

    def near(order: int) -> float:
        return order * rho + (logarithm - math.log(order)) / (order - 1) + math.log1p(-1 / order)

    low, high = 2, 4
    while near(high) < near(high // 2):
        low, high = high // 2, 2 * high
    while high - low > 2:
        third = max(1, (high - low) // 3)
        low, high = (low, high - third) if near(low + third) <= near(high - third) else (low + third, high)
    best = min(range(low, high + 1), key=near)
    return renyi_to_epsilon_micro(rho_to_renyi_micro(rho_micro, best), best, delta_units)


def pure_curve(epsilon_micro: int) -> tuple[int, ...]:
    """Prices of a pure epsilon at all `ORDERS`."""
    return tuple(pure_to_renyi_micro(epsilon_micro, order) for order in ORDERS)


def rho_curve(rho_micro: int) -> tuple[int, ...]:
    """Prices of zCDP at all `ORDERS`."""
    return tuple(rho_to_renyi_micro(rho_micro, order) for order in ORDERS)


def largest_pure_epsilon(rho_micro: int) -> int:
    """The largest pure epsilon in millionths whose rho is at most ``rho_micro``."""
    epsilon = math.isqrt(2 * MICRO * _checked(rho_micro, "rho"))
    return epsilon if pure_to_rho_micro(epsilon) <= rho_micro else epsilon - 1


def _checked(micro: int, name: str) -> int:
    if not isinstance(micro, int) or isinstance(micro, bool) or micro < 0:
        raise BadAmount(f"{name}: expected whole millionths >= 0, got {micro!r}")
    return micro


def _check_order(order: int) -> None:
    if not isinstance(order, int) or isinstance(order, bool) or order < 2:
        raise BadAmount(f"order: expected a whole number above 1, got {order!r}")
