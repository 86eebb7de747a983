"""The pictures of BGTplanner's experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, line, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.palette import BLACK, BLUE, GREEN, GREY, PURPLE, RED
from hushstream.replay.report.sheet import Sheet

FORM_PENS = {
    ("slot A alone", False): Pen(BLUE, "--", "s"),
    ("three slots", False): Pen(BLUE, "-", "o"),
    ("slot A alone", True): Pen(GREEN, "--", "^"),
    ("three slots", True): Pen(GREEN, "-", "D"),
}
LEVEL_PENS = {
    "constant": Pen(GREY, "-.", ""),
    "local": Pen(RED, "--", ""),
    "local with features": Pen(RED, ":", ""),
    "user and item bias": Pen(BLACK, "--", ""),
    "als": Pen(BLACK, ":", ""),
}


def draw_three_slots(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw RMSE against epsilon, one panel for each world, with horizontal lines for forms without an epsilon."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = sheet.panels(len(worlds), height=320)
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
    sheet.label_left(panels, "RMSE (below is better)")
    sheet.legend(*panels)


def draw_lost(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw RMSE against the share of slots that are lost."""
    (axes,) = sheet.panels(height=320)
    shares = [{**row, "share": 100 * row["lost"]} for row in rows]
    line(axes, shares, "share", "rmse", Pen(GREEN, "-", "D"), "three slots")
    axes.set(xlabel="Slots lost, %", ylabel="RMSE (below is better)")
    sheet.legend(axes)


def draw_poisoning(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the change of an item's bias against the number of malicious clients."""
    (axes,) = sheet.panels(height=320)
    line(axes, rows, "malicious", "moved", Pen(RED, "-", "o"), "an item's bias, median over items")
    axes.set(xlabel="Malicious clients", ylabel="Change, on a scale from 0 to 1")
    sheet.legend(axes)


def draw_table(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the paper's schedules, its printed figures, and the sound form: one panel for each world."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    shown = [[row for row in rows if row["world"] == world] for world in worlds]
    panels = sheet.named_rows(*([str(row["form"]) for row in some] for some in shown))
    for axes, world, some in zip(panels, worlds, shown, strict=True):
        colours = [PURPLE if NOT_PRIVATE in row["marks"] else GREEN if row["marks"] else GREY for row in some]
        axes.barh(range(len(some)), [row["rmse"] for row in some], color=colours)
        marked = [place for place, row in enumerate(some) if "printed" in row]
        printed = [some[place]["printed"] for place in marked]
        axes.plot(printed, marked, "|", color=BLACK, markersize=10, markeredgewidth=2, label="printed")
        axes.set(title=world, xlabel="RMSE")
    for colour, name in ((PURPLE, NOT_PRIVATE), (GREEN, "sound"), (GREY, "no privacy, or nothing sent")):
        panels[0].barh([0], [0], color=colour, label=name)
    sheet.legend(*panels)


def draw_schedules(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw how each schedule differs from an even one, at equal rho."""
    shown = [row for row in rows if row["schedule"] != "even"]
    (axes,) = sheet.named_rows([f"{row['world']}, {row['schedule']}" for row in shown])
    low = [row["difference"] - row["difference_low"] for row in shown]
    high = [row["difference_high"] - row["difference"] for row in shown]
    values = [row["difference"] for row in shown]
    axes.errorbar(values, range(len(shown)), xerr=[low, high], fmt="o", color=BLUE, label="to even")
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.set_xlabel("RMSE minus that of even (left is better)")
    sheet.legend(axes)


def _line(axes: Axes, rows: Sequence[Row], form: str, features: bool, pen: Pen) -> None:
    noised = [row for row in rows if row.get("epsilon_asked", "none") != "none"]
    line(axes, noised, "epsilon_asked", "rmse", pen, f"{form}, with features" if features else form)


def _epsilons(axes: Axes, rows: Sequence[Row]) -> None:
    ticks(axes, sorted({row["epsilon_asked"] for row in rows if row.get("epsilon_asked", "none") != "none"}))
    axes.set_xlabel("Epsilon of a user, all slots")
