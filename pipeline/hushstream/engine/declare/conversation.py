"""The topics over which applications talk with a deployment: where they write, and where they read the answer."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.engine.declare.declaration import System, topic_of
from hushstream.engine.declare.role import DeclarationError, Role
from hushstream.schemas.topics import of_party


class Conversation(NamedTuple):
    """What applications write, and where they see what became of it.

    Attributes:
        asked: where they write what they ask for, erasures too.
        told: what else they write.
        answers: the journal of those who read what is asked; None where applications may not read it.
    """

    asked: str
    told: tuple[str, ...]
    answers: str | None

    def of(self, party: str) -> Conversation:
        """The same over a party's own topics."""
        told = tuple(of_party(name, party) for name in self.told)
        return Conversation(of_party(self.asked, party), told, self.answers and of_party(self.answers, party))


DECISIONS = Conversation("contexts", ("clicks",), "decisions")
"""Of every system that decides for its users."""


def conversation_of(system: System, party: str = "") -> Conversation:
    """The topics of a deployment's applications, or of those of one of its parties.

    Raises:
        DeclarationError: applications write nothing, or ask for erasures nowhere, or nobody reads it; or no party is
            named, or one that there is not.
    """
    if party not in (system.parties or ("",)):
        known = f"one of its parties ({', '.join(system.parties)})" if system.parties else "no party's name"
        raise DeclarationError(f"deployment {system.config.deployment}: expected {known}, got {party or 'none'}")
    written = [topic for topic in system.topics if topic.client == "writes" and topic.party == party]
    asked = next((topic.name for topic in written if topic.tombstones), None)
    if asked is None:
        raise DeclarationError(
            f"deployment {system.config.deployment}: expected a topic with tombstones that applications write, got none"
        )
    journal = topic_of(system, asked_of(system, asked).journal)
    told = tuple(topic.name for topic in written if topic.name != asked)
    return Conversation(asked, told, journal.name if journal.client == "reads" else None)


def asked_of(system: System, asked: str) -> Role:
    """The role that reads what applications ask for.

    Raises:
        DeclarationError: nobody does.
    """
    for role in system.roles:
        if asked in role.inputs:
            return role
    raise DeclarationError(f"deployment {system.config.deployment}: expected a role that reads {asked}, got none")
