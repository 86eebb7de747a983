"""The pictures of the experiments, drawn from their rows alone, each with a caption that says what it rests on."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullLocator

from hushstream.replay.experiments.findings import Description, Findings, promise
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.plots import LIGHT

DOTS_PER_INCH = 150
_CAPTION_POINTS = 7.0
_CAPTION_LINE_INCHES = 0.135
_CHARACTERS_PER_INCH = 15.5
_TITLE_INCHES = 0.36
_LEGEND_ROW_INCHES = 0.22
_MOST_DIGESTS = 32


@dataclass(frozen=True, slots=True)
class Pen:
    """How one line of a picture looks; colours and markers differ also without colour vision."""

    colour: str
    dashes: str
    marker: str


_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa4b1",
    "axes.grid": True,
    "grid.color": LIGHT.grid,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "text.color": LIGHT.text,
    "axes.labelcolor": LIGHT.text,
    "text.parse_math": False,
    "figure.constrained_layout.h_pad": 0.08,
}

Draw = Callable[[Sequence[Row], Figure], None]


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        suffix: the end of its file's name.
        title: above it.
        width: in inches.
        height: of the panels, in inches; title, legend and caption come on top of it.
        draw: draws it.
        legend_rows: rows of the legend between title and panels.
    """

    suffix: str
    title: str
    width: float
    height: float
    draw: Draw
    legend_rows: int = 2


def write_pictures(findings: Findings, pictures: Iterable[Picture], folder: Path) -> list[Path]:
    """Write ``NAME.png`` (or ``NAME-SUFFIX.png``) for each picture; the same bytes for the same findings."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for picture in pictures:
        path = folder / f"{findings.description.name}{picture.suffix}.png"
        path.write_bytes(render(picture, findings))
        paths.append(path)
    return paths


def render(picture: Picture, findings: Findings) -> bytes:
    """A picture with its caption below, as PNG bytes."""
    lines = caption(findings.description, round(picture.width * _CHARACTERS_PER_INCH))
    below = _CAPTION_LINE_INCHES * len(lines) + 0.15
    height = picture.height + below + _TITLE_INCHES + _LEGEND_ROW_INCHES * picture.legend_rows
    with matplotlib.rc_context():
        # A matplotlibrc of the user's must not change a figure.
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        layout = ConstrainedLayoutEngine(rect=(0.0, below / height, 1.0, picture.height / height))
        figure = Figure(figsize=(picture.width, height), dpi=DOTS_PER_INCH, layout=layout)
        FigureCanvasAgg(figure)
        picture.draw(findings.rows, figure)
        figure.text(0.012, 1 - 0.08 / height, picture.title, fontsize=11.5, fontweight="bold", va="top")
        figure.text(
            0.012,
            0.06 / height,
            "\n".join(lines),
            fontsize=_CAPTION_POINTS,
            va="bottom",
            linespacing=1.25,
            color="#4a5563",
        )
        target = io.BytesIO()
        # Without this the file would name the version of matplotlib.
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()


def caption(description: Description, columns: int) -> list[str]:
    """Source, worlds, seeds, guarantees and digests, wrapped to ``columns`` characters."""
    facts = [f"{description.source}.", *(f"World {world}." for world in description.worlds)]
    if description.seeds:
        facts.append(f"Seeds {_spans(description.seeds)}; bands are 95 % intervals over seeds.")
    facts += [] if description.deployments else description.settings
    facts += [f"{text}." for text in _promises(description)]
    digests = list(dict.fromkeys(known.digest[:8] for known in description.deployments))
    if len(digests) > _MOST_DIGESTS:
        facts.append(f"{len(digests)} deployments; configuration digests in column digest of the CSV.")
    elif digests:
        facts.append(f"Configuration digests {' '.join(digests)}.")
    return [line for fact in facts for line in textwrap.wrap(fact, columns, subsequent_indent="   ")]


def _promises(description: Description) -> list[str]:
    """Each distinct guarantee once, after the lines that have it."""
    lines: dict[str, dict[str, None]] = {}
    for known in description.deployments:
        lines.setdefault(promise(known.guarantee), {})[known.label] = None
    return [f"{', '.join(labels)}: {text}" for text, labels in lines.items()]


def _spans(seeds: Sequence[int]) -> str:
    return f"{seeds[0]} to {seeds[-1]}" if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) else str(list(seeds))


def ticks(axes: Axes, places: Sequence[int]) -> None:
    """Ticks at these places and nowhere else."""
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [f"{place:,}" for place in places])


def legend(figure: Figure, *panels: Axes, columns: int | None = None) -> None:
    """One legend above all panels, each name once, in so many columns (None: three, or two rows)."""
    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    below_title = 1 - _TITLE_INCHES / figure.get_figheight()
    placed = figure.legend(
        list(entries.values()),
        list(entries),
        loc="upper left",
        bbox_to_anchor=(0.0, below_title),
        borderpad=0.2,
        handlelength=3.4,  # long enough to tell dashes from a line behind its marker
        ncols=columns or (3 if len(entries) == 3 else math.ceil(len(entries) / 2)),
    )
    # Its place is reserved already; the panels' layout is not to make room for it again.
    placed.set_in_layout(False)
