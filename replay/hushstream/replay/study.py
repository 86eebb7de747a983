"""What a system's studies are, and those of every system, found by the name that its declaration gives.

The parts of a study are named here for readers and types alone: they know this module.
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
    """What recomputing found of one role."""

    @property
    def changed(self) -> int: ...


class Played(Protocol):
    """What came of a run."""

    @property
    def verify(self) -> Mapping[str, Checked] | None:
        """What recomputing found, by role; None where it was not asked for."""


class Judged(Protocol):
    """What the replay of another policy's log found."""

    @property
    def ending(self) -> str:
        """What a terminal shows last: how the deployment that was judged goes live; empty where none was."""

    @property
    def changed(self) -> bool:
        """Whether what was published does not follow from the logs."""

    def as_json(self) -> Any: ...
    def table(self) -> RenderableType: ...
    def view(self) -> View: ...
    def write(self, folder: Path) -> Sequence[Path]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The studies of one system.

    Attributes:
        system: its name.
        options: the class of a run's options.
        flags: how options that not every system has are typed on a command line, by their names.
        dataset: what is played unless something else is named.
        play: one run.
        document: a run's result as plain values.
        table: a run's result for a terminal.
        report: writes a run's pages; gives their files.
        worlds: factories of its worlds, by name.
        datasets: those that it brings.
        plays: whether it can play worlds of a class, which another package offers.
        experiments: its figures and tables.
        paper: plays its line of the table of papers (`hushstream.replay.experiments.papers`); None without one.
        audits: its rows of the table of audits.
        audit_config: attacks what a configuration releases: (configuration, runs, false alarm).
        mechanisms: what can be attacked at any size by name: (epsilon, levels, runs, false alarm).
        bench: its benchmarks: (progress, rounds).
        stream_bench: those that need a broker and workers.
        kafka_bench: those that compare a Kafka at an address with the embedded broker.
        play_plan: what no formula tells of a plan, played: (configuration, plan, audience, share of items that suit
            users of any vendor, progress); the plan with it.
        view: what a result shows of itself in a few lines, as a data frame and as pictures.
        own_table: the world that reads people's own table, with the options ``file`` and ``mapping``.
        demo: options of the main job, by the seed of its keys (None: random ones), Kafka and its settings.
        quickstart: a live deployment with visitors and a page, by the options of the command: (options, say); what it
            showed last.
        soak: gives very many users their interactions on one worker, and tells its memory: (sizes, progress).
        evaluate: replays the log of another policy, by the options of the command.
        sample: a small deployment, below a folder; its shape are whole numbers that are named and have defaults.
        live: one whose windows close within seconds, for dashboards: (folder, users, interactions a second).
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
    evaluate: Callable[[Mapping[str, Any], Progress | None], Judged] | None = None
    sample: Callable[..., Sample] | None = None
    live: Callable[[Path, int, float], Sample] | None = None


class UnknownStudy(HushstreamError):
    """A system is unknown, or names studies that are none."""


@cache
def studies() -> Mapping[str, Study]:
    """By system, in the order of the catalogue; a system may have none.

    Raises:
        UnknownStudy: a system names something else.
    """
    return {name: _load(kind.study) for name, kind in kinds().items() if kind.study is not None}


def study_of(system: str) -> Study:
    """The studies of a system.

    Raises:
        UnknownStudy: there is no such system, or it is not studied here.
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
