"""The client's logic, over any log: a context goes out, its decision comes back, shown and reward follow.

The client applies the chain rule of the decisions journal, so that what a worker wrote after it had lost its
partition is never taken for an answer. It remembers the offset of each user's last acknowledged click and
sends it with the next context: the learner then decides only after it has learned from that click.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hushstream.client.decisions import DecisionReader
from hushstream.schemas import codec
from hushstream.schemas.catalogue import FIRST_EDITION
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.rows import MAX_ID_BYTES, id_fault

REMEMBERED_ANSWERS = 10_000
"""How many answers a client keeps, so that a repeated event id gets the same one without asking; and how many
questions that nobody waits for any more."""

REMEMBERED_USERS = 200_000
"""For how many users the client keeps the offset of their last click."""

PolicyName = Literal["model", "baseline", "repeated", "timeout"]


_UNANSWERED = (
    "no learner runs, it is behind, or it refused the context (another length than the configuration's, a histogram "
    "that does not sum to 1, a user outside the graph): `hushstream dead-letters list edge` tells what is refused"
)


class DecisionTimeout(HushstreamError):
    """No decision came in time and the caller gave no baseline arm.

    A refused context has no answer at all: the client cannot tell it from a late one, the dead letters can.
    """


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer.

    Attributes:
        event_id: the application's name for the decision.
        user: whose decision it is.
        arm: the arm to show.
        propensity: probability with which this arm was chosen, in units of 1e-9; None where it is not known.
        policy: "model", "repeated" (this event id had been decided before) or "timeout" (``arm`` is the
            baseline: the worker did not answer in time).
        model_version: version of the shared model under the user's learner; 0 for none.
    """

    event_id: str
    user: str
    arm: int
    propensity: int | None
    policy: PolicyName
    model_version: int


class _Question(NamedTuple):
    """A context on its way: whose it is, and where its answer will be."""

    user: str
    answer: asyncio.Future[Decision]


class EventLog(Protocol):
    """What the client needs of a log: acknowledged appends, and the decisions as they come."""

    async def start(self, on_decisions: Callable[[int, int, bytes], None]) -> None:
        """Begin to deliver decision records: ``on_decisions(partition, offset, value)`` in log order."""

    async def append(self, topic: str, partition: int, value: bytes) -> int:
        """Append and return the offset once the log has acknowledged it."""

    def partitions(self) -> int:
        """Partition count of contexts, clicks and decisions."""

    async def stop(self) -> None:
        """Flush and close."""


class Client:
    """Ask for decisions and report what came of them. One instance serves many users concurrently.

    Use as an async context manager; `hushstream.client.connect` makes one on a Kafka, `SyncClient` is the
    same for code without an event loop.
    """

    def __init__(self, log: EventLog, *, line: str = "private", edition: int = FIRST_EDITION) -> None:
        """Work over a log.

        Args:
            log: where records go, and decisions come from.
            line: the shared model that new users start from.
            edition: in which records are written (`hushstream.schemas.catalogue`).

        Raises:
            HushstreamError: this release does not know the edition.
        """
        self._log = log
        self._line = line
        self._edition = codec.require_edition(edition)
        self._readers: dict[int, DecisionReader] = {}
        self._waiting: dict[str, _Question] = {}
        self._overdue: OrderedDict[str, None] = OrderedDict()
        self._sending: set[asyncio.Task[None]] = set()
        self._answers: OrderedDict[str, Decision] = OrderedDict()
        self._last_click: OrderedDict[str, int] = OrderedDict()
        self._last_click_of_partition: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        """Start reading decisions."""
        await self._log.start(self._on_decisions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Flush and close; decisions that are still awaited are cancelled."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        for question in self._waiting.values():
            question.answer.cancel()
        self._waiting.clear()
        await self._log.stop()

    async def decide(
        self,
        event_id: str,
        user: str,
        context: ArrayLike,
        eligible: Sequence[int] | None = None,
        baseline: int | None = None,
        timeout: float | None = 5.0,  # noqa: ASYNC109 - the timeout has a meaning of its own: the baseline
        line: str | None = None,
    ) -> Decision:
        """Ask which arm to show.

        Args:
            event_id: names this decision (1 to 128 bytes of UTF-8); the same id always gets the same answer. A
                timeout is no answer: who asks again later may get the learner's.
            user: the account, as the application authenticates it; where users are those of a public graph, one of
                them.
            context: finite numbers, as many as the configuration says; the learner refuses any other length. One
                context for all arms: (d,), a histogram that sums to 1, d being ``context.dimension``. Features of each
                arm: (arms * d,), d being ``features.dimension``: row a of the (arms, d) matrix is the features of arm
                a, row after row; where fewer arms are shown, the other rows are there too (as zeros) and ``eligible``
                names those shown.
            eligible: arms that may be shown, numbered from 0; None for all.
            baseline: what to show when no answer comes within ``timeout``.
            timeout: seconds; None waits for ever.
            line: the shared model this user starts from, when not the client's default.

        Raises:
            DecisionTimeout: no answer in time and no baseline.
            HushstreamError: the context is not a vector of finite numbers, an argument is impossible, the event
                id is another user's, or the log refused the record.
        """
        known = self._answers.get(event_id)
        if known is not None:
            _require_user(known.user, user)
            return known
        question = self._waiting.get(event_id)
        if question is None:
            value = self._context(event_id, user, context, eligible, baseline, line)
            question = self._ask(event_id, user, value)
        _require_user(question.user, user)
        try:
            return await asyncio.wait_for(asyncio.shield(question.answer), timeout)
        except TimeoutError:
            if baseline is None:
                raise DecisionTimeout(
                    f"decide: expected an answer within {timeout} s, got none and no baseline arm was given; "
                    f"{_UNANSWERED}"
                ) from None
            return Decision(event_id, user, baseline, None, "timeout", 0)
        finally:
            if not question.answer.done():
                self._note_overdue(event_id)

    async def shown(self, event_id: str, user: str, arm: int) -> None:
        """Report that ``arm`` was on screen for this event; returns when the log holds it."""
        await self._feedback("shown", event_id, user, arm, 0.0)

    async def reward(self, event_id: str, user: str, arm: int, reward: float) -> None:
        """Report the reward in [0, 1] of the arm that was on screen; returns when the log holds it.

        Raises:
            HushstreamError: the reward is not a number in [0, 1].
        """
        if not 0.0 <= reward <= 1.0:
            raise HushstreamError(f"reward: expected a number in [0, 1], got {reward!r}")
        await self._feedback("reward", event_id, user, arm, float(reward))

    async def seal(self, phase: int) -> None:
        """End a phase (a public event): every due slot is sent and every open window closes.

        Sent to all partitions, behind everything this client has had acknowledged.
        """
        for partition in range(self._log.partitions()):
            after = self._last_click_of_partition.get(partition, -1)
            fields = {"phase": phase, "origin": -1, "config_digest": bytes(16), "after_click": after}
            await self._log.append("contexts", partition, codec.encode("Seal", fields, self._edition))

    def _ask(self, event_id: str, user: str, value: bytes) -> _Question:
        """Send a context; the sending has no part in the caller's timeout, so it is a task of its own."""
        question = self._waiting[event_id] = _Question(user, asyncio.get_running_loop().create_future())
        task = asyncio.create_task(self._send(event_id, question, value))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return question

    async def _send(self, event_id: str, question: _Question, value: bytes) -> None:
        partition = partition_of(question.user, self._log.partitions())
        try:
            await self._log.append("contexts", partition, value)
        except Exception as error:  # noqa: BLE001 - handed to whoever waits for the answer
            # It never reached the log: it may be asked again.
            self._drop(event_id)
            if not question.answer.done():
                question.answer.set_exception(error)
                question.answer.exception()  # Known to be there, also when nobody waits any more.

    def _note_overdue(self, event_id: str) -> None:
        """Keep a question that nobody waits for, but not for ever: it may have been refused."""
        self._overdue[event_id] = None
        self._overdue.move_to_end(event_id)
        if len(self._overdue) > REMEMBERED_ANSWERS:
            self._drop(next(iter(self._overdue)))

    def _drop(self, event_id: str) -> None:
        self._overdue.pop(event_id, None)
        self._waiting.pop(event_id, None)

    def _context(
        self,
        event_id: str,
        user: str,
        context: ArrayLike,
        eligible: Sequence[int] | None,
        baseline: int | None,
        line: str | None,
    ) -> bytes:
        for name, text in (("event_id", event_id), ("user", user)):
            _require_id(name, text)
        if baseline is not None and (baseline < 0 or (eligible is not None and baseline not in eligible)):
            raise HushstreamError("baseline: expected one of the eligible arms, numbered from 0")
        vector = _vector(context)
        return codec.encode(
            "Context",
            {
                "event_id": event_id,
                "user": user,
                "line": self._line if line is None else line,
                "context": vector.tobytes(),
                "eligible": _mask(eligible),
                "baseline": -1 if baseline is None else baseline,
                "after_click": self._last_click.get(user, -1),
            },
            self._edition,
        )

    async def _feedback(self, kind: str, event_id: str, user: str, arm: int, reward: float) -> None:
        partition = partition_of(user, self._log.partitions())
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        offset = await self._log.append("clicks", partition, codec.encode("Feedback", fields, self._edition))
        self._last_click[user] = max(offset, self._last_click.get(user, -1))
        self._last_click.move_to_end(user)
        if len(self._last_click) > REMEMBERED_USERS:
            self._last_click.popitem(last=False)
        self._last_click_of_partition[partition] = max(offset, self._last_click_of_partition.get(partition, -1))

    def _on_decisions(self, partition: int, offset: int, value: bytes) -> None:
        reader = self._readers.setdefault(partition, DecisionReader())
        for answer in reader.read(offset, value):
            question = self._waiting.get(answer.event_id)
            if question is None:
                continue
            self._drop(answer.event_id)
            decision = Decision(
                answer.event_id, question.user, answer.arm, answer.propensity, answer.policy, answer.model_version
            )
            self._answers[answer.event_id] = decision
            if len(self._answers) > REMEMBERED_ANSWERS:
                self._answers.popitem(last=False)
            if not question.answer.done():
                question.answer.set_result(decision)


def _vector(context: ArrayLike) -> NDArray[np.float32]:
    try:
        # What is beyond float32 becomes infinite, and is refused as that.
        with np.errstate(over="ignore"):
            vector = np.asarray(context, dtype="<f4")
    except (TypeError, ValueError):
        raise HushstreamError("context: expected a vector of numbers, got something else") from None
    if vector.ndim != 1 or not np.isfinite(vector).all():
        raise HushstreamError(f"context: expected a vector of finite numbers, got shape {vector.shape}")
    return vector


def _require_id(name: str, text: str) -> None:
    if id_fault(text) is not None:
        raise HushstreamError(f"{name}: expected 1 to {MAX_ID_BYTES} bytes, got {len(text.encode())}")


def _require_user(known: str, user: str) -> None:
    # The arm tells of the clicks of the user whose it is: nobody else may have it.
    if known != user:
        raise HushstreamError("event_id: expected one of this user's or a new one, got another user's")


def _mask(eligible: Sequence[int] | None) -> bytes:
    """Bit a of byte a // 8 stands for arm a; no bytes stand for all arms."""
    if eligible is None:
        return b""
    if not len(eligible) or min(eligible) < 0:
        raise HushstreamError("eligible: expected at least one arm, numbered from 0; leave it out for all arms")
    mask = bytearray(max(eligible) // 8 + 1)
    for arm in eligible:
        mask[arm // 8] |= 1 << (arm % 8)
    return bytes(mask)
