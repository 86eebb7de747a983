"""What an experiment is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.progress import Progress
from hushstream.replay.registry import Registry
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


EXPERIMENTS: Registry[Experiment] = Registry("experiment", "hushstream.experiments", Experiment, ExperimentError)
