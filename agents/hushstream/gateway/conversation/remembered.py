"""What a gateway remembers of the events that it answered: a repeat gets the same answer, and feedback finds its user.

It is a convenience of one process and no state of the deployment: the log knows each event, and learners count the
first feedback of each kind. A gateway that is started again has forgotten all; feedback that names user and item is
taken all the same.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from hushstream.engine.declare.requests import RequestRefused
from hushstream.gateway.problems import LogBusy, Problem
from hushstream.schemas.errors import HushstreamError


@dataclass(slots=True, eq=False)
class Event:
    """One event.

    Attributes:
        user: whose it is.
        request: stands for what was asked: equal for equal requests.
        expires: when it is forgotten, in seconds on the clock.
        answer: what was answered; None while nothing is.
        logged: whether the answer is in the log.
        told: feedback by its kind: what was said, and the call that says it, None once the log has it.
        slate: all answers of an event that has several in an order, once all of them are in the log.
    """

    user: str
    request: Hashable
    expires: float
    answer: Any = None
    logged: bool = False
    told: dict[str, tuple[Hashable, asyncio.Task[None] | None]] = field(default_factory=dict)
    slate: tuple[Any, ...] | None = None


class Remembered:
    """Events over the wait for their feedback, and no more than so many; the oldest go first.

    Attributes:
        wait_seconds: how long an event is remembered.
    """

    def __init__(self, wait_seconds: float, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Remember nothing yet."""
        self.wait_seconds = wait_seconds
        self._most = most
        self._clock = clock
        # Unlike a dict, it finds its oldest entry at once, however many before it have gone.
        self._events: OrderedDict[str, Event] = OrderedDict()

    def __len__(self) -> int:
        """How many events are remembered."""
        return len(self._events)

    def of(self, event_id: str) -> Event | None:
        """An event that is remembered."""
        found = self._events.get(event_id)
        if found is not None and found.expires <= self._clock():
            del self._events[event_id]
            return None
        return found

    def asked(self, event_id: str, user: str, request: Hashable) -> Event:
        """The event of a request: known, where the same was asked before, else begun.

        Raises:
            Problem: the id stands for another request.
        """
        event = self.of(event_id)
        if event is None:
            return self.begin(event_id, user, request)
        if event.request != request:
            raise Problem("event-conflict")
        return event

    def asking(self, event_id: str, event: Event, *refusals: type[HushstreamError]) -> _Asking:
        """Within it the log is asked; of what is refused nothing is decided, so its id is free for another request.

        Args:
            event_id, event: what is asked under.
            refusals: errors that refuse, beside those of every client.
        """
        return _Asking(self, event_id, event, (RequestRefused, LogBusy, *refusals))

    def begin(self, event_id: str, user: str, request: Hashable) -> Event:
        """Remember that something is asked under this id, which none is remembered of."""
        now = self._clock()
        begun = self._events[event_id] = Event(user, request, now + self.wait_seconds)
        self._drop_old(now)
        return begun

    def forget(self, event_id: str, event: Event) -> None:
        """Nothing came of it: the id is free for another request."""
        if self._events.get(event_id) is event:
            del self._events[event_id]

    def _drop_old(self, now: float) -> None:
        """From the oldest on; events begin in the order of the clock."""
        while self._events:
            oldest = next(iter(self._events.values()))
            if oldest.expires > now and len(self._events) <= self._most:
                return
            self._events.popitem(last=False)


class _Asking:
    """See `Remembered.asking`."""

    __slots__ = ("_event", "_event_id", "_refused", "_remembered")

    def __init__(
        self, remembered: Remembered, event_id: str, event: Event, refused: tuple[type[HushstreamError], ...]
    ) -> None:
        self._remembered, self._event_id, self._event, self._refused = remembered, event_id, event, refused

    def __enter__(self) -> None:
        """Nothing is done before."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, self._refused):
            self._remembered.forget(self._event_id, self._event)
