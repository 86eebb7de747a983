"""Draw every dashboard as Grafana lays it out, from a live Prometheus, one picture a dashboard.

    python deploy/grafana/plot.py [--users 4000] [--pace 30] [--out deploy/docs]

Starts a small deployment (`live`), plays the users through it (about 3.6 interactions a user, so 8 minutes as it
stands), and writes ``dashboard-NAME.png``. Rates are over 5 minutes, which is how much of the beginning is left out: a
rate that is still filling its window would look like a service whose load rises. The data is synthetic and public.
"""

from __future__ import annotations

import argparse
import io
import math
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import matplotlib as mpl
from live import LiveError, LiveRun, Series
from panels import BOARDS, Board, Endpoint, Panel
from PIL import Image

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

DOCS = Path(__file__).resolve().parents[1] / "docs"
RATE_WINDOW_SECONDS = 300.0
"""The longest time window of a rate in any panel."""

COLUMNS, DOTS_PER_INCH = 2, 72
COLOURS = 128
"""How many colours a picture has, to keep it small; the few red pixels of a limit must have one of them."""
WIDTH_INCHES, HEIGHT_INCHES = 4.9, 2.6
HEADING, WORDS, SMALL = 12, 10, 9
"""Sizes of type: two columns are read at 390 dots, too, where they are three fifths as large."""
MOST_NAMED = 8
"""The most lines that a legend names; more would leave no space for the lines themselves."""

CANVAS, PANEL, EDGE, TEXT, FAINT = "#111217", "#181b1f", "#2a2d33", "#d8d9da", "#9fa3ab"
LINES = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#b877d9", "#5dc7c7", "#8ab8ff", "#ffa6b0", "#37872d", "#e0b400")
"""Colours of lines, as in Grafana's dark theme."""
WIDTHS = 3
"""How many widths lines have; with more, the widest lines would be bands."""
BAD = "#f2495c"
"""Colour of an alert's limit, and of a value beyond it."""
SECONDS_OF_AN_HOUR = 3600
LIMIT_SHOWN = 8
"""A limit above this many times the highest value is only named: if drawn, it would press all lines to the axis."""

UNITS = {"reqps": "{:g} req/s", "s": "{:g} s", "percentunit": "{:.0%}", "short": "{:,.4g}"}

Ask = Callable[[Endpoint, str], Sequence[Series]]


def settled(asked: Ask, started: float) -> Ask:
    """Answers without those before the first full window of rates.

    Raises:
        LiveError: the run was no longer than one window.
    """
    begins = started + RATE_WINDOW_SECONDS

    def ask(endpoint: Endpoint, expr: str) -> Sequence[Series]:
        kept = [
            Series(one.labels, tuple(point for point in one.points if point[0] >= begins))
            for one in asked(endpoint, expr)
        ]
        if kept and not any(one.points for one in kept):
            raise LiveError(f"expected a run of more than {RATE_WINDOW_SECONDS:g} s: play more users, or slower")
        return [one for one in kept if one.points]

    return ask


def draw(board: Board, ask: Ask, path: Path) -> None:
    """Draw one dashboard as one picture."""
    rows = math.ceil(len(board.panels) / COLUMNS)
    size = (COLUMNS * WIDTH_INCHES, rows * HEIGHT_INCHES + 0.5)
    figure, places = plt.subplots(
        rows, COLUMNS, figsize=size, squeeze=False, layout="constrained", facecolor=CANVAS, dpi=DOTS_PER_INCH
    )
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.14)
    axes = list(places.flat)
    for axis, panel in zip(axes, board.panels, strict=False):
        _draw_panel(axis, panel, board, ask)
    for axis in axes[len(board.panels) :]:
        axis.set_visible(False)
    figure.suptitle(board.title, fontsize=15, color=TEXT, x=0.01, ha="left", weight="bold")
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", facecolor=CANVAS)
    plt.close(figure)
    Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def _draw_panel(axis: Axes, panel: Panel, board: Board, ask: Ask) -> None:
    found = [(_legend(query.legend, one), one) for query in panel.queries for one in ask(board.endpoint, query.expr)]
    axis.set_facecolor(PANEL)
    axis.set_title(panel.title, fontsize=HEADING, color=TEXT, loc="left", weight="bold", pad=16)
    place = {"transform": axis.transAxes, "va": "bottom"}
    axis.text(0, 1.02, board.class_of(panel), fontsize=SMALL, color=FAINT, **place)
    for spine in axis.spines.values():
        spine.set_color(EDGE)
    if not found:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.text(0.5, 0.5, "no figure yet", color=FAINT, fontsize=HEADING, ha="center", transform=axis.transAxes)
    elif panel.kind == "stat":
        _draw_stat(axis, panel, found)
    else:
        _draw_lines(axis, panel, found)


def _draw_stat(axis: Axes, panel: Panel, found: Sequence[tuple[str, Series]]) -> None:
    """Draw the last values in large type."""
    axis.set_xticks([])
    axis.set_yticks([])
    for place, (name, series) in enumerate(found):
        across = (place + 0.5) / len(found)
        last = series.points[-1][1]
        value = panel.words.get(round(last), UNITS[panel.unit].format(last))
        size = 24 if len(value) < MOST_NAMED else 15
        colour = BAD if _is_bad(panel, last) else LINES[0]
        axis.text(across, 0.52, value, color=colour, fontsize=size, ha="center", transform=axis.transAxes)
        axis.text(
            across,
            0.3,
            name.replace(" ", "\n").replace("-", "-\n"),
            color=FAINT,
            fontsize=WORDS,
            ha="center",
            va="top",
            transform=axis.transAxes,
        )


def _draw_lines(axis: Axes, panel: Panel, found: Sequence[tuple[str, Series]]) -> None:
    highest = lowest = 0.0
    for place, (name, series) in enumerate(found):
        times, values = zip(*series.points, strict=True)
        # A later line is thinner than an earlier one, so both can be seen where they have the same values.
        width = 1.3 + 0.9 * max(0, min(len(found), WIDTHS) - 1 - place)
        axis.plot(times, values, label=name, linewidth=width, color=LINES[place % len(LINES)])
        highest = max(highest, *(value for value in values if math.isfinite(value)))
        if panel.signed:
            lowest = min(lowest, *(value for value in values if math.isfinite(value)))
    if panel.limit is not None:
        said = _limit_in_words(panel)
        highest = max(highest, panel.limit if panel.limit < LIMIT_SHOWN * highest or not panel.above else highest)
        axis.axhline(panel.limit, label=f"{panel.alert} at {said}", linewidth=1.2, linestyle="--", color=BAD)
    if panel.signed:
        axis.axhline(0, linewidth=1.2, color=FAINT)
    top = 1.08 * highest or 1.0
    # With some space below, a line at 0 does not lie on the edge.
    axis.set_ylim(1.08 * lowest - 0.02 * top, top)
    axis.tick_params(labelsize=SMALL, colors=FAINT, length=0)
    axis.grid(color=EDGE, linewidth=0.8)
    axis.margins(x=0)
    axis.xaxis.set_major_locator(MultipleLocator(120))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda at, _: datetime.fromtimestamp(at, UTC).strftime("%H:%M")))
    axis.yaxis.set_major_locator(MaxNLocator(5))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: UNITS[panel.unit].format(round(value, 9))))
    handles, names = axis.get_legend_handles_labels()
    if panel.limit is not None and len(names) > MOST_NAMED:
        handles.insert(MOST_NAMED - 1, handles.pop())
        names.insert(MOST_NAMED - 1, names.pop())
    below = {"loc": "upper left", "bbox_to_anchor": (-0.02, -0.1), "frameon": False, "borderaxespad": 0.0}
    axis.legend(
        handles[:MOST_NAMED],
        names[:MOST_NAMED],
        fontsize=WORDS,
        ncols=2 if max(map(len, names), default=0) > 12 else 3,
        labelcolor=TEXT,
        handlelength=1.2,
        **below,
    )


def _limit_in_words(panel: Panel) -> str:
    assert panel.limit is not None
    if panel.unit == "s" and panel.limit >= SECONDS_OF_AN_HOUR:
        return f"{panel.limit / SECONDS_OF_AN_HOUR:g} h"
    return f"{panel.limit:,g}" if panel.unit == "short" else UNITS[panel.unit].format(panel.limit)


def _is_bad(panel: Panel, value: float) -> bool:
    return panel.limit is not None and (value >= panel.limit if panel.above else value < panel.limit)


def _legend(pattern: str, series: Series) -> str:
    for name, value in series.labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def _end(number: int, _: FrameType | None) -> None:
    """End as after an error, so that everything started is stopped; a second signal would interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(128 + number)


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Draw every dashboard from a live Prometheus.")
    parser.add_argument("--users", type=int, default=4000, help="users that contribute")
    parser.add_argument("--pace", type=float, default=30.0, help="interactions a second")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pictures")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    with (
        tempfile.TemporaryDirectory(prefix="hushstream-live-") as folder,
        LiveRun(Path(folder), given.users, given.pace) as run,
    ):
        run.play()
        for board in BOARDS:
            path = given.out / f"dashboard-{board.uid.removeprefix('hushstream-')}.png"
            draw(board, settled(run.ask_range, run.started), path)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
