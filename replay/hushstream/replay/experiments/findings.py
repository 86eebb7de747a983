"""The findings of an experiment: rows, targets, and remarks for readers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

from hushstream.privacy.amounts import delta_text, epsilon_text
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.rows import Row


@dataclass(frozen=True, slots=True)
class Provenance:
    """A private deployment from which figures come.

    Attributes:
        label: name of its line.
        guarantee: its guarantee.
        digest: digest of its configuration and encoder, in hexadecimal.
    """

    label: str
    guarantee: Guarantee
    digest: str


@dataclass(frozen=True, slots=True)
class Description:
    """What a reader must know about an experiment.

    Attributes:
        name: name of the experiment.
        title: its subject, in one line.
        source: the paper's table or figure.
        worlds: the worlds and their variants, in words.
        seeds: each seed decides a world, the coins of its users, and the keys.
        settings: settings of the whole experiment, one sentence each.
        deployments: the private deployments, with guarantees and digests.
    """

    name: str
    title: str
    source: str
    worlds: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: tuple[str, ...]
    deployments: tuple[Provenance, ...] = ()

    def facts(self) -> list[str]:
        """The facts for a terminal or a caption: source, worlds, seeds, settings, and the guarantee of each line."""
        seeds = ", ".join(map(str, self.seeds)) or "none"
        promises = dict.fromkeys(f"{known.label}: {promise(known.guarantee)}" for known in self.deployments)
        return [
            f"Source: {self.source}.",
            *(f"World {world}." for world in self.worlds),
            f"Seeds: {seeds}.",
            *self.settings,
            *(f"{text}." for text in promises),
        ]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "source": self.source,
            "worlds": list(self.worlds),
            "seeds": list(self.seeds),
            "settings": list(self.settings),
            "deployments": [
                {"label": known.label, "digest": known.digest, "guarantee": known.guarantee.as_json()}
                for known in self.deployments
            ],
        }


def promise(guarantee: Guarantee) -> str:
    """A guarantee in one line: warnings, a slot's price, a lifetime's where it differs, and the kind of deployment."""
    parts = [*guarantee.marks]
    if guarantee.claimed is not None:
        parts.append(f"claimed epsilon {epsilon_text(guarantee.claimed.epsilon_micro)}")
    parts.append(f"epsilon {epsilon_text(guarantee.epsilon_micro)}, delta {delta_text(guarantee.delta_units)} a slot")
    lifetime = guarantee.lifetime
    if lifetime.units > 1:
        parts.append(f"epsilon {epsilon_text(lifetime.cost.epsilon_micro)} for {lifetime.units} slots")
    return "; ".join([*parts, "null-slot relation", f"deployment {guarantee.deployment}"])


MEASURED = "measured on public datasets and simulations; no noise was added to the figures themselves"
"""The label of the figures of every experiment."""


@dataclass(frozen=True, slots=True, eq=False)
class Findings:
    """The results of an experiment.

    Attributes:
        description: what a reader must know.
        rows: flat rows, one for each line and point.
        targets: figures with a target.
    """

    description: Description
    rows: list[Row]
    targets: list[BenchRow]

    def describe(self) -> dict[str, Any]:
        """Source, world variants, seeds, guarantees and configuration digests."""
        return self.description.as_json()

    def as_json(self) -> dict[str, Any]:
        """Plain values; NaN becomes null."""
        return {
            "description": self.describe(),
            "rows": [{name: _plain(value) for name, value in row.items()} for row in self.rows],
            "targets": [asdict(target) for target in self.targets],
        }

    def as_csv(self) -> str:
        """The rows with every column that any of them has, and a last column with the label of the figures."""
        names = [*dict.fromkeys(name for row in self.rows for name in row), "figures"]
        target = io.StringIO()
        writer = csv.DictWriter(target, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "figures": MEASURED} for row in self.rows)
        return target.getvalue()

    def table(self) -> Group:
        """The rows and targets for a terminal; of a line over time only the last row."""
        return Group(_rows_table(self), targets_table(self.targets), Text("\n".join(self.description.facts())))


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """Findings, and the files that they were written to."""

    findings: Findings
    files: tuple[Path, ...]

    def as_json(self) -> dict[str, Any]:
        """The findings, and the files' names."""
        return {**self.findings.as_json(), "files": [str(path) for path in self.files]}

    def table(self) -> Group:
        return self.findings.table()


def write_findings(findings: Findings, folder: Path) -> list[Path]:
    """Write ``NAME.csv``, ``NAME-targets.csv`` and ``NAME.json``; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    name = findings.description.name
    rows, targets, whole = folder / f"{name}.csv", folder / f"{name}-targets.csv", folder / f"{name}.json"
    rows.write_text(findings.as_csv(), encoding="utf-8")
    target = io.StringIO()
    writer = csv.DictWriter(target, list(BenchRow.__dataclass_fields__), lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in findings.targets)
    targets.write_text(target.getvalue(), encoding="utf-8")
    whole.write_text(json.dumps(findings.as_json(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return [rows, targets, whole]


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


def _rows_table(findings: Findings) -> Table:
    names = [name for name in dict.fromkeys(name for row in findings.rows for name in row) if name not in _HIDDEN]
    shown = [name for name in names if not name.endswith(("_low", "_high"))]
    table = Table(
        *(Column(name, overflow="fold") for name in shown), title=f"{findings.description.title}\n({MEASURED})"
    )
    rows = _ends(findings.rows)
    for row in rows:
        table.add_row(*(_cell(row, name) for name in shown))
    if len(rows) < len(findings.rows):
        table.caption = f"at the end; {len(findings.rows):,} rows over time are in {findings.description.name}.csv"
    return table


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


def targets_table(targets: Sequence[BenchRow]) -> Table:
    """The table of targets for a terminal."""
    table = Table("name", "value", "unit", "target", "reached", title="Targets")
    for row in targets:
        reached = {True: "yes", False: "no", None: ""}[row.reached]
        table.add_row(row.name, f"{row.value:.4g}", row.unit, row.target, reached)
    return table


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
