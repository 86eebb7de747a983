"""Predictions that are awaited, by the event they are of: several calls may wait for one, which is sent once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from hushstream.client.logs.journals import JournalReader
from hushstream.client.predictions import Prediction, PredictionTimeout, refused_by_worker
from hushstream.client.waiting import PassedOver
from hushstream.engine.declare.requests import UnknownEvent
from hushstream.schemas.errors import HushstreamError


@dataclass(slots=True, eq=False)
class Question:
    """A record on its way, and how many calls wait for its answer: the last one drops it."""

    event_id: str
    user: str
    home: int
    answer: asyncio.Future[Prediction]
    waiters: int = 0
    sent: bool = False


class AwaitedPredictions:
    """What was asked of the homes of one deployment, and what their journals say of it.

    Attributes:
        waiting: questions without an answer that anybody waits for, by event.
    """

    def __init__(self) -> None:
        """Begin where nothing is awaited."""
        self.waiting: dict[str, Question] = {}
        self._readers: dict[int, JournalReader] = {}
        self._passed: dict[int, PassedOver[Prediction]] = {}

    def cancel(self) -> None:
        """No more answers will come: cancel all that is awaited."""
        for question in self.waiting.values():
            question.answer.cancel()
        self.waiting.clear()

    def ask(self, event_id: str, user: str, home: int) -> tuple[Question, bool]:
        """Wait for an answer, until `give_up`; and whether nobody did yet, so that the record is to be sent.

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
        """Send the records that were not sent yet. Where that fails, all who wait for one of them get the error.

        They rely on this call's record, so they would wait until their time is up; and whoever asked again meanwhile
        would send nothing. What the log holds in spite of an error is answered all the same when it is asked for again.
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
            self._passed_over(question.home).settled(question.event_id)
        if not question.answer.done():
            ended = HushstreamError("predict: the call that sent it was ended")
            question.answer.set_exception(error if isinstance(error, Exception) else ended)
            question.answer.exception()  # Known to be there, also where this call alone waited.

    def sent(self, event_id: str, offset: int) -> None:
        """A record is in the log; its answer may be there already, or its refusal."""
        question = self.waiting.get(event_id)
        if question is None:
            return
        question.sent = True
        if question.answer.done():
            return
        passed = self._passed_over(question.home)
        early = passed.early(event_id, offset)
        if early is not None:
            question.answer.set_result(early)
        elif passed.sent(event_id, offset):
            question.answer.set_exception(refused_by_worker())

    async def outcomes(
        self,
        questions: Sequence[Question],
        timeout: float | None,  # noqa: ASYNC109 - as in `Client.decide`
    ) -> list[Prediction | BaseException]:
        """Answers, and why there is none.

        Raises:
            PredictionTimeout: not all came in time.
        """
        answers = (asyncio.shield(question.answer) for question in questions)
        try:
            return list(await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), timeout))
        except TimeoutError:
            what = "an answer" if len(questions) == 1 else f"{len(questions)} answers"
            raise PredictionTimeout(f"predict: expected {what} within {timeout} s, did not get that") from None

    def give_up(self, questions: Iterable[Question]) -> None:
        """One call waits for these no longer."""
        for question in questions:
            question.waiters -= 1
            if not question.waiters and self.waiting.get(question.event_id) is question:
                del self.waiting[question.event_id]
                self._passed_over(question.home).settled(question.event_id)

    def on_prediction(self, partition: int, offset: int, value: bytes) -> None:
        """Take one record of a home's journal."""
        reader = self._readers.setdefault(partition, JournalReader("Predictions"))
        for fields in reader.read(offset, value):
            labels = np.frombuffer(fields["predicted"], np.int8).tolist()
            passed = self._passed_over(partition)
            for event_id, label in zip(fields["event_ids"], labels, strict=True):
                question = self.waiting.get(event_id)
                # An event of this name elsewhere is another user's: only in one partition do its workers see to that.
                if question is None or question.home != partition or question.answer.done():
                    continue
                answer = Prediction(event_id, label, fields["model_version"])
                if passed.takes(event_id, fields["head"], answer):
                    question.answer.set_result(answer)
            passed.covered(fields["head"])
            for event_id in passed.refused():
                question = self.waiting.get(event_id)
                if question is not None and not question.answer.done():
                    question.answer.set_exception(refused_by_worker())

    def _passed_over(self, home: int) -> PassedOver[Prediction]:
        return self._passed.setdefault(home, PassedOver("records"))
