"""Commands that play data: the demo, a replay of any dataset, experiments, and the datasets themselves."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from hushstream.cli.options import AsJson, OwnKafka, SecurityFile, assignments, nested, print_json, require_folder
from hushstream.cli.progress import progress_bar
from hushstream.cli.tables import print_table
from hushstream.schemas.errors import HushstreamError

datasets_app = typer.Typer(help="Datasets: list, fetch with checksums, inspect.", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="HUSHSTREAM_DATA", help="A local folder in place of downloads.")
]
ReportDir = Annotated[Path, typer.Option("--report", help="Where the report is written.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A configuration value, for instance release.epsilon=0.5.")
]
WorldSettings = Annotated[
    list[str] | None, typer.Option("--world", help="An option of the dataset, for instance users=2000.")
]


class RunnerChoice(StrEnum):
    """Where the machines run."""

    DIRECT = "direct"
    STREAM = "stream"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(demo)
    app.command()(replay)
    app.command()(experiment)
    app.add_typer(datasets_app, name="datasets")


def demo(
    report: ReportDir = Path("report"),
    seed: Annotated[int, typer.Option(help="Of the world, the coins and the keys.")] = 0,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    json: AsJson = False,
) -> None:
    """The main job: 2,000 users on an embedded broker and three workers; does a private start help new users?"""
    from hushstream.replay.run import RunOptions

    options = RunOptions(
        dataset="synthetic",
        runner="stream",
        seed=seed,
        contributors=1400,
        evaluated=600,
        world={"variant": "softmax", "weight_scale": 5.0, "reward_scale": 1.0},
        config={"deployment": "demo", "encoder": {"codes": 8}, "release": {"epsilon": 1.0}},
        bootstrap=bootstrap,
        security=security,
    )
    _run_and_report(options, report, json)


def replay(
    system: Annotated[str, typer.Argument(help="Which system: p2b or colin.")] = "p2b",
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="A dataset (default: synthetic for p2b, colin for colin).")
    ] = None,
    runner: Annotated[RunnerChoice, typer.Option(help="In this process, or as workers.")] = RunnerChoice.DIRECT,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the deployment's folder here.")] = None,
    seed: Annotated[int, typer.Option(help="Of the world, the coins and the keys.")] = 0,
    contributors: Annotated[int | None, typer.Option(help="Users who contribute (default: 70 %).")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many users in all.")] = None,
    first: Annotated[int, typer.Option("--from", help="Contributors before this one were played already.")] = 0,
    pace: Annotated[float | None, typer.Option(help="Interactions a second (default: as fast as possible).")] = None,
    in_flight: Annotated[int, typer.Option(help="Users that act at the same time.")] = 512,
    rounds: Annotated[int | None, typer.Option(help="colin: interactions of each user (default: all).")] = None,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="Only these arms of the comparison.")] = None,
    settings: Settings = None,
    world: WorldSettings = None,
    data_dir: DataDir = None,
    report: ReportDir = Path("report"),
    json: AsJson = False,
) -> None:
    """Play a dataset through a system, as an application would, and write a report."""
    from hushstream.replay.closed_loop import ARMS
    from hushstream.replay.run import RunOptions
    from hushstream.replay.worlds.catalogue import world_options

    dataset = dataset or ("colin" if system == "colin" else "synthetic")
    values = assignments(world or [], "--world")
    known = world_options(dataset)
    if data_dir is not None and "data_dir" in known:
        values.setdefault("data_dir", data_dir)
    if limit is not None and "users" in known:
        values.setdefault("users", limit)
    config = nested(assignments(settings or [], "--set"), "--set")
    if system == "colin":
        _replay_collaborative(
            {"dataset": dataset, "runner": runner.value, "seed": seed, "rounds": rounds, "world": values,
             "config": config, "folder": folder, "bootstrap": bootstrap, "security": security}, report, json,
        )  # fmt: skip
        return
    options = RunOptions(
        system=system,
        dataset=dataset,
        runner=runner.value,
        seed=seed,
        contributors=contributors,
        arms=tuple(arms) if arms else tuple(ARMS),
        world=values,
        config=config,
        folder=folder,
        bootstrap=bootstrap,
        security=security,
        in_flight=in_flight,
        pace=pace,
        first=first,
    )
    _run_and_report(options, report, json)


def experiment(
    name: Annotated[str | None, typer.Argument(help="Which experiment; without a name they are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Where CSV, JSON and PNG go.")] = Path("report"),
    quick: Annotated[bool, typer.Option(help="A small version that takes seconds.")] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """A table or figure of a paper, as CSV, JSON and PNG, with its targets."""
    from hushstream.replay.experiments.catalogue import known_experiments, run_experiment

    if name is None:
        for known, found in known_experiments().items():
            typer.echo(f"{known:14} {found.title}")
        return
    require_folder(out)
    with progress_bar(json) as bar:
        task = bar.add_task(name, total=None)
        outcome = run_experiment(
            name,
            out,
            quick=quick,
            data_dir=data_dir,
            progress=lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    if json:
        print_json(outcome.as_json())
    else:
        print_table(outcome.table())
        for path in outcome.files:
            typer.echo(str(path))


@datasets_app.command(name="list")
def datasets_list(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Which datasets there are, and which of them are on this machine."""
    from hushstream.replay.datasets.store import list_datasets

    found = list(list_datasets(data_dir))
    if json:
        print_json([{"name": d.name, "description": d.description, "present": p is not None} for d, p in found])
        return
    for dataset, place in found:
        typer.echo(f"{dataset.name:22} {'here' if place else 'not here':9} {dataset.description}")


@datasets_app.command(name="fetch")
def datasets_fetch(
    name: Annotated[str, typer.Argument(help="Which dataset.")],
    to: Annotated[Path | None, typer.Option(help="Where to put it (default: the cache folder).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Download a dataset from its publisher and check it, or take it from a local folder."""
    from hushstream.replay.datasets.fetch import fetch
    from hushstream.replay.datasets.registry import find_dataset

    dataset = find_dataset(name)
    typer.echo(f"{dataset.name}: {dataset.licence}")
    if dataset.note:
        typer.echo(dataset.note)
    typer.echo(f"{fetch(name, to, data_dir)}")


@datasets_app.command(name="inspect")
def datasets_inspect(
    name: Annotated[str, typer.Argument(help="Which dataset.")], data_dir: DataDir = None, json: AsJson = False
) -> None:
    """Rows, users, arms and rewards of a dataset."""
    from hushstream.replay.datasets.store import inspect

    summary = dict(inspect(name, data_dir))
    if json:
        print_json(summary)
    else:
        for key, value in summary.items():
            typer.echo(f"{key:12} {value}")


def _replay_collaborative(options: dict[str, Any], report: Path, json: bool) -> None:
    from hushstream.replay.collaborative_run import CollaborativeOptions, run_collaborative
    from hushstream.replay.report.collaborative import collaborative_table, write_collaborative_report

    require_folder(report)
    with progress_bar(json) as bar:
        task = bar.add_task("starting", total=None)
        result = run_collaborative(
            CollaborativeOptions(**options),
            lambda done, total, what: bar.update(task, completed=done, total=total, description=what),
        )
    paths = write_collaborative_report(result, report)
    if json:
        print_json(result.as_json())
    else:
        Console().print(collaborative_table(result))
        typer.echo(f"report: {report / 'index.html'} and {len(paths) - 1} more files")
    if any(check.changed for check in (result.verify or {}).values()):
        raise HushstreamError("verify: what was published does not follow from the logs; see the report")


def _run_and_report(options: Any, report: Path, json: bool) -> None:
    from hushstream.replay.report.document import as_json
    from hushstream.replay.report.folder import write_report
    from hushstream.replay.report.table import terminal_table
    from hushstream.replay.run import run_with

    require_folder(report)
    started = time.perf_counter()
    with progress_bar(json) as bar:
        task = bar.add_task("starting", total=None)
        result = run_with(
            options, lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
        )
    paths = write_report(result, report)
    if json:
        print_json(as_json(result))
    else:
        Console().print(terminal_table(result))
        seconds = time.perf_counter() - started
        typer.echo(f"{seconds:.1f} s; report: {report / 'index.html'} and {len(paths) - 1} more files")
    if any(check.changed for check in (result.verify or {}).values()):
        raise HushstreamError("verify: what was published does not follow from the logs; see the report")
