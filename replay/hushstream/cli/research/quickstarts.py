"""The command of the quickstart."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hushstream.cli.options import AsJson, require_folder, show


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(quickstart)


def quickstart(
    folder: Annotated[Path, typer.Argument(help="Folder for fast.yaml (to edit) and the deployment.")] = Path(
        "quickstart"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the page on 127.0.0.1; 0: any free one.")] = 8765,
    visitors: Annotated[int, typer.Option(min=1, max=2000, help="Number of simulated visitors at the same time.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of what the visitors like.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=1, help="End after so many seconds.")] = None,
    json: AsJson = False,
) -> None:
    """A live deployment on this machine, with visitors and a page: watch the reward climb, kill the learner, edit."""
    from hushstream.replay.study import studies

    require_folder(folder)
    start = next(study.quickstart for study in studies().values() if study.quickstart is not None)
    options = {"folder": folder, "port": port, "visitors": visitors, "seed": seed, "seconds": seconds}
    state = start(options, lambda line: typer.echo(line, err=json))
    show(
        state,
        json,
        f"{sum(state['answers'].values())} visits answered, model version {state['version']}. Edit {folder}/fast.yaml "
        f"and start it again, or go on with `hushstream guarantee {folder}/fast.yaml`.",
    )
