"""The progress of long commands on standard error: a bar with rate and remaining time, or lines in a file or a pipe."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Rate(ProgressColumn):
    """Shows interactions per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


LINE_EVERY_SECONDS = 10.0
"""Without a terminal a line is written this often; a command that ends before writes none."""

Steps = Callable[[int, int, str], None]
"""Takes how much is done, of how much, and the name of the work."""


@contextmanager
def steps_on_a_bar(quiet: bool, clock: Callable[[], float] = time.monotonic) -> Iterator[Steps]:
    """Show progress during the block: a bar, or lines where there is no terminal.

    Nothing is shown if ``quiet`` (a script reads the output). ``clock`` says in seconds when the next line is due.
    """
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield _nothing if quiet else _lines(clock)
        return
    with _bar(console) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
    )


def _nothing(done: int, total: int, what: str) -> None:
    """Show nothing."""


def _lines(clock: Callable[[], float]) -> Steps:
    said = clock()

    def say(done: int, total: int, what: str) -> None:
        nonlocal said
        now = clock()
        if now - said >= LINE_EVERY_SECONDS:
            said = now
            print(f"{what}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    return say


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """Show during the block what is being done, on a terminal and not if ``quiet``."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield
