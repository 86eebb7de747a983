"""Commands that play data: the demo, a replay of any dataset, experiments, and the datasets themselves."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from hushstream.cli.options import AsJson, OwnKafka, SecurityFile, assignments, nested, require_folder, show
from hushstream.cli.progress import progress_bar
from hushstream.schemas.errors import HushstreamError

if TYPE_CHECKING:
    from hushstream.replay.report.results import RunResult
    from hushstream.replay.run import RunOptions
    from hushstream.replay.studies.colin.report import CollaborativeResult

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


_PLAY_OPTIONS = {
    "contributors": "--contributors",
    "first": "--from",
    "pace": "--pace",
    "in_flight": "--in-flight",
    "arms": "--arm",
    "rounds": "--rounds",
}
"""How an option that only one system has is typed, by its name there."""


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
    from hushstream.replay.studies.p2b.run import P2BOptions

    options = P2BOptions(
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
    limit: Annotated[int | None, typer.Option(help="Users in all (default: those of the dataset).")] = None,
    contributors: Annotated[int | None, typer.Option(help="p2b: users who contribute (default: 70 %).")] = None,
    first: Annotated[
        int | None, typer.Option("--from", help="p2b: contributors before this one were played already.")
    ] = None,
    pace: Annotated[
        float | None, typer.Option(help="p2b: interactions a second (default: as fast as possible).")
    ] = None,
    in_flight: Annotated[int | None, typer.Option(help="p2b: users that act at the same time (default: 512).")] = None,
    arms: Annotated[list[str] | None, typer.Option("--arm", help="p2b: only these arms of the comparison.")] = None,
    rounds: Annotated[int | None, typer.Option(help="colin: interactions of each user (default: all).")] = None,
    settings: Settings = None,
    world: WorldSettings = None,
    data_dir: DataDir = None,
    report: ReportDir = Path("report"),
    json: AsJson = False,
) -> None:
    """Play a dataset through a system, as an application would, and write a report."""
    from hushstream.replay.run import options_of

    given: dict[str, Any] = {
        "contributors": contributors,
        "first": first,
        "pace": pace,
        "in_flight": in_flight,
        "arms": tuple(arms) if arms else None,
        "rounds": rounds,
    }
    given = {name: value for name, value in given.items() if value is not None}
    _require_own(system, given)
    if dataset is not None:
        given["dataset"] = dataset
    options = options_of(
        system,
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
    values = _world_values(options.dataset, assignments(world or [], "--world"), limit, data_dir)
    _run_and_report(replace(options, world=values), report, json)


def _require_own(system: str, given: Mapping[str, Any]) -> None:
    """Refuse options of the other system, which would be without effect.

    Raises:
        HushstreamError: there is no such system; options that it does not have, each as it was typed.
    """
    from hushstream.replay.run import SYSTEMS, option_names

    foreign = [name for name in given if name not in option_names(system)]
    if foreign:
        owner = next(other for other in SYSTEMS if foreign[0] in option_names(other))
        own = ", ".join(flag for name, flag in _PLAY_OPTIONS.items() if name in option_names(system))
        flags = ", ".join(_PLAY_OPTIONS[name] for name in foreign)
        raise HushstreamError(f"replay {system}: expected no option of {owner}, got {flags}; its own are {own}")


def _world_values(dataset: str, values: dict[str, Any], limit: int | None, data_dir: Path | None) -> dict[str, Any]:
    """The options of a world, with those that have an option of the command.

    Raises:
        HushstreamError: an unknown world; a number of users for one that has no such option, or given twice.
    """
    from hushstream.replay.worlds.catalogue import world_options

    known = world_options(dataset)
    if limit is not None and "users" not in known:
        raise HushstreamError(
            f"--limit: expected a dataset whose number of users can be chosen, got {dataset!r} with the options "
            f"{', '.join(known)}"
        )
    if limit is not None and "users" in values:
        raise HushstreamError("--limit: expected it or --world users, which mean the same, got both")
    if limit is not None:
        values["users"] = limit
    if data_dir is not None and "data_dir" in known:
        values.setdefault("data_dir", data_dir)
    return values


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
    show(outcome.as_json(), json, outcome.table(), "\n".join(map(str, outcome.files)))


@datasets_app.command(name="list")
def datasets_list(data_dir: DataDir = None, json: AsJson = False) -> None:
    """Which datasets there are, which of them are on this machine, and which command plays them."""
    from rich import box
    from rich.table import Table

    from hushstream.replay.datasets.store import list_datasets
    from hushstream.replay.players import players

    found = list(list_datasets(data_dir))
    rows = [
        {"name": one.name, "description": one.description, "present": place is not None, "played_by": players(one.name)}
        for one, place in found
    ]
    table = Table("dataset", "here", "played by", "description", box=box.SIMPLE_HEAD, show_edge=False)
    for one, place in found:
        here = "yes" if place is not None else "no" if one.files else "simulated"
        table.add_row(one.name, here, ", ".join(players(one.name)) or "none", one.description)
    show(rows, json, table, "hushstream COMMAND --dataset DATASET plays one.")


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
    show(summary, json, "\n".join(f"{key:12} {value}" for key, value in summary.items()))


def _run_and_report(options: RunOptions, report: Path, json: bool) -> None:
    from hushstream.replay.run import run_with

    require_folder(report)
    started = time.perf_counter()
    with progress_bar(json) as bar:
        task = bar.add_task("starting", total=None)
        result = run_with(
            options, lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
        )
    document, table, paths = _written(result, report)
    seconds = time.perf_counter() - started
    show(document, json, table, f"{seconds:.1f} s; report: {report / 'index.html'} and {len(paths) - 1} more files")
    if any(check.changed for check in (result.verify or {}).values()):
        raise HushstreamError("verify: what was published does not follow from the logs; see the report")


def _written(
    result: RunResult | CollaborativeResult, report: Path
) -> tuple[dict[str, Any], RenderableType, list[Path]]:
    """The result as a document and for the terminal, and the files of its report."""
    from hushstream.replay.report.document import as_json
    from hushstream.replay.report.folder import write_report
    from hushstream.replay.report.results import RunResult
    from hushstream.replay.report.table import terminal_table
    from hushstream.replay.studies.colin.report import collaborative_table, write_collaborative_report

    if isinstance(result, RunResult):
        return as_json(result), terminal_table(result), write_report(result, report)
    return result.as_json(), collaborative_table(result), write_collaborative_report(result, report)
