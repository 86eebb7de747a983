"""What a client concludes from a partition's journal: whether a learner answers there, and which questions it has
refused."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Generic, TypeVar, cast

from hushstream.schemas.rows import JournalHead

SILENT_SECONDS = 1.0
"""If the journal has no new record for so long after a question, the client concludes that no learner answers there."""

PROBE_SECONDS = 1.0
"""While no learner answers, the client sends one question in this number of seconds as a probe; its answer, like any
other, closes the circuit."""


class Circuit:
    """The circuit breaker of a partition: open while questions wait there and its journal does not grow.

    Any record on the journal's chain closes it, also an answer to somebody else.
    """

    def __init__(self) -> None:
        """Begin closed: nothing was asked."""
        self._asked_at: float | None = None
        self._probe_at = 0.0

    def on_request(self, now: float) -> None:
        """Note that a question was sent, at a time in seconds on a monotonic clock."""
        if self._asked_at is None:
            self._asked_at = now

    def on_answer(self) -> None:
        """Close: the journal grew, or the log refused the question, which says nothing about learners."""
        self._asked_at, self._probe_at = None, 0.0

    def is_open(self, now: float) -> bool:
        """Whether the oldest question since the journal last grew has waited too long."""
        return self._asked_at is not None and now - self._asked_at >= SILENT_SECONDS

    def probes(self, now: float) -> bool:
        """Whether to send a question as a probe although the circuit is open; if so, none for `PROBE_SECONDS`."""
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_SECONDS
        return True


A = TypeVar("A")


class Awaited(Generic[A]):
    """A result that several callers wait for, each with its own timeout; one that gives up does not disturb the others.

    For one caller it takes a third of the time of `asyncio.wait` for a future.
    """

    __slots__ = ("_error", "_given", "_waiting", "done")

    def __init__(self) -> None:
        """Begin without a result."""
        self._given: A | None = None
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.done = False
        """Whether the result or an error has come."""

    def give(self, answer: A) -> None:
        """Set the result; a later result or error changes nothing."""
        self._end(answer, None)

    def fail(self, error: BaseException) -> None:
        """Set the error that all callers get; a later result or error changes nothing."""
        self._end(None, error)

    def _end(self, given: A | None, error: BaseException | None) -> None:
        if self.done:
            return
        self.done, self._given, self._error = True, given, error
        for waiting in self._waiting:
            _wake(waiting)

    def result(self) -> A:
        """The result.

        Raises:
            TimeoutError: nothing has, so far.
            BaseException: why it never will.
        """
        if not self.done:
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return cast(A, self._given)

    async def within(self, seconds: float | None) -> A:
        """Wait for the result, at most a number of seconds; raises as `result`."""
        if not self.done:
            loop = asyncio.get_running_loop()
            waiting: asyncio.Future[None] = loop.create_future()
            self._waiting.append(waiting)
            timer = None if seconds is None else loop.call_later(seconds, _wake, waiting)
            try:
                await waiting
            finally:
                self._waiting.remove(waiting)
                if timer is not None:
                    timer.cancel()
        return self.result()


def _wake(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)


class UnansweredQuestions(Generic[A]):
    """Questions of one partition without an answer: which answers belong to them, and which the learner has refused.

    A record of the journal covers a range of the input without a hole, and holds all answers to questions in this
    range. So if a covering record has no answer to a question, its learner refused the question. If a record does not
    cover a question and has an answer with the question's event id, that answer belongs to another question with this
    id: one of another process, for the same user or, against the rule, for another.
    """

    def __init__(self, topic: str) -> None:
        """Begin without questions; they are on this topic."""
        self._topic = topic
        self._low = self._high = -1
        self._offsets: OrderedDict[str, int] = OrderedDict()
        self._early: dict[str, list[tuple[JournalHead, A]]] = {}

    def is_answer(self, event_id: str, head: JournalHead, answer: A) -> bool:
        """Whether an answer with the event id of a question that waits here belongs to that question.

        If the log has not told the question's offset yet, the answer is kept for `early_answer`.
        """
        offset = self._offsets.get(event_id)
        if offset is None:
            self._early.setdefault(event_id, []).append((head, answer))
            return False
        return self._covers(head, offset)

    def early_answer(self, event_id: str, offset: int) -> A | None:
        """Take the answer that came before the question's offset was known, if one did. Call it before `sent`."""
        kept = self._early.pop(event_id, ())
        return next((answer for head, answer in kept if self._covers(head, offset)), None)

    def _covers(self, head: JournalHead, offset: int) -> bool:
        return any(part["topic"] == self._topic and part["low"] <= offset < part["high"] for part in head["inputs"])

    def sent(self, event_id: str, offset: int) -> bool:
        """Note the offset of a question without an answer; returns whether the journal has passed it already."""
        if self._low <= offset < self._high:
            return True
        self._offsets[event_id] = offset
        return False

    def forget(self, event_id: str) -> None:
        """Forget a question that was answered or given up."""
        self._offsets.pop(event_id, None)
        self._early.pop(event_id, None)

    def passed(self, head: JournalHead) -> None:
        """Note the input range that a record on the chain covers; call it after the answers of the record were read."""
        for part in head["inputs"]:
            if part["topic"] == self._topic:
                self._low = self._low if part["low"] == self._high else part["low"]
                self._high = part["high"]

    def take_refused(self) -> list[str]:
        """Remove and return the questions that the journal has passed without an answer."""
        found = []
        while self._offsets:
            event_id, offset = next(iter(self._offsets.items()))
            if offset >= self._high:
                break
            del self._offsets[event_id]
            if offset >= self._low:
                found.append(event_id)
        return found
