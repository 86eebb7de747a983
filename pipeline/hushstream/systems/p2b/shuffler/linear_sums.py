"""The sums that a closed window releases, for declared features: two sums for each arm and cell, empty cells included.

All numbers are whole. A report of arm a with level R adds ``q_j R`` to ``ones[a, j]`` and ``q_j (M - R)`` to
``zeros[a, j]`` for each of its places (j, q_j).

*Sensitivity.* Null adds nothing. A valid report has ``sum |q_j| <= U`` and ``0 <= R <= M``. So it moves both arrays
together by at most ``sum |q_j| R + sum |q_j| (M - R) = M sum |q_j| <= M U`` in L1. That holds for all places, also if
two of them name one cell (the absolute value of a sum is at most the sum of absolute values). Epsilon need not be
divided among blocks, because the units of a report are. Another report in its place moves the arrays by at most
``2 M U``, which is reached by the same places with R = 0 and R = M.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.mechanisms.noise import checked_add
from hushstream.systems.p2b.contribution.feature_layout import UNITS, FeatureLayout
from hushstream.systems.p2b.contribution.feature_slots import FeatureReports
from hushstream.systems.p2b.shuffler.errors import ShufflingError
from hushstream.systems.p2b.shuffler.sums import CellSums

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_EXACT = 1 << 53
"""float64 holds every whole number below it exactly, in whatever order numbers are added."""


def linear_sums(layout: FeatureLayout, reports: FeatureReports, counted: Bools) -> CellSums:
    """The exact sums of a window, (K, P) each; never to leave the shuffler without `noised_sums`.

    A slot that does not count takes the same steps, but is added to an extra cell that is dropped at the end.

    Args:
        layout: the deployment's layout.
        reports: the reports of the window's slots, as `unpack_reports` checked them.
        counted: (n,) bool, which of them count (the secret coin kept the slot, and its catalogue is current).

    Raises:
        ShufflingError: the mask has another shape, or there are too many slots for exact sums.
    """
    size = len(reports.held)
    if counted.shape != (size,) or counted.dtype != np.bool_:
        raise ShufflingError(f"expected a mask of {size} booleans, got {counted.dtype} {counted.shape}")
    if size * UNITS * layout.levels >= _EXACT:
        raise ShufflingError(f"expected at most {_EXACT // (UNITS * layout.levels)} slots in a window, got {size}")
    beside = layout.arms * layout.cells
    kept = (counted & reports.held)[:, None]
    places = beside + kept * (reports.arms[:, None] * layout.cells + reports.cells - beside)
    keys, units = places.ravel(), reports.units.ravel()
    rewarded = (reports.units * reports.levels[:, None]).ravel()
    total = np.bincount(keys, units, minlength=beside + 1)[:beside].astype(np.int64)
    ones = np.bincount(keys, rewarded, minlength=beside + 1)[:beside].astype(np.int64)
    shape = (layout.arms, layout.cells)
    return CellSums(ones.reshape(shape), (layout.levels * total - ones).reshape(shape))


def noised_sums(sums: CellSums, noise: Int64) -> CellSums:
    """Add one integer of noise to every sum.

    Args:
        sums: exact sums.
        noise: (2, K, P) int64, independent discrete Laplace of scale M U/eps; first for ``ones``.

    Raises:
        BadNoise: another shape or type, or a sum beyond 64 bits.

    Guarantee:
        relation null-slot, unit one slot: with that noise the result is eps-differentially private (module), with
        delta the residue of the sampler (`hushstream.privacy.mechanisms.guarantee.linear_sums_guarantee`). A report
        against another report costs 2 eps.
    """
    ones, zeros = checked_add(np.stack([sums.ones, sums.zeros]), noise)
    return CellSums(ones, zeros)
