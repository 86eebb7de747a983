"""Finds the calls of a deployment, by the conversation with applications that its system declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from hushstream.client import ratings as rating_client
from hushstream.client import records
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import DECISIONS, Conversation, System, conversation_of
from hushstream.engine.declare.role import DeclarationError
from hushstream.gateway.conversation.calls import Answers, Call
from hushstream.gateway.conversation.decisions import DecisionAnswers
from hushstream.gateway.conversation.predictions import PredictionAnswers
from hushstream.gateway.conversation.rated import RatingAnswers
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
