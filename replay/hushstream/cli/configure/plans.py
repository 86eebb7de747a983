"""The command that says what a deployment will bring, before it runs or from what it has released."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hushstream.agents.worker.deployment import artefacts_of, parse_config, read_config
from hushstream.cli.options import AsJson, config_file, show
from hushstream.cli.progress import told_on_a_bar
from hushstream.engine.declare.plan import Audience, Plan
from hushstream.engine.system import DeploymentValues
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kind_of


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(name="plan")(plan_command)


def plan_command(
    config: Annotated[Path, typer.Argument(help="A deployment.yaml, or the folder that holds one.")],
    users: Annotated[int, typer.Option(help="New users (persons, holders' clients) that come within --days.")],
    visits_per_user: Annotated[int, typer.Option(help="Visits (decisions, ratings, records) of each, in all.")],
    days: Annotated[float, typer.Option(help="Days in which so many come, and in which each makes their visits.")] = 30,
    click_rate: Annotated[
        float | None, typer.Option(help="Share of visits that reward an item drawn at random (default: as declared).")
    ] = None,
    renew_every: Annotated[
        float | None,
        typer.Option(help="p2b: days after which a user gets a new slot (default: as configured)."),
    ] = None,
    overlap: Annotated[
        float, typer.Option(help="pdap: share of items that suit the users of any vendor (1: catalogues are alike).")
    ] = 0.02,
    play: Annotated[
        bool, typer.Option(help="Whether to play what no formula tells (pdap: sharing against keeping apart; minutes).")
    ] = True,
    picture: Annotated[Path | None, typer.Option(help="Draw share of the gain against time into this PNG.")] = None,
    json: AsJson = False,
) -> None:
    """What a deployment will bring, before it runs, from public numbers alone.

    The share of the non-private gain against time with its range, the first day better than no learning, the noise,
    what one person will have paid after 1, 30 and 365 days, the hold-out that shows the lift, partitions, memory, disk,
    and what all of it assumes. Where it will not beat no learning it says so.
    """
    path = config_file(config)
    values = _renewed(read_config(path), renew_every)
    kind, audience = kind_of(values.system), Audience(users, visits_per_user, days, click_rate)
    if kind.plan is None:
        raise HushstreamError(f"plan: expected a system that declares a plan, got {kind.name}")
    found = kind.plan(values, artefacts_of(path.parent), audience)
    if play:
        found = _played(values, found, audience, overlap, json)
    if picture is not None:
        _draw(found, values, picture)
    show(found.as_json(), json, found.as_text(), "" if picture is None else str(picture))


def _renewed(values: DeploymentValues, days: float | None) -> DeploymentValues:
    """A configuration whose users get new units so often.

    Raises:
        ConfigurationError: its system has no such setting, or others forbid this value.
    """
    if days is None:
        return values
    written = kind_of(values.system).language.written(values)
    privacy = {**written.get("privacy", {}), "renew_every_seconds": days * 86_400}
    renewed: DeploymentValues = parse_config({**written, "privacy": privacy}, "--renew-every")
    return renewed


def _played(values: DeploymentValues, found: Plan, audience: Audience, overlap: float, quiet: bool) -> Plan:
    """With what the studies of the system play, where its plan leaves the answer open."""
    from hushstream.replay.study import studies

    study = studies().get(values.system)
    if study is None or study.play_plan is None:
        return found
    with told_on_a_bar(quiet) as progress:
        return study.play_plan(values, found, audience, overlap, progress)


def _draw(found: Plan, values: DeploymentValues, picture: Path) -> None:
    from hushstream.replay.report.plans import plan_picture

    content = plan_picture(found, values.deployment)
    try:
        picture.write_bytes(content)
    except OSError as error:
        raise HushstreamError(f"plan: expected a file to write to, got {picture} ({error.strerror})") from None
