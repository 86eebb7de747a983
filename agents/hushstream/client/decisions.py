"""Reads the decisions journal without its key, by the chain rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np

from hushstream.client.logs.journals import JournalReader
from hushstream.engine.catalogue import ITEMS
from hushstream.schemas.records import Decisions, JournalHead
from hushstream.schemas.topics import common_name

_POLICIES: tuple[Literal["model", "baseline", "repeated"], ...] = ("model", "baseline", "repeated")


PolicyName = Literal["model", "baseline", "repeated", "shadow", "timeout", "no_learner", "refused"]

LEARNED = frozenset({"model", "baseline", "repeated", "shadow"})
"""Policies of answers that a learner made; these are in the log before an application gets them. In shadow mode the log
has such an answer too, beside the application's own choice."""

_WHOLE = 10**9
"""A propensity of 1 in records."""


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer.

    Attributes:
        event_id: the application's name for the decision.
        user: whose decision it is.
        arm: the arm to show.
        propensity: probability with which this arm was chosen, in [0, 1]; None if unknown.
        policy: who chose the arm. The learner did: "model"; "baseline" (the arm that everybody gets, for a user of the
            hold-out or over quota); "repeated" (this event id had been decided before). Or ``arm`` is the caller's own
            baseline: "shadow" (shadow mode: the learner's answer is only in the log), "timeout" (the learner did not
            answer in time), "no_learner" (no learner has answered for a while), "refused" (the learner refused the
            context).
        model_version: version of the shared model from which the user's own model started; 0 for none.
        item: the id of the item to show, where items have names; ``arm`` is then the row that it stands in.
        catalogue: the version of the catalogue that it was decided under; 0 where items have no names.
    """

    event_id: str
    user: str
    arm: int
    propensity: float | None
    policy: PolicyName
    model_version: int
    item: str | None = None
    catalogue: int = 0


def position_event(event_id: str, position: int) -> str:
    """The event id of a position of a slate: the slate's own id for position 1, then ``ID#2``, ``ID#3``."""
    return event_id if position == 1 else f"{event_id}#{position}"


class Answer(NamedTuple):
    """One row of a decisions record; its propensity is in units of 1e-9."""

    event_id: str
    arm: int
    propensity: int
    policy: Literal["model", "baseline", "repeated"]
    model_version: int

    def to(self, user: str, item: str | None = None, catalogue: int = 0) -> Decision:
        """Make the decision that the application gets: for this user, with the item that its row means."""
        propensity = self.propensity / _WHOLE
        return Decision(self.event_id, user, self.arm, propensity, self.policy, self.model_version, item, catalogue)


def items_read(head: JournalHead) -> int:
    """The next offset that the learner reads of the catalogue's changes, from its journal; 0 if items have no names."""
    return next((part["high"] for part in head["inputs"] if common_name(part["topic"]) == ITEMS), 0)


class DecisionReader:
    """Follows one partition's decisions: a record counts only if it continues the chain (`JournalReader`)."""

    def __init__(self) -> None:
        """Begin without a position."""
        self._journal = JournalReader("Decisions")

    def read(self, offset: int, value: bytes) -> Iterator[tuple[JournalHead, list[Answer]]]:
        """Read the record at ``offset``; yield head and answers of all that are now known to be on the chain."""
        for counted in self._journal.read(offset, value):
            record = cast(Decisions, counted)
            if _sound(record):
                yield record["head"], list(_answers(record))


_COLUMNS: tuple[tuple[Literal["arms", "propensities", "model_versions"], str], ...] = (
    ("arms", "<i4"),
    ("propensities", "<u4"),
    ("model_versions", "<i4"),
)


def _answers(record: Decisions) -> Iterator[Answer]:
    columns = [np.frombuffer(record[name], kind).tolist() for name, kind in _COLUMNS]
    for event_id, policy, arm, propensity, version in zip(
        record["event_ids"], record["policies"], *columns, strict=True
    ):
        yield Answer(event_id, arm, propensity, _POLICIES[policy], version)


def _sound(record: Decisions) -> bool:
    """Whether all columns of a record have the same length."""
    rows = len(record["event_ids"])
    lengths = (len(record["policies"]), *(len(record[name]) for name, _ in _COLUMNS))
    return lengths == (rows, 4 * rows, 4 * rows, 4 * rows) and max(record["policies"], default=0) < len(_POLICIES)
