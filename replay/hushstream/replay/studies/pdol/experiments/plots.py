"""The pictures of PDOL's experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, line, plain_logarithm, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.palette import AMBER, BLACK, BLUE, GREEN, GREY, PERIWINKLE, RED
from hushstream.replay.report.sheet import Sheet

PENS = {
    "released": Pen(BLUE, "-", "o"),
    "node": Pen(GREEN, "-", "s"),
    "isolated": Pen(RED, "--", ""),
    "central": Pen(BLACK, ":", ""),
    "constant": Pen(GREY, "-.", ""),
}
FORM_PENS = {
    "per step, Laplace": Pen(RED, "", "D"),
    "per step, Gaussian": Pen(AMBER, "", "^"),
    "fresh windows": Pen(PERIWINKLE, "", "v"),
    "digit tree": Pen(GREEN, "", "s"),
    "BLT": Pen(BLUE, "", "o"),
    "one counter": Pen(BLACK, "", "P"),
}


def draw_sharing(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw accuracy against epsilon, a panel for each world."""
    rows = [row for row in rows if row["part"] == "epsilon"]
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = sheet.panels(len(worlds), height=280)
    for axes, world in zip(panels, worlds, strict=True):
        here = [row for row in rows if row["world"] == world]
        noised = [row for row in here if row["epsilon_asked"] != "none"]
        for name in ("released", "node"):
            line(axes, [row for row in noised if name in row], "epsilon_asked", name, PENS[name], name)
        for name in ("isolated", "central", "constant"):
            level = next((row[name] for row in here if name in row), None)
            if level is not None:
                axes.axhline(level, color=PENS[name].colour, linestyle=PENS[name].dashes, label=name)
        _epsilons(axes, noised)
        axes.set_title(f"{world}, {here[0]['records_a_node']:,} records a node")
    sheet.label_left(panels, "Accuracy before the label is seen")
    sheet.legend(*panels)


def draw_forms(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the accuracy of each form, with its best step where it has steps."""
    (axes,) = sheet.panels(height=320)
    for name, pen in FORM_PENS.items():
        best: dict[float, Row] = {}
        for row in rows:
            if row["form"] == name and row["accuracy"] > best.get(row["epsilon_asked"], {"accuracy": 0.0})["accuracy"]:
                best[row["epsilon_asked"]] = row
        places = sorted(best)
        axes.plot(
            places, [best[place]["accuracy"] for place in places], "-", color=pen.colour, marker=pen.marker, label=name
        )
    _epsilons(axes, rows)
    axes.set_ylabel("Accuracy before the label is seen")
    sheet.legend(axes)


def draw_epsilon(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw accuracy and hinge loss against the claimed epsilon."""
    left, right = sheet.panels(2, height=300)
    noised = [row for row in rows if row["epsilon_asked"] != "none"]
    plain = next(row for row in rows if row["epsilon_asked"] == "none")
    for axes, name, label in ((left, "accuracy", "Accuracy"), (right, "hinge", "Mean hinge loss")):
        line(axes, noised, "epsilon_asked", name, PENS["released"], _printed(noised))
        axes.axhline(plain[name], color=GREY, linestyle=":", label="no noise")
        _epsilons(axes, noised)
        axes.set_ylabel(label)
    left.axhline(plain["constant"], color=RED, linestyle="-.", label="the more frequent label")
    plain_logarithm(right)
    sheet.legend(left, right)


def draw_topology(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw a bar for each graph."""
    (axes,) = sheet.named_rows([str(row["graph"]) for row in rows])
    values = [row["accuracy"] for row in rows]
    bars = axes.barh(range(len(rows)), values, color=BLUE, height=0.6, label=_printed(rows))
    axes.bar_label(bars, fmt="%.3f", padding=4)
    axes.axvline(rows[0]["constant"], color=RED, linestyle="-.", label="the more frequent label")
    axes.set(xlabel="Accuracy", xlim=(0.0, 1.0))
    sheet.legend(axes)


def draw_sparsity(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the accuracy of the last quarter against the share of zeros, with noise and without."""
    (axes,) = sheet.panels(height=320)
    for claim, pen in ((100.0, PENS["released"]), ("none", PENS["central"])):
        here = [row for row in rows if row["epsilon_asked"] == claim]
        label = "no noise" if claim == "none" else _printed(here)
        axes.plot(
            [100 * row["zeros"] for row in here],
            [row["accuracy_last"] for row in here],
            "-",
            color=pen.colour,
            marker="o",
            label=label,
        )
    axes.set(xlabel="Weights that are zero at the end (%)", ylabel="Accuracy in the last quarter")
    sheet.legend(axes)


def draw_nodes(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw accuracy against the number of nodes, with noise and without."""
    (axes,) = sheet.panels(height=320)
    for claim, pen in ((1000.0, PENS["released"]), ("none", PENS["central"])):
        here = [row for row in rows if row["epsilon_asked"] == claim]
        line(axes, here, "nodes", "accuracy", pen, "no noise" if claim == "none" else _printed(here))
    axes.set(xlabel="Nodes on a ring, the same records dealt to all", ylabel="Accuracy")
    sheet.legend(axes)


def _printed(rows: Sequence[Row]) -> str:
    true = [row["epsilon"] for row in rows]
    claims = sorted({float(row["epsilon_asked"]) for row in rows})
    return f"{NOT_PRIVATE}: claimed epsilon {_from_to(claims)}, true {_from_to(true)}"


def _from_to(values: Sequence[float]) -> str:
    """The range of the values as text, without powers of ten."""
    low, high = (f"{value:,.0f}" if value >= 10 else f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_xscale("log")
    ticks(axes, sorted({float(row["epsilon_asked"]) for row in rows if row["epsilon_asked"] != "none"}))
    axes.set_xlabel("Epsilon of one record, as configured")
