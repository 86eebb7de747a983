"""The base of every gateway: it connects, listens, serves metrics, and stops in order on request.

*Bounded log.* Limits how many records of a client's log may wait for their acknowledgement; a further record is refused
at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import ssl
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from hushstream.agents.observe.endpoints import EVERYBODY, MetricsAccess
from hushstream.agents.process import collect_in_steps, use_uvloop
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord
from hushstream.gateway.callers import server_context
from hushstream.gateway.http_server import HttpServer
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.problems import LogBusy
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.errors import HushstreamError

_log = logging.getLogger(__name__)

BACKLOG = 128
MEASURE_SECONDS = 1.0
STOP_SECONDS = 5.0
"""How long a log may take to close. No confirmed record is lost: a caller gets its answer only after the
acknowledgement."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The endpoints of metrics besides `/metrics`; a port of None: not served."""

    host: str = "127.0.0.1"
    port: int | None = None
    zone_host: str = "127.0.0.1"
    zone_port: int | None = None
    access: MetricsAccess = EVERYBODY


@dataclass(slots=True, kw_only=True)
class ListeningGateway(ABC):
    """A gateway of one deployment; use it with ``async with``.

    Attributes:
        system: the deployment.
        settings: the gateway's settings.
        endpoints: the endpoints of metrics.
        port: the port on which it listens, when it does.
    """

    system: System
    settings: GatewaySettings
    endpoints: Endpoints = field(default_factory=Endpoints)
    port: int = 0
    _stack: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @abstractmethod
    async def _connect(self, metrics: GatewayMetrics) -> HttpServer[Any]:
        """Connect to the log, and let the exit stack close it; returns the server that answers requests.

        Raises:
            HushstreamError: the deployment has no gateway of this kind, or no broker answers.
        """

    async def __aenter__(self) -> Self:
        """Connect, then listen.

        Raises:
            HushstreamError: the deployment has no gateway of this kind, a file in the settings cannot be used, no
                broker answers, or the address is not available.
        """
        context, metrics = server_context(self.settings), GatewayMetrics()
        try:
            await self._listen(await self._connect(metrics), metrics, context)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Refuse further requests, finish those in progress, flush and close."""
        await self._stack.aclose()

    async def _listen(self, server: HttpServer[Any], metrics: GatewayMetrics, context: ssl.SSLContext | None) -> None:
        """Listen until the exit stack closes."""
        self._stack.push_async_callback(server.finish)
        listening = await _bound(server, self.settings, context)
        self._stack.callback(listening.close)
        self.port = int(listening.sockets[0].getsockname()[1])
        self._stack.callback(server.stop)
        shown = self.endpoints
        metrics.serve(shown.host, shown.port, shown.zone_port, shown.zone_host, shown.access)
        self._stack.callback(metrics.close)
        measuring = asyncio.create_task(_measure(server.measure))
        self._stack.callback(measuring.cancel)


async def close_log(log: Any) -> None:
    """Flush and close a log, but give up after `STOP_SECONDS`.

    If no broker answers, a producer would wait much longer than a supervisor that stops the gateway.
    """
    try:
        await asyncio.wait_for(log.stop(), STOP_SECONDS)
    except TimeoutError:
        _log.warning(
            "the log was not closed within %g s, as no broker answers; its unsent records are lost", STOP_SECONDS
        )


async def _bound(server: HttpServer[Any], settings: GatewaySettings, context: ssl.SSLContext | None) -> asyncio.Server:
    """Listen. A client that does not finish the TLS handshake in time is disconnected."""
    seconds = None if context is None else settings.read_seconds
    try:
        return await asyncio.get_running_loop().create_server(
            server.connection, settings.host, settings.port, ssl=context, backlog=BACKLOG, ssl_handshake_timeout=seconds
        )
    except OSError as error:
        raise HushstreamError(
            f"gateway: expected to listen at {settings.host}:{settings.port}, got {error.strerror}"
        ) from None


async def _measure(measure: Callable[[], None]) -> None:
    while True:
        measure()
        await asyncio.sleep(MEASURE_SECONDS)


def run_gateway(make: Callable[[], ListeningGateway], located: Callable[[str], str] = str) -> int:
    """Run a gateway in this process until SIGTERM or SIGINT.

    Args:
        make: makes the gateway; called within the event loop.
        located: completes the commands of a message.

    Returns:
        The exit code: 0 after a clean end, 1 with a one-line reason on standard error otherwise.
    """
    for library in ("aiokafka", "kafka"):
        # Only warnings: at lower levels these libraries log whole records, which name users.
        logging.getLogger(library).setLevel(logging.WARNING)
    use_uvloop()
    try:
        asyncio.run(_without_long_collections(make))
    except HushstreamError as error:
        print(located(f"hushstream worker gateway: {error}"), file=sys.stderr)
        return 1
    return 0


async def _without_long_collections(make: Callable[[], ListeningGateway]) -> None:
    collecting = asyncio.create_task(collect_in_steps())
    try:
        await _until_signal(make)
    finally:
        collecting.cancel()


async def _until_signal(make: Callable[[], ListeningGateway]) -> None:
    end_asked = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end_asked.set)
    gateway = make()
    starting = asyncio.create_task(gateway.__aenter__())
    stopping = asyncio.create_task(end_asked.wait())
    await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait((starting,))
        if not starting.cancelled():
            # The start ended at the same moment: raise its error, or close what it opened.
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


SILENT_SECONDS = 5.0
"""How long the oldest record may wait for its acknowledgement before the log counts as unavailable."""


class BoundedLog:
    """Wraps an `EventLog` and limits its unacknowledged records, which pile up while no broker answers."""

    def __init__(
        self,
        log: EventLog,
        most: int,
        feedback: Container[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Allow ``most`` records to wait for their acknowledgement.

        Args:
            log: is limited.
            most: how many may wait.
            feedback: the topics whose records do not count in `answers`: everybody may read that.
            clock: seconds.
        """
        self._log, self._most, self._feedback = log, most, feedback
        self._clock = clock
        self._sending: dict[asyncio.Future[int], float] = {}

    @property
    def waiting(self) -> int:
        """How many records wait for their acknowledgement."""
        return len(self._sending)

    @property
    def answers(self) -> bool:
        """Whether the log answers: no record but feedback has waited too long for its acknowledgement."""
        return self._clock() - min(self._sending.values(), default=math.inf) < SILENT_SECONDS

    async def start(self, on_answers: Callable[[int, int, bytes], None]) -> None:
        """See `EventLog.start`."""
        await self._log.start(on_answers)

    def append(self, topic: str, partition: int, value: bytes) -> asyncio.Future[int]:
        """See `EventLog.append`.

        Raises:
            LogBusy: too many records wait; this one was not sent.
            HushstreamError: the log refused the record.
        """
        if len(self._sending) >= self._most:
            raise LogBusy(f"log: expected fewer than {self._most} records that await their acknowledgement")
        sending = asyncio.ensure_future(self._log.append(topic, partition, value))
        self._sending[sending] = math.inf if topic in self._feedback else self._clock()
        sending.add_done_callback(self._sending.pop)
        return sending

    async def read(self, topic: str, partition: int, low: int) -> Sequence[InputRecord]:
        """See `EventLog.read`."""
        return await self._log.read(topic, partition, low)

    def partitions(self) -> int:
        """See `EventLog.partitions`."""
        return self._log.partitions()

    async def stop(self) -> None:
        """See `EventLog.stop`."""
        sending = list(self._sending)
        for one in sending:
            one.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        await close_log(self._log)
