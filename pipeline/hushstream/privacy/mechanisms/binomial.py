"""Binomial tails at 448 bits, for exact accounting and exact confidence bounds.

Every value is off by less than 2^-240 in absolute terms: single terms come from log-gamma (relative error
under 2^-330 for n < 2^60), sums run away from the mode, where terms shrink, and stop below 2^-320.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hushstream.privacy.bounds import context

LARGEST_TRIALS = 1 << 60
_CONTEXT = context(448)
_NEGLIGIBLE = _CONTEXT.ldexp(1, -320)


def working(value: Fraction | int) -> Any:
    """A rational as a number of 448 bits."""
    exact = Fraction(value)
    return _CONTEXT.mpf(exact.numerator) / exact.denominator


def probability_of(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) = successes), ``chance`` strictly between 0 and 1."""
    if not 0 <= successes <= trials:
        return _CONTEXT.zero
    ways = _CONTEXT.loggamma(trials + 1) - _CONTEXT.loggamma(successes + 1) - _CONTEXT.loggamma(trials - successes + 1)
    return _CONTEXT.exp(ways + successes * _CONTEXT.log(chance) + (trials - successes) * _CONTEXT.log(1 - chance))


def at_least(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) >= successes)."""
    if successes > (trials + 1) * chance:
        return _upper(trials, successes, chance)
    return 1 - _lower(trials, successes - 1, chance)


def at_most(trials: int, successes: int, chance: Any) -> Any:
    """P(Bin(trials, chance) <= successes)."""
    if successes < (trials + 1) * chance:
        return _lower(trials, successes, chance)
    return 1 - _upper(trials, successes + 1, chance)


def _upper(trials: int, first: int, chance: Any) -> Any:
    """Sum from ``first``, at or above the mode, upwards."""
    term = probability_of(trials, first, chance)
    total = _CONTEXT.zero
    odds = chance / (1 - chance)
    for successes in range(first, trials + 1):
        total += term
        term = term * odds * (trials - successes) / (successes + 1)
        if term < _NEGLIGIBLE:
            break
    return total


def _lower(trials: int, last: int, chance: Any) -> Any:
    """Sum from ``last``, at or below the mode, downwards."""
    term = probability_of(trials, last, chance)
    total = _CONTEXT.zero
    odds = (1 - chance) / chance
    for successes in range(last, -1, -1):
        total += term
        term = term * odds * successes / (trials - successes + 1)
        if term < _NEGLIGIBLE:
            break
    return total
