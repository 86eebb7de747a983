"""Limits the requests in progress, and the rate of each caller. Nothing waits in a queue."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from hushstream.gateway.problems import Problem

REMEMBERED_CALLERS = 10_000


class Rate:
    """A token bucket for each caller: it fills at a rate, up to a burst."""

    def __init__(self, per_second: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin with full buckets."""
        self._per_second = per_second
        self._burst = float(burst)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str, requests: int) -> None:
        """Take tokens for a caller's requests.

        Raises:
            Problem: the caller has too few tokens now; none was taken.
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
    """Counts the requests in progress.

    Attributes:
        now: how many requests are in progress.
    """

    def __init__(self, most: int) -> None:
        """Begin without requests."""
        self._most = most
        self.now = 0

    def begin(self, requests: int = 1) -> None:
        """Count further requests, until `end`.

        Raises:
            Problem: too many are in progress. A batch may exceed the limit if there was room for one request.
        """
        if self.now >= self._most:
            raise Problem("too-busy")
        self.now += requests

    def end(self, requests: int = 1) -> None:
        """Note that ``requests`` requests have ended."""
        self.now -= requests
