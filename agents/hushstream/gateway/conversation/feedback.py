"""Logs feedback on an event once: if equal feedback comes again, nothing is written; different feedback is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from hushstream.gateway.conversation.remembered import Event
from hushstream.gateway.problems import Problem


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


T = TypeVar("T")


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
