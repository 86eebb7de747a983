"""Runs a coroutine to its end from synchronous code, also if an event loop is already running, as in a notebook.

A running loop cannot be entered again, and a patch of asyncio that allows this would change the order of other
callbacks. So the coroutine gets a loop in a thread of its own if a loop is running, and the caller waits.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_LOOK_FOR_SIGNALS_S = 0.5


def run_to_end(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run the coroutine, and return what it returns.

    Args:
        make: makes the coroutine, in the thread that runs it.

    Raises:
        BaseException: whatever the coroutine raised. An interrupt of the caller cancels it, and is raised once it
            has ended, so that nothing that it started is left behind.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    return _Beside(make).wait()


class _Beside(Generic[T]):
    """Runs a coroutine on a loop in a thread of its own."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
        self._ended: Future[T] = Future()
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="hushstream-run")

    def wait(self) -> T:
        # An interrupt can come as early as the start of the thread: a coroutine that runs is cancelled, another never
        # starts.
        try:
            self._thread.start()
            # Without the timeout, a signal that comes after Python's check and before the wait would be handled only at
            # the end.
            while not concurrent.futures.wait([self._ended], timeout=_LOOK_FOR_SIGNALS_S).done:
                pass
            return self._ended.result()
        except KeyboardInterrupt:
            if not self._ended.cancel():
                self._cancel_and_wait()
            raise

    def _cancel_and_wait(self) -> None:
        either: list[Future[Any]] = [self._started, self._ended]
        concurrent.futures.wait(either, return_when=FIRST_COMPLETED)
        if not self._started.done():
            return
        loop, task = self._started.result()
        with contextlib.suppress(RuntimeError):  # the loop is closed already: the coroutine has ended
            loop.call_soon_threadsafe(task.cancel)
        self._ended.exception()

    def _run(self) -> None:
        if not self._ended.set_running_or_notify_cancel():
            return
        try:
            self._ended.set_result(asyncio.run(self._main()))
        except BaseException as error:  # noqa: BLE001 - raised to the caller, who waits
            self._ended.set_exception(error)

    async def _main(self) -> T:
        task: asyncio.Task[T] | None = asyncio.current_task()
        assert task is not None
        self._started.set_result((asyncio.get_running_loop(), task))
        return await self._make()
