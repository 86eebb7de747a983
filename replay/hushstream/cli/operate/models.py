"""Commands that show and export released models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hushstream.cli.options import AsJson, Place, as_operator, show, working
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hushstream.engine.declare.declaration import Catalogues, ModelView, Report

model_app = typer.Typer(help="Show what a released model prefers, and how sure it is.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(model_app, name="model")


@model_app.command(name="show")
@as_operator
def model_show(
    place: Place,
    version: Annotated[int | None, typer.Option(min=1, help="Number of the version (default: the newest).")] = None,
    json: AsJson = False,
) -> None:
    """Show what a released model prefers by item and by cell, how sure it is, and the noise's share; needs no key."""
    _, read = _released(place, json)
    found = read(version)
    show(found.as_json(), json, found.as_text())


@model_app.command(name="diff")
@as_operator
def model_diff(
    place: Place,
    older: Annotated[int, typer.Argument(min=1, help="The number of a version.")],
    newer: Annotated[int | None, typer.Argument(min=1, help="Number of another one (default: the newest).")] = None,
    json: AsJson = False,
) -> None:
    """Show in which cells two released versions prefer different items, and which items changed most."""
    view, read = _released(place, json)
    found = view.change(read(older), read(newer))
    show(found.as_json(), json, found.as_text())


@model_app.command(name="similar")
@as_operator
def model_similar(
    place: Place,
    item: Annotated[str, typer.Argument(help="Id of an item.")],
    version: Annotated[int | None, typer.Option(min=1, help="Number of the version (default: the newest).")] = None,
    most: Annotated[int, typer.Option(min=1, help="How many to show.")] = 5,
    json: AsJson = False,
) -> None:
    """Show which items visits prefer as they prefer another one, by a released model; needs no key, costs nothing.

    It says where the noise hides whether two items differ.
    """
    view, read = _released(place, json)
    if view.similar is None:
        raise HushstreamError(f"model: expected declared features (p2b, `features`), got {place.system.kind} without")
    found = view.similar(read(version), item, most)
    show(found.as_json(), json, found.as_text())


@model_app.command(name="export")
@as_operator
def model_export(
    place: Place,
    file: Annotated[Path, typer.Argument(help="File for the model.")],
    version: Annotated[int | None, typer.Option(min=1, help="Number of the version (default: the newest).")] = None,
    form: Annotated[Literal["json", "npz"], typer.Option("--format", help="JSON, or an archive of numpy.")] = "json",
    json: AsJson = False,
) -> None:
    """Write a released model to one file, with sample decisions that a reader must reproduce; needs no key.

    `hushstream.systems.p2b.models.ExportedModel.read` reads it and checks these decisions; `prepare --start FILE`
    begins another deployment with it.
    """
    view, records, catalogues = _records(place, json)
    if view.export is None:
        raise HushstreamError(f"model: expected a system whose models decide without a key, got {place.system.kind}")
    found = view.export(records, version, catalogues)
    content = found.as_json() if form == "json" else found.as_npz()
    _write(file, content)
    show({"file": str(file), "bytes": len(content)}, json, f"{file}: {len(content):,} bytes")


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as error:
        raise HushstreamError(f"model: expected a file to write to, got {file} ({error.strerror})") from None


def _released(place: Place, quiet: bool) -> tuple[ModelView, Callable[[int | None], Report]]:
    """The view of the deployment's models, and a function that reads a version, with the names of its items."""
    view, records, catalogues = _records(place, quiet)
    return view, lambda version: view.read(records, version, catalogues)


def _records(place: Place, quiet: bool) -> tuple[ModelView, list[bytes], Catalogues]:
    """The view of the deployment's models, their records, and the names of its items.

    Raises:
        HushstreamError: the system's models cannot be shown.
    """
    from hushstream.ops.ending import catalogues_in, rules_of
    from hushstream.ops.log_copy import copy

    system, connection = place.system, place.connection
    view = system.models
    if view is None:
        raise HushstreamError(f"model: expected a deployment whose models can be shown, got another of {system.kind}")
    with working("reading the models", quiet):
        logs = copy(connection, system.partitions, {*view.topics, *(one.topic for one in rules_of(system))})
    return view, [record.value for record in logs.records(view.topics)], catalogues_in(logs, system)
