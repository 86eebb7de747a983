"""Commands for operators of a deployment: verify, budget, measurement, dead letters, erasure, benchmarks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hushstream.cli.options import (
    ALL,
    STATE,
    AsJson,
    Place,
    Served,
    as_client,
    as_operator,
    letter_zones,
    of_letters,
    one_of,
    one_or_all,
    open_with_keys,
    print_and_exit,
    roles_or_all,
    served,
    show,
    steps_on_a_bar,
    with_options,
    working,
)
from hushstream.ops.check.checkpoints import From
from hushstream.ops.log_copy import LogCopy
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError

letters_app = typer.Typer(help="Show records that a role refused.", no_args_is_help=True)


class BenchSubject(StrEnum):
    """What to measure."""

    COMPUTE = "compute"
    STREAM = "stream"
    SIZES = "sizes"
    GATEWAY = "gateway"
    PEERS = "peers"


LetterZone = Annotated[str, typer.Argument(callback=one_of(letter_zones), help="Zone of the dead letters.")]
RefusedTopic = Annotated[str, typer.Argument(help="The topic of the refused record.")]
RefusedPartition = Annotated[int, typer.Argument(help="Partition of the refused record.")]
RefusedOffset = Annotated[int, typer.Argument(help="Offset of the refused record.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(name="verify")(verify_command)
    app.command()(budget)
    app.command()(lift)
    app.command()(forget)
    app.command()(bench)
    app.add_typer(letters_app, name="dead-letters")


@with_options("verify-{role}", place=open_with_keys, metrics=served)
def verify_command(
    place: Place,
    metrics: Served,
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
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on while the role runs, with metrics, until SIGTERM; for one --role.")
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(help="Folder in which --follow keeps its place (default: DEPLOYMENT/state/auditor-ROLE)."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="--follow ends when it has checked all present records.")
    ] = False,
    json: AsJson = False,
) -> None:
    """Recompute what was published from the logs.

    If the beginning of a journal was deleted (`logs trim`), --from checkpoint begins after it, and says what was not
    recomputed.

    Exit codes: 0 everything follows from the logs; 1 something differs; 2 nothing differs, but a requested role was not
    checked, because its key was not given, or its journal has no beginning.
    """
    from hushstream.ops.check.verify import verify_export, verify_live

    roles = one_or_all(role)
    if follow:
        if roles is None or log or start is not From.GENESIS:
            raise HushstreamError("--follow: expected one --role, without --log and --from")
        raise typer.Exit(_follow(place, role, state, once, metrics))
    if state is not None or once:
        raise HushstreamError("--state, --once: expected them only with --follow")
    with steps_on_a_bar(json) as progress:
        if log:
            found = verify_export(log, place.system, place.keys, roles, start, progress)
        else:
            found = verify_live(place.connection, place.system, place.keys, roles, start, progress)
    print_and_exit(place, found, json)


def _follow(place: Place, role: str, state: Path | None, once: bool, metrics: Served) -> int:
    """Check a role until SIGTERM; gives the exit code."""
    # One thread: with several, the order of float sums would vary, and a replay would not give the same bits.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hushstream.agents.worker.roles import require_live
    from hushstream.ops.check.follow import run_following

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    require_live(place.system, place.keys)
    name = f"auditor-{role}"
    values = {
        **metrics._asdict(), "role": name, "deployment": place.system.config.deployment,
        "datadir": place.folder / STATE / name if state is None else state,
    }  # fmt: skip
    settings = place.connection.settings().model_copy(update=values)
    return run_following(settings, place.system, role, place.keys, once)


@as_operator
def budget(place: Place, json: AsJson = False) -> None:
    """Show what was spent and is left, by scope.

    Exit codes: 0 everything is correct; 1 the ledger has wrong entries, or a scope has spent too much; 2 by the marks
    more was spent than the ledger holds, so no figures are given; 3 a budget is exhausted: it pays for no further
    release, and the roles go on without releases.
    """
    from hushstream.ops.budget import budget_topics, read
    from hushstream.ops.log_copy import copy, mark_topics

    system = place.system
    with working("reading the ledger", json):
        logs = copy(place.connection, system.partitions, budget_topics(system), keyed=mark_topics(system))
        found = read(logs, system)
    print_and_exit(place, found, json)


@as_operator
def lift(place: Place, json: AsJson = False) -> None:
    """Show what the shared model brings, from released counts.

    Of groups (`measurement: {baseline: 0.1, own: 0.1}`) it is the reward of users with the shared private model over
    that of users who are shown the application's own choice, and over that of users who learn by themselves alone. Of
    answers (`measurement: {of: answers}`, with `mode: shadow`) it is what the answers would earn over what was shown.
    The command says how many more decisions are needed until an interval excludes 0. Exit codes: 0 each comparison is
    known (of answers: its interval excludes 0); 1 too few decisions were counted to tell it from the noise.
    """
    from hushstream.ops.log_copy import copy

    view = place.system.measurement
    if view is None:
        raise HushstreamError(
            f"lift: expected a deployment that measures, got one of {place.system.kind} that does not; a configuration "
            f"is fixed, so set measurement: {{baseline: 0.1, own: 0.1}} for a new deployment of p2b"
        )
    logs = copy(place.connection, place.system.partitions, view.topics)
    print_and_exit(place, view.read(record.value for record in logs.records(view.topics)), json)


@as_client
def forget(
    place: Place,
    user: Annotated[str, typer.Argument(help="The account; - reads it from standard input.")],
    export: Annotated[
        Path | None, typer.Option(help="Only erase the user's records in this export, made after the deletion request.")
    ] = None,
    party: Annotated[str, typer.Option(help="Name of the account's party, if each party has its own users.")] = "",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until the deletion request is folded.")] = 10.0,
    json: AsJson = False,
) -> None:
    """Erase a user's state; say what stays.

    It needs the client's rights, and says what is deleted later.
    """
    from hushstream.ops.forget import erase_export
    from hushstream.ops.forget import forget as append

    name = sys.stdin.readline().rstrip("\n") if user == "-" else user
    if export is not None:
        number = erase_export(export, place.system, name, party)
        text = f"{export}: {count_text(number, 'record')} erased; verify reports what was made from them as erased"
        show({"export": str(export), "records": number}, json, text)
        return
    with working("erasing, and waiting until it is folded", json):
        done = append(place.connection, place.system, name, wait, party)
    show(asdict(done), json, done.as_text())
    raise typer.Exit(1 if done.folded is False and wait else 0)


@letters_app.command(name="list")
@of_letters
def letters_list(place: Place, zone: LetterZone, json: AsJson = False) -> None:
    """Show how many records were refused, by reason and origin; never their content."""
    from hushstream.ops.dead_letters import summarise

    found = summarise(*letters_in(place, zone, json))
    show(list(map(asdict, found)), json, *(map(str, found) if found else ("no dead letters",)))


@letters_app.command(name="show")
@of_letters
def letters_show(
    place: Place,
    zone: LetterZone,
    topic: RefusedTopic,
    partition: RefusedPartition,
    offset: RefusedOffset,
    json: AsJson = False,
) -> None:
    """Show the dead letters of one refused record: reason, origin and keyed digest."""
    from hushstream.ops.dead_letters import read

    found = [asdict(letter) for letter in read(*letters_in(place, zone, json), (topic, partition, offset))]
    text = ("".join(f"{name}: {value}\n" for name, value in letter.items()) for letter in found)
    show(found, json, *text)


def letters_in(place: Place, zone: str, json: bool) -> tuple[LogCopy, tuple[str], Mapping[str, int]]:
    """A copy of the dead letters of one zone, their topic, and the numbers of partitions."""
    from hushstream.ops.dead_letters import letters_of
    from hushstream.ops.log_copy import copy

    topic, counts = letters_of(place.system, zone), place.system.partitions
    with steps_on_a_bar(json) as progress:
        return copy(place.connection, counts, {topic}, progress), (topic,), counts


def bench(
    out: Annotated[Path, typer.Option(help="File for the rows.")] = Path("report/bench.json"),
    rounds: Annotated[int, typer.Option(min=1, help="Repetitions; medians are reported.")] = 5,
    only: Annotated[
        BenchSubject | None, typer.Option(help="Measure one subject only (default: all, not gateway or peers).")
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Broker for peers and scale; topics stay there.")] = None,
    scale: Annotated[int | None, typer.Option(min=1_000, help="Measure so many users only, ten visits each.")] = None,
    page: Annotated[Path | None, typer.Option(help="Page whose tables to make anew.")] = None,
    json: AsJson = False,
) -> None:
    """Measure speed and sizes that the project has targets for.

    Every figure is the median of --rounds repetitions. A ratio compares two figures of one run on one machine.
    """
    from hushstream.replay.bench.sizes import SUBJECTS, bench_table, run_bench

    def progress(text: str) -> None:
        typer.echo(text, err=True)

    subjects = (only.value,) if only is not None else SUBJECTS if scale is None else ()
    rows = run_bench(out, subjects, rounds=rounds, progress=progress, bootstrap=bootstrap, page=page, scale=scale)
    show(list(map(asdict, rows)), json, bench_table(rows))
