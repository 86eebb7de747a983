"""Commands that look into released models."""

from __future__ import annotations

from typing import Annotated

import typer

from hushstream.cli.options import AsJson, show
from hushstream.cli.places import Place, at_place
from hushstream.cli.progress import working
from hushstream.engine.declare.declaration import ModelView
from hushstream.schemas.errors import HushstreamError

model_app = typer.Typer(help="What a released model prefers, for whom, and how sure it is.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(model_app, name="model")


@model_app.command(name="show")
@at_place
def model_show(
    place: Place,
    version: Annotated[int | None, typer.Option(min=1, help="Which version (default: the newest).")] = None,
    json: AsJson = False,
) -> None:
    """What a released model prefers: by item and by cell, how sure it is, and the noise's share; no key is needed."""
    view, values = _released(place, json)
    found = view.read(values, version)
    show(found.as_json(), json, found.as_text())


@model_app.command(name="diff")
@at_place
def model_diff(
    place: Place,
    older: Annotated[int, typer.Argument(min=1, help="The number of a version.")],
    newer: Annotated[int | None, typer.Argument(min=1, help="Another (default: the newest).")] = None,
    json: AsJson = False,
) -> None:
    """For which cells two released versions prefer different items, and which items moved most."""
    view, values = _released(place, json)
    found = view.change(view.read(values, older), view.read(values, newer))
    show(found.as_json(), json, found.as_text())


def _released(place: Place, quiet: bool) -> tuple[ModelView, list[bytes]]:
    """How the deployment's models are read, and their records.

    Raises:
        HushstreamError: its system does not say how.
    """
    from hushstream.ops.live import copy

    _, system, connection = place
    view = system.models
    if view is None:
        raise HushstreamError(f"model: expected a system whose models can be shown, got {system.kind}")
    with working("reading the models", quiet):
        logs = copy(connection, system.partitions, {view.topic})
    return view, [record.value for _, part in logs.of_topic(view.topic) for record in part.records]
