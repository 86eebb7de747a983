"""A gateway for users' devices: it relays sealed slots and serves signed models; it has no keys."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from hushstream.agents.security import Security
from hushstream.client.published import KafkaSlotLog, SlotLog
from hushstream.engine.declare.declaration import DeviceService, System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.gateway.devices import calls
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.devices.server import DeviceServer, SignedModels, attestation_of
from hushstream.gateway.listening import ListeningGateway, close_log
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.settings import DevicesSettings


@dataclass(slots=True, kw_only=True)
class DeviceGateway(ListeningGateway):
    """A gateway of a deployment with devices.

    Attributes:
        log: the log that slots go to and signed models come from.
    """

    log: SlotLog

    async def _connect(self, metrics: GatewayMetrics) -> DeviceServer:
        settings, service = self.settings, device_service_of(self.system)
        devices = settings.devices or DevicesSettings()
        models = SignedModels(service)
        slots = SlotWriter(self.log, service)
        relay = SlotRelay(slots.append, service.partitions, devices.relay_seconds, settings.unacknowledged)
        server = DeviceServer(
            settings,
            service,
            relay,
            models,
            json.dumps(calls.document()).encode(),
            metrics,
            attestation_of(devices.attestation),
        )
        await self.log.start(lambda topic, record: models.read(record))
        self._stack.push_async_callback(close_log, self.log)
        self._stack.push_async_callback(relay.stop)
        return server


class SlotWriter:
    """Appends slots, each after the record that must precede it (`DeviceService.opening`)."""

    def __init__(self, log: SlotLog, service: DeviceService) -> None:
        """Begin with nothing written."""
        self._log, self._service = log, service
        self._opening = asyncio.Lock()
        self._opened: bytes | None = None

    async def append(self, partition: int, value: bytes) -> int:
        """Append a slot and return its offset once the log holds it.

        Raises:
            HushstreamError: the log refused the slot, or the record that must precede it.
        """
        async with self._opening:
            opening = self._service.opening
            if opening is not None and opening != self._opened:
                # Any gateway may write it: those that do write equal records.
                await self._log.append(self._service.topic, partition, opening)
                self._opened = opening
        return await self._log.append(self._service.topic, partition, value)


def device_service_of(system: System) -> DeviceService:
    """What the gateway for devices knows of a deployment.

    Raises:
        DeclarationError: the deployment has no devices.
    """
    if system.device_service is None:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected one whose learners are devices (kind edge), got another"
        )
    return system.device_service()


def device_log(bootstrap: str, prefix: str, security: Security, system: System) -> SlotLog:
    """The log of a deployment's devices on a Kafka cluster.

    Raises:
        DeclarationError: the deployment has no devices.
        HushstreamError: the connection would not be encrypted, and the cluster is not on this machine.
    """
    slots = device_service_of(system).topic
    return KafkaSlotLog(bootstrap, prefix, security, slots=slots, published=(STATEMENTS,), newest=True)
