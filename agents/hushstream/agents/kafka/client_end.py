"""Bounds how long the stream client may take to end, after a worker has saved and committed everything.

uvloop waits half a minute for a broker to answer the end of a TLS connection, and Apache Kafka sometimes does not
answer. Faust's services wait without limit for tasks that they cancel once, and for their fetch thread while they hold
the event loop. Without a bound, a worker that has drained, saved, committed and left its group would hang until
somebody kills it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

logger = logging.getLogger(__name__)

END_SECONDS = 8.0
"""Much shorter than the half minute that a container has between SIGTERM and SIGKILL, and longer than a normal end: on
a machine with six times the load that it can carry, a clean end took up to 3 s."""

EndInTime = Callable[[BaseException | None], AbstractContextManager[None]]


def wait_for_ever(failure: BaseException | None) -> AbstractContextManager[None]:
    """Set no limit: for a worker that shares its process with others."""
    return nullcontext()


@contextmanager
def exit_if_late(failure: BaseException | None) -> Iterator[None]:
    """End this process if the block takes longer than `END_SECONDS`.

    A thread of its own does that, because the event loop may hang. Nothing is lost: everything was saved before.

    Args:
        failure: why the worker ends; None for a clean end.
    """
    timer = threading.Timer(END_SECONDS, _exit, (failure,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _exit(failure: BaseException | None) -> None:
    logger.warning(
        "the stream client has not ended within %g s: everything is saved and committed, ending without it", END_SECONDS
    )
    if failure is not None:
        print(f"hushstream worker: {failure}", file=sys.stderr)
    if logger.isEnabledFor(logging.DEBUG):
        faulthandler.dump_traceback(all_threads=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if failure is None else 1)


__all__ = ["END_SECONDS", "EndInTime", "exit_if_late", "wait_for_ever"]
