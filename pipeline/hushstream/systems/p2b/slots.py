"""The private content of a slot of linear sums: a report or null, of one size for one layout.

Format, little-endian and packed: version (1 byte), kind (1 byte: 0 null, 1 report), level (uint16), arm (uint32),
catalogue version (uint32), then a cell (uint16) for each of the layout's places, and then the units (int16) for each
place. An unused place is cell 0 with 0 units. A null slot is zero after its kind.

A reader treats everything that is no report of the layout as null. So a forged slot moves no sum, and how it is forged
changes neither the steps of the reader nor their duration.

*Slots of codes.* The private content of a slot of codes: a report or null, in 32 bytes.

Format, little-endian: version (1 byte), kind (1 byte: 0 null, 1 report), code (uint32), arm (uint32), level
(uint16), and 20 bytes of zero. A null slot is zero after its kind, so one meaning has one encoding.

A reader does the same work whether a slot holds a report or null, so its duration does not reveal the content.

*Layout.* The layout of linear sums: their cells, how a slot's units are divided among blocks, and the units of an
interaction.

There is a block for each declared feature and, in cell 0, one for the constant (the arm's total). A slot has U units in
all. Block f has a public budget ``b_f`` of them, and an interaction with shares phi puts ``trunc(b_f phi_j)`` into cell
j. Truncation leaves some units of a budget. The first cells with a share get one more unit each until a block's units
sum to its budget: without this the totals of blocks would be below the number of slots, those of tags most of all.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import Block, FeatureSchema, SparseBlocks
from hushstream.schemas.errors import HushstreamError


class ContributionError(HushstreamError):
    """A context, encoder or setting that cannot be used. The message says what was expected and what came."""


class BadSlot(ContributionError):
    """Bytes that are no slot content. The message never repeats them."""


class BadReward(ContributionError):
    """A reward that is not a finite number."""


SLOT_BYTES = 32
MAX_LEVELS = 256

_CODES_VERSION = 1
_NULL = 0
_REPORT = 1
_LAYOUT = struct.Struct("<BBIIH20s")
_PADDING = bytes(20)
_COLUMNS = np.dtype(
    [("version", "u1"), ("kind", "u1"), ("code", "<u4"), ("arm", "<u4"), ("level", "<u2"), ("padding", "u1", 20)]
)
"""`_LAYOUT`, for many slots at once."""
_NULL_SLOT = _LAYOUT.pack(_CODES_VERSION, _NULL, 0, 0, 0, _PADDING)
_OUTSIDE = (
    "expected zeros in a null slot, got something else",
    "expected code, arm and level inside the configured domain, got one outside",
)
"""The messages for an invalid null slot, and for a report outside the domain."""


class Report(NamedTuple):
    """One encoded interaction.

    Attributes:
        code: of the context, in [0, k).
        arm: the arm that was on the screen, in [0, K).
        level: the reward in units of 1/M, in [0, M].
    """

    code: int
    arm: int
    level: int


class SlotColumns(NamedTuple):
    """The contents of n slots.

    Attributes:
        held: (n,) bool, whether the slot holds a report.
        codes, arms, levels: (n,) int64, those of the report; 0 where the slot holds none.
    """

    held: NDArray[np.bool_]
    codes: NDArray[np.int64]
    arms: NDArray[np.int64]
    levels: NDArray[np.int64]


def reward_level(reward: float, levels: int) -> int:
    """Put a reward on the lattice of ``1/levels``: clip to [0, 1], then round toward zero; k/M is level k.

    Because of the clipping, one report moves a sum by at most ``levels``, whatever the reward was (PRIVACY.md,
    slot sums).

    Args:
        reward: any finite number.
        levels: M, 1 for clicks and at most `MAX_LEVELS`.

    Raises:
        BadReward: the reward is NaN or infinite.
        ContributionError: levels outside 1 to `MAX_LEVELS`.
    """
    if not 1 <= levels <= MAX_LEVELS:
        raise ContributionError(f"expected 1 to {MAX_LEVELS} reward levels, got {levels}")
    if not math.isfinite(reward):
        raise BadReward("expected a finite reward, got NaN or infinity")
    clipped = min(max(reward, 0.0), 1.0)
    level = int(clipped * levels)
    # The product may lie below a whole number, as that of 0.29 and 100 does.
    return level + ((level + 1) / levels <= clipped)


def pack(report: Report | None) -> bytes:
    """The 32 bytes of a report, or of null.

    Raises:
        BadSlot: a code, arm or level that the layout cannot hold.
    """
    if report is None:
        return _NULL_SLOT
    try:
        return _LAYOUT.pack(_CODES_VERSION, _REPORT, report.code, report.arm, report.level, _PADDING)
    except struct.error:
        raise BadSlot("expected code and arm below 2^32 and level below 2^16, got a value outside") from None


def unpack(content: bytes, codes: int, arms: int, levels: int) -> Report | None:
    """Read a slot's content against the public domain.

    Args:
        content: exactly `SLOT_BYTES` bytes.
        codes: k.
        arms: K.
        levels: M.

    Returns:
        The report, or None for null.

    Raises:
        BadSlot: another length, version or kind, padding that is not zero, or a report outside the domain.
    """
    if len(content) != SLOT_BYTES:
        raise BadSlot(f"expected {SLOT_BYTES} bytes of slot content, got {len(content)}")
    version, kind, code, arm, level, padding = _LAYOUT.unpack(content)
    if version != _CODES_VERSION or kind > _REPORT or padding != _PADDING:
        raise BadSlot(f"expected slot content of version {_CODES_VERSION}, got something else")
    # A null slot is compared like a report, with bounds of 0, so both take the same steps.
    if code > kind * (codes - 1) or arm > kind * (arms - 1) or level > kind * levels:
        raise BadSlot(_OUTSIDE[kind])
    return (None, Report(code, arm, level))[kind]


def unpack_all(contents: Sequence[bytes], codes: int, arms: int, levels: int) -> SlotColumns:
    """Read the contents of many slots; arguments and errors as in `unpack`.

    The same operations run on arrays of the same sizes, whatever the slots hold.
    """
    if set(map(len, contents)) - {SLOT_BYTES}:
        raise BadSlot(f"expected {SLOT_BYTES} bytes of slot content in each of {len(contents)} slots, got others")
    raw = np.frombuffer(b"".join(contents), _COLUMNS)
    kind, columns = raw["kind"].astype(np.int64), [raw[name].astype(np.int64) for name in ("code", "arm", "level")]
    good = (raw["version"] == _CODES_VERSION) & (kind <= _REPORT) & ~raw["padding"].any(axis=1)
    for column, most in zip(columns, (codes - 1, arms - 1, levels), strict=True):
        good &= column <= kind * most
    if not good.all():
        unpack(contents[int(good.argmin())], codes, arms, levels)
    return SlotColumns(kind == _REPORT, *columns)


UNITS = 4096
"""U, the largest sum of the absolute units of a slot."""

LEAST_ARM_SHARE, MOST_ARM_SHARE = 0.1, 0.9
_NOISE_OF_ARMS = 24.0

Int64 = NDArray[np.int64]


class SlotUnits(NamedTuple):
    """The units that n interactions add to the sums.

    Attributes:
        cells: (n, places) int64 in [0, P).
        units: (n, places) int64; the absolute values of a row sum to at most U.
    """

    cells: Int64
    units: Int64


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """The public layout of a slot and of the sums; it follows from the configuration alone.

    Attributes:
        schema: the declared features.
        arms: K, the capacity of the catalogue.
        levels: M, reward levels above 0.
        budgets: units of each block, the constant's first, then in the order of ``schema.table``.
        blocks: the position of each block; the first is the constant's, with the name "".
    """

    schema: FeatureSchema
    arms: int
    levels: int
    budgets: tuple[int, ...]
    blocks: tuple[Block, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse budgets that one slot cannot have.

        Raises:
            ContributionError: not one budget for each block, one below 1, a sum above U, or no arms or levels.
        """
        if min(self.arms, self.levels) < 1:
            raise ContributionError(f"expected at least one arm and level, got {self.arms} and {self.levels}")
        if len(self.budgets) != len(self.schema.table) + 1 or min(self.budgets) < 1 or sum(self.budgets) > UNITS:
            raise ContributionError(
                f"expected {len(self.schema.table) + 1} positive budgets of at most {UNITS} units together, "
                f"got {len(self.budgets)} with {sum(self.budgets)}"
            )
        moved = [
            replace(one, first_cell=one.first_cell + 1, first_place=one.first_place + 1) for one in self.schema.table
        ]
        object.__setattr__(self, "blocks", (Block("", 0, 1, 0, 1, signed=False, complete=True, usual=1.0), *moved))

    @property
    def cells(self) -> int:
        """P, the number of cells of one arm, with that of the constant."""
        return self.schema.cells + 1

    @property
    def places(self) -> int:
        """The number of (cell, units) places in a slot: the most that a context of the schema can need."""
        return self.schema.places + 1

    @property
    def digest(self) -> bytes:
        """16 bytes that identify the declared features and the division of a slot's units."""
        values = {
            "features": self.schema.digest.hex(),
            "arms": self.arms,
            "levels": self.levels,
            "budgets": list(self.budgets),
        }
        plain = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
        return hashlib.blake2b(plain, digest_size=16, person=b"hush-layout").digest()

    @property
    def sensitivity(self) -> int:
        """The L1 distance by which a report moves all sums together, against null: M U (see `shuffler.linear_sums`)."""
        return self.levels * UNITS

    def units_of(self, blocks: SparseBlocks) -> SlotUnits:
        """The units of n interactions from the blocks of their contexts."""
        size = len(blocks.cells)
        cells = np.zeros((size, self.places), dtype=np.int64)
        units = np.zeros_like(cells)
        units[:, 0] = self.budgets[0]
        cells[:, 1:] = blocks.cells + 1
        for number, block in enumerate(self.blocks[1:]):
            across = slice(block.first_place, block.first_place + block.places)
            shares = blocks.parts[:, block.first_place - 1 : block.first_place - 1 + block.places]
            units[:, across] = _divided(shares, blocks.wholes[:, number], self.budgets[number + 1])
        return SlotUnits(cells, units)


def budgets(features: int, arms: int, epsilon: float, slots: int, windows: int = 1) -> tuple[int, ...]:
    """The units of each block: ``w_0 = clip(24 K sqrt(W) / (eps N), .1, .9)`` for the arm's total, the rest evenly.

    The noise of an arm's total has the scale 1/(eps w_0) slots, compared with N/K slots of an arm. With few slots, most
    units go to the totals, so that arms can be distinguished; with many slots, totals need few units. The split does
    not change the sensitivity: a slot has at most U units however they are divided. All settings in it are public.

    Args:
        features: the number of blocks besides the constant.
        arms: K, the declared capacity in use; never a live count.
        epsilon: the epsilon of a slot.
        slots: N, the number of slots that the configuration expects in all windows together.
        windows: W, the number of releases with fresh noise; 1 if sums run through a counter.

    Raises:
        ContributionError: a number out of range.
    """
    if min(features, arms, slots, windows) < 1 or not 0 < epsilon < math.inf:
        raise ContributionError(
            "expected at least one feature, arm, slot and window and a positive epsilon, "
            f"got {features}, {arms}, {slots}, {windows} and {epsilon}"
        )
    wanted = _NOISE_OF_ARMS * arms * math.sqrt(windows) / (epsilon * slots)
    share = min(max(wanted, LEAST_ARM_SHARE), MOST_ARM_SHARE)
    each = (UNITS - int(UNITS * share)) // features
    if each < 1:
        raise ContributionError(f"expected features that share {1 - share:g} of {UNITS} units, got {features}")
    return (UNITS - each * features, *[each] * features)


def layout_of(
    schema: FeatureSchema, arms: int, levels: int, epsilon: float, slots: int, windows: int = 1
) -> FeatureLayout:
    """The layout with the budgets that `budgets` gives; arguments as there."""
    return FeatureLayout(schema, arms, levels, budgets(len(schema.table), arms, epsilon, slots, windows))


def _divided(parts: Int64, wholes: Int64, budget: int) -> Int64:
    """(n, places) a budget divided by shares ``parts / wholes``, in whole units with the sign of the share."""
    sizes = np.abs(parts)
    units = sizes * budget // wholes[:, None]
    # An empty block gets no units at all.
    left = np.where(sizes.any(axis=1), budget - units.sum(axis=1), 0)
    used = sizes > 0
    units += used & (np.cumsum(used, axis=1) <= left[:, None])
    return np.asarray(units * np.sign(parts))


def cell_names(layout: FeatureLayout) -> Sequence[str]:
    """The names of an arm's P cells."""
    return ["all slots", *layout.schema.cell_names()]


LEAST_SHAPED = 30
"""With fewer items, what their features say could not be told from what each item is."""


def shapes_priors(features: FeatureSchema | None, entries: NDArray[np.int32]) -> bool:
    """Whether items' features shape the priors of a model (`server.prior`), by the versions at which its rows' items
    entered (0: never)."""
    return features is not None and int((entries > 0).sum()) >= LEAST_SHAPED


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


def pack_reports(
    layout: FeatureLayout, arms: Int64, levels: Int64, catalogue: int | NDArray[np.int32], units: SlotUnits
) -> list[bytes]:
    """The contents of n slots that hold reports.

    Args:
        layout: of the deployment.
        arms, levels: (n,) of each interaction.
        catalogue: the version of the catalogue in which the arms are numbered; one, or (n,).
        units: the result of `FeatureLayout.units_of` for their contexts.

    Raises:
        BadSlot: the shuffler would treat a slot as null.
    """
    slots = slot_columns(layout, len(arms))
    try:
        given = {"level": levels, "arm": arms, "cells": units.cells, "units": units.units, "catalogue": catalogue}
        for name, values in given.items():
            slots[name] = _fitting(values, slots.dtype[name])
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
