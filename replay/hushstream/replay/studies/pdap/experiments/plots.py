"""The pictures of the P-DAP experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import LEAST_SEEDS, Pen, line, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.palette import AMBER, BLACK, BLUE, FAINT, GREEN, PURPLE, RED, SKY, STONE
from hushstream.replay.report.sheet import Sheet

PENS = {
    "blocks": Pen(BLUE, "-", "o"),
    "blocks, counters at home": Pen(SKY, "--", "s"),
    "negative-digit": Pen(GREEN, "-", "^"),
    "binary": Pen(AMBER, "-", "v"),
    "exponential": Pen(PURPLE, "-", "D"),
    "alone-blocks": Pen(STONE, "-", "x"),
}
LEVEL_PENS = {
    "exact": Pen(BLACK, ":", ""),
    "own-statistics": Pen(FAINT, "--", ""),
    "alone-exact": Pen(RED, "-.", ""),
}
LEVEL_LABELS = {
    "exact": "shared, exact",
    "own-statistics": "all items, own statistics, exact",
    "alone-exact": "no sharing, exact",
}
LABELS = {"alone-blocks": "no sharing, blocks"}
_BARS = {"paper": PURPLE, "plain": STONE, "sound": BLUE}


def draw_sharing(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw accuracy against epsilon: a panel for each world and traffic, with lines for forms without an epsilon."""
    panels = list(dict.fromkeys((row["part"], row["contexts"]) for row in rows))
    grid = sheet.panels(len(panels), height=260, sharey=True)
    for axes, (part, contexts) in zip(grid, panels, strict=True):
        chosen = [row for row in rows if (row["part"], row["contexts"]) == (part, contexts)]
        _draw_levels(axes, chosen)
        _draw_lines(axes, chosen)
        axes.set(xscale="log", title=f"{part}, {contexts:,} contexts")
        _epsilon_ticks(axes, chosen)
    sheet.label_left(grid, "Accuracy, %")
    sheet.legend(*grid)


def draw_forms(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw accuracy and online accuracy against epsilon, a line for each mechanism."""
    panels = sheet.panels(2, height=320, sharey=True)
    for axes, value, title in zip(panels, ("accuracy", "online"), ("Greedy, after learning", "Online"), strict=True):
        _draw_levels(axes, rows, value)
        _draw_lines(axes, rows, value)
        axes.set(xscale="log", title=title)
        _epsilon_ticks(axes, rows)
    sheet.label_left(panels, "Accuracy, %")
    sheet.legend(*panels)


def draw_gp(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw three bars: GP-DAP's epsilons and the two uniform ones next to it."""
    labels = [
        f"epsilon {row['epsilon_asked']:.3g}" + (f" to {row['epsilon']:.3g}, by level" if row["level_growth"] else "")
        for row in rows
    ]
    _bars(sheet, labels, rows, [_BARS["sound"]] * len(rows))


def draw_table(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the paper's algorithms after the most contexts, its printed figures as marks, and the sound form."""
    last = max(row["N"] for row in rows if "N" in row)
    shown = [row for row in rows if row.get("N", last) == last]
    kinds = ["sound" if row["form"] == "blocks" else "paper" if "epsilon_asked" in row else "plain" for row in shown]
    axes = _bars(sheet, [_form_name(row) for row in shown], shown, [_BARS[kind] for kind in kinds])
    places = [place for place, row in enumerate(shown) if "printed" in row]
    if places:
        printed = [shown[place]["printed"] for place in places]
        axes.plot(printed, places, "|", color=BLACK, markersize=14, markeredgewidth=2, label="printed in the paper")
    for kind, name in (
        ("plain", "no privacy"),
        ("paper", f"as in the paper ({NOT_PRIVATE})"),
        ("sound", "disjoint blocks, greedy: epsilon holds"),
    ):
        axes.barh([0], [0], color=_BARS[kind], label=name)
    axes.set_title(f"After {last:,} further contexts")
    sheet.legend(axes)


def _form_name(row: Row) -> str:
    return f"{row['form']}, epsilon {row['epsilon_asked']:g}" if "epsilon_asked" in row else str(row["form"])


def _bars(sheet: Sheet, labels: Sequence[str], rows: Sequence[Row], colours: Sequence[str]) -> Axes:
    """Draw horizontal bars, with names in lines of text at any width."""
    (axes,) = sheet.named_rows(labels)
    values = [row["accuracy"] for row in rows]
    spread = [max(0.0, row["accuracy_high"] - row["accuracy"]) if row["seeds"] >= LEAST_SEEDS else 0.0 for row in rows]
    bars = axes.barh(
        range(len(rows)), values, xerr=spread if any(spread) else None, color=colours, ecolor=FAINT, capsize=2
    )
    axes.bar_label(bars, fmt="%.1f", padding=4)
    axes.set(xlabel="Accuracy, %", xlim=(0, 100))
    return axes


def _draw_levels(axes: Axes, rows: Sequence[Row], value: str = "accuracy") -> None:
    for form, pen in LEVEL_PENS.items():
        for row in rows:
            if row["form"] == form:
                axes.axhline(row[value], color=pen.colour, linestyle=pen.dashes, label=LEVEL_LABELS[form])


def _draw_lines(axes: Axes, rows: Sequence[Row], value: str = "accuracy") -> None:
    for name, pen in PENS.items():
        line(axes, [row for row in rows if _name(row) == name], "epsilon_asked", value, pen, LABELS.get(name, name))
    axes.set_ylim(0, 100)


def _name(row: Row) -> str:
    return "blocks, counters at home" if row["placement"] == "home" else str(row["form"])


def _epsilon_ticks(axes: Axes, rows: Sequence[Row]) -> None:
    ticks(axes, sorted({row["epsilon_asked"] for row in rows if "epsilon_asked" in row}))
    axes.set_xlabel("Epsilon of one reward")
