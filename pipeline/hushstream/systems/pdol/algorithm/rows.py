"""Labelled records as columns of whole numbers, and single records that a domain remembers until they are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.errors import BadRows


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
