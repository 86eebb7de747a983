"""The private content of a slot of codes: a report or null, in 32 bytes.

Format, little-endian: version (1 byte), kind (1 byte: 0 null, 1 report), code (uint32), arm (uint32), level
(uint16), and 20 bytes of zero. A null slot is zero after its kind, so one meaning has one encoding.

A reader does the same work whether a slot holds a report or null, so its duration does not reveal the content.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.contribution.errors import BadReward, BadSlot, ContributionError

SLOT_BYTES = 32
MAX_LEVELS = 256

_VERSION = 1
_NULL = 0
_REPORT = 1
_LAYOUT = struct.Struct("<BBIIH20s")
_PADDING = bytes(20)
_COLUMNS = np.dtype(
    [("version", "u1"), ("kind", "u1"), ("code", "<u4"), ("arm", "<u4"), ("level", "<u2"), ("padding", "u1", 20)]
)
"""`_LAYOUT`, for many slots at once."""
_NULL_SLOT = _LAYOUT.pack(_VERSION, _NULL, 0, 0, 0, _PADDING)
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
    """Put a reward on the lattice of ``1/levels``: clip to [0, 1], then round toward zero.

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
    return int(min(max(reward, 0.0), 1.0) * levels)


def pack(report: Report | None) -> bytes:
    """The 32 bytes of a report, or of null.

    Raises:
        BadSlot: a code, arm or level that the layout cannot hold.
    """
    if report is None:
        return _NULL_SLOT
    try:
        return _LAYOUT.pack(_VERSION, _REPORT, report.code, report.arm, report.level, _PADDING)
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
    if version != _VERSION or kind > _REPORT or padding != _PADDING:
        raise BadSlot(f"expected slot content of version {_VERSION}, got something else")
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
    good = (raw["version"] == _VERSION) & (kind <= _REPORT) & ~raw["padding"].any(axis=1)
    for column, most in zip(columns, (codes - 1, arms - 1, levels), strict=True):
        good &= column <= kind * most
    if not good.all():
        unpack(contents[int(good.argmin())], codes, arms, levels)
    return SlotColumns(kind == _REPORT, *columns)
