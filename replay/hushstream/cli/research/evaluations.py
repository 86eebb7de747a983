"""Commands that evaluate a policy on the log of another policy, and that audit a mechanism's noise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from hushstream.cli.options import (
    AsJson,
    OwnKafka,
    SecurityFile,
    assignments,
    config_file,
    log_source,
    show,
    steps_on_a_bar,
)
from hushstream.cli.research.replays import DataDir, RunnerChoice, Settings, show_run
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.audits.configured import AuditReport
    from hushstream.replay.audits.row import Effort


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(evaluate)
    app.command()(audit)


_REPLAYED = "How the log is replayed"
_PUBLISHED = "A published log in place of your own"


def evaluate(
    log: Annotated[
        Any | None,
        typer.Option(
            parser=log_source, metavar="FILE|duckdb:SQL", help="A log (CSV, Parquet, JSON, a query); needs --mapping."
        ),
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="YAML file: the meaning of each column of the log.")] = None,
    deployment: Annotated[
        Path | None, typer.Option(help="Evaluate this deployment.yaml, which may be a draft; declares features.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="A published log instead of a file: obd.", rich_help_panel=_PUBLISHED)
    ] = None,
    dataset_options: Annotated[
        list[str] | None,
        typer.Option(
            "--option", help="An option of the published log, for instance campaign=men.", rich_help_panel=_PUBLISHED
        ),
    ] = None,
    runner: Annotated[
        RunnerChoice, typer.Option(help="Run in this process, or as workers.", rich_help_panel=_REPLAYED)
    ] = RunnerChoice.DIRECT,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep the deployment's folder here.", rich_help_panel=_REPLAYED)
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Seed of the keys, of random choices, and of who contributes.", rich_help_panel=_REPLAYED),
    ] = 0,
    contributors: Annotated[
        float, typer.Option(help="Share of the users who contribute a report.", rich_help_panel=_REPLAYED)
    ] = 0.7,
    limit: Annotated[int | None, typer.Option(help="Largest number of rows.", rich_help_panel=_REPLAYED)] = None,
    first: Annotated[
        int,
        typer.Option("--from", help="First row to play; those before were played already.", rich_help_panel=_REPLAYED),
    ] = 0,
    speed: Annotated[
        float | None,
        typer.Option(help="Multiple of logged time (default: as fast as possible).", rich_help_panel=_REPLAYED),
    ] = None,
    in_flight: Annotated[int, typer.Option(help="Largest number of rows in flight.", rich_help_panel=_REPLAYED)] = 512,
    conditions: Annotated[
        list[str] | None,
        typer.Option(
            "--condition",
            help="Only these conditions: cold, warm_private, and of a replay warm_nonprivate.",
            rich_help_panel=_REPLAYED,
        ),
    ] = None,
    least_propensity: Annotated[
        float | None,
        typer.Option(
            help="Lower bound of the logging policy's propensities (default: the log's least).",
            rich_help_panel=_REPLAYED,
        ),
    ] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Also write JSON, CSV, picture and page into this folder.")] = None,
    json: AsJson = False,
) -> None:
    """Replay another policy's log: what would have been earned?

    ```sh
    hushstream init shop.yaml --from log.csv      # drafts shop.yaml and shop.map.yaml
    hushstream evaluate --log log.csv --mapping shop.map.yaml --deployment shop.yaml --out report
    ```

    The verdict comes first: whether to deploy the shared private model, by its differences to the logging policy, the
    best single item and users' own learning. Then values by replay, IPS, SNIPS and DR, with intervals over users; none
    is given below an effective sample size of 20.

    A log has one decision a row: a CSV, Parquet or JSON file, or a query of DuckDB. The mapping says what its columns
    mean:

    ```yaml
    data: internal                  # or public: exact figures may leave this machine
    user: customer                  # a column, as all that follow
    timestamp: at                   # timestamp_unit: iso, s or ms
    arm: offer                      # what was shown; arms: [bag, hat], all names, or how many
    reward: bought                  # from 0 to 1
    propensity: chance              # or uniform: true; estimated where it is left out
    features: {age: {kind: number, range: [18, 80]}}    # where no --deployment declares them
    eligible: choices               # what could be shown; position: place on the screen
    ```
    """
    from hushstream.replay.checks import nested
    from hushstream.replay.study import studies

    judge = next(study.evaluate for study in studies().values() if study.evaluate is not None)
    options: dict[str, Any] = dict(
        log=log,
        mapping=mapping,
        deployment=deployment,
        dataset=dataset or "",
        data_dir=data_dir,
        world=assignments(dataset_options or [], "--option"),
        runner=runner.value,
        seed=seed,
        contributors=contributors,
        config=nested(assignments(settings or [], "--set"), "--set"),
        folder=folder,
        bootstrap=bootstrap,
        security=security,
        in_flight=in_flight,
        speed=speed,
        limit=limit,
        first=first,
        least_propensity=least_propensity,
        **({"conditions": tuple(conditions)} if conditions else {}),
    )
    show_run(partial(judge, options), out, json)


def audit(
    everything: Annotated[
        bool, typer.Option("--all", help="Attack every mechanism, counter and release mode, as a table.")
    ] = False,
    only: Annotated[list[str] | None, typer.Option("--only", help="Attack only these rows of --all.")] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="--all with the fewest runs that find half noise: minutes.")
    ] = False,
    thorough: Annotated[bool, typer.Option("--thorough", help="--all with ten times the runs.")] = False,
    config: Annotated[Path | None, typer.Option(help="Attack the releases of this deployment.yaml or folder.")] = None,
    runs: Annotated[
        int | None, typer.Option(help="With --config: releases with the slot, and as many without it (default 10000).")
    ] = None,
    false_alarm: Annotated[float, typer.Option(help="Probability with which an honest mechanism fails.")] = 1e-6,
    json: AsJson = False,
) -> None:
    """Attack a mechanism's noise; print a lower bound on its epsilon.

    It exits with 1 where that bound is above the claim; rows that end in -paper attack papers' claims, which are
    expected to fail. Without --config, --all or --only it lists what can be attacked.
    """
    if everything or only:
        if config is not None or runs is not None:
            raise HushstreamError("audit: expected --all or --only alone, got --config or --runs beside it")
        if quick and thorough:
            raise HushstreamError("audit: expected --quick or --thorough, got both")
        effort: Effort = "quick" if quick else "thorough" if thorough else "full"
        _audit_all(only or [], effort, false_alarm, json)
    if config is not None:
        _audit_one(config, 10_000 if runs is None else runs, false_alarm, json)
    if runs is not None:
        raise HushstreamError("audit: expected --runs with --config, got it alone")
    _list_audits(json)


def _list_audits(json: bool) -> NoReturn:
    """List the rows of the table of all, with what each claims."""
    from rich import box
    from rich.table import Table

    from hushstream.replay.audits.catalogue import audits_by_system
    from hushstream.replay.audits.row import RELATIONS

    every = [(system, audit) for system, audits in audits_by_system().items() for audit in audits]
    rows = [{"system": system, "name": one.name, "claim": one.claim, "attack": one.about} for system, one in every]
    listed = Table("system", "name", "claim (epsilon, delta)", "attack", box=box.SIMPLE_HEAD, show_edge=False)
    for row in rows:
        listed.add_row(*row.values())
    hint = f"{RELATIONS} --only NAME attacks one, --all every one, --config a deployment's own releases."
    show({"rows": rows}, json, listed, hint)
    raise typer.Exit(0)


def _audit_all(names: list[str], effort: Effort, false_alarm: float, json: bool) -> NoReturn:
    from hushstream.replay.audits.catalogue import run_audits
    from hushstream.replay.audits.row import as_json, as_table

    with steps_on_a_bar(json) as progress:
        rows = run_audits(names, effort, false_alarm, progress)
    show(as_json(rows, effort), json, as_table(rows))
    raise typer.Exit(0 if all(row.passed for row in rows) else 1)


def _audit_one(config: Path, runs: int, false_alarm: float, json: bool) -> NoReturn:
    from hushstream.replay.audits.row import as_table

    report = _audit_config(config, runs, false_alarm)
    show(report.as_json(), json, report.facts, as_table(report.rows))
    raise typer.Exit(0 if report.passed else 1)


def _audit_config(config: Path, runs: int, false_alarm: float) -> AuditReport:
    from hushstream.agents.worker.deployment import artefacts_of, read_config
    from hushstream.replay.audits.catalogue import audit_config
    from hushstream.systems.catalogue import kind_of

    path = config_file(config)
    values, artefacts = read_config(path), artefacts_of(path.parent)
    if artefacts.public_dataset is not None and kind_of(values.system).guarantee(values, artefacts).unnoised:
        raise HushstreamError(
            f"{config}: expected a deployment, got the folder of a replay of a public dataset: its interactions leave "
            f"un-noised beside the release, so no bound on the release's noise speaks of them"
        )
    return audit_config(values, runs, false_alarm)
