"""The screen: a release that is longer than its domain can have made it is passed over.

A leaf of B slots moves the sum by at most B Delta, and the noise of the difference of two releases has norm sqrt(n)
sigma_inc, give or take: for a Gaussian vector Z with independent coordinates of deviation sigma_inc and a vector v,
||v + Z|| exceeds sqrt(|v|^2 + n sigma_inc^2) + 6 sigma_inc with probability below e^-18 = 1.5e-8, as its mean is at
most the root (Jensen) and a norm is 1-Lipschitz (Gaussian concentration, P(f > E f + t sigma) <= e^(-t^2/2)). Whoever
stays below the limit still moves the model by that much, and no further. Screens read releases alone:
post-processing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.counters import Noise
from hushstream.systems.pdol.configuration import UNIT

_DEVIATIONS = 6.0
_HALF_BITS = 20
_HALF = (1 << _HALF_BITS) - 1


def longest(noise: Noise, slots_per_release: int, dimension: int, before: int, after: int) -> int:
    """The longest that the difference of two releases of a counter may be, in lattice units, rounded up.

    Args:
        noise: of the counter.
        slots_per_release: B.
        dimension: n.
        before: leaves in the earlier release (0: there is none).
        after: leaves in the later one.
    """
    variance = noise.increment(before, after)
    moved = float((after - before) * slots_per_release * UNIT)
    return math.ceil(math.sqrt(moved * moved + dimension * variance) + _DEVIATIONS * math.sqrt(variance))


def too_long(difference: NDArray[np.int64], limit: int) -> bool:
    """Whether a vector is longer than ``limit``, in whole numbers: the same answer on every machine."""
    if len(difference) and max(int(difference.max()), -int(difference.min())) > limit:
        return True
    # Cut in two halves: squares of both stay exact in 64 bits for up to 2^20 coordinates.
    high, low = difference >> _HALF_BITS, difference & _HALF
    squares = (int(high @ high) << 2 * _HALF_BITS) + (int(high @ low) << (_HALF_BITS + 1)) + int(low @ low)
    return squares > limit * limit
