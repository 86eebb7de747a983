"""The gateway's HTTP: a request is checked from the cheapest test to the dearest, answered, and counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Any

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hushstream.agents.observe.collection import collect_whole
from hushstream.gateway.bounded_log import BoundedLog
from hushstream.gateway.callers import Callers, bearer_of
from hushstream.gateway.connections import Limits, Server
from hushstream.gateway.conversation.calls import Answer, Answered, Answers, Call
from hushstream.gateway.conversation.translation import FORMS
from hushstream.gateway.limits import Busy, Rate
from hushstream.gateway.metrics import NO_CALL, OK, GatewayMetrics
from hushstream.gateway.personalizer.bodies import refusal
from hushstream.gateway.personalizer.protocol import KEY_HEADER, PREFIX, PersonalizerCalls, Route
from hushstream.gateway.problems import CONTENT_TYPE, Problem, any_problem_of
from hushstream.gateway.reading import GoneAway, read_body
from hushstream.gateway.settings import GatewaySettings, is_loopback

_JSON = "application/json"
_MAX_ERRORS = 16
_CLOSED = 10_000
"""After so many closed connections all memory is looked at: of one that lived for a while a cycle is left."""
_ITEM_FORMS = frozenset({"constrained-int", "constrained-str"})
"""What a fault's place names behind an item, which is a number or an id, and a request does not."""
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Server": "hushstream"}
_PAGE_HEADERS = {
    **_HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_PAGES = {
    "/": ("try.html", "text/html"),
    "/try.js": ("try.js", "text/javascript"),
    "/try.css": ("try.css", "text/css"),
}


@dataclass(frozen=True, slots=True)
class _Posted:
    """A path that is POSTed to.

    Attributes:
        name: of its call, in metrics.
        tells: whether it is feedback.
        body: what its body is read as; None where a body means nothing.
        reply: answers a body that was read, for a caller.
        retired: whether it is of the retired personaliser's protocol.
    """

    name: str
    tells: bool
    body: type[BaseModel] | None
    reply: Callable[[Any, str], Awaitable[web.Response]]
    retired: bool = False


_Look = Callable[[], web.Response]


class GatewayServer:
    """Serves the calls of one conversation, and the retired personaliser's where somebody answers them."""

    def __init__(
        self,
        settings: GatewaySettings,
        answers: Answers,
        log: BoundedLog,
        description: Mapping[str, Any],
        metrics: GatewayMetrics,
        about: Mapping[str, Any],
        retired: PersonalizerCalls | None = None,
    ) -> None:
        """Nothing is listened to yet.

        Args:
            settings: limits and whom to answer.
            answers: who answers the calls.
            log: over which they do, to be asked whether it is there.
            description: the OpenAPI document.
            metrics: where requests are counted.
            about: what `/v1/schema` says besides.
            retired: who answers the retired personaliser's protocol; None where nobody does.

        Raises:
            ConfigurationError: the file of tokens cannot be used.
        """
        self._settings = settings
        self._log = log
        self._metrics = metrics
        self._callers = Callers(settings)
        self._rate = Rate(settings.requests_per_second, settings.burst)
        self._busy = Busy(settings.in_flight)
        self._stopping = False
        self._connections = Limits(settings.connections, settings.read_seconds)
        self._posted: dict[str, _Posted] = {}
        for call in answers.calls:
            answer = answers.answer_of(call)
            one, many = partial(self._reply, call, answer), partial(self._reply_all, call, answer)
            self._posted[call.path] = _Posted(call.name, call.tells, call.asked, one)
            batch = _batch_of(call, settings.batch_requests)
            self._posted[call.batch_path] = _Posted(call.name, call.tells, batch, many)
        self._retired = retired
        self._open: dict[str, _Look] = {
            "/healthz": partial(_text, "turns"),
            "/readyz": self._ready,
            "/openapi.json": partial(_json, json.dumps(description).encode()),
            **{path: partial(_page, name, kind) for path, (name, kind) in _PAGES.items()},
        }
        schema = {**about, **answers.schema()}
        self._looks: dict[str, _Look] = {
            "/v1/items": lambda: _json(json.dumps({"items": answers.items()}).encode()),
            "/v1/schema": partial(_json, json.dumps(schema).encode()),
            "/metrics": self._show_metrics,
        }

    def server(self) -> Server:
        """What makes a connection's protocol."""
        settings = self._settings
        return Server(
            self._handle,
            self._connections,
            self._request,
            keepalive_timeout=settings.idle_seconds,
            access_log=None,
            auto_decompress=False,
            lingering_time=1.0,
        )

    def stop(self) -> None:
        """Answer no further request; those under way go on."""
        self._stopping = True

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = asyncio.get_running_loop()
        size = self._settings.body_bytes
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=size)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        posted = self._posted_to(request)
        try:
            response = await self._respond(request, posted)
            code = OK
        except GoneAway:
            raise
        except Exception as error:  # noqa: BLE001 - whoever asked gets an answer
            problem = any_problem_of(error)
            code, response = problem.kind.code, self._refused(request, problem, posted)
        name, tells = (NO_CALL, False) if posted is None else (posted.name, posted.tells)
        self._metrics.ended(name, tells, code)
        self._allow_origin(request, response)
        return response

    def _posted_to(self, request: web.BaseRequest) -> _Posted | None:
        if self._retired is None or not request.path.startswith(PREFIX):
            return self._posted.get(request.path)
        route = self._retired.route(request.rel_url.raw_path)
        if route is None:
            return None
        return _Posted(route.name, route.tells, route.body, partial(self._reply_retired, route), retired=True)

    async def _respond(self, request: web.BaseRequest, posted: _Posted | None) -> web.Response:
        method, path = request.method, request.path
        if not self._settings.knows_callers:
            _require_own_name(request)
        if path in self._open:
            _require_method(method, "GET")
            return self._open[path]()
        if method == "OPTIONS" and (posted is not None or path in self._looks):
            return self._preflight(request, "GET" if posted is None else "POST")
        retired = posted is not None and posted.retired
        token = request.headers.get(KEY_HEADER) if retired else bearer_of(request.headers.get("Authorization"))
        caller = self._callers.name_of(token, request.transport)
        if posted is None:
            if path not in self._looks:
                raise Problem("not-found")
            _require_method(method, "GET")
            self._rate.take(caller, 1)
            return self._looks[path]()
        _require_method(method, "POST")
        if self._stopping:
            raise Problem("stopping", close=True)
        return await self._answer(request, posted, caller)

    async def _answer(self, request: web.BaseRequest, posted: _Posted, caller: str) -> web.Response:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        # What a caller may not ask is not read; the rest of a batch is taken once it is known how many there are.
        self._rate.take(caller, 1)
        with self._busy.one():
            asked = (
                await self._read(request)
                if posted.body is None
                else _parsed(posted.body, await self._read_json(request))
            )
            read = loop.time()
            response = await posted.reply(asked, caller)
        ended = loop.time()
        self._metrics.took(posted.name, posted.tells, read - begun, ended - read)
        return response

    async def _reply(self, call: Call, answer: Answer, asked: Any, caller: str) -> web.Response:
        answered = await answer(asked)
        self._note(call, answered)
        return _json(answered.model_dump_json().encode())

    async def _reply_all(self, call: Call, answer: Answer, batch: _Batch, caller: str) -> web.Response:
        more = len(batch.requests) - 1
        self._rate.take(caller, more)
        with self._busy.one(more):
            outcomes = await asyncio.gather(*(self._outcome(call, answer, one) for one in batch.requests))
        return _json(b'{"answers":[' + b",".join(outcomes) + b"]}")

    async def _reply_retired(self, route: Route, asked: Any, caller: str) -> web.Response:
        reply = await route.reply(asked)
        for logged in reply.logged:
            self._metrics.answered(route.name, logged)
        if reply.body is None:
            return web.Response(status=reply.status, headers=_HEADERS)
        return web.Response(body=reply.body, status=reply.status, headers=_HEADERS, content_type=_JSON)

    async def _outcome(self, call: Call, answer: Answer, asked: Any) -> bytes:
        """What comes of one request of a batch."""
        try:
            answered = await answer(asked)
        except Exception as error:  # noqa: BLE001 - the others of the batch are answered all the same
            return any_problem_of(error).body()
        self._note(call, answered)
        return answered.model_dump_json().encode()

    def _note(self, call: Call, answered: Answered) -> None:
        if not call.tells:
            self._metrics.answered(call.name, getattr(answered, "logged", True))

    async def _read_json(self, request: web.BaseRequest) -> bytes:
        """The body, which says that it is JSON.

        Raises:
            Problem: it says something else, or see `_read`.
        """
        headers = request.headers
        if request.content_type != _JSON or headers.get("Content-Encoding", "identity") != "identity":
            raise Problem("unsupported-media-type", close=True)
        return await self._read(request)

    async def _read(self, request: web.BaseRequest) -> bytes:
        """The body.

        Raises:
            Problem: it is too large, or too slow.
        """
        return await read_body(request, self._settings.body_bytes, self._settings.read_seconds)

    def _refused(self, request: web.BaseRequest, problem: Problem, posted: _Posted | None) -> web.Response:
        kind = problem.kind
        status, body, content_type = kind.status, problem.body(), CONTENT_TYPE
        if self._retired is not None and request.path.startswith(PREFIX):
            (status, body), content_type = refusal(problem), _JSON
        response = web.Response(body=body, status=status, headers=_HEADERS, content_type=content_type)
        if kind.retry_seconds is not None:
            response.headers["Retry-After"] = str(kind.retry_seconds)
        if kind.code == "unauthorized":
            response.headers["WWW-Authenticate"] = "Bearer"
        if kind.code == "method-not-allowed":
            response.headers["Allow"] = "GET" if posted is None else "POST"
        if problem.close:
            response.force_close()
        return response

    # Pages of other web sites.

    def _preflight(self, request: web.BaseRequest, method: str) -> web.Response:
        if request.headers.get("Origin") not in self._settings.cors_origins:
            raise Problem("method-not-allowed")
        allowed = {
            "Access-Control-Allow-Methods": method,
            "Access-Control-Allow-Headers": "Authorization, Content-Type"
            + ("" if self._retired is None else f", {KEY_HEADER}"),
            "Access-Control-Max-Age": "600",
        }
        return web.Response(status=204, headers={**_HEADERS, **allowed})

    def _allow_origin(self, request: web.BaseRequest, response: web.Response) -> None:
        origins = self._settings.cors_origins
        if not origins:
            return
        response.headers["Vary"] = "Origin"
        origin = request.headers.get("Origin")
        if origin in origins:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = "Retry-After"

    # What is read with GET.

    def _ready(self) -> web.Response:
        if self._stopping:
            raise Problem("stopping")
        if not self._log.answers:
            raise Problem("log-unavailable")
        return _text("ready")

    def _show_metrics(self) -> web.Response:
        self.measure()
        return _text(self._metrics.text().decode())

    def measure(self) -> None:
        """Bring the gauges up to date, and look after what connections leave behind."""
        self._metrics.set_now(self._busy.now, self._log.waiting)
        if self._connections.closed >= _CLOSED:
            self._connections.closed = 0
            collect_whole()


class _Batch(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    requests: list[Any]


def _batch_of(call: Call, most: int) -> type[_Batch]:
    """The body of a batch: requests of one call."""
    of: Any = list[call.asked]  # type: ignore[name-defined]  # a type that is known when it runs
    return create_model(
        f"{call.asked.__name__}Batch", __base__=_Batch, requests=(of, Field(min_length=1, max_length=most))
    )


def _parsed(model: type[BaseModel], body: bytes) -> BaseModel:
    """A body as its model.

    Raises:
        Problem: it is no JSON, or not what the model takes; repeats nothing of it.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
    if found[0]["type"] == "json_invalid":
        raise Problem("malformed-json")
    raise Problem("invalid-request", errors=_places(found)[:_MAX_ERRORS])


def _places(errors: Sequence[Any]) -> list[dict[str, str]]:
    """Each place once, and what was expected there, where it may be one of several forms: of each."""
    expected: dict[str, list[str]] = {}
    for error in errors:
        pointer, detail = _place(error)
        expected.setdefault(pointer, []).append(detail)
    return [{"pointer": pointer, "detail": "; or ".join(details)} for pointer, details in expected.items()]


def _place(error: Any) -> tuple[str, str]:
    """Where, and what was expected there. The name of a key that nobody knows is not repeated."""
    steps = list(error["loc"])
    where = [
        step
        for before, step in zip(["", *steps], steps, strict=False)
        if step not in (FORMS if before == "context" else _ITEM_FORMS)
    ]
    if error["type"] == "extra_forbidden":
        return _pointer(where[:-1]), "expected known keys alone, got another"
    return _pointer(where), error["msg"]


def _pointer(where: Sequence[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in where)


def _require_method(method: str, wanted: str) -> None:
    if method != wanted:
        raise Problem("method-not-allowed")


def _require_own_name(request: web.BaseRequest) -> None:
    """Refuse a web site whose name was made to lead here: its pages would be let in as the gateway's own."""
    host = request.headers.get("Host", "")
    bare = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if not is_loopback(bare):
        raise Problem("wrong-host", close=True)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, headers=_HEADERS, content_type=_JSON)


def _text(text: str) -> web.Response:
    return web.Response(text=text, headers=_HEADERS, content_type="text/plain")


def _page(name: str, kind: str) -> web.Response:
    body = (files("hushstream.gateway") / "page" / name).read_bytes()
    return web.Response(body=body, headers=_PAGE_HEADERS, content_type=kind, charset="utf-8")
