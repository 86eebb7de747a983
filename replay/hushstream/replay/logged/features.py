"""Turns the features of a log into contexts of a learner: normalised histograms.

Every feature gets an equal share 1/m of the histogram's mass. A number within public bounds [low, high] divides its
share over two entries in proportion to u and 1 - u, with u = (x - low) / (high - low): with one entry alone, the
normalisation would remove the size of the number. A number outside is taken as the nearest bound. A category puts its
whole share on its own entry. Bounds and categories come from the mapping file and must be public: if they came from the
rows, they would reveal something about them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.log import LogError, LoggedDataset

HISTOGRAM_TOLERANCE = 1e-3
"""The tolerance for the sum of a row around 1, the same as that of the learners (float32 rounding)."""


def bounded_entries(values: npt.NDArray[np.float64], low: float, high: float) -> npt.NDArray[np.float64]:
    """Two entries (n, 2) that sum to 1 for numbers (n,) with public bounds ``low < high``."""
    share = (np.clip(values, low, high) - low) / (high - low)
    return np.stack([share, 1.0 - share], axis=1)


def category_entries(values: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.float64]:
    """One entry (n, count) of 1 for each category number (n,) in 0 .. count - 1."""
    entries = np.zeros((len(values), count))
    entries[np.arange(len(values)), values] = 1.0
    return entries


def histogram(features: Sequence[npt.NDArray[np.float64]]) -> npt.NDArray[np.float32]:
    """Join the entries of m features, each (n, width) with rows that sum to 1, into histograms (n, d)."""
    return (np.concatenate(features, axis=1) / len(features)).astype(np.float32)


def require_histograms(log: LoggedDataset) -> None:
    """Refuse a log with contexts that the learners would refuse.

    Raises:
        LogError: an entry is below 0, or a row does not sum to 1; the message names the row, and says what to put into
            the mapping.
    """
    sums = log.contexts.sum(axis=1, dtype=np.float64)
    wrong = np.flatnonzero((log.contexts.min(axis=1) < 0) | (np.abs(sums - 1.0) > HISTOGRAM_TOLERANCE))
    if wrong.size:
        raise LogError(
            f"{log.name}: row {wrong[0] + 1}: expected a context of entries of at least 0 that sum to 1, got another; "
            f"give `bounds` for numbers and `categories` for names in the mapping"
        )
