"""The comparison of two means, with its 95 % interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NORMAL_975 = 1.959963984540054


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many times the mean of one condition is that of another, with a 95 % interval."""

    ratio: float
    low: float
    high: float

    def as_json(self) -> dict[str, float]:
        """Stable keys ratio, low, high."""
        return {"ratio": self.ratio, "low": self.low, "high": self.high}


def paired(above: NDArray[np.float64], below: NDArray[np.float64]) -> Comparison | None:
    """The ratio of two means over the same units, with the interval of a ratio (delta method); None if below's is 0.

    The units (users, visits, records) are the sample: what one run has learned is taken as given.

    Args:
        above: (n,), a value of each unit.
        below: (n,), the same units' other values, at least 0.
    """
    total = float(below.sum())
    if total <= 0 or len(below) < 2:
        return None
    ratio = float(above.sum()) / total
    spread = float((above - ratio * below).std(ddof=1)) * math.sqrt(len(below))
    half = NORMAL_975 * spread / total
    return Comparison(ratio, ratio - half, ratio + half)
