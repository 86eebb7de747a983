"""The report of a PDOL run: accuracy beside nodes that learn alone, what is promised, and what verify found.

Exact accuracy is a figure on content: it exists for public data only (PRIVACY.md, rule 11), which a replayed world is.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import textwrap
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult, ReportNotWritten
from hushstream.replay.report.promised import promised
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.studies.pdol.play import Accuracy
from hushstream.replay.views import Headline, View

RESULTS, CURVE, PICTURE, PAGE = "results.json", "accuracy.csv", "accuracy.png", "index.html"
_INK, _ALONE, _OURS, _CONSTANT = "#1c2430", "#c2410c", "#0b62b0", "#6b7684"

_TITLE_WIDTH = 60
"""Letters in a line of the picture's title."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """Share of labels predicted right so far: by the deployment, and by nodes that learn alone."""

    records: int
    accuracy: float
    isolated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PdolResult:
    """What came of a run.

    Attributes:
        dataset: the world, with its variant.
        runner: "direct" or "stream".
        seed: of world, noise and keys.
        deployment: its name.
        config_digest: 32 hexadecimal digits.
        form: what was run, in words.
        nodes, domains, records: how many.
        privacy: the guarantee.
        rows: the curve, rising in records.
        accuracy: of what was predicted.
        isolated: of nodes that learn alone, without privacy.
        constant: of the more frequent label.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, predictions a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
    """

    dataset: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    form: str
    nodes: int
    domains: int
    records: int
    privacy: StatedGuarantee
    rows: tuple[AccuracyRow, ...]
    accuracy: Accuracy
    isolated: Accuracy
    constant: float
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in records, or a count without a class.
        """
        places = [row.records for row in self.rows]
        if not places or any(later <= earlier for earlier, later in pairwise(places)):
            raise BadResult(f"rows: expected a curve that rises in records, got {len(places)} rows that do not")
        for name in self.counts:
            if name not in COUNT_CLASSES:
                raise BadResult(f"counts: expected names with a privacy class, got {name!r}")

    @property
    def title(self) -> str:
        """What was run, in a line."""
        return f"pdol on {self.dataset}: {self.form}"

    @property
    def verify_text(self) -> str:
        """What verify found, in a line."""
        if self.verify is None:
            return "not asked for"
        changed = sum(check.changed for check in self.verify.values())
        equal = sum(check.equal for check in self.verify.values())
        ties = sum(check.ties for check in self.verify.values())
        return f"{equal} records equal, {ties} float ties, {changed} changed"

    @property
    def compared(self) -> tuple[tuple[str, Accuracy], ...]:
        """Who predicted how well."""
        constant = Accuracy(self.constant, self.constant)
        return (("constant", constant), ("isolated nodes", self.isolated), ("shared", self.accuracy))

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        plain = ("dataset", "runner", "seed", "deployment", "config_digest", "form", "nodes", "domains", "records")
        return {
            "system": "pdol",
            "title": self.title,
            **{name: getattr(self, name) for name in plain},
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "marks": list(self.privacy.marks),
            "accuracy": [dict(zip(("records", "accuracy", "isolated"), astuple(r), strict=True)) for r in self.rows],
            "compared": {name: {"whole": one.whole, "last_quarter": one.last} for name, one in self.compared},
            **counts_json(self.counts),
            "throughput": dict(self.throughput),
            "verify": verify_json(self.verify),
            "environment": dict(self.environment),
        }


def pdol_table(result: PdolResult) -> RenderableType:
    """What stands on the terminal at the end of a run."""
    table = Table(title=Text(result.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("predicted by")
    table.add_column("right, whole stream", justify="right")
    table.add_column("last quarter", justify="right")
    for name, one in result.compared:
        table.add_row(name, f"{one.whole:.4f}", f"{one.last:.4f}")
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("guarantee", result.privacy.summary),
        ("records", f"{result.records:,} at {result.nodes} nodes, {result.domains} counters"),
        ("speed", f"{result.throughput['decisions_per_second']:,.0f} predictions/s"),
        ("configuration", result.config_digest),
        ("verify", result.verify_text),
    ):
        facts.add_row(name, Text(value))
    marks = [Panel(Text(mark, style="bold"), border_style="yellow") for mark in result.privacy.marks]
    return Group(Text(result.privacy.sentence), *marks, table, facts)


def pdol_view(result: PdolResult) -> View:
    """Accuracy over that of nodes that learn alone, and both on the way."""
    alone = result.isolated.whole
    ratio = result.accuracy.whole / alone if alone else None
    return View(
        title=result.title,
        headline=None if ratio is None else Headline("labels right, shared over isolated nodes", ratio),
        facts=(result.privacy.summary, f"verify: {result.verify_text}"),
        marks=result.privacy.marks,
        rows=[asdict(row) for row in result.rows],
        pictures={"accuracy": lambda: draw_accuracy(result)},
    )


def write_pdol_report(result: PdolResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, ``accuracy.csv``, ``accuracy.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    picture = draw_accuracy(result)
    content = {
        RESULTS: (json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n").encode(),
        CURVE: _csv(result),
        PICTURE: picture,
        PAGE: _page(result, picture).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ReportNotWritten(f"report: expected a folder to write to, got {folder} ({error.strerror})") from error
    return [folder / name for name in content]


def draw_accuracy(result: PdolResult) -> bytes:
    """The accuracy curve as PNG bytes, the same for the same result."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False})
        figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        # Of the first record alone it is 0 or 1, and the rest would be a line at the edge.
        rows = result.rows[1:] or result.rows
        places = [row.records for row in rows]
        axes.axhline(result.constant, linestyle="-.", color=_CONSTANT, label="constant")
        axes.plot(places, [row.isolated for row in rows], "--", color=_ALONE, label="isolated nodes")
        axes.plot(places, [row.accuracy for row in rows], color=_OURS, linewidth=2, label="shared")
        axes.set_title(
            textwrap.fill(result.title, _TITLE_WIDTH), loc="left", fontsize=11, fontweight="bold", color=_INK
        )
        axes.set_xlabel("records, all nodes")
        axes.set_ylabel("right before the label is seen, so far")
        axes.grid(axis="y", linewidth=0.8, color="#dfe4ea")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.supxlabel("; ".join((result.privacy.summary, *result.privacy.marks)), fontsize=6.5, wrap=True)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()


def _csv(result: PdolResult) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(column.name for column in fields(AccuracyRow))
    writer.writerows(astuple(row) for row in result.rows)
    return target.getvalue().encode()


def _page(result: PdolResult, picture: bytes) -> str:
    package = files("hushstream.replay.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(package.joinpath("records.html.j2").read_text(encoding="utf-8"))
    css = Markup(package.joinpath("page.css").read_text(encoding="utf-8"))
    image = "data:image/png;base64," + base64.b64encode(picture).decode()
    head = promised(result.privacy.sentence, result.privacy.odds)
    return template.render(css=css, promised=head, result=result, image=image, classes=COUNT_CLASSES)
