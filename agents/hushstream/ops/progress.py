"""Reports the progress of long readings of logs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[int, int, str], None]
"""Called with the steps that are done, the total number of steps, and the name of the work."""

_REPORTS = 500


def unreported(_done: int, _total: int, _what: str) -> None:
    """Report nothing."""


@dataclass(slots=True)
class Steps:
    """Counts the steps that are done, and reports some hundreds of times in all, for any number of steps.

    Attributes:
        report: takes the reports.
        total: the total number of steps.
        what: the name of the work.
        done: the steps that are done.
    """

    report: Progress
    total: int
    what: str
    done: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Report that the work begins."""
        self.report(0, self.total, self.what)

    def up_to(self, done: int) -> None:
        """Note that ``done`` steps are done in all, or need not be done."""
        if done > self.done:
            self.step(done - self.done)

    def step(self, count: int = 1) -> None:
        """Note that ``count`` more steps are done."""
        often = max(1, self.total // _REPORTS)
        before, self.done = self.done, self.done + count
        if self.done // often > before // often or self.done == self.total:
            self.report(self.done, self.total, self.what)
