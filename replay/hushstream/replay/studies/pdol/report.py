"""The report of a PDOL run: accuracy compared with isolated nodes, the guarantee, and the result of verify.

Exact accuracy is a figure on content. It exists for public data only (PRIVACY.md, rule 11), and a replayed world is
public.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from functools import partial

from matplotlib.ticker import MaxNLocator

from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.palette import BLUE, GREY, RED
from hushstream.replay.report.parts import interval_text, ratio_text
from hushstream.replay.report.replayed import (
    Columns,
    Replayed,
    Shown,
    beginning_and_end,
    figures_table,
    picture_section,
    ratio,
    require_rising,
    speed,
)
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.wording import EXACT
from hushstream.replay.studies.pdol.play import Accuracy


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """The share of labels predicted correctly so far, by the deployment and by isolated nodes."""

    records: int
    accuracy: float
    isolated: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PdolResult(Replayed):
    """The outcome of a run, besides `Replayed`; ``comparison`` compares correct predictions, over records.

    Attributes:
        form: what was run, as text.
        nodes, domains, records: how many of each.
        rows: the points of the curve, rising in records.
        accuracy: accuracy of the deployment's predictions.
        isolated: accuracy of isolated nodes, which learn alone without privacy.
        constant: accuracy of always predicting the more frequent label.
    """

    form: str
    nodes: int
    domains: int
    records: int
    rows: tuple[AccuracyRow, ...]
    accuracy: Accuracy
    isolated: Accuracy
    constant: float

    def __post_init__(self) -> None:
        """Refuse values that no run gives.

        Raises:
            BadResult: no curve or one that does not rise in records, or a count without a class.
        """
        require_rising("rows", "records", [row.records for row in self.rows])
        require_classed(self.counts)

    @property
    def reached(self) -> str:
        """The result in one line."""
        return f"{100 * self.accuracy.whole:.1f} % of labels are predicted correctly"

    @property
    def title(self) -> str:
        """One line that says what was run."""
        return f"pdol on {self.dataset}: {self.form}"

    @property
    def compared(self) -> tuple[tuple[str, Accuracy], ...]:
        """The accuracies of all predictors, each with its name."""
        constant = Accuracy(self.constant, self.constant)
        return (("constant", constant), ("isolated nodes", self.isolated), ("shared", self.accuracy))


def present(result: PdolResult) -> Shown[PdolResult]:
    """Show accuracy compared with that of isolated nodes, and both over the run."""
    drawing = accuracy_drawing(result)
    compared = [(name, f"{one.whole:.4f}", f"{one.last:.4f}") for name, one in result.compared]
    return Shown(
        result=result,
        system="pdol",
        settings={name: getattr(result, name) for name in ("form", "nodes", "domains", "records")},
        figures={
            "accuracy": [asdict(row) for row in result.rows],
            "compared": {name: {"whole": one.whole, "last_quarter": one.last} for name, one in result.compared},
        },
        compared=Columns(("predicted by", "correct, whole stream", "last quarter"), compared),
        facts=(
            ("records", f"{result.records:,} at {result.nodes} nodes, {result.domains} counters"),
            speed(result, "predictions"),
        ),
        headline=ratio("correct predictions, shared over isolated nodes", result.comparison),
        rows=[asdict(row) for row in result.rows],
        drawing=drawing,
        curve=Columns([one.name for one in fields(AccuracyRow)], [astuple(row) for row in result.rows], "accuracy.csv"),
        figure=ratio_text(result.comparison),
        outcome=_outcome(result),
        first_tiles=_first_tile(result.rows),
        sections=(
            frame.Section(
                "compared",
                "Compared",
                (
                    figures_table(
                        f"Share of labels predicted correctly before they were seen. These are {EXACT}.",
                        ("Predicted by", "Whole stream", "Last quarter"),
                        compared,
                    ),
                ),
            ),
            picture_section("Accuracy", drawing),
        ),
    )


def accuracy_drawing(result: PdolResult) -> Drawing:
    """Draw accuracy over the run, beside that of isolated nodes."""
    return Drawing(
        "accuracy",
        "Correct predictions so far",
        "Each record is predicted before its label is seen. Isolated nodes learn from their own exact records "
        f"alone; constant always predicts the more frequent label. These are {EXACT}.",
        f"Share of labels predicted correctly so far: {result.accuracy.whole:.3f} at the end, against "
        f"{result.isolated.whole:.3f} of isolated nodes and {result.constant:.3f} of the more frequent label.",
        partial(_draw_accuracy, result),
    )


def _draw_accuracy(result: PdolResult, sheet: Sheet) -> None:
    (axes,) = sheet.panels(height=340)
    # After the first record accuracy is 0 or 1, which would press all other points to one edge.
    rows = result.rows[1:] or result.rows
    places = [row.records for row in rows]
    axes.axhline(result.constant, linestyle="-.", color=GREY, label="constant")
    axes.plot(places, [row.isolated for row in rows], "--", color=RED, label="isolated nodes")
    axes.plot(places, [row.accuracy for row in rows], color=BLUE, linewidth=2, label="shared")
    axes.set(xlabel="Records, all nodes", ylabel="Correct predictions so far")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    sheet.legend(axes)


def _outcome(result: PdolResult) -> tuple[str, ...]:
    share = 100 * result.accuracy.whole
    right = f"{share:.1f} % of {result.records:,} labels were predicted correctly before they were seen"
    alone = f"isolated nodes have {100 * result.isolated.whole:.1f} %"
    found = result.comparison
    times = "" if found is None else f", {found.ratio:.2f} times theirs ({interval_text(found)})"
    return (f"{right}; {alone}{times}.", f"{result.nodes:,} nodes, {result.domains:,} counters.")


def _first_tile(rows: tuple[AccuracyRow, ...]) -> list[frame.Tile]:
    """A tile with the gain in the first records and the last ones, which a mean over all records hides."""
    found = beginning_and_end(rows)
    if found is None:
        return []
    first, before, last = found
    since = last.records - before.records
    end = last.records * (last.accuracy - last.isolated) - before.records * (before.accuracy - before.isolated)
    return [
        frame.Tile(
            "From beginning to end",
            f"{100 * (first.accuracy - first.isolated):+.1f} to {100 * end / since:+.1f} points",
            f"over isolated nodes, in the first {first.records:,} records, and in the last {since:,}",
        )
    ]
