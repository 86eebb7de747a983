"""Commands about a deployment's topics: their plan, creation and check, with access rules; exports of their records."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from hushstream.agents.worker.preflight import Difference
from hushstream.cli.options import (
    ALL,
    Acls,
    AsJson,
    DeploymentFolder,
    OneInSync,
    Place,
    PrincipalsOf,
    as_verifier,
    at_place,
    one_of,
    one_or_all,
    roles_or_all,
    show,
    working,
)
from hushstream.ops.access import AccessDifference, Principals, Rule
from hushstream.ops.topics import Creation
from hushstream.privacy.amounts import count_text

topics_app = typer.Typer(
    help="Plan, create, check, export and move its topics.",
    no_args_is_help=True,
)

Found = TypeVar("Found")
Replication = Annotated[int, typer.Option(help="Copies of each partition; -1 for the broker's default.")]
MinInSync = Annotated[
    int | None,
    typer.Option(
        "--min-insync", min=1, help="Copies that must have a record before it counts (default: the broker's)."
    ),
]


class Until(StrEnum):
    """Which part of a journal to export."""

    END = "end"
    CHECKPOINT = "checkpoint"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(topics_app, name="topics")


@topics_app.command(name="plan")
@at_place
def topics_plan(place: Place, principals: PrincipalsOf = None, acls: Acls = True, json: AsJson = False) -> None:
    """Show what `topics apply` would create."""
    from hushstream.ops.access import plan_async as plan_rules
    from hushstream.ops.topics import describe_async, plan

    who = Principals.of(principals or ())
    system, connection = place.system, place.connection
    wanted = plan(system, asyncio.run(describe_async(connection, system)), connection.prefix)
    rules = _rules_found(asyncio.run(plan_rules(connection, system, who))) if acls else ()
    _show_topics(place, wanted, rules, (), "would create", json)


@topics_app.command(name="apply")
@at_place
def topics_apply(
    place: Place,
    replication: Replication = -1,
    min_in_sync: MinInSync = None,
    one_in_sync: OneInSync = False,
    principals: PrincipalsOf = None,
    acls: Acls = True,
    json: AsJson = False,
) -> None:
    """Create missing topics and access rules; existing ones are never changed: exit 1 if one is not as declared.

    Like `topics check`, it warns if the loss of one broker could lose records that cannot be made again.
    """
    from hushstream.ops.access import apply_async as apply_rules
    from hushstream.ops.topics import apply_async, check_async, warnings_async

    who = Principals.of(principals or ())
    system, connection = place.system, place.connection
    created = asyncio.run(apply_async(connection, system, replication, min_in_sync))
    _warn(place, asyncio.run(warnings_async(connection, system)), principals or ())
    rules = _rules_found(asyncio.run(apply_rules(connection, system, who))) if acls else ()
    differing = asyncio.run(check_async(connection, system, one_in_sync))
    _show_topics(place, created, rules, differing, "created", json)
    raise typer.Exit(1 if differing else 0)


@topics_app.command(name="check")
@at_place
def topics_check(
    place: Place,
    one_in_sync: OneInSync = False,
    principals: PrincipalsOf = None,
    acls: Acls = True,
    json: AsJson = False,
) -> None:
    """Compare topics and access rules with their declaration; exit 1 when they differ.

    Only an administrator of the cluster can list access rules; everybody else must use --no-acls.
    """
    from hushstream.ops.access import check_async as check_rules
    from hushstream.ops.topics import check_async, warnings_async

    who = Principals.of(principals or ())
    system, connection = place.system, place.connection
    found: list[Difference | AccessDifference] = [*asyncio.run(check_async(connection, system, one_in_sync))]
    # Who may list access rules administers the cluster.
    named = principals or () if acls else None
    _warn(place, asyncio.run(warnings_async(connection, system)), named)
    found += _rules_found(asyncio.run(check_rules(connection, system, who))) if acls else ()
    told = [place.located(one, named) for one in found]
    show(list(map(asdict, found)), json, *(told or ("all topics are as declared",)))
    raise typer.Exit(1 if found else 0)


def _warn(place: Place, warnings: Sequence[str], principals: Sequence[str] | None) -> None:
    """Print warnings on standard error: they are not part of the result."""
    for warning in warnings:
        typer.echo(f"warning: {place.located(warning, principals)}", err=True)


def _rules_found(found: tuple[Found, ...] | None) -> tuple[Found, ...]:
    """The findings on access rules; if the broker enforces none, say so on standard error."""
    if found is None:
        typer.echo("access rules: this broker has no authorizer and lets everybody do everything", err=True)
    return found or ()


def _show_topics(
    place: Place, wanted: Sequence[Creation], rules: Sequence[Rule], differing: Sequence[Difference], verb: str,
    json: bool,
) -> None:  # fmt: skip
    found: list[Creation | Rule | Difference] = [*wanted, *rules, *differing]
    lines = [f"{verb} {one.name} with {count_text(one.partitions, 'partition')}" for one in wanted]
    lines += [*(f"{verb} access rule: {rule}" for rule in rules), *(place.located(one, ()) for one in differing)]
    show(list(map(asdict, found)), json, *(lines or ("all topics are there",)))


@topics_app.command(name="export")
@as_verifier
def topics_export(
    place: Place,
    directory: Annotated[Path, typer.Argument(help="A new folder. It will hold in clear what users do.")],
    role: Annotated[
        str,
        typer.Option(
            callback=one_of(roles_or_all), help="Only topics that `verify --role` of it reads; `all`: every topic."
        ),
    ] = ALL,
    until: Annotated[
        Until,
        typer.Option(
            help="end: everything; checkpoint: only those records of journals that `logs trim` would delete, which "
            "needs the roles' keys."
        ),
    ] = Until.END,
    close: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a stopped `hushstream up`: close its broker FOR EVER, and export all for `topics import`."
        ),
    ] = None,
    marks: Annotated[Path | None, typer.Option(help="With --close: --marks of `hushstream up`.")] = None,
    json: AsJson = False,
) -> None:
    """Write topics to files, readable by the owner alone, for `verify --log` and (all of them) the direct runner."""
    from hushstream.ops.check.checkpoints import From
    from hushstream.ops.check.verify import verified_topics
    from hushstream.ops.export import export_async, held_in_clear
    from hushstream.ops.logs.trim import plan
    from hushstream.ops.logs.trim import until as trimmed

    if close is not None:
        from hushstream.replay.runners.up import move_out

        with working(f"closing the broker of {close}, and writing topics to {directory}", json):
            manifest = asyncio.run(move_out(close, place.system, marks, directory))
        then = f"hushstream topics import {directory} --deployment {place.folder}"
        last = f"the broker of {close} is closed for ever; next: `{then}`"
        show(manifest.as_json(), json, f"{directory}: {count_text(manifest.records, 'record')}; {last}")
        return
    system, connection = place.system, place.connection
    roles = one_or_all(role)
    with working(f"writing topics to {directory}", json):
        topics = None if roles is None else verified_topics(system, roles, From.CHECKPOINT)
        ends = None
        if until is Until.CHECKPOINT:
            planned = asyncio.run(plan(connection, system, place.keys, roles))
            ends = trimmed(planned.rows)
            topics = frozenset(topic for topic, _ in ends)
        manifest = asyncio.run(export_async(connection, system, directory, topics, until=ends))
    holds = held_in_clear(system) if roles is None else f"what {role} sees: keep it in that zone"
    number = count_text(len(manifest.partitions), "partition")
    show(manifest.as_json(), json, f"{directory}: {number}; it holds {holds}")


@topics_app.command(name="import")
@at_place
def topics_import(
    place: Place,
    directory: Annotated[Path, typer.Argument(help="The folder of `topics export --close`.")],
    replication: Replication = -1,
    min_in_sync: MinInSync = None,
    json: AsJson = False,
) -> None:
    """Bring the topics of a closed broker to this one, where the deployment goes on; run it again if it was ended."""
    from hushstream.ops.moving import import_async

    with working(f"writing the topics of {directory}", json):
        number = asyncio.run(import_async(place.connection, place.system, directory, replication, min_in_sync))
    what = f"{place.connection.bootstrap}: wrote {count_text(number, 'record')}; the deployment goes on here"
    show({"records": number}, json, f"{what}; delete {directory} when `hushstream verify` says that all is equal")


@topics_app.command(name="table")
def topics_table(
    log: Annotated[Path, typer.Argument(help="An export of `topics export`, whole or of the learner's role.")],
    directory: Annotated[Path, typer.Argument(help="A new folder. It will hold exact content of users.")],
    deployment: DeploymentFolder,
    json: AsJson = False,
) -> None:
    """Write a deployment's own decisions as a table with its mapping, for `hushstream evaluate`.

    INTERNAL, NOT PRIVATE: keep it in the edge zone. A row has the context, the item that was shown, its propensity, and
    the reward. Other policies can be evaluated on it if decisions were drawn at random (`exploration`).
    """
    from hushstream.agents.worker.deployment import load
    from hushstream.ops.decision_table import MAPPING, NOTICE, TABLE, decision_table
    from hushstream.ops.export import open_export

    with working(f"reading {log}", json):
        table = decision_table(open_export(log), load(deployment))
        table.write(directory)
    notice, files = NOTICE.format(deployment=table.deployment), (directory / TABLE, directory / MAPPING)
    found = {"rows": len(table.rows), "left_out": dict(table.left_out), "notice": notice}
    show(
        {**found, "table": str(files[0]), "mapping": str(files[1])},
        json,
        f"{notice}\n{files[0]}: {count_text(len(table.rows), 'decision')}",
        *(f"  left out: {count} ({why})" for why, count in sorted(table.left_out.items())),
        f"hushstream evaluate --log {files[0]} --mapping {files[1]}",
    )
