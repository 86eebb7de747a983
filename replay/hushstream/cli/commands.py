"""Lists every command with its module and the first line of its help, so that listing commands imports nothing else.

*Lazy.* A group of commands that imports a command only when it is run; a table has their names and first lines of help.

The modules that a command needs (numpy, pydantic, every system) take seconds to import, and ``--help``, ``--version``
and the completion of names need none of them.

*Wrong usage.* Says in plain words what was expected of an option's value, and what came in its place.

Typer lets pydantic check values, and prints pydantic's own text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    import typer


_NOT_A_CHOICE = " is not one of "
"""Stands in Typer's text between the value and the choices."""


def say_plainly(error: typer.BadParameter) -> None:
    """Replace the message of a value that pydantic refused; other messages stay, because they are our own."""
    # Imported here: a command that is used rightly needs neither of them.
    from pydantic import ValidationError

    if isinstance(error.__cause__, ValidationError):
        error.message = _said(error.__cause__.errors(include_url=False)[0])


def _said(found: Any) -> str:
    from hushstream.agents.faults import expected_of

    expected = expected_of(found)
    if expected is None:
        raised = str(found.get("ctx", {}).get("error", found["msg"]))
        _, told, choices = raised.partition(_NOT_A_CHOICE)
        if not told:
            return raised
        expected = f"one of {choices.rstrip('.').replace(chr(39), '')}"
    return f"expected {expected}, got {found['input']!r}"


class Part(NamedTuple):
    """Where a command is defined.

    Attributes:
        modules: the modules whose `register` functions add it, in this order.
        help: its line in the list of commands.
        group: the heading that it is listed under.
    """

    modules: tuple[str, ...]
    help: str
    group: str = "Run"


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
        return None if part is None else TyperCommand(cmd_name, help=part.help)

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
    commands = get_group(app).commands
    _show_flags_as_flags(commands)
    return commands


def _show_flags_as_flags(commands: Mapping[str, Any]) -> None:
    """Drop the type that Typer's help names behind each flag, as if it took a value."""
    for command in commands.values():
        _show_flags_as_flags(getattr(command, "commands", {}))
        for option in command.params:
            if getattr(option, "is_flag", False):
                option.metavar = ""


_REPLAYS = ("hushstream.cli.research.replays",)
_EVALUATIONS = ("hushstream.cli.research.evaluations",)
_WORKERS = ("hushstream.cli.operate.workers",)
_DEPLOYMENTS = ("hushstream.cli.configure.deployments",)
_PROMISES = ("hushstream.cli.configure.promises",)
_PLANS = ("hushstream.cli.configure.plans",)
_UP = ("hushstream.cli.operate.up",)
_OPERATIONS = ("hushstream.cli.operate.operations",)
_DECIDE, _OPERATE, _RESEARCH = "Decide, before anything runs", "Operate, on your Kafka", "Research"
_GROUPS = {
    "Run": ("hushstream demo", "hushstream init shop.yaml && hushstream up shop.yaml"),
    _DECIDE: ("hushstream guarantee shop.yaml", "hushstream evaluate --log log.csv --mapping map.yaml"),
    _OPERATE: ("hushstream prepare shop.yaml shop/", "hushstream verify --deployment shop --bootstrap kafka:9092"),
    _RESEARCH: ("hushstream replay p2b --seed 1", "hushstream experiment papers"),
}
"""The headings of the list of commands, in order, each with examples."""


class Commands(LazyGroup):
    """The commands of hushstream."""

    parts = {  # noqa: RUF012 - read by click alone, and a mapping by its type
        # Try and run: one machine.
        "demo": Part(_REPLAYS, "The main job: 3,600 visitors of a shop; does the shared private model help new users?"),
        "init": Part(_PLANS, "Write a commented configuration, from a log or from a few answers."),
        "up": Part(_UP, "Run a deployment on this machine: broker, keys, workers, gateway, page."),
        "status": Part(_UP, "Show what `hushstream up` runs, what was released and spent."),
        "down": Part(_UP, "Stop what `hushstream up` started; `up` goes on from there."),
        # Decide: before anything runs.
        "guarantee": Part(_PROMISES, "Show what a configuration guarantees, to whom, over a lifetime.", _DECIDE),
        "plan": Part(_PLANS, "Predict what a deployment will bring, from public numbers only.", _DECIDE),
        "evaluate": Part(_EVALUATIONS, "Replay another policy's log: what would have been earned?", _DECIDE),
        "statement": Part(_PROMISES, "Write what a data-protection officer needs to know.", _DECIDE),
        "config": Part(
            (*_DEPLOYMENTS, "hushstream.cli.configure.config_options"), "Check a configuration; list settings.", _DECIDE
        ),
        # Operate: a deployment on Kafka.
        "prepare": Part(_DEPLOYMENTS, "Make a deployment's folder from a configuration.", _OPERATE),
        "keys": Part(_DEPLOYMENTS, "Make and check the key files of the trust zones.", _OPERATE),
        "topics": Part(
            ("hushstream.cli.operate.topics",), "Plan, create, check, export and move its topics.", _OPERATE
        ),
        "worker": Part(_WORKERS, "Run one role, or a gateway, until SIGTERM.", _OPERATE),
        "broker": Part(_WORKERS, "Run the embedded broker alone, for one machine.", _OPERATE),
        "verify": Part(_OPERATIONS, "Recompute what was published from the logs.", _OPERATE),
        "budget": Part(_OPERATIONS, "Show what was spent and is left, by scope.", _OPERATE),
        "lift": Part(_OPERATIONS, "Show what the shared model brings, from released counts.", _OPERATE),
        "model": Part(
            ("hushstream.cli.operate.models",), "Show what a released model prefers, and how sure it is.", _OPERATE
        ),
        "items": Part(("hushstream.cli.operate.catalogue",), "Change the catalogue while it runs.", _OPERATE),
        "forget": Part(_OPERATIONS, "Erase a user's state; say what stays.", _OPERATE),
        "dead-letters": Part(_OPERATIONS, "Show records that a role refused.", _OPERATE),
        "logs": Part(("hushstream.cli.operate.logs",), "Show what its logs hold and lost, and the ways out.", _OPERATE),
        # Research.
        "replay": Part(_REPLAYS, "Play a dataset through a system, and write a report.", _RESEARCH),
        "experiment": Part(_REPLAYS, "Make a table or figure of a paper or our own, with its targets.", _RESEARCH),
        "datasets": Part(_REPLAYS, "List, fetch and inspect datasets.", _RESEARCH),
        "audit": Part(_EVALUATIONS, "Attack a mechanism's noise; print a lower bound on its epsilon.", _RESEARCH),
        "bench": Part(_OPERATIONS, "Measure speed and sizes that the project has targets for.", _RESEARCH),
    }

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each group, with its examples below."""
        for group, examples in _GROUPS.items():
            rows = [(name, part.help) for name, part in self.parts.items() if part.group == group]
            with formatter.section(group):
                formatter.write_dl(rows)
                for example in examples:
                    formatter.write(f"{'':>{formatter.current_indent}}$ {example}\n")
