"""A gateway for users' devices: it relays sealed slots, and hands out signed models; it holds no key."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, Self

from hushstream.agents.security import Security
from hushstream.client.published import KafkaSlotLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.records import InputRecord
from hushstream.gateway.bounded_log import STOP_SECONDS
from hushstream.gateway.callers import server_context
from hushstream.gateway.devices import calls
from hushstream.gateway.devices.attestation import attestation_of
from hushstream.gateway.devices.models import SignedModels
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.devices.server import DeviceServer
from hushstream.gateway.listening import Endpoints, listen
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.reports.device_agreement import agreement_of
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
class DeviceGateway:
    """A gateway of one deployment for devices; use it with ``async with``.

    Attributes:
        system: the deployment.
        settings: how it listens.
        log: where slots go, and signed models come from.
        schema_generation: in which slots are written (`hushstream.schemas.catalogue`).
        endpoints: of metrics.
        port: at which it listens, once it does.
    """

    system: System
    settings: GatewaySettings
    log: SlotLog
    schema_generation: int = FIRST_GENERATION
    endpoints: Endpoints = field(default_factory=Endpoints)
    port: int = 0
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def __aenter__(self) -> Self:
        """Connect, then listen.

        Raises:
            HushstreamError: the deployment has no devices, the settings name what cannot be used, no broker answers, or
                nothing can be listened to there.
        """
        settings, core = self.settings, core_of(self.system)
        devices = settings.devices or DevicesSettings()
        context, attestation = server_context(settings), attestation_of(devices.attestation)
        models, metrics = SignedModels(core), GatewayMetrics()
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
            attestation,
        )
        try:
            await self.log.start(lambda topic, record: models.read(record))
            self._stack.push_async_callback(self._stop)
            self._stack.push_async_callback(relay.stop)
            self.port = await listen(self._stack, settings, server, metrics, self.endpoints, context)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer no further request, append what waits, flush and close."""
        await self._stack.aclose()

    async def _append(self, partition: int, value: bytes) -> int:
        return await self.log.append(REPORTS.name, partition, value)

    async def _stop(self) -> None:
        # A producer waits for brokers that are away far longer than whoever stops the gateway does.
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.log.stop(), STOP_SECONDS)


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
