"""Normalised histograms on the grid of q decimal digits, the contexts that an encoder of codes expects."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def on_grid(weights: npt.NDArray[np.floating], digits: int) -> npt.NDArray[np.float32]:
    """Turn non-negative weights into histograms of 10**digits units, by largest remainder.

    Rows sum to one exactly in units; a row without weight becomes the even histogram. Equal remainders go to
    the lower bin first, so the result is a function of the row alone.

    Args:
        weights: (n, d), finite and >= 0.
        digits: q, decimal digits of each entry.

    Returns:
        (n, d) float32.
    """
    units = 10**digits
    shares = np.asarray(weights, dtype=np.float64).copy()
    totals = shares.sum(axis=1, keepdims=True)
    shares[totals[:, 0] == 0.0] = 1.0
    totals = shares.sum(axis=1, keepdims=True)
    # Rounded to 1e-9 units, so that remainders that are equal on paper are equal in binary too.
    exact = np.round(shares / totals * units, 9)
    counts = np.floor(exact)
    left = (units - counts.sum(axis=1)).astype(np.int64)
    order = np.argsort(counts - exact, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(shares.shape[1])[None, :], axis=1)
    counts += rank < left[:, None]
    return np.asarray(counts / units, dtype=np.float32)
