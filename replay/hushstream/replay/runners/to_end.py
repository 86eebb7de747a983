"""Runs a coroutine to its end from synchronous code, also if an event loop is already running, as in a notebook.

A running loop cannot be entered again, and a patch of asyncio that allows this would change the order of other
callbacks. So the coroutine gets a loop in a thread of its own if a loop is running, and the caller waits.

*Many runs.* Plays many runs, in as many processes as there are processors.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor
from dataclasses import replace
from itertools import count
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.client.client import Client
from hushstream.replay.study import Progress
from hushstream.schemas.errors import HushstreamError

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


MODEL_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = (0.005, 0.01, 0.02, 0.05)


async def await_version(
    client: Client, users: dict[int, str], context: NDArray[np.float32], phase: int, answer_seconds: float
) -> None:
    """Request decisions as a user of each partition, and show none of them, until one comes from the new model.

    Args:
        client: of the deployment.
        users: a user's name for each partition.
        context: the context of these requests.
        phase: the model of the phase has a higher version than this.
        answer_seconds: how long one answer may take.

    Raises:
        HushstreamError: the model did not come within `MODEL_TIMEOUT_SECONDS`.
    """
    for partition, user in users.items():
        deadline = time.perf_counter() + MODEL_TIMEOUT_SECONDS
        for poll in count():
            event = f"probe:{phase}:{partition}:{poll}"
            decision = await client.decide(event, user, context, timeout=answer_seconds)
            if decision.model_version > phase:
                break
            if time.perf_counter() > deadline:
                raise HushstreamError(
                    f"phase {phase}: expected its model within {MODEL_TIMEOUT_SECONDS:g} s of the phase's end, got "
                    f"none; are all roles running?"
                )
            await asyncio.sleep(_POLL_SECONDS[min(poll, len(_POLL_SECONDS) - 1)])


R = TypeVar("R")


def play_all(
    play: Callable[[T], R],
    tasks: Iterable[T],
    what: str,
    progress: Progress | None = None,
    processes: int | None = None,
) -> dict[T, R]:
    """Play every task once; the results do not depend on the number of processes.

    Args:
        play: a function at the top level of a module, so that another process can import it.
        tasks: hashable tasks; equal ones are played once.
        what: what is being done, for ``progress``.
        progress: called with (runs done, runs in all, what).
        processes: the largest number of processes; None for one per processor.
    """
    wanted = list(dict.fromkeys(tasks))
    count = min(len(wanted), processes or os.cpu_count() or 1)
    done: dict[T, R] = {}

    def take(task: T, result: R) -> None:
        done[task] = result
        if progress is not None:
            progress(len(done), len(wanted), what)

    if count <= 1:
        with threadpool_limits(limits=1):
            for task in wanted:
                take(task, play(task))
        return done
    # Fresh interpreters: a forked one would share locks with threads of this process.
    with ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_one_thread) as pool:
        for task, result in zip(wanted, pool.map(play, wanted), strict=True):
            take(task, result)
    return done


def play_seeds(
    play: Callable[[Any], R], tasks: Iterable[Any], seeds: Sequence[int], what: str, progress: Progress | None = None
) -> dict[Any, list[R]]:
    """Play every task under each seed; return the results of a task in the order of the seeds.

    Args:
        play, what, progress: as in `play_all`.
        tasks: hashable dataclasses with a field ``seed``.
        seeds: each seed decides a world, the coins of its users, and the keys.
    """
    under = {task: [replace(task, seed=seed) for seed in seeds] for task in tasks}
    found = play_all(play, (one for each in under.values() for one in each), what, progress)
    return {task: [found[one] for one in each] for task, each in under.items()}


def _one_thread() -> None:
    threadpool_limits(limits=1)
