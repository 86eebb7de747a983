"""Commands that judge: a policy on the log of another, and a mechanism's noise against its claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hushstream.cli.options import AsJson, assignments, nested, print_json
from hushstream.cli.progress import progress_bar
from hushstream.cli.replays import DataDir, RunnerChoice, Settings
from hushstream.schemas.errors import HushstreamError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(evaluate)


def evaluate(
    log: Annotated[Path | None, typer.Option(help="A log as CSV or Parquet; needs --mapping.")] = None,
    mapping: Annotated[Path | None, typer.Option(help="YAML: which column of the log means what.")] = None,
    dataset: Annotated[str | None, typer.Option(help="A published log in place of a file: obd.")] = None,
    dataset_options: Annotated[
        list[str] | None, typer.Option("--option", help="Of the published log, for instance campaign=men.")
    ] = None,
    runner: Annotated[RunnerChoice, typer.Option(help="In this process, or as workers.")] = RunnerChoice.DIRECT,
    bootstrap: Annotated[str | None, typer.Option(help="A Kafka to run on (default: the embedded broker).")] = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the deployment's folder here.")] = None,
    seed: Annotated[int, typer.Option(help="Of the keys, the coins, and who contributes.")] = 0,
    contributors: Annotated[float, typer.Option(help="Share of the users who contribute a slot.")] = 0.7,
    limit: Annotated[int | None, typer.Option(help="At most so many rows.")] = None,
    first: Annotated[int, typer.Option("--from", help="Contributors' rows before this one were played already.")] = 0,
    speed: Annotated[float | None, typer.Option(help="Multiple of logged time (default: as fast as possible).")] = None,
    in_flight: Annotated[int, typer.Option(help="Rows under way at the same time.")] = 512,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="Only these arms of the comparison.")] = None,
    least_propensity: Annotated[
        float | None, typer.Option(help="Lower bound of the logging policy's propensities (default: the log's least).")
    ] = None,
    settings: Settings = None,
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Also write JSON and CSV into this folder.")] = None,
    json: AsJson = False,
) -> None:
    """Replay the log of another policy through the agents: what would they have earned? Public logs only."""
    from hushstream.replay.closed_loop import ARMS
    from hushstream.replay.evaluate_run import EvaluateOptions, evaluate_with

    options = EvaluateOptions(
        log=log,
        mapping=mapping,
        dataset=dataset,
        data_dir=data_dir,
        dataset_options=assignments(dataset_options or [], "--option"),
        runner=runner.value,
        seed=seed,
        arms=tuple(arms) if arms else tuple(ARMS),
        contributors=contributors,
        config=nested(assignments(settings or [], "--set"), "--set"),
        folder=folder,
        bootstrap=bootstrap,
        in_flight=in_flight,
        speed=speed,
        limit=limit,
        first=first,
        least_propensity=least_propensity,
    )
    with progress_bar(json) as bar:
        task = bar.add_task("starting", total=None)
        found = evaluate_with(
            options, lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
        )
    written = [] if out is None else found.write(out)
    if json:
        print_json(found.as_json())
    else:
        Console().print(found.table())
        for path in written:
            typer.echo(str(path))
    if found.changed:
        raise HushstreamError("verify: what was published does not follow from the logs")
