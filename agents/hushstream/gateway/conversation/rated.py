"""Calls of a deployment that learns from ratings: rate, predict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from hushstream.client.logs import EventLog
from hushstream.client.ratings import RatingClient
from hushstream.engine.declare.declaration import System
from hushstream.gateway.conversation.calls import Answered, Answers, Asked, Call, EventId, Taken, User
from hushstream.gateway.conversation.remembered import Remembered, in_time
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.records import MAX_PREDICTED, BadRatings

_MAX_RATINGS = 32_768

Number = Annotated[int, Field(ge=0, lt=2**31, description="An item of `GET /v1/items`, from 0.")]


class RatingsTold(Asked):
    """Ratings of items by a user; of several ratings of one item the last one counts."""

    user: User
    items: Annotated[list[Number], Field(max_length=_MAX_RATINGS)]
    ratings: Annotated[list[float], Field(max_length=_MAX_RATINGS, description="One for each item, on the scale.")]

    @model_validator(mode="after")
    def _fit(self) -> Self:
        if len(self.items) != len(self.ratings):
            raise ValueError("ratings: expected one for each item")
        return self


class RatingsAsked(Asked):
    """The predicted ratings of items by a user."""

    event_id: EventId
    user: User
    items: Annotated[list[Number], Field(min_length=1, max_length=MAX_PREDICTED)]


class RatingsAnswered(Answered):
    """One value for each item that was asked for."""

    event_id: str
    values: list[float]
    model_version: int
    logged: Annotated[bool, Field(description="Always true: the log holds this answer.")]


RATE = Call(
    "rate",
    "Ratings of items by a user",
    "From then on the user takes part in every round. Equal ratings after them change nothing.",
    RatingsTold,
    Taken,
    ("bad-ratings", "unknown-item", "log-unavailable"),
    is_feedback=True,
)
PREDICT = Call(
    "predict",
    "Predicted ratings of items by a user",
    "The same request under the same event id gets the same answer.",
    RatingsAsked,
    RatingsAnswered,
    ("event-conflict", "unknown-item", "refused-by-learner", "log-unavailable", "no-answer"),
)


class RatingAnswers(Answers):
    """See `Answers`."""

    calls = (RATE, PREDICT)
    _client: RatingClient

    def __init__(self, log: EventLog, system: System, settings: GatewaySettings) -> None:
        """Answer over a log of the deployment."""
        config: BgtConfig = system.requests
        self._config = config
        self._client = RatingClient(log, config)
        self._remembered = Remembered(settings.wait_for(system), settings.remembered_events)
        self._seconds = settings.answer_seconds

    def items(self) -> list[dict[str, Any]]:
        """See `Answers`."""
        return [{"item": item} for item in range(self._config.items)]

    def schema(self) -> Mapping[str, Any]:
        """See `Answers`."""
        scale = self._config.scale
        return {
            "ratings": {"lowest": scale.lowest, "highest": scale.highest},
            "remembered_seconds": self._remembered.wait_seconds,
        }

    async def rate(self, feedback: RatingsTold) -> Taken:
        """Answer `RATE`."""
        self._check_items(feedback.items)
        await in_time(self._client.rate(feedback.user, feedback.items, feedback.ratings), self._seconds)
        return Taken(logged=True)

    async def predict(self, asked: RatingsAsked) -> RatingsAnswered:
        """Answer `PREDICT`."""
        self._check_items(asked.items)
        request = hash((asked.user, tuple(asked.items)))
        event = self._remembered.event(asked.event_id, asked.user, request)
        if event.logged:
            known: RatingsAnswered = event.answer
            return known
        asking = self._client.predict(asked.event_id, asked.user, asked.items, timeout=self._seconds)
        answer = in_time(asking, self._seconds, "no-answer")
        found = await self._remembered.answer(asked.event_id, event, answer, BadRatings)
        answered = RatingsAnswered(
            event_id=asked.event_id, values=found.values.tolist(), model_version=found.model_version, logged=True
        )
        event.answer, event.logged = answered, True
        return answered

    def _check_items(self, items: list[int]) -> None:
        if items and max(items) >= self._config.items:
            raise Problem("unknown-item", f"item: expected one of the {self._config.items} items, numbered from 0")
