"""How much a gateway takes: requests under way, and of each caller so many a second. Nothing waits in a queue."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from hushstream.gateway.problems import Problem

REMEMBERED_CALLERS = 10_000


class Rate:
    """A bucket of tokens for each caller: it fills at a rate, up to a burst."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """All buckets are full."""
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, requests: int) -> None:
        """Let a caller ask so much.

        Raises:
            Problem: it is more than the caller may ask now; nothing was taken.
        """
        now = self._clock()
        left, at = self._buckets.pop(caller, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_second)
        enough = left >= requests
        self._buckets[caller] = (left - requests if enough else left, now)
        if len(self._buckets) > REMEMBERED_CALLERS:
            self._buckets.popitem(last=False)
        if not enough:
            raise Problem("too-many-requests")


class Busy:
    """Counts requests under way.

    Attributes:
        now: how many there are.
    """

    def __init__(self, most: int) -> None:
        """Nothing is under way."""
        self._most = most
        self.now = 0

    def begin(self, requests: int = 1) -> None:
        """Some more are, until `end`.

        Raises:
            Problem: there are as many as may be; one batch may go beyond that, where there was room for one request.
        """
        if self.now >= self._most:
            raise Problem("too-busy")
        self.now += requests

    def end(self, requests: int = 1) -> None:
        """So many that began have ended."""
        self.now -= requests
