"""An experiment and its findings: rows, targets, and remarks for readers.

Another package adds an experiment with an entry point of the group ``hushstream.experiments`` that names an
`Experiment`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from hushstream.engine.declare.plan import Range
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.experiments.rows import BenchRow, Row
from hushstream.replay.study import Progress, Registry
from hushstream.schemas.errors import HushstreamError


@dataclass(frozen=True, slots=True)
class Curve:
    """The picture of an experiment: which columns of its rows are drawn, and how.

    A row without a number in the column ``across``, such as one without noise, is a level in the panel of its columns,
    or in every panel where its columns have none.

    Attributes:
        title: the title above it.
        values: the columns that are drawn, each with its band from ``NAME_low`` to ``NAME_high``.
        across: the column of the horizontal axis; empty for one dot a row, with its interval.
        by: the columns that tell lines, or dots, apart.
        panels: the columns that tell panels apart.
        where: the values of the rows that are drawn.
        log: the logarithmic axes: ``x``, ``y`` or both.
        suffix: the end of its file's name, where an experiment has several.
        diagonal: whether ``across`` foretells the value, with a range from ``ACROSS_least`` to ``ACROSS_most``: points
            and their ranges beside the line of equality. Rows without a forecast are left out, unless none has one.
        label: what the axis of values shows, with its unit and which way is better; empty for the column's name.
    """

    title: str
    values: tuple[str, ...]
    across: str = ""
    by: tuple[str, ...] = ()
    panels: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    log: str = ""
    suffix: str = ""
    label: str = ""
    diagonal: bool = False

    @property
    def values_label(self) -> str:
        """The label of the axis of values; empty where several columns without a common label are drawn."""
        return self.label or (self.values[0].replace("_", " ") if len(self.values) == 1 else "")


class ExperimentError(HushstreamError):
    """An experiment is unknown, or is claimed twice."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of an experiment, and the place of its data.

    Attributes:
        quick: play a small version; targets that need a larger size are not evaluated.
        data_dir: a local folder of datasets in place of the cache.
        system: only this system, in experiments that have rows of several.
    """

    quick: bool = False
    data_dir: str | None = None
    system: str | None = None

    @property
    def compared(self) -> bool:
        """Whether only what the table of all systems shows is played; ``system`` asks for all rows of one."""
        return self.system is None and not self.quick

    @property
    def world_options(self) -> dict[str, str]:
        """The option of a world that names the folder; none without a folder."""
        return {} if self.data_dir is None else {"data_dir": self.data_dir}


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """What an experiment found, and what a reader must know of it.

    Attributes:
        rows: flat rows, one for each line and point.
        targets: figures with a target.
        worlds: the worlds and their variants, in words.
        seeds: each seed decides a world, the coins of its users, and the keys.
        settings: settings of the whole experiment, one sentence each.
    """

    rows: Sequence[Row]
    targets: Sequence[BenchRow]
    worlds: tuple[str, ...]
    seeds: Sequence[int]
    settings: tuple[str, ...]

    @property
    def marks(self) -> list[str]:
        """The warnings of all rows, each once."""
        return list(dict.fromkeys(mark for row in self.rows for mark in str(row.get("marks", "")).split("; ") if mark))

    @property
    def reached(self) -> list[bool]:
        """Whether each target that was evaluated is reached."""
        return [row.reached for row in self.targets if row.reached is not None]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A paper's table or figure.

    Attributes:
        name: its name on the command line.
        title: what it shows, in one line.
        source: the paper's table or figure.
        run: plays it: (scale, progress) -> findings.
        curves: its pictures.
        columns: the columns of its rows that readers are shown; all that are not hidden where it names none.
        takes: whether a whole run takes seconds, minutes (up to twenty on two processors), or longer, up to hours.
        data: the datasets that a whole run needs; empty if it only simulates.
    """

    name: str
    title: str
    source: str
    run: Callable[[Scale, Progress | None], Findings]
    curves: tuple[Curve, ...]
    columns: tuple[str, ...] = ()
    takes: Literal["seconds", "minutes", "longer"] = "longer"
    data: str = ""

    def __call__(self, scale: Scale, progress: Progress | None = None) -> Findings:
        """Play it."""
        return self.run(scale, progress)


def experiment(
    name: str,
    title: str,
    source: str,
    *curves: Curve,
    takes: Literal["seconds", "minutes", "longer"] = "longer",
    data: str = "",
) -> Callable[[Callable[[Scale, Progress | None], Findings]], Experiment]:
    """Make the function that plays it an `Experiment`."""
    return lambda run: Experiment(name, title, source, run, curves, takes=takes, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What a plan said of one drawn world beforehand, and what came out.

    Attributes:
        world: the world and its deployment, in words.
        measure: the quantity of both gains, over own learning and larger where sharing is better.
        said: the forecast of the gain; None where the plan gives no range.
        beats: the plan's word (`hushstream.engine.declare.plan.Plan.beats`).
        gain: what came out.
        least: a gain that is not above this does not count as one.
        guarantee: of the deployment that was played.
    """

    world: str
    measure: str
    said: Range | None
    beats: bool | None
    gain: float
    guarantee: Guarantee
    least: float = 0.0

    @property
    def held(self) -> bool | None:
        """Whether the forecast's range holds the gain; None without a range."""
        return None if self.said is None else self.said.low <= self.gain <= self.said.high

    @property
    def right(self) -> bool | None:
        """Whether "will" came with a gain, or "will not" without one that counts; None for "may or may not"."""
        if self.beats is None:
            return None
        return self.gain > 0 if self.beats else self.gain <= self.least


EXPERIMENTS: Registry[Experiment] = Registry("experiment", "hushstream.experiments", Experiment, ExperimentError)

JOINING_SEEDS = tuple(range(10))
"""Seeds of what joining brings: intervals over ten of them tell a gain of a point from chance."""


MEASURED = "measured on public datasets and simulations; no noise was added to the figures themselves"
"""The label of the figures of every experiment."""


MOST_ROWS, FEW_ROWS = 40, 10
"""No table is longer than the first; of more rows a terminal shows about the second, and the CSV holds all."""

WHOSE = "ours, unless they name the paper"
QUICK = "Quick: a small version, with fewer points, users or seeds; it shows the form of the result alone."
NO_TARGET = "no target is stated for a run of this size"


def document(experiment: Experiment, found: Findings) -> dict[str, Any]:
    """Plain values; NaN becomes null."""
    return {
        "description": {
            "name": experiment.name,
            "title": experiment.title,
            "source": experiment.source,
            "worlds": list(found.worlds),
            "seeds": list(found.seeds),
            "settings": list(found.settings),
        },
        "rows": [{name: _plain(value) for name, value in row.items()} for row in found.rows],
        "targets": [asdict(target) for target in found.targets],
    }


def table(experiment: Experiment, found: Findings) -> Group:
    """Targets, rows and facts for a terminal; of a line over time only the last row, of many rows every few."""
    facts = [
        *found.marks,
        f"Source: {experiment.source}.",
        *(f"World {world}." for world in found.worlds),
        f"Seeds: {', '.join(map(str, found.seeds)) or 'none'}.",
        *found.settings,
    ]
    targets = targets_table(found.targets) if found.targets else Text(f"{NO_TARGET.capitalize()}.")
    return Group(targets, _rows_table(experiment, found.rows), Text("\n".join(facts)))


_HIDDEN = frozenset(
    {
        "relation",
        "deployment",
        "digest",
        "marks",
        "lifetime_epsilon",
        "lifetime_delta",
        "unsampled_share",
        "mode",
        "seeds",
    }
)

_LINE = ("users", "T", "calibration", "algorithm")
"""The columns that identify a line of a figure over time."""


def shown(experiment: Experiment, rows: Sequence[Row]) -> list[list[str]]:
    """A table of rows, its head first; of a line over time only the last row.

    Of few rows with many columns each is a column.
    """
    found = [name for name in dict.fromkeys(name for row in rows for name in row) if name not in _HIDDEN]
    names = list(experiment.columns) or [name for name in found if not name.endswith(("_low", "_high"))]
    lines = [[name.replace("_", " ") for name in names], *([_cell(row, name) for name in names] for row in _ends(rows))]
    return [list(column) for column in zip(*lines, strict=True)] if 2 * len(lines) <= len(names) else lines


def _rows_table(experiment: Experiment, rows: Sequence[Row]) -> Table:
    head, *cells = shown(experiment, rows)
    made = Table(*(Column(name, overflow="fold") for name in head), title=f"{experiment.title}\n({MEASURED})")
    every, ends = -(-len(cells) // FEW_ROWS) if len(cells) > MOST_ROWS else 1, len(_ends(rows))
    for row in cells[every - 1 :: every]:
        made.add_row(*row)
    if ends < len(rows):
        made.caption = f"at the end; {len(rows):,} rows over time are in {experiment.name}.csv"
    elif every > 1:
        made.caption = f"one row in {every}; all {len(rows):,} are in {experiment.name}.csv"
    return made


def _ends(rows: Sequence[Row]) -> list[Row]:
    """The last row of each line over time; all rows of an experiment without such lines."""
    last: dict[tuple[Any, ...], Row] = {}
    for place, row in enumerate(rows):
        line = tuple(row.get(name) for name in _LINE) if "events" in row else place
        last[(line,)] = row
    return list(last.values())


def _cell(row: Row, name: str) -> str:
    value = row.get(name, "")
    if not isinstance(value, float):
        return str(value)
    text = "" if math.isnan(value) else f"{value:.4g}"
    half = (row.get(f"{name}_high", math.nan) - row.get(f"{name}_low", math.nan)) / 2
    return text if math.isnan(half) else f"{text} ± {half:.2g}"


_SAID = {True: "yes", False: "no", None: ""}


def targets_table(targets: Sequence[BenchRow]) -> Table:
    """The table of targets for a terminal; of a run that none is stated for, of its figures alone."""
    stated = any(row.target for row in targets)
    columns = ("name", "value", "unit", "target", "reached")
    made = Table(*columns[: 5 if stated else 3], title=f"Targets ({WHOSE})" if stated else f"Figures ({NO_TARGET})")
    for row in targets:
        said = (row.name, f"{row.value:.4g}", row.unit, row.target, _SAID[row.reached])
        made.add_row(*said[: len(made.columns)])
    return made


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
