"""Identifies callers by a bearer token or a certificate. If neither is configured, everybody on this machine is one
caller."""

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
"""The least length of a token, so that nobody can guess it by trying."""
LOOK_SECONDS = 2.0
"""How long a token may still be accepted after it was removed from the file."""
ANYBODY = "anybody"

_BEARER = "bearer "


class TokensFile:
    """The names and tokens of a file, looked up by digest, so that the time of a lookup tells nothing about a token."""

    def __init__(
        self,
        setting: str,
        path: Path,
        clock: Callable[[], float] = time.monotonic,
        today: Callable[[], date] | None = None,
    ) -> None:
        """Read the file.

        Args:
            setting: the gateway's setting that names the file, for errors.
            path: of the file.
            clock: gives seconds, in which it is looked at again.
            today: gives the day on which tokens end (default: UTC's).

        Raises:
            ConfigurationError: the file is missing or readable by others, or a line has no token. The message never
                repeats a line.
        """
        self._setting, self._path = setting, path
        self._clock = clock
        self._today = today or (lambda: datetime.now(UTC).date())
        self._looked = clock()
        self._seen = self._mark()
        self._names = self._read()

    def name_of(self, token: str) -> str | None:
        """The name of a token's owner; None if the token is unknown, or its last day is over."""
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
            # While the file cannot be read, no token is accepted; a file that is being replaced is read again later.
            self._names = {}

    def _mark(self) -> tuple[int, int, int]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise ConfigurationError(f"{self._setting}: expected a readable file, got {error.strerror}") from None
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) and os.name == "posix":
            raise ConfigurationError(
                f"{self._setting}: expected {self._path} to be readable by its owner only (chmod 600)"
            )
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _read(self) -> Mapping[bytes, tuple[str, date | None]]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self._setting}: expected readable text, got {type(error).__name__}") from None
        found: dict[bytes, tuple[str, date | None]] = {}
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if len(words) not in (2, 3) or len(words[1]) < TOKEN_CHARACTERS:
                raise ConfigurationError(
                    f"{self._setting}, line {number}: expected a name, a token of at least {TOKEN_CHARACTERS} "
                    f"characters and, if it ends, its last day"
                )
            try:
                last = date.fromisoformat(words[2]) if len(words) == 3 else None
            except ValueError:
                raise ConfigurationError(
                    f"{self._setting}, line {number}: expected the last day as 2027-01-31, got something else"
                ) from None
            found[_digest(words[1])] = (words[0], last)
        return found


class Callers:
    """Identifies callers by the credentials that the settings require."""

    def __init__(self, settings: GatewaySettings) -> None:
        """Read the tokens.

        Raises:
            ConfigurationError: see `TokensFile`.
        """
        tokens, operators = settings.tokens_file, settings.operators_file
        self._tokens = None if tokens is None else TokensFile("tokens_file", tokens)
        self._operators = None if operators is None else TokensFile("operators_file", operators)
        self._certificates = settings.client_ca_file is not None

    def name_of(self, token: str | None, transport: Any) -> str:
        """The name of the caller; an operator may call what applications call.

        Args:
            token: the token of the request; None if it has none.
            transport: the transport of the connection.

        Raises:
            Problem: the caller is unknown.
        """
        if self._tokens is not None:
            name = None if token is None else self._tokens.name_of(token) or self._operator(token)
            if name is None:
                raise Problem("unauthorized")
            return name
        if self._certificates:
            return _common_name(transport)
        return ANYBODY

    def operator_of(self, token: str | None) -> str:
        """The name of the operator whose token a request has.

        Raises:
            Problem: it is nobody's.
        """
        name = None if token is None else self._operator(token)
        if name is None:
            raise Problem("not-an-operator")
        return name

    def _operator(self, token: str) -> str | None:
        return None if self._operators is None else self._operators.name_of(token)


def bearer_of(authorization: str | None) -> str | None:
    """The token in an `Authorization` header; None if it has none."""
    if authorization is None or authorization[: len(_BEARER)].lower() != _BEARER:
        return None
    return authorization[len(_BEARER) :].strip()


def server_context(settings: GatewaySettings) -> ssl.SSLContext | None:
    """The TLS context of the gateway; None if it does not use TLS.

    Raises:
        ConfigurationError: a file is missing, or is not what it must be.
    """
    if settings.certificate_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        # Always pass a password: without one, OpenSSL would wait for somebody to type it.
        context.load_cert_chain(settings.certificate_file, settings.key_file, lambda: "")
        if settings.client_ca_file is not None:
            context.load_verify_locations(settings.client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:  # ssl.SSLError is an OSError
        reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
        raise ConfigurationError(
            f"certificate_file, key_file, client_ca_file: expected PEM that fits together, got "
            f"{reason or type(error).__name__}"
        ) from None
    return context


def _digest(token: str) -> bytes:
    return hashlib.blake2b(token.encode("utf-8", "surrogateescape"), digest_size=32).digest()


def _common_name(transport: Any) -> str:
    """The common name in the client's certificate, which TLS has verified."""
    certificate = None if transport is None else transport.get_extra_info("peercert")
    for part in (certificate or {}).get("subject", ()):
        for key, value in part:
            if key == "commonName":
                return str(value)
    raise Problem("unauthorized")
