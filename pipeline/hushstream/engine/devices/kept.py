"""What all devices share: the packed state as JSON, outgoing slots, and the random delay of slots."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hushstream.schemas.errors import HushstreamError


class DeviceError(HushstreamError):
    """A device cannot use what it got. The message says what was expected and what came, never a payload."""


class BadAgreement(DeviceError):
    """An agreement that contradicts itself or the deployment."""


class WeakerAgreement(DeviceError):
    """An agreement whose slots would pass what is left of the life that its user first agreed to."""


class BadModel(DeviceError):
    """A model that a device must not accept: forged, damaged, of another deployment, or less private than agreed."""


class OlderModel(BadModel):
    """A model older than one that the device has seen, or one that has expired."""


class BadSeal(DeviceError):
    """Bytes that cannot be opened, or a key that cannot be sealed to; the message never repeats them."""


class BadBody(DeviceError):
    """Bytes that are no body of a slot; the message never repeats them."""


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
