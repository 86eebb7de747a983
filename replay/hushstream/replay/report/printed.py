"""Parts of the text that a terminal shows after a run of any system: facts by name, and warnings."""

from __future__ import annotations

from collections.abc import Iterable

from rich.panel import Panel
from rich.table import Table
from rich.text import Text


def answers(lines: Iterable[str]) -> list[Text]:
    """The first lines: the private result, and whether it pays."""
    return [Text(line, style="bold") for line in lines]


def facts_grid(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Facts by name, a line each; long facts are wrapped."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts:
        grid.add_row(name, Text(value) if isinstance(value, str) else value)
    return grid


def warnings(marks: Iterable[str]) -> list[Panel]:
    """The warnings, each in a frame."""
    return [Panel(Text(mark, style="bold"), border_style="yellow") for mark in marks]
