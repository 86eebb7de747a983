"""What a client concludes about the learners of a partition from their journal: whether they work, and what they
passed over without an answer."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Generic, TypeVar, cast

from hushstream.schemas.records import JournalHead

SILENT_SECONDS = 1.0
"""So long a question may lie without any record of the journal before nobody is taken to answer there."""

PROBE_SECONDS = 1.0
"""While nobody answers, one question in this number of seconds is sent; its answer, like any other, closes the
circuit."""


class Circuit:
    """Whether anybody answers on a partition: open while questions lie there and its journal does not grow.

    Any record of the journal that counts closes it, also an answer to somebody else.
    """

    def __init__(self) -> None:
        """Closed: nothing was asked."""
        self._asked_at: float | None = None
        self._probe_at = 0.0

    def on_request(self, now: float) -> None:
        """A question goes out, at a time in seconds on a clock that only goes forward."""
        if self._asked_at is None:
            self._asked_at = now

    def on_answer(self) -> None:
        """The journal grew; or the log refused the question, which says nothing of learners."""
        self._asked_at, self._probe_at = None, 0.0

    def is_open(self, now: float) -> bool:
        """Whether the oldest question since the journal last grew has lain too long."""
        return self._asked_at is not None and now - self._asked_at >= SILENT_SECONDS

    def probes(self, now: float) -> bool:
        """Whether a question is to be sent although it is open; then none is for a while."""
        if now < self._probe_at:
            return False
        self._probe_at = now + PROBE_SECONDS
        return True


A = TypeVar("A")


class Awaited(Generic[A]):
    """What several callers wait for, each as long as it likes; when one goes away the others wait on.

    For one caller it costs a third of `asyncio.wait` for a future.
    """

    __slots__ = ("_error", "_given", "_waiting", "done")

    def __init__(self) -> None:
        """Nothing has come."""
        self._given: A | None = None
        self._error: BaseException | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self.done = False
        """Whether it has come, or never will."""

    def give(self, answer: A) -> None:
        """It has come; what comes later changes nothing."""
        self._end(answer, None)

    def fail(self, error: BaseException) -> None:
        """It will not come."""
        self._end(None, error)

    def _end(self, given: A | None, error: BaseException | None) -> None:
        if self.done:
            return
        self.done, self._given, self._error = True, given, error
        for waiting in self._waiting:
            _wake(waiting)

    def result(self) -> A:
        """What has come.

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
        """Wait for it, at most a number of seconds; raises as `result`."""
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


class PassedOver(Generic[A]):
    """Questions of one partition: which answers are to them, and which the journal has gone past and so refused.

    A record of the journal covers a range of the input without a hole, and answers all in it that is answered at all.
    So an answer under the name of a question is to another one of that name where its record does not cover the
    question: to one that another process has asked, for this user or, against the rule, for another.
    """

    def __init__(self, topic: str) -> None:
        """Of questions on this topic."""
        self._topic = topic
        self._low = self._high = -1
        self._offsets: OrderedDict[str, int] = OrderedDict()
        self._early: dict[str, list[tuple[JournalHead, A]]] = {}

    def takes(self, event_id: str, head: JournalHead, answer: A) -> bool:
        """Whether the answer is to the question of this name that waits here.

        An answer that comes before the log has said where the question is waits for `early`.
        """
        offset = self._offsets.get(event_id)
        if offset is None:
            self._early.setdefault(event_id, []).append((head, answer))
            return False
        return self._covers(head, offset)

    def early(self, event_id: str, offset: int) -> A | None:
        """The answer that came before the log said that the question is at this offset, if one did; before `sent`."""
        kept = self._early.pop(event_id, ())
        return next((answer for head, answer in kept if self._covers(head, offset)), None)

    def _covers(self, head: JournalHead, offset: int) -> bool:
        return any(part["topic"] == self._topic and part["low"] <= offset < part["high"] for part in head["inputs"])

    def sent(self, event_id: str, offset: int) -> bool:
        """Note where a question is that has no answer yet; whether the journal is past it already."""
        if self._low <= offset < self._high:
            return True
        self._offsets[event_id] = offset
        return False

    def settled(self, event_id: str) -> None:
        """A question was answered, or is given up."""
        self._offsets.pop(event_id, None)
        self._early.pop(event_id, None)

    def covered(self, head: JournalHead) -> None:
        """Take in the range that a counted record covers, behind the answers that it holds."""
        for part in head["inputs"]:
            if part["topic"] == self._topic:
                self._low = self._low if part["low"] == self._high else part["low"]
                self._high = part["high"]

    def refused(self) -> list[str]:
        """Take the questions that have been passed over."""
        found = []
        while self._offsets:
            event_id, offset = next(iter(self._offsets.items()))
            if offset >= self._high:
                break
            del self._offsets[event_id]
            if offset >= self._low:
                found.append(event_id)
        return found
