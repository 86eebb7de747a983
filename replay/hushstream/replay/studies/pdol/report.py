"""The report of a PDOL run: accuracy beside nodes that learn alone, what is promised, and what verify found.

Exact accuracy is a figure on content: it exists for public data only (PRIVACY.md, rule 11), which a replayed world is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult
from hushstream.replay.report.folder import PAGE, RESULTS, figures_csv, json_bytes, write_files
from hushstream.replay.report.palette import BLUE, GREY, RED
from hushstream.replay.report.parts import (
    closing,
    guarantee_tile,
    interval_text,
    ratio_text,
    verify_tile,
    with_meanings,
)
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.printed import answers, facts_grid, warnings
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.sheet import Drawing, Sheet, png
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import EXACT, provenance, provenance_lines, verify_text
from hushstream.replay.studies.pdol.play import Accuracy
from hushstream.replay.views import Headline, View

CURVE, PICTURE = "accuracy.csv", "accuracy.png"
_TENTHS = 10


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
        comparison: labels right over those of isolated nodes, with its interval over records; None if they have none.
        payoff: against nodes that keep apart.
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
    comparison: Comparison | None = None
    payoff: Payoff | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """What was reached privately, and whether it pays: the first lines of whatever shows this result."""
        first = reached(f"{100 * self.accuracy.whole:.1f} % of labels are right before they are seen", self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in records, or a count without a class.
        """
        places = [row.records for row in self.rows]
        if not places or any(later <= earlier for earlier, later in pairwise(places)):
            raise BadResult(f"rows: expected a curve that rises in records, got {len(places)} rows that do not")
        require_classed(self.counts)

    @property
    def title(self) -> str:
        """What was run, in a line."""
        return f"pdol on {self.dataset}: {self.form}"

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
            "answers": list(self.answers),
            "payoff": None if self.payoff is None else self.payoff.as_json(),
            **{name: getattr(self, name) for name in plain},
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "marks": list(self.privacy.marks),
            "accuracy": [dict(zip(("records", "accuracy", "isolated"), astuple(r), strict=True)) for r in self.rows],
            "compared": {name: {"whole": one.whole, "last_quarter": one.last} for name, one in self.compared},
            "comparison": None if self.comparison is None else self.comparison.as_json(),
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
    facts = facts_grid(
        (
            ("guarantee", result.privacy.summary),
            ("records", f"{result.records:,} at {result.nodes} nodes, {result.domains} counters"),
            ("speed", f"{result.throughput['decisions_per_second']:,.0f} predictions/s"),
            ("configuration", result.config_digest),
            ("verify", verify_text(result.verify)),
        )
    )
    return Group(*answers(result.answers), Text(result.privacy.sentence), *warnings(result.privacy.marks), table, facts)


def pdol_view(result: PdolResult) -> View:
    """Accuracy over that of nodes that learn alone, and both on the way."""
    found = result.comparison
    return View(
        title=result.title,
        answers=result.answers,
        headline=None
        if found is None
        else Headline("labels right, shared over isolated nodes", found.ratio, found.low, found.high),
        facts=(result.privacy.summary, f"verify: {verify_text(result.verify)}"),
        marks=result.privacy.marks,
        rows=[asdict(row) for row in result.rows],
        pictures={"accuracy": partial(png, accuracy_drawing(result), provenance_lines(result))},
    )


def write_pdol_report(result: PdolResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, ``accuracy.csv``, ``accuracy.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    content = {
        RESULTS: json_bytes(result.as_json()),
        CURVE: figures_csv(
            (column.name for column in fields(AccuracyRow)), map(astuple, result.rows), [EXACT] * len(result.rows)
        ),
        PICTURE: png(accuracy_drawing(result), provenance_lines(result)),
    }
    return write_files(directory, content | {PAGE: pdol_page(result, tuple(content)).encode()})


def accuracy_drawing(result: PdolResult) -> Drawing:
    """Accuracy on the way, beside nodes that learn alone."""
    return Drawing(
        "accuracy",
        "Labels predicted right so far",
        "Each record is predicted before its label is seen. Isolated nodes learn from their own exact records alone; "
        "constant is the more frequent label every time. "
        f"These are {EXACT}.",
        f"Share of labels predicted right so far: {result.accuracy.whole:.3f} at the end, against "
        f"{result.isolated.whole:.3f} of nodes that learn alone and {result.constant:.3f} of the more frequent label.",
        partial(_draw_accuracy, result),
    )


def _draw_accuracy(result: PdolResult, sheet: Sheet) -> None:
    (axes,) = sheet.panels(height=340)
    # Of the first record alone it is 0 or 1, and the rest would be a line at the edge.
    rows = result.rows[1:] or result.rows
    places = [row.records for row in rows]
    axes.axhline(result.constant, linestyle="-.", color=GREY, label="constant")
    axes.plot(places, [row.isolated for row in rows], "--", color=RED, label="isolated nodes")
    axes.plot(places, [row.accuracy for row in rows], color=BLUE, linewidth=2, label="shared")
    axes.set(xlabel="Records, all nodes", ylabel="Right before the label is seen, so far")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    sheet.legend(axes)


def pdol_page(result: PdolResult, names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.privacy.marks),
            figure=ratio_text(result.comparison),
            outcome=_outcome(result),
            tiles=(*_first_tile(result.rows), guarantee_tile(result.privacy), *verify_tile(result.verify)),
            sections=(
                frame.Section("compared", "Compared", (_compared(result),)),
                frame.Section("plots", "Accuracy", (frame.Pictures((accuracy_drawing(result),)),)),
                *closing(result),
            ),
            provenance=provenance(result),
            files=names,
        )
    )


def _outcome(result: PdolResult) -> tuple[str, ...]:
    share = 100 * result.accuracy.whole
    right = f"{share:.1f} % of {result.records:,} labels were predicted right before they were seen"
    alone = f"nodes that learn alone have {100 * result.isolated.whole:.1f} %"
    found = result.comparison
    times = "" if found is None else f", {found.ratio:.2f} times theirs ({interval_text(found)})"
    return (f"{right}; {alone}{times}.", f"{result.nodes:,} nodes, {result.domains:,} counters.")


def _first_tile(rows: tuple[AccuracyRow, ...]) -> list[frame.Tile]:
    """The beginning apart from the end, which the mean over all records hides."""
    if len(rows) < _TENTHS:
        return []
    first, before, last = rows[len(rows) // 10], rows[-1 - len(rows) // 10], rows[-1]
    since = last.records - before.records
    end = last.records * (last.accuracy - last.isolated) - before.records * (before.accuracy - before.isolated)
    return [
        frame.Tile(
            "From beginning to end",
            f"{100 * (first.accuracy - first.isolated):+.1f} to {100 * end / since:+.1f} points",
            f"over isolated nodes, in the first {first.records:,} records, and in the last {since:,}",
        )
    ]


def _compared(result: PdolResult) -> frame.Table:
    rows = ((name, f"{one.whole:.4f}", f"{one.last:.4f}") for name, one in result.compared)
    caption = f"Share of labels right before they were seen. These are {EXACT}."
    columns = ("Predicted by", "Whole stream", "Last quarter")
    return frame.Table(caption, columns, tuple(tuple(map(frame.Cell, row)) for row in rows))
