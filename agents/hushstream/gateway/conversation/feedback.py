"""Feedback on events, told once: the same again is taken without another record, something else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from hushstream.gateway.conversation.remembered import Event
from hushstream.gateway.problems import Problem


def logged_event(event: Event, user: str | None) -> Event:
    """An event that feedback may be told of.

    Args:
        event: what is remembered.
        user: who is said to have been asked; None where nobody is named.

    Raises:
        Problem: it is another user's, or its answer is not in the log.
    """
    if user is not None and user != event.user:
        raise Problem("event-conflict")
    if not event.logged:
        raise Problem("not-logged")
    return event


async def tell_once(
    event: Event, kind: str, said: Hashable, tell: Callable[[], Coroutine[None, None, None]], seconds: float
) -> None:
    """Tell one kind of feedback on an event, unless it was told; returns when the log holds it.

    Whoever goes away in between does not take the telling with them.

    Raises:
        Problem: something else was told, or the log does not acknowledge it in time.
        HushstreamError: the client refuses it, or the log does.
    """
    known = event.told.get(kind)
    if known is None:
        telling = asyncio.ensure_future(tell())
        known = event.told[kind] = (said, telling)

        def over(telling: asyncio.Task[None]) -> None:
            # What failed may be told again.
            if telling.cancelled() or telling.exception() is not None:
                del event.told[kind]
            else:
                event.told[kind] = (said, None)

        telling.add_done_callback(over)
    if known[0] != said:
        raise Problem("feedback-conflict")
    if known[1] is not None:
        await in_time(known[1], seconds)


T = TypeVar("T")


async def in_time(asked: asyncio.Task[T] | Coroutine[Any, Any, T], seconds: float, late: str = "log-unavailable") -> T:
    """Wait for the log; what was begun goes on when the time is up, and when whoever waits goes away.

    Raises:
        Problem: it does not end in time; its code is ``late``.
    """
    asking = asyncio.ensure_future(asked)
    asking.add_done_callback(_known)
    await asyncio.wait((asking,), timeout=seconds)
    if not asking.done():
        raise Problem(late)
    return asking.result()


def _known(asking: asyncio.Future[Any]) -> None:
    if not asking.cancelled():
        asking.exception()  # Known to be there, also when nobody waits any more.
