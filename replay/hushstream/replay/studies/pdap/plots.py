"""The pictures of the P-DAP experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hushstream.privacy.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, legend, ticks
from hushstream.replay.experiments.rows import Row

PENS = {
    "blocks": Pen("#0b62b0", "-", "o"),
    "blocks, counters at home": Pen("#38a3d1", "--", "s"),
    "negative-digit": Pen("#0b8f6f", "-", "^"),
    "binary": Pen("#d97706", "-", "v"),
    "exponential": Pen("#8e3b8e", "-", "D"),
    "alone-blocks": Pen("#a8a29e", "-", "x"),
}
LEVEL_PENS = {
    "exact": Pen("#111827", ":", ""),
    "own-statistics": Pen("#6b7280", "--", ""),
    "alone-exact": Pen("#c2410c", "-.", ""),
}
LEVEL_LABELS = {
    "exact": "shared, exact",
    "own-statistics": "all items, own statistics, exact",
    "alone-exact": "no sharing, exact",
}
_LEAST_SEEDS = 3
"""A 95 % interval of two seeds is wider than any picture."""

LABELS = {"alone-blocks": "no sharing, blocks"}
_BARS = {"paper": "#8e3b8e", "plain": "#a8a29e", "sound": "#0b62b0"}


def draw_sharing(rows: Sequence[Row], figure: Figure) -> None:
    """A panel for each world and traffic: accuracy against epsilon, with the levels that have none."""
    panels = list(dict.fromkeys((row["part"], row["contexts"]) for row in rows))
    columns = min(4, len(panels))
    grid = figure.subplots(-(-len(panels) // columns), columns, squeeze=False, sharey=True).ravel()
    for axes, (part, contexts) in zip(grid, panels, strict=False):
        chosen = [row for row in rows if (row["part"], row["contexts"]) == (part, contexts)]
        _draw_levels(axes, chosen)
        _draw_lines(axes, chosen)
        axes.set(xscale="log", title=f"{part}, {contexts:,} contexts")
        _epsilon_ticks(axes, chosen)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes in grid[::columns]:
        axes.set_ylabel("Accuracy, %")
    legend(figure, *grid[: len(panels)], columns=3)


def draw_forms(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy and online accuracy against epsilon, a line for each mechanism."""
    panels = figure.subplots(1, 2, sharey=True)
    for axes, value, title in zip(panels, ("accuracy", "online"), ("Greedy, after learning", "Online"), strict=True):
        _draw_levels(axes, rows, value)
        _draw_lines(axes, rows, value)
        axes.set(xscale="log", title=title)
        _epsilon_ticks(axes, rows)
    panels[0].set_ylabel("Accuracy, %")
    legend(figure, *panels, columns=3)


def draw_gp(rows: Sequence[Row], figure: Figure) -> None:
    """Three bars."""
    axes = figure.subplots()
    labels = [
        f"epsilon {row['epsilon_asked']:.3g}" + (f" to {row['epsilon']:.3g}, by level" if row["level_growth"] else "")
        for row in rows
    ]
    _bars(axes, labels, rows, [_BARS["sound"]] * len(rows))


def draw_table(rows: Sequence[Row], figure: Figure) -> None:
    """The paper's algorithms after the most contexts, its printed figures as marks, and the sound form."""
    axes = figure.subplots()
    last = max(row["N"] for row in rows if "N" in row)
    shown = [row for row in rows if row.get("N", last) == last]
    labels = [
        f"{row['form']}\n{row['epsilon_asked']:g}" if "epsilon_asked" in row else str(row["form"]) for row in shown
    ]
    kinds = ["sound" if row["form"] == "blocks" else "paper" if "epsilon_asked" in row else "plain" for row in shown]
    _bars(axes, labels, shown, [_BARS[kind] for kind in kinds])
    places = [place for place, row in enumerate(shown) if "printed" in row]
    if places:
        printed = [shown[place]["printed"] for place in places]
        axes.plot(places, printed, "k_", markersize=16, label="printed in the paper")
    for kind, name in (
        ("plain", "no privacy"),
        ("paper", f"as in the paper ({NOT_PRIVATE})"),
        ("sound", "disjoint blocks, greedy: epsilon holds"),
    ):
        axes.bar([0], [0], color=_BARS[kind], label=name)
    axes.set_title(f"after {last:,} further contexts; numbers below names are epsilons")
    legend(figure, axes, columns=4)


def _bars(axes: Axes, labels: Sequence[str], rows: Sequence[Row], colours: Sequence[str]) -> None:
    values = [row["accuracy"] for row in rows]
    spread = [max(0.0, row["accuracy_high"] - row["accuracy"]) if row["seeds"] >= _LEAST_SEEDS else 0.0 for row in rows]
    bars = axes.bar(
        range(len(rows)), values, yerr=spread if any(spread) else None, color=colours, ecolor="#374151", capsize=2
    )
    axes.bar_label(bars, fmt="%.1f", padding=2, fontsize=8)
    axes.set_xticks(range(len(rows)), labels, fontsize=8)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="Accuracy, %", ylim=(0, 100))


def _draw_levels(axes: Axes, rows: Sequence[Row], value: str = "accuracy") -> None:
    for form, pen in LEVEL_PENS.items():
        for row in rows:
            if row["form"] == form:
                axes.axhline(row[value], color=pen.colour, linestyle=pen.dashes, label=LEVEL_LABELS[form])


def _draw_lines(axes: Axes, rows: Sequence[Row], value: str = "accuracy") -> None:
    for name, pen in PENS.items():
        chosen = sorted((row for row in rows if _line(row) == name), key=lambda row: float(row["epsilon_asked"]))
        if not chosen:
            continue
        places = [row["epsilon_asked"] for row in chosen]
        if min(row["seeds"] for row in chosen) >= _LEAST_SEEDS:
            low, high = ([row[f"{value}_{end}"] for row in chosen] for end in ("low", "high"))
            axes.fill_between(places, low, high, color=pen.colour, alpha=0.10, linewidth=0)
        axes.plot(
            places,
            [row[value] for row in chosen],
            pen.dashes,
            color=pen.colour,
            marker=pen.marker,
            label=LABELS.get(name, name),
        )
    axes.set_ylim(0, 100)


def _line(row: Row) -> str:
    return "blocks, counters at home" if row["placement"] == "home" else str(row["form"])


def _epsilon_ticks(axes: Axes, rows: Sequence[Row]) -> None:
    places = sorted({row["epsilon_asked"] for row in rows if "epsilon_asked" in row})
    ticks(axes, [])
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel("Epsilon of one reward")
