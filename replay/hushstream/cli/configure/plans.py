"""The command that predicts what a deployment will bring, before it runs or from what it has released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hushstream.agents.worker.deployment import artefacts_of, parse_config, read_config
from hushstream.cli.options import AsJson, Bootstrap, Prefix, SecurityFile, config_file, print_json
from hushstream.cli.places import Place, open_place
from hushstream.cli.progress import steps_on_a_bar
from hushstream.cli.tables import print_text
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.engine.system import DeploymentValues
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan")(plan_command)


def plan_command(
    config: Annotated[
        Path | None, typer.Argument(help="A deployment.yaml, or the folder that holds one; not with --deployment.")
    ] = None,
    users: Annotated[
        int | None, typer.Option(help="Number of new users (persons, holders' clients) within --days.")
    ] = None,
    visits_per_user: Annotated[
        int | None, typer.Option(help="Number of visits (decisions, ratings, records) of each user, in all.")
    ] = None,
    days: Annotated[float, typer.Option(help="Days in which these users come and make their visits.")] = 30,
    click_rate: Annotated[
        float | None, typer.Option(help="Share of visits that reward a randomly drawn item (default: as declared).")
    ] = None,
    renew_every: Annotated[
        float | None,
        typer.Option(help="p2b: days after which a user gets a new slot (default: as configured)."),
    ] = None,
    overlap: Annotated[
        float, typer.Option(help="pdap: share of items that suit users of all vendors (1: catalogues are alike).")
    ] = 0.02,
    play: Annotated[
        bool, typer.Option(help="Whether to simulate what no formula tells (pdap: sharing or not; minutes).")
    ] = True,
    picture: Annotated[Path | None, typer.Option(help="Draw share of the gain against time into this PNG.")] = None,
    deployment: Annotated[
        Path | None,
        typer.Option(help="p2b: plan this running deployment from its releases, at its past rate of users."),
    ] = None,
    bootstrap: Bootstrap = "127.0.0.1:9092",
    prefix: Prefix = None,
    security: SecurityFile = None,
    json: AsJson = False,
) -> None:
    """Predict what a deployment will bring, before it runs, from public numbers only.

    It shows the share of the non-private gain over time with its range, the first day better than no learning, the
    noise, what one person will have paid after 1, 30 and 365 days, the hold-out that shows the lift, partitions,
    memory, disk, and all assumptions. If learning will not help, it says so. With --deployment it estimates how much
    effects differ from released windows, and reads nothing else. Then it adds what more epsilon, fewer items or more
    weeks would bring, and whether to go on.
    """
    audience = _audience(users, visits_per_user, days, click_rate)
    if deployment is not None:
        if config is not None:
            raise HushstreamError("plan: expected a configuration or --deployment, got both")
        place = open_place(deployment, bootstrap, prefix, security)
        _show(_released(place, audience, click_rate), place.system.config, picture, json)
        return
    if config is None or audience is None:
        raise HushstreamError("plan: expected a configuration with --users and --visits-per-user, or --deployment")
    path = config_file(config)
    values = _renewed(read_config(path), renew_every)
    kind = kind_of(values.system)
    if kind.plan is None:
        raise HushstreamError(f"plan: expected a system that declares a plan, got {kind.name}")
    found = kind.plan(values, artefacts_of(path.parent), audience)
    if play:
        found = _played(values, found, audience, overlap, json)
    _show(found, values, picture, json)


def _audience(users: int | None, visits: int | None, days: float, rate: float | None) -> Audience | None:
    """The expected users and visits; None if neither option is given.

    Raises:
        HushstreamError: only one of the two options is given.
    """
    if users is None and visits is None:
        return None
    if users is None or visits is None:
        raise HushstreamError("plan: expected --users and --visits-per-user together, got one of them")
    return Audience(users, visits, days, rate)


def _released(place: Place, audience: Audience | None, rate: float | None) -> Plan:
    """Make the plan of a running deployment from its releases.

    Raises:
        HushstreamError: its system has no such plan, or nothing was released yet.
    """
    from hushstream.ops.live import copy

    view = place.system.ahead
    if view is None:
        raise HushstreamError(
            f"plan: expected a deployment of p2b that releases noised sums, which tell how far effects differ, "
            f"got one of {place.system.kind}; plan its configuration instead"
        )
    logs = copy(place.connection, place.system.partitions, view.topics)
    return view.plan(((one.timestamp_ms, one.value) for one in logs.records(view.topics)), audience, rate)


def _show(found: Plan, values: DeploymentValues, picture: Path | None, json: bool) -> None:
    if picture is not None:
        _draw(found, values, picture)
    if json:
        print_json(found.as_json())
        return
    print_text(found.as_text())
    if picture is not None:
        typer.echo(str(picture))


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


def _played(values: DeploymentValues, found: Plan, audience: Audience, overlap: float, quiet: bool) -> Plan:
    """Complete the plan by a simulation of the system's studies, if no formula gives the answer."""
    from hushstream.replay.study import studies

    study = studies().get(values.system)
    if study is None or study.play_plan is None:
        return found
    with steps_on_a_bar(quiet) as progress:
        return study.play_plan(values, found, audience, overlap, progress)


def _draw(found: Plan, values: DeploymentValues, picture: Path) -> None:
    from hushstream.replay.report.plans import plan_picture

    content = plan_picture(found, values.deployment)
    try:
        picture.write_bytes(content)
    except OSError as error:
        raise HushstreamError(f"plan: expected a file to write to, got {picture} ({error.strerror})") from None
