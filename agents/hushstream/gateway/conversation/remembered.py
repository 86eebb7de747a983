"""Remembers the events that a gateway answered: a repeat gets the same answer, and feedback finds its user.

This is a convenience of one process, and no state of the deployment: the log knows each event, and learners count the
first feedback of each kind. After a restart the gateway has forgotten all events; it still accepts feedback that names
user and item.

*Feedback.* Logs feedback on an event once: if equal feedback comes again, nothing is written; different feedback is
refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from hushstream.engine.declare.requests import RequestRefused
from hushstream.gateway.problems import LogBusy, Problem
from hushstream.schemas.errors import HushstreamError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Event:
    """One event.

    Attributes:
        user: the user of the event.
        request: a value that is equal for equal requests.
        expires: when the event is forgotten, in seconds on the clock.
        answer: the answer; None while there is none.
        logged: whether the answer is in the log.
        feedback: the feedback by kind: its content, and the task that sends it (None when the log has it).
        slate: the ordered answers of an event that has several, when all of them are in the log.
    """

    user: str
    request: Hashable
    expires: float
    answer: Any = None
    logged: bool = False
    feedback: dict[str, tuple[Hashable, asyncio.Task[None] | None]] = field(default_factory=dict)
    slate: tuple[Any, ...] | None = None


class Remembered:
    """Keeps events as long as their feedback may come, up to a number of events; the oldest are dropped first.

    Attributes:
        wait_seconds: how long an event is remembered.
    """

    def __init__(self, wait_seconds: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without events; keep at most ``most`` of them."""
        self.wait_seconds = wait_seconds
        self._most = most
        self._clock = clock
        # Unlike a dict, it finds its oldest entry quickly even after many earlier ones were deleted.
        self._events: OrderedDict[str, Event] = OrderedDict()

    def __len__(self) -> int:
        """How many events are remembered."""
        return len(self._events)

    def of(self, event_id: str) -> Event | None:
        """A remembered event; None if it is unknown or has expired."""
        found = self._events.get(event_id)
        if found is not None and found.expires <= self._clock():
            del self._events[event_id]
            return None
        return found

    def event(self, event_id: str, user: str, request: Hashable) -> Event:
        """The event of a request: the remembered one if the same request came before, otherwise a new one.

        Raises:
            Problem: the id was used for another request.
        """
        event = self.of(event_id)
        if event is None:
            return self.begin(event_id, user, request)
        if event.request != request:
            raise Problem("event-conflict")
        return event

    async def answer(self, event_id: str, event: Event, asked: Awaitable[T], *refusals: type[HushstreamError]) -> T:
        """Wait for the client's answer; after a refusal the id is free for another request.

        Args:
            event_id, event: the event of the request.
            asked: the client's call.
            refusals: further error types that mean a refusal, besides those of every client.
        """
        try:
            return await asked
        except HushstreamError as error:
            if isinstance(error, (RequestRefused, LogBusy, *refusals)):
                self.forget(event_id, event)
            raise

    def begin(self, event_id: str, user: str, request: Hashable) -> Event:
        """Remember a new event under an id that is not remembered."""
        now = self._clock()
        begun = self._events[event_id] = Event(user, request, now + self.wait_seconds)
        self._drop_old(now)
        return begun

    def forget(self, event_id: str, event: Event) -> None:
        """Forget an event without an answer, so that its id is free for another request."""
        if self._events.get(event_id) is event:
            del self._events[event_id]

    def _drop_old(self, now: float) -> None:
        """Drop expired and surplus events, the oldest first; they are in the order of the clock."""
        while self._events:
            oldest = next(iter(self._events.values()))
            if oldest.expires > now and len(self._events) <= self._most:
                return
            self._events.popitem(last=False)


def logged_event(event: Event, user: str | None) -> Event:
    """Check that an event accepts feedback, and return it.

    Args:
        event: the remembered event.
        user: the user that the feedback names; None if it names nobody.

    Raises:
        Problem: the event is another user's, or its answer is not in the log.
    """
    if user is not None and user != event.user:
        raise Problem("event-conflict")
    if not event.logged:
        raise Problem("not-logged")
    return event


async def log_once(
    event: Event, kind: str, content: Hashable, send: Callable[[], Coroutine[None, None, None]], seconds: float
) -> None:
    """Send one kind of feedback on an event, unless it was sent before; returns when the log holds it.

    If the caller disconnects in the meantime, the feedback is still sent.

    Raises:
        Problem: different feedback of this kind was sent before, or the log does not acknowledge it in time.
        HushstreamError: the client or the log refuses it.
    """
    known = event.feedback.get(kind)
    if known is None:
        sending = asyncio.ensure_future(send())
        known = event.feedback[kind] = (content, sending)

        def on_done(sending: asyncio.Task[None]) -> None:
            # After a failure the same feedback may be sent again.
            if sending.cancelled() or sending.exception() is not None:
                del event.feedback[kind]
            else:
                event.feedback[kind] = (content, None)

        sending.add_done_callback(on_done)
    if known[0] != content:
        raise Problem("feedback-conflict")
    if known[1] is not None:
        await in_time(known[1], seconds)


async def in_time(asked: asyncio.Task[T] | Coroutine[Any, Any, T], seconds: float, late: str = "log-unavailable") -> T:
    """Wait for a task of the log. The task goes on after the timeout, and after the caller has disconnected.

    Raises:
        Problem: the task does not end in time; the code is ``late``.
    """
    asking = asyncio.ensure_future(asked)
    asking.add_done_callback(_known)
    await asyncio.wait((asking,), timeout=seconds)
    if not asking.done():
        raise Problem(late)
    return asking.result()


def _known(asking: asyncio.Future[Any]) -> None:
    if not asking.cancelled():
        asking.exception()  # Marks it as retrieved: else asyncio logs an error if nobody waits any more.
