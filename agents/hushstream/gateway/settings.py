"""What an operator can set for a gateway: a YAML file and the environment; unknown keys are refused.

``HUSHSTREAM_GATEWAY__PORT=8443`` overrides ``port`` of the file.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, IPvAnyNetwork, ValidationError, model_validator

from hushstream.agents.faults import problem_of
from hushstream.agents.yaml_file import read_yaml
from hushstream.engine.declare.declaration import System
from hushstream.engine.values import ConfigurationError
from hushstream.schemas.rows import MAX_ID_BYTES

ENVIRONMENT_PREFIX = "HUSHSTREAM_GATEWAY__"

DEFAULT_WAIT_SECONDS = 1800.0
"""How long an event is remembered if the configuration has no attribution window."""


_PRIVATE: tuple[Any, ...] = tuple(
    map(ipaddress.ip_network, ("127.0.0.0/8", "::1", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
)
"""Default networks of trusted proxies: those in which an operator's own proxy usually is."""


class PersonalizerSettings(BaseModel):
    """How requests of the retired personaliser are read.

    Attributes:
        user_feature: the feature of a request that names its user, such as `User.id` or `id`; none if each event is a
            user of its own (`users.events` of the deployment).
        auto_items: whether an unknown action becomes an item while there is room (`items.capacity`), with those of its
            features that the deployment declares. Ids and features are then published unchanged, so the deployment must
            allow it, too (`items.from_requests`).
        positions: how many actions of a ranking are decided, in order; each needs an answer of the learner, and counts
            as an interaction. The others follow in the order of the request.
        lowest_reward: the reward that counts as 0; 1 counts as 1, and values in between are scaled linearly.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    user_feature: str | None = Field(default=None, min_length=1)
    auto_items: bool = False
    positions: int = Field(default=1, ge=1, le=32)
    lowest_reward: float = Field(default=-1.0, ge=-1, le=0)


class DevicesSettings(BaseModel):
    """How the gateway accepts slots of users' devices, and serves models.

    Attributes:
        relay_seconds: how long a slot waits for others; then they are appended together, in keyed order.
        slots_per_hour, slots_burst: the rate and the burst of slots from one address.
        looks_per_minute: how often one address may read the model or the agreement.
        address_header: behind a proxy, the header whose last word is the device's address, such as X-Forwarded-For; by
            default the address of the connection is used.
        proxies: the networks of the proxies whose header is trusted; from elsewhere, the connection's address is used.
            By default loopback and private networks.
        attestation: the name of a check (entry points of `hushstream.attestations`); none by default.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    relay_seconds: float = Field(default=1.0, gt=0, le=60)
    slots_per_hour: float = Field(default=600.0, gt=0)
    slots_burst: int = Field(default=600, ge=1)
    looks_per_minute: float = Field(default=600.0, gt=0)
    address_header: str | None = Field(default=None, min_length=1)
    proxies: tuple[IPvAnyNetwork, ...] = _PRIVATE
    attestation: str | None = Field(default=None, min_length=1)


class GatewaySettings(BaseModel):
    """How a gateway listens, whom it answers, and its limits.

    Attributes:
        host, port: the address on which it listens; port 0 means any free port.
        party: the party whose users it answers, if each party of the deployment has its own.
        tokens_file: each line has a name, a token of 32 characters or more and, optionally, its last day (2027-01-31).
            Only the owner may read the file; it is read again when it changes.
        operators_file: the same, of those who may change the catalogue (`POST /v1/catalogue`); without it nobody may.
        certificate_file, key_file: the gateway's own certificate and key, PEM: it then uses HTTPS.
        client_ca_file: the authorities that must have signed the certificates of callers (mTLS).
        allow_plaintext: whether other machines may send requests and tokens unencrypted, as behind a proxy.
        cors_origins: the origins whose pages may call it, for instance https://shop.example; none by default.
        body_bytes: the largest body.
        batch_requests: the most requests in one batch.
        requests_per_second, burst: the rate and the burst of one caller; each request of a batch counts.
        user_requests_per_second, user_burst: the same of one user, for requests and for feedback each by itself, so
            that no refusal by this limit tells of feedback. The limits of a caller and of the gateway count both: give
            applications whose callers must not see one another's feedback tokens or gateways of their own.
        in_flight: the most requests in progress, of all callers.
        connections: the most open connections; further ones are closed.
        unacknowledged: the most records that may wait for their acknowledgement.
        idle_seconds: how long a connection may stay open without a whole request.
        read_seconds: how long a body, or the TLS handshake, may take.
        answer_seconds: how long to wait for a learner's answer, or for an acknowledgement of the log.
        stop_seconds: how long requests in progress may go on when the gateway is stopped.
        remembered_events: the most events that are remembered.
        remember_seconds: how long an event is remembered; by default as long as learners wait for its feedback.
        baseline: the baseline of requests that name none; it has no effect while there is no item of this name.
        personalizer: how requests of the retired personaliser are read (`PersonalizerSettings`); without it they are
            not answered.
        devices: how slots of devices are taken (`DevicesSettings`): the gateway then answers devices only.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    party: str = ""

    tokens_file: Path | None = None
    operators_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    allow_plaintext: bool = False
    cors_origins: tuple[str, ...] = ()

    body_bytes: int = Field(default=1024 * 1024, ge=1024)
    batch_requests: int = Field(default=256, ge=1, le=4096)
    requests_per_second: float = Field(default=5000.0, gt=0)
    burst: int = Field(default=5000, ge=1)
    user_requests_per_second: float = Field(default=20.0, gt=0)
    user_burst: int = Field(default=1000, ge=1)
    in_flight: int = Field(default=512, ge=1)
    connections: int = Field(default=4096, ge=1)
    unacknowledged: int = Field(default=4096, ge=1)
    idle_seconds: float = Field(default=30.0, gt=0)
    read_seconds: float = Field(default=10.0, gt=0)
    answer_seconds: float = Field(default=1.5, gt=0)
    stop_seconds: float = Field(default=5.0, ge=0)

    remembered_events: int = Field(default=500_000, ge=1)
    remember_seconds: float | None = Field(default=None, gt=0)
    baseline: Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1, max_length=MAX_ID_BYTES)] | None = None
    personalizer: PersonalizerSettings | None = None
    devices: DevicesSettings | None = None

    @model_validator(mode="after")
    def _consistent(self) -> GatewaySettings:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file: expected both or none")
        if self.client_ca_file is not None and self.certificate_file is None:
            raise ValueError("client_ca_file: expected a certificate_file of the gateway, too")
        if self.burst < self.batch_requests:
            raise ValueError("burst: expected at least batch_requests, or a whole batch could never come")
        if self.devices is not None and (self.knows_callers or self.personalizer is not None):
            raise ValueError("devices: expected no tokens_file, client_ca_file or personalizer: devices prove nothing")
        if self.on_loopback:
            return self
        if not self.knows_callers and self.devices is None:
            raise ValueError(
                "host: expected loopback where anybody may call; name tokens_file or client_ca_file to listen elsewhere"
            )
        if self.certificate_file is None and not self.allow_plaintext:
            raise ValueError(
                "host: expected a certificate_file where others can listen in; say allow_plaintext: true behind a proxy"
            )
        return self

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the gateway."""
        return is_loopback(self.host)

    @property
    def knows_callers(self) -> bool:
        """Whether callers prove who they are."""
        return self.tokens_file is not None or self.client_ca_file is not None

    def wait_for(self, system: System) -> float:
        """How long an event of a deployment is remembered, in seconds."""
        if self.remember_seconds is not None:
            return self.remember_seconds
        feedback = getattr(system.config, "feedback", None)
        return float(getattr(feedback, "attribution_window_seconds", DEFAULT_WAIT_SECONDS))


@lru_cache(maxsize=256)
def is_loopback(host: str) -> bool:
    """Whether a host name or address of a URL or a setting is loopback."""
    bare = host.strip("[]")
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return bare.lower() == "localhost"


_PARTS: Mapping[str, type[BaseModel]] = {"personalizer": PersonalizerSettings, "devices": DevicesSettings}


def read_gateway(path: Path | None, environment: Mapping[str, str] = os.environ) -> GatewaySettings:
    """Read the settings; without a file the defaults apply.

    Raises:
        ConfigurationError: the file is missing or not YAML; a value is impossible or unknown. The message never repeats
            a value.
    """
    values: dict[str, Any] = {} if path is None else dict(read_yaml(path))
    origin = dict.fromkeys(values, str(path))
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            try:
                values[key] = yaml.safe_load(text)
            except yaml.YAMLError:
                raise ConfigurationError(f"{name}: expected a value in YAML, got something else") from None
            origin[key] = name
    try:
        return GatewaySettings.model_validate(values)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        key = str(found["loc"][0]) if found["loc"] else ""
        place = ".".join(str(part) for part in found["loc"])
        where = ": ".join(part for part in (origin.get(key, str(path or ENVIRONMENT_PREFIX)), place) if part)
        model = GatewaySettings if len(found["loc"]) < 2 else _PARTS[key]
        known = f"; known are {', '.join(model.model_fields)}" if found["type"] == "extra_forbidden" else ""
        raise ConfigurationError(f"{where}: {problem_of(found)}{known}") from None
