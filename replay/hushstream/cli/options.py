"""Options that several commands share, so that they have the same names everywhere."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hushstream.agents.worker.deployment import KeySource

STATE = "state"
"""The folder of workers' state in a deployment's folder, with one folder for each role."""

DeploymentFolder = Annotated[
    Path,
    typer.Option("--deployment", "-d", help="The deployment's folder: deployment.yaml and encoder.json."),
]


ConfigFile = Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")]


def _addresses(text: str | None) -> str | None:
    """Refuse text that is no list of ``host:port``, before a client library fails on it."""
    for address in [] if text is None else text.split(","):
        host, _, port = address.strip().rpartition(":")
        if not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise typer.BadParameter(f"expected host:port, or several separated by commas, got {text!r}")
    return text


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap", "-b", envvar="HUSHSTREAM_BOOTSTRAP", callback=_addresses, help="host:port of a Kafka broker."
    ),
]
RunningAt = Annotated[
    str | None,
    typer.Option(
        "--bootstrap", "-b", callback=_addresses,
        help="host:port of the deployment's Kafka: reads there which losses operators have accepted.",
    ),
]  # fmt: skip
OwnKafka = Annotated[
    str | None,
    typer.Option("--bootstrap", callback=_addresses, help="host:port of a Kafka (default: the embedded broker)."),
]
KeyFolder = Annotated[
    Path | None,
    typer.Option("--keys", envvar="HUSHSTREAM_KEYS", help="Folder with the zone's key (default: DEPLOYMENT/keys)."),
]
KeySeed = Annotated[
    int | None,
    typer.Option("--seed", help="Keys from a seed instead of files: REPRODUCIBLE, NOT PRIVATE; public data only."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Prefix = Annotated[str | None, typer.Option("--prefix", help="Prefix of topic names (default: NAME.).")]
SecurityFile = Annotated[
    Path | None,
    typer.Option("--security", envvar="HUSHSTREAM_SECURITY", help="YAML file with the broker's SASL and TLS settings."),
]


PrincipalsOf = Annotated[
    list[str] | None,
    typer.Option(
        "--principals",
        help="Who runs a role: ROLE=TYPE:NAME (default: User:ROLE); letters-ZONE for who reads the dead letters of one "
        "zone (default: User:letters-ZONE); verify-ROLE for who may verify it, export for "
        "who may copy everything, requeue-ZONE for who may put refused records again, gateway for who answers over "
        "HTTP; administrator=TYPE:NAME for who may do more.",
    ),
]
OneInSync = Annotated[
    bool,
    typer.Option(
        "--one-in-sync",
        help="Accept that one copy of a record is enough on several brokers: a broker's loss can roll journals back.",
    ),
]
Acls = Annotated[bool, typer.Option("--acls/--no-acls", help="Access rules, on a broker that enforces them.")]


def key_source(folder: Path, keys: Path | None, seed: int | None) -> KeySource:
    """The source of a command's keys."""
    from hushstream.agents.worker.deployment import KEYS, KeySource

    if seed is not None:
        return KeySource(seed=seed)
    return KeySource(folder=keys if keys is not None else folder / KEYS)


def config_file(path: Path) -> Path:
    """The configuration file: the path itself, or ``deployment.yaml`` in that folder.

    Raises:
        HushstreamError: there is no such file.
    """
    from hushstream.agents.worker.deployment import CONFIGURATION

    found = path / CONFIGURATION if path.is_dir() else path
    if not found.is_file():
        raise HushstreamError(f"{found}: expected a configuration file, got none")
    return found


def require_folder(folder: Path) -> None:
    """Check at the start of a long run that a folder can be written at its end; creates nothing.

    Raises:
        HushstreamError: the folder, or the one above it if it is missing, is no folder or cannot be written.
    """
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise HushstreamError(f"{folder}: expected a folder to write to, got {there}")


def prefix_of(prefix: str | None, deployment: str) -> str:
    """The topic prefix of a deployment."""
    return f"{deployment}." if prefix is None else prefix


def print_json(value: Any) -> None:
    """Print a value as JSON with stable order."""
    json.dump(value, sys.stdout, indent=2, sort_keys=True, default=str)
    sys.stdout.write("\n")


def print_and_exit(found: Any, json: bool) -> NoReturn:
    """Print what a check found, as text or as JSON, and end with its exit code."""
    if json:
        print_json(found.as_json())
    else:
        from hushstream.cli.tables import print_text

        print_text(found.as_text())
    raise typer.Exit(found.exit_code)


def show(document: Any, json: bool, *shown: str | RenderableType) -> None:
    """Print the result of a command: as JSON for a script, otherwise as text and tables.

    Args:
        document: the whole result as plain values.
        json: whether to print JSON.
        shown: texts and tables, each on lines of its own; empty texts are skipped.
    """
    if json:
        print_json(document)
        return
    from hushstream.cli.tables import print_table

    for part in shown:
        if not isinstance(part, str):
            print_table(part)
        elif part:
            typer.echo(part, nl=not part.endswith("\n"))


def assignments(texts: list[str], option: str) -> dict[str, Any]:
    """Read texts such as ``["a=1", "b=x"]``, with values in YAML.

    Raises:
        HushstreamError: a text is not ``NAME=VALUE``, or its value is not YAML.
    """
    import yaml

    values: dict[str, Any] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise HushstreamError(f"{option}: expected NAME=VALUE, got {text!r}")
        try:
            values[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise HushstreamError(f"{option} {name}: expected a value in YAML, got {value!r}") from None
    return values
