"""Telling whoever waits how far a long reading of logs has come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[int, int, str], None]
"""Told (done, in all, what is going on)."""

_TIMES_TOLD = 500


def unreported(_done: int, _total: int, _what: str) -> None:
    """Nobody waits."""


@dataclass(slots=True)
class Steps:
    """Counts what is done, and tells it some hundreds of times in all, however much there is.

    Attributes:
        told: who is told.
        total: how much there is in all.
        what: is going on.
        done: so far.
    """

    told: Progress
    total: int
    what: str
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Say what begins."""
        self.told(0, self.total, self.what)

    def up_to(self, done: int) -> None:
        """So many are done in all, or need not be done."""
        if done > self.done:
            self.step(done - self.done)

    def step(self, count: int = 1) -> None:
        """So many more are done."""
        often = max(1, self.total // _TIMES_TOLD)
        before, self.done = self.done, self.done + count
        if self.done // often > before // often or self.done == self.total:
            self.told(self.done, self.total, self.what)
