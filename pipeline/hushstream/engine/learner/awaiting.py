"""Holds the rows of decisions that wait for their reward. A row is sent when it has settled, with or without a reward.

The row of an arm that was shown settles when the settle time of its decision has passed in log time, or at a phase end.
Its reward is 0 if none has come by then. Log time is divided into spans as long as the settle time, and all rows
decided in one span leave together. So only shown arms, log times of contexts, and phase ends determine which rows
leave, when, and in which record. A reward, or a missing one, changes the number in its own row and nothing else. This
also holds for feedback that comes before its context (`hushstream.feedback.memory`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, TypeVar

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.batch import DecisionBatch, settled_at
from hushstream.engine.records import InputSlice
from hushstream.engine.state.declared import Several, array
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import EarlyOutcome, FeedbackRow
from hushstream.schemas.rows import REWARD, Reason

EARLY: Mapping[EarlyOutcome, Outcome | JoinOutcome | Refusal] = {
    EarlyOutcome.WAITS: Outcome.PARKED,
    EarlyOutcome.REPEATED: JoinOutcome.REPEATED_FEEDBACK,
    EarlyOutcome.FULL: Refusal.TOO_MANY_PARKED,
    EarlyOutcome.NOT_SHOWN: Refusal.CLICK_WITHOUT_CONTEXT,
}


class AwaitedRow(Protocol):
    """A decision that waits for its reward: a tuple with at least these fields."""

    @property
    def decided_ms(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def arm(self) -> int: ...
    @property
    def shown(self) -> bool: ...
    @property
    def other_shown(self) -> bool: ...
    @property
    def reward(self) -> float | None: ...
    def _asdict(self) -> dict[str, Any]: ...
    def _replace(self, *, shown: bool = ..., other_shown: bool = ..., reward: float | None = ...) -> Self: ...


RowT = TypeVar("RowT", bound=AwaitedRow)


class OpenRows(dict[str, RowT]):
    """The rows of a partition that wait for their reward, by event, in the order of their decisions."""

    __slots__ = ("_arms", "_due", "_settle_ms")

    def __init__(self, settle_ms: int, arms: int) -> None:
        """Begin without rows. A row waits for ``settle_ms`` of log time; feedback must name one of ``arms``."""
        super().__init__()
        self._settle_ms, self._arms = settle_ms, arms
        self._due: deque[tuple[int, str]] = deque()

    def add(self, event_id: str, row: RowT) -> None:
        """Add the row of a decision. Rows are added in the order of their decisions."""
        self[event_id] = row
        self._due.append((row.decided_ms, event_id))

    def clear(self) -> None:
        """Drop all."""
        super().clear()
        self._due.clear()

    def drop(self, user: str) -> None:
        """Drop the rows of a user."""
        theirs = {event_id for event_id, row in self.items() if row.user == user}
        self._due = deque(due for due in self._due if due[1] not in theirs)
        for event_id in theirs:
            del self[event_id]

    def join(
        self, row: RowT, click: FeedbackRow, part: InputSlice, batch: DecisionBatch, bad_reward: str | None = None
    ) -> None:
        """Add one piece of feedback to an open row. Only the first of each kind counts.

        Args:
            row: the row of the event.
            click: the feedback.
            part: its slice.
            batch: its batch.
            bad_reward: why the reward is refused, if it is.
        """
        reason: str | None = None
        if row.user != click.user:
            reason = Refusal.EVENT_OF_ANOTHER_USER
        elif click.arm >= self._arms:
            reason = Reason.UNKNOWN_ARM
        elif click.kind == REWARD:
            reason = bad_reward
        if reason is not None:
            batch.refuse_at(reason, part, click.offset, click.row)
        elif click.time_ms > row.decided_ms + self._settle_ms:
            batch.too_late(click)
        elif (row.reward is not None) if click.kind == REWARD else (row.shown or row.other_shown):
            batch.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
        elif click.kind == REWARD:
            self[click.event_id] = row._replace(reward=click.reward)
            batch.counts[JoinOutcome.REWARDED] += 1
        else:
            own = click.arm == row.arm
            self[click.event_id] = row._replace(shown=own, other_shown=not own)
            batch.counts[JoinOutcome.SHOWN if own else JoinOutcome.OTHER_ARM] += 1

    def settled(self, now_ms: int, batch: DecisionBatch) -> list[tuple[str, RowT]]:
        """Remove and return the rows that no feedback can change after ``now_ms``."""
        due, settle_ms = self._due, self._settle_ms
        events = []
        while due and settled_at(due[0][0], settle_ms) <= now_ms:
            events.append(due.popleft()[1])
        return self._shown(events, batch)

    def all_settled(self, batch: DecisionBatch) -> list[tuple[str, RowT]]:
        """Remove and return all rows, since a phase has ended."""
        events, self._due = [event_id for _, event_id in self._due], deque()
        return self._shown(events, batch)

    def _shown(self, events: list[str], batch: DecisionBatch) -> list[tuple[str, RowT]]:
        """The rows that were shown: only these leave."""
        leaving = []
        for event_id in events:
            row = self.pop(event_id)
            if row.shown:
                leaving.append((event_id, row))
            else:
                batch.counts[Outcome.NOT_SHOWN] += 1
        return leaving


def open_rows(
    schema: Mapping[str, Any],
    pack: Callable[[Any, Any], Mapping[str, Any]],
    unpack: Callable[[Any, dict[str, Any]], Any],
) -> Several:
    """State field: the waiting rows of a role.

    Args:
        schema: Avro record of one row: ``event_id``, and the fields that ``pack`` gives.
        pack: of the role and a row, its fields.
        unpack: of the role and these fields, the row.
    """

    def dump(role: Any) -> Mapping[str, Any]:
        return {"open": [{"event_id": event_id, **pack(role, row)} for event_id, row in role.open.items()]}

    def load(role: Any, values: Mapping[str, Any]) -> None:
        role.open.clear()
        for item in values["open"]:
            role.open.add(item.pop("event_id"), unpack(role, item))

    return Several({"open": array(schema)}, dump, load)
