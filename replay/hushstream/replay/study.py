"""Says which parts a system's study has, and finds the study of each system by the name in its declaration.

This module imports the parts of a study for readers and type checks only; the studies import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hushstream.engine.declare.plan import Audience, Plan
    from hushstream.replay.audits.report import AuditReport
    from hushstream.replay.audits.row import Recipe
    from hushstream.replay.bench.rows import BenchRow
    from hushstream.replay.datasets.dataset import Dataset
    from hushstream.replay.experiments.experiment import Experiment, Scale
    from hushstream.replay.progress import Progress
    from hushstream.replay.sample import Sample
    from hushstream.replay.views import View


class Checked(Protocol):
    """The finding of `verify` for one role."""

    @property
    def changed(self) -> int: ...


class Played(Protocol):
    """The result of a run."""

    @property
    def verify(self) -> Mapping[str, Checked] | None:
        """The findings of `verify` by role; None where it was not asked for."""


class EvaluatedLog(Protocol):
    """The result of an evaluation on the log of another policy."""

    @property
    def ending(self) -> str:
        """The last lines on a terminal: how to run the evaluated deployment live; empty where there is none."""

    @property
    def changed(self) -> bool:
        """Whether a published record differs from what the logs give."""

    def as_json(self) -> Any: ...
    def table(self) -> RenderableType: ...
    def view(self) -> View: ...
    def write(self, folder: Path) -> Sequence[Path]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The study of one system.

    Attributes:
        system: its name.
        options: the class of a run's options.
        flags: the command line's flags for options that only some systems have, by option.
        dataset: the dataset that is played by default.
        play: plays one run.
        document: a run's result as plain values.
        table: a run's result for a terminal.
        report: writes a run's pages, and returns their files.
        worlds: factories of its worlds, by name.
        datasets: those that come with the study.
        plays: says whether it can play a world of this class, which may come from another package.
        experiments: its figures and tables by name.
        paper: computes its row of the table of papers (`hushstream.replay.experiments.papers`); None without one.
        audits: its rows of the table of audits.
        audit_config: audits a configuration by attacks: (configuration, runs, false-alarm rate).
        mechanisms: mechanisms that can be audited at any epsilon, by name: (epsilon, levels, runs, false-alarm rate).
        bench: its benchmarks: (progress, rounds).
        stream_bench: benchmarks that need a broker and workers.
        kafka_bench: benchmarks that compare a Kafka at an address with the embedded broker.
        play_plan: simulates what a plan cannot say by a formula: (configuration, plan, audience, share of items that
            suit users of any vendor, progress); returns the plan with these figures.
        view: makes what is shown of a result: a few lines, a data frame, and pictures.
        own_table: the name of the world that reads a user's own table, with the options ``file`` and ``mapping``.
        demo: makes the options of the main job: (seed of its keys or None for random keys, Kafka's address, its
            settings).
        quickstart: runs a live deployment with simulated visitors and a page: (options of the command, print); returns
            what the page showed last.
        soak: plays very many users on one worker, and measures its memory: (sizes, print).
        evaluate: evaluates the system on the log of another policy: (options of the command, progress).
        sample: makes a small deployment below a folder; its sizes are keyword arguments, whole numbers with defaults.
        live: makes a deployment whose windows close within seconds, for dashboards: (folder, users, interactions a
            second).
    """

    system: str
    options: type
    flags: Mapping[str, str]
    dataset: str
    play: Callable[[Any, Progress | None], Any]
    document: Callable[[Any], Any]
    table: Callable[[Any], RenderableType]
    report: Callable[[Any, Path], Sequence[Path]]
    worlds: Mapping[str, Callable[..., Any]]
    plays: Callable[[Any], bool]
    experiments: Callable[[], tuple[Experiment, ...]]
    audits: Callable[[], tuple[Recipe, ...]]
    audit_config: Callable[[Any, int, float], AuditReport]
    datasets: tuple[Dataset, ...] = ()
    mechanisms: Mapping[str, Callable[[float, int, int, float], AuditReport]] = field(default_factory=dict)
    bench: Callable[[Callable[[str], None], int], list[BenchRow]] | None = None
    stream_bench: Callable[[Callable[[str], None], int], list[BenchRow]] | None = None
    kafka_bench: Callable[[str, Callable[[str], None], int], list[BenchRow]] | None = None
    play_plan: Callable[[Any, Plan, Audience, float, Progress | None], Plan] | None = None
    view: Callable[[Any], View] | None = None
    own_table: str | None = None
    demo: Callable[[int | None, str | None, Path | None], Any] | None = None
    paper: Callable[[Scale, Progress | None], dict[str, Any]] | None = None
    quickstart: Callable[[Mapping[str, Any], Callable[[str], None]], Mapping[str, Any]] | None = None
    soak: Callable[[Sequence[Any], Callable[[str], None]], tuple[Any, RenderableType]] | None = None
    evaluate: Callable[[Mapping[str, Any], Progress | None], EvaluatedLog] | None = None
    sample: Callable[..., Sample] | None = None
    live: Callable[[Path, int, float], Sample] | None = None


class UnknownStudy(HushstreamError):
    """A system is unknown, has no study, or its declaration names an object that is no study."""


@cache
def studies() -> Mapping[str, Study]:
    """The studies by system, in the order of the catalogue; a system without a study is left out.

    Raises:
        UnknownStudy: a declaration names an object that is no study.
    """
    return {name: _load(kind.study) for name, kind in kinds().items() if kind.study is not None}


def study_of(system: str) -> Study:
    """The study of a system.

    Raises:
        UnknownStudy: there is no such system, or it has no study.
    """
    known = studies()
    if system not in known:
        raise UnknownStudy(f"system: expected {' or '.join(known)}, got {system!r}")
    return known[system]


def _load(place: str) -> Study:
    module, _, name = place.partition(":")
    found = getattr(import_module(module), name, None)
    if not isinstance(found, Study):
        raise UnknownStudy(f"{place}: expected studies of a system, got {type(found).__name__}")
    return found
