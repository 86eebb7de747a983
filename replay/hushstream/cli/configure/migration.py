"""``hushstream config migrate``: a ``deployment.yaml`` with its keys as they are called now, and the same digest."""

from __future__ import annotations

from typing import Annotated

import typer

from hushstream.agents.worker.deployment import write_artefact
from hushstream.agents.worker.migration import migrate
from hushstream.cli.configure.deployments import config_app
from hushstream.cli.options import AsJson, ConfigFile, config_file, print_json


def register(app: typer.Typer) -> None:
    """Add the command to those of ``config``."""
    config_app.command(name="migrate")(migrate_config)


def migrate_config(
    config: ConfigFile,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit 1 where keys have other names now.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Write the keys of a deployment.yaml as they are called now; its comments stay, and so does its digest."""
    path = config_file(config)
    found = migrate(path)
    if found.renamed and not check:
        # Through a link, which stays one.
        write_artefact(path.resolve(), found.text.encode())
    if json:
        print_json(found.as_json())
    else:
        typer.echo(f"{path}: {found.as_text()}")
    if found.renamed and check:
        raise typer.Exit(1)
