"""95 % intervals of means and ratios: from the normal law, and by a seeded bootstrap."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BOOTSTRAP_RESAMPLES = 1000
_NORMAL_975 = 1.959963984540054
_ROWS_AT_ONCE = 2_000_000


class Interval(NamedTuple):
    """A 95 % interval."""

    low: float
    high: float


def normal_interval(value: float, standard_error: float) -> Interval:
    """Return value -+ 1.96 standard errors."""
    return Interval(value - _NORMAL_975 * standard_error, value + _NORMAL_975 * standard_error)


def bootstrap_ratio(
    numerators: npt.NDArray[np.float64],
    denominators: npt.NDArray[np.float64],
    generator: np.random.Generator,
    resamples: int = BOOTSTRAP_RESAMPLES,
) -> Interval:
    """Return the percentile bootstrap interval of sum(numerators) / sum(denominators) (Efron 1979).

    Rows are drawn with replacement; resamples whose denominators sum to 0 are left out. With all
    denominators 1 this is the interval of a mean.

    Args:
        numerators: (n,).
        denominators: (n,), >= 0 and not all 0.
        generator: the source of the resamples.
        resamples: how many.
    """
    size = numerators.size
    at_once = max(1, _ROWS_AT_ONCE // size)
    ratios: list[npt.NDArray[np.float64]] = []
    for start in range(0, resamples, at_once):
        drawn = generator.integers(0, size, size=(min(at_once, resamples - start), size))
        below = denominators[drawn].sum(axis=1)
        ratios.append(numerators[drawn].sum(axis=1)[below > 0] / below[below > 0])
    low, high = np.percentile(np.concatenate(ratios), [2.5, 97.5])
    return Interval(float(low), float(high))
