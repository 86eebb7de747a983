"""Experiments by name, and what is shown and written of their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path

from hushstream.replay.experiments.figures import SETTING, WARNING, drawing, render, sources
from hushstream.replay.experiments.findings import (
    EXPERIMENTS,
    MEASURED,
    MOST_ROWS,
    NO_TARGET,
    QUICK,
    WHOSE,
    Experiment,
    Findings,
    Scale,
    document,
    shown,
)
from hushstream.replay.experiments.rows import BenchRow
from hushstream.replay.experiments.systems import FORECAST, JOINING, PAPERS
from hushstream.replay.report.frame import Bullets, Cell, Page, Pictures, Section, Table, html
from hushstream.replay.report.parts import number, with_meanings
from hushstream.replay.report.replayed import csv_bytes, json_bytes, write_files
from hushstream.replay.result import View
from hushstream.replay.study import Progress, studies


def known_experiments() -> dict[str, Experiment]:
    """Every experiment by name, sorted.

    Raises:
        ExperimentError: two packages claim one name, or an entry point names no `Experiment`.
    """
    offered = (one for study in studies().values() for one in study.experiments())
    return EXPERIMENTS.known({one.name: one for one in (*offered, FORECAST, JOINING, PAPERS)})


def find_experiment(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        ExperimentError: no experiment has this name; the message lists the known names.
    """
    return EXPERIMENTS.find(known_experiments(), name)


def played(
    experiment: Experiment,
    *,
    quick: bool = False,
    data_dir: Path | str | None = None,
    system: str | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Play an experiment.

    Args:
        experiment: what is played.
        quick, data_dir, system: see `Scale`.
        progress: called with (steps done, steps in all, what is being done).

    Raises:
        DatasetError: a dataset that it needs is absent.
    """
    found = experiment.run(Scale(quick, None if data_dir is None else str(data_dir), system), progress)
    asked = f"{experiment.name}{f' --system {system}' if system else ''}{' --quick' if quick else ''}"
    made = f"Made by `hushstream experiment {asked}`, version {version('hushstream')}."
    return replace(found, settings=(made, *((QUICK,) if quick else ()), *found.settings))


def write(experiment: Experiment, found: Findings, folder: Path | str) -> list[Path]:
    """Write the CSV, JSON and PNG files of an experiment and its page; return their paths, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    name = experiment.name
    content = {
        f"{name}.csv": csv_bytes({**row, "figures": MEASURED} for row in found.rows),
        **({f"{name}-targets.csv": csv_bytes(map(asdict, found.targets))} if found.targets else {}),
        f"{name}.json": json_bytes(document(experiment, found)),
    }
    content |= {f"{name}{one.suffix}.png": render(one, experiment, found) for one in experiment.curves}
    return write_files(folder, content | {f"{name}.html": page(experiment, found, tuple(content)).encode()})


def view(experiment: Experiment, found: Findings) -> View:
    """Show the rows, the curves, and how many of the evaluated targets are reached."""
    name, reached = experiment.name, found.reached
    return View(
        title=f"{name}: {experiment.title}",
        facts=(f"{sum(reached)} of {len(reached)} evaluated targets reached", f"Source: {experiment.source}."),
        marks=tuple(found.marks),
        frames={"rows": found.rows},
        pictures={f"{name}{one.suffix}": partial(render, one, experiment, found) for one in experiment.curves},
    )


_REACHED = {True: ("reached", "good"), False: ("not reached", "bad"), None: ("not evaluated", "")}


def page(experiment: Experiment, found: Findings, names: tuple[str, ...]) -> str:
    """The page of an experiment, with links to the other files of its folder."""
    reached = found.reached
    shown_rows = [_rows(experiment, found)] if 0 < len(found.rows) <= MOST_ROWS else []
    return html(
        Page(
            kind=f"hushstream experiment {experiment.name}",
            title=experiment.title,
            marks=with_meanings(found.marks),
            figure=f"{sum(reached)} of {len(reached)}" if reached else "",
            outcome=(
                "targets are reached." if reached else f"{NO_TARGET.capitalize()}.",
                *(f"Not reached: {row.name}." for row in found.targets if row.reached is False),
                f"After {experiment.source}.",
            ),
            sections=(
                Section(
                    "plots",
                    "Pictures",
                    (Pictures(tuple(drawing(one, experiment, found) for one in experiment.curves)),),
                ),
                *([_targets(found.targets)] if found.targets else []),
                *shown_rows,
                *([_settings(found.settings)] if found.settings else []),
            ),
            # Settings and warnings are in parts of their own.
            provenance=tuple(one for one in sources(experiment, found) if one[0] not in (SETTING, WARNING)),
            files=names,
        )
    )


def _rows(experiment: Experiment, found: Findings) -> Section:
    head, *cells = shown(experiment, found.rows)
    rows = tuple(tuple(map(Cell, row)) for row in cells)
    return Section("rows", "Figures", (Table("Means over seeds, ± half of the 95 % interval.", tuple(head), rows),))


def _targets(targets: Sequence[BenchRow]) -> Section:
    rows = tuple(
        (
            Cell(row.name, *_REACHED[row.reached]),
            Cell(_with_unit(number(row.value), row)),
            Cell(_with_unit(row.target, row)),
        )
        for row in targets
        if row.value is not None
    )
    if not any(row.target for row in targets):
        return Section("targets", "Figures", (Table("", ("Figure", "Found"), tuple(row[:2] for row in rows)),))
    title = f"Targets are {WHOSE}."
    return Section("targets", "Targets", (Table(title, ("Figure", "Found", "Target"), rows),))


def _with_unit(text: str, row: BenchRow) -> str:
    return f"{text} {row.unit}".strip()


def _settings(settings: tuple[str, ...]) -> Section:
    return Section("settings", "How it was played", (Bullets("Settings", settings),))
