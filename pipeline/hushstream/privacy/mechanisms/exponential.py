"""The keyed exponential mechanism: an epsilon-private choice among candidates that favours those of high utility.

Utilities are whole numbers, so no rounding of theirs can widen the sensitivity. Candidate i has the weight
floor(2^128 exp(-eps (u_max - u_i) / (2 Delta))) + 1, a whole number, and is chosen by comparing whole numbers: no
candidate has probability 0, and every machine chooses the same one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from fractions import Fraction
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import DELTA_ONE, Cost, Number, epsilon_micro, epsilon_text, epsilon_value
from hushstream.privacy.conversions import LARGEST_EXPONENT, exp_above, exp_below
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.noise import KeyedStream
from hushstream.privacy.promises.promise import Deployment, Guarantee, Lifetime

WEIGHT_BITS = 128
CHOICE_WORDS = 4
LARGEST_CANDIDATES = 1 << 24
_NOTHING_BEYOND = 100
"""exp(-100) is below 2^-128, so the floor is 0 from there on."""


def exponential_choice(stream: KeyedStream, utilities: NDArray[np.int64], epsilon: Number, sensitivity: int) -> int:
    """Choose candidate i with probability proportional to exp(eps u_i / (2 Delta)).

    Args:
        stream: the keyed words of this choice; four words, whatever the utilities are.
        utilities: u, int64 (n,), from 1 to 2^24 candidates; larger is better. The candidates are public.
        epsilon: above 0, at most 1,000; rounded up to millionths.
        sensitivity: Delta, how far one unit moves any single utility, at least 1.

    Returns:
        An index into ``utilities``.

    Raises:
        BadNoise: an impossible setting, or utilities of another type or shape. The message repeats no utility.

    Source: McSherry, Talwar 2007 (Mechanism Design via Differential Privacy), Theorem 6.

    Guarantee:
        Computational, against parties without the key. With exact weights the ratio of two neighbours' laws is
        at most e^(eps/2) for the weight and e^(eps/2) for the sum of all weights: pure epsilon. The law drawn is
        within `exponential_truncation` of the exact one in total variation, so by the argument of
        `noise.discrete_laplace` delta = (1 + e^eps) times that.
    """
    micro = _checked(epsilon, sensitivity, len(utilities))
    if utilities.dtype != np.int64 or utilities.ndim != 1:
        raise BadNoise(f"utilities: expected int64 of shape (n,), got {utilities.dtype} {utilities.shape}")
    weights = exponential_weights(utilities, micro, sensitivity)
    words = stream.words(CHOICE_WORDS, "exponential", micro, sensitivity, len(utilities)).tolist()
    uniform = sum(word << (64 * place) for place, word in enumerate(words))
    goal = (uniform * sum(weights)) >> (64 * CHOICE_WORDS)
    return bisect_right(list(accumulate(weights)), goal)


def exponential_weights(utilities: NDArray[np.int64], micro: int, sensitivity: int) -> list[int]:
    """The whole-number weights of the candidates for an epsilon of ``micro`` millionths."""
    rate = epsilon_value(micro) / (2 * sensitivity)
    best = int(utilities.max())
    values, places = np.unique(utilities, return_inverse=True)
    table = [_weight(rate * (best - value)) for value in values.tolist()]
    return [table[place] for place in places.tolist()]


def exponential_truncation(candidates: int) -> Fraction:
    """Upper bound on the total variation distance of a choice from the exact law.

    Every weight is off by at most 1 and a little of 2^128 times its exponential, and their sum is at least 2^128; the
    choice by 256 random bits is off by less than 2^-256 for each candidate.
    """
    return Fraction(candidates + 1, 1 << (WEIGHT_BITS - 1))


def exponential_guarantee(
    candidates: int,
    epsilon: Number,
    sensitivity: int,
    choices: int = 1,
    deployment: Deployment = "hosted",
    zone: str = "counter",
) -> Guarantee:
    """The guarantee of one choice, and of ``choices`` choices that use one user's data.

    Raises:
        BadNoise: a setting out of range.
        BadAmount: epsilon is no number.
    """
    micro = _checked(epsilon, sensitivity, candidates)
    if choices < 1:
        raise BadNoise(f"choices: expected a whole number above 0, got {choices!r}")
    one = _cost(micro, exponential_truncation(candidates))
    return Guarantee(
        mechanism=f"exponential: one of {candidates} candidates, epsilon {epsilon_text(micro)}, utilities of"
        f" sensitivity {sensitivity}",
        relation="zero-out: neighbours differ in the content of one user's report, an interaction or null",
        unit="one choice",
        cost=one,
        replace_one=_cost(2 * micro, 2 * exponential_truncation(candidates)),
        lifetime=Lifetime(
            choices,
            1,
            _cost(choices * micro, choices * exponential_truncation(candidates)),
            _cost(2 * choices * micro, 2 * choices * exponential_truncation(candidates)),
        ),
        sensitivity=sensitivity,
        norm="largest change of any single utility",
        zone=zone,
        deployment=deployment,
        truncation_units=one.delta_units,
        not_protected=(
            "the candidates, and that and when a choice was made",
            "what holds for the population, and what follows from it for anyone",
        ),
    )


def _checked(epsilon: Number, sensitivity: int, candidates: int) -> int:
    micro = epsilon_micro(epsilon)
    if not 0 < epsilon_value(micro) <= LARGEST_EXPONENT:
        raise BadNoise(f"epsilon: expected above 0 and at most {LARGEST_EXPONENT}, got {epsilon!r}")
    if not isinstance(sensitivity, int) or isinstance(sensitivity, bool) or sensitivity < 1:
        raise BadNoise(f"sensitivity: expected a whole number above 0, got {sensitivity!r}")
    if not 1 <= candidates <= LARGEST_CANDIDATES:
        raise BadNoise(f"candidates: expected 1 to {LARGEST_CANDIDATES}, got {candidates}")
    return micro


def _weight(exponent: Fraction) -> int:
    if exponent > _NOTHING_BEYOND:
        return 1
    return math.floor(exp_below(-exponent) * (1 << WEIGHT_BITS)) + 1


def _cost(micro: int, variation: Fraction) -> Cost:
    if epsilon_value(micro) > _NOTHING_BEYOND:
        return Cost(micro, DELTA_ONE)
    return Cost(micro, min(DELTA_ONE, math.ceil(variation * (1 + exp_above(epsilon_value(micro))) * DELTA_ONE)))
