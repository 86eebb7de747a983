"""What all devices share: the packed state as JSON, outgoing slots, and the random delay of slots."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hushstream.engine.devices.errors import DeviceError

Drawn = Callable[[int], bytes]
"""Returns a number of random bytes, as `secrets.token_bytes` does."""


class Outgoing(NamedTuple):
    """A slot that is ready to be sent: its id, and its body. Every attempt sends the same body."""

    report_id: bytes
    body: bytes


def delay_ms(most: int, draw: Drawn) -> int:
    """Draw a uniform delay below ``most``: 64 random bits modulo ``most``, so its bias is under most * 2^-64."""
    return int.from_bytes(draw(8), "little") % most if most else 0


def packed(state: Mapping[str, Any]) -> bytes:
    """Pack a state as bytes."""
    return json.dumps(_plain(state), separators=(",", ":")).encode()


def unpacked(dumped: bytes, form: int) -> dict[str, Any]:
    """Read a state that `packed` wrote, with this format number.

    Raises:
        DeviceError: the bytes are no such state.
    """
    try:
        values = _bytes(json.loads(dumped))
        found = values["format"]
    except (KeyError, TypeError, ValueError) as error:
        raise DeviceError(f"state: expected what a device wrote, got {type(error).__name__}") from None
    if found != form:
        raise DeviceError(f"state: expected format {form}, got another")
    state: dict[str, Any] = values
    return state


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value


def _bytes(value: Any) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"base64"}:
            return base64.b64decode(value["base64"])
        return {key: _bytes(one) for key, one in value.items()}
    return [_bytes(one) for one in value] if isinstance(value, list) else value
