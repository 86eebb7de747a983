"""Commands that play data: the demo, a replay of any dataset, experiments, and the datasets themselves."""

from __future__ import annotations

import time
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hushstream.cli.options import (
    AsJson,
    OwnKafka,
    SecurityFile,
    assignments,
    log_source,
    require_folder,
    show,
    steps_on_a_bar,
    working,
)
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hushstream.replay.report.replayed import RunResult
    from hushstream.replay.study import Progress

datasets_app = typer.Typer(help="List, fetch and inspect datasets.", no_args_is_help=True)

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

_EDGE_PACKAGE = Path("deploy/clients/typescript/edge")
"""The devices' package in a clone."""


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
    seed: Annotated[
        int | None, typer.Option(help="Keys from a seed in place of random ones: REPRODUCIBLE, NOT PRIVATE.")
    ] = None,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="A live deployment with a gateway and a page instead, until Ctrl-C.")
    ] = False,
    devices: Annotated[
        bool, typer.Option("--devices", help="With --serve: visitors learn on their own devices; needs Node.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(help="With --serve: folder for the configuration (to edit) and the deployment.")
    ] = Path("demo"),
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --serve: port of the page on 127.0.0.1; 0: any free one.")
    ] = 8765,
    gateway_port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --serve: port of the gateway; 0: any free one.")
    ] = 8766,
    visitors: Annotated[
        int,
        typer.Option(
            min=1, max=2000, help="With --serve: simulated visitors at a time; with devices, new ones a second."
        ),
    ] = 60,
    seconds: Annotated[float | None, typer.Option(min=1, help="With --serve: end after so many seconds.")] = None,
    json: AsJson = False,
) -> None:
    """The main job: 3,600 visitors of a shop; does the shared private model help new users?

    With --serve it is a live deployment with a gateway, simulated visitors, and a page where you are one more visitor
    and see what its owner sees. --seed is then that of the visitors' taste; keys are random.
    """
    if serve or devices:
        if bootstrap is not None or not serve:
            raise HushstreamError("--serve: expected no --bootstrap, and --devices only with it")
        _serve(
            folder, devices, json, port=port, gateway_port=gateway_port, visitors=visitors, seed=seed, seconds=seconds
        )
        return
    from hushstream.replay.study import studies

    make = next(study.demo for study in studies().values() if study.demo is not None)
    _run_and_report(make(seed, bootstrap, security), report, json)


def _serve(folder: Path, devices: bool, json: bool, *, seed: int | None, **options: Any) -> None:
    """Run the live demo, and say at the end what was answered."""
    import asyncio

    from hushstream.replay.demo.live import LiveOptions, configuration_name, serve

    require_folder(folder)
    asked = LiveOptions(folder=folder, devices=_EDGE_PACKAGE if devices else None, seed=seed or 0, **options)
    state = asyncio.run(serve(asked, lambda line: typer.echo(line, err=json)))
    configuration = folder / configuration_name(devices)
    show(
        state,
        json,
        f"{state.get('answered', 0)} visits answered. Edit {configuration} and start it again, or go on with "
        f"`hushstream guarantee {configuration}`.",
    )


def replay(
    system: Annotated[str | None, typer.Argument(help="System (default: p2b).")] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="A dataset (default: the system's own).")] = None,
    runner: Annotated[RunnerChoice, typer.Option(help="Run in this process, or as workers.")] = RunnerChoice.DIRECT,
    bootstrap: OwnKafka = None,
    security: SecurityFile = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the deployment's folder here.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the world, of random choices, and of the keys.")] = 0,
    limit: Annotated[int | None, typer.Option(help="Number of users (default: that of the dataset).")] = None,
    settings: Settings = None,
    world: WorldSettings = None,
    own: Annotated[
        list[str] | None, typer.Option("--option", help="An option of this system's runs, for instance rounds=20.")
    ] = None,
    data_dir: DataDir = None,
    report: ReportDir = Path("report"),
    json: AsJson = False,
) -> None:
    """Play a dataset through a system, and write a report.

    Each system has options of its own (`reference/commands.md`); an unknown one is answered with their names.
    """
    from hushstream.replay.catalogue import options_of, own_values, world_values
    from hushstream.replay.checks import nested
    from hushstream.replay.study import study_of
    from hushstream.systems.catalogue import DEFAULT

    study = study_of(system or DEFAULT)
    given = own_values(study, assignments(own or [], "--option"))
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


_LISTED = (
    "takes: minutes are up to twenty on two processors, longer up to hours; with --quick all take up to two minutes."
)


def experiment(
    name: Annotated[str | None, typer.Argument(help="Name of the experiment; without it, all are listed.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for CSV, JSON, PNG and the page.")] = Path("report"),
    quick: Annotated[
        bool, typer.Option(help="A small version in up to two minutes; targets of a larger size are not checked.")
    ] = False,
    json: AsJson = False,
    data_dir: DataDir = None,
    system: Annotated[
        str | None,
        typer.Option(help="Only this system's rows of forecast, joining or papers (joining: all its worlds)."),
    ] = None,
) -> None:
    """Make a table or figure of a paper or our own, with its targets.

    Without a name it lists what each shows, how long it takes, and which data it needs. Data are downloaded once and
    checked; `mediamill` and `criteo` you download yourself (`hushstream datasets list`).

      hushstream experiment p2b-fig3                   # ten seconds

      hushstream experiment papers --system pdap       # one paper: claimed, at most, reached

      hushstream experiment joining --quick            # a small version, two minutes
    """
    from hushstream.replay.experiments import catalogue, findings

    if name is None:
        from rich import box
        from rich.table import Table

        listed = Table("experiment", "takes", "data", "shows", box=box.SIMPLE_HEAD, show_edge=False)
        rows = [(one.name, one.takes, one.data, one.title) for one in catalogue.known_experiments().values()]
        for experiment_name, takes, data, title in rows:
            listed.add_row(experiment_name, takes, data or "simulated", title)
        show([dict(zip(("name", "takes", "data", "shows"), row, strict=True)) for row in rows], json, listed, _LISTED)
        return
    chosen = catalogue.find_experiment(name)
    require_folder(out)
    with steps_on_a_bar(json) as progress:
        found = catalogue.played(chosen, quick=quick, data_dir=data_dir, system=system, progress=progress)
    files = list(map(str, catalogue.write(chosen, found, out)))
    show({**findings.document(chosen, found), "files": files}, json, findings.table(chosen, found), "\n".join(files))


@datasets_app.command(name="list")
def datasets_list(data_dir: DataDir = None, json: AsJson = False) -> None:
    """List the datasets, which of them are on this machine, and which command plays them."""
    from rich import box
    from rich.table import Table

    from hushstream.replay.catalogue import played_by
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
    from hushstream.replay.datasets.builtin import find_dataset
    from hushstream.replay.datasets.store import fetch

    dataset = find_dataset(name)
    typer.echo(f"{dataset.name}: {dataset.licence}")
    if dataset.note:
        typer.echo(dataset.note)
    with working(f"fetching {dataset.name}", quiet=False):
        place = fetch(name, to, data_dir)
    typer.echo(str(place))


@datasets_app.command(name="inspect")
def datasets_inspect(
    name: Annotated[
        str,
        typer.Argument(help="Name of a dataset, or a file (CSV, Parquet, JSON) or a query (duckdb:SQL) of your own."),
    ],
    data_dir: DataDir = None,
    json: AsJson = False,
) -> None:
    """Show the sizes of a dataset; of a file a draft declaration of its features.

    In the draft, settings that were taken from rows are private and marked so. No deployment is prepared from it until
    its owner has confirmed each mark.
    """
    from hushstream.replay.catalogue import inspect_dataset
    from hushstream.replay.logged.drafts.features import draft_features

    source = log_source(name)
    if not isinstance(source, Path) or source.suffix:
        drafted = draft_features(source)
        show(drafted.as_json(), json, drafted.text().removesuffix("\n"))
        return
    sizes = inspect_dataset(name, data_dir)
    show(sizes, json, "\n".join(f"{key:14} {value}" for key, value in sizes.items()))


def _run_and_report(options: Any, report: Path, json: bool) -> None:
    from hushstream.replay.catalogue import run_with

    show_run(partial(run_with, options), report, json)


def show_run(play: Callable[[Progress], RunResult], report: Path | None, json: bool) -> None:
    """Play something, print its result, and write its report into a folder, if there is one.

    Raises:
        HushstreamError: the folder cannot be written, or what was published does not follow from the logs.
    """
    from hushstream.replay.report.replayed import document, table, write

    if report is not None:
        require_folder(report)
    started = time.perf_counter()
    with steps_on_a_bar(json) as progress:
        result = play(progress)
    paths = [] if report is None else write(result, report)
    where = f"; report: {paths[-1]} and {len(paths) - 1} more files" if paths else ""
    show(document(result), json, table(result), f"{time.perf_counter() - started:.1f} s{where}")
    if any(check.changed for check in (result.verify or {}).values()):
        raise HushstreamError("verify: what was published does not follow from the logs; see the report")
