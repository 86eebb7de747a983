"""Prints the reference of a configuration: every setting with type, default and meaning, read from the classes."""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
import yaml
from rich import box
from rich.table import Table
from rich.text import Text

from hushstream.agents.worker.deployment import CONFIGURATION, ENVIRONMENT_PREFIX
from hushstream.cli.configure.deployments import config_app
from hushstream.cli.options import AsJson, show
from hushstream.engine.configuration import meanings
from hushstream.engine.declare.declaration import Kind
from hushstream.engine.language import SHARED
from hushstream.systems.catalogue import kind_of, kinds

_PLAIN = {
    int: "whole number",
    float: "number",
    bool: "true | false",
    str: "text",
    NoneType: "null",
    Any: "names with settings",
}


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a configuration.

    Attributes:
        name: the key with its sections, as ``--set`` takes it.
        type: the possible values, in YAML.
        default: the value if the key is left out, in YAML; None if the key is required.
        unit: the unit of its number; empty if it has none.
        meaning: what the setting does.
    """

    name: str
    type: str
    default: str | None
    unit: str
    meaning: str

    def as_json(self) -> dict[str, str | None]:
        """Plain values under stable keys."""
        named = {"name": self.name, "type": self.type, "default": self.default}
        return {**named, "unit": self.unit, "meaning": self.meaning}


def register(app: typer.Typer) -> None:
    """Add the command to those of ``config``."""
    config_app.command(name="options")(options)


def options(
    system: Annotated[str | None, typer.Option(help="Only settings of this system.")] = None, json: AsJson = False
) -> None:
    """Every setting of a deployment.yaml: type, default and meaning."""
    asked = kinds().values() if system is None else [kind_of(system)]
    found = {kind.name: settings(kind) for kind in asked}
    example = f"{ENVIRONMENT_PREFIX}PRIVACY__EPSILON=0.5"
    show(
        {name: [one.as_json() for one in each] for name, each in found.items()},
        json,
        *(_table(name, each) for name, each in found.items()),
        f"In {CONFIGURATION} a.b stands below a; the environment goes before it ({example}). replay and evaluate take "
        f"--set a.b=VALUE.",
    )


def settings(kind: Kind) -> tuple[Setting, ...]:
    """Every setting of a system; meanings come from the section ``Attributes:`` in the docstring of its class."""
    found: dict[str, Setting] = {}
    for one in kind.language.keys:
        said = meanings(one.owner).get(one.field.name, "")
        made = Setting(one.name, _type(one.hint), _default(one.field), one.unit(kind.unit), said)
        found.setdefault(one.name, made)
    return tuple(found.values())


def shared() -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The keys that more than one system has: key, meaning, and the systems."""
    having = {name: tuple(kind.name for kind in kinds().values() if name in _names(kind)) for name in SHARED}
    return tuple((name, meaning, having[name]) for name, meaning in SHARED.items())


def _names(kind: Kind) -> set[str]:
    return {one.name for one in kind.language.keys}


def _type(hint: Any) -> str:
    if is_dataclass(hint):
        return "section"
    if get_origin(hint) is Literal:
        return " | ".join(str(value) for value in get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(_type(part) for part in get_args(hint))
    if get_origin(hint) is tuple:
        return f"list of {_type(get_args(hint)[0])}s"
    return _PLAIN[hint]


def _default(one: Field[Any]) -> str | None:
    if one.default is MISSING:
        return None if one.default_factory is MISSING else "{}"
    return str(yaml.safe_dump(one.default, default_flow_style=True)).splitlines()[0]


def _table(system: str, found: tuple[Setting, ...]) -> Table:
    table = Table(title=f"system: {system}", title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    table.add_column("setting", no_wrap=True)
    table.add_column("type", max_width=28)
    table.add_column("default", no_wrap=True)
    table.add_column("unit", max_width=16)
    table.add_column("meaning", ratio=1)
    for one in found:
        default = Text("required", style="bold") if one.default is None else Text(one.default)
        table.add_row(Text(one.name), Text(one.type), default, Text(one.unit), Text(one.meaning))
    return table
