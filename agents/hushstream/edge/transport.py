"""HTTP as devices speak it: no cookie, no credentials, no id, and one connection for one request.

`http.client` brings `ssl` and `email` with it, a tenth of a device's start; it is imported with the first request, as a
device decides before it speaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    import ssl

MOST_ANSWER_BYTES = 16 * 1024 * 1024


class Unreachable(HushstreamError):
    """The gateway did not answer; what was sent may have arrived."""


class Answer(NamedTuple):
    """What came back.

    Attributes:
        status: of HTTP.
        headers: by lower-case name.
        body: all of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def time_ms(self) -> int | None:
        """The gateway's clock, as its header `Date` has it."""
        from email.utils import parsedate_to_datetime

        try:
            return round(parsedate_to_datetime(self.headers["date"]).timestamp() * 1000)
        except (KeyError, ValueError, TypeError, OverflowError):
            return None

    @property
    def retry_ms(self) -> int:
        """How long to wait at least before the same is sent again."""
        text = self.headers.get("retry-after", "")
        return 1000 * int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


class Transport:
    """Sends the two requests of a device to one gateway."""

    def __init__(self, gateway: str, *, timeout_seconds: float = 30.0, context: ssl.SSLContext | None = None) -> None:
        """Name the gateway.

        Args:
            gateway: its URL, for instance https://devices.shop.example.
            timeout_seconds: how long an answer is waited for.
            context: how it speaks TLS; by default as this machine trusts certificates.

        Raises:
            HushstreamError: no URL, or one of plain HTTP to another machine.
        """
        parts = urlsplit(gateway)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise HushstreamError("gateway: expected a URL like https://devices.shop.example, got another text")
        if parts.scheme == "http" and parts.hostname not in ("localhost", "127.0.0.1", "::1"):
            raise HushstreamError("gateway: expected https to another machine, got http")
        self._host, self._port, self._path = parts.hostname, parts.port, parts.path.rstrip("/")
        self._secure, self._timeout, self._context = parts.scheme == "https", timeout_seconds, context

    def send_slot(self, body: bytes) -> Answer:
        """Hand in a slot.

        Raises:
            Unreachable: see there.
        """
        return self._ask("POST", "/v1/slots", {"Content-Type": "application/octet-stream"}, body)

    def fetch_model(self, tag: str | None) -> Answer:
        """Ask for the newest model, unless it is the one with this tag.

        Raises:
            Unreachable: see there.
        """
        return self._ask("GET", "/v1/model", {} if tag is None else {"If-None-Match": tag}, None)

    def _ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> Answer:
        import http.client

        made = (
            http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._context)
            if self._secure
            else http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        )
        try:
            made.request(method, self._path + path, body, {**headers, "Connection": "close"})
            response = made.getresponse()
            content = response.read(MOST_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"gateway: expected an answer, got {type(error).__name__}") from None
        finally:
            made.close()
        if len(content) > MOST_ANSWER_BYTES:
            raise Unreachable(f"gateway: expected an answer of at most {MOST_ANSWER_BYTES} bytes, got a longer one")
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, content)
