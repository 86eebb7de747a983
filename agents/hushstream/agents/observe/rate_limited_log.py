"""Limits the rate of log lines: lets one line of each form through per interval, with the number that was left out.

Otherwise, while no broker answers, a line for each attempt to connect would fill the disk.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

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
