"""Plot every dashboard's queries from a live Prometheus, one picture a dashboard.

    python deploy/grafana/plot.py [--users 3000] [--pace 25] [--out deploy/docs]

Starts a small deployment (`live`), plays the users through it (about 3.6 interactions a user, so 7 minutes as it
stands; rates are over 5 minutes), and writes ``dashboard-NAME.png``. The data is synthetic and public.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from live import LiveRun, Series
from panels import BOARDS, Board, Panel

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

DOCS = Path(__file__).resolve().parents[1] / "docs"
COLUMNS = 3
WIDTH_INCHES, HEIGHT_INCHES = 4.3, 2.6
UNITS = {"reqps": "a second", "s": "seconds", "percentunit": "share", "short": "number"}


def draw(board: Board, run: LiveRun, path: Path) -> None:
    """One picture of one dashboard, from the beginning of the play until now."""
    rows = math.ceil(len(board.panels) / COLUMNS)
    figure, places = plt.subplots(
        rows, COLUMNS, figsize=(COLUMNS * WIDTH_INCHES, rows * HEIGHT_INCHES), squeeze=False, layout="constrained"
    )
    axes = list(places.flat)
    for axis, panel in zip(axes, board.panels, strict=False):
        _draw_panel(axis, panel, board, run)
    for axis in axes[len(board.panels) :]:
        axis.set_visible(False)
    figure.suptitle(f"{board.title} (a replay of synthetic users, from the live Prometheus)", fontsize=11)
    figure.savefig(path, dpi=72, metadata={"Software": None})
    plt.close(figure)


def _draw_panel(axis: Axes, panel: Panel, board: Board, run: LiveRun) -> None:
    lines, highest = 0, 0.0
    for query in panel.queries:
        for series in run.ask_range(board.endpoint, query.expr):
            times = [(at - run.started) / 60 for at, _ in series.points]
            values = [value for _, value in series.points]
            axis.plot(times, values, label=_legend(query.legend, series), linewidth=1.2)
            highest = max(highest, *values)
            lines += 1
    axis.set_title(f"{panel.title} ({panel.metric_class})", fontsize=9)
    axis.set_ylabel(UNITS[panel.unit], fontsize=7)
    axis.set_xlabel("minutes", fontsize=7)
    axis.tick_params(labelsize=7)
    top = 1.05 * highest or 1.0
    axis.set_ylim(-0.03 * top, top)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=5 if lines > 6 else 7, ncols=2 if lines > 6 else 1)


def _legend(pattern: str, series: Series) -> str:
    for name, value in series.labels.items():
        pattern = pattern.replace("{{" + name + "}}", value)
    return pattern


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="Plot every dashboard's queries from a live Prometheus.")
    parser.add_argument("--users", type=int, default=3000, help="users that contribute")
    parser.add_argument("--pace", type=float, default=25.0, help="interactions a second")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pictures")
    given = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="hushstream-live-") as folder,
        LiveRun(Path(folder), given.users, given.pace) as run,
    ):
        run.play()
        for board in BOARDS:
            path = given.out / f"dashboard-{board.uid.removeprefix('hushstream-')}.png"
            draw(board, run, path)
            print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
