"""Calls of a deployment that predicts labels of records: predict, label."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from hushstream.client import BadContext, RecordClient
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.gateway.conversation.calls import Answered, Answers, Asked, Call, EventId, Taken, User
from hushstream.gateway.conversation.remembered import Remembered, in_time, log_once, logged_event
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings
from hushstream.systems.pdol.system import RecordRules

_MAX_FEATURES = 65_536
_INDEX = 2**31 - 1

Node = Annotated[int, Field(ge=0, le=_INDEX, description="The number of the node that holds the record, from 0.")]


class PredictionAsked(Asked):
    """Which label a record has: its coordinates that are not 0."""

    event_id: EventId
    user: User
    node: Node
    indices: Annotated[
        list[Annotated[int, Field(ge=0, le=_INDEX)]], Field(max_length=_MAX_FEATURES, description="Each index once.")
    ] = Field(default_factory=list)
    values: Annotated[
        list[Annotated[float, Field(ge=-1, le=1)]],
        Field(max_length=_MAX_FEATURES, description="One for each index; their L2 norm is at most 1."),
    ] = Field(default_factory=list)
    record: Annotated[
        dict[str, Any] | None,
        Field(
            max_length=_MAX_FEATURES,
            description="Instead of `indices` and `values`, if features are declared: values by name; one that is "
            "absent or null is missing.",
        ),
    ] = None

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if len(self.indices) != len(self.values) or (self.record is not None and self.indices):
            raise ValueError("values: expected one for each index, and none beside values by name")
        return self


class PredictionAnswered(Answered):
    """The label."""

    event_id: str
    label: Annotated[int, Field(ge=-1, le=1, description="1 or -1; 0 if the record breaks a bound.")]
    model_version: int
    logged: Annotated[bool, Field(description="Always true: the log holds this answer.")]


class LabelTold(Asked):
    """The true label of a record that was predicted."""

    event_id: EventId
    label: Annotated[int, Field(ge=-1, le=1, description="1 or -1.")]
    user: Annotated[User | None, Field(description="Like `node`, may be left out for events of this gateway.")] = None
    node: Node | None = None

    @model_validator(mode="after")
    def _signed(self) -> Self:
        if self.label == 0:
            raise ValueError("label: expected 1 or -1")
        return self


PREDICT = Call(
    "predict",
    "Which label a record has",
    "The same request under the same event id gets the same answer.",
    PredictionAsked,
    PredictionAnswered,
    ("event-conflict", "bad-record", "refused-by-learner", "log-unavailable", "no-answer"),
)
LABEL = Call(
    "label",
    "The true label",
    "The first label of an event counts; an equal one after it changes nothing.",
    LabelTold,
    Taken,
    ("unknown-event", "event-conflict", "feedback-conflict", "not-logged", "bad-record", "log-unavailable"),
    is_feedback=True,
)

_TAKEN = Taken(logged=True)


class PredictionAnswers(Answers):
    """See `Answers`."""

    calls = (PREDICT, LABEL)
    _client: RecordClient

    def __init__(self, log: EventLog, system: System, settings: GatewaySettings) -> None:
        """Answer over a log of the deployment."""
        rules: RecordRules = system.requests
        self._rules = rules
        self._client = RecordClient(log, *rules)
        self._remembered = Remembered(settings.wait_for(system), settings.remembered_events)
        self._seconds = settings.answer_seconds

    def items(self) -> list[dict[str, Any]]:
        """See `Answers`: the nodes."""
        return [{"node": node} for node in range(self._rules.nodes)]

    def schema(self) -> Mapping[str, Any]:
        """See `Answers`."""
        return {
            "record": self._record,
            "nodes": self._rules.nodes,
            "label": {"expected": "1 or -1"},
            "remembered_seconds": self._remembered.wait_seconds,
        }

    @property
    def _record(self) -> Mapping[str, Any]:
        schema = self._rules.features
        if schema is not None:
            return {"features": schema.plain, "expected": "values of the declared features"}
        return {"dimension": self._rules.dimension, "expected": "an L2 norm of at most 1"}

    async def predict(self, asked: PredictionAsked) -> PredictionAnswered:
        """Answer `PREDICT`."""
        self._check_node(asked.node)
        said = (tuple(asked.indices), tuple(asked.values), repr(sorted((asked.record or {}).items())))
        request = hash((asked.user, asked.node, *said))
        event = self._remembered.event(asked.event_id, asked.user, request)
        if event.logged:
            known: PredictionAnswered = event.answer[1]
            return known
        try:
            given = (asked.indices, asked.values) if asked.record is None else (asked.record,)
            asking = self._client.predict(asked.event_id, asked.user, asked.node, *given, timeout=self._seconds)
            answer = in_time(asking, self._seconds, "no-answer")
            found = await self._remembered.answer(asked.event_id, event, answer)
        except BadContext as error:
            raise Problem("bad-record", str(error)) from None
        answered = PredictionAnswered(
            event_id=found.event_id, label=found.label, model_version=found.model_version, logged=True
        )
        event.answer, event.logged = (asked.node, answered), True
        return answered

    async def label(self, body: LabelTold) -> Taken:
        """Answer `LABEL`."""
        event = self._remembered.of(body.event_id)
        if event is None:
            if body.user is None or body.node is None:
                raise Problem("unknown-event")
            self._check_node(body.node)
            await in_time(self._client.label(body.event_id, body.user, body.node, body.label), self._seconds)
            return _TAKEN
        known = logged_event(event, body.user)
        node = known.answer[0]
        if body.node is not None and body.node != node:
            raise Problem("event-conflict")
        await log_once(
            known,
            "label",
            body.label,
            lambda: self._client.label(body.event_id, known.user, node, body.label),
            self._seconds,
        )
        return _TAKEN

    def _check_node(self, node: int) -> None:
        if node >= self._rules.nodes:
            raise Problem("bad-record", f"node: expected one of {self._rules.nodes}, numbered from 0")
