"""The pictures of P2B's experiments."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from hushstream.replay.experiments.figures import LEAST_SEEDS, Pen, line, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.palette import BLACK, BLUE, GREEN, GREY, INK, PERIWINKLE, PURPLE, RED, SKY
from hushstream.replay.report.sheet import Sheet
from hushstream.replay.studies.p2b.experiments.paper import ONE_SLOT, SLOT_EVERY_10
from hushstream.replay.studies.p2b.experiments.population_run import COLD, WARM_NONPRIVATE, WARM_PRIVATE

COLD_PEN = Pen(GREY, ":", "s")
NONPRIVATE_PEN = Pen(RED, "--", "^")
MODE_PENS = {
    "slot-sums": Pen(BLUE, "-", "o"),
    "tuples": Pen(GREEN, "-.", "v"),
    "paper": Pen(PURPLE, "-", "D"),
}
FEATURE_PENS = {"linear sums": Pen(BLUE, "-", "o"), "codes": Pen(PURPLE, "--", "D")}
_HALF_LIFE_PENS = (Pen(GREY, ":", "s"), Pen(PURPLE, "--", "D"), Pen(BLUE, "-", "o"), Pen(GREEN, "-.", "v"))
_SWEEP = {0.5: SKY, 8.0: GREEN}
_THRESHOLD_COLOURS = (SKY, PERIWINKLE, BLUE, BLACK)


def draw_curve(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 3: epsilon, and delta by threshold, against p."""
    left, right = sheet.panels(2, height=300)
    chance = [row["p"] for row in rows]
    left.plot(chance, [row["epsilon"] for row in rows], color=BLUE)
    left.set(xlabel="Probability p that a slot is kept", ylabel="Epsilon of one slot", ylim=(0, None), xlim=(0, 1))
    left.set_title("epsilon = -ln(1 - p)")
    left.plot([0.5], [math.log(2)], "o", color=INK)
    left.annotate(
        "p = 0.5: ln 2 = 0.693",
        (0.5, math.log(2)),
        (0.08, 1.4),
        arrowprops={"arrowstyle": "-", "lw": 0.8, "color": INK},
    )
    names = [name for name in rows[0] if name.startswith("delta_threshold_")]
    for name, colour in zip(names, _THRESHOLD_COLOURS, strict=True):
        label = f"delta at threshold {name.rsplit('_', 1)[1]}"
        right.semilogy(chance, [row[name] for row in rows], color=colour, label=label)
    right.axhline(1e-6, color=INK, linestyle="--", linewidth=0.9, label="delta = 1e-6")
    right.set(xlabel="Probability p that a slot is kept", ylabel="Exact delta of one slot", xlim=(0, 1))
    right.set_title("delta of release mode tuples at that epsilon")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
    sheet.legend(right)


def draw_forecast(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw forecast against gain: for each configuration a point with true spreads, and the range of assumed ones."""
    rows = [row for row in rows if row["form"] == "features"]
    (axes,) = sheet.panels(1, height=340)
    gains = [row["gain"] for row in rows]
    most = 1.1 * max(*gains, *(row["assumed_high"] for row in rows))
    axes.plot([0, most], [0, most], color=INK, linewidth=0.9, linestyle="--", label="as simulated")
    for row in rows:
        axes.plot([row["gain"]] * 2, [row["assumed_low"], row["assumed_high"]], color=GREY, linewidth=1.2)
    axes.plot([], [], color=GREY, linewidth=1.2, label="assumed spreads: range")
    axes.plot(gains, [row["forecast"] for row in rows], "o", color=BLUE, label="true spreads")
    axes.set(xlabel="Gain, whole simulation", ylabel="Gain, forecast", xlim=(0, most), ylim=(0, most))
    sheet.legend(axes)


def draw_forgetting(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw a panel for each world: the reward of each generation, with a line for each half-life."""
    rows = [row for row in rows if row["generation"]]
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    grid = sheet.panels(len(worlds), height=280)
    pens = dict(zip(dict.fromkeys(row["half_life"] for row in rows), _HALF_LIFE_PENS, strict=True))
    for axes, world in zip(grid, worlds, strict=True):
        for half_life, pen in pens.items():
            chosen = [row for row in rows if (row["world"], row["half_life"]) == (world, half_life)]
            line(axes, chosen, "generation", "reward", pen, f"half-life: {half_life}")
        axes.set(xlabel="Generation of users", title=world)
        ticks(axes, sorted({row["generation"] for row in rows}))
    sheet.label_left(grid, "Mean reward of a visit")
    sheet.legend(grid[0])


def draw_users(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 4: a panel for each world and number of arms."""
    panels = list(dict.fromkeys((row["world"], row["arms"]) for row in rows))
    grid = sheet.panels(len(panels), height=280)
    for axes, (world, arms) in zip(grid, panels, strict=True):
        chosen = [row for row in rows if (row["world"], row["arms"]) == (world, arms)]
        _draw_conditions(axes, chosen, "users")
        axes.set(xscale="log", xlabel="Users U", title=f"K = {arms} arms, world {world}")
        ticks(axes, sorted({row["users"] for row in chosen}))
    sheet.label_left(grid, "Mean reward of an interaction")
    sheet.legend(grid[0])


def draw_dimensions(rows: Sequence[Row], sheet: Sheet) -> None:
    """Figure 5."""
    (axes,) = sheet.panels(height=340)
    _draw_conditions(axes, rows, "dimension")
    axes.set(xlabel="Dimension d of the context", ylabel="Mean reward of an interaction")
    ticks(axes, sorted({row["dimension"] for row in rows}))
    sheet.legend(axes)


def draw_lives(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 6: for each dataset, one slot in a life, and a slot every 10 interactions."""
    worlds = list(dict.fromkeys(row["world"] for row in rows))
    panels = [(world, plan) for world in worlds for plan in (ONE_SLOT, SLOT_EVERY_10)]
    grid = sheet.panels(len(panels), columns=2, height=320)
    for axes, (world, plan) in zip(grid, panels, strict=True):
        chosen = [row for row in rows if (row["world"], row["plan"]) == (world, plan)]
        _draw_conditions(axes, chosen, "rounds")
        axes.set(xlabel="Interactions T of an agent", title=f"{world}, {plan}")
        ticks(axes, sorted({row["rounds"] for row in chosen}))
        # The panels of one dataset are compared, so they have the same scale.
        _from_zero(axes, [row for row in rows if row["world"] == world])
    sheet.label_left(grid, "Accuracy (mean reward)")
    sheet.legend(*grid[:2])


def draw_clicks(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 7: a panel for each number of codes of the paper's release."""
    of_paper = list(dict.fromkeys(row["line"] for row in rows if row.get("mode") == "paper"))
    grid = sheet.panels(len(of_paper), height=320, sharey=True)
    for axes, label in zip(grid, of_paper, strict=True):
        _draw_conditions(axes, [row for row in rows if row.get("mode") != "paper" or row["line"] == label], "rounds")
        axes.set(xlabel="Interactions T of an agent", title=label)
        ticks(axes, sorted({row["rounds"] for row in rows}))
    _from_zero(grid[0], rows)
    sheet.label_left(grid, "Click-through (mean reward)")
    sheet.legend(*grid)


def draw_features(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the kept share of the gain against slots: a panel for each world, a line for each form and epsilon."""
    kept = [row for row in rows if "kept" in row and row["windows"] == "one"]
    panels = list(dict.fromkeys((row["world"], row["items"]) for row in kept))
    grid = sheet.panels(len(panels), height=300, sharey=True)
    for axes, (world, items) in zip(grid, panels, strict=True):
        chosen = [row for row in kept if (row["world"], row["items"]) == (world, items)]
        for form, epsilon in dict.fromkeys((row["form"], row["epsilon"]) for row in chosen):
            drawn = [row for row in chosen if (row["form"], row["epsilon"]) == (form, epsilon)]
            pen = FEATURE_PENS[form] if epsilon == 1.0 else Pen(_SWEEP.get(epsilon, BLACK), "-.", "v")
            line(axes, drawn, "slots", "kept", pen, f"{form}, epsilon {epsilon:g}")
        axes.axhline(1.0, color=INK, linestyle=":", linewidth=0.9)
        axes.set(xscale="log", xlabel="Slots", title=f"{world}, {items} items")
        ticks(axes, sorted({row["slots"] for row in chosen}))
    sheet.label_left(grid, "Share of the non-private gain")
    sheet.legend(grid[0])


def draw_modes(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw reward against codes: a panel for each world and number of users."""
    rows = [row for row in rows if row["part"] == "grid"]
    panels = list(dict.fromkeys((row["world"], row["users"]) for row in rows))
    grid = sheet.panels(len(panels), columns=len({users for _, users in panels}))
    for axes, (world, users) in zip(grid, panels, strict=True):
        chosen = [row for row in rows if (row["world"], row["users"]) == (world, users)]
        for condition, pen, label in ((COLD, COLD_PEN, "cold"), (WARM_NONPRIVATE, NONPRIVATE_PEN, "warm, non-private")):
            level = next(row["reward"] for row in chosen if row["condition"] == condition)
            axes.axhline(level, color=pen.colour, linestyle=pen.dashes, label=label)
        _draw_by_mode(axes, chosen, "reward")
        axes.set_title(f"{world}, U = {users:,}")
        # The panels of one world are compared, so they have the same scale.
        _from_zero(axes, [row for row in rows if row["world"] == world])
    sheet.label_left(grid, "Mean reward")
    _code_axis(grid, rows)
    sheet.legend(grid[0])


def draw_withheld(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw the share that a threshold withheld against codes, in the grid's first world."""
    rows = [row for row in rows if row["part"] == "grid"]
    world = rows[0]["world"]
    users = list(dict.fromkeys(row["users"] for row in rows))
    grid = sheet.panels(len(users), sharey=True)
    for axes, size in zip(grid, users, strict=True):
        chosen = [row for row in rows if (row["world"], row["users"]) == (world, size)]
        _draw_by_mode(axes, chosen, "withheld_share")
        axes.set(title=f"{world}, U = {size:,}", ylim=(-0.03, 1.03))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    sheet.label_left(grid, "Sampled reports withheld")
    _code_axis(grid, rows)
    sheet.legend(grid[0])


def _draw_by_mode(axes: Axes, rows: Sequence[Row], value: str) -> None:
    for mode, pen in MODE_PENS.items():
        chosen = [row for row in rows if row.get("mode") == mode]
        if chosen:
            line(axes, chosen, "codes", value, pen, _mode_name(chosen[0]))


def _draw_conditions(axes: Axes, rows: Sequence[Row], across: str) -> None:
    """Draw the lines of cold, non-private and every private deployment against a column."""
    line(axes, _of_condition(rows, COLD), across, "reward", COLD_PEN, "cold")
    line(axes, _of_condition(rows, WARM_NONPRIVATE), across, "reward", NONPRIVATE_PEN, "warm, non-private")
    private = _of_condition(rows, WARM_PRIVATE)
    for label in dict.fromkeys(row["line"] for row in private):
        chosen = [row for row in private if row["line"] == label]
        line(axes, chosen, across, "reward", MODE_PENS[chosen[0]["mode"]], f"warm, private: {_line_name(chosen)}")
    _from_zero(axes, rows)


def _from_zero(axes: Axes, rows: Sequence[Row]) -> None:
    """Set the scale from 0, or from where a band begins below 0, to above all bands."""
    banded = [row for row in rows if row.get("seeds", 0) >= LEAST_SEEDS]
    ends = [row[f"reward_{end}"] for row in banded for end in ("low", "high")]
    axes.set_ylim(min([0.0, *ends]), 1.05 * max([*(row["reward"] for row in rows), *ends]))


def _of_condition(rows: Sequence[Row], condition: str) -> list[Row]:
    return [row for row in rows if row["condition"] == condition]


def _line_name(rows: Sequence[Row]) -> str:
    return f"{rows[0]['line']}{_warning(rows[0])}"


def _mode_name(row: Row) -> str:
    return f"{row['mode']}{_warning(row)}"


def _warning(row: Row) -> str:
    return "" if row["private_as_stated"] else " (not private as stated)"


def _code_axis(panels: Sequence[Axes], rows: Sequence[Row]) -> None:
    for axes in panels:
        axes.set(xscale="log", xlabel="Codes k")
        ticks(axes, sorted({row["codes"] for row in rows if "codes" in row}))
