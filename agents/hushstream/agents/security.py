"""Connection options of all our clients: SASL, TLS, and whether records may be sent unencrypted.

Workers, readers of logs, the application's client and the operator's tools all take their connection options
from `Cluster.client_options`. The settings come from a YAML file and from the environment
(``HUSHSTREAM_SECURITY__PROTOCOL=SASL_SSL``), which overrides it. A secret may be given as the file that holds it
(``password_file``, ``HUSHSTREAM_SECURITY__PASSWORD_FILE``), for secret mounts.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, model_validator

from hushstream.agents.faults import problem_of
from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.values import ConfigurationError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

ENVIRONMENT_PREFIX = "HUSHSTREAM_SECURITY__"

CLIENT_ID = "hushstream"
"""All clients use one id: otherwise the broker's side could tell workers, runs and users apart by it."""

_FROM_FILES = ("username", "password", "key_password")


class SecurityError(ConfigurationError):
    """The settings of the connection cannot be used."""


class PlaintextRefused(SecurityError):
    """Records would leave this machine unencrypted, and nobody asked for that."""


class _Ending(ssl.SSLObject):
    """Tells the broker that a TLS connection ends, and does not wait for its answer.

    Apache Kafka often gives none, and event loops wait half a minute for it whenever a client is closed. So workers
    ended at their start, as if no broker answered.
    """

    def unwrap(self) -> None:
        """Write the end of the connection."""
        with suppress(ssl.SSLWantReadError):
            super().unwrap()


class Security(BaseModel):
    """How to talk to a secured broker (SASL and TLS); secrets are masked wherever this is printed.

    Attributes:
        ca_file: certificates to trust, PEM; without it, the certificates that the system trusts.
        certificate_file, key_file: our own certificate and its private key, PEM; they may be one file.
        allow_plaintext: whether records may travel unencrypted to a broker on another machine.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    key_password: SecretStr | None = None
    allow_plaintext: bool = False

    @model_validator(mode="after")
    def _complete(self) -> Security:
        if self.uses_sasl and (not self.username or self.password is None or not self.password.get_secret_value()):
            raise ValueError(f"security protocol {self.protocol} needs username and password")
        if not self.uses_sasl and (self.username or self.password is not None):
            raise ValueError(f"security protocol {self.protocol} takes no username or password")
        files = (self.ca_file, self.certificate_file, self.key_file)
        if not self.uses_tls and any(file is not None for file in files):
            raise ValueError(f"security protocol {self.protocol} takes no certificates")
        if self.certificate_file is None and (self.key_file is not None or self.key_password is not None):
            raise ValueError("key_file and key_password need a certificate_file")
        return self

    @property
    def uses_sasl(self) -> bool:
        """Whether the client authenticates by name and password."""
        return self.protocol.startswith("SASL")

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.protocol.endswith("SSL")

    def ssl_context(self) -> ssl.SSLContext | None:
        """The TLS context, or None for a plain connection.

        Raises:
            SecurityError: a file is missing, or is not what it must be.
        """
        if not self.uses_tls:
            return None
        try:
            context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except OSError as error:  # of which ssl.SSLError is one
            raise _unusable("ca_file", self.ca_file, error) from None
        context.sslobject_class = _Ending
        if self.certificate_file is not None:
            secret = "" if self.key_password is None else self.key_password.get_secret_value()
            try:
                # Always pass a password: without one, OpenSSL would wait for somebody to type it.
                context.load_cert_chain(self.certificate_file, self.key_file, lambda: secret)
            except OSError as error:
                raise _unusable("certificate_file, key_file", self.certificate_file, error) from None
        return context

    @property
    def account(self) -> str:
        """The broker's name of the account with which we connect, as it makes one of a certificate by default."""
        if self.uses_sasl:
            return f"User:{self.username}"
        if self.certificate_file is None:
            return "User:ANONYMOUS"
        return f"User:{_certificate(self.certificate_file).subject.rfc4514_string()}"

    def certificate_fault(self) -> str | None:
        """What is wrong with our own certificate, by this machine's clock; None if it is valid, or there is none."""
        if self.certificate_file is None:
            return None
        try:
            own = _certificate(self.certificate_file)
        except (OSError, ValueError) as error:
            return f"{self.certificate_file} cannot be read ({type(error).__name__})"
        now = datetime.now(UTC)
        if now > own.not_valid_after_utc:
            return f"{self.certificate_file} expired on {own.not_valid_after_utc:%Y-%m-%d}"
        if now < own.not_valid_before_utc:
            return f"{self.certificate_file} is not valid before {own.not_valid_before_utc:%Y-%m-%d}"
        return None

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for an aiokafka client."""
        options: dict[str, Any] = {"security_protocol": self.protocol}
        if self.uses_tls:
            options["ssl_context"] = self.ssl_context()
        if self.uses_sasl and self.password is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.username
            options["sasl_plain_password"] = self.password.get_secret_value()
        return options


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kafka cluster and how to talk to it.

    Attributes:
        bootstrap: ``host:port`` of one or more brokers, separated by commas.
    """

    bootstrap: str
    security: Security = field(default_factory=Security)

    @property
    def on_loopback(self) -> bool:
        """Whether all bootstrap brokers are on this machine, as in development."""
        return all(_is_loopback(server.rpartition(":")[0]) for server in self.servers)

    def require_encryption(self) -> None:
        """Refuse to send records to another machine unencrypted, unless `Security.allow_plaintext` says so.

        Raises:
            PlaintextRefused: records would be sent unencrypted to another machine.
        """
        if self.security.uses_tls or self.security.allow_plaintext:
            return
        for server in self.servers:
            if not _is_loopback(server.rpartition(":")[0]):
                raise PlaintextRefused(
                    f"broker {server}: expected an encrypted connection (SSL or SASL_SSL) to another machine, "
                    f"got {self.security.protocol}; name the settings with --security, or set allow_plaintext: true "
                    f"there or {ENVIRONMENT_PREFIX}ALLOW_PLAINTEXT=true"
                )

    @property
    def servers(self) -> list[str]:
        """``host:port`` of each bootstrap broker."""
        return [part.strip() for part in self.bootstrap.split(",") if part.strip()]

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments for every aiokafka client.

        Raises:
            PlaintextRefused: see `require_encryption`.
            SecurityError: a certificate's file is missing, or is not what it must be.
        """
        self.require_encryption()
        return {"bootstrap_servers": self.servers, "client_id": CLIENT_ID, **self.security.client_options()}


def read_security(path: Path | None, environment: Mapping[str, str] = os.environ) -> Security:
    """Read the settings of the connection; without settings the connection is unencrypted.

    Raises:
        ConfigurationError: the file is missing or not YAML; a value is impossible or unknown, or a file that it
            names cannot be used. The message never repeats a value.
    """
    values: dict[str, Any] = {} if path is None else dict(read_yaml(path))
    origin = dict.fromkeys(values, str(path))
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            # The environment's value replaces the file's, whether that one is written as NAME or as NAME_file.
            for form in (key, f"{key}_file", key.removesuffix("_file")):
                if origin.get(form) == str(path):
                    del values[form], origin[form]
            values[key], origin[key] = text, name
    _open_files(values, origin)
    try:
        security = Security.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in found["loc"])
        where = ": ".join(part for part in (origin.get(place, str(path or ENVIRONMENT_PREFIX)), place) if part)
        raise SecurityError(f"{where}: {problem_of(found)}{_known_names(found['type'])}") from None
    security.ssl_context()  # finds a missing file or a wrong certificate now, not at the first connection
    return security


def _certificate(file: Path) -> Certificate:
    from cryptography import x509  # imported only here: the import is slow, and few deployments need it

    return x509.load_pem_x509_certificates(file.read_bytes())[0]


def _open_files(values: dict[str, Any], origin: dict[str, str]) -> None:
    """Replace each ``NAME_file`` by ``NAME``, with the content of the file."""
    for key in _FROM_FILES:
        file = f"{key}_file"
        if file not in values:
            continue
        if key in values:
            raise SecurityError(f"{origin[file]}: expected either {key} or {file}, got both")
        try:
            values[key] = Path(values.pop(file)).read_text(encoding="utf-8").strip()
        except (OSError, TypeError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise SecurityError(f"{origin[file]}: {file}: expected a readable file, got {reason}") from None


def _known_names(problem: str) -> str:
    if problem != "extra_forbidden":
        return ""
    return f"; known are {', '.join(sorted({*Security.model_fields, *(f'{key}_file' for key in _FROM_FILES)}))}"


def _unusable(what: str, file: Path | None, error: OSError) -> SecurityError:
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return SecurityError(f"{what}: expected PEM that fits together, got {reason or type(error).__name__} from {file}")


def _is_loopback(host: str) -> bool:
    host = host.strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
