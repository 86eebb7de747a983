"""The format in which a device sends a slot: a body of fixed size, whatever the slot holds.

The body is: format (1 byte), report id (16), period (8), configuration (16), then the sealed content. The gateway reads
everything but the content, and appends a record of the sealed slot to the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.devices.errors import BadBody
from hushstream.engine.devices.sealing import SEALING_BYTES, SlotPlace

_FORMAT = b"\x01"
_PLACE = (1, 17, 25, 41)
HEAD_BYTES = _PLACE[-1]


def body_bytes(content_bytes: int) -> int:
    """Size of every slot's body in a deployment whose contents have ``content_bytes`` bytes."""
    return HEAD_BYTES + SEALING_BYTES + content_bytes


def body_of(place: SlotPlace, sealed: bytes) -> bytes:
    """The body of a sealed slot."""
    return _FORMAT + place.report_id + place.period + place.config_digest + sealed


def read_slot(body: bytes, size: int) -> Mapping[str, Any]:
    """Split a slot's body into its clear fields and its sealed content.

    Args:
        body: the body as it was received.
        size: `body_bytes` of the deployment.

    Raises:
        BadBody: it has another size or format.
    """
    if len(body) != size:
        raise BadBody(f"slot: expected a body of {size} bytes, got {len(body)}")
    if body[:1] != _FORMAT:
        raise BadBody("slot: expected format 1, got another")
    first, second, third, last = _PLACE
    return {
        "report_id": body[first:second],
        "period": body[second:third],
        "config_digest": body[third:last],
        "sealed": body[last:],
    }


def period_of(fields: Mapping[str, Any]) -> int:
    """The report period of a slot's fields."""
    return int.from_bytes(fields["period"], "little", signed=True)


def place_of(report_id: bytes, period: int, configuration: bytes) -> SlotPlace:
    """Make the clear fields of a slot."""
    return SlotPlace(report_id, period.to_bytes(8, "little", signed=True), configuration)
