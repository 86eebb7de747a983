"""Fits the encoder by k-means on the public grid; the only module that needs scikit-learn."""

from __future__ import annotations

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.systems.p2b.contribution.encoder import Encoder
from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.contribution.grid import grid_points, grid_size

_SMALL_CODES = 64
_POINTS = 50_000


def fit_grid(dimension: int, digits: int, codes: int, seed: int, sample: int = _POINTS) -> Encoder:
    """Fit ``codes`` centroids on the grid of normalised histograms (P2B Section 3.2; Sculley 2010).

    The encoder is fitted on the complete grid if that is small, else on ``sample`` uniform grid points; no user data
    enters. Lloyd's algorithm is used up to 64 codes, mini-batches above. Centroids are sorted, so that codes do not
    depend on the order of initialisation. Another machine or version may fit other centroids. So a deployment keeps
    the fitted encoder (`Encoder.lattice`) with its configuration.

    Raises:
        ContributionError: fewer than one code, or more codes than grid points.
    """
    size = grid_size(dimension, digits)
    if not 1 <= codes <= size:
        raise ContributionError(f"expected 1 to {size} codes for this grid, got {codes}")
    points = grid_points(dimension, digits, sample=max(sample, 20 * codes), seed=seed)
    histograms = points / 10.0**digits
    if codes <= _SMALL_CODES:
        model = KMeans(n_clusters=codes, n_init=1, random_state=seed, max_iter=100)
    else:
        model = MiniBatchKMeans(
            n_clusters=codes, n_init=1, random_state=seed, batch_size=max(4096, 4 * codes), max_iter=50
        )
    # One thread, because the order of summation inside k-means depends on the number of threads.
    with threadpool_limits(limits=1):
        model.fit(histograms)
    centroids = model.cluster_centers_
    return Encoder(centroids[np.lexsort(centroids.T[::-1])], digits)
