"""What a gateway needs to take slots from devices, for P2B with declared features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.engine.devices.envelope import ModelBody
from hushstream.engine.devices.travelling import body_bytes, period_of
from hushstream.systems.p2b.contribution.feature_slots import SLOT_RECORD
from hushstream.systems.p2b.device.stated import Statement
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.prepared.device_agreement import agreement_of

_BEHIND = 1
"""A slot may name the current period or the one before it."""


class VisitDeviceService:
    """See `DeviceService`."""

    topic = "reports"
    opening: bytes | None = None

    def __init__(self, system: P2BSystem) -> None:
        """Bind to a deployment whose learners are devices."""
        self.partitions, self.digest, self._system = system.config.partitions.shuffler, system.digest, system
        self.body_bytes, self.agreement = body_bytes(system.form.content_bytes), agreement_of(system)
        self._period_ms = system.window_rules().period_ms

    def is_stale(self, fields: Mapping[str, Any], now_ms: int) -> bool:
        return not 0 <= now_ms // self._period_ms - period_of(fields) <= _BEHIND

    def record(self, fields: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        return SLOT_RECORD, fields

    def follow(self, fields: Mapping[str, Any]) -> ModelBody:
        """See `DeviceService.follow`. No slot depends on a model, so nothing of it is kept."""
        body = ModelBody.of(fields, self._system)
        Statement.signed_in(fields, body.signing, self.digest)
        return body
