"""Runs a gateway: connects, listens, and stops in order when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from hushstream.agents.observe.collection import collect_in_steps
from hushstream.agents.security import Security
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import System
from hushstream.gateway.bounded_log import BoundedLog
from hushstream.gateway.callers import server_context
from hushstream.gateway.conversation.conversations import served_of
from hushstream.gateway.listening import Endpoints, listen
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.openapi import document
from hushstream.gateway.personalizer.protocol import PersonalizerCalls
from hushstream.gateway.server import GatewayServer
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.catalogue import FIRST_GENERATION
from hushstream.schemas.errors import HushstreamError

LINGER_SECONDS = 0.005
"""How long a record waits for others. At 500 requests/s gateway, learner and broker spend 30 % less CPU time than at
.002 s, and answers come no later: each of them handles fewer, larger batches."""


@dataclass(slots=True, kw_only=True)
class Gateway:
    """A gateway of one deployment; use it with ``async with``.

    Attributes:
        system: the deployment.
        settings: how it listens.
        log: where its client writes and reads.
        schema_generation: in which its client writes (`hushstream.schemas.catalogue`).
        endpoints: of metrics.
        port: at which it listens, once it does.
    """

    system: System
    settings: GatewaySettings
    log: EventLog
    schema_generation: int = FIRST_GENERATION
    endpoints: Endpoints = field(default_factory=Endpoints)
    port: int = 0
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    async def __aenter__(self) -> Self:
        """Connect, then listen.

        Raises:
            HushstreamError: the deployment is asked by nobody, the settings name files that cannot be used, no broker
                answers, or nothing can be listened to there.
        """
        settings = self.settings
        served = served_of(self.system, settings.party)
        context = server_context(settings)
        bounded = BoundedLog(self.log, settings.unacknowledged)
        answers = served.over(bounded, self.system, settings, self.schema_generation)
        retired = None
        if settings.personalizer is not None:
            retired = PersonalizerCalls(
                settings.personalizer, answers, self.system.requests, settings.remembered_events
            )
        metrics = GatewayMetrics()
        about = {
            "deployment": self.system.config.deployment,
            "conversation": served.name,
            "batch_requests": settings.batch_requests,
            "body_bytes": settings.body_bytes,
        }
        server = GatewayServer(settings, answers, bounded, document(served), metrics, about, retired)
        try:
            await self._stack.enter_async_context(answers)
            self.port = await listen(self._stack, settings, server, metrics, self.endpoints, context)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Answer no further request, end those under way, flush and close."""
        await self._stack.aclose()


def kafka_log(bootstrap: str, prefix: str, security: Security, system: System, party: str) -> EventLog:
    """The log of a deployment's applications on a Kafka cluster.

    Raises:
        HushstreamError: applications talk with it nowhere, or records would leave this machine unencrypted.
    """
    topics = conversation_of(system, party)
    return KafkaEventLog(
        bootstrap, prefix, linger_seconds=LINGER_SECONDS, security=security, topics=topics, digest=system.digest
    )


class Listening(Protocol):
    """A gateway of either kind.

    Attributes:
        settings: how it listens.
        port: where, once it does.
    """

    settings: GatewaySettings
    port: int

    async def __aenter__(self) -> Any:
        """Connect, then listen."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop in order."""


def run_gateway(make: Callable[[], Listening]) -> int:
    """Run a gateway in this process until SIGTERM or SIGINT.

    Args:
        make: the gateway, within the event loop.

    Returns:
        The exit code: 0 after a clean end, 1 with a one-line reason on standard error otherwise.
    """
    for library in ("aiokafka", "kafka"):
        # Below a warning they write whole records, users and all.
        logging.getLogger(library).setLevel(logging.WARNING)
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    try:
        asyncio.run(_without_long_collections(make))
    except HushstreamError as error:
        print(f"hushstream worker gateway: {error}", file=sys.stderr)
        return 1
    return 0


async def _without_long_collections(make: Callable[[], Listening]) -> None:
    collecting = asyncio.create_task(collect_in_steps())
    try:
        await _until_signal(make)
    finally:
        collecting.cancel()


async def _until_signal(make: Callable[[], Listening]) -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    gateway = make()
    starting = asyncio.create_task(gateway.__aenter__())
    stopping = asyncio.create_task(told.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if not starting.cancelled():
            # It ended in the same moment: what it failed with is said, what it opened is closed.
            starting.result()
            await gateway.__aexit__(None, None, None)
        return
    await starting
    try:
        scheme = "http" if gateway.settings.certificate_file is None else "https"
        print(f"gateway: listens at {scheme}://{gateway.settings.host}:{gateway.port}", flush=True)
        await stopping
    finally:
        await gateway.__aexit__(None, None, None)
