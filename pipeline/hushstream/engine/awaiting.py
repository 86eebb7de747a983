"""Learners whose decisions wait for their reward: a row leaves when it has settled, whatever was rewarded.

A row leaves when the settle time of its decision has passed in log time, or at a phase end, if its arm was on screen;
its reward is 0 if none came by then. So whether a row leaves depends on what was shown alone: a reward, or the lack of
one, moves the number in its own row and nothing else. That holds for feedback before its context, too
(`hushstream.engine.learner.shown_feedback`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from typing import Any, Generic, Protocol, Self, TypeVar

from hushstream.engine.deciding import DecisionRole, Journaled
from hushstream.engine.deciding_fold import DecisionFold
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.intake import DecodedContexts
from hushstream.engine.learner.shown_feedback import EarlyOutcome, ShownEarlyFeedback
from hushstream.engine.records import InputSlice
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import FeedbackRow, PastDecision
from hushstream.schemas.reasons import Reason

_EARLY: dict[EarlyOutcome, Outcome | JoinOutcome | Refusal] = {
    EarlyOutcome.WAITS: Outcome.EARLY_FEEDBACK,
    EarlyOutcome.REPEATED: JoinOutcome.REPEATED_FEEDBACK,
    EarlyOutcome.FULL: Refusal.TOO_MUCH_EARLY_FEEDBACK,
    EarlyOutcome.NOT_SHOWN: Refusal.CLICK_WITHOUT_CONTEXT,
}


class AwaitedRow(Protocol):
    """A decision whose reward is awaited: a tuple with these fields among others."""

    @property
    def decided_ms(self) -> int: ...
    @property
    def arm(self) -> int: ...
    @property
    def shown(self) -> bool: ...
    @property
    def other_shown(self) -> bool: ...
    @property
    def reward(self) -> float | None: ...
    def _replace(self, *, shown: bool = ..., other_shown: bool = ..., reward: float | None = ...) -> Self: ...


RowT = TypeVar("RowT", bound=AwaitedRow)
MachineT = TypeVar("MachineT", bound="Awaiting[Any]")


class Awaiting(DecisionRole, Generic[RowT]):
    """A learner with rows that wait.

    Attributes:
        open: rows whose reward is awaited, by event.
    """

    early: ShownEarlyFeedback
    open: dict[str, RowT]


class AwaitingFold(DecisionFold[MachineT], Generic[MachineT, RowT]):
    """See `DecisionFold`; what is due here is the row of a decision."""

    def __init__(self, machine: MachineT, journaled: Journaled | None) -> None:
        super().__init__(machine, journaled)
        self._settled: list[tuple[str, RowT]] = []

    @abstractmethod
    def _past_of(self, row: RowT) -> PastDecision:
        """What was decided for an open row."""

    @abstractmethod
    def _stranger(self, user: str) -> Refusal | None:
        """Why nothing is taken of a user here, if they are none of this partition's."""

    @abstractmethod
    def _objection(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        """Why a decodable context must not be decided, if it must not."""

    @abstractmethod
    def _decide(self, decoded: DecodedContexts, row: int) -> None:
        """Answer a context."""

    def _bad_reward(self, reward: float) -> str | None:
        """Why a reward cannot count, if it cannot."""
        return None

    # Clicks.

    def _feed(self, click: FeedbackRow, part: InputSlice) -> None:
        machine = self._machine
        row = machine.open.get(click.event_id)
        past = machine.past.get(click.event_id)
        if row is not None:
            self._feed_open(row, click, part)
        elif past is None:
            self._hold(click, part)
        elif past.user != click.user:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        else:
            self._too_late(click)

    def _feed_open(self, row: RowT, click: FeedbackRow, part: InputSlice) -> None:
        machine = self._machine
        reason: str | None = None
        if self._past_of(row).user != click.user:
            reason = Refusal.EVENT_OF_ANOTHER_USER
        elif click.arm >= machine.arms:
            reason = Reason.UNKNOWN_ARM
        elif click.rewarded:
            reason = self._bad_reward(click.reward)
        if reason is not None:
            self._refuse(reason, part, click.offset, click.row)
        elif click.time_ms > row.decided_ms + machine.settle_ms:
            self._too_late(click)
        else:
            machine.open[click.event_id] = self._heard(row, click)

    def _heard(self, row: RowT, click: FeedbackRow) -> RowT:
        """What an open row knows after one piece of feedback; the first of each kind stands."""
        if click.rewarded:
            if row.reward is not None:
                self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
                return row
            self.counts[JoinOutcome.REWARDED] += 1
            return row._replace(reward=click.reward)
        if row.shown or row.other_shown:
            self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
            return row
        own = click.arm == row.arm
        self.counts[JoinOutcome.SHOWN if own else JoinOutcome.OTHER_ARM] += 1
        return row._replace(shown=own, other_shown=not own)

    def _hold(self, click: FeedbackRow, part: InputSlice) -> None:
        """Let the feedback of users of this partition wait for its context, and nobody else's."""
        unfit = self._stranger(click.user) or (Reason.UNKNOWN_ARM if click.arm >= self._machine.arms else None)
        outcome = unfit or _EARLY[self._machine.early.hold(click)]
        if isinstance(outcome, (Outcome, JoinOutcome)):
            self.counts[outcome] += 1
        else:
            self._refuse(outcome, part, click.offset, click.row)

    # Contexts.

    def _context(self, decoded: DecodedContexts, row: int, part: InputSlice) -> None:
        columns = decoded.columns
        event_id = columns.event_ids[row]
        past = self._known(event_id)
        reason = decoded.refused.get(row) or self._objection(decoded, row)
        if reason is None and past is not None and past.user != columns.users[row]:
            reason = Refusal.EVENT_OF_ANOTHER_USER
        if reason is not None:
            self._refuse(reason, part, columns.offsets[row], columns.rows[row])
        elif past is not None:
            self._repeat(event_id, past)
        else:
            self._decide(decoded, row)

    def _known(self, event_id: str) -> PastDecision | None:
        """What was decided for an event, if it is remembered or its reward is still awaited."""
        row = self._machine.open.get(event_id)
        return self._machine.past.get(event_id) if row is None else self._past_of(row)

    def _await(self, event_id: str, row: RowT) -> None:
        """Let a decision wait for its reward."""
        machine = self._machine
        machine.open[event_id] = row
        machine.due.append((machine.now_ms, event_id))

    # Log time, and rows that leave.

    def _advance(self, now_ms: int) -> None:
        machine = self._machine
        machine.now_ms = now_ms
        while machine.due and machine.settled(machine.due[0][0], now_ms):
            self._settle(machine.due.popleft()[1])
        if self._settled:
            self._send()

    def _settle(self, due: str) -> None:
        """The row of a decision is as it will stay; only what was shown decides whether it leaves."""
        row = self._machine.open.pop(due)
        if row.shown:
            self._settled.append((due, row))
        else:
            self.counts[Outcome.NOT_SHOWN] += 1

    def _drop_rows(self, user: str) -> None:
        """Drop the open rows of a user."""
        machine = self._machine
        theirs = {event_id for event_id, row in machine.open.items() if self._past_of(row).user == user}
        machine.due = deque(due for due in machine.due if due[1] not in theirs)
        machine.open = {event_id: row for event_id, row in machine.open.items() if event_id not in theirs}
