"""``hushstream config migrate`` rewrites a ``deployment.yaml`` with the current names of keys and the same digest."""

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
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if keys have other names now.")] = False,
    json: AsJson = False,
) -> None:
    """Rewrite a deployment.yaml with the current names of keys; its comments and its digest stay the same."""
    path = config_file(config)
    found = migrate(path)
    if found.renamed and not check:
        # If the path is a symbolic link, write its target, and keep the link.
        write_artefact(path.resolve(), found.text.encode())
    if json:
        print_json(found.as_json())
    else:
        typer.echo(f"{path}: {found.as_text()}")
    if found.renamed and check:
        raise typer.Exit(1)
