"""Prints tables and texts for the terminal's width; in a file or a pipe, wide enough that no text is cut."""

from __future__ import annotations

import shutil
import sys
import textwrap

import typer
from rich.console import Console, RenderableType

PLAIN_WIDTH = 160
"""The width without a terminal."""

_HANGING = "  "


def print_table(table: RenderableType) -> None:
    """Print a table on standard output; without a terminal, no line ends with blanks."""
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=PLAIN_WIDTH)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def print_text(text: str) -> None:
    """Print lines on standard output; a terminal that is narrower than a line would cut it within a word."""
    typer.echo(_wrapped(text, shutil.get_terminal_size().columns) if sys.stdout.isatty() else text, nl=False)


def _wrapped(text: str, width: int) -> str:
    """Break lines between words; what follows in the same line is indented further than its beginning."""
    return "".join(f"{part}\n" for line in text.splitlines() for part in _parts(line, width))


def _parts(line: str, width: int) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())] + _HANGING
    found = textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return found or [""]
