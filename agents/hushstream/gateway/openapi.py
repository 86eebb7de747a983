"""The conversations that a gateway serves, and their OpenAPI 3.1 documents.

A document is made from a conversation's calls, their types and the table of problems.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from hushstream.client import ratings as rating_client
from hushstream.client import records
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import DECISIONS, Conversation, System, conversation_of
from hushstream.engine.declare.role import DeclarationError
from hushstream.gateway.conversation.calls import Answers, Call
from hushstream.gateway.conversation.decisions import DecisionAnswers
from hushstream.gateway.conversation.predictions import PredictionAnswers
from hushstream.gateway.conversation.rated import RatingAnswers
from hushstream.gateway.problems import CONTENT_TYPE, PROBLEMS, URN
from hushstream.gateway.settings import GatewaySettings


class Served(NamedTuple):
    """A conversation that the gateway serves.

    Attributes:
        name: the name of its OpenAPI document.
        title: one line about the conversation.
        answers: the class that answers its calls.
    """

    name: str
    title: str
    answers: Any

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in the order in which applications use them."""
        found: tuple[Call, ...] = self.answers.calls
        return found

    def over(self, log: EventLog, system: System, settings: GatewaySettings) -> Answers:
        """Make the object that answers the calls over a log."""
        made: Answers = self.answers(log, system, settings)
        return made


SERVED: Mapping[Conversation, Served] = {
    DECISIONS: Served("decisions", "Decisions: which item to show a user", DecisionAnswers),
    records.PREDICTIONS: Served("records", "Records: which label a record has", PredictionAnswers),
    rating_client.PREDICTIONS: Served("ratings", "Ratings: what a user will rate items", RatingAnswers),
}


def served_of(system: System, party: str = "") -> Served:
    """Find the calls of a deployment; of this party's applications, if each party has its own.

    Raises:
        DeclarationError: the gateway serves no conversation of this deployment, or there is no such party.
    """
    own = conversation_of(system, party)
    for conversation, served in SERVED.items():
        if conversation.of(party) == own and system.requests is not None:
            return served
    raise DeclarationError(
        f"deployment {system.config.deployment}: expected one whose applications ask its workers, got one where they "
        f"write {own.requests}"
    )


_REFERENCE = "#/components/schemas/{model}"
VERSION = "v1"

EVERY_CALL = ("malformed-http", "unauthorized", "wrong-host", "too-many-requests", "too-busy", "stopping", "internal")
"""The problems that any request may get."""
EVERY_BODY = (
    "malformed-json",
    "invalid-request",
    "slow-request",
    "body-too-large",
    "unsupported-media-type",
)
"""The further problems that any request with a body may get."""


EVERY_LOOK = frozenset({"openapi", "healthz", "readyz", "metrics"})
"""The paths that every gateway has."""


def document(served: Served) -> dict[str, Any]:
    """The document of one conversation; it is the same for every deployment that has it."""
    models: list[type[BaseModel]] = []
    for call in served.calls:
        models += [model for model in (call.asked, call.answered) if model is not None and model not in models]
    _, schemas = models_json_schema(
        [(model, "validation" if model in _asked(served) else "serialization") for model in models],
        ref_template=_REFERENCE,
    )
    components = {**schemas["$defs"], "Problem": problem_schema()}
    paths: dict[str, Any] = {}
    for call in served.calls:
        if call.asked is None:
            good = answered(call.summary, _reference(call.answered.__name__))
            codes = (*EVERY_CALL, *call.problems)
            paths[call.path] = {"get": _look(call.name, call.summary, good, codes, call.about)}
            continue
        paths[call.path] = {"post": _one(call, call.asked)}
        if call.for_operators:
            now = answered("All items, also retired ones", {"type": "object"})
            paths[call.path]["get"] = _look(f"{call.name}_now", "What it is now", now)
        else:
            paths[call.batch_path] = {"post": _many(call, call.asked)}
    schemes = {"token": {"type": "http", "scheme": "bearer"}, "certificate": {"type": "mutualTLS"}}
    found = {"schemas": components, "securitySchemes": schemes}
    return of_paths(served.title, {**paths, **get_paths()}, found, [{"token": []}, {"certificate": []}, {}])


def of_paths(
    title: str, paths: Mapping[str, Any], components: Mapping[str, Any], security: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A whole document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": f"hushstream: {title}", "version": VERSION, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": components,
        "security": security,
    }


def _asked(served: Served) -> set[type[BaseModel] | None]:
    return {call.asked for call in served.calls}


def _one(call: Call, asked: type[BaseModel]) -> dict[str, Any]:
    answer = answered(call.summary, _reference(call.answered.__name__))
    return _posted(call.name, call.summary, call.about, _reference(asked.__name__), answer, call.problems)


def _many(call: Call, asked: type[BaseModel]) -> dict[str, Any]:
    outcome = {"anyOf": [_reference(call.answered.__name__), _reference("Problem")]}
    summary, about = (
        f"{call.summary}: many requests at once",
        "Each request gets its own answer, or a problem with a code.",
    )
    answer = answered("Outcomes, in the order of the requests", _list_under("answers", outcome, 1))
    return _posted(f"{call.name}_batch", summary, about, _list_under("requests", _reference(asked.__name__), 1), answer)


def _posted(
    name: str, summary: str, about: str, body: dict[str, Any], answer: Mapping[str, Any], problems: Sequence[str] = ()
) -> dict[str, Any]:
    responses = {"200": answer, **problems_of((*EVERY_CALL, *EVERY_BODY, *problems))}
    said = {"operationId": name, "summary": summary, "description": about}
    return {**said, "requestBody": _body(body), "responses": responses}


def get_paths(names: Collection[str] | None = None) -> dict[str, Any]:
    """The paths with GET: those with these names, or all if no names are given."""
    either: dict[str, Any] = {"type": "object"}
    items = {
        "type": "object",
        "required": ["items"],
        "properties": {"items": {"type": "array", "items": {"type": "object"}}},
    }
    found = {
        "/v1/items": ("items", "The items that requests may name", answered("All items", items), EVERY_CALL),
        "/v1/schema": ("schema", "What this deployment accepts", answered("Shapes and bounds", either), EVERY_CALL),
        "/openapi.json": ("openapi", "This document", answered("OpenAPI 3.1", either), ()),
        "/healthz": ("healthz", "Whether the process is alive", _text("It is"), ()),
        "/readyz": ("readyz", "Whether it answers requests", _text("It does"), ("stopping", "log-unavailable")),
        "/metrics": ("metrics", "Public metrics for Prometheus", _text("Text format"), EVERY_CALL),
    }
    return {
        path: {"get": _look(name, summary, good, codes)}
        for path, (name, summary, good, codes) in found.items()
        if names is None or name in names
    }


def _look(
    name: str, summary: str, good: Mapping[str, Any], codes: Iterable[str] = EVERY_CALL, about: str = ""
) -> dict[str, Any]:
    said = {"summary": summary, **({"description": about} if about else {})}
    return {"operationId": name, **said, "responses": {"200": good, **problems_of(codes)}}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(model=name)}


def _list_under(key: str, of: Mapping[str, Any], least: int) -> dict[str, Any]:
    return {
        "type": "object",
        "required": [key],
        "additionalProperties": False,
        "properties": {key: {"type": "array", "minItems": least, "items": of}},
    }


def _body(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def answered(about: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    """A good answer in JSON."""
    return {"description": about, "content": {"application/json": {"schema": schema}}}


def _text(about: str) -> dict[str, Any]:
    return {"description": about, "content": {"text/plain": {"schema": {"type": "string"}}}}


def problems_of(codes: Iterable[str]) -> dict[str, Any]:
    """The responses of problems, by status."""
    by_status: dict[int, list[str]] = {}
    for code in dict.fromkeys(codes):
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    return {
        str(status): {
            "description": "; ".join(f"`{code}`: {PROBLEMS[code].title}" for code in found),
            "content": {CONTENT_TYPE: {"schema": _reference("Problem")}},
        }
        for status, found in sorted(by_status.items())
    }


def problem_schema() -> dict[str, Any]:
    """The schema of every problem document."""
    place = {
        "type": "object",
        "required": ["pointer", "detail"],
        "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
    }
    return {
        "title": "Problem",
        "description": "An error in the form of RFC 9457.",
        "type": "object",
        "required": ["type", "title", "status", "code", "detail"],
        "properties": {
            "type": {"type": "string", "enum": [URN + code for code in PROBLEMS]},
            "title": {"type": "string"},
            "status": {"type": "integer", "enum": sorted({kind.status for kind in PROBLEMS.values()})},
            "code": {"type": "string", "enum": list(PROBLEMS)},
            "detail": {"type": "string"},
            "errors": {"type": "array", "items": place},
        },
    }
