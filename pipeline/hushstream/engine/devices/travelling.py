"""A slot as it travels from a device: one body of one size, whatever it holds.

Format (1 byte), report id (16), period (8), configuration (16), then the sealed content. The gateway looks at all of it
but the content, and appends the record of a sealed slot.
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
    """Of every slot of a deployment with contents of so many bytes."""
    return HEAD_BYTES + SEALING_BYTES + content_bytes


def body_of(place: SlotPlace, sealed: bytes) -> bytes:
    """A sealed slot as it travels."""
    return _FORMAT + place.report_id + place.period + place.config_digest + sealed


def read_slot(body: bytes, size: int) -> Mapping[str, Any]:
    """What stands in clear of a slot, and its sealed content.

    Args:
        body: as it came.
        size: `body_bytes` of the deployment.

    Raises:
        BadBody: another size or format.
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
    """What stands in clear beside a content."""
    return SlotPlace(report_id, period.to_bytes(8, "little", signed=True), configuration)
