"""Over which topics applications talk with a deployment: what they write, and where the answer is."""

from __future__ import annotations

from typing import NamedTuple

from hushstream.engine.declaration import DeclarationError, Role, System, topic_of


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


DECISIONS = Conversation("contexts", ("clicks",), "decisions")
"""Of every system that decides for its users."""


def conversation_of(system: System) -> Conversation:
    """The topics of a deployment's applications.

    Raises:
        DeclarationError: applications write nothing, or ask for erasures nowhere, or nobody reads it.
    """
    written = [topic for topic in system.topics if topic.client == "writes"]
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
