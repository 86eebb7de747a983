"""Exact sums of slots in whole numbers, independent of order and batches.

Batches go through floats where these are exact: sums of whole numbers below 2^53 are.

A null takes as long as a slot that holds something (PRIVACY rule 10). No branch depends on content. Choices are made by
arithmetic, because an unpredictable branch takes five times as long as a predictable one. Two neighbouring places of a
slot are never added to the same cell, because a processor would have to wait for the first addition (three times as
long): unused places use different spare cells behind the items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.mechanisms.noise import checked_add
from hushstream.systems.bgt.configuration import LARGEST_USERS, LATTICE_BITS, BgtConfig
from hushstream.systems.bgt.errors import BadSlots
from hushstream.systems.bgt.rounds import Round
from hushstream.systems.bgt.slots import NOTHING, Int64, Slots

_AT_ONCE = 1 << 12
"""Slots of a batch: 2^12 products of norm 2^20 x 2^20 sum up to at most 2^52, which a float holds exactly."""

_SPARE = 8
"""Number of spare cells for unused places: enough so that the addition before is done when a cell is used again."""


class Sums:
    """The sums of one round, and its number of slots."""

    __slots__ = ("_asked", "_items", "_place", "exact", "slots")

    def __init__(self, asked: Round, config: BgtConfig) -> None:
        """Sums of nothing."""
        self._asked, self._items = asked, config.items
        # The place of each item among the top items; the last entry is for `NOTHING`.
        self._place = np.full(config.items + 1, len(asked.top), dtype=np.int64)
        self._place[asked.top] = np.arange(len(asked.top))
        shape = {
            "items": (2, config.items),
            "pairs": (len(asked.top), len(asked.top)),
            "factors": (config.items, asked.model.factors.shape[1]),
        }[asked.kind]
        self.exact = np.zeros(shape, dtype=np.int64)
        self.slots = 0

    def add(self, slots: Slots) -> None:
        """Add admitted slots; refused ones must be nulls.

        Raises:
            BadSlots: so many slots that sums might not fit into 64 bits.
        """
        if self.slots + len(slots) > LARGEST_USERS:
            raise BadSlots(f"sums: expected at most {LARGEST_USERS} slots in a round, got more")
        fold = {"items": self._fold_items, "pairs": self._fold_pairs, "factors": self._fold_factors}[self._asked.kind]
        for first in range(0, len(slots), _AT_ONCE):
            some = slots[first : first + _AT_ONCE]
            self.exact = checked_add(self.exact, fold(some))
        self.slots += len(slots)

    def cells(self) -> Int64:
        """The sums before noise; of pairs the strict lower triangle, by rows."""
        if self._asked.kind == "pairs":
            return self.exact[np.tril_indices(len(self.exact), -1)]
        return self.exact

    def _fold_items(self, slots: Slots) -> Int64:
        where = _places(slots, self._items).ravel()
        weights = np.broadcast_to(slots.weights[:, None], slots.items.shape).ravel()
        return np.stack([_counted(where, column, self._items) for column in (weights, slots.values.ravel())])

    def _fold_pairs(self, slots: Slots) -> Int64:
        top = len(self._asked.top)
        dense = np.zeros((len(slots), top + _SPARE))
        # Unused places go to the spare columns behind, which are cut off below.
        place = self._place[slots.items] + _spare_cells(slots)
        dense[np.arange(len(slots))[:, None], place] = slots.values
        dense = dense[:, :top]
        return np.asarray(dense.T @ dense).astype(np.int64)

    def _fold_factors(self, slots: Slots) -> Int64:
        where, kept = _places(slots, self._items).ravel(), self._asked.model.factors.shape[1]
        values, directions = slots.values.astype(np.int64), slots.directions.astype(np.int64)
        columns = []
        for factor in range(kept):
            product = values * directions[:, factor, None]
            shorter = np.sign(product) * (np.abs(product) >> LATTICE_BITS)
            columns.append(_counted(where, shorter.ravel(), self._items))
        return np.stack(columns, axis=1)


def _places(slots: Slots, items: int) -> Int64:
    """The cell of each pair, (n, P): its item, or one of the spare cells behind all items if it is unused."""
    return np.asarray(slots.items + _spare_cells(slots, items - NOTHING))


def _spare_cells(slots: Slots, first: int = 0) -> Int64:
    """The spare cell of each unused place, counted from ``first``, (n, P); 0 for used places."""
    return np.asarray((slots.items == NOTHING) * (first + np.arange(slots.items.shape[1]) % _SPARE))


def _counted(where: Int64, values: NDArray[np.integer[Any]], items: int) -> Int64:
    """Sums by place. They are exact: the values of 2^12 slots, each at most 2^20, sum up to less than 2^53."""
    sums = np.bincount(where, weights=values, minlength=items + _SPARE)
    return np.asarray(sums[:items].astype(np.int64))
