"""The progress bar of long commands: on standard error, with rate and remaining time."""

from __future__ import annotations

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


def progress_bar(quiet: bool) -> Progress:
    """A progress bar; invisible if ``quiet`` (a script reads the output), or without a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet or not console.is_terminal,
    )


@contextmanager
def steps_on_a_bar(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Show a bar during the block; yields a function that takes (done, total, name of the work). See `progress_bar`."""
    with progress_bar(quiet) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """Show during the block what is being done, on a terminal; see `progress_bar`."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(f"{what} ..."):
        yield
