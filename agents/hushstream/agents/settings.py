"""What an operator can set for a worker; secrets are masked, unknown keys refused."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

BATCH_BYTES = 256 * 1024
"""Small outputs to one partition share a request up to this size."""

RECORD_BYTES_LIMIT = 2 * 1024 * 1024
"""Largest produce request; a value is at most 1 MiB, the rest is room for batch overhead."""


class Security(BaseModel):
    """How to talk to a secured broker (SASL and TLS); the password is masked wherever it is printed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @model_validator(mode="after")
    def _complete(self) -> Security:
        if self.uses_sasl and (not self.username or self.password is None):
            raise ValueError(f"security protocol {self.protocol} needs username and password")
        if not self.uses_sasl and (self.username or self.password is not None):
            raise ValueError(f"security protocol {self.protocol} takes no username or password")
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
        """The TLS context, or None for a plain connection."""
        if not self.uses_tls:
            return None
        context = ssl.create_default_context(cafile=str(self.ca_file) if self.ca_file else None)
        if self.certificate_file is not None:
            key_file = str(self.key_file) if self.key_file else None
            context.load_cert_chain(str(self.certificate_file), key_file)
        return context

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


class WorkerSettings(BaseModel):
    """Everything that one worker process needs to know besides its machines.

    Attributes:
        deployment: names the snapshots, so that two deployments may share a data directory.
        datadir: where snapshots are kept; one per worker, or shared by the workers of one role.
        batch_records, batch_bytes: the most that one fold takes from one input partition.
        buffer_records, buffer_bytes: the most that waits in memory for one input partition.
        in_flight: journal records of one partition that may await their acknowledgement.
        schedule: ``live`` folds what has arrived; ``fixed`` merges by (log time, topic, offset) and cuts at
            every ``fixed_records`` records, so that a disturbed run repeats an undisturbed one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str
    role: str
    group: str
    deployment: str = "default"
    topic_prefix: str = ""
    datadir: Path
    security: Security = Security()

    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    zone_metrics_port: int | None = Field(default=None, ge=0, le=65535)

    batch_records: int = Field(default=2048, ge=1)
    batch_bytes: int = Field(default=1024 * 1024, ge=1)
    buffer_records: int = Field(default=16384, ge=1)
    buffer_bytes: int = Field(default=16 * 1024 * 1024, ge=1)
    in_flight: int = Field(default=4, ge=1, le=64)
    linger_milliseconds: int = Field(default=0, ge=0)
    fetch_wait_milliseconds: int = Field(default=20, ge=1)

    session_timeout_seconds: float = Field(default=10.0, gt=0)
    heartbeat_seconds: float = Field(default=2.0, gt=0)
    connect_timeout_seconds: float = Field(default=20.0, gt=0)
    join_timeout_seconds: float = Field(default=60.0, gt=0)
    commit_interval_seconds: float = Field(default=0.5, gt=0)
    snapshot_interval_seconds: float = Field(default=30.0, gt=0)
    tick_interval_seconds: float = Field(default=1.0, gt=0)

    schedule: Literal["live", "fixed"] = "live"
    fixed_records: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _consistent(self) -> WorkerSettings:
        if self.heartbeat_seconds * 2 > self.session_timeout_seconds:
            raise ValueError(
                f"heartbeat_seconds: expected at most half of session_timeout_seconds "
                f"({self.session_timeout_seconds}), got {self.heartbeat_seconds}"
            )
        if self.buffer_records < self.batch_records:
            raise ValueError(
                f"buffer_records: expected at least batch_records ({self.batch_records}), got {self.buffer_records}"
            )
        return self

    @property
    def bootstrap_servers(self) -> list[str]:
        """``host:port`` of each bootstrap broker."""
        return [part.strip() for part in self.bootstrap.split(",") if part.strip()]

    def client_options(self) -> dict[str, Any]:
        """Keyword arguments that every aiokafka client of this worker shares."""
        return {
            "bootstrap_servers": self.bootstrap_servers,
            # One name for all: a client id would otherwise tell workers (and runs) apart on the other side.
            "client_id": "hushstream",
            **self.security.client_options(),
        }

    def physical(self, topic: str) -> str:
        """The broker's name of a logical topic."""
        return self.topic_prefix + topic
