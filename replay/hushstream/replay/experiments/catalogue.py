"""Experiments by name: the built-in ones and those that other packages offer by entry point.

Another package adds an experiment with an entry point of the group ``hushstream.experiments`` that names an
`Experiment`.
"""

from __future__ import annotations

from pathlib import Path

from hushstream.replay.experiments import figures
from hushstream.replay.experiments.experiment import EXPERIMENTS, Experiment, Scale
from hushstream.replay.experiments.findings import Findings, Outcome, write_findings
from hushstream.replay.experiments.page import findings_page
from hushstream.replay.experiments.papers import PAPERS
from hushstream.replay.progress import Progress
from hushstream.replay.study import studies


def known_experiments() -> dict[str, Experiment]:
    """Every experiment by name, sorted.

    Raises:
        ExperimentError: two packages claim one name, or an entry point names something else.
    """
    offered = (one for study in studies().values() for one in study.experiments())
    return EXPERIMENTS.known({one.name: one for one in (*offered, PAPERS)})


def find_experiment(name: str) -> Experiment:
    """The experiment of this name.

    Raises:
        ExperimentError: there is none; the message lists the known names.
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
        progress: told (interactions done, in all, what is going on).

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
    """What an experiment finds; see `run_experiment`, which also writes it."""
    return experiment.run(Scale(quick, None if data_dir is None else Path(data_dir)), progress)


def write_outcome(findings: Findings, experiment: Experiment, folder: Path) -> list[Path]:
    """Write the CSV, JSON and PNG files of what an experiment found, and its page, which comes last; their paths."""
    paths = write_findings(findings, folder) + figures.write_pictures(findings, experiment.pictures, folder)
    page = folder / f"{findings.description.name}.html"
    page.write_text(findings_page(findings, experiment.pictures, [path.name for path in paths]), encoding="utf-8")
    return [*paths, page]
