"""The pictures of the collaborative experiments, drawn from their rows."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.figures import LEAST_SEEDS, Pen, line, plain_logarithm, ticks
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.palette import (
    AMBER,
    BLACK,
    BLUE,
    FAINT,
    GREEN,
    INDIGO,
    PERIWINKLE,
    PURPLE,
    RED,
    SKY,
    STONE,
)
from hushstream.replay.report.sheet import Sheet
from hushstream.replay.studies.colin.experiments.mechanisms import PAPER
from hushstream.replay.studies.colin.experiments.play import NONPRIVATE
from hushstream.replay.studies.colin.experiments.table1 import MAIN

RANDOM_PEN = Pen(FAINT, ":", "")
CALIBRATION_PENS = {
    PAPER: Pen(PURPLE, "--", "D"),
    "laplace-l1": Pen(RED, "-", "o"),
    "k-norm": Pen(AMBER, "-", "s"),
    "gaussian": Pen(STONE, "-", "^"),
    "user-laplace": Pen(BLUE, "-", "o"),
    "user-k-norm": Pen(SKY, "-", "s"),
    "user-gaussian": Pen(PERIWINKLE, "-", "^"),
    "user-blt": Pen(INDIGO, "-", "v"),
    "local-reward": Pen(GREEN, "-", "P"),
}
ALGORITHM_PENS = {
    "random": RANDOM_PEN,
    "LinUCB": Pen(BLACK, ":", ""),
    "CoLin": Pen(BLUE, ":", ""),
    "GOBLin": Pen(GREEN, ":", ""),
    "DP-LinUCB": Pen(BLACK, "-", "o"),
    "DP-CoLin": Pen(BLUE, "-", "s"),
    "DP-GOBLin": Pen(GREEN, "-", "^"),
    "LDP-CoLin": Pen(BLUE, "--", "s"),
    "LDP-GOBLin": Pen(GREEN, "--", "^"),
}
_PLAIN_OF = {
    "DP-LinUCB": "LinUCB",
    "DP-CoLin": "CoLin",
    "DP-GOBLin": "GOBLin",
    "LDP-CoLin": "CoLin",
    "LDP-GOBLin": "GOBLin",
}


_OF_A_PERSON = "user-"


def draw_table1(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw regret against epsilon: a panel for each algorithm and protected unit, a line for each calibration."""
    rows = [row for row in rows if row["part"] == MAIN]
    places = sorted({row["epsilon_asked"] for row in rows if "epsilon_asked" in row})
    panels = [(algorithm, person) for algorithm in _PLAIN_OF for person in (False, True)]
    grid = sheet.panels(len(panels), columns=2, least=400, height=270, sharey=True)
    for axes, (algorithm, person) in zip(grid, panels, strict=True):
        _levels(axes, rows, algorithm)
        for calibration, pen in CALIBRATION_PENS.items():
            chosen = [row for row in rows if (row["calibration"], row["algorithm"]) == (calibration, algorithm)]
            if chosen and calibration.startswith(_OF_A_PERSON) is person:
                line(axes, chosen, "epsilon_asked", "regret", pen, calibration_label(chosen))
        protected = "all rewards of a person" if person else "one reward"
        axes.set(xscale="log", xlabel="Epsilon of one reward, as configured", title=f"{algorithm}: {protected}")
        ticks(axes, places)
    plain_logarithm(grid[0])
    sheet.label_left(grid, "Cumulative regret")
    sheet.legend(*grid[:2])


def _levels(axes: Axes, rows: Sequence[Row], algorithm: str) -> None:
    for name, pen, label in (
        ("random", RANDOM_PEN, "random policy"),
        (_PLAIN_OF[algorithm], ALGORITHM_PENS["LinUCB"], "not private"),
    ):
        level = next(row["regret"] for row in rows if row["algorithm"] == name)
        axes.axhline(level, color=pen.colour, linestyle="-." if name == "random" else ":", label=label)


def draw_regret(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 1(a)."""
    _draw_over_time(rows, sheet, "regret", "Cumulative regret")


def draw_error(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 1(b), on a logarithmic scale as in the paper."""
    drawn = [row for row in rows if row["algorithm"] != "random"]
    panels = _draw_over_time(drawn, sheet, "error", "L2 error of a user's parameters")
    errors = [row["error"] for row in drawn]
    # All panels share the axis, so setting it once is enough.
    plain_logarithm(panels[0])
    panels[0].set_ylim(0.7 * min(errors), 1.4 * max(errors))


def draw_reward(rows: Sequence[Row], sheet: Sheet) -> None:
    """Figure 2."""
    _draw_over_time(rows, sheet, "reward", "Cumulative reward")


def draw_users(rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw Figure 1(c)."""
    for axes in _draw_panels(rows, sheet, "users", "regret", "Cumulative regret", every=1):
        axes.set_xlabel("Users N")
        ticks(axes, sorted({row["users"] for row in rows}))


def _draw_over_time(rows: Sequence[Row], sheet: Sheet, value: str, label: str) -> list[Axes]:
    panels = _draw_panels(rows, sheet, "events", value, label, every=20)
    for axes in panels:
        axes.set_xlabel("Events t")
    return panels


def _draw_panels(rows: Sequence[Row], sheet: Sheet, across: str, value: str, label: str, every: int) -> list[Axes]:
    """A panel for each calibration, each with the random policy and the learners without privacy."""
    calibrations = [key for key in CALIBRATION_PENS if any(row["calibration"] == key for row in rows)]
    panels = sheet.panels(len(calibrations), columns=2, least=400, height=320, sharey=True)
    for axes, calibration in zip(panels, calibrations, strict=True):
        for algorithm, pen in ALGORITHM_PENS.items():
            chosen = [
                row for row in rows if row["algorithm"] == algorithm and row["calibration"] in (calibration, NONPRIVATE)
            ]
            line(axes, chosen, across, value, pen, algorithm, every)
        of_calibration = [row for row in rows if row["calibration"] == calibration]
        axes.set_title(f"{calibration}{_warning(of_calibration)}")
    sheet.label_left(panels, label)
    ends = [row[f"{value}_high"] for row in rows if row["seeds"] >= LEAST_SEEDS]
    panels[0].set_ylim(0, 1.05 * max([*(row[value] for row in rows), *ends]))
    sheet.legend(panels[0])
    return panels


def calibration_label(rows: Sequence[Row]) -> str:
    """A calibration's name with its warning."""
    first = rows[0]
    if first["private_as_stated"]:
        return str(first["calibration"])
    most, least = max(row["epsilon"] for row in rows), min(row["epsilon"] for row in rows)
    return f"{first['calibration']} ({NOT_PRIVATE}: true epsilon {least:.0f} to {most:.0f})"


def _warning(rows: Sequence[Row]) -> str:
    if rows[0]["private_as_stated"]:
        return ""
    return f" ({NOT_PRIVATE}: true epsilon up to {max(row['epsilon'] for row in rows):.0f})"
