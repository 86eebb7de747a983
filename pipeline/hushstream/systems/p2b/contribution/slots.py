"""The private content of a slot: 32 bytes, a report or null, alike in size.

Layout, little-endian: version (1 byte), kind (1 byte: 0 null, 1 report), code (uint32), arm (uint32), level
(uint16), and 20 bytes of zero. A null slot is zero after its kind, so one meaning has one encoding.
"""

from __future__ import annotations

import math
import struct
from typing import NamedTuple

from hushstream.systems.p2b.contribution.errors import BadReward, BadSlot, ContributionError

SLOT_BYTES = 32
MAX_LEVELS = 256

_VERSION = 1
_NULL = 0
_REPORT = 1
_LAYOUT = struct.Struct("<BBIIH20s")
_PADDING = bytes(20)
_NULL_SLOT = _LAYOUT.pack(_VERSION, _NULL, 0, 0, 0, _PADDING)


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


def reward_level(reward: float, levels: int) -> int:
    """Put a reward on the lattice of ``1/levels``: clip to [0, 1], then round toward zero.

    Clipping comes first, so one report moves a sum by at most ``levels`` whatever was sent (PRIVACY.md,
    slot sums).

    Args:
        reward: any finite number.
        levels: M, 1 for clicks and at most `MAX_LEVELS`.

    Raises:
        BadReward: NaN or infinite.
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
    if version != _VERSION or kind not in (_NULL, _REPORT) or padding != _PADDING:
        raise BadSlot(f"expected slot content of version {_VERSION}, got something else")
    if kind == _NULL:
        if content != _NULL_SLOT:
            raise BadSlot("expected zeros in a null slot, got something else")
        return None
    if code >= codes or arm >= arms or level > levels:
        raise BadSlot("expected code, arm and level inside the configured domain, got one outside")
    return Report(code, arm, level)
