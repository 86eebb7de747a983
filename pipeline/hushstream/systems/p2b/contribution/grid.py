"""The finite set of contexts: normalised histograms with ``q`` decimal digits.

A context of dimension ``d`` is a vector of multiples of ``10^-q`` that sum to one. By stars and bars there
are ``C(10^q + d - 1, d - 1)`` of them (P2B, Malekzadeh et al. 2020, Section 3.2, Equation 1). This module represents
such a vector by its *units*, integers that sum to ``10^q``, so that everything computed from it is exact.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.contribution.errors import ContributionError

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
    if not np.isfinite(values).all() or (values < 0).any():
        raise ContributionError("expected contexts of finite entries of at least 0, got another value")
    sums = values.sum(axis=1, keepdims=True)
    if (sums <= 0).any():
        raise ContributionError("expected contexts with a positive sum, got a row of zeros")
    units = 10**digits
    # Snapping to 2^-12 of a unit makes a histogram sent as float32 the grid point that it was written as.
    scaled = np.round(values / sums * (units * 4096.0)).astype(np.int64)
    whole: Int64 = scaled >> 12
    remainder = scaled & 4095
    # Never negative: the roundings add up to at most d/2 4096ths of a unit, which is less than one unit.
    missing = units - whole.sum(axis=1)
    order = np.argsort(-remainder, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(values.shape[1])[None, :], axis=1)
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
