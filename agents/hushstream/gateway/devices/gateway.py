"""A gateway for users' devices: it relays sealed slots, and hands out signed models; it holds no key."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from hushstream.agents.security import Security
from hushstream.client.published import KafkaSlotLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.records import InputRecord
from hushstream.gateway.devices import calls
from hushstream.gateway.devices.attestation import attestation_of
from hushstream.gateway.devices.models import SignedModels
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.devices.server import DeviceServer
from hushstream.gateway.listening import ListeningGateway, close_log
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.settings import DevicesSettings
from hushstream.systems.p2b.guarantee.deployment import P2BSystem
from hushstream.systems.p2b.prepared.device_agreement import agreement_of
from hushstream.systems.p2b.topics import REPORTS, STATEMENTS

_DONE = {REPORTS.name: "Write", STATEMENTS.name: "Read"}
"""What it does for devices, as a deployment declares it that they take part in (`System.devices`)."""


class SlotLog(Protocol):
    """What it needs of a log."""

    async def start(self, on_record: Callable[[str, InputRecord], None]) -> None:
        """Deliver the newest of what is published; then return, and go on with what comes."""

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it."""

    async def stop(self) -> None:
        """Flush and close."""


@dataclass(slots=True, kw_only=True)
class DeviceGateway(ListeningGateway):
    """A gateway of a deployment that devices take part in.

    Attributes:
        log: where slots go, and signed models come from.
    """

    log: SlotLog

    async def _connect(self, metrics: GatewayMetrics) -> DeviceServer:
        settings, core = self.settings, core_of(self.system)
        devices = settings.devices or DevicesSettings()
        models = SignedModels(core)
        relay = SlotRelay(self._append, core.config.partitions.shuffler, devices.relay_seconds, settings.unacknowledged)
        server = DeviceServer(
            settings,
            core,
            relay,
            models,
            agreement_of(core),
            json.dumps(calls.document()).encode(),
            metrics,
            self.schema_generation,
            attestation_of(devices.attestation),
        )
        await self.log.start(lambda topic, record: models.read(record))
        self._stack.push_async_callback(close_log, self.log)
        self._stack.push_async_callback(relay.stop)
        return server

    async def _append(self, partition: int, value: bytes) -> int:
        return await self.log.append(REPORTS.name, partition, value)


def core_of(system: System) -> P2BSystem:
    """The deployment, as one that devices take part in.

    Raises:
        DeclarationError: its learners are no devices.
    """
    if not _DONE.items() <= system.devices.items():
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected one whose learners are devices (p2b, kind edge, declared "
            f"features), got another"
        )
    core: P2BSystem = system.core
    return core


def device_log(bootstrap: str, prefix: str, security: Security) -> SlotLog:
    """The log of a deployment's devices on a Kafka cluster.

    Raises:
        HushstreamError: records would leave this machine unencrypted.
    """
    return KafkaSlotLog(bootstrap, prefix, security, slots=REPORTS.name, published=(STATEMENTS.name,), newest=True)
