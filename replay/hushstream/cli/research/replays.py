"""Commands that play data: the demo, a replay of any dataset, experiments, and the datasets themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from hushstream.cli.options import AsJson, OwnKafka, SecurityFile, assignments, require_folder, show
from hushstream.cli.own_flags import OwnFlags
from hushstream.cli.progress import steps_on_a_bar, working
from hushstream.schemas.errors import HushstreamError

datasets_app = typer.Typer(help="Datasets: list, fetch with checksums, inspect.", no_args_is_help=True)

DataDir = Annotated[
    Path | None, typer.Option("--data-dir", envvar="HUSHSTREAM_DATA", help="A local folder instead of downloads.")
]
ReportDir = Annotated[Path, typer.Option("--report", help="Folder for the report.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="A configuration value, for instance privacy.epsilon=0.5.")
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
    app.command(cls=OwnFlags)(replay)
    app.command()(experiment)
    app.add_typer(datasets_app, name="datasets")


def demo(
    report: ReportDir = Path("report"),
    seed: Annotated[
        int | None,
        typer.Option(help="Keys from a seed in place of random ones: REPRODUCIBLE, NOT PRIVATE."),
    ] = None,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    json: AsJson = False,
) -> None:
    """The main job: 3,600 visitors of a shop, a broker, three workers; does a private start help new users?"""
    from hushstream.replay.study import studies

    make = next(study.demo for study in studies().values() if study.demo is not None)
    _run_and_report(make(seed, bootstrap, security), report, json)


def replay(
    context: typer.Context,
    system: Annotated[str | None, typer.Argument(help="System (default: the first of the catalogue).")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="A dataset (default: the system's own).")] = None,
    runner: Annotated[RunnerChoice, typer.Option(help="Run in this process, or as workers.")] = RunnerChoice.DIRECT,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the deployment's folder here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the world, of random choices, and of the keys.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Number of users (default: that of the dataset).")] = None,
    settings: Settings = None,
    world: WorldSettings = None,
    data_dir: DataDir = None,
    report: ReportDir = Path("report"),
    json: AsJson = False,
) -> None:
    """Play a dataset through a system, as an application would, and write a report.

    Each system also has options of its own; a wrong option is answered with their names.
    """
    from hushstream.cli.own_options import own_options
    from hushstream.replay.configurations import nested
    from hushstream.replay.run import options_of, world_values
    from hushstream.replay.study import study_of
    from hushstream.systems.catalogue import DEFAULT

    study = study_of(system or DEFAULT)
    given = own_options(study, context.args)
    if dataset is not None:
        given["dataset"] = dataset
    options = options_of(
        study.system,
        given
        | {
            "runner": runner.value,
            "seed": seed,
            "config": nested(assignments(settings or [], "--set"), "--set"),
            "folder": folder,
            "bootstrap": bootstrap,
            "security": security,
        },
    )
    values = world_values(options.dataset, assignments(world or [], "--world"), limit, data_dir)
    _run_and_report(replace(options, world=values), report, json)


def experiment(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment; without it, all are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for CSV, JSON, PNG and the page.")] = Path("report"),
    quick: Annotated[bool, typer.Option(help="Run a small version, which takes seconds.")] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
) -> None:
    """A table or figure of a paper, as CSV, JSON, PNG and a page, with its targets."""
    from hushstream.replay.experiments.catalogue import known_experiments, run_experiment

    if name is None:
        for known, found in known_experiments().items():
            typer.echo(f"{known:14} {found.title}")
        return
    require_folder(out)
    with steps_on_a_bar(json) as progress:
        outcome = run_experiment(name, out, quick=quick, data_dir=data_dir, progress=progress)
    show(outcome.as_json(), json, outcome.table(), "\n".join(map(str, outcome.files)))


@datasets_app.command(name="list")
def datasets_list(data_dir: DataDir = None, json: AsJson = False) -> None:
    """List the datasets, which of them are on this machine, and which command plays them."""
    from rich import box
    from rich.table import Table

    from hushstream.replay.catalogue.played_by import played_by
    from hushstream.replay.datasets.store import list_datasets

    found = list(list_datasets(data_dir))
    rows = [
        {
            "name": one.name,
            "description": one.description,
            "present": place is not None,
            "played_by": played_by(one.name),
        }
        for one, place in found
    ]
    table = Table("dataset", "here", "played by", "description", box=box.SIMPLE_HEAD, show_edge=False)
    for one, place in found:
        here = "yes" if place is not None else "no" if one.files else "simulated"
        table.add_row(one.name, here, ", ".join(played_by(one.name)) or "none", one.description)
    show(rows, json, table, "hushstream COMMAND --dataset DATASET plays one.")


@datasets_app.command(name="fetch")
def datasets_fetch(
    name: Annotated[str, typer.Argument(help="Name of the dataset.")],
    to: Annotated[Path | None, typer.Option(help="Folder for it (default: the cache folder).")] = None,
    data_dir: DataDir = None,
) -> None:
    """Download a dataset from its publisher and check it, or take it from a local folder."""
    from hushstream.replay.datasets.fetch import fetch
    from hushstream.replay.datasets.registry import find_dataset

    dataset = find_dataset(name)
    typer.echo(f"{dataset.name}: {dataset.licence}")
    if dataset.note:
        typer.echo(dataset.note)
    with working(f"fetching {dataset.name}", quiet=False):
        place = fetch(name, to, data_dir)
    typer.echo(str(place))


@datasets_app.command(name="inspect")
def datasets_inspect(
    name: Annotated[str, typer.Argument(help="Name of a dataset, or a CSV or Parquet file of your own.")],
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Show rows, users, arms and rewards of a dataset; for a file also a draft declaration of its features.

    In the draft, settings that were taken from rows are private and marked so. No deployment is prepared from it until
    its owner has confirmed each mark.
    """
    from hushstream.replay.datasets.store import inspect
    from hushstream.replay.logged.drafts.features import draft_features

    if Path(name).suffix.lower() in (".csv", ".tsv", ".parquet", ".pq"):
        drafted = draft_features(Path(name))
        show(drafted.as_json(), json, drafted.text().removesuffix("\n"))
        return
    summary = dict(inspect(name, data_dir))
    show(summary, json, "\n".join(f"{key:12} {value}" for key, value in summary.items()))


def _run_and_report(options: Any, report: Path, json: bool) -> None:
    from hushstream.replay.run import run_with, study_for

    require_folder(report)
    study = study_for(options)
    started = time.perf_counter()
    with steps_on_a_bar(json) as progress:
        result = run_with(options, progress)
    paths = study.report(result, report)
    seconds = time.perf_counter() - started
    ending = f"{seconds:.1f} s; report: {report / 'index.html'} and {len(paths) - 1} more files"
    show(study.document(result), json, study.table(result), ending)
    if any(check.changed for check in (result.verify or {}).values()):
        raise HushstreamError("verify: what was published does not follow from the logs; see the report")
