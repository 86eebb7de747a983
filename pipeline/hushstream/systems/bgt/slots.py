"""Slots: the records that users send, one padded record of each kind, in whole numbers. Many slots are held as columns.

A slot of any kind has P pairs of item and value, one weight and d numbers of a direction. Its meaning:

* items (A): each of its items counts ``weight``, and its residual is ``value``;
* pairs (B): z is ``value`` at each of its items, 0 elsewhere;
* factors (C): the matrix is the outer product of ``value`` and ``direction``.

Unused places have item -1 and value 0, so a null slot has nothing but those. All numbers are on the lattice of 2^-20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.errors import BadSlots

NOTHING = -1
"""The item of an unused place."""

ID_BYTES = 16
"""Size of a slot's id, by which it counts once."""

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """n slots of one kind.

    Attributes:
        items: (n, P) ascending in each row, then -1.
        values: (n, P).
        weights: (n,); 0 but for kind A.
        directions: (n, d); 0 but for kind C.
    """

    items: Int32
    values: Int32
    weights: Int32
    directions: Int32

    def __post_init__(self) -> None:
        """Refuse columns of different lengths.

        Raises:
            BadSlots: two columns differ.
        """
        shapes = self.items.shape, self.values.shape
        if self.items.ndim != 2 or shapes[0] != shapes[1]:
            raise BadSlots(f"slots: expected items and values of one shape (n, P), got {shapes[0]} and {shapes[1]}")
        rows = len(self.items)
        if self.weights.shape != (rows,) or self.directions.ndim != 2 or len(self.directions) != rows:
            got = f"{self.weights.shape} and {self.directions.shape}"
            raise BadSlots(f"slots: expected weights ({rows},) and directions ({rows}, d), got {got}")

    def __len__(self) -> int:
        """How many slots."""
        return len(self.items)

    def __getitem__(self, rows: slice | Int64 | NDArray[np.bool_]) -> Slots:
        """The slots of some rows."""
        return Slots(self.items[rows], self.values[rows], self.weights[rows], self.directions[rows])


def null_slots(count: int, config: BgtConfig) -> Slots:
    """Slots that hold nothing."""
    shape = count, config.release.pairs
    return Slots(
        np.full(shape, NOTHING, dtype=np.int32),
        np.zeros(shape, dtype=np.int32),
        np.zeros(count, dtype=np.int32),
        np.zeros((count, config.release.factors), dtype=np.int32),
    )


def packed_slots(slots: Slots) -> list[bytes]:
    """Each slot as bytes of one length: items, values, weight, direction, little-endian."""
    columns = (slots.items, slots.values, slots.weights[:, None], slots.directions)
    whole = np.concatenate(columns, axis=1).astype("<i4")
    return [row.tobytes() for row in whole]


def slot_bytes(config: BgtConfig) -> int:
    """Size of one slot's content, which is the same for every slot: all its numbers have 32 bits."""
    return 4 * (2 * config.release.pairs + 1 + config.release.factors)
