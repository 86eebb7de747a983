"""Plays many runs, in as many processes as there are processors."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from hushstream.replay.progress import Progress

T = TypeVar("T")
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


def _one_thread() -> None:
    threadpool_limits(limits=1)
