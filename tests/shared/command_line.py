"""Whether the command line takes a command, without running it."""

from __future__ import annotations

from collections.abc import Sequence

from typer.main import get_command

from hushstream.cli.main import app


def parse(arguments: Sequence[object]) -> None:
    """Parse as the command line does; a wrong option or value is an error."""
    command, left = get_command(app), [str(argument) for argument in arguments]
    while below := getattr(command, "commands", None):
        name, *left = left
        command = below[name]
    command.make_context(command.name, left)
