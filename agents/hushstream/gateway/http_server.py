"""The HTTP server of every gateway: limits, problem documents, cross-origin requests, health and metrics.

*Limits.* Limits the requests in progress, and the rate of each caller. Nothing waits in a queue.

The gateway's connections: HTTP errors become problem documents, and a client that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import HttpVersion11, web
from aiohttp.web_exceptions import HTTPRequestEntityTooLarge

from hushstream.agents.process import collect_whole
from hushstream.gateway.metrics import NO_CALL, OK, GatewayMetrics
from hushstream.gateway.problems import CONTENT_TYPE, Problem, any_problem_of
from hushstream.gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


class Connection(web.RequestHandler):
    """A connection of aiohttp that obeys the `Limits` of its server."""

    __slots__ = ("_limits", "_unread")

    def __init__(self, manager: Server, limits: Limits, **options: Any) -> None:
        super().__init__(manager, **options)
        self._limits = limits
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if self._limits.open >= self._limits.most:
            # Close it before reading anything: each connection of a flood then takes only a file descriptor, for a
            # moment.
            self.force_close()
        self._limits.open += 1

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`."""
        self._limits.open -= 1
        self._limits.closed += 1
        self._read_again()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the client does not read its answer."""
        super().pause_writing()
        if self._unread is None:
            self._unread = asyncio.get_running_loop().call_later(self._limits.unread_seconds, self._give_up)

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._read_again()
        super().resume_writing()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Make a problem document. The parser's message may repeat the request, so it is neither sent nor logged."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has disconnected
        if request.writer.output_size > 0:
            raise ConnectionError("expected no answer yet, part of one was sent")
        if status >= 500:
            _log.error("a request failed: %s", type(exc).__name__)
        problem = Problem("internal" if status >= 500 else "malformed-http")
        response = web.Response(body=problem.body(), status=problem.kind.status, content_type=CONTENT_TYPE)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log only the type of the error: a message or a traceback may repeat the request."""
        _log.error("a connection failed: %s", type(kw.get("exc_info")).__name__)

    def _give_up(self) -> None:
        self._unread = None
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()

    def _read_again(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


class Limits:
    """The limits of all connections of a server together.

    Attributes:
        most: how many connections may be open.
        unread_seconds: how long an answer may stay unread.
        open: how many connections are open.
        closed: how many connections were closed since this was last set to 0.
    """

    def __init__(self, most: int, unread_seconds: float) -> None:
        """Begin without open connections."""
        self.most = most
        self.unread_seconds = unread_seconds
        self.open = self.closed = 0


class Server(web.Server):
    """Makes a `Connection` for each accepted connection."""

    def __init__(self, handler: Any, limits: Limits, request_factory: Any, **options: Any) -> None:
        """See `aiohttp.web.Server`; a request whose connection is closed is cancelled."""
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True)
        self._limits = limits
        self._options = options

    def __call__(self) -> Connection:
        return Connection(self, self._limits, loop=asyncio.get_running_loop(), **self._options)


REMEMBERED_CALLERS = 10_000


class Rate:
    """A token bucket for each of those that it counts: it fills at a rate, up to a burst.

    It remembers the last `REMEMBERED_CALLERS` that came.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, counted: Hashable, requests: int) -> None:
        """Take tokens for requests of a caller or of a user.

        Raises:
            Problem: there are too few tokens now; none was taken.
        """
        now = self._clock()
        left, at = self._buckets.pop(counted, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        enough = left >= requests
        self._buckets[counted] = (left - requests if enough else left, now)
        if len(self._buckets) > REMEMBERED_CALLERS:
            self._buckets.popitem(last=False)
        if not enough:
            raise Problem("too-many-requests")


class UserRates:
    """A bucket for what each user asks for, and another one for the feedback on it.

    Feedback takes neither tokens nor room of requests: else much feedback made a user's empty bucket be forgotten, and
    a request were answered that is refused without it.
    """

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._asked, self._told = Rate(per_second, burst, clock), Rate(per_second, burst, clock)

    def take(self, is_feedback: bool, counted: str) -> None:
        """Take a token for one request, or for one piece of feedback.

        Raises:
            Problem: there is none now.
        """
        (self._told if is_feedback else self._asked).take(counted, 1)


class Busy:
    """Counts the requests in progress.

    Attributes:
        now: how many requests are in progress.
    """

    def __init__(self, most: int) -> None:
        """Begin without requests."""
        self._most = most
        self.now = 0

    def begin(self, requests: int = 1) -> None:
        """Count further requests, until `end`.

        Raises:
            Problem: too many are in progress. A batch may exceed the limit if there was room for one request.
        """
        if self.now >= self._most:
            raise Problem("too-busy")
        self.now += requests

    def end(self, requests: int = 1) -> None:
        """Note that ``requests`` requests have ended."""
        self.now -= requests


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "hushstream"}
"""The headers of every answer."""
JSON = "application/json"
_CLOSED = 10_000
"""After this many closed connections the garbage collector runs: a connection that was open for long leaves a cycle."""

Look = Callable[[web.BaseRequest], web.Response]
"""Answers a GET."""


class ClientDisconnected(ConnectionError):
    """The caller closed the connection before the body was complete, so nobody is left to answer."""


class Called(Protocol):
    """The call that a request is for."""

    @property
    def name(self) -> str:
        """The name in metrics."""

    @property
    def method(self) -> str:
        """The HTTP method."""

    @property
    def is_feedback(self) -> bool:
        """Whether it is feedback."""


C = TypeVar("C", bound=Called)


class Log(Protocol):
    """The log to which requests write."""

    @property
    def waiting(self) -> int:
        """How many records wait for their acknowledgement."""

    @property
    def answers(self) -> bool:
        """Whether records are acknowledged in time."""


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """What pages of other origins may do, if their origin is allowed.

    Attributes:
        sends: the headers that they may send.
        reads: the headers that they may read.
        seconds: how long the browser may cache this.
    """

    sends: str
    reads: str
    seconds: int


class HttpServer(ABC, Generic[C]):
    """Checks each request, the cheapest checks first, then answers and counts it."""

    def __init__(
        self,
        settings: GatewaySettings,
        log: Log,
        description: bytes,
        metrics: GatewayMetrics,
        body_bytes: int,
        cross_origin: CrossOrigin,
    ) -> None:
        """Prepare the server; it does not listen yet.

        Args:
            settings: the limits and the allowed origins.
            log: the log, whose availability decides readiness.
            description: the OpenAPI document.
            metrics: count the requests.
            body_bytes: the largest body.
            cross_origin: what pages of other origins may do.
        """
        self._settings, self._log, self._metrics = settings, log, metrics
        self._body_bytes, self._cross_origin = body_bytes, cross_origin
        self._busy = Busy(settings.in_flight)
        self._connections = Limits(settings.connections, settings.read_seconds)
        self._stopping = False
        self._head = _Head()
        self._open: dict[str, Look] = {
            "/healthz": partial(fixed, b"alive", "text/plain"),
            "/readyz": self._ready,
            "/openapi.json": partial(fixed, description, JSON),
        }
        """The paths that everybody may read with GET."""

    @abstractmethod
    def _call_of(self, request: web.BaseRequest) -> C | None:
        """The call that a request is for; None if there is no such call."""

    @abstractmethod
    async def _respond(self, request: web.BaseRequest, call: C | None) -> web.Response | bytes:
        """Answer a request to a path that is not open to everybody; returns the response, or only its JSON.

        Raises:
            Problem: the request is refused.
        """

    def server(self) -> Server:
        """The factory of connections."""
        return Server(
            self._handle,
            self._connections,
            self._request,
            keepalive_timeout=self._settings.idle_seconds,
            access_log=None,
            auto_decompress=False,
            lingering_time=1.0,
        )

    def stop(self) -> None:
        """Refuse further requests; those in progress go on."""
        self._stopping = True

    def measure(self) -> None:
        """Update the gauges, and collect the memory of closed connections."""
        self._metrics.set_now(self._busy.now, self._log.waiting)
        if self._connections.closed >= _CLOSED:
            self._connections.closed = 0
            collect_whole()

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._body_bytes)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = self._call_of(request)
        if call is not None and not call.is_feedback:
            self._metrics.arrived(call.name)
        try:
            response = await self._respond(request, call)
            code = OK
        except ClientDisconnected:
            raise
        except Exception as error:  # noqa: BLE001 - whoever asked gets an answer
            problem = any_problem_of(error)
            code, response = problem.kind.code, self._refused(request, problem, call)
        self._metrics.ended(NO_CALL if call is None else call.name, code)
        if isinstance(response, bytes):
            if request.version == HttpVersion11 and request.keep_alive and not self._settings.cors_origins:
                await request.writer.write(self._head.of(len(response)) + response)
                return _WRITTEN
            response = fixed(response, JSON, request)
        self._allow_origin(request, response)
        return response

    async def _read(self, request: web.BaseRequest) -> bytes:
        """Read the body of a request.

        Raises:
            Problem: the body is too large, or comes too slowly.
            ClientDisconnected: see there.
        """
        if (request.content_length or 0) > self._body_bytes:
            raise Problem("body-too-large", close=True)
        try:
            if request.headers.get("Expect", "").lower() == "100-continue":
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0
            if request.content.is_eof():  # The whole body is here, so there is no need to wait.
                body = request.content.read_nowait()
                if len(body) > self._body_bytes:
                    raise Problem("body-too-large", close=True)
                return body
            return await asyncio.wait_for(request.read(), self._settings.read_seconds)
        except TimeoutError:
            raise Problem("slow-request", close=True) from None
        except ConnectionError as error:
            raise ClientDisconnected from error
        except HTTPRequestEntityTooLarge:
            raise Problem("body-too-large", close=True) from None
        except (web.RequestPayloadError, ValueError):
            raise Problem("malformed-http", close=True) from None

    def _refused(self, request: web.BaseRequest, problem: Problem, call: C | None) -> web.Response:
        kind = problem.kind
        status, body, content_type = self._problem_document(request, problem)
        response = web.Response(body=body, status=status, headers=HEADERS, content_type=content_type)
        if kind.retry_seconds is not None:
            response.headers["Retry-After"] = str(kind.retry_seconds)
        if kind.code == "unauthorized":
            response.headers["WWW-Authenticate"] = "Bearer"
        if kind.code == "method-not-allowed":
            response.headers["Allow"] = "GET" if call is None else call.method
        if problem.close:
            response.force_close()
        return response

    def _problem_document(self, request: web.BaseRequest, problem: Problem) -> tuple[int, bytes, str]:
        """Status, body and content type of a problem."""
        return problem.kind.status, problem.body(), CONTENT_TYPE

    # Cross-origin requests.

    def _preflight(self, request: web.BaseRequest, method: str) -> web.Response:
        if request.headers.get("Origin") not in self._settings.cors_origins:
            raise Problem("method-not-allowed")
        allowed = {
            "Access-Control-Allow-Methods": method,
            "Access-Control-Allow-Headers": self._cross_origin.sends,
            "Access-Control-Max-Age": str(self._cross_origin.seconds),
        }
        return web.Response(status=HTTPStatus.NO_CONTENT, headers={**HEADERS, **allowed})

    def _allow_origin(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        origins = self._settings.cors_origins
        if not origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin in origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = self._cross_origin.reads

    # Paths with GET.

    def _ready(self, request: web.BaseRequest) -> web.Response:
        if self._stopping:
            raise Problem("stopping")
        if not self._log.answers:
            raise Problem("log-unavailable")
        return fixed(b"ready", "text/plain", request)

    def _show_metrics(self, request: web.BaseRequest) -> web.Response:
        self.measure()
        return fixed(self._metrics.text(), "text/plain", request)


def require_method(request: web.BaseRequest, wanted: str) -> None:
    """Refuse another method of HTTP.

    Raises:
        Problem: see there.
    """
    if request.method != wanted:
        raise Problem("method-not-allowed")


class _Head:
    """The head of a JSON answer to an HTTP/1.1 request that keeps its connection; it is rebuilt once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._until_length = b""

    def of(self, length: int) -> bytes:
        """The head for a body of this length in bytes."""
        second = int(time.time())
        if second != self._second:
            lines = {**HEADERS, "Content-Type": JSON, "Date": formatdate(second, usegmt=True)}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self._second, self._until_length = second, f"HTTP/1.1 200 OK\r\n{head}Content-Length: ".encode()
        return b"%b%d\r\n\r\n" % (self._until_length, length)


class _Written(web.StreamResponse):
    """An answer that is already written. Writing head and body at once saves an eighth of a request's time."""

    @property
    def keep_alive(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: everything is written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Nothing is left to write."""


_WRITTEN = _Written()


def is_media(request: web.BaseRequest, content_type: str) -> bool:
    """Whether a request declares that its body has a content type and is not compressed."""
    headers = request.headers
    said = headers.get("Content-Type") == content_type or request.content_type == content_type
    return said and headers.get("Content-Encoding", "identity") == "identity"


def fixed(
    body: bytes, content_type: str, request: web.BaseRequest, headers: Mapping[str, str] = HEADERS
) -> web.Response:
    """Make an answer that depends on the request's method only."""
    charset = "utf-8" if content_type.startswith("text/") else None
    return web.Response(body=body, headers=headers, content_type=content_type, charset=charset)
