"""What release marks know of that the ledger does not hold: read from what stands in marks in clear, without a key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hushstream.agents.worker.roles import role_topics
from hushstream.engine.declare.declaration import System
from hushstream.engine.journal.marks import Mark, MarkUnreadable, read_public
from hushstream.ops.log_copy import LogCopy
from hushstream.privacy.amounts import count_text


def mark_topics(system: System) -> tuple[str, ...]:
    """Where the roles of a deployment note how far they have released."""
    return tuple(role.marks for role in system.roles if role.marks is not None)


@dataclass(frozen=True, slots=True)
class Problem:
    """A record that cannot be what a role wrote, or that tells of what is missing."""

    topic: str
    partition: int
    offset: int
    reason: str

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"topic": self.topic, "partition": self.partition, "offset": self.offset, "reason": self.reason}

    def __str__(self) -> str:
        """One line."""
        return f"{self.topic}/{self.partition} offset {self.offset}: {self.reason}"


def gaps(logs: LogCopy, system: System) -> Iterator[Problem]:
    """Where marks say that more was spent than the ledger holds.

    Args:
        logs: a copy that holds the ledger topics and `mark_topics`.
        system: the deployment.
    """
    for role in system.roles:
        topics = role_topics(role, system)
        if topics.marks is None:
            continue
        ledgers = [topic for topic in topics.writes if topic in system.ledgers]
        for partition, part in logs.of_topic(topics.marks):
            marks: list[Mark] = []
            for record in part.records:
                try:
                    marks.append(read_public(record.value))
                except MarkUnreadable as error:
                    yield Problem(topics.marks, partition, record.offset, str(error))
            reason = _gap(marks, [topic for topic in ledgers if not logs.part((topic, partition)).records])
            if reason:
                yield Problem(topics.marks, partition, part.high - 1, reason)


def _gap(marks: Sequence[Mark], empty: Sequence[str]) -> str:
    """What is missing of one partition, some ledgers of which are empty; an empty text where nothing is."""
    journals = {mark.journal for mark in marks}
    times = max((mark.generation for mark in marks), default=0)
    if times or len(journals) > 1:
        return (
            f"here released {count_text(len(journals), 'journal')}, and an operator went on after a loss "
            f"{count_text(times, 'time')}: "
            f"add what was spent on what is lost"
        )
    if empty and any(mark.paid for mark in marks):
        return f"a debit was sent, and {' and '.join(empty)} holds none: the ledger is lost; bring it back"
    return ""
