"""Experiments by name: the built-in ones and those that other packages offer by entry point.

Another package adds an experiment with an entry point of the group ``hushstream.experiments`` that names an
`Experiment`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hushstream.replay.experiments import figures
from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Findings, Outcome, write_findings
from hushstream.replay.offers import Offers
from hushstream.replay.studies.colin.experiments import figures as colin_figures
from hushstream.replay.studies.colin.experiments import plots as colin_plots
from hushstream.replay.studies.colin.experiments import table1 as colin_table1
from hushstream.replay.studies.p2b.experiments import curve as p2b_curve
from hushstream.replay.studies.p2b.experiments import modes as p2b_modes
from hushstream.replay.studies.p2b.experiments import paper as p2b_figures
from hushstream.replay.studies.p2b.experiments.population_run import Progress
from hushstream.schemas.errors import HushstreamError


class ExperimentError(HushstreamError):
    """An experiment is unknown, or is claimed twice."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How an experiment is to run.

    Attributes:
        quick: a small version that takes seconds; its targets are not judged where they need more.
        data_dir: a local folder of datasets in place of the cache.
    """

    quick: bool = False
    data_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """A paper's table or figure.

    Attributes:
        name: how it is asked for.
        title: what it shows, in a line.
        run: plays it; told its scale and whom to tell about progress.
        pictures: drawn from its rows.
    """

    name: str
    title: str
    run: Callable[[Scale, Progress | None], Findings]
    pictures: tuple[Picture, ...]


EXPERIMENTS: Offers[Experiment] = Offers("experiment", "hushstream.experiments", Experiment, ExperimentError)

_BUILTIN = (
    Experiment(
        p2b_curve.NAME,
        p2b_curve.TITLE,
        lambda scale, progress: p2b_curve.run(scale.quick, progress),
        (Picture("", "What a slot costs: epsilon and delta against p", 9.0, 3.9, figures.draw_curve, 0),),
    ),
    Experiment(
        p2b_figures.FIG4,
        p2b_figures.FIG4_TITLE,
        lambda scale, progress: p2b_figures.fig4(scale.quick, progress),
        (Picture("", "What a warm start is worth as the population grows", 12.5, 4.1, figures.draw_users),),
    ),
    Experiment(
        p2b_figures.FIG5,
        p2b_figures.FIG5_TITLE,
        lambda scale, progress: p2b_figures.fig5(scale.quick, progress),
        (Picture("", "Reward falls as contexts grow", 7.5, 4.4, figures.draw_dimensions),),
    ),
    Experiment(
        p2b_figures.FIG6,
        p2b_figures.FIG6_TITLE,
        lambda scale, progress: p2b_figures.fig6(scale.quick, progress, scale.data_dir),
        (Picture("", "Accuracy on TMC2007, 275 agents, K = d = 20", 9.5, 4.4, figures.draw_lives),),
    ),
    Experiment(
        p2b_modes.NAME,
        p2b_modes.TITLE,
        lambda scale, progress: p2b_modes.run(scale.quick, progress),
        (
            Picture("", "Three releases: reward against the number of codes", 10.5, 9.5, figures.draw_modes),
            Picture("-withheld", "What the thresholds withhold", 10.5, 3.3, figures.draw_withheld, 1),
        ),
    ),
    Experiment(
        colin_table1.NAME,
        colin_table1.TITLE,
        lambda scale, progress: colin_table1.run(scale.quick, progress),
        (Picture("", "Regret by calibration against epsilon", 14.5, 4.6, colin_plots.draw_table1, 3),),
    ),
    Experiment(
        colin_figures.FIG1A,
        colin_figures.FIG1A_TITLE,
        lambda scale, progress: colin_figures.fig1a(scale.quick, progress),
        (Picture("", "Regret over time by calibration", 13.5, 4.3, colin_plots.draw_regret),),
    ),
    Experiment(
        colin_figures.FIG1B,
        colin_figures.FIG1B_TITLE,
        lambda scale, progress: colin_figures.fig1b(scale.quick, progress),
        (Picture("", "Error of the estimated parameters over time by calibration", 13.5, 4.3, colin_plots.draw_error),),
    ),
    Experiment(
        colin_figures.FIG1C,
        colin_figures.FIG1C_TITLE,
        lambda scale, progress: colin_figures.fig1c(scale.quick, progress),
        (Picture("", "Regret against the number of users by calibration", 13.5, 4.3, colin_plots.draw_users),),
    ),
    Experiment(
        colin_figures.LASTFM,
        colin_figures.LASTFM_TITLE,
        lambda scale, progress: colin_figures.lastfm(scale.quick, progress, scale.data_dir),
        (Picture("", "Reward on Last.fm by calibration", 13.5, 4.3, colin_plots.draw_reward),),
    ),
)


def known_experiments() -> dict[str, Experiment]:
    """Every experiment by name, sorted.

    Raises:
        ExperimentError: two packages claim one name, or an entry point names something else.
    """
    return EXPERIMENTS.known({experiment.name: experiment for experiment in _BUILTIN})


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
    """Run an experiment and write its CSV, JSON and PNG files.

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
    folder = Path(out)
    findings = experiment.run(Scale(quick, None if data_dir is None else Path(data_dir)), progress)
    files = write_findings(findings, folder) + figures.write_pictures(findings, experiment.pictures, folder)
    return Outcome(findings, tuple(files))
