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
from hushstream.cli.progress import told_on_a_bar, working
from hushstream.engine.declare.declaration import HoldoutView
from hushstream.ops.access.acl_rules import AccessDifference, Principals, Rule
from hushstream.ops.check.checkpoints import From
from hushstream.ops.dead_letters import Letter
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


LetterZone = Annotated[str, typer.Argument(callback=one_of(letter_zones), help="Whose dead letters.")]
RefusedTopic = Annotated[str, typer.Argument(help="The topic of the refused record.")]
RefusedPartition = Annotated[int, typer.Argument(help="Its partition.")]
RefusedOffset = Annotated[int, typer.Argument(help="Its offset.")]


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
    """What `topics apply` would create."""
    from hushstream.ops.access.acls import plan as plan_rules
    from hushstream.ops.topics import describe, plan

    who = Principals.of(principals or ())
    _, system, connection = place
    wanted = plan(system, describe(connection, system), connection.prefix)
    rules = _told(plan_rules(connection, system, who)) if acls else ()
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
    """Create the topics and access rules that are missing; what is there is never changed.

    Where the loss of one broker could take what cannot be made again, it warns, as `topics check` does.
    """
    from hushstream.ops.access.acls import apply as apply_rules
    from hushstream.ops.topics import apply, warnings

    who = Principals.of(principals or ())
    _, system, connection = place
    created = apply(connection, system, replication, min_in_sync)
    _warn(warnings(connection, system))
    rules = _told(apply_rules(connection, system, who)) if acls else ()
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

    Access rules are for an administrator of the cluster to see; anybody else says --no-acls.
    """
    from hushstream.ops.access.acls import check as check_rules
    from hushstream.ops.topics import check, warnings

    who = Principals.of(principals or ())
    _, system, connection = place
    found: list[Difference | AccessDifference] = [*check(connection, system, one_in_sync)]
    _warn(warnings(connection, system))
    found += _told(check_rules(connection, system, who)) if acls else ()
    if json:
        print_json([difference.as_json() for difference in found])
    else:
        for difference in found:
            typer.echo(str(difference))
        if not found:
            typer.echo("all topics are as declared")
    raise typer.Exit(1 if found else 0)


def _warn(warnings: Sequence[str]) -> None:
    """What is no difference is said beside the answer, not in it."""
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)


def _told(found: tuple[Found, ...] | None) -> tuple[Found, ...]:
    """What was found on access rules; that a broker enforces none is said beside the answer, not in it."""
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
    """None for all roles that the deployment has."""
    return None if role == ALL else (role,)


@at_place
def verify_command(
    place: Place,
    role: Annotated[
        str, typer.Option(callback=one_of(roles_or_all), help="Whose output; `all` needs the keys of all zones.")
    ] = ALL,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="An export to read in place of the broker; several, oldest first, are read as one."),
    ] = None,
    start: Annotated[
        From,
        typer.Option(
            "--from",
            help="genesis: from the first record on; checkpoint: from the oldest published state that can be gone on "
            "from; last-checkpoint: from the newest, quickly.",
        ),
    ] = From.GENESIS,
    keys: KeyFolder = None,
    seed: KeySeed = None,
    json: AsJson = False,
) -> None:
    """Recompute what was published from the logs.

    Where the beginning of a journal was deleted (`topics trim`), --from checkpoint begins behind it, and says what was
    not recomputed.

    Exit codes: 0 all follows from the logs; 1 something differs; 2 nothing differs, and a role that was asked for was
    not checked, as its key is not at hand, or its journal has no beginning.
    """
    from hushstream.ops.check.verify import verify_export, verify_live

    _, system, connection = place
    source = key_source(place.folder, keys, seed)
    roles = one_or_all(role)
    with told_on_a_bar(json) as progress:
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
    """What has been spent and is left, by scope and mechanism, beside the configured limits.

    Exit codes: 0 all is as it should be; 1 the ledger is not what the roles write, or a scope is overspent; 2 it lacks
    what marks say was spent, so that no figure is given; 3 a budget is exhausted: nothing more is released out of it,
    and the roles go on without.
    """
    from hushstream.ops.live import copy
    from hushstream.ops.spending.budget import budget_topics, read

    _, system, connection = place
    with working("reading the ledger", json):
        found = read(copy(connection, system.partitions, budget_topics(system)), system)
    print_and_exit(found, json)


@at_place
def lift(
    place: Place,
    json: AsJson = False,
) -> None:
    """What the model is worth over the hold-out, with an interval, from released counts alone.

    For deployments that set `holdout: {share: 0.1}` or the like. It says how many more decisions it takes until the
    interval excludes 0. Exit codes: 0 the uplift is known; 1 too little was shown to tell it from the noise, and how
    much more is needed is printed.
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
    _tell_released(place, view, json)


@at_place
def shadow(
    place: Place,
    log: Annotated[
        Path | None, typer.Argument(help="An export of `topics export`, whole or of the learner's role.")
    ] = None,
    party: Annotated[str, typer.Option(help="Whose users, where each party has its own (pdap: a vendor).")] = "",
    json: AsJson = False,
) -> None:
    """What a deployment's answers would have earned that an application asked for and did not show.

    The application asks, shows its own choice (`mode: shadow` gives it back) and says what it was. With LOG: SNIPS and
    a doubly robust estimate, exact figures of users' content, INTERNAL, NOT PRIVATE, for inside the edge zone; how
    likely the application's policy was to show that is estimated from the log. Without: SNIPS from noised counts, as
    the deployment releases them where `shadow: {epsilon: 0.5}` or the like is set. Exit codes: 0 the interval of the
    lift excludes 0; 1 it does not yet, and how many more decisions that takes is printed.
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
    _tell_released(place, view, json)


def _tell_released(place: Place, view: HoldoutView, json: bool) -> None:
    """Print what is released of a lift, and end with its code."""
    from hushstream.ops.live import copy

    logs = copy(place.connection, place.system.partitions, view.topics)
    parts = (part for topic in view.topics for _, part in logs.of_topic(topic))
    found = view.read(record.value for part in parts for record in part.records)
    print_and_exit(found, json)


@letters_app.command(name="list")
@at_place
def letters_list(
    place: Place,
    zone: LetterZone,
    json: AsJson = False,
) -> None:
    """How many records were refused, by reason and origin; never what they held."""
    from hushstream.ops.dead_letters import summarise

    found = summarise(_letters(place, zone))
    if json:
        print_json([summary.as_json() for summary in found])
        return
    for item in found:
        where = f"{item.topic}/{item.partition} offsets {item.first_offset} to {item.last_offset}"
        typer.echo(f"{item.count:8} {item.reason:28} {where}")
    if not found:
        typer.echo("no dead letters")


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
    """The dead letters of one refused record: reason, origin and keyed digest."""
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
    """Put a refused record on its topic again, once the reason has passed; a second time does nothing.

    It needs the zone's key, and an account that may read the dead letters and read and write the topic: on a secured
    broker the one that `topics apply --principals requeue-ZONE=TYPE:NAME` gave these rights.
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
    return read(copy(connection, system.partitions, {topic}), (topic,))


def bench(
    out: Annotated[Path, typer.Option(help="Where the rows are written.")] = Path("report/bench.json"),
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are reported.")] = 5,
    only: Annotated[BenchSubject | None, typer.Option(help="One subject; both by default.")] = None,
    bootstrap: Annotated[
        str | None, typer.Option(help="Measure the stream on this Kafka beside the embedded broker, and nothing else.")
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
