"""Converts an application's arguments to bytes of records, and refuses those that are invalid in every deployment."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.engine.declare.requests import BadContext, UnknownArm
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault


def packed_of(context: ArrayLike) -> bytes:
    """A context as the bytes of float32 (d,), little-endian.

    Raises:
        BadContext: the context is not a vector of finite numbers.
    """
    if isinstance(context, list) and (packed := _packed(context)) is not None:
        return packed
    try:
        # A number beyond the range of float32 becomes infinite, and is then refused as not finite.
        with np.errstate(over="ignore"):
            vector = np.asarray(context, dtype="<f4")
    except (TypeError, ValueError):
        raise BadContext("context: expected a vector of numbers, got something else") from None
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise BadContext(f"context: expected a vector of finite numbers, got shape {vector.shape}")
    return vector.tobytes()


def vector_of(context: ArrayLike) -> NDArray[np.float32]:
    """A context as float32 (d,); raises as `packed_of`."""
    return np.frombuffer(packed_of(context), "<f4")


def _packed(numbers: list[Any]) -> bytes | None:
    """The bytes of a few numbers as float32, ten times as fast as with an array; None for other types."""
    try:
        packed = struct.pack(f"<{len(numbers)}f", *numbers)
        # A sum of so few float32 numbers does not overflow in float64: it is infinite or NaN only if one of them is.
        return packed if math.isfinite(sum(numbers)) else None
    except (struct.error, OverflowError, TypeError):
        return None


def require_id(name: str, text: str) -> None:
    """Refuse a name that no record may hold.

    Raises:
        HushstreamError: the name is not text, is empty or too long.
    """
    if not isinstance(text, str):
        raise HushstreamError(f"{name}: expected text, got {type(text).__name__}")
    try:
        fault = id_fault(text)
    except UnicodeEncodeError:
        raise HushstreamError(f"{name}: expected text that UTF-8 can write, got half of a surrogate pair") from None
    if fault is not None:
        raise HushstreamError(f"{name}: expected 1 to {MAX_ID_BYTES} bytes, got {len(text.encode())}")


def mask_of(eligible: Sequence[int] | None) -> bytes:
    """A bitmask of arms: bit a of byte a // 8 is arm a; no bytes mean all arms.

    Raises:
        UnknownArm: no arm is eligible, or the number of one is negative.
    """
    if eligible is None:
        return b""
    if not len(eligible) or min(eligible) < 0:
        raise UnknownArm("eligible: expected at least one arm, numbered from 0; leave it out for all arms")
    mask = bytearray(max(eligible) // 8 + 1)
    for arm in eligible:
        mask[arm // 8] |= 1 << (arm % 8)
    return bytes(mask)
