"""What secret sampling of slots does to epsilon, in both directions, rounded to the safe side."""

from __future__ import annotations

import math
from fractions import Fraction

from hushstream.privacy.amounts import MICRO, Number, epsilon_micro, epsilon_value
from hushstream.privacy.bounds import exp_above, exp_below, log_above
from hushstream.privacy.errors import BadAmount
from hushstream.privacy.mechanisms.coins import COIN_ONE, coin_probability, probability_units


def amplified_epsilon_micro(epsilon: Number, sampling: Number) -> int:
    """ln(1 + p (e^eps - 1)) in millionths, rounded up.

    Args:
        epsilon: of the mechanism that sees the kept slots; rounded up to millionths, at most 1,000.
        sampling: p, in (0, 1]; rounded up to a multiple of 2^-64, as the coin is.

    Raises:
        BadAmount: p is 0, or epsilon is too large.

    Guarantee:
        Null-slot relation, each slot kept with probability p, independently and secretly. With the slot null
        the release has law Q; with a report in it, p P + (1-p) Q, where P and Q are within e^eps of each
        other for every choice of the other slots' coins. The mixture is at most (p e^eps + 1 - p) Q, and, as
        Q <= e^eps P, at least (p e^-eps + 1 - p) Q; and 1/(p e^-eps + 1 - p) <= p e^eps + 1 - p, since their
        product is 1 + p (1-p) (e^eps + e^-eps - 2) >= 1. (Li, Qardaji, Su 2012, Theorem 1.)
    """
    micro, chance = epsilon_micro(epsilon), _chance(sampling)
    if chance == 1:
        return micro
    return math.ceil(log_above(1 + chance * (exp_above(epsilon_value(micro)) - 1)) * MICRO)


def noise_epsilon(target: Number, sampling: Number) -> Fraction:
    """The largest epsilon in whole millionths whose amplified value is at most ``target``.

    Args:
        target: the epsilon to promise, in (0, 1,000].
        sampling: p, in (0, 1].

    Raises:
        BadAmount: p is 0, or the target is too large.
    """
    goal, chance = epsilon_micro(target), _chance(sampling)
    if chance == 1:
        return epsilon_value(goal)
    guess = log_above(1 + (exp_below(epsilon_value(goal)) - 1) / chance)
    micro = math.floor(guess * MICRO)
    # The logarithm is an upper bound: at a boundary its floor can be one too many, never more.
    if amplified_epsilon_micro(epsilon_value(micro), sampling) > goal:
        micro -= 1
    return epsilon_value(micro)


def _chance(sampling: Number) -> Fraction:
    units = probability_units(sampling)
    if not 0 < units <= COIN_ONE:
        raise BadAmount(f"sampling probability: expected above 0 and at most 1, got {sampling!r}")
    return coin_probability(units)
