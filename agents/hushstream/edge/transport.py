"""HTTP as devices use it: no cookie, no credentials, no id, and a new connection for each request.

`http.client` imports `ssl` and `email`, which takes a tenth of a device's start. So it is imported with the first
request: a device makes its first decisions before it sends anything.
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
    """The gateway did not answer; the request may have arrived all the same."""


class Answer(NamedTuple):
    """The gateway's answer.

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
        """The gateway's clock from the header `Date`, in milliseconds since 1970; None if it is missing or invalid."""
        from email.utils import parsedate_to_datetime

        try:
            return round(parsedate_to_datetime(self.headers["date"]).timestamp() * 1000)
        except (KeyError, ValueError, TypeError, OverflowError):
            return None

    @property
    def retry_ms(self) -> int:
        """The shortest wait before the same request, from the header `Retry-After`; 0 without one."""
        text = self.headers.get("retry-after", "")
        return 1000 * int(text) if text.isascii() and text.isdigit() and len(text) < 7 else 0


class Transport:
    """Sends the two requests of a device to one gateway."""

    def __init__(self, gateway: str, *, timeout_seconds: float = 30.0, context: ssl.SSLContext | None = None) -> None:
        """Name the gateway.

        Args:
            gateway: its URL, for instance https://devices.shop.example.
            timeout_seconds: how long to wait for an answer.
            context: the settings of TLS; by default with the authorities that this machine trusts.

        Raises:
            HushstreamError: it is not a URL, or one of plain HTTP to another machine.
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
            Unreachable: the gateway did not answer.
        """
        return self._ask("POST", "/v1/slots", {"Content-Type": "application/octet-stream"}, body)

    def fetch_model(self, tag: str | None) -> Answer:
        """Ask for the newest model, unless it is the one with this tag.

        Raises:
            Unreachable: the gateway did not answer.
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
