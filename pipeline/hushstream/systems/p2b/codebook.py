"""The encoder of P2B: turns a context into the number of its nearest centroid (Malekzadeh et al. 2020, 3.2).

Every machine must compute the same bits for a slot. So centroids are multiples of ``2^-16``, and contexts are grid
units (see *Grid*). The nearest centroid of ``x = u / 10^q`` has the largest score

    2 * 10^q * 2^32 * (x'c - |c|^2 / 2)  =  2^17 u'C - 10^q |C|^2        with  C = 2^16 c,

a whole number. All scores stay below 2^53, where float64 is exact in every order of summation. So one float64 matrix
product gives the same codes on every machine. Among equal distances the lowest code is taken.

*Grid.* The finite set of contexts: normalised histograms with ``q`` decimal digits.

A context of dimension ``d`` is a vector of multiples of ``10^-q`` that sum to one. By stars and bars there
are ``C(10^q + d - 1, d - 1)`` of them (P2B, Malekzadeh et al. 2020, Section 3.2, Equation 1). This module represents
such a vector by its *units*, integers that sum to ``10^q``, so that everything computed from it is exact.

*Fitting.* Fits the encoder by k-means on the public grid; only this needs scikit-learn.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.slots import ContributionError

Int64 = npt.NDArray[np.int64]
Floats = npt.NDArray[np.floating]

MAX_DIGITS = 5
MAX_DIMENSION = 4096
LARGEST_ENUMERATION = 200_000


def grid_size(dimension: int, digits: int) -> int:
    """How many normalised histograms there are: ``C(10^q + d - 1, d - 1)``.

    Raises:
        ContributionError: dimension or digits outside 1 to `MAX_DIMENSION` and 1 to `MAX_DIGITS`.
    """
    _require(dimension, digits)
    return math.comb(10**digits + dimension - 1, dimension - 1)


def grid_points(dimension: int, digits: int, sample: int = LARGEST_ENUMERATION, seed: int = 0) -> Int64:
    """The grid as units: the complete grid if it has at most `LARGEST_ENUMERATION` points, else a sample.

    The sample has ``sample`` independent uniform points (a uniform choice of the bars among the stars), drawn by
    numpy's PCG64 under ``seed``. No user data enters it, so it need not be secret.

    Returns:
        (n, d) int64, rows summing to ``10^q``; a complete grid is in lexicographic order of the bars.

    Raises:
        ContributionError: dimension or digits outside 1 to `MAX_DIMENSION` and 1 to `MAX_DIGITS`.
    """
    units = 10**digits
    places = units + dimension - 1
    if grid_size(dimension, digits) <= LARGEST_ENUMERATION:
        choices = list(combinations(range(places), dimension - 1))
        return _between(np.array(choices, dtype=np.int64).reshape(len(choices), dimension - 1), places)
    generator = np.random.Generator(np.random.PCG64(seed))
    bars = np.empty((sample, dimension - 1), dtype=np.int64)
    for row in range(sample):
        bars[row] = generator.choice(places, size=dimension - 1, replace=False, shuffle=False)
    bars.sort(axis=1)
    return _between(bars, places)


def _between(bars: Int64, places: int) -> Int64:
    """Count the stars between consecutive bars."""
    rows = len(bars)
    edges = np.concatenate(
        [np.full((rows, 1), -1, dtype=np.int64), bars, np.full((rows, 1), places, dtype=np.int64)], axis=1
    )
    return np.diff(edges, axis=1) - 1


def grid_units(contexts: Floats, digits: int) -> Int64:
    """Put contexts on the grid by the method of the largest remainder.

    Each row is divided by its sum, multiplied by ``10^q`` and rounded down. The missing units go to the entries with
    the largest remainders; among equal remainders the lower index comes first. A row that is on the grid already (up
    to float32's rounding) keeps its value.

    Args:
        contexts: (n, d) floats, not negative, each row with a positive sum.
        digits: q.

    Returns:
        (n, d) int64 units, rows summing to ``10^q``.

    Raises:
        ContributionError: a wrong shape, a negative, NaN or infinite entry, or a row of zeros.
    """
    if contexts.ndim != 2:
        raise ContributionError(f"expected contexts of shape (n, d), got {contexts.shape}")
    _require(contexts.shape[1], digits)
    values = contexts.astype(np.float64)
    if not ((values >= 0) & (values < np.inf)).all():
        raise ContributionError("expected contexts of finite entries of at least 0, got another value")
    sums = values.sum(axis=1, keepdims=True)
    if not ((sums > 0) & (sums < np.inf)).all():
        raise ContributionError("expected contexts with a positive, finite sum, got a row of zeros or a larger sum")
    units = 10**digits
    # Snapping to 2^-12 of a unit makes a histogram sent as float32 the grid point that it was written as.
    scaled = np.round(values / sums * (units * 4096.0)).astype(np.int64)
    whole: Int64 = scaled >> 12
    remainder = scaled & 4095
    # Never negative: the roundings add up to at most d/2 4096ths of a unit, which is less than one unit.
    missing = units - whole.sum(axis=1)
    rank = (-remainder).argsort(axis=1, kind="stable").argsort(axis=1)
    whole += rank < missing[:, None]
    return whole


def normalise_grid(contexts: Floats, digits: int) -> npt.NDArray[np.float32]:
    """`grid_units` as float32 histograms: multiples of ``10^-q`` that sum to one."""
    return (grid_units(contexts, digits) / 10.0**digits).astype(np.float32)


def _require(dimension: int, digits: int) -> None:
    if not 1 <= dimension <= MAX_DIMENSION or not 1 <= digits <= MAX_DIGITS:
        raise ContributionError(
            f"expected 1 to {MAX_DIMENSION} dimensions and 1 to {MAX_DIGITS} digits, got {dimension} and {digits}"
        )


CENTROID_STEPS = 1 << 16
_EXACT = 1 << 52
_ROWS = 2048


class Encoder:
    """Nearest-centroid codes on the grid of ``digits`` decimal digits.

    Holds scratch memory: one encoder serves one thread.
    """

    def __init__(self, centroids: Floats, digits: int) -> None:
        """Round the centroids to multiples of ``2^-16`` and prepare the integer scores.

        Args:
            centroids: (k, d), finite.
            digits: q, the decimal digits of a context's entries.

        Raises:
            ContributionError: a wrong shape, values that are not finite, or so large that scores would
                leave the exact range.
        """
        if centroids.ndim != 2 or 0 in centroids.shape:
            raise ContributionError(f"expected centroids of shape (k, d), got {centroids.shape}")
        if not 1 <= digits <= MAX_DIGITS:
            raise ContributionError(f"expected 1 to {MAX_DIGITS} digits, got {digits}")
        if not np.isfinite(centroids).all() or np.abs(centroids).max() > CENTROID_STEPS:
            raise ContributionError("expected finite centroids near the unit simplex, got another value")
        self.digits = digits
        self.lattice: Int64 = np.rint(centroids.astype(np.float64) * CENTROID_STEPS).astype(np.int64)
        """(k, d) int64: the centroids in units of ``2^-16``. They and ``digits`` define the encoder."""
        squares = (self.lattice**2).sum(axis=1)
        units = 10**digits
        largest = max(int(np.abs(self.lattice).max()) * units * 2 * CENTROID_STEPS, int(squares.max()) * units)
        if largest > _EXACT:
            raise ContributionError("expected centroids on the unit simplex, got entries too large for exact scores")
        self._weights = np.ascontiguousarray(self.lattice.T * (2.0 * CENTROID_STEPS))
        self._offsets = squares * float(units)
        self._units = np.empty((_ROWS, self.dimension))
        self._scores = np.empty((_ROWS, self.codes))

    @property
    def codes(self) -> int:
        """k, the number of codes."""
        return int(self.lattice.shape[0])

    @property
    def dimension(self) -> int:
        """d, the number of entries of a context."""
        return int(self.lattice.shape[1])

    @property
    def centroids(self) -> npt.NDArray[np.float32]:
        """(k, d) float32; exact, since a multiple of ``2^-16`` below 2^8 has at most 24 bits."""
        return (self.lattice / CENTROID_STEPS).astype(np.float32)

    def encode(self, contexts: Floats) -> npt.NDArray[np.int32]:
        """The codes of contexts.

        Args:
            contexts: (n, d) floats; put on the grid first.

        Returns:
            (n,) int32 in [0, k).

        Raises:
            ContributionError: a wrong shape, or contexts that are no histograms.
        """
        units = grid_units(contexts, self.digits)
        if units.shape[1] != self.dimension:
            raise ContributionError(f"expected units of shape (n, {self.dimension}), got {units.shape}")
        codes = np.empty(len(units), dtype=np.int32)
        for low in range(0, len(units), _ROWS):
            high = min(low + _ROWS, len(units))
            chunk, scores = self._units[: high - low], self._scores[: high - low]
            chunk[:] = units[low:high]
            np.matmul(chunk, self._weights, scores)
            np.subtract(scores, self._offsets, scores)
            codes[low:high] = scores.argmax(axis=1)
        return codes


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
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

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
