"""Drives a `Device` of P2B; `hushstream.edge.driving` says when its state is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hushstream.edge.driving import Driver
from hushstream.feedback.join import JoinOutcome
from hushstream.systems.p2b.device.agreement import Agreement
from hushstream.systems.p2b.device.device import Device
from hushstream.systems.p2b.edge.terms import Choice


class DeviceDriver(Driver[Device]):
    """One user's device, on one machine; the only open driver of its state, and not thread-safe."""

    _agreement, _device = Agreement, Device

    @property
    def agreement(self) -> Agreement:
        """The agreement that the application shipped."""
        return self.device.agreement

    def decide(self, event_id: str, values: Mapping[str, Any], eligible: Any = None) -> Choice:
        """See `Device.decide`."""
        return self.device.decide(event_id, values, self._now_ms(), eligible)

    def shown(self, event_id: str, item: int) -> JoinOutcome:
        """See `Device.shown`."""
        return self.device.shown(event_id, item, self._now_ms())

    def reward(self, event_id: str, item: int, reward: float) -> JoinOutcome:
        """See `Device.reward`."""
        return self.device.reward(event_id, item, reward, self._now_ms())

    def _again(self, report_id: bytes, time_ms: int | None) -> bool:
        """Seal the slot once more for the gateway's time, because this machine's clock is wrong."""
        if time_ms is None or report_id in self._sealed_again:
            return False
        self._sealed_again.add(report_id)
        self.device.seal_again(report_id, time_ms)
        return True
