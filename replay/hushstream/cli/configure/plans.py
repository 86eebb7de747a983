"""The commands that draft a deployment, and that predict what it will bring before it runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from hushstream.agents.worker.deployment import artefacts_of, parse_config, read_config
from hushstream.cli.options import AsJson, config_file, log_source, print_json, print_text
from hushstream.engine.declare.declaration import Kind
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.engine.system import DeploymentValues
from hushstream.privacy.amounts import count_text
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of

if TYPE_CHECKING:
    from hushstream.replay.logged.drafts.deployment import Shop
    from hushstream.replay.logged.table import Source

Number = TypeVar("Number", int, float)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(init)
    app.command(name="plan")(plan_command)


def init(
    config: Annotated[Path, typer.Argument(help="The deployment.yaml to write; its name names the deployment.")] = Path(
        "shop.yaml"
    ),
    log: Annotated[
        Any | None,
        typer.Option(
            "--from",
            parser=log_source,
            metavar="FILE|duckdb:SQL",
            help="Draft it from this log (CSV, Parquet, JSON lines or a query), beside a mapping for it.",
        ),
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="The mapping; drafted where it is not there (default: NAME.map.yaml).")
    ] = None,
    public: Annotated[
        bool, typer.Option("--public", help="I say that all values that are taken from the log's rows are public.")
    ] = False,
    items: Annotated[int | None, typer.Option(min=1, help="Number of items that may be shown today.")] = None,
    known: Annotated[
        list[str] | None,
        typer.Option(
            help="A feature of a visit: NAME=a,b,c (one of these), NAME=a|b|c (any of these), NAME=16..96, NAME=clock, "
            "NAME=weekday or NAME=yes/no."
        ),
    ] = None,
    levels: Annotated[
        int | None, typer.Option(min=1, max=100, help="Reward levels above 0: 1 for clicks, 4 for graded rewards.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of visits that are rewarded, about: 0.03 for 3 %.")
    ] = None,
    visits: Annotated[int | None, typer.Option(min=1, help="Number of visits a month (decisions).")] = None,
    visits_per_user: Annotated[int | None, typer.Option(min=1, help="Visits that most visitors make.")] = None,
) -> None:
    """Write a commented configuration, from a log or from a few answers.

    Windows and control groups suit the number of visits, by the forecast of `hushstream plan`. Where so few visits may
    not teach enough, the number that would do is told, and nothing is written. On a log `evaluate` decides that.

    hushstream init shop.yaml                        # asks six questions

    hushstream init --items 40 --known age=16..96 --rate 0.03 --visits 90000 --visits-per-user 4    # asks nothing
    """
    from hushstream.replay.logged.drafts.deployment import (
        UNMEASURED,
        WINDOWS,
        Shop,
        TooFew,
        feature_lines,
        fitted,
        shop_of_log,
        users_of,
    )
    from hushstream.replay.logged.drafts.mapping import draft_mapping
    from hushstream.replay.logged.mapping import table_mapping

    where = mapping or config.with_suffix(".map.yaml")
    written: dict[Path, str] = {}
    maps = log is not None and (mapping is None or not mapping.exists())
    for path in (config, where) if maps else (config,):
        if path.exists():
            raise HushstreamError(f"{path}: expected no file, as init overwrites none; got one")
    if log is None:
        if not sys.stdin.isatty():
            _require_answers(items=items, known=known, rate=rate, visits=visits, visits_per_user=visits_per_user)
            levels = levels or 1
        count = _asked(items, "How many items may be shown today?", 10)
        said = known or _asked_features()
        levels = _asked(levels, "What is a reward: 1 for yes or no, 4 for a grade from 0 to 1?", 1)
        rate = _asked(rate, "Which share of visits is rewarded, about (0.03 for 3 %)?", 0.05, _share)
        visits = _asked(visits, "How many visits come in a month?", 10_000)
        each = _asked(visits_per_user, "How many visits do most visitors make?", 5)
        features, users = tuple(feature_lines(said)), users_of(visits, each)
        stated = {"--items": count, "--levels": levels, "--rate": rate, "--visits": visits, "--visits-per-user": each}
        shop = Shop(
            name=config.stem, items=count, features=features, users=users, visits=each, rate=rate, levels=levels
        )
    else:
        if any(value is not None for value in (items, known, levels, rate, visits_per_user)):
            raise HushstreamError("init: expected --from with --visits at most, as the log holds the rest, got more")
        shop = shop_of_log(log, config.stem, visits, None if maps else table_mapping(where, draft=True))
        if maps:
            written[where] = draft_mapping(log)
    try:
        shop = fitted(shop)
    except TooFew as refused:
        if log is None and refused.flag:
            flags = [part for flag in {**stated, **refused.flag}.items() for part in flag]
            ready = shlex.join(map(str, ["init", config, *flags, *(part for one in said for part in ("--known", one))]))
            raise HushstreamError(f"{refused}. With your other answers: `hushstream {ready}`") from None
        if log is None:
            raise
        # Only the log can tell: `evaluate` judges it by the draft, with the least noise of a draft.
        typer.echo(f"warning: {UNMEASURED}", err=True)
        shop = replace(shop, windows=WINDOWS[-1], control=0, enough=False)
    written[config] = (shop := replace(shop, marks=shop.marks and not public)).text(public)
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    _say_next(config, log, where, shop, visits)


def _say_next(config: Path, log: Source | None, mapping: Path, shop: Shop, visits: int | None) -> None:
    from hushstream.replay.logged.drafts.deployment import audience_of, forecast

    settings = f"{count_text(shop.users // shop.window, 'model')} for them"
    groups = f"{shop.control:.0%} of users in each of two control groups" if shop.control else "no control groups"
    year = " (the log's)" if visits is None else f" (a year of {visits:,} visits a month, {shop.visits} each)"
    typer.echo(f"{config}: {shop.slots:,} users in its life{year}, {settings}, {groups}. Read it through; then:")
    if log is not None:
        files = ("--log", log, "--mapping", mapping, "--deployment", config)
        typer.echo(f"  hushstream evaluate {shlex.join(map(str, files))}")
    if not shop.enough:
        return
    if shop.marks:
        typer.echo("  put public values where from_rows says that they are from rows, or say --public, before these:")
    ahead, plan = audience_of(shop), forecast(shop)
    assert plan.first_day is not None
    users = f"--users {ahead.users} --visits-per-user {ahead.visits}"
    during = f"--days {ahead.days:g} --visit-days {ahead.visit_days:g}"
    means = ", ".join(f"{name} {value.middle:.3g}" for name, value in plan.values.items())
    typer.echo(f"  hushstream plan {config} {users} {during}   # reward a visit: {means}; from day {plan.first_day[1]}")
    typer.echo(f"  hushstream guarantee {config}")
    typer.echo(f"  hushstream up {config} --detach")
    if shop.named:
        typer.echo(f"  hushstream items add ID ... --deployment {config.with_suffix('.data')}/deployment")


def _require_answers(**flags: object) -> None:
    missing = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value is None]
    if missing:
        raise HushstreamError(
            f"init: expected {', '.join(missing)} where nobody can be asked, got none; for example --items 10 --known "
            "device=phone,laptop --rate 0.05 --visits 10000 --visits-per-user 5"
        )


def _asked(value: Number | None, question: str, default: Number, read: Callable[[str], Number] | None = None) -> Number:
    """A flag's value, or the answer to its question."""
    if value is not None:
        return value
    answered: Number = typer.prompt(question, default=default, type=type(default), value_proc=read)
    return answered


def _share(text: str) -> float:
    try:
        if 0 < float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise typer.BadParameter(f"expected a share from 0 to 1, as 0.03 for 3 %, got {text!r}")


def _asked_features() -> list[str]:
    from hushstream.replay.logged.drafts.deployment import stated

    typer.echo("What is known of a visit? One a line: device=phone,laptop, age=16..96, hour=clock; then an empty one.")
    found: list[str] = []
    while (said := typer.prompt("known", default="", show_default=False)) or not found:
        try:
            stated(said)
        except HushstreamError as error:
            typer.echo(error, err=True)
        else:
            found.append(said)
    return found


def plan_command(
    config: Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")],
    users: Annotated[
        int | None,
        typer.Option(
            help="Number of new users (persons, holders' clients) within --days (default: p2b's expected_slots)."
        ),
    ] = None,
    visits_per_user: Annotated[
        int | None,
        typer.Option(
            help="Number of visits (decisions, ratings, records) of each user, in all (default: what p2b's reports of "
            "a user take)."
        ),
    ] = None,
    days: Annotated[
        float | None,
        typer.Option(help="Days in which these users come (default: 30; 335 where --users is left out)."),
    ] = None,
    visit_days: Annotated[
        float | None,
        typer.Option(help="Days that the visits of one user take (default: as --days; 30 where --users is left out)."),
    ] = None,
    click_rate: Annotated[
        float | None, typer.Option(help="Share of visits that reward a randomly drawn item (default: as declared).")
    ] = None,
    lead: Annotated[
        float | None,
        typer.Option(help="pdol: share of late labels that a central learner predicts beyond nodes alone."),
    ] = None,
    renew_every: Annotated[
        float | None, typer.Option(help="p2b: days after which a user gets a new report (default: as configured).")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw share of the gain against time into this PNG.")] = None,
    json: AsJson = False,
) -> None:
    """Predict what a deployment will bring, from public numbers only.

    The verdict comes first. Then: the share of the non-private gain over time with its range, the first day better than
    own learning, the noise, what one person is charged within 1, 30 and 365 days, partitions, memory, disk, and all
    assumptions. Nothing is read but the configuration and these numbers.
    """
    path = config_file(config)
    values = _renewed(read_config(path), renew_every)
    kind = kind_of(values.system)
    if kind.plan is None:
        raise HushstreamError(f"plan: expected a system that declares a plan, got {kind.name}")
    audience = _audience(
        kind,
        values,
        users=users,
        visits=visits_per_user,
        days=days,
        rate=click_rate,
        lead=lead,
        visit_days=visit_days,
    )
    found = kind.plan(values, artefacts_of(path.parent), audience)
    if picture is not None:
        _draw(found, values, picture)
    if json:
        print_json(found.as_json())
        return
    print_text(found.as_text())
    if picture is not None:
        typer.echo(str(picture))


def _audience(kind: Kind, values: DeploymentValues, **stated: float | None) -> Audience:
    """The stated audience; what is left out is what the configuration expects.

    Raises:
        HushstreamError: a number is left out that the configuration does not state.
    """
    given: dict[str, Any] = {name: value for name, value in stated.items() if value is not None}
    for name in ("users", "visits"):
        if name not in given and kind.audience is None:
            flag = {"users": "--users", "visits": "--visits-per-user"}[name]
            example = "add estimates, for example --users 20000 --visits-per-user 12"
            raise HushstreamError(f"plan: expected {flag}, as {kind.name} has no setting for it, got none; {example}")
    expected = None if kind.audience is None else kind.audience(values)
    if expected is None or "users" in given:
        return Audience(**({} if expected is None else {"visits": expected.visits}) | given)
    return replace(expected, **given)


def _renewed(values: DeploymentValues, days: float | None) -> DeploymentValues:
    """Change a configuration so that users get new slots after this number of days.

    Raises:
        ConfigurationError: its system has no such setting, or other settings forbid this value.
    """
    if days is None:
        return values
    written = kind_of(values.system).language.written(values)
    privacy = {**written.get("privacy", {}), "renew_every_seconds": days * 86_400}
    renewed: DeploymentValues = parse_config({**written, "privacy": privacy}, "--renew-every")
    return renewed


def _draw(found: Plan, values: DeploymentValues, picture: Path) -> None:
    from hushstream.replay.report.payoff import plan_picture

    content = plan_picture(found, values.deployment)
    try:
        picture.write_bytes(content)
    except OSError as error:
        raise HushstreamError(f"plan: expected a file to write to, got {picture} ({error.strerror})") from None
