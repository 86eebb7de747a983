"""The pictures of a report, drawn with Agg and without global state, the same bytes for the same result.

The pictures stand on the page in a light and a dark form; the files carry their caption in a footer, since a file
may be passed on alone.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hushstream.privacy.amounts import epsilon_value
from hushstream.replay.report.results import COLD, CONDITIONS, WARM_NONPRIVATE, WARM_PRIVATE, CellRow, RunResult
from hushstream.replay.report.wording import CONDITION_NAMES, provenance

WIDTH_INCHES = 6.2
HEIGHT_INCHES = 3.9
DOTS_PER_INCH = 160
_FOOTER_INCHES = 0.17
_FOOTER_COLUMNS = 112


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture: ground, text, grid lines, and one for each condition (distinct without colour vision)."""

    ground: str
    text: str
    grid: str
    conditions: tuple[str, str, str]

    def condition(self, name: str) -> str:
        """The colour of a condition."""
        return self.conditions[CONDITIONS.index(name)]


LIGHT = Theme("#ffffff", "#1c2430", "#dfe4ea", ("#6b7684", "#c2570c", "#0b62b0"))
DARK = Theme("#171c24", "#e3e8ef", "#333c49", ("#98a4b3", "#f0954f", "#62b0f5"))

_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.08,
    "legend.frameon": False,
    "legend.fontsize": 10,
    # Names come from configurations and data: a dollar sign is a dollar sign.
    "text.parse_math": False,
}
_LINE_STYLES = {COLD: ":", WARM_NONPRIVATE: "--", WARM_PRIVATE: "-"}
_MARKERS = {COLD: "s", WARM_NONPRIVATE: "^", WARM_PRIVATE: "o"}

Draw = Callable[[Axes, RunResult, Theme], None]


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture.

    Attributes:
        name: of its file, without ending.
        title: what it shows.
        caption: how to read it.
        alternative: the same in words, with the figures, for those who do not see it.
        draw: draws it.
    """

    name: str
    title: str
    caption: str
    alternative: str
    draw: Draw


def plots(result: RunResult) -> list[Plot]:
    """The pictures that this result has figures for."""
    found = []
    if result.rows:
        found.append(_rewards_plot(result))
    if result.cells:
        found.append(_noise_plot(result.cells))
    found.append(_epsilon_plot(result))
    return found


def render(plot: Plot, result: RunResult, theme: Theme, footer: bool = False) -> bytes:
    """One picture as PNG bytes; ``footer`` adds the caption's provenance below it."""
    with matplotlib.rc_context():
        # A matplotlibrc of the user's must not change a report.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_style(theme))
        lines = _footer_lines(result) if footer else []
        below = _FOOTER_INCHES * (len(lines) + 1) if lines else 0.0
        height = HEIGHT_INCHES + below
        layout = ConstrainedLayoutEngine(rect=(0.0, below / height, 1.0, HEIGHT_INCHES / height))
        figure = Figure(figsize=(WIDTH_INCHES, height), dpi=DOTS_PER_INCH, layout=layout)
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.set_title(plot.title, pad=10)
        axes.set_axisbelow(True)
        axes.grid(axis="y", linewidth=0.8)
        plot.draw(axes, result, theme)
        if lines:
            figure.text(0.02, 0.03, "\n".join(lines), fontsize=6.5, va="bottom", linespacing=1.4)
        target = io.BytesIO()
        # Without this the file would name the version of matplotlib.
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()


def _style(theme: Theme) -> dict[Any, Any]:
    ink = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("grid.color", "axes.edgecolor", "xtick.color", "ytick.color")
    ground = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
    colours = dict.fromkeys(ink, theme.text) | dict.fromkeys(faint, theme.grid) | dict.fromkeys(ground, theme.ground)
    return {**_STYLE, **colours}


def _footer_lines(result: RunResult) -> list[str]:
    facts = ". ".join(f"{name}: {value}" for name, value in provenance(result)) + "."
    return textwrap.wrap(facts, _FOOTER_COLUMNS)


def _rewards_plot(result: RunResult) -> Plot:
    last = {row.condition: row for row in sorted(result.rows, key=lambda row: row.round)}
    ends = "; ".join(
        f"{CONDITION_NAMES[condition]} {last[condition].mean:.3f} ± {last[condition].ci95:.3f}"
        for condition in CONDITIONS
        if condition in last
    )
    rounds = max(row.round for row in result.rows)
    return Plot(
        "rewards",
        "Reward against interactions",
        "Mean reward of the evaluated users at each of their interactions, with 95 % intervals. "
        "The conditions are the same users with the same randomness; they differ in where they start.",
        f"Line chart of mean reward over {rounds} interactions. At the last interaction: {ends}.",
        _draw_rewards,
    )


def _draw_rewards(axes: Axes, result: RunResult, theme: Theme) -> None:
    for condition in CONDITIONS:
        rows = sorted((row for row in result.rows if row.condition == condition), key=lambda row: row.round)
        if not rows:
            continue
        rounds = np.array([row.round for row in rows])
        mean = np.array([row.mean for row in rows])
        ci95 = np.array([row.ci95 for row in rows])
        colour = theme.condition(condition)
        axes.fill_between(rounds, mean - ci95, mean + ci95, color=colour, alpha=0.18, linewidth=0)
        marker = _MARKERS[condition] if len(rows) <= 30 else ""
        axes.plot(
            rounds,
            mean,
            _LINE_STYLES[condition],
            color=colour,
            marker=marker,
            markersize=4.5,
            label=CONDITION_NAMES[condition],
            lw=2,
        )
    axes.set_xlabel("Interaction of a user")
    axes.set_ylabel("Mean reward")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes, 3)


def _noise_plot(cells: tuple[CellRow, ...]) -> Plot:
    noise, reports = _noise(cells)
    return Plot(
        "noise",
        "Noise per cell against counts",
        "Each cell (code, arm) has two released sums: of the rewards, and of what is missing to the full reward. "
        "Shown is released minus exact, against the exact size of the cell; the band is its root mean square. "
        "Exact counts are shown because the dataset is public.",
        f"Scatter plot of {len(cells)} cells with {int(reports.min())} to {int(reports.max())} reports each. "
        f"The root mean square of released minus exact is {_rms(noise):.2f}.",
        _draw_noise,
    )


def _noise(cells: tuple[CellRow, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Released minus exact, (2, cells) for ones and zeros, and the exact counts, (cells,)."""
    ones = [cell.noised_ones - cell.exact_ones for cell in cells]
    zeros = [cell.noised_zeros - cell.exact_zeros for cell in cells]
    reports = [cell.exact_ones + cell.exact_zeros for cell in cells]
    return np.array([ones, zeros], dtype=np.int64), np.array(reports, dtype=np.int64)


def _rms(values: NDArray[np.int64]) -> float:
    return math.sqrt(float(np.mean(values.astype(np.float64) ** 2)))


def _draw_noise(axes: Axes, result: RunResult, theme: Theme) -> None:
    assert result.cells
    noise, reports = _noise(result.cells)
    rms = _rms(noise)
    axes.axhspan(-rms, rms, color=theme.text, alpha=0.08, linewidth=0)
    axes.axhline(0, color=theme.text, linewidth=0.8)
    alpha = 0.8 if len(reports) <= 500 else 0.3
    series = (("S1: rewards", WARM_PRIVATE, "o"), ("S0: missing rewards", WARM_NONPRIVATE, "^"))
    for values, (label, condition, marker) in zip(noise, series, strict=True):
        axes.scatter(
            reports, values, s=22, marker=marker, color=theme.condition(condition), alpha=alpha, lw=0, label=label
        )
    axes.set_xlabel("Exact S1 + S0 of the cell (reports, in reward levels)")
    axes.set_ylabel("Released minus exact")
    _legend(axes, 2)


def _epsilon_plot(result: RunResult) -> Plot:
    point = f"p = {result.sampling:g}, epsilon = {result.privacy.epsilon_text}"
    second = ""
    if result.release_mode == "slot-sums":
        second = " The second curve is the noise of this run with fewer slots kept: ln(1 + p(e^epsilon0 - 1))."
    return Plot(
        "epsilon",
        "Epsilon against the probability p",
        "The curve -ln(1-p) of Malekzadeh et al. 2020 (Figure 3), where sampling alone gives privacy and delta "
        f"depends on the threshold.{second} The point is this run.",
        f"Line chart of epsilon against the probability p that a slot is kept, rising from 0. This run: {point}.",
        _draw_epsilon,
    )


def _draw_epsilon(axes: Axes, result: RunResult, theme: Theme) -> None:
    epsilon = float(epsilon_value(int(result.privacy.values["epsilon_micro"])))
    top = max(4.0, 1.25 * epsilon)
    chances = np.linspace(0.0, 1.0, 401)[:-1]
    axes.plot(
        chances, -np.log1p(-chances), color=theme.condition(COLD), lw=2, ls="--", label="sampling alone: -ln(1-p)"
    )
    if result.release_mode == "slot-sums":
        # What the noise alone would give, from ln(1 + p (e^eps0 - 1)) = epsilon at this run's p.
        gain = math.expm1(epsilon) / result.sampling
        axes.plot(
            chances, np.log1p(chances * gain), color=theme.condition(WARM_PRIVATE), lw=2, label="this run's noise"
        )
    colour = theme.condition(WARM_PRIVATE)
    label = f"this run: p = {result.sampling:g}, epsilon = {result.privacy.epsilon_text}"
    axes.plot([result.sampling], [epsilon], "o", color=colour, markersize=9, label=label, clip_on=False, zorder=3)
    axes.set_xlim(0, 1)
    axes.set_ylim(0, top)
    axes.set_xlabel("Probability p that a slot is kept")
    axes.set_ylabel("Epsilon for one slot")
    axes.legend(loc="upper left")


def _legend(axes: Axes, columns: int) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), ncols=columns)
