"""Commands that export logs from the broker, and that trim journals."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hushstream.cli.names import ALL, one_of, roles_or_all
from hushstream.cli.operate.operations import one_or_all, topics_app
from hushstream.cli.options import AsJson, DeploymentFolder, KeyFolder, KeySeed, key_source, print_json
from hushstream.cli.places import Place, at_place
from hushstream.cli.progress import working
from hushstream.privacy.amounts import count_text


class Until(StrEnum):
    """Which part of a journal to export."""

    END = "end"
    CHECKPOINT = "checkpoint"


def register(app: typer.Typer) -> None:
    """Add the commands to those of ``topics``."""
    topics_app.command(name="export")(topics_export)
    topics_app.command(name="table")(topics_table)
    topics_app.command(name="trim")(topics_trim)


@at_place
def topics_export(
    place: Place,
    directory: Annotated[Path, typer.Argument(help="A new folder. It will hold in clear what users do.")],
    role: Annotated[
        str,
        typer.Option(
            callback=one_of(roles_or_all),
            help="Only topics that `verify --role` of it reads; `all`: every topic.",
        ),
    ] = ALL,
    until: Annotated[
        Until,
        typer.Option(
            help="end: everything; checkpoint: only those records of journals that `topics trim` would delete, which "
            "needs the roles' keys."
        ),
    ] = Until.END,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Write topics to files, readable by the owner alone, for `verify --log` and (all of them) the direct runner."""
    from hushstream.ops.check.checkpoints import From
    from hushstream.ops.check.verify import verified_topics
    from hushstream.ops.export import export, held_in_clear
    from hushstream.ops.trim import plan

    _, system, connection = place
    roles = one_or_all(role)
    with working(f"writing topics to {directory}", json):
        topics = None if roles is None else verified_topics(system, roles, From.CHECKPOINT)
        ends = None
        if until is Until.CHECKPOINT:
            ends = plan(connection, system, key_source(place.folder, keys, seed), roles).until
            topics = frozenset(topic for topic, _ in ends)
        manifest = export(connection, system, directory, topics, ends)
    if json:
        print_json(manifest.as_json())
    else:
        holds = held_in_clear(system) if roles is None else f"what {role} sees: keep it in that zone"
        typer.echo(f"{directory}: {count_text(len(manifest.partitions), 'partition')}; it holds {holds}")


def topics_table(
    log: Annotated[Path, typer.Argument(help="An export of `topics export`, whole or of the learner's role.")],
    directory: Annotated[Path, typer.Argument(help="A new folder. It will hold exact content of users.")],
    deployment: DeploymentFolder,
    party: Annotated[str, typer.Option(help="Party of the users, if each has its own (pdap: a vendor).")] = "",
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
        table = decision_table(open_export(log), load(deployment), party)
        table.write(directory)
    notice = NOTICE.format(deployment=table.deployment)
    if json:
        found = {"rows": len(table.rows), "left_out": dict(table.left_out), "notice": notice}
        print_json({**found, "table": str(directory / TABLE), "mapping": str(directory / MAPPING)})
        return
    left_out = "".join(f"\n  left out: {count} ({why})" for why, count in sorted(table.left_out.items()))
    typer.echo(f"{notice}\n{directory / TABLE}: {count_text(len(table.rows), 'decision')}{left_out}")
    typer.echo(f"hushstream evaluate --log {directory / TABLE} --mapping {directory / MAPPING}")


@at_place
def topics_trim(
    place: Place,
    role: Annotated[
        str, typer.Option(callback=one_of(roles_or_all), help="Role of the journal; `all` needs the keys of all zones.")
    ] = ALL,
    delete: Annotated[bool, typer.Option("--delete", help="Delete; otherwise only say what would be deleted.")] = False,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Delete the beginning of journals, up to a published state from which workers recover and checks begin.

    Deleted records cannot be restored: archive them first with `topics export --until checkpoint`. Ledgers, marks and
    states are never touched. Published models are kept from where the second newest state of each reading partition
    goes on. It needs the key of the role's zone (for models also those of their readers), and on a secured broker the
    right to delete records of the journal, which no account of the deployment has.
    """
    from hushstream.ops.trim import plan, trim

    _, system, connection = place
    with working("looking for usable states", json):
        planned = plan(connection, system, key_source(place.folder, keys, seed), one_or_all(role))
        if delete:
            trim(connection, planned)
    if json:
        print_json({"deleted": delete, **planned.as_json()})
        return
    typer.echo(planned.as_text("deleted" if delete else "would delete"), nl=False)
    if not delete:
        typer.echo("Nothing was deleted; --delete deletes it for ever.")
