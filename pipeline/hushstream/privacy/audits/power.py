"""The power of an audit: the least epsilon of a release whose excess over the claim it finds with a stated probability.

At an epsilon an attacker has certain rates of true and false alarms. In a number of runs these rates are observed
within bounds, with probability `CHANCE`; the audit is computed from these bounds. So the power follows from the exact
curve alone, before any run.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy import stats

from hushstream.privacy.audits.audit import lower_confidence, upper_confidence
from hushstream.privacy.audits.laws import Family, Sizes, laplace_pair

CHANCE = 0.9
"""Probability of finding an excess."""

_HALVINGS = 10
"""Halvings of the ratio between the largest setting of a family and the claimed one; the precision is 3 % for a ratio
of a thousand."""
_SETTINGS = 40
_SPLITS = 24

Rates = Callable[[float], tuple[float, float]]
"""Setting of a family -> rates of true and of false alarms of the attack."""


def attack_power(
    family: Family, claimed: float, runs: int, false_alarm: float, rates: Rates | None = None
) -> float | None:
    """The least epsilon above the claim that `audit_attack` finds with probability `CHANCE`.

    Args:
        family: exact curves of the attack.
        claimed: epsilon.
        runs: on each of two neighbours.
        false_alarm: of the audit.
        rates: of the attack; those of the likelihood ratio above 1 unless given.

    Returns:
        None if it finds no setting of the family.
    """
    # Below its smallest setting a family has no curve, and the audit's bound is 0.
    rates, claim = rates or balanced_rates(family), max(family.smallest, setting_of(family, claimed))
    # Both rates come out as badly as this with the probability that is left.
    miss = (1 - CHANCE) / 2

    def found(setting: float) -> bool:
        # Sums of masses may be above 1 by a rounding.
        true_rate, false_rate = (min(1.0, rate) for rate in rates(setting))
        few = int(stats.binom.ppf(miss, runs, true_rate))
        many = int(stats.binom.ppf(1 - miss, runs, false_rate))
        seen = lower_confidence(few, runs, false_alarm / 2)
        return family.curve(claim)(float(upper_confidence(many, runs, false_alarm / 2))) < seen

    return _least(found, family, claim)


def size_power(law: Sizes, claimed: float, draws: int, false_alarm: float) -> float | None:
    """The least epsilon above the claim that `audit_sizes` finds with probability `CHANCE`.

    The mean of so many sizes is taken for normal, which that of some thousands is.
    """

    def found(setting: float) -> bool:
        sizes, masses = law.law(setting)
        mean = float(sizes @ masses)
        spread = math.sqrt(max(0.0, float(sizes**2 @ masses) - mean**2) / draws)
        unlucky = mean + float(stats.norm.ppf(CHANCE)) * spread
        return law.lower_bound(unlucky, draws, false_alarm) > claimed

    return _least(found, law.family, setting_of(law.family, claimed))


def balanced_rates(family: Family) -> Rates:
    """Rates of the attacker who says yes where the likelihood ratio is above 1: there they are the furthest apart."""

    def rates(setting: float) -> tuple[float, float]:
        curve = family.curve(setting)
        low, high = 0.0, 1.0
        # Curves are concave, so what lies above the diagonal has one maximum.
        for _ in range(_SPLITS):
            first, second = low + (high - low) / 3, high - (high - low) / 3
            if curve(first) - first < curve(second) - second:
                low = first
            else:
                high = second
        return curve(high), high

    return rates


def reaching(levels: int) -> Rates:
    """Rates of the attacker on one sum with Laplace noise who says yes where it reaches all ``levels`` of the unit."""

    def rates(epsilon: float) -> tuple[float, float]:
        pair = laplace_pair(epsilon, 1, levels)
        return float(pair.moved[-1]), float(pair.null[-1])

    return rates


def setting_of(family: Family, epsilon: float) -> float:
    """The largest setting that is sold for at most this epsilon, to some 1e-9 of it."""
    low, high = family.smallest / 1024, family.largest
    for _ in range(_SETTINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if family.epsilon(middle) <= epsilon else (low, middle)
    return low


def _least(found: Callable[[float], bool], family: Family, claim: float) -> float | None:
    low, high = claim, family.largest
    if not found(high):
        return None
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if found(middle) else (middle, high)
    return family.epsilon(high)
