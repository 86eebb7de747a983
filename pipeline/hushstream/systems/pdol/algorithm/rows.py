"""Records of the edge as slots of whole numbers, one a row; scores at a published model, and sums of gradients.

The bound for the sensitivity is checked in whole numbers alone: sum q^2 <= 2^24, so ||q||_2 <= 2^12. It does not depend
on a float norm. Truncation is toward zero, so it never increases the norm of a record.

*Scores of the hinge loss.* A record is q with ||q||_2 <= 2^12; the model w~ has whole weights in units of 2^-12. So z =
w~ . q is exact: |w~_j| < 2^31 and sum |q_j| <= 2^12 sqrt(n) keep |z| below 2^63 for n < 2^40.

*Sensitivity.* The loss max(0, 1 - y w.x) has the gradient -y x where y w.x < 1 and 0 elsewhere, at any model: in whole
numbers -y q where y z < 2^24. So ||g||_2 <= ||q||_2 <= 2^12 for a record, and g = 0 for a null slot. If a record takes
the place of a null slot, the sum of gradients moves by g; if it takes the place of another record, by g - g', of norm
at most 2^13. This holds for any model, but *the model itself is the same on both sides* only if it is computed from
earlier releases: see `hushstream.systems.pdol.algorithm.local`.

*Errors.* Errors of PDOL's stages. No message repeats a value of a record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.configuration import UNIT


class PdolError(HushstreamError):
    """A stage refuses what it was given. The message says what was expected and what was given."""


class BadRows(PdolError):
    """Columns that do not make rows."""


class LeafFull(PdolError):
    """More slots than fit into the leaf, or a release of a leaf that is not full."""


class BadRelease(PdolError):
    """A release that its domain cannot have made."""


class BadGraph(PdolError):
    """A graph that is not connected, or does not exist for this kind and number of nodes."""


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Slots, one a row; a null slot is a row without features and with label 0.

    Attributes:
        indptr: int64 (m + 1,): row i has the features indptr[i] to indptr[i + 1] - 1.
        indices: int32 (features,): which coordinate.
        values: int64 (features,): its value in units of 2^-12.
        labels: int8 (m,): 1 or -1; 0 for null.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    values: NDArray[np.int64]
    labels: NDArray[np.int8]

    def __post_init__(self) -> None:
        """Refuse columns that do not make rows.

        Raises:
            BadRows: another type, lengths that do not match, or row ends that fall.
        """
        kinds = (("indptr", np.int64), ("indices", np.int32), ("values", np.int64), ("labels", np.int8))
        for name, kind in kinds:
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != kind or column.ndim != 1:
                raise BadRows(f"{name}: expected one column of {np.dtype(kind)}, got another shape or type")
        ends, features = self.indptr, len(self.indices)
        if len(ends) != len(self.labels) + 1 or len(self.values) != features:
            raise BadRows(
                f"rows: expected one more row end than labels and as many values as indices, got {len(ends)} ends,"
                f" {len(self.labels)} labels, {features} indices and {len(self.values)} values"
            )
        if ends[0] != 0 or ends[-1] != features or (np.diff(ends) < 0).any():
            raise BadRows(f"indptr: expected row ends that rise from 0 to {features}")

    def __len__(self) -> int:
        """How many slots."""
        return len(self.labels)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Features of each row, (m,)."""
        return np.diff(self.indptr)

    def part(self, low: int, high: int) -> Rows:
        """Rows ``low`` to ``high`` - 1; their features are views."""
        first, last = int(self.indptr[low]), int(self.indptr[high])
        ends = self.indptr[low : high + 1] - first
        return Rows(ends, self.indices[first:last], self.values[first:last], self.labels[low:high])

    def take(self, rows: NDArray[np.int64]) -> Rows:
        """The rows of these numbers, in this order."""
        lengths = self.lengths[rows]
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        places = np.repeat(self.indptr[rows] - ends[:-1], lengths) + np.arange(ends[-1])
        return Rows(ends, self.indices[places], self.values[places], self.labels[rows])

    def without(self, refused: NDArray[np.bool_]) -> Rows:
        """The same slots with refused ones made null; their number never changes."""
        if not refused.any():
            return self
        lengths = np.where(refused, 0, self.lengths)
        kept = np.repeat(~refused, self.lengths)
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        labels = np.where(refused, 0, self.labels).astype(np.int8)
        return Rows(ends, self.indices[kept], self.values[kept], labels)


def null_rows(count: int) -> Rows:
    """A number of null slots."""
    return Rows(
        np.zeros(count + 1, dtype=np.int64),
        np.zeros(0, dtype=np.int32),
        np.zeros(0, dtype=np.int64),
        np.zeros(count, dtype=np.int8),
    )


def sums_by_row(products: NDArray[np.int64], indptr: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum products (..., k) over each row's features, int64 (..., m); exact if each sum fits, 0 for empty rows.

    Running sums may wrap around 2^64; their differences are still right.
    """
    running = np.zeros((*products.shape[:-1], products.shape[-1] + 1), dtype=np.int64)
    np.cumsum(products, axis=-1, out=running[..., 1:])
    return np.asarray(running[..., indptr[1:]] - running[..., indptr[:-1]])


# Single records that a domain remembers.


class Features(NamedTuple):
    """One record: int32 (k,) coordinates, and int64 (k,) values in units of 2^-12."""

    indices: NDArray[np.int32]
    values: NDArray[np.int64]


class Slot(NamedTuple):
    """A record that waits for its label.

    Attributes:
        node: its node.
        user: tag of its person.
        features: None for a null slot, which broke a bound, exceeded the allowance, or was erased.
        label: 1 or -1; 0 until it comes.
        votes: int8, the labels that the node's experts predicted; empty if nodes have none.
    """

    node: int
    user: bytes
    features: Features | None
    label: int = 0
    votes: bytes = b""


class Past(NamedTuple):
    """The answer to an event, and the tag of its user."""

    user: bytes
    predicted: int


_NONE = Features(np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64))


def labelled(slots: Sequence[Slot]) -> Rows:
    """Slots with their labels; one without a label, or without features, is null."""
    held = [(slot.features, slot.label) if slot.label else (None, 0) for slot in slots]
    kept = [features for features, _ in held if features is not None]
    lengths = [0 if features is None else len(features.indices) for features, _ in held]
    return Rows(
        np.cumsum([0, *lengths], dtype=np.int64),
        np.concatenate([_NONE.indices, *(features.indices for features in kept)]),
        np.concatenate([_NONE.values, *(features.values for features in kept)]),
        np.array([0 if features is None else label for features, label in held], dtype=np.int8),
    )


# Records that become slots at the edge.


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


# Scores and gradients.

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
