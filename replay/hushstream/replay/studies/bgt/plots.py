"""The pictures of BGTplanner's experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hushstream.privacy.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, legend, ticks
from hushstream.replay.experiments.rows import Row

_BLUE, _GREEN, _RED, _PURPLE, _GREY = "#0b62b0", "#0b8f6f", "#c2410c", "#8e3b8e", "#6b7280"
FORM_PENS = {
    ("slot A alone", False): Pen(_BLUE, "--", "s"),
    ("three slots", False): Pen(_BLUE, "-", "o"),
    ("slot A alone", True): Pen(_GREEN, "--", "^"),
    ("three slots", True): Pen(_GREEN, "-", "D"),
}
LEVEL_PENS = {
    "constant": Pen(_GREY, "-.", ""),
    "local": Pen(_RED, "--", ""),
    "local with features": Pen(_RED, ":", ""),
    "user and item bias": Pen("#111827", "--", ""),
    "als": Pen("#111827", ":", ""),
}


def draw_three_slots(rows: Sequence[Row], figure: Figure) -> None:
    """RMSE against epsilon, a panel for each world, with levels that have none."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, world in zip(panels, worlds, strict=True):
        here = [row for row in rows if row["world"] == world]
        for name, pen in LEVEL_PENS.items():
            for row in here:
                if row["form"] == name:
                    axes.axhline(row["rmse"], color=pen.colour, linestyle=pen.dashes, label=name)
        for (form, features), pen in FORM_PENS.items():
            _line(
                axes, [row for row in here if (row["form"], row["features"]) == (form, features)], form, features, pen
            )
        axes.set(xscale="log", title=world)
        _epsilons(axes, here)
    panels[0].set_ylabel("RMSE (below is better)")
    legend(figure, *panels, columns=5)


def draw_lost(rows: Sequence[Row], figure: Figure) -> None:
    """RMSE against the share of slots that are lost."""
    axes = figure.subplots()
    places = [100 * row["lost"] for row in rows]
    axes.fill_between(
        places, [row["rmse_low"] for row in rows], [row["rmse_high"] for row in rows], color=_GREEN, alpha=0.12
    )
    axes.plot(places, [row["rmse"] for row in rows], "-D", color=_GREEN, label="three slots")
    axes.set(xlabel="Slots lost, %", ylabel="RMSE (below is better)")
    legend(figure, axes, columns=1)


def draw_poisoning(rows: Sequence[Row], figure: Figure) -> None:
    """How far an item moves against how many clients are malicious."""
    axes = figure.subplots()
    places = [row["malicious"] for row in rows]
    low, high = ([row[f"moved_{end}"] for row in rows] for end in ("low", "high"))
    axes.fill_between(places, low, high, color=_RED, alpha=0.12)
    axes.plot(places, [row["moved"] for row in rows], "-o", color=_RED, label="an item's bias, median over items")
    axes.set(xlabel="Malicious clients", ylabel="Moved by, on a scale from 0 to 1")
    legend(figure, axes, columns=1)


def draw_table(rows: Sequence[Row], figure: Figure) -> None:
    """The paper's schedules, what it prints, and the sound form: a panel for each world."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = figure.subplots(1, len(worlds), squeeze=False)[0]
    for axes, world in zip(panels, worlds, strict=True):
        shown = [row for row in rows if row["world"] == world]
        colours = [_PURPLE if NOT_PRIVATE in row["marks"] else _GREEN if row["marks"] else _GREY for row in shown]
        axes.barh(range(len(shown)), [row["rmse"] for row in shown], color=colours)
        marked = [place for place, row in enumerate(shown) if "printed" in row]
        axes.plot([shown[place]["printed"] for place in marked], marked, "k|", markersize=10, label="printed")
        axes.set_yticks(range(len(shown)), [str(row["form"]) for row in shown], fontsize=7.5)
        axes.invert_yaxis()
        axes.set(title=world, xlabel="RMSE")
    for colour, name in ((_PURPLE, NOT_PRIVATE), (_GREEN, "sound"), (_GREY, "no privacy, or nothing sent")):
        panels[0].barh([0], [0], color=colour, label=name)
    legend(figure, *panels, columns=4)


def draw_schedules(rows: Sequence[Row], figure: Figure) -> None:
    """Differences of schedules to an even one, at equal rho."""
    axes = figure.subplots()
    shown = [row for row in rows if row["schedule"] != "even"]
    places = range(len(shown))
    low = [row["difference"] - row["difference_low"] for row in shown]
    high = [row["difference_high"] - row["difference"] for row in shown]
    axes.errorbar([row["difference"] for row in shown], places, xerr=[low, high], fmt="o", color=_BLUE, label="to even")
    axes.axvline(0.0, color=_GREY, linewidth=0.8)
    axes.set_yticks(places, [f"{row['world']}, {row['schedule']}" for row in shown], fontsize=8)
    axes.set_xlabel("RMSE less that of even (left is better)")
    legend(figure, axes, columns=1)


def _line(axes: Axes, rows: Sequence[Row], form: str, features: bool, pen: Pen) -> None:
    noised = sorted(
        (row for row in rows if row.get("epsilon_asked", "none") != "none"), key=lambda r: r["epsilon_asked"]
    )
    if not noised:
        return
    places = [row["epsilon_asked"] for row in noised]
    low, high = ([row[f"rmse_{end}"] for row in noised] for end in ("low", "high"))
    axes.fill_between(places, low, high, color=pen.colour, alpha=0.1, linewidth=0)
    label = f"{form}, with features" if features else form
    axes.plot(places, [row["rmse"] for row in noised], pen.dashes, color=pen.colour, marker=pen.marker, label=label)


def _epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    places = sorted({row["epsilon_asked"] for row in rows if row.get("epsilon_asked", "none") != "none"})
    ticks(axes, [])
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_xlabel("Epsilon of a user, all slots")
