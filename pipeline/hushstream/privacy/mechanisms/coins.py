"""Keyed coins, choices and orders: secret sampling and sorting that a replay repeats exactly."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Number, exact
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.noise import KeyedStream

COIN_BITS = 64
COIN_ONE = 1 << COIN_BITS
"""Probability 1 in units of 2^-64."""


def probability_units(probability: Number) -> int:
    """A probability in units of 2^-64, rounded up. The coin has this probability, and so has the accounting.

    Raises:
        BadNoise: not in [0, 1].
        BadAmount: not a number.
    """
    value = exact(probability, "probability")
    if not 0 <= value <= 1:
        raise BadNoise(f"probability: expected a number from 0 to 1, got {probability!r}")
    return math.ceil(value * COIN_ONE)


def coin_probability(units: int) -> Fraction:
    """The exact probability of a coin of ``units`` 2^-64."""
    return Fraction(units, COIN_ONE)


def bernoulli(stream: KeyedStream, units: int, size: int) -> NDArray[np.bool_]:
    """Throw ``size`` independent coins that are True with probability exactly units/2^64.

    Args:
        stream: the keyed words.
        units: 0 to 2^64, see `probability_units`.
        size: how many.

    Returns:
        bool, shape (size,). The first n are the same for every size >= n.

    Raises:
        BadNoise: units out of range.

    Guarantee:
        Computational: to parties without the key the coins are independent and secret, which is what
        amplification by sampling needs (each slot kept with probability p, whatever it holds).
    """
    if not 0 <= units <= COIN_ONE:
        raise BadNoise(f"coin: expected 0 to 2^64 units, got {units}")
    words = stream.words(size, "bernoulli", units)
    if units == COIN_ONE:
        return np.ones(size, dtype=np.bool_)
    return words < np.uint64(units)


def choice(stream: KeyedStream, below: int) -> int:
    """A uniform integer in [0, below): 128 bits times ``below``, top part; its bias is under below * 2^-128.

    Raises:
        BadNoise: ``below`` is not from 1 to 2^63.
    """
    if not 1 <= below <= 1 << 63:
        raise BadNoise(f"choice: expected 1 to 2^63 possibilities, got {below}")
    high, low = stream.words(2, "choice", below)
    return ((int(high) << 64 | int(low)) * below) >> 128


def permutation(stream: KeyedStream, size: int) -> NDArray[np.int64]:
    """A uniform order of 0..size-1: positions sorted by 128-bit keys.

    Two keys are equal (and then keep their order) with probability under size^2 * 2^-129, which bounds the
    distance from the uniform law.

    Returns:
        int64, shape (size,).
    """
    words = stream.words(2 * size, "permutation", size)
    return np.lexsort((words[1::2], words[0::2])).astype(np.int64)
