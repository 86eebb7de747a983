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
from matplotlib.ticker import FuncFormatter, NullLocator

from hushstream.replay.experiments.findings import Description, Findings, promise
from hushstream.replay.report.plots import LIGHT
from hushstream.replay.studies.p2b.experiments.paper import ONE_SLOT, SLOT_EVERY_10
from hushstream.replay.studies.p2b.experiments.points import Row
from hushstream.replay.studies.p2b.experiments.population_run import COLD, WARM_NONPRIVATE, WARM_PRIVATE

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


COLD_PEN = Pen(LIGHT.arms[0], ":", "s")
NONPRIVATE_PEN = Pen(LIGHT.arms[1], "--", "^")
MODE_PENS = {
    "slot-sums": Pen(LIGHT.arms[2], "-", "o"),
    "tuples": Pen("#0b8f6f", "-.", "v"),
    "paper": Pen("#8e3b8e", "-", "D"),
}
_THRESHOLD_PENS = tuple(Pen(colour, "-", "") for colour in ("#9ecae1", "#5aa0d0", "#0b62b0", "#08306b"))

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
        _draw_arms(axes, chosen, "users")
        axes.set(xscale="log", xlabel="Users U", title=f"K = {arms} arms, world {world}")
        ticks(axes, sorted({row["users"] for row in chosen}))
    grid[0][0].set_ylabel("Mean reward of an interaction")
    legend(figure, grid[0][0])


def draw_dimensions(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 5."""
    axes = figure.subplots()
    _draw_arms(axes, rows, "dimension")
    axes.set(xlabel="Dimension d of the context", ylabel="Mean reward of an interaction")
    ticks(axes, sorted({row["dimension"] for row in rows}))
    legend(figure, axes)


def draw_lives(rows: Sequence[Row], figure: Figure) -> None:
    """Figure 6: one slot in a life, and a slot every 10 interactions."""
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, plan in ((left, ONE_SLOT), (right, SLOT_EVERY_10)):
        _draw_arms(axes, [row for row in rows if row["plan"] == plan], "rounds")
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
            for arm, pen, label in ((COLD, COLD_PEN, "cold"), (WARM_NONPRIVATE, NONPRIVATE_PEN, "warm, non-private")):
                level = next(row["reward"] for row in chosen if row["arm"] == arm)
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


def _draw_arms(axes: Axes, rows: Sequence[Row], across: str) -> None:
    """Cold, non-private and every private line against a column."""
    _draw_line(axes, _of_arm(rows, COLD), across, "reward", COLD_PEN, "cold")
    _draw_line(axes, _of_arm(rows, WARM_NONPRIVATE), across, "reward", NONPRIVATE_PEN, "warm, non-private")
    private = _of_arm(rows, WARM_PRIVATE)
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


def _of_arm(rows: Sequence[Row], arm: str) -> list[Row]:
    return [row for row in rows if row["arm"] == arm]


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
