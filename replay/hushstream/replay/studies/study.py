"""What a system's studies are: how it is played, what is drawn of it, how it is attacked and measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import RenderableType

from hushstream.replay.audits.report import AuditReport
from hushstream.replay.audits.row import Recipe
from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.experiment import Experiment
from hushstream.replay.progress import Progress


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
    def changed(self) -> bool:
        """Whether what was published does not follow from the logs."""

    def as_json(self) -> Any: ...
    def table(self) -> RenderableType: ...
    def write(self, folder: Path) -> Sequence[Path]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The studies of one system.

    Attributes:
        system: its name.
        options: the class of a run's options, which all have dataset, runner, seed, world, config, folder, bootstrap
            and security.
        flags: how options that not every system has are typed on a command line, by their names.
        dataset: what is played unless something else is named.
        play: one run.
        document: a run's result as plain values.
        table: a run's result for a terminal.
        report: writes a run's pages; gives their files.
        worlds: factories of its worlds, by name.
        plays: whether it can play worlds of a class, which another package offers.
        experiments: its figures and tables.
        audits: its rows of the table of audits.
        audit_config: attacks what a configuration releases: (configuration, runs, false alarm).
        mechanisms: what can be attacked at any size by name: (epsilon, levels, runs, false alarm).
        bench: its benchmarks: (progress, rounds).
        stream_bench: those that need a broker and workers.
        kafka_bench: those that compare a Kafka at an address with the embedded broker.
        demo: options of the main job, by seed, Kafka and its settings.
        evaluate: replays the log of another policy, by the options of the command.
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
    mechanisms: Mapping[str, Callable[[float, int, int, float], AuditReport]] = field(default_factory=dict)
    bench: Callable[[Callable[[str], None], int], list[BenchRow]] | None = None
    stream_bench: Callable[[Callable[[str], None], int], list[BenchRow]] | None = None
    kafka_bench: Callable[[str, Callable[[str], None], int], list[BenchRow]] | None = None
    demo: Callable[[int, str | None, Path | None], Any] | None = None
    evaluate: Callable[[Mapping[str, Any], Progress], Judged] | None = None
