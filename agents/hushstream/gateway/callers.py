"""Who calls: a name, by a bearer token or a certificate; without either everybody on this machine is one caller."""

from __future__ import annotations

import hashlib
import os
import ssl
import stat
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from hushstream.engine.values import ConfigurationError
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings

TOKEN_CHARACTERS = 32
"""The least of a token: nobody tries them all."""
LOOK_SECONDS = 2.0
"""So long a token that was taken out of the file may still be good."""
ANYBODY = "anybody"

_BEARER = "bearer "


class TokensFile:
    """Names and tokens of a file, by a digest: how long a comparison takes tells nothing of a token."""

    def __init__(
        self, path: Path, clock: Callable[[], float] = time.monotonic, today: Callable[[], date] | None = None
    ) -> None:
        """Read the file.

        Raises:
            ConfigurationError: it is missing, readable by others, or a line is no token. Never repeats a line.
        """
        self._path = path
        self._clock = clock
        self._today = today or (lambda: datetime.now(UTC).date())
        self._looked = clock()
        self._seen = self._mark()
        self._names = self._read()

    def name_of(self, token: str) -> str | None:
        """Whose token this is; None for nobody's, or one whose last day is over."""
        self._look_again()
        found = self._names.get(_digest(token))
        if found is None or (found[1] is not None and self._today() > found[1]):
            return None
        return found[0]

    def _look_again(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        try:
            seen = self._mark()
            if seen != self._seen:
                self._names, self._seen = self._read(), seen
        except ConfigurationError:
            # What cannot be read lets nobody in: a file that is being replaced is read at the next look.
            self._names = {}

    def _mark(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise ConfigurationError(f"tokens_file: expected a readable file, got {error.strerror}") from None
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and os.name == "posix":
            raise ConfigurationError(f"tokens_file: expected {self._path} to be its owner's alone (chmod 600)")
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Mapping[bytes, tuple[str, date | None]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"tokens_file: expected readable text, got {type(error).__name__}") from None
        found: dict[bytes, tuple[str, date | None]] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) not in (2, 3) or len(words[1]) < TOKEN_CHARACTERS:
                raise ConfigurationError(
                    f"tokens_file, line {number}: expected a name, a token of at least {TOKEN_CHARACTERS} characters "
                    f"and, if it ends, its last day"
                )
            try:
                last = date.fromisoformat(words[2]) if len(words) == 3 else None
            except ValueError:
                raise ConfigurationError(
                    f"tokens_file, line {number}: expected the last day as 2027-01-31, got something else"
                ) from None
            found[_digest(words[1])] = (words[0], last)
        return found


class Callers:
    """Tells callers apart by what the settings ask of them."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Read the tokens.

        Raises:
            ConfigurationError: see `TokensFile`.
        """
        self._tokens = None if settings.tokens_file is None else TokensFile(settings.tokens_file)
        self._certificates = settings.client_ca_file is not None

    def name_of(self, token: str | None, transport: Any) -> str:
        """Who calls.

        Args:
            token: what came as one; None where nothing did.
            transport: of the connection.

        Raises:
            Problem: nobody who is known.
        """
        if self._tokens is not None:
            name = None if token is None else self._tokens.name_of(token)
            if name is None:
                raise Problem("unauthorized")
            return name
        if self._certificates:
            return _common_name(transport)
        return ANYBODY


def bearer_of(authorization: str | None) -> str | None:
    """The token in a header `Authorization`; None where it holds none."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()


def server_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """How the gateway speaks TLS; None where it does not.

    Raises:
        ConfigurationError: a file is absent or not what it must be.
    """
    if settings.certificate_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # A password is always given: without one, OpenSSL would wait for somebody to type it.
        context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: "")
        if settings.client_ca_file is not None:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # of which ssl.SSLError is one
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(
            f"certificate_file, key_file, client_ca_file: expected PEM that fits together, got "
            f"{reason or type(error).__name__}"
        ) from None
    return context


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()


def _common_name(transport: Any) -> str:
    """The name in the certificate that TLS has verified."""
    certificate = None if transport is None else transport.get_extra_info("peercert")
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    raise Problem("unauthorized")
