"""What every gateway does: it listens, shows its metrics, and stops in order."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess
from hushstream.gateway.connections import Server
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.errors import HushstreamError

MEASURE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where Prometheus finds metrics besides `/metrics`; None: nowhere."""

    host: str = "127.0.0.1"
    port: int | None = None
    zone_host: str = "127.0.0.1"
    zone_port: int | None = None
    access: MetricsAccess = EVERYBODY


class Serving(Protocol):
    """What answers requests."""

    def server(self) -> Server:
        """What makes a connection's protocol."""

    def stop(self) -> None:
        """Answer no further request; those under way go on."""

    def measure(self) -> None:
        """Bring the gauges up to date."""


async def listen(
    stack: contextlib.AsyncExitStack,
    settings: GatewaySettings,
    serving: Serving,
    metrics: GatewayMetrics,
    endpoints: Endpoints,
    context: ssl.SSLContext | None,
) -> int:
    """Listen, until the stack is unwound; returns the port.

    Args:
        stack: what ends with it.
        settings, serving, metrics, endpoints: of the gateway.
        context: how it speaks TLS (`hushstream.gateway.callers.server_context`); None where it does not.

    Raises:
        HushstreamError: nothing can be listened to there.
    """
    runner = web.ServerRunner(serving.server(), shutdown_timeout=settings.stop_seconds)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    port = await _bound(runner, settings, context)
    stack.callback(serving.stop)
    metrics.serve(endpoints.host, endpoints.port, endpoints.zone_host, endpoints.zone_port, endpoints.access)
    stack.callback(metrics.close)
    measuring = asyncio.create_task(_measure(serving.measure))
    stack.callback(measuring.cancel)
    return port


async def _bound(runner: web.ServerRunner, settings: GatewaySettings, context: ssl.SSLContext | None) -> int:
    site = web.TCPSite(runner, settings.host, settings.port, ssl_context=context)
    try:
        await site.start()
    except OSError as error:
        raise HushstreamError(
            f"gateway: expected to listen at {settings.host}:{settings.port}, got {error.strerror}"
        ) from None
    return int(runner.addresses[0][1])


async def _measure(measure: Callable[[], None]) -> None:
    while True:
        measure()
        await asyncio.sleep(MEASURE_SECONDS)
