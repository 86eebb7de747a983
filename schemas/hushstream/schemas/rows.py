"""Rules for one row of a context or of feedback, the same for event records and batch rows."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.schemas.reasons import Reason

MAX_ID_BYTES = 128
"""The longest event id, user or track, in bytes of UTF-8."""


LogRecord = tuple[int, int, bytes]
"""Offset, log time in milliseconds, value."""


class Reject(NamedTuple):
    """A record or a row that was refused; everything around it is kept."""

    offset: int
    row: int
    """Row of a batch record, 0 in a record of one event, -1 for a record as a whole."""
    reason: Reason


def all_plain(texts: list[str]) -> bool:
    """Whether a cheap test shows that every id is valid; `id_fault` checks them one by one."""
    return all(texts) and max(map(len, texts), default=0) <= MAX_ID_BYTES and "".join(texts).isascii()


def id_fault(text: str) -> Reason | None:
    """Why an event id or a user is refused, if it is."""
    if not text:
        return Reason.EMPTY_ID
    if len(text) > MAX_ID_BYTES or (not text.isascii() and len(text.encode()) > MAX_ID_BYTES):
        return Reason.ID_TOO_LONG
    return None


def track_fault(track: str) -> Reason | None:
    """Why the name of a model track is refused, if it is."""
    return None if id_fault(track) is None else Reason.BAD_TRACK


def mask_fault(eligible: bytes, arms: int) -> Reason | None:
    """Why a mask of the right length is refused, if it is; the empty mask allows every arm."""
    if not eligible:
        return None
    bits = int.from_bytes(eligible, "little")
    if bits >> arms:
        return Reason.UNKNOWN_ARM
    return None if bits else Reason.NO_ELIGIBLE_ARM


def context_fault(
    event_id: str, user: str, eligible: bytes, baseline: int, after_click: int, *, arms: int
) -> Reason | None:
    """The first fault of one row of contexts, apart from its coordinates; None if it is valid."""
    fault = id_fault(event_id) or id_fault(user) or mask_fault(eligible, arms)
    if fault is not None:
        return fault
    if not -1 <= baseline < arms:
        return Reason.UNKNOWN_ARM
    return Reason.BAD_AFTER_CLICK if after_click < -1 else None


def feedback_fault(event_id: str, user: str, arm: int, reward: float) -> Reason | None:
    """The first fault of one row of feedback; None if it is valid."""
    fault = id_fault(event_id) or id_fault(user)
    if fault is not None:
        return fault
    if arm < 0:
        return Reason.UNKNOWN_ARM
    # This form of the comparison refuses NaN, for which every comparison is false.
    return None if 0.0 <= reward <= 1.0 else Reason.REWARD_OUT_OF_RANGE
