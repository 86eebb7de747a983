"""The picture of a replayed log: what each policy would have earned, with intervals."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from hushstream.replay.studies.p2b.evaluation import Evaluation

_INK, _OURS = "#1c2430", "#0b62b0"
_SHOWN = ("replay", "snips", "dr")


def draw_policies(found: Evaluation) -> bytes:
    """Values and 95 % intervals by policy as PNG bytes, the same for the same result; by some of the estimators."""
    shown = [row for row in found.policies if row.estimator in _SHOWN or row.policy == "logged"]
    rows = [(row, row.value) for row in reversed(shown) if row.value is not None]
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False})
        figure = Figure(figsize=(6.4, 1.6 + 0.34 * len(rows)), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for place, (row, value) in enumerate(rows):
            if row.ci95 is not None:
                axes.plot(row.ci95, (place, place), color=_OURS, linewidth=2, solid_capstyle="butt")
            axes.plot([value], [place], "o", color=_OURS)
        axes.set_yticks(range(len(rows)), [f"{row.policy} ({row.estimator})" for row, _ in rows])
        axes.set_xlim(left=0)
        axes.set_xlabel("mean reward, with 95 % intervals")
        axes.set_title(found.log, loc="left", fontsize=11, fontweight="bold", color=_INK)
        axes.grid(axis="x", linewidth=0.8, color="#dfe4ea")
        axes.spines[["top", "right"]].set_visible(False)
        figure.supxlabel("; ".join((found.privacy.summary, *found.marks)), fontsize=6.5, wrap=True)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()
