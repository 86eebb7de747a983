"""Running a coroutine to its end from code without one, also where an event loop runs already, as in a notebook.

A loop cannot be entered twice, and patching asyncio so that it can changes the order of everybody else's callbacks. So
beside a running loop the coroutine gets a loop and a thread of its own, and the caller waits, as for any other call.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

T = TypeVar("T")


def run_to_end(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What the coroutine returns.

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
    """A coroutine on a loop and a thread of its own."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._make = make
        self._started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = Future()
        self._ended: Future[T] = Future()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="hushstream-run").start()

    def wait(self) -> T:
        try:
            return self._ended.result()
        except KeyboardInterrupt:
            if not self._ended.done():
                loop, task = self._started.result()
                loop.call_soon_threadsafe(task.cancel)
                self._ended.exception()
            raise

    def _run(self) -> None:
        try:
            self._ended.set_result(asyncio.run(self._main()))
        except BaseException as error:  # noqa: BLE001 - raised to the caller, who waits
            self._ended.set_exception(error)

    async def _main(self) -> T:
        task = asyncio.ensure_future(self._make())
        self._started.set_result((asyncio.get_running_loop(), task))
        return await task
