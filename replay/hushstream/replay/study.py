"""Says which parts a system's study has, and finds the study of each system by the name in its declaration.

This module imports the parts of a study for readers and type checks only; the studies import this module.

*Registry.* Finds datasets, worlds, logs and experiments by name: those that come with hushstream, and those of other
packages.

Another package offers one by an entry point of the group that its `Registry` names. The object's attribute ``name`` is
its name; an object without this attribute has the name of its entry point.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.catalogue import kinds

if TYPE_CHECKING:
    from hushstream.replay.audits.configured import AuditReport
    from hushstream.replay.audits.row import Audit
    from hushstream.replay.datasets.builtin import Dataset
    from hushstream.replay.experiments.findings import Experiment, Findings, Scale
    from hushstream.replay.experiments.rows import BenchRow
    from hushstream.replay.report.replayed import RunResult


from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Registry(Generic[T]):
    """One kind of things that are found by name.

    Attributes:
        what: the word for one of them, for messages.
        group: the group of entry points by which other packages offer theirs.
        kind: what each must be.
        error: raised where a name is unknown or claimed twice, or an entry point names something else.
    """

    what: str
    group: str
    kind: Any
    error: type[HushstreamError]

    def known(self, builtin: Mapping[str, T]) -> dict[str, T]:
        """Return everything of this kind by name, sorted.

        Args:
            builtin: what comes with hushstream, by name.

        Raises:
            HushstreamError: of the class `error`: two packages claim one name, or an entry point names no object of
                `kind`.
        """
        found = dict(builtin)
        for entry in entry_points(group=self.group):
            offered = entry.load()
            if not isinstance(offered, self.kind):
                raise self.error(
                    f"entry point {entry.name} of {self.group}: expected {self.kind.__name__}, "
                    f"got {type(offered).__name__}"
                )
            name = getattr(offered, "name", entry.name)
            if found.setdefault(name, offered) is not offered:
                raise self.error(f"two packages offer a {self.what} named {name!r}; remove one of them")
        return dict(sorted(found.items()))

    def find(self, known: Mapping[str, T], name: str, hint: str = "") -> T:
        """Return the entry of this name.

        Args:
            known: what the method `known` returned.
            name: the name that was asked for.
            hint: what else the name may stand for.

        Raises:
            HushstreamError: of the class `error`: nothing has this name; the message lists the known names.
        """
        if name not in known:
            raise self.error(f"unknown {self.what} {name!r}; known: {', '.join(known)}{hint}")
        return known[name]


Progress = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A deployment that is prepared and has not run yet.

    Attributes:
        system: the system of the deployment.
        users: how many users there are.
        interactions: how many interactions they have.
        play: plays all interactions through an event log, of the direct runner or of a broker.
    """

    system: System
    users: int
    interactions: int
    play: Callable[[EventLog], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """The study of one system.

    Attributes:
        system: its name.
        options: the class of a run's options.
        dataset: the dataset that is played by default.
        play: plays one run; `hushstream.replay.report.replayed` shows its result.
        worlds: factories of its worlds, by name.
        datasets: those that come with the study.
        plays: says whether it can play a world of this class, which may come from another package.
        experiments: its figures and tables by name.
        joining: plays what joining brings (`hushstream.replay.experiments.systems`); None without it.
        forecast: compares its plan with drawn worlds (`hushstream.replay.experiments.systems`); None without it.
        paper: computes its row of the table of papers (`hushstream.replay.experiments.systems`); None without one.
        audits: its rows of the table of audits.
        audit_config: audits a configuration by attacks: (configuration, runs, false-alarm rate).
        bench: its benchmarks: (progress, rounds).
        own_table: the name of the world that reads a user's own table, with the options ``file`` and ``mapping``.
        demo: makes the options of the main job: (seed of its keys or None for random keys, Kafka's address, its
            settings).
        evaluate: evaluates the system on the log of another policy: (options of the command, progress).
        sample: makes a small deployment below a folder; its sizes are keyword arguments, whole numbers with defaults.
        live: makes a deployment whose windows close within seconds, for dashboards: (folder, users, interactions a
            second).
    """

    system: str
    options: type
    dataset: str
    play: Callable[[Any, Progress | None], RunResult]
    worlds: Mapping[str, Callable[..., Any]]
    plays: Callable[[Any], bool]
    experiments: Callable[[], tuple[Experiment, ...]]
    audits: Callable[[], tuple[Audit, ...]]
    audit_config: Callable[[Any, int, float], AuditReport]
    datasets: tuple[Dataset, ...] = ()
    bench: Callable[[Callable[[str], None], int], list[BenchRow]] | None = None
    own_table: str | None = None
    demo: Callable[[int | None, str | None, Path | None], Any] | None = None
    joining: Callable[[Scale, Progress | None], Findings] | None = None
    forecast: Callable[[Scale, Progress | None], Findings] | None = None
    paper: Callable[[Scale, Progress | None], dict[str, Any]] | None = None
    evaluate: Callable[[Mapping[str, Any], Progress | None], RunResult] | None = None
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
