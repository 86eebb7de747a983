"""The hinge loss in whole numbers: scores at the published model, and sums of gradients.

A record is q with ||q||_2 <= 2^12; the model w~ has whole weights in units of 2^-12. So z = w~ . q is exact: |w~_j| <
2^31 and sum |q_j| <= 2^12 sqrt(n) keep |z| below 2^63 for n < 2^40.

*Sensitivity.* The loss max(0, 1 - y w.x) has the gradient -y x where y w.x < 1 and 0 elsewhere, at any model: in whole
numbers -y q where y z < 2^24. So ||g||_2 <= ||q||_2 <= 2^12 for a record, and g = 0 for a null slot. If a record takes
the place of a null slot, the sum of gradients moves by g; if it takes the place of another record, by g - g', of norm
at most 2^13. This holds for any model, but *the model itself is the same on both sides* only if it is computed from
earlier releases: see `hushstream.systems.pdol.algorithm.node`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.rows import Rows, sums_by_row
from hushstream.systems.pdol.configuration import UNIT

MARGIN = UNIT * UNIT
"""The number 1 in units of a score."""


def scores(rows: Rows, model: NDArray[np.int32]) -> NDArray[np.int64]:
    """w . x of each row in units of 2^-24, exact, int64 (m,); 0 for null.

    Args:
        rows: admitted slots.
        model: int32 (n,), weights in units of 2^-12.
    """
    return sums_by_row(model[rows.indices] * rows.values, rows.indptr)


def add_gradients(leaf: NDArray[np.int64], rows: Rows, model: NDArray[np.int32]) -> None:
    """Add the hinge gradient of every row at ``model`` to ``leaf``, int64 (n,), in place."""
    active = (rows.labels * scores(rows, model)) < MARGIN
    signs = np.where(active, -rows.labels, 0).astype(np.int64)
    # Sums in doubles are exact here: they are of fewer than 2^41 whole numbers of at most 2^12 each.
    moved = np.bincount(rows.indices, np.repeat(signs, rows.lengths) * rows.values, minlength=len(leaf))
    leaf += moved.astype(np.int64)


def predictions(found: NDArray[np.int64]) -> NDArray[np.int8]:
    """Labels for scores, int8: 1 above 0, else -1."""
    return np.where(found > 0, 1, -1).astype(np.int8)
