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
from typing import Literal, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike

from hushstream.client.decisions import DecisionReader
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.partitioning import partition_of

REMEMBERED_ANSWERS = 10_000
"""How many answers a client keeps, so that a repeated event id gets the same one without asking."""

REMEMBERED_USERS = 200_000
"""For how many users the client keeps the offset of their last click."""

PolicyName = Literal["model", "baseline", "repeated", "timeout"]


class DecisionTimeout(HushstreamError):
    """No decision came in time and the caller gave no baseline arm."""


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

    def __init__(self, log: EventLog, *, line: str = "private") -> None:
        """Work over ``log``; ``line`` names the shared model that new users start from."""
        self._log = log
        self._line = line
        self._readers: dict[int, DecisionReader] = {}
        self._waiting: dict[str, asyncio.Future[Decision]] = {}
        self._users: dict[str, str] = {}
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
        for future in self._waiting.values():
            future.cancel()
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
            event_id: names this decision (1 to 128 characters); the same id always gets the same answer.
            user: the account, as the application authenticates it.
            context: (d,) finite numbers, a normalised histogram.
            eligible: arms that may be shown; None for all.
            baseline: what to show when no answer comes within ``timeout``.
            timeout: seconds; None waits for ever.
            line: the shared model this user starts from, when not the client's default.

        Raises:
            DecisionTimeout: no answer in time and no baseline.
            HushstreamError: the context is not a vector of finite numbers.
        """
        known = self._answers.get(event_id)
        if known is not None:
            return known
        future = self._waiting.get(event_id)
        if future is None:
            future = self._waiting[event_id] = asyncio.get_running_loop().create_future()
            self._users[event_id] = user
            partition = partition_of(user, self._log.partitions())
            try:
                value = self._context(event_id, user, context, eligible, baseline, line)
                await self._log.append("contexts", partition, value)
            except BaseException:
                self._forget(event_id)
                raise
        try:
            return await asyncio.wait_for(asyncio.shield(future), timeout)
        except TimeoutError:
            if baseline is None:
                raise DecisionTimeout(f"decide: no answer within {timeout} s, and no baseline arm was given") from None
            return Decision(event_id, user, baseline, None, "timeout", 0)

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
            await self._log.append("contexts", partition, codec.encode("Seal", fields))

    def _forget(self, event_id: str) -> None:
        """Let a question that never reached the log be asked again."""
        self._users.pop(event_id, None)
        future = self._waiting.pop(event_id, None)
        if future is not None:
            future.cancel()

    def _context(
        self,
        event_id: str,
        user: str,
        context: ArrayLike,
        eligible: Sequence[int] | None,
        baseline: int | None,
        line: str | None,
    ) -> bytes:
        vector = np.asarray(context, dtype="<f4")
        if vector.ndim != 1 or not np.isfinite(vector).all():
            raise HushstreamError(f"context: expected a vector of finite numbers, got shape {vector.shape}")
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
        )

    async def _feedback(self, kind: str, event_id: str, user: str, arm: int, reward: float) -> None:
        partition = partition_of(user, self._log.partitions())
        fields = {"kind": kind, "event_id": event_id, "user": user, "arm": arm, "reward": reward}
        offset = await self._log.append("clicks", partition, codec.encode("Feedback", fields))
        self._last_click[user] = max(offset, self._last_click.get(user, -1))
        self._last_click.move_to_end(user)
        if len(self._last_click) > REMEMBERED_USERS:
            self._last_click.popitem(last=False)
        self._last_click_of_partition[partition] = max(offset, self._last_click_of_partition.get(partition, -1))

    def _on_decisions(self, partition: int, offset: int, value: bytes) -> None:
        reader = self._readers.setdefault(partition, DecisionReader())
        for answer in reader.read(value):
            future = self._waiting.pop(answer.event_id, None)
            user = self._users.pop(answer.event_id, None)
            if future is None or user is None:
                continue
            decision = Decision(
                answer.event_id, user, answer.arm, answer.propensity, answer.policy, answer.model_version
            )
            self._answers[answer.event_id] = decision
            if len(self._answers) > REMEMBERED_ANSWERS:
                self._answers.popitem(last=False)
            if not future.done():
                future.set_result(decision)


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
