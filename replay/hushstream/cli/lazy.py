"""A group of commands that imports a command only when it is run; a table has their names and first lines of help.

The modules that a command needs (numpy, pydantic, every system) take seconds to import, and ``--help``, ``--version``
and the completion of names need none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from hushstream.cli.wrong_usage import say_plainly


class Part(NamedTuple):
    """Where a command is defined.

    Attributes:
        modules: the modules whose `register` functions add it, in this order.
        help: the first line of its help.
        hidden: whether it is left out of the list.
    """

    modules: tuple[str, ...]
    help: str
    hidden: bool = False


class LazyGroup(TyperGroup):
    """A group with the commands of its ``parts``."""

    parts: Mapping[str, Part] = {}

    @property
    def commands(self) -> Any:
        """All commands by name, each imported when it is looked up."""
        return _Imported(self.parts)

    @commands.setter
    def commands(self, _: Any) -> None:
        """Ignore the empty mapping that click assigns at the start: all commands come from the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the commands, in the order of the table."""
        return list(self.parts)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command with only its first line of help, for a list; nothing is imported."""
        part = self.parts.get(cmd_name)
        return None if part is None else TyperCommand(cmd_name, help=part.help, hidden=part.hidden)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run, imported."""
        name, command, left = super().resolve_command(ctx, args)
        return name, command if name is None else self.commands[name], left

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what Typer says of a wrong value is put into plain words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            say_plainly(error)
            raise


class _Imported(Mapping[str, Any]):
    """The commands of a table."""

    def __init__(self, parts: Mapping[str, Part]) -> None:
        self._parts = parts

    def __getitem__(self, name: str) -> Any:
        return _made(self._parts[name].modules)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@cache
def _made(modules: tuple[str, ...]) -> Mapping[str, Any]:
    app = typer.Typer(rich_markup_mode="markdown")
    for module in modules:
        import_module(module).register(app)
    return get_group(app).commands
