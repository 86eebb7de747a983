"""``hushstream logs``: what a deployment's logs hold and lost, and the ways out; each is printed before it acts."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushstream.cli.operate.operations import RefusedOffset, RefusedPartition, RefusedTopic, letters_in
from hushstream.cli.options import (
    ALL,
    AsJson,
    Place,
    as_verifier,
    at_place,
    letter_zones,
    one_of,
    one_or_all,
    open_with_keys,
    role_names,
    roles_or_all,
    show,
    with_keys,
    with_options,
    working,
)
from hushstream.privacy.amounts import count_text

if TYPE_CHECKING:
    from hushstream.ops.logs.losses import Plan

_ROLES = "Role of the logs; `all` needs the keys of all zones."
Roles = Annotated[str, typer.Option("--role", callback=one_of(roles_or_all), help=_ROLES)]
Write = Annotated[bool, typer.Option("--write", help="Do it; otherwise the plan is only printed.")]

logs_app = typer.Typer(
    help="Show what its logs hold and lost, and the ways out.",
    no_args_is_help=True,
)
repair_app = typer.Typer(help="Mend what a check or a worker's refusal names.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    logs_app.command()(check)
    logs_app.command()(trim)
    for command in (foreign, marks, input_, letter, models, partitions):
        repair_app.command(name=command.__name__.rstrip("_"))(command)
    logs_app.add_typer(repair_app, name="repair")
    app.add_typer(logs_app, name="logs")


@as_verifier
def check(place: Place, role: Roles = ALL, json: AsJson = False) -> None:
    """List foreign records in journals, marks and states, and the losses that operators accepted.

    Readers skip foreign records, so nothing has to be deleted. `verify` reports those in journals and marks as
    *changed* until `hushstream logs repair foreign` names them. Exit 1 if a record stops its readers.
    """
    from hushstream.ops.logs import foreign
    from hushstream.ops.logs.losses import accepted_losses
    from hushstream.privacy.promises.promise import plain

    system, connection = place.system, place.connection
    roles = one_or_all(role)
    with working("reading journals, marks and states", json):
        found = asyncio.run(foreign.check(connection, system, place.keys, roles))
        losses = asyncio.run(accepted_losses(connection, system, place.keys, roles))
    number = count_text(len(found.records), "record") if found.records else "nothing foreign is there"
    unread = (
        f"Not read: {', '.join(found.outputs)}. `hushstream verify` finds foreign records there, and no note covers "
        f"them: find out who may write there (`hushstream topics check`)."
    )
    show(
        {**plain(found), "accepted_losses": plain(losses)},
        json,
        *map(place.located, found.records),
        f"Read {', '.join(found.read)}: {number}.",
        place.located(unread) if found.outputs else "",
        *(f"Accepted losses: {line}" for line in losses.as_lines()),
    )
    if any(one.stops for one in found.records):
        raise typer.Exit(1)


@with_keys
def trim(place: Place, role: Roles = ALL, write: Write = False, json: AsJson = False) -> None:
    """Delete the beginning of journals, up to a published state from which workers recover and checks begin.

    Deleted records cannot be restored: archive them first with `topics export --until checkpoint`. Ledgers, marks and
    states are never touched. Published models are kept from where the second newest state of each reading partition
    goes on. It needs the key of the role's zone (for models also those of their readers), and on a secured broker the
    right to delete records of the journal, which no account of the deployment has.
    """
    from hushstream.ops.logs.trim import plan

    system, connection = place.system, place.connection
    with working("looking for usable states", json):
        planned = asyncio.run(plan(connection, system, place.keys, one_or_all(role)))
    records, size = (sum(getattr(one, name) for one in planned.rows) for name in ("records", "size"))
    _settle(planned, write, json, f"In all {count_text(records, 'record')}, {size} bytes, for ever.")


@with_keys
def foreign(place: Place, role: Roles = ALL, write: Write = False, json: AsJson = False) -> None:
    """Note the foreign records of journals and among marks as known, so that `verify` no longer calls them changed.

    It needs the role's right to write its journal. Find out first who may write there (`hushstream topics check`).
    """
    from hushstream.ops.logs.foreign import plan

    system, connection = place.system, place.connection
    with working("reading journals, marks and states", json):
        planned = asyncio.run(plan(connection, system, place.keys, one_or_all(role)))
    _settle(planned, write, json)


@with_options("{role}", place=open_with_keys)
def marks(
    place: Place,
    role: Annotated[str, typer.Option(callback=one_of(role_names), help="Role of the marks.")],
    write: Write = False,
    group: Annotated[str | None, typer.Option(help="Consumer group of its workers (default: NAME.ROLE).")] = None,
    json: AsJson = False,
) -> None:
    """Write lost marks again, from the journals; the role's next release pays for one more epoch.

    Where the budget has no room for another epoch, the plan says so: then nothing more is released.

    Only partitions with missing marks get one. Without marks nobody can tell a journal from an older copy of it, so
    make sure that the journals are the newest; for a vendor on trial it is refused. Stop the workers of the role first.
    """
    from hushstream.ops.logs.remake import plan_marks

    system, connection = place.system, place.connection
    with working("reading marks and journals", json):
        planned = asyncio.run(plan_marks(connection, system, place.keys, role, group))
    _settle(planned, write, json)


@with_keys
def input_(
    place: Place,
    topic: Annotated[str, typer.Argument(help="The input, as the refusal names it.")],
    partition: Annotated[int, typer.Option(min=0, help="Partition of the input.")],
    at: Annotated[int, typer.Option(min=1, help="Offset up to which the old topic was folded, as the refusal says.")],
    write: Write = False,
    json: AsJson = False,
) -> None:
    """Advance the offsets of an input that was deleted and created again, to where the roles had read the old one.

    It refuses an input that was not created again, and an offset up to which no role has folded it. The journals of its
    readers tell that, so it needs the keys of their zones.

    It fills the new log with empty records up to there, writes the records of the new topic once more after them, and
    deletes everything before. Then start the worker: it names the word that accepts the loss (--accept-loss).
    """
    from hushstream.ops.logs.inputs import plan

    system, connection = place.system, place.connection
    role_inputs = sorted({name for role in system.roles for name in role.inputs})
    if topic not in role_inputs:
        raise typer.BadParameter(f"expected an input of a role, one of {', '.join(role_inputs)}, got {topic!r}")
    if partition >= system.partitions[topic]:
        raise typer.BadParameter(
            f"expected a partition of {topic}, 0 to {system.partitions[topic] - 1}, got {partition}",
            param_hint="'--partition'",
        )
    with working("reading the topic, and the journals of its readers", json):
        planned = asyncio.run(plan(connection, system, place.keys, (topic, partition), at))
    _settle(planned, write, json)


@with_options("requeue-{zone}", place=open_with_keys)
def letter(
    place: Place,
    zone: Annotated[str, typer.Argument(callback=one_of(letter_zones), help="Zone of the dead letters.")],
    topic: RefusedTopic,
    partition: RefusedPartition,
    offset: RefusedOffset,
    write: Write = False,
    json: AsJson = False,
) -> None:
    """Put a refused record on its topic again, when the reason no longer holds; a second time it does nothing.

    It needs the zone's key, and an account that may read the dead letters, and read and write the topic. On a secured
    broker, `topics apply --principals requeue-ZONE=TYPE:NAME` gives an account these rights.
    """
    from hushstream.ops.dead_letters import plan, read

    system, connection = place.system, place.connection
    found = read(*letters_in(place, zone, json), (topic, partition, offset))
    _settle(asyncio.run(plan(connection, system, found, place.keys)), write, json)


@with_keys
def models(place: Place, write: Write = False, json: AsJson = False) -> None:
    """Compute published models again that were deleted, from what they were made from; their bytes are the same.

    Stop the workers that publish them first. The topic is deleted and created once more, so it needs an administrator.
    """
    from hushstream.ops.logs.remake import plan_models

    with working("computing models", json):
        planned = asyncio.run(plan_models(place.connection, place.system, place.keys))
    _settle(planned, write, json)


@at_place
def partitions(
    place: Place,
    topic: Annotated[str, typer.Argument(help="The topic, as `topics check` names it.")],
    copy: Annotated[
        Path | None, typer.Option(help="A new folder for a copy of the topic, in clear (default: copy-of-TOPIC).")
    ] = None,
    write: Write = False,
    json: AsJson = False,
) -> None:
    """Take away the partitions that were added to a topic; its records keep their offsets and log times.

    Stop the workers and applications that use it first. The topic is copied to a folder, deleted and created once more,
    so it needs an administrator.
    """
    from hushstream.ops.logs.remake import plan_partitions

    if topic not in place.system.partitions:
        raise typer.BadParameter(f"expected one of {', '.join(sorted(place.system.partitions))}, got {topic!r}")
    with working(f"reading {topic}", json):
        planned = asyncio.run(plan_partitions(place.connection, place.system, topic, copy or Path(f"copy-of-{topic}")))
    _settle(planned, write, json)


def _settle(planned: Plan[Any], write: bool, json: bool, *last: str) -> None:
    """Print a plan, then carry it out if that was asked for."""
    if not json:
        for line in (*map(str, planned.rows), *planned.remarks, *(last if planned.rows else ())):
            typer.echo(line)
    if write and planned.rows:
        with working("writing", json):
            asyncio.run(planned.act())
    done = f"Done: {count_text(len(planned.rows), 'change')}." if write else "Nothing was written; --write does it."
    result = {"written": write, "changes": list(map(asdict, planned.rows)), "remarks": list(planned.remarks)}
    show(result, json, done if planned.rows else "Nothing is to be done.")
