"""The pictures of PDOL's experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hushstream.privacy.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, legend
from hushstream.replay.experiments.rows import Row

_BLUE, _GREEN, _RED, _GREY = "#0b62b0", "#0b8f6f", "#c2410c", "#6b7280"
PENS = {
    "released": Pen(_BLUE, "-", "o"),
    "node": Pen(_GREEN, "-", "s"),
    "isolated": Pen(_RED, "--", ""),
    "central": Pen("#111827", ":", ""),
    "constant": Pen(_GREY, "-.", ""),
}
FORM_PENS = {
    "per step, Laplace": Pen(_RED, "", "D"),
    "per step, Gaussian": Pen("#d97706", "", "^"),
    "fresh windows": Pen("#7c8fd6", "", "v"),
    "digit tree": Pen(_GREEN, "", "s"),
    "BLT": Pen(_BLUE, "", "o"),
    "one counter": Pen("#111827", "", "P"),
}


def draw_sharing(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy against epsilon: a panel for each world."""
    rows = [row for row in rows if row["part"] == "epsilon"]
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, world in zip(panels, worlds, strict=True):
        here = [row for row in rows if row["world"] == world]
        noised = [row for row in here if row["epsilon_asked"] != "none"]
        for name in ("released", "node"):
            _line(axes, [row for row in noised if name in row], "epsilon_asked", name, PENS[name], name)
        for name in ("isolated", "central", "constant"):
            level = next((row[name] for row in here if name in row), None)
            if level is not None:
                axes.axhline(level, color=PENS[name].colour, linestyle=PENS[name].dashes, label=name)
        _epsilons(axes, noised)
        axes.set_title(f"{world}, {here[0]['records_a_node']:,} records a node", fontsize=9)
    panels[0].set_ylabel("Accuracy before the label is seen")
    legend(figure, *panels, columns=5)


def draw_forms(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy of each form, its best step where it has one."""
    axes = figure.subplots()
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
    legend(figure, axes, columns=3)


def draw_epsilon(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy and hinge loss against the claimed epsilon."""
    left, right = figure.subplots(1, 2)
    noised = [row for row in rows if row["epsilon_asked"] != "none"]
    plain = next(row for row in rows if row["epsilon_asked"] == "none")
    for axes, name, label in ((left, "accuracy", "Accuracy"), (right, "hinge", "Mean hinge loss")):
        _line(axes, noised, "epsilon_asked", name, PENS["released"], _printed(noised))
        axes.axhline(plain[name], color=_GREY, linestyle=":", label="no noise")
        _epsilons(axes, noised)
        axes.set_ylabel(label)
    left.axhline(plain["constant"], color=_RED, linestyle="-.", label="the more frequent label")
    right.set_yscale("log")
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    legend(figure, left, right, columns=3)


def draw_topology(rows: Sequence[Row], figure: Figure) -> None:
    """A bar for each graph."""
    axes = figure.subplots()
    names = [row["graph"] for row in rows]
    bars = axes.bar(names, [row["accuracy"] for row in rows], color=_BLUE, width=0.55, label=_printed(rows))
    axes.bar_label(bars, fmt="%.3f", label_type="center", color="white")
    axes.axhline(rows[0]["constant"], color=_RED, linestyle="-.", label="the more frequent label")
    axes.set(ylabel="Accuracy", ylim=(0.0, 1.0))
    legend(figure, axes, columns=2)


def draw_sparsity(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy of the last quarter against the share of zeros, under noise and without."""
    axes = figure.subplots()
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
    legend(figure, axes, columns=2)


def draw_nodes(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy against the number of nodes, under noise and without."""
    axes = figure.subplots()
    for claim, pen in ((1000.0, PENS["released"]), ("none", PENS["central"])):
        here = [row for row in rows if row["epsilon_asked"] == claim]
        _line(axes, here, "nodes", "accuracy", pen, "no noise" if claim == "none" else _printed(here))
    axes.set(xlabel="Nodes on a ring, the same records dealt to all", ylabel="Accuracy")
    legend(figure, axes, columns=2)


def _printed(rows: Sequence[Row]) -> str:
    true = [row["epsilon"] for row in rows]
    claims = sorted({float(row["epsilon_asked"]) for row in rows})
    return f"{NOT_PRIVATE}: claimed epsilon {_from_to(claims)}, true {_from_to(true)}"


def _from_to(values: Sequence[float]) -> str:
    """As words, without powers of ten."""
    low, high = (f"{value:,.0f}" if value >= 10 else f"{value:.3g}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _line(axes: Axes, rows: Sequence[Row], across: str, value: str, pen: Pen, label: str) -> None:
    rows = sorted(rows, key=lambda row: float(row[across]))
    places = [row[across] for row in rows]
    low, high = ([row[f"{value}_{end}"] for row in rows] for end in ("low", "high"))
    axes.fill_between(places, low, high, color=pen.colour, alpha=0.12, linewidth=0)
    axes.plot(places, [row[value] for row in rows], pen.dashes, color=pen.colour, marker=pen.marker, label=label)


def _epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    places = sorted({float(row["epsilon_asked"]) for row in rows if row["epsilon_asked"] != "none"})
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel("Epsilon of one record, as asked")
