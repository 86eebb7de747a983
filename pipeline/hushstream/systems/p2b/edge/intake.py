"""What a learner takes as a context: a histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.edge.terms import HISTOGRAM_TOLERANCE


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= HISTOGRAM_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good


def require_histogram(context: NDArray[np.float32], dimension: int) -> None:
    """Refuse a context that is no histogram of so many entries.

    Raises:
        HushstreamError: its shape, type or entries are others.
    """
    if context.shape != (dimension,) or context.dtype != np.float32:
        raise HushstreamError(
            f"context: expected float32 of shape ({dimension},), got {context.dtype} of shape {context.shape}"
        )
    # Written so that NaN, which compares false, is refused.
    if not (context.min() >= 0 and abs(float(context.sum(dtype=np.float64)) - 1.0) <= HISTOGRAM_TOLERANCE):
        raise HushstreamError("context: expected entries of at least 0 that sum to 1, got others")
