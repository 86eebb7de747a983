"""The pictures of the collaborative experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from hushstream.privacy.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import Pen, legend, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.studies.colin.experiments.mechanisms import PAPER
from hushstream.replay.studies.colin.experiments.play import NONPRIVATE
from hushstream.replay.studies.colin.experiments.table1 import MAIN

RANDOM_PEN = Pen("#6b7280", ":", "")
CALIBRATION_PENS = {
    PAPER: Pen("#8e3b8e", "--", "D"),
    "laplace-l1": Pen("#c2410c", "-", "o"),
    "k-norm": Pen("#d97706", "-", "s"),
    "gaussian": Pen("#a8a29e", "-", "^"),
    "user-laplace": Pen("#0b62b0", "-", "o"),
    "user-k-norm": Pen("#38a3d1", "-", "s"),
    "user-gaussian": Pen("#7c8fd6", "-", "^"),
    "user-blt": Pen("#3b3b98", "-", "v"),
    "local-reward": Pen("#0b8f6f", "-", "P"),
}
ALGORITHM_PENS = {
    "random": RANDOM_PEN,
    "LinUCB": Pen("#111827", ":", ""),
    "CoLin": Pen("#0b62b0", ":", ""),
    "GOBLin": Pen("#0b8f6f", ":", ""),
    "DP-LinUCB": Pen("#111827", "-", "o"),
    "DP-CoLin": Pen("#0b62b0", "-", "s"),
    "DP-GOBLin": Pen("#0b8f6f", "-", "^"),
    "LDP-CoLin": Pen("#0b62b0", "--", "s"),
    "LDP-GOBLin": Pen("#0b8f6f", "--", "^"),
}
_PLAIN_OF = {
    "DP-LinUCB": "LinUCB",
    "DP-CoLin": "CoLin",
    "DP-GOBLin": "GOBLin",
    "LDP-CoLin": "CoLin",
    "LDP-GOBLin": "GOBLin",
}


def draw_table1(rows: Sequence[Row], figure: Figure) -> None:
    """Regret against epsilon: a panel for each private algorithm, a line for each calibration."""
    rows = [row for row in rows if row["part"] == MAIN]
    algorithms = list(_PLAIN_OF)
    grid = figure.subplots(1, len(algorithms), sharey=True)
    for axes, algorithm in zip(grid, algorithms, strict=True):
        for name, pen, label in (
            ("random", RANDOM_PEN, "random policy"),
            (_PLAIN_OF[algorithm], ALGORITHM_PENS["LinUCB"], "not private"),
        ):
            level = next(row["regret"] for row in rows if row["algorithm"] == name)
            axes.axhline(level, color=pen.colour, linestyle="-." if name == "random" else ":", label=label)
        for calibration, pen in CALIBRATION_PENS.items():
            chosen = [row for row in rows if (row["calibration"], row["algorithm"]) == (calibration, algorithm)]
            _line(axes, chosen, "epsilon_asked", "regret", pen, calibration_label(chosen))
        axes.set(xscale="log", yscale="log", xlabel="Epsilon of one reward, as asked", title=algorithm)
        places = sorted({row["epsilon_asked"] for row in rows if "epsilon_asked" in row})
        ticks(axes, [])
        axes.set_xticks(places, [f"{place:g}" for place in places])
    _plain_logarithm(grid[0])
    grid[0].set_ylabel("Cumulative regret")
    legend(figure, grid[0], columns=5)


def draw_regret(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 1(a)."""
    _draw_over_time(rows, figure, "regret", "Cumulative regret")


def draw_error(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 1(b), on a logarithmic scale as in the paper."""
    drawn = [row for row in rows if row["algorithm"] != "random"]
    panels = _draw_over_time(drawn, figure, "error", "L2 error of a user's parameters")
    errors = [row["error"] for row in drawn]
    # A shared axis: set once, it holds for all panels.
    panels[0].set(yscale="log", ylim=(0.7 * min(errors), 1.4 * max(errors)))
    _plain_logarithm(panels[0])


def draw_reward(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 2."""
    _draw_over_time(rows, figure, "reward", "Cumulative reward")


def draw_users(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 1(c)."""
    for axes in _draw_panels(rows, figure, "users", "regret", "Cumulative regret", every=1):
        axes.set_xlabel("Users N")
        ticks(axes, sorted({row["users"] for row in rows}))


def _plain_logarithm(axes: Axes) -> None:
    """Write powers of ten in full: mathematical text is off."""
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw_over_time(rows: Sequence[Row], figure: Figure, value: str, label: str) -> list[Axes]:
    panels = _draw_panels(rows, figure, "events", value, label, every=20)
    for axes in panels:
        axes.set_xlabel("Events t")
    return panels


def _draw_panels(rows: Sequence[Row], figure: Figure, across: str, value: str, label: str, every: int) -> list[Axes]:
    """A panel for each calibration, each with the random policy and the learners without privacy."""
    calibrations = [key for key in CALIBRATION_PENS if any(row["calibration"] == key for row in rows)]
    panels = list(figure.subplots(1, len(calibrations), sharey=True))
    for axes, calibration in zip(panels, calibrations, strict=True):
        for algorithm, pen in ALGORITHM_PENS.items():
            chosen = [
                row for row in rows if row["algorithm"] == algorithm and row["calibration"] in (calibration, NONPRIVATE)
            ]
            if chosen:
                _line(axes, chosen, across, value, pen, algorithm, every)
        of_calibration = [row for row in rows if row["calibration"] == calibration]
        axes.set_title(f"{calibration}{_warning(of_calibration)}", fontsize=9)
    panels[0].set_ylabel(label)
    # Few seeds give bands that would dwarf the lines.
    panels[0].set_ylim(0, 1.15 * max(row[value] for row in rows))
    legend(figure, panels[0], columns=5)
    return panels


def _line(axes: Axes, rows: Sequence[Row], across: str, value: str, pen: Pen, label: str, every: int = 1) -> None:
    rows = sorted(rows, key=lambda row: float(row[across]))
    places = [row[across] for row in rows]
    low, high = ([row[f"{value}_{end}"] for row in rows] for end in ("low", "high"))
    axes.fill_between(places, low, high, color=pen.colour, alpha=0.10, linewidth=0)
    values = [row[value] for row in rows]
    axes.plot(places, values, pen.dashes, color=pen.colour, marker=pen.marker, markevery=every, label=label)


def calibration_label(rows: Sequence[Row]) -> str:
    """A calibration's name, and what must stand beside it."""
    first = rows[0]
    if first["private_as_stated"]:
        return str(first["calibration"])
    most, least = max(row["epsilon"] for row in rows), min(row["epsilon"] for row in rows)
    return f"{first['calibration']} ({NOT_PRIVATE}: true epsilon {least:.0f} to {most:.0f})"


def _warning(rows: Sequence[Row]) -> str:
    if rows[0]["private_as_stated"]:
        return ""
    return f"\n{NOT_PRIVATE}: true epsilon up to {max(row['epsilon'] for row in rows):.0f}"
