"""Prints tables as wide as the terminal; in a file or a pipe, wide enough that no text is cut."""

from __future__ import annotations

import sys

from rich.console import Console, RenderableType

PLAIN_WIDTH = 160
"""The width without a terminal."""


def print_table(table: RenderableType) -> None:
    """Print a table on standard output."""
    Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH).print(table)
