"""Which event loop a serving process has, how it collects garbage, and how it ends.

*Log lines* of one form come once in an interval, with the number of those left out: otherwise, while no broker
answers, a line for each attempt to connect would fill the disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

logger = logging.getLogger(__name__)

STEP_SECONDS = 1.0

_YOUNG_OBJECTS = 10_000
_MIDDLE_PER_YOUNG = 20
_NEVER = 1 << 30


def use_uvloop() -> None:
    """Make all event loops those of uvloop, if it is installed: Faust's fetch thread makes one of its own."""
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


async def collect_in_steps() -> None:
    """Collect in small steps in place of Python's own full collections, until cancelled.

    Python's full collection visits every object, and a learner has some objects for each decision that waits: with
    140,000 decisions one pause took 250 ms. Here a full collection runs every second and then freezes (`gc.freeze`) all
    objects that it found alive, so that the next one skips them. So each pause depends on what was made within one
    second. A frozen object is freed as usual when its last reference goes. Only a frozen cycle is never freed, and the
    machines make no cycles. A rebalance drops old connections and machines, so it runs one collection of all objects.
    """
    with no_full_collections():
        # Imports leave 60 objects of 150,000 as garbage; to look for them took a tenth of a worker's start.
        while True:
            gc.freeze()
            await asyncio.sleep(STEP_SECONDS)
            gc.collect()


@contextlib.contextmanager
def no_full_collections() -> Iterator[None]:
    """Keep Python from starting a full collection by itself; at the end all frozen objects are unfrozen."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG_OBJECTS, _MIDDLE_PER_YOUNG, _NEVER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def collect_whole() -> None:
    """Collect all objects once, while nothing is folded; does nothing unless `collect_in_steps` runs."""
    if gc.get_freeze_count():
        gc.unfreeze()
        gc.collect()
        gc.freeze()


END_SECONDS = 8.0
"""Much shorter than the half minute that a container has between SIGTERM and SIGKILL, and longer than a normal end: on
a machine with six times the load that it can carry, a clean end took up to 3 s."""

EndInTime = Callable[[BaseException | None, float], AbstractContextManager[None]]


def wait_for_ever(failure: BaseException | None, told_seconds: float) -> AbstractContextManager[None]:
    """Set no limit: for a worker that shares its process with others."""
    return nullcontext()


@contextmanager
def exit_if_late(failure: BaseException | None, told_seconds: float) -> Iterator[None]:
    """End this process if the block, in which the stream client ends, takes longer than `END_SECONDS`.

    Faust's services wait without limit for tasks that they cancel once, and for their fetch thread while they
    hold the event loop. So a worker that has drained, saved and committed would hang until somebody kills it.

    A thread of its own ends the process, because the event loop may hang. Nothing is lost: everything was saved before.

    Args:
        failure: why the worker ends; None for a clean end.
        told_seconds: for so long more a metric must show why; other threads serve it while the event loop hangs.
    """
    timer = threading.Timer(END_SECONDS + told_seconds, _exit, (failure, END_SECONDS + told_seconds))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exit(failure: BaseException | None, seconds: float) -> None:
    logger.warning(
        "the stream client has not ended within %g s: everything is saved and committed, ending without it", seconds
    )
    if failure is not None:
        print(f"hushstream worker: {failure}", file=sys.stderr)
    if logger.isEnabledFor(logging.DEBUG):
        faulthandler.dump_traceback(all_threads=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if failure is None else 1)


INTERVAL_SECONDS = 30.0


class RateLimitedLog:
    """Writes a line of each form at most once in an interval."""

    def __init__(
        self,
        logger: logging.Logger,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to ``logger``."""
        self._logger = logger
        self._interval = interval_seconds
        self._clock = clock
        self._written: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, form: str, *values: object) -> None:
        """Write this warning, unless one of its form was written within the interval."""
        now = self._clock()
        if now - self._written.get(form, -self._interval) < self._interval:
            self._left_out[form] = self._left_out.get(form, 0) + 1
            return
        self._written[form] = now
        left_out = self._left_out.pop(form, 0)
        more = " (%d more since the last such line)" if left_out else ""
        self._logger.warning(form + more, *values, *([left_out] if left_out else []))


class _OncePerInterval(logging.Filter):
    """Lets a warning or error of each form through once in an interval."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        form, now = (record.name, str(record.msg)), time.monotonic()
        if now - self._passed.get(form, -INTERVAL_SECONDS) < INTERVAL_SECONDS:
            return False
        self._passed[form] = now
        return True


_FILTER = _OncePerInterval()


def limit_warnings(library: str) -> None:
    """Keep a library from repeating a warning within the interval; its endless retries would otherwise fill the disk.

    A filter works only for the logger that makes the line, not for its children: so all loggers of the library get one.
    """
    names = [name for name in logging.root.manager.loggerDict if name == library or name.startswith(f"{library}.")]
    for name in (library, *names):
        logging.getLogger(name).addFilter(_FILTER)
