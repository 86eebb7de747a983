"""What a learner takes as a context: a histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.edge.terms import HISTOGRAM_TOLERANCE


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= HISTOGRAM_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good
