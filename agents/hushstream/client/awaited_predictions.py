"""Predictions that calls wait for, by event. Several calls may wait for the same event, which is sent once.

*Predictions.* The possible results of a request for a prediction: an answer, a refusal, or a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hushstream.client.decisions import JournalReader
from hushstream.client.waiting import UnansweredQuestions
from hushstream.engine.declare.requests import RequestRefused, UnknownEvent
from hushstream.schemas.errors import HushstreamError


class PredictionTimeout(HushstreamError):
    """No prediction came in time; the dead letters of the edge zone tell what was refused."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """An answer.

    Attributes:
        event_id: the application's name for the record.
        label: 1 or -1; 0 if the node's worker found that the record breaks a bound.
        model_version: of the published model; 0 for none.
    """

    event_id: str
    label: int
    model_version: int


@dataclass(frozen=True, slots=True)
class RefusedRecord:
    """A record or label that was refused; it takes the place of the answer when a call sends many at once.

    Attributes:
        event_id: the application's name for the record.
        error: the error that `RecordClient.predict` or `RecordClient.label` would raise for this record alone.
    """

    event_id: str
    error: HushstreamError


def outcome_of(event_id: str, outcome: Prediction | BaseException) -> Prediction | RefusedRecord:
    """The result for one of many records: its answer, or why it has none. Any other error is raised."""
    if isinstance(outcome, HushstreamError):
        return RefusedRecord(event_id, outcome)
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def refused_by_worker() -> RequestRefused:
    """The error for a record that a worker refused."""
    return RequestRefused("predict: the worker refused the record; `hushstream dead-letters list edge` tells why")


@dataclass(slots=True, eq=False)
class Question:
    """A record that was sent, and the number of calls that wait for its answer; the last of these calls forgets it."""

    event_id: str
    user: str
    home: int
    answer: asyncio.Future[Prediction]
    waiters: int = 0
    sent: bool = False


class AwaitedPredictions:
    """Questions to the home partitions of one deployment, and the answers in their journals.

    Attributes:
        waiting: questions without an answer, by event.
    """

    def __init__(self) -> None:
        """Begin without questions."""
        self.waiting: dict[str, Question] = {}
        self._readers: dict[int, JournalReader] = {}
        self._unanswered_by_home: dict[int, UnansweredQuestions[Prediction]] = {}

    def cancel(self) -> None:
        """Cancel all questions, because no more answers will come."""
        for question in self.waiting.values():
            question.answer.cancel()
        self.waiting.clear()

    def ask(self, event_id: str, user: str, home: int) -> tuple[Question, bool]:
        """Register a call that waits for an answer until `give_up`; also returns whether it must send the record.

        Raises:
            UnknownEvent: the event is another user's.
        """
        question = self.waiting.get(event_id)
        fresh = question is None
        if question is None:
            question = Question(event_id, user, home, asyncio.get_running_loop().create_future())
            self.waiting[event_id] = question
        elif (question.user, question.home) != (user, home):
            raise UnknownEvent("event_id: expected one of this user's or a new one, got another user's")
        question.waiters += 1
        return question, fresh

    @contextmanager
    def sending(self, questions: Sequence[Question]) -> Iterator[None]:
        """Send the records that were not sent yet.

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

    def _unsent(self, question: Question, error: BaseException) -> None:
        if self.waiting.get(question.event_id) is question:
            del self.waiting[question.event_id]
            self._unanswered(question.home).forget(question.event_id)
        if not question.answer.done():
            ended = HushstreamError("predict: the call that sent it was ended")
            question.answer.set_exception(error if isinstance(error, Exception) else ended)
            question.answer.exception()  # Marks it as retrieved: else asyncio logs an error if nobody else waits.

    def sent(self, event_id: str, offset: int) -> None:
        """Note that a record is in the log; its answer or its refusal may have come before."""
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
            question.answer.set_exception(refused_by_worker())

    async def outcomes(
        self,
        questions: Sequence[Question],
        timeout: float | None,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> list[Prediction | BaseException]:
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

    def give_up(self, questions: Iterable[Question]) -> None:
        """One call no longer waits for these events."""
        for question in questions:
            question.waiters -= 1
            if not question.waiters and self.waiting.get(question.event_id) is question:
                del self.waiting[question.event_id]
                self._unanswered(question.home).forget(question.event_id)

    def on_prediction(self, partition: int, offset: int, value: bytes) -> None:
        """Process one record of a home partition's journal."""
        reader = self._readers.setdefault(partition, JournalReader("Predictions"))
        for fields in reader.read(offset, value):
            labels = np.frombuffer(fields["predicted"], np.int8).tolist()
            unanswered = self._unanswered(partition)
            for event_id, label in zip(fields["event_ids"], labels, strict=True):
                question = self.waiting.get(event_id)
                # Another partition may hold the same event id, of another user: workers keep ids unique within a
                # partition only.
                if question is None or question.home != partition or question.answer.done():
                    continue
                answer = Prediction(event_id, label, fields["model_version"])
                if unanswered.is_answer(event_id, fields["head"], answer):
                    question.answer.set_result(answer)
            unanswered.passed(fields["head"])
            for event_id in unanswered.take_refused():
                question = self.waiting.get(event_id)
                if question is not None and not question.answer.done():
                    question.answer.set_exception(refused_by_worker())

    def _unanswered(self, home: int) -> UnansweredQuestions[Prediction]:
        return self._unanswered_by_home.setdefault(home, UnansweredQuestions("records"))
