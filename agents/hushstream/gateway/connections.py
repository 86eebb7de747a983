"""The gateway's connections: HTTP errors become problem documents, and a client that does not read is disconnected."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from hushstream.gateway.problems import CONTENT_TYPE, Problem

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
