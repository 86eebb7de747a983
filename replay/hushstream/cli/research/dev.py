"""Commands for a deployment on one machine, while it is developed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hushstream.cli.options import STATE, AsJson, Bootstrap, DeploymentFolder, Prefix, prefix_of, show
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.engine.declare.declaration import System

_LOOK_SECONDS = 2.0

dev_app = typer.Typer(help="For a deployment on the embedded broker, while it is developed.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(dev_app, name="dev")


@dev_app.command(name="reset")
def reset(
    deployment: DeploymentFolder,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove; otherwise only say what would be removed.")] = False,
    json: AsJson = False,
) -> None:
    """Remove the state and release marks of workers after an embedded broker has ended.

    The embedded broker keeps topics in memory, so they are lost when it ends, and workers rightly refuse to go on with
    new topics. Configuration, encoder and keys stay. Stop workers and broker first: while the deployment's topics
    exist, this is refused. Earlier releases no longer count, so persons in them pay again: use it only in development.
    """
    from hushstream.agents.worker.deployment import load

    system = load(deployment)
    _require_gone(bootstrap, prefix_of(prefix, system.config.deployment), system)
    state = deployment / STATE
    found = sorted(path.name for path in state.iterdir()) if state.is_dir() else []
    _require_left(state, found)
    if yes and found:
        shutil.rmtree(state)
    done = "removed" if yes else "would remove (say --yes)"
    text = f"{state}: {done} what workers of {', '.join(found)} remember" if found else f"{state}: nothing to remove"
    show({"state": str(state), "roles": found, "removed": yes and bool(found)}, json, text)


def _require_left(state: Path, roles: list[str]) -> None:
    """Refuse while workers with this state are running, on any broker."""
    from hushstream.agents.worker.membership import is_taken

    running = [role for role in roles if is_taken(state / role)]
    if running:
        raise HushstreamError(f"dev reset: expected no worker on {state}, got {', '.join(running)}: stop them first")


def _require_gone(bootstrap: str, prefix: str, system: System) -> None:
    """Refuse if the deployment's topics still exist, or may exist because the broker is on another machine."""
    from hushstream.agents.errors import BrokerUnreachable
    from hushstream.agents.security import Cluster, Security
    from hushstream.ops.connection import Connection
    from hushstream.ops.topics import describe

    if not Cluster(bootstrap, Security()).on_loopback:
        raise HushstreamError(f"dev reset: expected a broker on this machine, got {bootstrap}")
    connection = Connection(bootstrap, prefix, timeout_seconds=_LOOK_SECONDS)
    try:
        there = describe(connection, system)
    except BrokerUnreachable:
        return
    if there:
        raise HushstreamError(
            f"dev reset: expected no topics of {system.config.deployment} at {bootstrap}, as workers can go on with "
            f"those that are there; got {len(there)}: stop that broker first"
        )
