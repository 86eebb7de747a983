"""Sends HTTP requests at a fixed rate with a cheap client, so that the servers are measured and not the client.

A client library uses more CPU time per request than some servers do, and competes with them for cores. So requests are
prepared as bytes, and an answer is read only until it is clear whether it is a logged decision. Requests are sent at
the rate, whether or not earlier ones were answered. A latency counts from the time at which its request was due, so
that a stall counts for every request that would have waited during it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import urlsplit

CONNECTIONS = 400
"""The maximum of open connections to all servers. A request without a free one waits, which adds to its latency."""

_END = b"\r\n\r\n"
_LENGTH = b"content-length:"


@dataclass(slots=True)
class Answered:
    """The outcomes of requests.

    Attributes:
        latencies: the latencies of requests answered with a logged decision, in seconds, in the order of the answers.
        refused: how many requests had another answer, or none.
        took: the seconds from the first request to the last answer.
    """

    latencies: list[float] = field(default_factory=list)
    refused: int = 0
    took: float = 0.0


class _Due(NamedTuple):
    """A request, and when it is due on the clock of `time.perf_counter`."""

    request: bytes
    at: float


def post(path: str, body: bytes) -> bytes:
    """The bytes of one request."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + _END + body


async def send_at_rate(urls: Sequence[str], requests: Sequence[bytes], rate: float) -> Answered:
    """Send requests to the servers in turn; returns when each was answered, or its connection was closed.

    Args:
        urls: ``http://host:port`` of each server.
        requests: whole requests, as `post` makes them.
        rate: requests a second, of all servers together.
    """
    found = Answered()
    servers = [_Server(url, found, max(1, CONNECTIONS // len(urls))) for url in urls]
    begun = time.perf_counter() + 0.1
    try:
        for number, request in enumerate(requests):
            at = begun + number / rate
            # After a sleep that was too long, all requests that are late are sent without a further sleep.
            if (wait := at - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            servers[number % len(servers)].ask(_Due(request, at))
        for server in servers:
            await server.done()
        found.took = time.perf_counter() - begun
    finally:
        for server in servers:
            server.close()
    return found


class _Server:
    """One server, and the connections to it."""

    def __init__(self, url: str, found: Answered, most: int) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._found = found
        self._most = most
        self._free: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._waiting: deque[_Due] = deque()
        self._unanswered = 0
        self._done = asyncio.Event()
        self._done.set()

    def ask(self, due: _Due) -> None:
        self._unanswered += 1
        self._done.clear()
        self._send(due)

    def _send(self, due: _Due) -> None:
        if self._free:
            self._free.pop().ask(due)
        elif len(self._open) + len(self._opening) < self._most:
            opening = asyncio.create_task(self._opened(due))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        else:
            self._waiting.append(due)

    async def done(self) -> None:
        """Return when every request has its outcome."""
        await self._done.wait()

    def close(self) -> None:
        for connection in self._open:
            connection.close()

    async def _opened(self, due: _Due) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(self), self._host, self._port
            )
        except OSError:
            self._count(due, logged=False)
            return
        self._open.add(connection)
        connection.ask(due)

    def answered(self, connection: _Connection, due: _Due, body: bytes | None, *, keeps: bool) -> None:
        """Handle an answer (with a body if its status is 200), or a connection that was closed before the answer."""
        self._count(due, logged=body is not None and json.loads(body).get("logged") is True)
        if keeps:
            self._free.append(connection)
        else:
            self._open.discard(connection)
        if self._waiting:
            self._send(self._waiting.popleft())

    def gone(self, connection: _Connection) -> None:
        """Handle the close of an idle connection."""
        self._open.discard(connection)
        if connection in self._free:
            self._free.remove(connection)

    def _count(self, due: _Due, *, logged: bool) -> None:
        if logged:
            self._found.latencies.append(time.perf_counter() - due.at)
        else:
            self._found.refused += 1
        self._unanswered -= 1
        if not self._unanswered:
            self._done.set()


class _Connection(asyncio.Protocol):
    """A keep-alive connection, with one request at a time."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._transport: Any = None
        self._due: _Due | None = None
        self._read = b""

    def ask(self, due: _Due) -> None:
        self._due = due
        self._transport.write(due.request)

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`: the answers of both servers have a Content-Length."""
        self._read += data
        head, found, body = self._read.partition(_END)
        if not found or self._due is None:
            return
        lines = head.lower().split(b"\r\n")
        length = int(next(line for line in lines if line.startswith(_LENGTH))[len(_LENGTH) :])
        if len(body) < length:
            return
        due, self._due, self._read = self._due, None, b""
        keeps = b"connection: close" not in lines
        self._server.answered(self, due, body if lines[0].startswith(b"http/1.1 200") else None, keeps=keeps)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        if self._due is None:
            self._server.gone(self)
            return
        due, self._due = self._due, None
        self._server.answered(self, due, None, keeps=False)
