"""How long a test waits before it gives up: as long as on an idle machine, times how busy this one is."""

from __future__ import annotations

import os
import time


def load() -> float:
    """Processes that want to run, for each processor; at least 1, and at most 10, so that what hangs ends."""
    return min(10.0, max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


def patience(seconds: float) -> float:
    """What ``seconds`` of an idle machine are here and now."""
    return seconds * load()


class Patience:
    """A wait that began when this was made; the load may rise while it lasts."""

    def __init__(self, seconds: float) -> None:
        """Begin.

        Args:
            seconds: that are enough on an idle machine.
        """
        self._begun, self._seconds = time.monotonic(), seconds

    @property
    def over(self) -> bool:
        """Whether what is waited for will not come."""
        return time.monotonic() - self._begun > patience(self._seconds)
