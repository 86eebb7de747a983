"""The topics to which applications write, and from which they read answers."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import DeclarationError, Role
from hushstream.schemas.topics import of_party


class Conversation(NamedTuple):
    """Topics of an application's requests, of its feedback, and of the answers.

    Attributes:
        requests: topic of requests, also of erasures.
        feedback: other topics that applications write.
        answers: journal of the role that reads the requests; None if applications may not read it.
    """

    requests: str
    feedback: tuple[str, ...]
    answers: str | None

    def of(self, party: str) -> Conversation:
        """The conversation of a party, with the party's own topics."""
        feedback = tuple(of_party(name, party) for name in self.feedback)
        return Conversation(of_party(self.requests, party), feedback, self.answers and of_party(self.answers, party))


DECISIONS = Conversation("contexts", ("clicks",), "decisions")
"""The conversation of every system that decides for its users."""


def conversation_of(system: System, party: str = "") -> Conversation:
    """The topics of the applications of a deployment, or of one of its parties.

    Raises:
        DeclarationError: applications write no topic, no topic of theirs takes erasures, or no role reads it; or the
            party is missing or unknown.
    """
    if party not in (system.parties or ("",)):
        known = f"one of its parties ({', '.join(system.parties)})" if system.parties else "no party's name"
        raise DeclarationError(f"deployment {system.config.deployment}: expected {known}, got {party or 'none'}")
    written = [topic for topic in system.topics if topic.client == "writes" and topic.party == party]
    requests = next((topic.name for topic in written if topic.tombstones), None)
    if requests is None:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected a topic with tombstones that applications write, got none"
        )
    journal = topic_of(system, reader_of_requests(system, requests).journal)
    feedback = tuple(topic.name for topic in written if topic.name != requests)
    return Conversation(requests, feedback, journal.name if journal.client == "reads" else None)


def reader_of_requests(system: System, requests: str) -> Role:
    """The role that reads the requests of applications.

    Raises:
        DeclarationError: there is none.
    """
    for role in system.roles:
        if requests in role.inputs:
            return role
    raise DeclarationError(f"deployment {system.config.deployment}: expected a role that reads {requests}, got none")
