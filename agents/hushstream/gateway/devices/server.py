"""The HTTP of devices: slots come in, signed models go out, and nothing of a request says whose device it is."""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import time
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web

from hushstream.gateway.connections import Limits, Server
from hushstream.gateway.devices.attestation import HEADER, Attestation
from hushstream.gateway.devices.calls import AGREEMENT, MODEL, SLOTS, DeviceCall
from hushstream.gateway.devices.models import SignedModels
from hushstream.gateway.devices.relay import SlotRelay
from hushstream.gateway.limits import Busy, Rate
from hushstream.gateway.metrics import NO_CALL, OK, GatewayMetrics
from hushstream.gateway.problems import CONTENT_TYPE, Problem, any_problem_of
from hushstream.gateway.reading import GoneAway, read_body
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.schemas import codec
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.device.travelling import SLOT_RECORD, BadBody, body_bytes, period_of, read_slot

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "hushstream"}
_OCTETS = "application/octet-stream"
_IDENTIFYING = ("Cookie", "Authorization")
_ALLOWED = f"Content-Type, If-None-Match, {HEADER}"
_EXPOSED = "Date, ETag, Retry-After"
_HOUR, _MINUTE = 3600.0, 60.0
_NETWORK_BITS = 64
"""Of an IPv6 address: a household has all addresses of such a network."""

_Look = Callable[[web.BaseRequest], web.Response]


class DeviceServer:
    """Serves the calls of devices for one deployment."""

    def __init__(
        self,
        settings: GatewaySettings,
        system: P2BSystem,
        relay: SlotRelay,
        models: SignedModels,
        agreement: bytes,
        description: bytes,
        metrics: GatewayMetrics,
        schema_generation: int,
        attestation: Attestation | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Nothing is listened to yet.

        Args:
            settings: limits; those of devices too.
            system: the deployment.
            relay: where slots go.
            models: what devices take.
            agreement: what they agreed to.
            description: the OpenAPI document.
            metrics: where requests are counted.
            schema_generation: in which slots are written.
            attestation: the deployment's own check, if it has one.
            clock: seconds since 1970, by which a slot's period is held.
        """
        self._settings = settings
        self._devices = settings.devices or DevicesSettings()
        self._system, self._relay, self._models = system, relay, models
        self._metrics, self._generation, self._attestation, self._clock = metrics, schema_generation, attestation, clock
        self._size = body_bytes(system.form.content_bytes)
        self._period_ms = system.window_rules().period_ms
        self._slots = Rate(self._devices.slots_per_hour / _HOUR, self._devices.slots_burst)
        self._asked = Rate(self._devices.looks_per_minute / _MINUTE, max(1, round(self._devices.looks_per_minute)))
        self._busy = Busy(settings.in_flight)
        self._stopping = False
        self._looks: Mapping[str, _Look] = {
            MODEL.path: self._model,
            AGREEMENT.path: partial(_fixed, agreement, "application/json"),
        }
        self._open: Mapping[str, _Look] = {
            "/healthz": partial(_fixed, b"turns", "text/plain"),
            "/readyz": self._ready,
            "/openapi.json": partial(_fixed, description, "application/json"),
            "/metrics": self._show_metrics,
        }

    def server(self) -> Server:
        """What makes a connection's protocol."""
        settings = self._settings
        return Server(
            self._handle,
            Limits(settings.connections, settings.read_seconds),
            self._request,
            keepalive_timeout=settings.idle_seconds,
            access_log=None,
            auto_decompress=False,
            lingering_time=1.0,
        )

    def stop(self) -> None:
        """Answer no further request; those under way go on."""
        self._stopping = True

    def measure(self) -> None:
        """Bring the gauges up to date."""
        self._metrics.set_now(self._busy.now, self._relay.waiting)

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._size)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        call = _BY_PATH.get(request.path)
        try:
            response = await self._respond(request, call)
            code = OK
        except GoneAway:
            raise
        except Exception as error:  # noqa: BLE001 - whoever asked gets an answer
            problem = any_problem_of(error)
            code, response = problem.kind.code, _refused(problem, call)
        self._metrics.ended(NO_CALL if call is None else call.name, False, code)
        self._allow_origin(request, response)
        return response

    async def _respond(self, request: web.BaseRequest, call: DeviceCall | None) -> web.Response:
        path = request.path
        if path in self._open:
            _require_method(request, "GET")
            return self._open[path](request)
        if call is None:
            raise Problem("not-found")
        if request.method == "OPTIONS":
            return self._preflight(request, call)
        _require_method(request, call.method)
        if any(name in request.headers for name in _IDENTIFYING):
            raise Problem("identifying-header", close=True)
        if self._stopping:
            raise Problem("stopping", close=True)
        source = self._source(request)
        if call is not SLOTS:
            self._asked.take(source, 1)
            return self._looks[path](request)
        # What an address may not send is not read.
        self._slots.take(source, 1)
        with self._busy.one():
            return await self._slot(request)

    async def _slot(self, request: web.BaseRequest) -> web.Response:
        begun = asyncio.get_running_loop().time()
        if request.content_type != _OCTETS or request.headers.get("Content-Encoding", "identity") != "identity":
            raise Problem("unsupported-media-type", close=True)
        body = await read_body(request, self._size, self._settings.read_seconds)
        try:
            fields = read_slot(body, self._size)
        except BadBody:
            raise Problem("bad-slot") from None
        if fields["config_digest"] != self._system.digest:
            raise Problem("other-configuration")
        if not 0 <= int(self._clock() * 1000) // self._period_ms - period_of(fields) <= 1:
            raise Problem("stale-period")
        if self._attestation is not None:
            digest = hashlib.sha256(body).digest()
            if not await self._attestation.admits(request.headers.get(HEADER), digest):
                raise Problem("not-attested")
        read = asyncio.get_running_loop().time()
        await self._relay.send(fields["report_id"], codec.encode(SLOT_RECORD, fields, self._generation))
        ended = asyncio.get_running_loop().time()
        self._metrics.took(SLOTS.name, False, read - begun, ended - read)
        return web.Response(status=HTTPStatus.NO_CONTENT, headers=_HEADERS)

    def _model(self, request: web.BaseRequest) -> web.Response:
        body, tag = self._models.body, self._models.tag
        if body is None or tag is None:
            raise Problem("no-model")
        headers = {**_HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        return web.Response(body=body, headers=headers, content_type=_OCTETS)

    def _source(self, request: web.BaseRequest) -> str:
        """The address of a request, or its network: in memory as long as its bucket of tokens, and nowhere else."""
        named = self._devices.address_header
        if named is None:
            peer = None if request.transport is None else request.transport.get_extra_info("peername")
            text = str(peer[0]) if peer else ""
        else:
            text = (request.headers.getall(named, [""])[-1]).rpartition(",")[2].strip()
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            return ""  # All whose address is not known share one bucket.
        if address.version == 4:
            return str(address)
        return str(ipaddress.ip_network((int(address) >> _NETWORK_BITS << _NETWORK_BITS, _NETWORK_BITS)))

    # Pages of web sites.

    def _preflight(self, request: web.BaseRequest, call: DeviceCall) -> web.Response:
        if request.headers.get("Origin") not in self._settings.cors_origins:
            raise Problem("method-not-allowed")
        allowed = {
            "Access-Control-Allow-Methods": call.method,
            "Access-Control-Allow-Headers": _ALLOWED,
            "Access-Control-Max-Age": "86400",
        }
        return web.Response(status=HTTPStatus.NO_CONTENT, headers={**_HEADERS, **allowed})

    def _allow_origin(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        origins = self._settings.cors_origins
        if not origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin in origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED

    def _ready(self, request: web.BaseRequest) -> web.Response:
        if self._stopping:
            raise Problem("stopping")
        if not self._relay.answers:
            raise Problem("log-unavailable")
        return _fixed(b"ready", "text/plain", request)

    def _show_metrics(self, request: web.BaseRequest) -> web.Response:
        self.measure()
        return _fixed(self._metrics.text(), "text/plain", request)


_BY_PATH: Mapping[str, DeviceCall] = {call.path: call for call in (SLOTS, MODEL, AGREEMENT)}


def _refused(problem: Problem, call: DeviceCall | None) -> web.Response:
    kind = problem.kind
    response = web.Response(body=problem.body(), status=kind.status, headers=_HEADERS, content_type=CONTENT_TYPE)
    if kind.retry_seconds is not None:
        response.headers["Retry-After"] = str(kind.retry_seconds)
    if kind.code == "method-not-allowed":
        response.headers["Allow"] = "GET" if call is None else call.method
    if problem.close:
        response.force_close()
    return response


def _require_method(request: web.BaseRequest, wanted: str) -> None:
    if request.method != wanted:
        raise Problem("method-not-allowed")


def _fixed(body: bytes, kind: str, request: web.BaseRequest) -> web.Response:
    return web.Response(body=body, headers=_HEADERS, content_type=kind)
