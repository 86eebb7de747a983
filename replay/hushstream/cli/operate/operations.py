"""Commands for operators of a deployment: topics, verify, export, dead letters, budget, benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from hushstream.cli.names import ALL, letter_zones, one_of, roles_or_all
from hushstream.cli.options import (
    Acls,
    AsJson,
    KeyFolder,
    KeySeed,
    OneInSync,
    PrincipalsOf,
    key_source,
    print_and_exit,
    print_json,
    show,
)
from hushstream.cli.places import Place, at_place
from hushstream.cli.progress import steps_on_a_bar, working
from hushstream.engine.declare.declaration import HoldoutView
from hushstream.ops.access.acl_rules import AccessDifference, Principals, Rule
from hushstream.ops.check.checkpoints import From
from hushstream.ops.dead_letters import Letter, Summary
from hushstream.ops.topics import Creation, Difference
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError

topics_app = typer.Typer(
    help="Plan, create and check a deployment's topics; export them, trim their journals, and list what is foreign.",
    no_args_is_help=True,
)
letters_app = typer.Typer(help="Records that a role refused.", no_args_is_help=True)

Found = TypeVar("Found")


class BenchSubject(StrEnum):
    """What to measure."""

    COMPUTE = "compute"
    STREAM = "stream"


LetterZone = Annotated[str, typer.Argument(callback=one_of(letter_zones), help="Zone of the dead letters.")]
RefusedTopic = Annotated[str, typer.Argument(help="The topic of the refused record.")]
RefusedPartition = Annotated[int, typer.Argument(help="Partition of the refused record.")]
RefusedOffset = Annotated[int, typer.Argument(help="Offset of the refused record.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="verify")(verify_command)
    app.command()(budget)
    app.command()(lift)
    app.command()(shadow)
    app.command()(bench)
    app.add_typer(topics_app, name="topics")
    app.add_typer(letters_app, name="dead-letters")


@topics_app.command(name="plan")
@at_place
def topics_plan(
    place: Place,
    principals: PrincipalsOf = None,
    acls: Acls = True,
    json: AsJson = False,
) -> None:
    """Show what `topics apply` would create."""
    from hushstream.ops.access.acls import plan as plan_rules
    from hushstream.ops.topics import describe, plan

    who = Principals.of(principals or ())
    _, system, connection = place
    wanted = plan(system, describe(connection, system), connection.prefix)
    rules = _rules_found(plan_rules(connection, system, who)) if acls else ()
    _show_topics(wanted, rules, "would create", json)


@topics_app.command(name="apply")
@at_place
def topics_apply(
    place: Place,
    replication: Annotated[int, typer.Option(help="Copies of each partition; -1 for the broker's default.")] = -1,
    min_in_sync: Annotated[
        int | None,
        typer.Option(
            "--min-insync", min=1, help="Copies that must have a record before it counts (default: the broker's)."
        ),
    ] = None,
    principals: PrincipalsOf = None,
    acls: Acls = True,
    json: AsJson = False,
) -> None:
    """Create missing topics and access rules; existing ones are never changed.

    Like `topics check`, it warns if the loss of one broker could lose records that cannot be made again.
    """
    from hushstream.ops.access.acls import apply as apply_rules
    from hushstream.ops.topics import apply, warnings

    who = Principals.of(principals or ())
    _, system, connection = place
    created = apply(connection, system, replication, min_in_sync)
    _warn(warnings(connection, system))
    rules = _rules_found(apply_rules(connection, system, who)) if acls else ()
    _show_topics(created, rules, "created", json)


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
    from hushstream.ops.access.acls import check as check_rules
    from hushstream.ops.topics import check, warnings

    who = Principals.of(principals or ())
    _, system, connection = place
    found: list[Difference | AccessDifference] = [*check(connection, system, one_in_sync)]
    _warn(warnings(connection, system))
    found += _rules_found(check_rules(connection, system, who)) if acls else ()
    if json:
        print_json([difference.as_json() for difference in found])
    else:
        for difference in found:
            typer.echo(str(difference))
        if not found:
            typer.echo("all topics are as declared")
    raise typer.Exit(1 if found else 0)


def _warn(warnings: Sequence[str]) -> None:
    """Print warnings on standard error: they are not part of the result."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def _rules_found(found: tuple[Found, ...] | None) -> tuple[Found, ...]:
    """The findings on access rules; if the broker enforces none, say so on standard error."""
    if found is None:
        typer.echo("access rules: this broker has no authorizer and lets everybody do everything", err=True)
    return found or ()


def _show_topics(wanted: Sequence[Creation], rules: Sequence[Rule], verb: str, json: bool) -> None:
    if json:
        print_json([*(creation.as_json() for creation in wanted), *(rule.as_json() for rule in rules)])
        return
    for creation in wanted:
        typer.echo(f"{verb} {creation.name} with {count_text(creation.partitions, 'partition')}")
    for rule in rules:
        typer.echo(f"{verb} access rule: {rule}")
    if not wanted and not rules:
        typer.echo("all topics are there")


def one_or_all(role: str) -> tuple[str, ...] | None:
    """The role as a tuple; None for `ALL`."""
    return None if role == ALL else (role,)


@at_place
def verify_command(
    place: Place,
    role: Annotated[
        str, typer.Option(callback=one_of(roles_or_all), help="Role to check; `all` needs the keys of all zones.")
    ] = ALL,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="An export to read in place of the broker; several, oldest first, are read as one."),
    ] = None,
    start: Annotated[
        From,
        typer.Option(
            "--from",
            help="genesis: from the first record on; checkpoint: from the oldest usable published state; "
            "last-checkpoint: from the newest one, which is quickest.",
        ),
    ] = From.GENESIS,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Recompute what was published from the logs.

    If the beginning of a journal was deleted (`topics trim`), --from checkpoint begins after it, and says what was not
    recomputed.

    Exit codes: 0 everything follows from the logs; 1 something differs; 2 nothing differs, but a requested role was not
    checked, because its key was not given, or its journal has no beginning.
    """
    from hushstream.ops.check.verify import verify_export, verify_live

    _, system, connection = place
    source = key_source(place.folder, keys, seed)
    roles = one_or_all(role)
    with steps_on_a_bar(json) as progress:
        if log:
            found = verify_export(log, system, source, roles, start, progress)
        else:
            found = verify_live(connection, system, source, roles, start, progress)
    print_and_exit(found, json)


@at_place
def budget(
    place: Place,
    json: AsJson = False,
) -> None:
    """Show what has been spent and is left, by scope and mechanism, with the configured limits.

    Exit codes: 0 everything is correct; 1 the ledger has wrong entries, or a scope has spent too much; 2 by the marks
    more was spent than the ledger holds, so no figures are given; 3 a budget is exhausted: it pays for no further
    release, and the roles go on without releases.
    """
    from hushstream.ops.live import copy
    from hushstream.ops.spending.budget import budget_topics, read
    from hushstream.ops.spending.copied_marks import mark_topics

    _, system, connection = place
    with working("reading the ledger", json):
        logs = copy(connection, system.partitions, budget_topics(system), keyed=mark_topics(system))
        found = read(logs, system)
    print_and_exit(found, json)


@at_place
def lift(
    place: Place,
    json: AsJson = False,
) -> None:
    """Show what the model is worth over the hold-out, with an interval, from released counts only.

    The deployment must set a hold-out, such as `holdout: {share: 0.1}`. The command says how many more decisions are
    needed until the interval excludes 0. Exit codes: 0 the uplift is known; 1 too few decisions were shown to tell it
    from the noise.
    """
    view = place.system.holdout
    if view is None:
        raise HushstreamError(
            f"lift: expected a deployment with a hold-out, got one of {place.system.kind} without; a configuration is "
            f"fixed, so set holdout: {{share: 0.1}} for a new deployment of a system that has it"
        )
    if place.system.requests is not None and place.system.requests.shadow:
        raise HushstreamError(
            "lift: expected a live deployment, got mode: shadow, where both groups see the application's own choice: "
            "`hushstream shadow` says what the answers would earn"
        )
    _print_released(place, view, json)


@at_place
def shadow(
    place: Place,
    log: Annotated[
        Path | None, typer.Argument(help="An export of `topics export`, whole or of the learner's role.")
    ] = None,
    party: Annotated[str, typer.Option(help="Party of the users, if each has its own (pdap: a vendor).")] = "",
    json: AsJson = False,
) -> None:
    """Estimate what a deployment's answers would have earned, where an application did not show them.

    The application sends requests, shows its own choice (`mode: shadow` returns it) and reports what it showed. With
    LOG it computes SNIPS and a doubly robust estimate. These are exact figures of users' content, INTERNAL, NOT
    PRIVATE, for use in the edge zone; the propensities of the application's policy are estimated from the log. Without
    LOG it computes SNIPS from the noised counts that a deployment with `shadow: {epsilon: 0.5}` or the like releases.
    Exit codes: 0 the interval of the lift excludes 0; 1 it does not yet, and the number of further decisions that this
    needs is printed.
    """
    from hushstream.ops.export import open_export
    from hushstream.replay.logged.shadow import shadow_report

    if log is not None:
        found = shadow_report(open_export(log), place.system, party)
        show(found.as_json(), json, found.as_text())
        raise typer.Exit(0 if found.certain else 1)
    view = place.system.shadow
    if view is None:
        raise HushstreamError(
            f"shadow: expected an export of the log, or a deployment that releases its lift in the shadow, got one of "
            f"{place.system.kind} without; set shadow: {{epsilon: 0.5}} for a new deployment of p2b"
        )
    _print_released(place, view, json)


def _print_released(place: Place, view: HoldoutView, json: bool) -> None:
    """Print the released lift, and end with its exit code."""
    from hushstream.ops.live import copy

    logs = copy(place.connection, place.system.partitions, view.topics)
    print_and_exit(view.read(record.value for record in logs.records(view.topics)), json)


@letters_app.command(name="list")
@at_place
def letters_list(
    place: Place,
    zone: LetterZone,
    json: AsJson = False,
) -> None:
    """Show how many records were refused, by reason and origin; never their content."""
    from hushstream.ops.dead_letters import summarise

    found = summarise(_letters(place, zone))
    if json:
        print_json([summary.as_json() for summary in found])
        return
    for item in found:
        where = f"{item.topic}/{item.partition} {_offsets(item)}"
        typer.echo(f"{item.count:8} {item.reason:28} {where}")
    if not found:
        typer.echo("no dead letters")


def _offsets(item: Summary) -> str:
    if item.first_offset == item.last_offset:
        return f"offset {item.first_offset}"
    return f"offsets {item.first_offset} to {item.last_offset}"


@letters_app.command(name="show")
@at_place
def letters_show(
    place: Place,
    zone: LetterZone,
    topic: RefusedTopic,
    partition: RefusedPartition,
    offset: RefusedOffset,
    json: AsJson = False,
) -> None:
    """Show the dead letters of one refused record: reason, origin and keyed digest."""
    from hushstream.ops.dead_letters import of_record

    found = of_record(_letters(place, zone), topic, partition, offset)
    if json:
        print_json([letter.as_json() for letter in found])
    else:
        for letter in found:
            typer.echo(letter.as_text())


@letters_app.command(name="requeue")
@at_place
def letters_requeue(
    place: Place,
    zone: LetterZone,
    topic: RefusedTopic,
    partition: RefusedPartition,
    offset: RefusedOffset,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Put a refused record on its topic again, when the reason no longer holds; a second call does nothing.

    It needs the zone's key, and an account that may read the dead letters, and read and write the topic. On a secured
    broker, `topics apply --principals requeue-ZONE=TYPE:NAME` gives an account these rights.
    """
    from hushstream.ops.dead_letters import of_record
    from hushstream.ops.requeue import requeue

    found = of_record(_letters(place, zone), topic, partition, offset)
    _, system, connection = place
    source = key_source(place.folder, keys, seed)
    done = [requeue(connection, system, letter, source) for letter in found]
    if json:
        print_json([one.as_json() for one in done])
    else:
        for one in done:
            typer.echo(str(one))


def _letters(place: Place, zone: str) -> tuple[Letter, ...]:
    from hushstream.ops.dead_letters import letters_of, read
    from hushstream.ops.live import copy

    _, system, connection = place
    topic = letters_of(system, zone)
    return read(copy(connection, system.partitions, {topic}), (topic,), system.partitions)


def bench(
    out: Annotated[Path, typer.Option(help="File for the rows.")] = Path("report/bench.json"),
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are reported.")] = 5,
    only: Annotated[BenchSubject | None, typer.Option(help="Measure one subject only (default: both).")] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Measure only the stream, on this Kafka and on the embedded broker.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Measure what the project promises to reach; ratios within one run, medians."""
    from hushstream.replay.bench.report import bench_table, run_bench, run_kafka_bench

    def progress(text: str) -> None:
        typer.echo(text, err=True)

    if bootstrap is not None and only is BenchSubject.COMPUTE:
        raise typer.BadParameter("expected it without --only compute, which needs no broker", param_hint="--bootstrap")
    if bootstrap is not None:
        rows = run_kafka_bench(bootstrap, out, rounds=rounds, progress=progress)
    else:
        rows = run_bench(out, [s.value for s in BenchSubject if only in (None, s)], rounds=rounds, progress=progress)
    if json:
        print_json([asdict(row) for row in rows])
    else:
        Console().print(bench_table(rows))
