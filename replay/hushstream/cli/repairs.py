"""Commands for topics with foreign records, for inputs that were created again, and for lost marks."""

from __future__ import annotations

from typing import Annotated

import typer

from hushstream.cli.names import ALL, one_of, role_names, roles_or_all
from hushstream.cli.operate.operations import one_or_all, topics_app
from hushstream.cli.options import AsJson, KeyFolder, KeySeed, key_source, print_json
from hushstream.cli.places import Place, at_place
from hushstream.cli.progress import working
from hushstream.privacy.amounts import count_text

marks_app = typer.Typer(help="Release marks of a zone.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands to those of ``topics``, and ``marks``."""
    topics_app.command(name="repair")(topics_repair)
    topics_app.command(name="resume")(topics_resume)
    app.add_typer(marks_app, name="marks")


@marks_app.callback()
def marks() -> None:
    """Release marks of a zone."""


@at_place
def topics_repair(
    place: Place,
    role: Annotated[
        str, typer.Option(callback=one_of(roles_or_all), help="Role of the topics; `all` needs the keys of all zones.")
    ] = ALL,
    note: Annotated[
        bool,
        typer.Option("--note", help="Write notes that name foreign journal records and marks; else only list them."),
    ] = False,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """List foreign records in journals, marks and states; exit 1 if a record stops its readers.

    Readers skip foreign records, so nothing has to be deleted. `verify` reports those in journals and marks as
    *changed* until a note under the zone's key names them. --note writes such notes into the journals; it needs the
    role's right to write them.
    Releases before this one stop at a note, so write none while one of them runs.
    """
    from hushstream.ops import repair

    _, system, connection = place
    source = key_source(place.folder, keys, seed)
    with working("reading journals, marks and states", json):
        found = repair.find(connection, system, source, one_or_all(role))
        written = repair.note(connection, system, source, found) if note else 0
    if json:
        print_json({"notes": written, **found.as_json()})
    else:
        typer.echo(found.as_text(), nl=False)
        if note:
            typer.echo(f"Written: {count_text(written, 'note')}.")
        elif found.to_note:
            typer.echo("Nothing was written; --note writes notes that name them.")
    if any(one.stops for one in found.records):
        raise typer.Exit(1)


@at_place
def topics_resume(
    place: Place,
    topic: Annotated[str, typer.Argument(help="The input, as the refusal names it.")],
    partition: Annotated[int, typer.Option(min=0, help="Partition of the input.")],
    at: Annotated[int, typer.Option(min=1, help="Offset up to which the old topic was folded, as the refusal says.")],
    write: Annotated[bool, typer.Option("--write", help="Write; otherwise only say what would be done.")] = False,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Advance the offsets of an input that was deleted and created again, to where the roles had read the old one.

    It refuses an input that was not created again, and an offset up to which no role has folded it. The journals of its
    readers tell that, so it needs the keys of their zones.

    It fills the new log with empty records up to there, writes the records of the new topic once more after them, and
    deletes everything before. Then start the worker: it names the word that accepts the loss (--accept-loss).
    """
    from hushstream.ops import resume

    _, system, connection = place
    role_inputs = sorted({name for role in system.roles for name in role.inputs})
    if topic not in role_inputs:
        raise typer.BadParameter(f"expected an input of a role, one of {', '.join(role_inputs)}, got {topic!r}")
    if partition >= system.partitions[topic]:
        raise typer.BadParameter(
            f"expected a partition of {topic}, 0 to {system.partitions[topic] - 1}, got {partition}",
            param_hint="'--partition'",
        )
    source = key_source(place.folder, keys, seed)
    with working("reading the topic, and the journals of its readers", json):
        planned = resume.plan(connection, system, source, (topic, partition), at)
        if write:
            resume.resume(connection, planned)
    if json:
        print_json({"written": write, **planned.as_json()})
        return
    typer.echo(planned.as_text("wrote" if write else "would write"), nl=False)
    if not write:
        typer.echo("Nothing was written; --write does it.")


@marks_app.command(name="rebuild")
@at_place
def marks_rebuild(
    place: Place,
    role: Annotated[str, typer.Option(callback=one_of(role_names), help="Role of the marks.")],
    write: Annotated[bool, typer.Option("--write", help="Write; otherwise only say what would be written.")] = False,
    group: Annotated[str | None, typer.Option(help="Consumer group of its workers (default: NAME.ROLE).")] = None,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Write lost marks again, from the journals; the role's next release pays for one more epoch.

    Only partitions with missing marks get one. Without marks nobody can tell a journal from an older copy of it, so
    make sure that the journals are the newest. Stop the workers of the role first.
    """
    from hushstream.ops import rebuild

    _, system, connection = place
    source = key_source(place.folder, keys, seed)
    with working("reading marks and journals", json):
        planned = rebuild.plan(connection, system, source, role, group)
        if write:
            rebuild.write(connection, system, source, planned)
    if json:
        print_json({"written": write, **planned.as_json()})
        return
    typer.echo(planned.as_text("wrote" if write else "would write"), nl=False)
    if not write and planned.partitions:
        typer.echo("Nothing was written; --write does it, at the price of one more epoch for each.")
