"""Compares two means by their ratio, with a 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORMAL_975 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of one condition's mean to another's, with a 95 % interval."""

    ratio: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Stable keys ratio, low, high."""
        return {"ratio": self.ratio, "low": self.low, "high": self.high}


def paired(above: NDArray[np.float64], below: NDArray[np.float64]) -> Comparison | None:
    """The ratio of two means over the same units, with a delta-method interval; None if the mean of ``below`` is 0.

    The units (users, visits, records) are the sample. The interval does not cover the randomness of what a run has
    learned.

    Args:
        above: (n,), a value of each unit, the numerator.
        below: (n,), the other value of the same units, at least 0, the denominator.
    """
    total = float(below.sum())
    if total <= 0 or len(below) < 2:
        return None
    ratio = float(above.sum()) / total
    spread = float((above - ratio * below).std(ddof=1)) * math.sqrt(len(below))
    half = NORMAL_975 * spread / total
    return Comparison(ratio, ratio - half, ratio + half)
