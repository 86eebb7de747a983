"""Defines an experiment, its scale, and its error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hushstream.replay.experiments.figures import Picture
from hushstream.replay.experiments.findings import Findings
from hushstream.replay.progress import Progress
from hushstream.replay.registry import Registry
from hushstream.schemas.errors import HushstreamError


class ExperimentError(HushstreamError):
    """An experiment is unknown, or is claimed twice."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of an experiment, and the place of its data.

    Attributes:
        quick: play a small version that takes seconds; targets that need a larger size are not evaluated.
        data_dir: a local folder of datasets in place of the cache.
    """

    quick: bool = False
    data_dir: str | None = None

    @property
    def world_options(self) -> dict[str, str]:
        """The option of a world that names the folder; none without a folder."""
        return {} if self.data_dir is None else {"data_dir": self.data_dir}


@dataclass(frozen=True, slots=True)
class Experiment:
    """A paper's table or figure.

    Attributes:
        name: its name on the command line.
        title: what it shows, in one line.
        run: plays it: (scale, progress) -> findings.
        pictures: pictures that are drawn from its rows.
    """

    name: str
    title: str
    run: Callable[[Scale, Progress | None], Findings]
    pictures: tuple[Picture, ...]


EXPERIMENTS: Registry[Experiment] = Registry("experiment", "hushstream.experiments", Experiment, ExperimentError)
