"""What a client concludes from a partition's journal: whether a learner answers there, and which questions it has
refused.

*Predictions.* Questions whose answers come from a journal of predictions. Several calls may wait for the same question,
which is sent once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from hushstream.client.decisions import JournalReader
from hushstream.engine.declare.requests import RequestRefused, UnknownEvent
from hushstream.schemas.errors import HushstreamError
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


class PredictionTimeout(HushstreamError):
    """No prediction came in time; the dead letters of the edge zone tell what was refused."""


@dataclass(slots=True, eq=False)
class Question(Generic[A]):
    """A question that was sent, and the number of calls that wait for its answer; the last of these calls forgets it.

    Attributes:
        event_id: the application's name for it.
        asked: who asks, and what; equal for equal questions.
        home: the home partition that answers.
    """

    event_id: str
    asked: Hashable
    home: int
    answer: asyncio.Future[A]
    waiters: int = 0
    sent: bool = False


class AwaitedAnswers(Generic[A]):
    """Questions to the home partitions of one deployment, and the answers in their journals.

    Attributes:
        waiting: questions without an answer, by event.
    """

    def __init__(
        self, topic: str, schema: str, answers: Callable[[Mapping[str, Any]], Iterable[tuple[str, A]]], worker: str
    ) -> None:
        """Begin without questions.

        Args:
            topic: the topic of the questions.
            schema: that of the journals' records with answers.
            answers: gives the answers in the fields of such a record, by event.
            worker: who answers, for messages.
        """
        self.waiting: dict[str, Question[A]] = {}
        self._topic, self._schema, self._answers, self._worker = topic, schema, answers, worker
        self._readers: dict[int, JournalReader] = {}
        self._unanswered_by_home: dict[int, UnansweredQuestions[A]] = {}

    def cancel(self) -> None:
        """Cancel all questions, because no more answers will come."""
        for question in self.waiting.values():
            question.answer.cancel()
        self.waiting.clear()

    async def answer(
        self,
        event_id: str,
        asked: Hashable,
        home: int,
        send: Callable[[], Awaitable[int]],
        timeout: float | None,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> A:
        """Send a question, unless an equal one waits, and wait for its answer; raises as `ask`, `sending`, `outcomes`.

        Args:
            event_id, asked, home: see `Question`.
            send: appends it, and gives its offset.
            timeout: seconds; None waits for ever.
        """
        question, fresh = self.ask(event_id, asked, home)
        try:
            if fresh:
                with self.sending([question]):
                    self.sent(event_id, await send())
            (found,) = await self.outcomes([question], timeout)
        finally:
            self.give_up([question])
        if isinstance(found, BaseException):
            raise found
        return found

    def ask(self, event_id: str, asked: Hashable, home: int) -> tuple[Question[A], bool]:
        """Register a call that waits for an answer until `give_up`; also returns whether it must send the question.

        Raises:
            UnknownEvent: the event is that of another question.
        """
        question = self.waiting.get(event_id)
        fresh = question is None
        if question is None:
            question = Question(event_id, asked, home, asyncio.get_running_loop().create_future())
            self.waiting[event_id] = question
        elif (question.asked, question.home) != (asked, home):
            raise UnknownEvent("event_id: expected a new one, or that of an equal question, got another's")
        question.waiters += 1
        return question, fresh

    @contextmanager
    def sending(self, questions: Sequence[Question[A]]) -> Iterator[None]:
        """Send the questions that were not sent yet.

        If that fails, all calls that wait for one of them get the error, because they rely on this call's record and
        would wait until their timeout. If a record is in the log in spite of an error, a repeated question gets its
        answer.
        """
        try:
            yield
        except BaseException as error:
            for question in questions:
                if not question.sent:
                    self._unsent(question, error)
            raise

    def _unsent(self, question: Question[A], error: BaseException) -> None:
        self._forget(question)
        if not question.answer.done():
            ended = HushstreamError("predict: the call that sent it was ended")
            question.answer.set_exception(error if isinstance(error, Exception) else ended)
            question.answer.exception()  # Marks it as retrieved: else asyncio logs an error if nobody else waits.

    def sent(self, event_id: str, offset: int) -> None:
        """Note that a question is in the log; its answer or its refusal may have come before."""
        question = self.waiting.get(event_id)
        if question is None:
            return
        question.sent = True
        if question.answer.done():
            return
        unanswered = self._unanswered(question.home)
        early = unanswered.early_answer(event_id, offset)
        if early is not None:
            question.answer.set_result(early)
        elif unanswered.sent(event_id, offset):
            question.answer.set_exception(self._refused())

    async def outcomes(
        self,
        questions: Sequence[Question[A]],
        timeout: float | None,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> list[A | BaseException]:
        """Wait for the outcome of each question: its answer, or the error that says why there is none.

        Raises:
            PredictionTimeout: at least one outcome did not come in time.
        """
        answers = (asyncio.shield(question.answer) for question in questions)
        try:
            return list(await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), timeout))
        except TimeoutError:
            what = "an answer" if len(questions) == 1 else f"{len(questions)} answers"
            raise PredictionTimeout(f"predict: expected {what} within {timeout} s, did not get that") from None

    def give_up(self, questions: Iterable[Question[A]]) -> None:
        """One call no longer waits for these events."""
        for question in questions:
            question.waiters -= 1
            if not question.waiters:
                self._forget(question)

    def _forget(self, question: Question[A]) -> None:
        if self.waiting.get(question.event_id) is question:
            del self.waiting[question.event_id]
            self._unanswered(question.home).forget(question.event_id)

    def on_record(self, partition: int, offset: int, value: bytes) -> None:
        """Process one record of a home partition's journal."""
        reader = self._readers.setdefault(partition, JournalReader(self._schema))
        for fields in reader.read(offset, value):
            unanswered = self._unanswered(partition)
            for event_id, answer in self._answers(fields):
                question = self.waiting.get(event_id)
                # Another partition may hold the same event id, of another user: workers keep ids unique within a
                # partition only.
                if question is None or question.home != partition or question.answer.done():
                    continue
                if unanswered.is_answer(event_id, fields["head"], answer):
                    question.answer.set_result(answer)
            unanswered.passed(fields["head"])
            for event_id in unanswered.take_refused():
                question = self.waiting.get(event_id)
                if question is not None and not question.answer.done():
                    question.answer.set_exception(self._refused())

    def _refused(self) -> RequestRefused:
        return RequestRefused(f"predict: {self._worker} refused it; `hushstream dead-letters list edge` tells why")

    def _unanswered(self, home: int) -> UnansweredQuestions[A]:
        return self._unanswered_by_home.setdefault(home, UnansweredQuestions(self._topic))
