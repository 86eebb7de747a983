"""The HTTP server for devices: it accepts slots and serves models; no request shows whose device it is from.

*Attestation.* Loads a deployment's own check of devices' attestations, from the entry points `hushstream.attestations`.

    [project.entry-points."hushstream.attestations"]
    play = "shop.attestation:Check"

The class is made without arguments. Its ``admits`` gets the header `Hushstream-Attestation` (None if it is absent) and
a digest of the body that it should belong to. Evidence that differs from device to device is an id: a deployment that
requires such evidence learns who sends a slot, which the guarantee does not cover.

*Models.* The newest model that the aggregator has signed, in the form that devices fetch.

*Gateway.* A gateway for users' devices: it relays sealed slots and serves signed models; it has no keys.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from importlib.metadata import entry_points
from typing import Protocol

from hushstream.agents.security import Security
from hushstream.client.published import KafkaSlotLog, SlotLog
from hushstream.engine.declare.declaration import DeviceService, System
from hushstream.engine.declare.role import DeclarationError
from hushstream.engine.declare.topics import STATEMENTS
from hushstream.engine.devices.envelope import STATEMENT_RECORD
from hushstream.engine.devices.kept import BadBody, BadModel
from hushstream.engine.devices.sealing import read_slot
from hushstream.engine.records import InputRecord
from hushstream.engine.values import ConfigurationError
from hushstream.gateway.devices.calls import AGREEMENT, MODEL, SLOTS, DeviceCall, document
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.http_server import (
    HEADERS,
    JSON,
    CrossOrigin,
    HttpServer,
    Look,
    Rate,
    Request,
    Response,
    fixed,
    is_media,
    require_method,
)
from hushstream.gateway.listening import ListeningGateway, close_log
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

_SCHEMAS = frozenset({STATEMENT_RECORD})


class SignedModels:
    """Follows published models; it ignores models that are not signed, or older than the newest known one."""

    def __init__(self, service: DeviceService) -> None:
        """Begin without a model."""
        self._service = service
        self._version = 0
        self.body: bytes | None = None
        """The body of `GET /v1/model`; None before the first version."""
        self.tag: str | None = None
        """The entity tag of that body."""

    def read(self, record: InputRecord) -> None:
        """Read a record of the topic of statements. Its signature is checked, because anybody may write there."""
        service = self._service
        try:
            _, fields = codec.decode(record.value, _SCHEMAS)
            if fields["config_digest"] != service.digest or fields["version"] <= self._version:
                return
            served = service.follow(fields)
        except (CodecError, BadModel):
            return
        self._version, self.body, self.tag = fields["version"], served.as_bytes(), served.tag


GROUP = "hushstream.attestations"
HEADER = "Hushstream-Attestation"


class Attestation(Protocol):
    """Decides whether a request is accepted."""

    async def admits(self, evidence: str | None, body_digest: bytes) -> bool:
        """Whether the evidence is valid for a body with this SHA-256."""


def attestation_of(name: str | None) -> Attestation | None:
    """The check with this name; None if ``name`` is None.

    Raises:
        ConfigurationError: nothing of that name is installed.
    """
    if name is None:
        return None
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted(one.name for one in entry_points(group=GROUP))) or "none"
        raise ConfigurationError(f"devices.attestation: expected one that is installed ({known}), got {name}")
    made: Attestation = next(iter(found)).load()()
    return made


_OCTETS = "application/octet-stream"
_IDENTIFYING = ("Cookie", "Authorization")
_CROSS_ORIGIN = CrossOrigin(f"Content-Type, If-None-Match, {HEADER}", "Date, ETag, Retry-After", 86_400)
_HOUR, _MINUTE = 3600.0, 60.0
_NETWORK_BITS = 64
"""Prefix length of the IPv6 network that is limited as one address: one household has all addresses in it."""


class DeviceServer(HttpServer[DeviceCall]):
    """Serves the calls of devices for one deployment."""

    def __init__(
        self,
        settings: GatewaySettings,
        service: DeviceService,
        relay: SlotRelay,
        models: SignedModels,
        description: bytes,
        metrics: GatewayMetrics,
        attestation: Attestation | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Begin without listening.

        Args:
            settings: the gateway's limits, including those for devices.
            service: what the gateway knows of the deployment.
            relay: takes the slots.
            models: gives the newest model.
            description: the OpenAPI document.
            metrics: counts the requests.
            attestation: the deployment's own check, if it has one.
            clock: seconds since 1970; a slot's period is checked against it.
        """
        super().__init__(settings, relay, description, metrics, service.body_bytes, _CROSS_ORIGIN)
        self._devices = settings.devices or DevicesSettings()
        self._service, self._relay, self._models = service, relay, models
        self._attestation, self._clock = attestation, clock
        self._slots = Rate(self._devices.slots_per_hour / _HOUR, self._devices.slots_burst)
        self._asked = Rate(self._devices.looks_per_minute / _MINUTE, max(1, round(self._devices.looks_per_minute)))
        self._open["/metrics"] = self._show_metrics
        self._looks: Mapping[str, Look] = {
            MODEL.path: self._model,
            AGREEMENT.path: partial(fixed, service.agreement, JSON),
        }

    def _call_of(self, request: Request) -> DeviceCall | None:
        return _BY_PATH.get(request.path)

    async def _respond(self, request: Request, call: DeviceCall | None) -> Response:
        path = request.path
        if path in self._open:
            require_method(request, "GET")
            return self._open[path](request)
        if call is None:
            raise Problem("not-found")
        if request.method == "OPTIONS":
            return self._preflight(request, call.method)
        require_method(request, call.method)
        if any(name in request.headers for name in _IDENTIFYING):
            raise Problem("identifying-header", close=True)
        if self._stopping:
            raise Problem("stopping", close=True)
        source = self._source(request)
        if call is not SLOTS:
            self._asked.take(source, 1)
            return self._looks[path](request)
        # Before the body is read: a request above the rate must cost no memory.
        self._slots.take(source, 1)
        self._busy.begin()
        try:
            return await self._slot(request)
        finally:
            self._busy.end()

    async def _slot(self, request: Request) -> Response:
        begun = asyncio.get_running_loop().time()
        if not is_media(request, _OCTETS):
            raise Problem("unsupported-media-type", close=True)
        body = await self._read(request)
        try:
            fields = read_slot(body, self._body_bytes)
        except BadBody:
            raise Problem("bad-slot") from None
        if fields["config_digest"] != self._service.digest:
            raise Problem("other-configuration")
        if self._service.is_stale(fields, int(self._clock() * 1000)):
            raise Problem("stale-period")
        if self._attestation is not None:
            digest = hashlib.sha256(body).digest()
            if not await self._attestation.admits(request.headers.get(HEADER), digest):
                raise Problem("not-attested")
        read = asyncio.get_running_loop().time()
        name, record = self._service.record(fields)
        await self._relay.send(fields["report_id"], codec.encode(name, record))
        ended = asyncio.get_running_loop().time()
        self._metrics.took(SLOTS.name, read - begun, ended - read)
        return Response(HTTPStatus.NO_CONTENT)

    def _model(self, request: Request) -> Response:
        body, tag = self._models.body, self._models.tag
        if body is None or tag is None:
            raise Problem("no-model")
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return Response(HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(200, body, _OCTETS, headers)

    def _source(self, request: Request) -> str:
        """The address of a request, or its network (IPv6); kept only in memory, as long as its bucket of tokens."""
        peer = None if request.transport is None else request.transport.get_extra_info("peername")
        address = _address_of(str(peer[0]) if peer else "")
        named = self._devices.address_header
        # Only a trusted proxy's header counts: else a sender could name a new address, with a full bucket, in each
        # request.
        if named is not None and (address is None or any(address in proxy for proxy in self._devices.proxies)):
            address = _address_of(request.headers.getall(named, [""])[-1].rpartition(",")[2].strip())
        if address is None:
            return ""  # All requests without a known address share one bucket.
        if address.version == 4:
            return str(address)
        return str(ipaddress.ip_network((int(address) >> _NETWORK_BITS << _NETWORK_BITS, _NETWORK_BITS)))


def _address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; None if it is none. An IPv4-mapped IPv6 address becomes the IPv4 address."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    # Else all IPv4 addresses would be in one IPv6 network, and one flooding sender would block everybody.
    return (found.ipv4_mapped or found) if isinstance(found, ipaddress.IPv6Address) else found


_BY_PATH: Mapping[str, DeviceCall] = {call.path: call for call in (SLOTS, MODEL, AGREEMENT)}


@dataclass(slots=True, kw_only=True)
class DeviceGateway(ListeningGateway):
    """A gateway of a deployment with devices.

    Attributes:
        log: the log that slots go to and signed models come from.
    """

    log: SlotLog

    async def _connect(self, metrics: GatewayMetrics) -> DeviceServer:
        settings, service = self.settings, device_service_of(self.system)
        devices = settings.devices or DevicesSettings()
        models = SignedModels(service)
        slots = SlotWriter(self.log, service)
        relay = SlotRelay(slots.append, service.partitions, devices.relay_seconds, settings.unacknowledged)
        server = DeviceServer(
            settings,
            service,
            relay,
            models,
            json.dumps(document()).encode(),
            metrics,
            attestation_of(devices.attestation),
        )
        await self.log.start(lambda topic, record: models.read(record))
        self._stack.push_async_callback(close_log, self.log)
        self._stack.push_async_callback(relay.stop)
        return server


class SlotWriter:
    """Appends slots, each after the record that must precede it (`DeviceService.opening`)."""

    def __init__(self, log: SlotLog, service: DeviceService) -> None:
        """Begin with nothing written."""
        self._log, self._service = log, service
        self._opening = asyncio.Lock()
        self._opened: bytes | None = None

    async def append(self, partition: int, value: bytes) -> int:
        """Append a slot and return its offset once the log holds it.

        Raises:
            HushstreamError: the log refused the slot, or the record that must precede it.
        """
        async with self._opening:
            opening = self._service.opening
            if opening is not None and opening != self._opened:
                # Any gateway may write it: those that do write equal records.
                await self._log.append(self._service.topic, partition, opening)
                self._opened = opening
        return await self._log.append(self._service.topic, partition, value)


def device_service_of(system: System) -> DeviceService:
    """What the gateway for devices knows of a deployment.

    Raises:
        DeclarationError: the deployment has no devices.
    """
    if system.device_service is None:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected one whose learners are devices (kind edge), got another"
        )
    return system.device_service()


def device_log(bootstrap: str, prefix: str, security: Security, system: System) -> SlotLog:
    """The log of a deployment's devices on a Kafka cluster.

    Raises:
        DeclarationError: the deployment has no devices.
        HushstreamError: the connection would not be encrypted, and the cluster is not on this machine.
    """
    slots = device_service_of(system).topic
    return KafkaSlotLog(bootstrap, prefix, security, slots=slots, published=(STATEMENTS,), newest=True)
