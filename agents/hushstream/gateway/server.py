"""The HTTP server for applications: requests and feedback, a page to try them, and the retired personaliser's calls.

*Gateway.* The gateway of applications: it accepts requests and feedback over HTTP, and sends them over Kafka by the
client.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from hushstream.agents.security import Security
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System, conversation_of
from hushstream.features.checks import type_name
from hushstream.gateway.callers import Callers, bearer_of
from hushstream.gateway.conversation.calls import Answer, Answered, Answers, Call
from hushstream.gateway.conversation.translation import FORMS
from hushstream.gateway.http_server import (
    HEADERS,
    JSON,
    CrossOrigin,
    HttpServer,
    Look,
    Rate,
    Request,
    Response,
    UserRates,
    fixed,
    is_media,
    require_method,
)
from hushstream.gateway.listening import BoundedLog, ListeningGateway
from hushstream.gateway.metrics import GatewayMetrics
from hushstream.gateway.openapi import document, served_of
from hushstream.gateway.personalizer.bodies import refusal
from hushstream.gateway.personalizer.protocol import KEY_HEADER, PersonalizerCalls, Route, is_retired
from hushstream.gateway.problems import Problem, any_problem_of
from hushstream.gateway.settings import GatewaySettings, is_loopback

_MAX_ERRORS = 16
_TOLD = frozenset({"missing", "value_error", "too_long", "too_short"})
"""Types of pydantic's errors whose messages say by themselves what came, or need not."""
_ITEM_FORMS = frozenset({"constrained-int", "constrained-str"})
"""Names of alternatives (number or id) that pydantic inserts after an item into the path of a faulty value."""
_PAGE_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}
_PAGES = {
    "/": ("try.html", "text/html"),
    "/try.js": ("try.js", "text/javascript"),
    "/try.css": ("try.css", "text/css"),
}
_PAGES_OF_OPERATORS = {
    "/catalogue": ("catalogue.html", "text/html"),
    "/catalogue.js": ("catalogue.js", "text/javascript"),
}


@dataclass(frozen=True, slots=True)
class _Posted:
    """A path of a call.

    Attributes:
        name: the name of its call in metrics.
        is_feedback: whether it is feedback.
        body: the model of its body; None if it has no body.
        reply: answers a parsed body, for a caller.
        retired: whether it belongs to the retired personaliser's protocol.
        for_operators: whether only operators may call it.
        method: how it is called.
    """

    name: str
    is_feedback: bool
    body: type[BaseModel] | None
    reply: Callable[[Any, str], Awaitable[Response | bytes]]
    retired: bool = False
    for_operators: bool = False
    method: str = "POST"


class GatewayServer(HttpServer[_Posted]):
    """Serves the calls of one conversation, and the retired personaliser's if they are enabled."""

    def __init__(
        self,
        settings: GatewaySettings,
        answers: Answers,
        log: BoundedLog,
        description: Mapping[str, Any],
        metrics: GatewayMetrics,
        about: Mapping[str, Any],
        users: UserRates,
        retired: PersonalizerCalls | None = None,
    ) -> None:
        """Prepare the server; it does not listen yet.

        Args:
            settings: the limits, and which callers are accepted.
            answers: answers the calls.
            log: the log of the answers, whose availability decides readiness.
            description: the OpenAPI document.
            metrics: count the requests.
            about: further content of `/v1/schema`.
            users: limits what each user asks for, and apart from it the feedback on it.
            retired: answers the retired personaliser's protocol; None if it is disabled.

        Raises:
            ConfigurationError: the file of tokens cannot be used.
        """
        sends = "Authorization, Content-Type" + ("" if retired is None else f", {KEY_HEADER}")
        cross_origin = CrossOrigin(sends, "Retry-After", 600)
        super().__init__(settings, log, json.dumps(description).encode(), metrics, settings.body_bytes, cross_origin)
        self._callers = Callers(settings)
        self._rate = Rate(settings.requests_per_second, settings.burst)
        self._users, self._retired = users, retired
        operated = any(call.for_operators for call in answers.calls)
        for path, (name, kind) in {**_PAGES, **(_PAGES_OF_OPERATORS if operated else {})}.items():
            page = (files("hushstream.gateway") / "page" / name).read_bytes()
            self._open[path] = partial(fixed, page, kind, headers=_PAGE_HEADERS)
        self._looks: dict[str, Look] = {path: partial(_shown, content) for path, content in answers.looks().items()}
        schema = json.dumps({**about, **answers.schema()}).encode()
        self._looks |= {"/v1/schema": partial(fixed, schema, JSON), "/metrics": self._show_metrics}
        self._posted: dict[str, _Posted] = {}
        for call in answers.calls:
            answer, operated = getattr(answers, call.name), call.for_operators
            one, many = partial(self._reply, call, answer), partial(self._reply_all, call, answer)
            method = "GET" if call.asked is None else "POST"
            self._posted[call.path] = _Posted(
                call.name, call.is_feedback, call.asked, one, for_operators=operated, method=method
            )
            if not operated and call.asked is not None:
                batch = _batch_of(call.asked, settings.batch_requests)
                self._posted[call.batch_path] = _Posted(call.name, call.is_feedback, batch, many)

    def _call_of(self, request: Request) -> _Posted | None:
        if request.method == "GET" and request.path in self._looks:
            return None
        if self._retired is None or not is_retired(request.path):
            return self._posted.get(request.path)
        route = self._retired.route(request.head.url.raw_path)
        if route is None:
            return None
        return _Posted(route.name, route.is_feedback, route.body, partial(self._reply_retired, route), retired=True)

    async def _respond(self, request: Request, call: _Posted | None) -> Response | bytes:
        path = request.path
        if not self.settings.knows_callers:
            _require_own_name(request)
        if path in self._open:
            require_method(request, "GET")
            return self._open[path](request)
        if request.method == "OPTIONS" and (call is not None or path in self._looks):
            return self._preflight(request, "GET" if call is None else call.method)
        retired = call is not None and call.retired
        token = request.headers.get(KEY_HEADER) if retired else bearer_of(request.headers.get("Authorization"))
        if call is not None and call.for_operators:
            caller = self._callers.operator_of(token)
        else:
            caller = self._callers.name_of(token, request.transport)
        if call is None:
            if path not in self._looks:
                raise Problem("not-found")
            require_method(request, "GET")
            self._rate.take(caller, 1)
            return self._looks[path](request)
        require_method(request, call.method)
        if self._stopping:
            raise Problem("stopping", close=True)
        return await self._answer(request, call, caller)

    async def _answer(self, request: Request, posted: _Posted, caller: str) -> Response | bytes:
        begun = time.monotonic()
        # Take one token before reading the body; the other tokens of a batch follow when its size is known.
        self._rate.take(caller, 1)
        self._busy.begin()
        try:
            if posted.body is None:
                asked: Any = await self._read(request)
            elif is_media(request, JSON):
                asked = _parsed(posted.body, await self._read(request))
            else:
                raise Problem("unsupported-media-type", close=True)
            read = time.monotonic()
            response = await posted.reply(asked, caller)
        finally:
            self._busy.end()
        ended = time.monotonic()
        self._metrics.took(posted.name, read - begun, ended - read)
        return response

    async def _reply(self, call: Call, answer: Answer, asked: Any, caller: str) -> bytes:
        if not call.for_operators:
            self._users.take(call.is_feedback, asked.counted_for)
        answered = await answer(asked)
        self._note(call, answered)
        return answered.model_dump_json().encode()

    async def _reply_all(self, call: Call, answer: Answer, batch: _Batch, caller: str) -> bytes:
        more = len(batch.requests) - 1
        self._rate.take(caller, more)
        self._busy.begin(more)
        try:
            outcomes = await asyncio.gather(*(self._outcome(call, answer, one, caller) for one in batch.requests))
        finally:
            self._busy.end(more)
        return b'{"answers":[' + b",".join(outcomes) + b"]}"

    async def _reply_retired(self, route: Route, asked: Any, caller: str) -> Response:
        reply = await route.reply(asked)
        for logged in reply.logged:
            self._metrics.answered(route.name, logged)
        for feature in reply.unknown:
            self._metrics.unknown(feature)
        if reply.body is None:
            return Response(reply.status)
        return Response(reply.status, reply.body, JSON)

    async def _outcome(self, call: Call, answer: Answer, asked: Any, caller: str) -> bytes:
        """The outcome of one request in a batch."""
        try:
            return await self._reply(call, answer, asked, caller)
        except Exception as error:  # noqa: BLE001 - the others of the batch are answered all the same
            return any_problem_of(error).body()

    def _note(self, call: Call, answered: Answered) -> None:
        if not call.is_feedback:
            self._metrics.answered(call.name, getattr(answered, "logged", True))
        for feature in getattr(answered, "unknown", ()):
            self._metrics.unknown(feature)

    def _problem_document(self, request: Request, problem: Problem) -> tuple[int, bytes, str]:
        if self._retired is not None and is_retired(request.path):
            return *refusal(problem), JSON
        return super()._problem_document(request, problem)


def _shown(content: Callable[[], Any], request: Request) -> Response:
    return fixed(json.dumps(content()).encode(), JSON, request)


class _Batch(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    requests: list[Any]


def _batch_of(asked: type[BaseModel], most: int) -> type[_Batch]:
    """The model of a batch: up to ``most`` requests of one call."""
    of: Any = list[asked]  # type: ignore[valid-type]  # a type that is known when it runs
    return create_model(f"{asked.__name__}Batch", __base__=_Batch, requests=(of, Field(min_length=1, max_length=most)))


def _parsed(model: type[BaseModel], body: bytes) -> BaseModel:
    """Parse a body with its model.

    Raises:
        Problem: the body is not JSON, or does not fit the model; the message repeats nothing of the body.
    """
    try:
        parsed = model.model_validate_json(body)
        # Each key has a colon: with no more colons than keys that were found, no key came twice.
        if body.count(b":") > len(parsed.model_fields_set):
            _ONCE.decode(body.decode())
        return parsed
    except ValidationError as error:
        found = error.errors(include_url=False)
    if found[0]["type"] == "json_invalid":
        raise Problem("malformed-json", _unread(body, found[0]["msg"]))
    raise Problem("invalid-request", errors=_places(found)[:_MAX_ERRORS])


def _unread(body: bytes, fault: str) -> str:
    """What of a body cannot be read; the parser's words name a place, and nothing that stands there."""
    came = "a byte order mark" if body.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")) else fault
    return f"The body cannot be read as one JSON text in UTF-8, got: {came}."


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ: of two users in one body one would be charged, and readers differ in which."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise Problem("malformed-json", "An object of the body has a key twice: send each key once.")
    return found


_ONCE = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)


def _places(errors: Sequence[Any]) -> list[dict[str, str]]:
    """Each faulty place once, with what was expected there: all alternatives, if there are several."""
    expected: dict[str, list[str]] = {}
    for error in errors:
        pointer, detail = _place(error)
        expected.setdefault(pointer, []).append(detail)
    return [{"pointer": pointer, "detail": "; or ".join(details)} for pointer, details in expected.items()]


def _place(error: Any) -> tuple[str, str]:
    """The place of a fault, and what was expected there. The name of an unknown key is not repeated."""
    steps = list(error["loc"])
    where = [
        step
        for before, step in zip(["", *steps], steps, strict=False)
        if step not in (FORMS if before == "context" else _ITEM_FORMS)
    ]
    if error["type"] == "extra_forbidden":
        return _pointer(where[:-1]), "expected only known keys, got another"
    expected = str(error["msg"]).removeprefix("Value error, ")
    return _pointer(where), expected if error["type"] in _TOLD else f"{expected}, got {_came(error)}"


def _came(error: Any) -> str:
    """What came, by its type or its length."""
    given = error["input"]
    return f"{len(given):,} characters" if error["type"].startswith("string_too") else type_name(given)


def _pointer(where: Sequence[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in where)


def _require_own_name(request: Request) -> None:
    """Refuse a request for another host: by DNS rebinding, a web site's pages could pass as the gateway's own."""
    if not _is_own_name(request.headers.get("Host", "")):
        raise Problem("wrong-host", close=True)


@lru_cache(maxsize=256)
def _is_own_name(host: str) -> bool:
    """Whether a `Host` header names this machine, with or without a port."""
    name, _, port = host.rpartition(":")
    return is_loopback(name if port.isdecimal() else host)


LINGER_SECONDS = 0.005
"""How long a record waits for others. At 500 requests/s, gateway, learner and broker use 30 % less CPU time than at
0.002 s, because each handles fewer, larger batches; answers come no later."""


@dataclass(slots=True, kw_only=True)
class Gateway(ListeningGateway):
    """A gateway of a deployment whose applications send requests.

    Attributes:
        log: the log that its client writes and reads.
    """

    log: EventLog

    async def _connect(self, metrics: GatewayMetrics) -> GatewayServer:
        settings = self.settings
        served = served_of(self.system, settings.party)
        feedback = conversation_of(self.system, settings.party).feedback
        bounded = BoundedLog(self.log, settings.unacknowledged, feedback)
        answers = served.over(bounded, self.system, settings)
        users = UserRates(settings.user_requests_per_second, settings.user_burst)
        retired = None
        if settings.personalizer is not None:
            remembered = settings.remembered_events
            retired = PersonalizerCalls(settings.personalizer, answers, self.system.requests, remembered, users.take)
        about = {
            "deployment": self.system.config.deployment,
            "conversation": served.name,
            "batch_requests": settings.batch_requests,
            "body_bytes": settings.body_bytes,
        }
        server = GatewayServer(settings, answers, bounded, document(served), metrics, about, users, retired)
        await self._stack.enter_async_context(answers)
        return server


def kafka_log(bootstrap: str, prefix: str, security: Security, system: System, party: str) -> EventLog:
    """The log of a deployment's applications on a Kafka cluster.

    Raises:
        HushstreamError: the deployment has no conversation with applications, or records would leave this machine
            unencrypted.
    """
    topics = conversation_of(system, party)
    return KafkaEventLog(
        bootstrap, prefix, linger_seconds=LINGER_SECONDS, security=security, topics=topics, digest=system.digest
    )
