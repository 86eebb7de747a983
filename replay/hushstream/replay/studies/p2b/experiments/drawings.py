"""What the pictures of P2B's experiments show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from hushstream.replay.experiments.figures import Pen, legend, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.plots import LIGHT
from hushstream.replay.studies.p2b.experiments.paper import ONE_SLOT, SLOT_EVERY_10
from hushstream.replay.studies.p2b.experiments.population_run import COLD, WARM_NONPRIVATE, WARM_PRIVATE

COLD_PEN = Pen(LIGHT.conditions[0], ":", "s")


NONPRIVATE_PEN = Pen(LIGHT.conditions[1], "--", "^")


MODE_PENS = {
    "slot-sums": Pen(LIGHT.conditions[2], "-", "o"),
    "tuples": Pen("#0b8f6f", "-.", "v"),
    "paper": Pen("#8e3b8e", "-", "D"),
}


_THRESHOLD_PENS = tuple(Pen(colour, "-", "") for colour in ("#9ecae1", "#5aa0d0", "#0b62b0", "#08306b"))


def draw_curve(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 3: epsilon, and delta by threshold, against p."""
    left, right = figure.subplots(1, 2)
    chance = [row["p"] for row in rows]
    left.plot(chance, [row["epsilon"] for row in rows], color=MODE_PENS["slot-sums"].colour)
    left.set(xlabel="Probability p that a slot is kept", ylabel="Epsilon of one slot", ylim=(0, None), xlim=(0, 1))
    left.set_title("epsilon = -ln(1 - p)")
    left.plot([0.5], [math.log(2)], "o", color=LIGHT.text)
    left.annotate("p = 0.5: ln 2 = 0.693", (0.5, math.log(2)), (0.08, 1.4), arrowprops={"arrowstyle": "-", "lw": 0.8})
    names = [name for name in rows[0] if name.startswith("delta_threshold_")]
    for name, pen in zip(names, _THRESHOLD_PENS, strict=True):
        right.semilogy(chance, [row[name] for row in rows], color=pen.colour)
        place = len(rows) // 3
        label = f"threshold {name.rsplit('_', 1)[1]}"
        at = (chance[place], rows[place][name])
        # The two upper curves run close together, and the third crosses the line below.
        shift = (-30, 8) if name == names[0] else (4, -12)
        right.annotate(label, at, shift, textcoords="offset points", fontsize=8.5)
    right.axhline(1e-6, color=LIGHT.text, linestyle="--", linewidth=0.9)
    right.annotate("delta = 1e-6", (0.02, 1e-6), (0, 4), textcoords="offset points", fontsize=8.5)
    right.set(xlabel="Probability p that a slot is kept", ylabel="Exact delta of one slot", xlim=(0, 1))
    right.set_title("delta of release mode tuples at that epsilon")
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))


def draw_users(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 4: a panel for each world and number of arms."""
    panels = list(dict.fromkeys((row["world"], row["arms"]) for row in rows))
    grid = figure.subplots(1, len(panels), squeeze=False)
    for axes, (world, arms) in zip(grid[0], panels, strict=True):
        chosen = [row for row in rows if (row["world"], row["arms"]) == (world, arms)]
        _draw_conditions(axes, chosen, "users")
        axes.set(xscale="log", xlabel="Users U", title=f"K = {arms} arms, world {world}")
        ticks(axes, sorted({row["users"] for row in chosen}))
    grid[0][0].set_ylabel("Mean reward of an interaction")
    legend(figure, grid[0][0])


def draw_dimensions(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 5."""
    axes = figure.subplots()
    _draw_conditions(axes, rows, "dimension")
    axes.set(xlabel="Dimension d of the context", ylabel="Mean reward of an interaction")
    ticks(axes, sorted({row["dimension"] for row in rows}))
    legend(figure, axes)


def draw_lives(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 6: one slot in a life, and a slot every 10 interactions."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, plan in ((left, ONE_SLOT), (right, SLOT_EVERY_10)):
        _draw_conditions(axes, [row for row in rows if row["plan"] == plan], "rounds")
        axes.set(xlabel="Interactions T of an agent", title=plan)
        ticks(axes, sorted({row["rounds"] for row in rows}))
    left.set_ylabel("Accuracy (mean reward)")
    legend(figure, left, right)


def draw_modes(rows: Sequence[Row], figure: Figure) -> None:
    """Reward against codes: a row for each world, a column for each number of users."""
    rows = [row for row in rows if row["part"] == "grid"]
    worlds, users = (list(dict.fromkeys(row[name] for row in rows)) for name in ("world", "users"))
    grid = figure.subplots(len(worlds), len(users), squeeze=False, sharex=True, sharey="row")
    for line, world in zip(grid, worlds, strict=True):
        for axes, size in zip(line, users, strict=True):
            chosen = [row for row in rows if (row["world"], row["users"]) == (world, size)]
            for condition, pen, label in (
                (COLD, COLD_PEN, "cold"),
                (WARM_NONPRIVATE, NONPRIVATE_PEN, "warm, non-private"),
            ):
                level = next(row["reward"] for row in chosen if row["condition"] == condition)
                axes.axhline(level, color=pen.colour, linestyle=pen.dashes, label=label)
            _draw_by_mode(axes, chosen, "reward")
            axes.set_title(f"{world}, U = {size:,}")
        line[0].set_ylabel("Mean reward")
        _from_zero(line[0], [row for row in rows if row["world"] == world])
    _code_axis(grid[-1], rows)
    legend(figure, grid[0][0])


def draw_withheld(rows: Sequence[Row], figure: Figure) -> None:
    """What a threshold withheld, against codes, in the grid's first world."""
    rows = [row for row in rows if row["part"] == "grid"]
    world = rows[0]["world"]
    users = list(dict.fromkeys(row["users"] for row in rows))
    grid = figure.subplots(1, len(users), squeeze=False, sharey=True)
    for axes, size in zip(grid[0], users, strict=True):
        chosen = [row for row in rows if (row["world"], row["users"]) == (world, size)]
        _draw_by_mode(axes, chosen, "withheld_share")
        axes.set(title=f"{world}, U = {size:,}", ylim=(-0.03, 1.03))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    grid[0][0].set_ylabel("Sampled reports withheld")
    _code_axis(grid[0], rows)
    legend(figure, grid[0][0])


def _draw_by_mode(axes: Axes, rows: Sequence[Row], value: str) -> None:
    for mode, pen in MODE_PENS.items():
        chosen = sorted((row for row in rows if row.get("mode") == mode), key=lambda row: int(row["codes"]))
        if chosen:
            _draw_line(axes, chosen, "codes", value, pen, _mode_name(chosen[0]))


def _draw_conditions(axes: Axes, rows: Sequence[Row], across: str) -> None:
    """Cold, non-private and every private line against a column."""
    _draw_line(axes, _of_condition(rows, COLD), across, "reward", COLD_PEN, "cold")
    _draw_line(axes, _of_condition(rows, WARM_NONPRIVATE), across, "reward", NONPRIVATE_PEN, "warm, non-private")
    private = _of_condition(rows, WARM_PRIVATE)
    for label in dict.fromkeys(row["line"] for row in private):
        chosen = [row for row in private if row["line"] == label]
        _draw_line(axes, chosen, across, "reward", MODE_PENS[chosen[0]["mode"]], f"warm, private: {_line_name(chosen)}")
    _from_zero(axes, rows)


def _from_zero(axes: Axes, rows: Sequence[Row]) -> None:
    """From 0 to a little above the highest mean: few seeds give bands that would dwarf the lines."""
    axes.set_ylim(0, 1.2 * max(row["reward"] for row in rows))


def _draw_line(axes: Axes, rows: Sequence[Row], across: str, value: str, pen: Pen, label: str) -> None:
    chosen = sorted(rows, key=lambda row: float(row[across]))
    places = [row[across] for row in chosen]
    if f"{value}_low" in chosen[0]:
        low, high = ([max(row[f"{value}_{end}"], 0.0) for row in chosen] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=pen.colour, alpha=0.14, linewidth=0)
    values = [row[value] for row in chosen]
    axes.plot(places, values, pen.dashes, color=pen.colour, marker=pen.marker, label=label)


def _of_condition(rows: Sequence[Row], condition: str) -> list[Row]:
    return [row for row in rows if row["condition"] == condition]


def _line_name(rows: Sequence[Row]) -> str:
    return f"{rows[0]['line']}{_warning(rows[0])}"


def _mode_name(row: Row) -> str:
    return f"{row['mode']}{_warning(row)}"


def _warning(row: Row) -> str:
    return "" if row["private_as_stated"] else " (not private as stated)"


def _code_axis(line: Sequence[Axes], rows: Sequence[Row]) -> None:
    for axes in line:
        axes.set(xscale="log", xlabel="Codes k")
        ticks(axes, sorted({row["codes"] for row in rows if "codes" in row}))
