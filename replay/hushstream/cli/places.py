"""The options that locate a running deployment, for every command that works on one."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec

from hushstream.agents.security import read_security
from hushstream.agents.worker.deployment import load
from hushstream.cli.options import Bootstrap, DeploymentFolder, Prefix, SecurityFile, prefix_of
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection

_Own = ParamSpec("_Own")


class Place(NamedTuple):
    """A running deployment: its folder, its system, and the connection to its broker."""

    folder: Path
    system: System
    connection: Connection


def open_place(
    deployment: DeploymentFolder,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    security: SecurityFile = None,
) -> Place:
    """Read a deployment's folder, and make the settings of the connection; does not connect.

    Raises:
        ConfigurationError: the folder is incomplete, or its files do not fit together.
        HushstreamError: the security file cannot be used.
    """
    system = load(deployment)
    name = prefix_of(prefix, system.config.deployment)
    return Place(deployment, system, Connection(bootstrap, name, read_security(security)))


def at_place(command: Callable[Concatenate[Place, _Own], None]) -> Callable[..., None]:
    """Give a command the options of `open_place` in place of its first parameter.

    Typer reads a command's options from its signature, so the new signature combines both.
    """
    shared = signature(open_place, eval_str=True).parameters
    own = list(signature(command, eval_str=True).parameters.values())[1:]

    @wraps(command)
    def run(**values: Any) -> None:
        place = open_place(**{name: values.pop(name) for name in shared})
        command(place, **values)  # type: ignore[call-arg]  # Typer gives what the signature below says.

    options = [option.replace(kind=Parameter.KEYWORD_ONLY) for option in (*shared.values(), *own)]
    run.__signature__ = Signature(options)  # type: ignore[attr-defined]  # Python looks there (PEP 362).
    run.__annotations__ = {option.name: option.annotation for option in options}
    return run
