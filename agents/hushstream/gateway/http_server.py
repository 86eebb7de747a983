"""The HTTP server of every gateway: limits, problem documents, cross-origin requests, health and metrics.

*Limits.* Limits the requests in progress, and the rate of each caller. Nothing waits in a queue.

*Connections.* Of aiohttp only the parser: its own server takes twice the time of a request's. What is no HTTP becomes a
problem document, and who sends nothing, or does not read, is let go.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from abc import ABC, abstractmethod
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Generic, Protocol, TypeVar

from aiohttp import HttpVersion11
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web import RequestPayloadError

from hushstream.gateway.metrics import NO_CALL, OK, GatewayMetrics
from hushstream.gateway.problems import CONTENT_TYPE, Problem, any_problem_of
from hushstream.gateway.settings import GatewaySettings

_log = logging.getLogger(__name__)


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "hushstream"}
"""The headers of every answer."""
JSON = "application/json"
_PIPELINED = 16
"""So many requests of a connection are read ahead of their answers."""
_BUFFER = 1 << 16
"""So many bytes of a body are read ahead of whoever reads it."""
_LENGTH_DIGITS = 20
"""The parser takes any number of digits for the length of a body, and `int` not more than some thousands."""
_LINGER_SECONDS = 1.0
"""How long the rest of a refused body is read, as its sender may read the answer only then."""


class Request:
    """A request: its head as aiohttp's parser gives it, and the stream of its body, which may still be coming."""

    __slots__ = ("content", "head", "headers", "method", "path", "transport")

    def __init__(self, head: Any, content: Any, transport: asyncio.Transport) -> None:
        self.head, self.content, self.transport = head, content, transport
        self.method, self.path, self.headers = head.method, head.url.path, head.headers


@dataclass(slots=True)
class Response:
    """An answer.

    Attributes:
        status: the HTTP status.
        body: its content.
        content_type: the type of the content; None if there is no content.
        headers: further headers.
        close: whether the connection is closed after it.
    """

    status: int = 200
    body: bytes = b""
    content_type: str | None = None
    headers: dict[str, str] = field(default_factory=HEADERS.copy)
    close: bool = False

    def as_bytes(self, keep: bool, newer: bool = True, method: str = "") -> bytes:
        """What is sent to a request of HTTP/1.1, or of an older version, whose connection is kept or not."""
        lines = {**self.headers, "Date": formatdate(usegmt=True)}
        if self.content_type is not None:
            lines |= {"Content-Type": self.content_type, "Content-Length": str(len(self.body))}
        if keep != newer:
            lines["Connection"] = "keep-alive" if keep else "close"
        first = f"HTTP/1.{newer:d} {self.status} {HTTPStatus(self.status).phrase}\r\n"
        return _head(first, lines) + b"\r\n" + (b"" if method == "HEAD" else self.body)


def _head(first: str, lines: Mapping[str, str]) -> bytes:
    return "".join((first, *(f"{name}: {value}\r\n" for name, value in lines.items()))).encode()


@lru_cache(maxsize=1)
def _json_head(second: int) -> bytes:
    """The head of a JSON answer to an HTTP/1.1 request that keeps its connection, without its length."""
    return _head("HTTP/1.1 200 OK\r\n", {**HEADERS, "Content-Type": JSON, "Date": formatdate(second, usegmt=True)})


class Connection(BaseProtocol):
    """A connection: its requests are answered one after another, in their order.

    Attributes:
        due: when it is let go unless something happens, in seconds on the loop's clock.
        serving: answers its requests; None while there is none.
    """

    __slots__ = ("_body", "_ended", "_full", "_server", "_waiting", "due", "serving")

    def __init__(self, server: HttpServer[Any]) -> None:
        loop = asyncio.get_running_loop()
        kept: dict[str, Any] = {"auto_decompress": False, "max_msg_queue_size": _PIPELINED}
        super().__init__(loop, HttpRequestParser(self, loop, _BUFFER, payload_exception=RequestPayloadError, **kept))
        self._server = server
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._body: Any = EMPTY_PAYLOAD
        self._full = self._ended = False
        self.due = math.inf
        self.serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if self._server.admits(self):
            self._serve_next()
        else:
            # Before anything is read: each connection of a flood then takes only a file descriptor, for a moment.
            self.let_go()

    def connection_lost(self, exc: BaseException | None) -> None:
        """See `asyncio.Protocol`: whoever has gone needs no answer."""
        super().connection_lost(exc)
        self._server.open.discard(self)
        # Whoever is referred to in a circle waits for the collector.
        self._parser, self._body, self._ended = None, EMPTY_PAYLOAD, True
        if self.serving is not None:
            self.serving.cancel()

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`: the client does not read its answer."""
        super().pause_writing()
        self.due = self._loop.time() + self._server.settings.read_seconds

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().resume_writing()
        self._serve_next()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self._ended or self._parser is None:
            return
        try:
            found, self._ended, _ = self._parser.feed_data(data)
        except HttpProcessingError:
            # The parser's message may repeat the request, so it is neither sent nor logged.
            found, self._ended = [(None, EMPTY_PAYLOAD)], True
            if not self._body.is_eof():
                self._body.set_exception(RequestPayloadError())
        if not found:
            return
        self._waiting.extend(found)
        self._body = found[-1][1]
        self._hold_if_full()
        self._serve_next()

    def _hold_if_full(self) -> None:
        """Read no more while many requests wait: the parser keeps what follows them, however much that is."""
        if len(self._waiting) + (self.serving is not None) >= _PIPELINED and self.transport is not None:
            self._full = True
            self.transport.pause_reading()

    def let_go(self) -> None:
        """Close, as soon as what was written is sent."""
        self._ended = True
        self._waiting.clear()
        if self.transport is not None:
            self.transport.close()

    def expire(self) -> None:
        """Close; at once if what was written is not read."""
        if self.transport is not None and (self.writing_paused or self.transport.is_closing()):
            self.transport.abort()
        self.let_go()

    def _serve_next(self) -> None:
        if self.serving is not None or self.writing_paused:
            return
        if self._waiting:
            self.due = math.inf
            self.serving = self._loop.create_task(self._serve())
        else:
            self.due = self._loop.time() + self._server.settings.idle_seconds

    async def _serve(self) -> None:
        try:
            while self._waiting and not self.writing_paused:
                head, content = self._waiting.popleft()
                if self._full and not self._waiting:
                    self._full = False
                    self.resume_reading()  # First of what the parser has kept, which may be the rest of this body.
                    self._hold_if_full()
                if not await self._answered(head, content):
                    self.let_go()
            if self._ended and not self._waiting:
                self.let_go()
        except Exception as error:  # noqa: BLE001 - a message or a traceback may repeat the request
            _log.error("a connection failed: %s", type(error).__name__)
            self.let_go()
        finally:
            self.serving = None
            self._serve_next()

    async def _answered(self, head: Any, content: Any) -> bool:
        """Answer one request, or what is none; returns whether the connection is kept."""
        transport = self.transport
        if transport is None:
            return False
        request = None if head is None else Request(head, content, transport)
        written, keep = await self._server.answer(request)
        transport.write(written)
        if not content.is_eof():
            with suppress(TimeoutError, RequestPayloadError):
                async with asyncio.timeout(_LINGER_SECONDS):
                    while not content.is_eof():
                        await content.readany()
        if self._parser is not None:
            self._parser.message_consumed()
        return keep and bool(content.is_eof())


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


Look = Callable[[Request], Response]
"""Answers a GET."""


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
        self.settings, self._log, self._metrics = settings, log, metrics
        self._body_bytes, self._cross_origin = body_bytes, cross_origin
        self._busy = Busy(settings.in_flight)
        self.open: set[Connection] = set()
        """The connections."""
        self._stopping = False
        self._open: dict[str, Look] = {
            "/healthz": partial(fixed, b"alive", "text/plain"),
            "/readyz": self._ready,
            "/openapi.json": partial(fixed, description, JSON),
        }
        """The paths that everybody may read with GET."""

    @abstractmethod
    def _call_of(self, request: Request) -> C | None:
        """The call that a request is for; None if there is no such call."""

    @abstractmethod
    async def _respond(self, request: Request, call: C | None) -> Response | bytes:
        """Answer a request to a path that is not open to everybody; returns the response, or only its JSON.

        Raises:
            Problem: the request is refused.
        """

    def connection(self) -> Connection:
        """Make a connection, for asyncio's servers."""
        return Connection(self)

    def admits(self, connection: Connection) -> bool:
        """Take a new connection, if there is room for it."""
        if len(self.open) < self.settings.connections:
            self.open.add(connection)
        return connection in self.open

    def stop(self) -> None:
        """Refuse further requests; those in progress go on."""
        self._stopping = True

    async def finish(self) -> None:
        """Let the requests in progress end, then close all connections."""
        for idle in [one for one in self.open if one.serving is None]:
            idle.let_go()
        serving = [one.serving for one in self.open if one.serving is not None]
        if serving:
            await asyncio.wait(serving, timeout=self.settings.stop_seconds)
        for connection in list(self.open):
            connection.let_go()
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def measure(self) -> None:
        """Update the gauges, and let connections go whose time is over."""
        self._metrics.set_now(self._busy.now, self._log.waiting)
        now = asyncio.get_running_loop().time()
        for connection in [one for one in self.open if one.due <= now]:
            connection.expire()

    async def answer(self, request: Request | None) -> tuple[bytes, bool]:
        """The bytes of an answer, and whether the connection is kept; without a request, to what is none."""
        if request is None:
            problem = Problem("malformed-http")
            return Response(problem.kind.status, problem.body(), CONTENT_TYPE).as_bytes(keep=False), False
        call = self._call_of(request)
        if call is not None and not call.is_feedback:
            self._metrics.arrived(call.name)
        try:
            response = await self._respond(request, call)
            code = OK
        except Exception as error:  # noqa: BLE001 - whoever asked gets an answer
            code, response = self._refused(request, any_problem_of(error), call)
        self._metrics.ended(NO_CALL if call is None else call.name, code)
        keep, newer = not (request.head.should_close or self._stopping), request.head.version == HttpVersion11
        if isinstance(response, bytes):
            if keep and newer and not self.settings.cors_origins:
                return b"%bContent-Length: %d\r\n\r\n%b" % (_json_head(int(time.time())), len(response), response), True
            response = fixed(response, JSON, request)
        self._allow_origin(request, response)
        keep = keep and not response.close
        return response.as_bytes(keep, newer, request.method), keep

    async def _read(self, request: Request) -> bytes:
        """Read the body of a request.

        Raises:
            Problem: the body is too large, or comes too slowly.
        """
        length = request.headers.get("Content-Length", "0")
        if len(length) > _LENGTH_DIGITS or int(length) > self._body_bytes:
            raise Problem("body-too-large", close=True)
        if request.headers.get("Expect", "").lower() == "100-continue":
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        content = request.content
        if content.is_eof():  # The whole body is here, so there is no need to wait.
            body: bytes = content.read_nowait()
        else:
            body = await self._awaited_body(content)
        if len(body) > self._body_bytes:
            raise Problem("body-too-large", close=True)
        return body

    async def _awaited_body(self, content: Any) -> bytes:
        """A body that is still coming, up to the first bytes beyond the limit."""
        body = bytearray()
        try:
            async with asyncio.timeout(self.settings.read_seconds):
                while not content.at_eof() and len(body) <= self._body_bytes:
                    body += await content.readany()
        except TimeoutError:
            raise Problem("slow-request", close=True) from None
        except RequestPayloadError:
            raise Problem("malformed-http", close=True) from None
        return bytes(body)

    def _refused(self, request: Request, problem: Problem, call: C | None) -> tuple[str, Response]:
        kind = problem.kind
        status, body, content_type = self._problem_document(request, problem)
        response = Response(status, body, content_type, close=problem.close)
        if kind.retry_seconds is not None:
            response.headers["Retry-After"] = str(kind.retry_seconds)
        if kind.code == "unauthorized":
            response.headers["WWW-Authenticate"] = "Bearer"
        if kind.code == "method-not-allowed":
            response.headers["Allow"] = "GET" if call is None else call.method
        return kind.code, response

    def _problem_document(self, request: Request, problem: Problem) -> tuple[int, bytes, str]:
        """Status, body and content type of a problem."""
        return problem.kind.status, problem.body(), CONTENT_TYPE

    # Cross-origin requests.

    def _preflight(self, request: Request, method: str) -> Response:
        if request.headers.get("Origin") not in self.settings.cors_origins:
            raise Problem("method-not-allowed")
        allowed = {
            "Access-Control-Allow-Methods": method,
            "Access-Control-Allow-Headers": self._cross_origin.sends,
            "Access-Control-Max-Age": str(self._cross_origin.seconds),
        }
        return Response(HTTPStatus.NO_CONTENT, headers={**HEADERS, **allowed})

    def _allow_origin(self, request: Request, response: Response) -> None:
        origins = self.settings.cors_origins
        if not origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin in origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = self._cross_origin.reads

    # Paths with GET.

    def _ready(self, request: Request) -> Response:
        if self._stopping:
            raise Problem("stopping")
        if not self._log.answers:
            raise Problem("log-unavailable")
        return fixed(b"ready", "text/plain", request)

    def _show_metrics(self, request: Request) -> Response:
        self.measure()
        return fixed(self._metrics.text(), "text/plain", request)


def require_method(request: Request, wanted: str) -> None:
    """Refuse another method of HTTP.

    Raises:
        Problem: see there.
    """
    if request.method != wanted:
        raise Problem("method-not-allowed")


def is_media(request: Request, content_type: str) -> bool:
    """Whether a request declares that its body has a content type and is not compressed."""
    headers = request.headers
    said = headers.get("Content-Type", "")
    same = said == content_type or said.partition(";")[0].strip().lower() == content_type
    return same and bool(headers.get("Content-Encoding", "identity") == "identity")


def fixed(body: bytes, content_type: str, request: Request, headers: Mapping[str, str] = HEADERS) -> Response:
    """Make an answer that depends on the request's method only."""
    charset = "; charset=utf-8" if content_type.startswith("text/") else ""
    return Response(200, body, content_type + charset, dict(headers))
