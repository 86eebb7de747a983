"""The edge: converts a record of real numbers to a slot of whole numbers, or to a null slot.

The bound for the sensitivity is checked in whole numbers alone: sum q^2 <= 2^24, so ||q||_2 <= 2^12. It does not depend
on a float norm. Truncation is toward zero, so it never increases the norm of a record.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.rows import Rows, sums_by_row
from hushstream.systems.pdol.configuration import UNIT
from hushstream.systems.pdol.errors import BadRows


class Refusal(IntEnum):
    """Why a slot was made null; this is zone-private, because it depends on the record's content."""

    TAKEN = 0
    NOT_FINITE = 1
    INDEX = 2
    ORDER = 3
    LENGTH = 4
    LABEL = 5


def quantise(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int64],
    values: NDArray[np.float64],
    labels: NDArray[np.int64],
    dimension: int,
) -> tuple[Rows, NDArray[np.int8]]:
    """Records of real numbers as slots.

    Args:
        indptr: (m + 1,) as in `Rows`.
        indices: which coordinate, in any order within a record.
        values: real numbers; a record's L2 norm is to be at most 1 (see `unit_rows`).
        labels: (m,), 1 or -1.
        dimension: n.

    Returns:
        The slots, and for each of them a `Refusal`, int8 (m,): 0 where the record was taken.

    Raises:
        BadRows: columns that do not make rows.
    """
    if len(indptr) < 1 or len(labels) != len(indptr) - 1 or len(indices) != len(values):
        raise BadRows("records: expected one more row end than labels and as many values as indices")
    if indptr[0] != 0 or indptr[-1] != len(indices) or (np.diff(indptr) < 0).any():
        raise BadRows(f"indptr: expected row ends that rise from 0 to {len(indices)}")
    row = np.repeat(np.arange(len(labels)), np.diff(indptr))
    why = np.zeros(len(labels), dtype=np.int8)
    signed = np.asarray(labels)
    why[~((signed == 1) | (signed == -1))] = Refusal.LABEL
    # A value above 1 makes the record too long, whatever its other values are. The check comes before the conversion,
    # because only small values convert exactly.
    why[_any(row, ~(np.abs(values) <= 1), len(why))] = Refusal.LENGTH
    outside = (indices < 0) | (indices >= dimension)
    why[_any(row, outside, len(why))] = Refusal.INDEX
    why[_any(row, ~np.isfinite(values), len(why))] = Refusal.NOT_FINITE
    bad = why != 0
    good = ~bad[row]
    order = np.lexsort((indices[good], row[good]))
    lengths = np.where(bad, 0, np.diff(indptr))
    rows = Rows(
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        indices[good][order].astype(np.int32),
        np.trunc(values[good][order] * UNIT).astype(np.int64),
        np.where(bad, 0, signed).astype(np.int8),
    )
    slots, refused = admit(rows, dimension)
    return slots, np.where(bad, why, refused).astype(np.int8)


def admit(rows: Rows, dimension: int) -> tuple[Rows, NDArray[np.int8]]:
    """Check slots that arrive at a node: a slot that breaks a bound is made null. Null slots pass.

    Returns:
        The slots, and a `Refusal` for each, int8 (m,).

    Guarantee:
        Every remaining row has ascending indices from 0 to n - 1, a label of 1 or -1 and sum q^2 <= 2^24.
    """
    why = np.zeros(len(rows), dtype=np.int8)
    empty = rows.lengths == 0
    why[(np.abs(rows.labels) != 1) & ~((rows.labels == 0) & empty)] = Refusal.LABEL
    far = np.abs(rows.values) > UNIT
    # -2^63 has no absolute value, and its square would be 0 in 64 bits.
    far |= rows.values < -UNIT
    squares = np.where(far, 0, rows.values) ** 2
    falling = np.zeros(len(rows.indices), dtype=bool)
    falling[1:] = rows.indices[1:] <= rows.indices[:-1]
    falling[rows.indptr[:-1][~empty]] = False
    outside = (rows.indices < 0) | (rows.indices >= dimension)
    length, too_far, disordered, out = sums_by_row(np.array([squares, far, falling, outside]), rows.indptr)
    why[(length > UNIT * UNIT) | (too_far > 0)] = Refusal.LENGTH
    why[disordered > 0] = Refusal.ORDER
    why[out > 0] = Refusal.INDEX
    return rows.without(why != 0), why


def unit_rows(indptr: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each record scaled to L2 norm 1; records of zeros, and those that are not finite, stay as they are."""
    squares = np.add.reduceat(np.append(values**2, 0.0), indptr[:-1]) if len(indptr) > 1 else np.zeros(0)
    lengths = np.diff(indptr)
    norms = np.sqrt(np.where(lengths > 0, squares, 0.0))
    usable = np.isfinite(norms) & (norms > 0)
    return np.asarray(values / np.repeat(np.where(usable, norms, 1.0), lengths))


def _any(row: NDArray[np.int64], what: NDArray[np.bool_], rows: int) -> NDArray[np.bool_]:
    return np.bincount(row[what], minlength=rows).astype(bool)
