"""The private content of a slot of linear sums: a report or null, of one size for one layout.

Format, little-endian and packed: version (1 byte), kind (1 byte: 0 null, 1 report), level (uint16), arm (uint32),
catalogue version (uint32), then a cell (uint16) for each of the layout's places, and then the units (int16) for each
place. An unused place is cell 0 with 0 units. A null slot is zero after its kind.

A reader treats everything that is no report of the layout as null. So a forged slot moves no sum, and how it is forged
changes neither the steps of the reader nor their duration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.contribution.errors import BadSlot
from hushstream.systems.p2b.contribution.feature_layout import UNITS, FeatureLayout, SlotUnits

Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

SLOT_RECORD = "SealedFeatureSlot"
"""The record of a sealed slot."""

_VERSION = 2
"""Version 1 is the content of slots of codes."""

_NULL, _REPORT = 0, 1


class FeatureReports(NamedTuple):
    """The contents of n slots, safe to add up. All columns are zone-private.

    Attributes:
        held: (n,) bool, whether the slot holds a valid report.
        forged: (n,) bool, whether the slot holds something that is neither a report of the layout nor null.
        arms, levels, catalogues: (n,) int64; 0 where no valid report is held.
        cells, units: (n, places) int64; 0 where no valid report is held.
    """

    held: Bools
    forged: Bools
    arms: Int64
    levels: Int64
    catalogues: Int64
    cells: Int64
    units: Int64


def slot_bytes(places: int) -> int:
    """The size in bytes of every slot of a layout with ``places`` places."""
    return _columns(places).itemsize


def pack_reports(layout: FeatureLayout, arms: Int64, levels: Int64, catalogue: int, units: SlotUnits) -> list[bytes]:
    """The contents of n slots that hold reports.

    Args:
        layout: of the deployment.
        arms, levels: (n,) of each interaction.
        catalogue: the version of the catalogue in which the arms are numbered.
        units: the result of `FeatureLayout.units_of` for their contexts.

    Raises:
        BadSlot: the shuffler would treat a slot as null.
    """
    slots = slot_columns(layout, len(arms))
    try:
        for name, values in (("level", levels), ("arm", arms), ("cells", units.cells), ("units", units.units)):
            slots[name] = _fitting(values, slots.dtype[name])
        slots["catalogue"] = _fitting(np.int64(catalogue), slots.dtype["catalogue"])
    except OverflowError:
        raise BadSlot("expected arms, levels, cells and units inside the layout, got one outside") from None
    contents = [slot.tobytes() for slot in slots]
    if not unpack_reports(layout, contents).held.all():
        raise BadSlot("expected arms, levels, cells and units inside the layout, got one outside")
    return contents


def slot_columns(layout: FeatureLayout, size: int) -> NDArray[np.void]:
    """An array for n reports, whose columns the caller fills in."""
    slots = np.zeros(size, _columns(layout.places))
    slots["version"], slots["kind"] = _VERSION, _REPORT
    return slots


def pack_null(layout: FeatureLayout) -> bytes:
    """The content of a slot that holds nothing."""
    slot = np.zeros(1, _columns(layout.places))
    slot["version"] = _VERSION
    return slot.tobytes()


def unpack_reports(layout: FeatureLayout, contents: Sequence[bytes]) -> FeatureReports:
    """Read the contents of many slots. The same operations run on arrays of the same sizes, whatever the slots hold.

    Raises:
        BadSlot: a content of another length (lengths are public).
    """
    size = slot_bytes(layout.places)
    if set(map(len, contents)) - {size}:
        raise BadSlot(f"expected {size} bytes of slot content in each of {len(contents)} slots, got others")
    raw = np.frombuffer(b"".join(contents), _columns(layout.places))
    arms, levels, catalogues, cells, units = (
        raw[name].astype(np.int64) for name in ("arm", "level", "catalogue", "cells", "units")
    )
    held = (raw["version"] == _VERSION) & (raw["kind"] == _REPORT)
    held &= (arms < layout.arms) & (levels <= layout.levels) & (cells < layout.cells).all(axis=1)
    held &= np.abs(units).sum(axis=1) <= UNITS
    null = (raw["version"] == _VERSION) & (raw["kind"] == _NULL) & (arms == 0) & (levels == 0) & (catalogues == 0)
    null &= ~cells.any(axis=1) & ~units.any(axis=1)
    column = held[:, None]
    return FeatureReports(
        held, ~(held | null), arms * held, levels * held, catalogues * held, cells * column, units * column
    )


def _fitting(values: Any, column: np.dtype[Any]) -> Any:
    """The values, if they fit their column; others raise `OverflowError`, because an assignment would wrap around."""
    limits = np.iinfo(column.base)
    if np.size(values) and (np.min(values) < limits.min or np.max(values) > limits.max):
        raise OverflowError
    return values


@lru_cache(maxsize=64)
def _columns(places: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("version", "u1"),
            ("kind", "u1"),
            ("level", "<u2"),
            ("arm", "<u4"),
            ("catalogue", "<u4"),
            ("cells", "<u2", (places,)),
            ("units", "<i2", (places,)),
        ]
    )
