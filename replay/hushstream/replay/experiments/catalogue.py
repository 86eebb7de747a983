"""Experiments by name: the built-in ones and those that other packages offer by entry point.

Another package adds an experiment with an entry point of the group ``hushstream.experiments`` that names an
`Experiment`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments import figures
from hushstream.replay.experiments.experiment import EXPERIMENTS, Experiment, Scale
from hushstream.replay.experiments.figures import SETTING, Picture, drawing, sources
from hushstream.replay.experiments.findings import Description, Findings, Outcome, write_findings
from hushstream.replay.experiments.papers import PAPERS
from hushstream.replay.progress import Progress
from hushstream.replay.report.frame import Bullets, Cell, Page, Pictures, Section, Table, html
from hushstream.replay.report.parts import with_meanings
from hushstream.replay.report.wording import number
from hushstream.replay.study import studies


def known_experiments() -> dict[str, Experiment]:
    """Every experiment by name, sorted.

    Raises:
        ExperimentError: two packages claim one name, or an entry point names no `Experiment`.
    """
    offered = (one for study in studies().values() for one in study.experiments())
    return EXPERIMENTS.known({one.name: one for one in (*offered, PAPERS)})


def find_experiment(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        ExperimentError: no experiment has this name; the message lists the known names.
    """
    return EXPERIMENTS.find(known_experiments(), name)


def run_experiment(
    name: str,
    out: Path | str = Path("report"),
    *,
    quick: bool = False,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """Run an experiment and write its CSV, JSON and PNG files, and the page that shows them.

    Args:
        name: one of `known_experiments`.
        out: the folder for the files; made where it is absent.
        quick: see `Scale`.
        data_dir: see `Scale`.
        progress: called with (steps done, steps in all, what is being done).

    Raises:
        ExperimentError: there is no such experiment.
        DatasetError: a dataset that it needs is absent.
    """
    experiment = find_experiment(name)
    findings = played(experiment, quick=quick, data_dir=data_dir, progress=progress)
    return Outcome(findings, tuple(write_outcome(findings, experiment, Path(out))))


def played(
    experiment: Experiment,
    *,
    quick: bool = False,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
) -> Findings:
    """Play an experiment and return its findings; `run_experiment` writes them as well."""
    return experiment.run(Scale(quick, None if data_dir is None else str(data_dir)), progress)


def write_outcome(findings: Findings, experiment: Experiment, folder: Path) -> list[Path]:
    """Write the CSV, JSON and PNG files of an experiment and its page; return their paths, the page last."""
    paths = write_findings(findings, folder) + figures.write_pictures(findings, experiment.pictures, folder)
    page = folder / f"{findings.description.name}.html"
    page.write_text(findings_page(findings, experiment.pictures, [path.name for path in paths]), encoding="utf-8")
    return [*paths, page]


_REACHED = {True: ("reached", "good"), False: ("not reached", "bad"), None: ("not evaluated", "")}


def findings_page(findings: Findings, pictures: Sequence[Picture], file_names: Sequence[str]) -> str:
    """The page of an experiment, with links to the other files of its folder."""
    described = findings.description
    evaluated = [row.reached for row in findings.targets if row.reached is not None]
    return html(
        Page(
            kind=f"hushstream experiment {described.name}",
            title=described.title,
            marks=with_meanings(_marks(findings)),
            figure=f"{sum(evaluated)} of {len(evaluated)}" if evaluated else "",
            outcome=_outcome(described, evaluated),
            sections=(
                Section("plots", "Pictures", (Pictures(tuple(drawing(one, findings) for one in pictures)),)),
                *([_targets(findings.targets)] if findings.targets else []),
                *([_settings(described)] if described.settings else []),
            ),
            # The settings are in a section of their own.
            provenance=tuple(one for one in sources(described) if one[0] != SETTING),
            files=tuple(file_names),
        )
    )


def _marks(findings: Findings) -> list[str]:
    """The warnings of all deployments and all rows, each once."""
    known = [mark for one in findings.description.deployments for mark in one.guarantee.marks]
    of_rows = [mark for row in findings.rows for mark in str(row.get("marks", "")).split("; ") if mark]
    return list(dict.fromkeys([*known, *of_rows]))


def _outcome(described: Description, evaluated: Sequence[bool]) -> tuple[str, ...]:
    after = f"After {described.source}."
    if not evaluated:
        return (after, "No target is evaluated at this size.")
    return (f"{sum(evaluated)} of {len(evaluated)} targets are reached.", after)


def _targets(targets: Sequence[BenchRow]) -> Section:
    rows = tuple(
        (Cell(row.name, *_REACHED[row.reached]), Cell(f"{number(row.value)} {row.unit}".strip()), Cell(row.target))
        for row in targets
    )
    return Section("targets", "Targets", (Table("The figures compared with their targets.", _COLUMNS, rows),))


_COLUMNS = ("Figure", "Found", "Target")


def _settings(described: Description) -> Section:
    return Section("settings", "How it was played", (Bullets("Settings", tuple(described.settings)),))
