"""The HTTP endpoints where Prometheus reads metrics: open to all who can reach them, or only with a token."""

from __future__ import annotations

import hmac
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import ThreadingMixIn
from threading import Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from hushstream.engine.values import ConfigurationError

LOOPBACK = "127.0.0.1"
TOKEN_CHARACTERS = 32
"""The least length of a token, so that nobody can guess it by trying."""
_PATIENCE_SECONDS = 10
"""How long a caller may take to send its request."""

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class MetricsAccess:
    """Who may read metrics, and whether they are encrypted on their way.

    Attributes:
        token: the token that a scraper must send as ``Authorization: Bearer TOKEN``; None: no token is needed.
        certificate: PEM file with a certificate and its key, for HTTPS; None: HTTP.
    """

    token: str | None = field(default=None, repr=False)
    certificate: Path | None = None

    @classmethod
    def of_files(cls, token: Path | None, certificate: Path | None) -> MetricsAccess:
        """Read the token from its file, and check the file of the certificate.

        Raises:
            ConfigurationError: a file is missing or others can read it, or it holds no token, or no certificate with
                its key. The message never repeats the file's content.
        """
        read = None if token is None else _require_private("--metrics-token", token).strip()
        if read is not None and (len(read) < TOKEN_CHARACTERS or not read.isascii() or not read.isprintable()):
            raise ConfigurationError(
                f"--metrics-token: expected one line of at least {TOKEN_CHARACTERS} printable ASCII characters in "
                f"{token}, got something else"
            )
        if certificate is not None:
            _require_private("--metrics-certificate", certificate)
            _context(certificate)
        return cls(read, certificate)


EVERYBODY = MetricsAccess()
"""No token and no encryption: everybody who can reach an endpoint can read it."""


def ports_named(ports: tuple[int | None, int | None]) -> str:
    """Say on which ports public metrics and the zone's are served, for the first line of a log."""
    named = zip(("metrics on port", "zone metrics on port"), ports, strict=True)
    return ", ".join(f"{what} {port}" for what, port in named if port is not None) or "no metrics are served"


class ServedMetrics:
    """Metrics in two registries, for two kinds of reader, each with an endpoint of its own."""

    def __init__(self) -> None:
        """Serve nothing yet."""
        self.public, self.zone = CollectorRegistry(), CollectorRegistry()
        self._servers: list[tuple[WSGIServer, Thread]] = []

    def serve(
        self,
        host: str,
        port: int | None,
        zone_port: int | None,
        zone_host: str = LOOPBACK,
        access: MetricsAccess = EVERYBODY,
    ) -> tuple[int | None, int | None]:
        """Open the two endpoints (None: not served; 0: any free port) and return the ports in use.

        The zone's endpoint has a host of its own, so that opening the public endpoint to others does not open the
        zone's.

        Raises:
            OSError: a port is not available.
        """
        return self._open(host, port, self.public, access), self._open(zone_host, zone_port, self.zone, access)

    def close(self) -> None:
        """Close the endpoints."""
        for server, thread in self._servers:
            server.shutdown()
            server.server_close()
            thread.join()
        self._servers.clear()

    def _open(self, host: str, port: int | None, registry: CollectorRegistry, access: MetricsAccess) -> int | None:
        if port is None:
            return None
        made: Wsgi = make_wsgi_app(registry)
        application = made if access.token is None else _with_token(made, access.token)
        family, address = _first_address(host, port)
        server = make_server(address, port, application, _server_of(family), handler_class=_Handler)
        if access.certificate is not None:
            # The handshake runs in the thread of the request, so a caller that sends nothing blocks only that thread.
            server.socket = _context(access.certificate).wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self._servers.append((server, thread))
        return int(server.server_port)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a caller that disconnects, or does not speak TLS, is not an error of the worker."""


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a scrape comes every few seconds."""


def _server_of(family: socket.AddressFamily) -> type[_Server]:
    return type("_OfFamily", (_Server,), {"address_family": family})


def _first_address(host: str, port: int) -> tuple[socket.AddressFamily, str]:
    """The first address of a host, with its address family."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    return family, str(address[0])


def _with_token(application: Wsgi, token: str) -> Wsgi:
    expected = f"Bearer {token}".encode()

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        given = str(environ.get("HTTP_AUTHORIZATION", "")).encode("latin-1", "replace")
        if hmac.compare_digest(given, expected):
            return application(environ, start)
        start("401 Unauthorized", [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain; charset=utf-8")])
        return [b"expected Authorization: Bearer with the token of --metrics-token\n"]

    return answer


def _require_private(option: str, path: Path) -> str:
    """Read a text file; refuse it if anybody but its owner may read it."""
    try:
        if path.stat().st_mode & 0o077:
            raise ConfigurationError(f"{option}: expected {path} to be readable by its owner only (chmod 600)")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"{option}: expected a readable file, got {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{option}: expected text in {path}, got other bytes") from None


def _context(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, password=lambda: "")
    except (OSError, ssl.SSLError, ValueError) as error:
        raise ConfigurationError(
            f"--metrics-certificate: expected PEM with a certificate and its key, got {type(error).__name__}"
        ) from None
    return context
