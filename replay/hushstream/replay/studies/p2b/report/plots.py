"""The pictures of a P2B run."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from hushstream.privacy.amounts import epsilon_value
from hushstream.replay.report.palette import BLUE, GREY, INK, RED
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.wording import EXACT
from hushstream.replay.studies.p2b.report.results import (
    COLD,
    CONDITIONS,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    CellRow,
    ConditionRow,
    RunResult,
)
from hushstream.replay.studies.p2b.report.wording import CONDITION_NAMES

CONDITION_COLOURS = {COLD: GREY, WARM_NONPRIVATE: RED, WARM_PRIVATE: BLUE}
_LINE_STYLES = {COLD: ":", WARM_NONPRIVATE: "--", WARM_PRIVATE: "-"}
_MARKERS = {COLD: "s", WARM_NONPRIVATE: "^", WARM_PRIVATE: "o"}


def plots(result: RunResult) -> list[Drawing]:
    """Make the pictures for which this result has figures."""
    found = []
    if result.rows:
        found.append(_rewards_plot(result.rows))
    if result.cells:
        found.append(_noise_plot(result.cells))
    found.append(_epsilon_plot(result))
    return found


def _rewards_plot(rows: tuple[ConditionRow, ...]) -> Drawing:
    ordered = sorted(rows, key=lambda row: row.round)
    first, last = ({row.condition: row for row in some} for some in (reversed(ordered), ordered))
    begins, ends = (
        "; ".join(
            f"{CONDITION_NAMES[name]} {found[name].mean:.3f} ± {found[name].ci95:.3f}"
            for name in CONDITIONS
            if name in found
        )
        for found in (first, last)
    )
    return Drawing(
        "rewards",
        "Reward against interactions",
        "Mean reward of the evaluated users at each of their interactions, with 95 % intervals. All lines "
        "show the same users with the same randomness; they differ in the model that users start from. These "
        f"are {EXACT}.",
        f"Line chart of mean reward over {max(row.round for row in rows)} interactions. At the first: {begins}. "
        f"At the last interaction: {ends}.",
        partial(draw_rewards, rows),
    )


def draw_rewards(rows: tuple[ConditionRow, ...], sheet: Sheet) -> None:
    """Draw a line with its band for each condition."""
    (axes,) = sheet.panels(height=340)
    for condition in CONDITIONS:
        chosen = sorted((row for row in rows if row.condition == condition), key=lambda row: row.round)
        if chosen:
            _draw_condition(axes, condition, chosen)
    axes.set(xlabel="Interaction of a user", ylabel="Mean reward")
    axes.set_ylim(bottom=min(0.0, *(row.mean - row.ci95 for row in rows)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    sheet.legend(axes)


def _draw_condition(axes: Axes, condition: str, rows: list[ConditionRow]) -> None:
    rounds = np.array([row.round for row in rows])
    mean, ci95 = (np.array([getattr(row, name) for row in rows]) for name in ("mean", "ci95"))
    colour, marker = CONDITION_COLOURS[condition], _MARKERS[condition] if len(rows) <= 30 else ""
    axes.fill_between(rounds, mean - ci95, mean + ci95, color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        rounds, mean, _LINE_STYLES[condition], color=colour, marker=marker, label=CONDITION_NAMES[condition], lw=2
    )


def _noise_plot(cells: tuple[CellRow, ...]) -> Drawing:
    noise, reports = noise_of(cells)
    return Drawing(
        "noise",
        "Noise of what was released, against counts",
        "Each pair of a code of contexts and an item has two released sums: of the rewards, and of the differences to "
        "the full reward. Shown is released minus exact against the exact size of the pair; the band is the root mean "
        f"square. Exact figures are shown because the dataset is public: both axes are made of {EXACT}.",
        f"Scatter plot of {len(cells)} cells with {int(reports.min())} to {int(reports.max())} reports each. "
        f"The root mean square of released minus exact is {_rms(noise):.2f}.",
        partial(draw_noise, cells),
    )


def noise_of(cells: tuple[CellRow, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Released minus exact, (2, cells) for ones and zeros, and the exact counts, (cells,)."""
    ones = [cell.noised_ones - cell.exact_ones for cell in cells]
    zeros = [cell.noised_zeros - cell.exact_zeros for cell in cells]
    reports = [cell.exact_ones + cell.exact_zeros for cell in cells]
    return np.array([ones, zeros], dtype=np.int64), np.array(reports, dtype=np.int64)


def _rms(values: NDArray[np.int64]) -> float:
    return math.sqrt(float(np.mean(values.astype(np.float64) ** 2)))


def draw_noise(cells: tuple[CellRow, ...], sheet: Sheet) -> None:
    """Draw a dot for every different value; with many thousand cells most dots would cover each other."""
    (axes,) = sheet.panels(height=300)
    noise, reports = noise_of(cells)
    rms = _rms(noise)
    axes.axhspan(-rms, rms, color=INK, alpha=0.08, linewidth=0)
    axes.axhline(0, color=INK, linewidth=0.8)
    series = (("Rewards", BLUE, "o"), ("Difference to the full reward", RED, "^"))
    for values, (label, colour, marker) in zip(noise, series, strict=True):
        places = np.unique(np.stack([reports, values]), axis=1)
        axes.scatter(places[0], places[1], s=16, marker=marker, color=colour, alpha=0.6, lw=0, label=label)
    axes.set(xlabel="Exact size of the pair (reports, in reward levels)", ylabel="Released minus exact")
    sheet.legend(axes)


def _epsilon_plot(result: RunResult) -> Drawing:
    point = f"p = {result.sampling:g}, epsilon = {result.privacy.epsilon_text}"
    second = ""
    if result.release_mode == "slot-sums":
        second = " The second curve is for the noise of this run with fewer slots kept: ln(1 + p(e^epsilon0 - 1))."
    return Drawing(
        "epsilon",
        "Epsilon against the probability p",
        "The curve -ln(1-p) of Malekzadeh et al. 2020 (Figure 3), where sampling alone gives privacy and delta "
        f"depends on the threshold.{second} The point is this run.",
        f"Line chart of epsilon against the probability p that a slot is kept, rising from 0. This run: {point}.",
        partial(draw_epsilon, result),
    )


def draw_epsilon(result: RunResult, sheet: Sheet) -> None:
    """Draw the epsilon of sampling alone, the epsilon of this run's noise, and this run."""
    (axes,) = sheet.panels(height=300)
    epsilon = float(epsilon_value(int(result.privacy.values["epsilon_micro"])))
    chances = np.linspace(0.0, 1.0, 401)[:-1]
    axes.plot(chances, -np.log1p(-chances), color=GREY, lw=2, ls="--", label="sampling alone: -ln(1-p)")
    if result.release_mode == "slot-sums":
        # The curve of the noise alone, from ln(1 + p (e^eps0 - 1)) = epsilon at this run's p.
        gain = math.expm1(epsilon) / result.sampling
        axes.plot(chances, np.log1p(chances * gain), color=BLUE, lw=2, label="this run's noise")
    label = f"this run: p = {result.sampling:g}, epsilon = {result.privacy.epsilon_text}"
    axes.plot([result.sampling], [epsilon], "o", color=BLUE, markersize=9, label=label, clip_on=False, zorder=3)
    axes.set(xlim=(0, 1), ylim=(0, max(4.0, 1.25 * epsilon)))
    axes.set(xlabel="Probability p that a slot is kept", ylabel="Epsilon for one slot")
    sheet.legend(axes)
