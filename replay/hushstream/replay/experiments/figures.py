"""Draws the curves of all experiments from their rows; each has a caption that says where its figures come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from hushstream.privacy.promises.promise import NOT_PRIVATE
from hushstream.replay.experiments.findings import Curve, Experiment, Findings
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.sheet import AMBER, BLACK, BLUE, GREEN, GREY, PURPLE, RED, SKY, Drawing, Sheet, png

LEAST_SEEDS = 3
"""The fewest seeds for a band: a 95 % interval over two seeds is wider than any picture."""

SETTING, WARNING = "Setting", "Warning"
"""The entries of `sources` that a page shows elsewhere."""

_MOST_TICKS = 10

_PENS = tuple(
    zip(
        cycle((BLUE, RED, GREEN, PURPLE, AMBER, BLACK, SKY)),
        cycle(("-", "--", "-.")),
        ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">") * 4,
    )
)
"""Colour, dashes and marker of each line; lines differ by marker, too, for readers without colour vision."""


def drawing(curve: Curve, experiment: Experiment, found: Findings) -> Drawing:
    """Make the drawing of a curve from the findings."""
    bands = ""
    if len(found.seeds) >= LEAST_SEEDS:
        bands = f"Bands are 95 % intervals over {len(found.seeds)} seeds."
    lines = f"Drawn from {len(found.rows):,} rows, which are in {experiment.name}.csv."
    name = f"{experiment.name}{curve.suffix}"
    return Drawing(name, curve.title, bands, f"{bands} {lines}".strip(), partial(draw, curve, found.rows))


def render(curve: Curve, experiment: Experiment, found: Findings) -> bytes:
    """A curve as PNG bytes, with the sources of its figures below; the same bytes for the same findings."""
    return png(drawing(curve, experiment, found), [f"{name}: {text}" for name, text in sources(experiment, found)])


def sources(experiment: Experiment, found: Findings) -> list[tuple[str, str]]:
    """Where the figures come from, by name: source, worlds, seeds, settings and warnings."""
    facts = [("Source", f"{experiment.source}."), *(("World", f"{world}.") for world in found.worlds)]
    if found.seeds:
        facts.append(("Seeds", f"{_spans(found.seeds)}."))
    return [*facts, *((SETTING, text) for text in found.settings), *((WARNING, f"{mark}.") for mark in found.marks)]


def _spans(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return str(seeds[0])
    return f"{seeds[0]} to {seeds[-1]}" if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) else str(list(seeds))


def draw(curve: Curve, rows: Sequence[Row], sheet: Sheet) -> None:
    """Draw a curve: a panel for each value of its panel columns, and a line for each value of its line columns."""
    wanted = [row for row in rows if all(row.get(name) == value for name, value in curve.where.items())]
    foretold = [row for row in wanted if curve.diagonal and _is_number(row.get(curve.across))]
    wanted = foretold or wanted
    named = {name: _line(wanted, curve, name) for name in _names(wanted, curve)}
    if not curve.across or (curve.diagonal and not foretold):
        _draw_dots(curve, named, sheet)
        return
    placed = [row for lines in named.values() for row in lines if _is_number(row.get(curve.across))]
    keys = list(dict.fromkeys(_key(row, curve.panels) for row in wanted if row in placed))
    panels = sheet.panels(len(keys), columns=2, height=300)
    for axes, key in zip(panels, keys, strict=True):
        for (name, lines), pen in zip(named.items(), _PENS, strict=False):
            here = [row for row in lines if _key(row, curve.panels) == key or _key(row, curve.panels) not in keys]
            _draw_line(axes, curve, here, name[0], _label(curve, name, lines), pen)
        axes.set_title(", ".join(key))
        axes.set_xlabel(curve.across.replace("_", " "))
        _scales(axes, curve, placed)
    sheet.label_left(panels, curve.values_label)
    sheet.legend(*panels)


def _names(rows: Sequence[Row], curve: Curve) -> list[tuple[str, ...]]:
    """The lines of a curve: a column that is drawn, and the values of the columns that tell lines apart."""
    found = ((value, *_key(row, curve.by)) for value in curve.values for row in rows if value in row)
    return list(dict.fromkeys(found))


def _line(rows: Sequence[Row], curve: Curve, name: tuple[str, ...]) -> list[Row]:
    return [row for row in rows if name[0] in row and _key(row, curve.by) == name[1:]]


def _key(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """The values of some columns as texts; a column that a row has not is left out."""
    return tuple(_text(name, row[name]) for name in columns if row.get(name) not in (None, ""))


def _text(column: str, value: Any) -> str:
    if isinstance(value, str):
        return "no noise" if (column, value) == ("epsilon_asked", "none") else value
    name = column.replace("_", " ")
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:g}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _label(curve: Curve, name: tuple[str, ...], rows: Sequence[Row]) -> str:
    """The name of a line, with the warning that its rows have."""
    parts = name[1:] if len(curve.values) == 1 and name[1:] else (name[0].replace("_", " "), *name[1:])
    warned = warning(rows)
    return f"{', '.join(parts)} ({warned})" if warned else ", ".join(parts)


def warning(rows: Sequence[Row]) -> str:
    """What a line must say of its rows where they are not private as stated, with our bound on epsilon if any."""
    broken = [row for row in rows if NOT_PRIVATE in str(row.get("marks", ""))]
    if not broken or any(row["delta"] >= 0.5 for row in broken):
        return NOT_PRIVATE if broken else ""
    least, most = (f"{pick(row['epsilon'] for row in broken):,.4g}" for pick in (min, max))
    return f"{NOT_PRIVATE}: epsilon at most {least}" + ("" if least == most else f" to {most}")


def _draw_line(
    axes: Axes, curve: Curve, rows: Sequence[Row], value: str, label: str, pen: tuple[str, str, str]
) -> None:
    """Draw a line and its band, which is an interval over seeds; with fewer than `LEAST_SEEDS` there is no band."""
    colour, dashes, marker = pen
    if curve.diagonal:
        _draw_foretold(axes, curve, rows, value, label, pen)
        return
    for row in rows:
        if not _is_number(row.get(curve.across)):
            axes.axhline(row[value], color=colour, linestyle=":", label=label)
    placed = sorted((row for row in rows if _is_number(row.get(curve.across))), key=lambda row: row[curve.across])
    if not placed:
        return
    places = [row[curve.across] for row in placed]
    if f"{value}_low" in placed[0] and min(row.get("seeds", LEAST_SEEDS) for row in placed) >= LEAST_SEEDS:
        low, high = ([row[f"{value}_{end}"] for row in placed] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=colour, alpha=0.13, linewidth=0)
    every = max(1, len(places) // _MOST_TICKS)
    axes.plot(places, [row[value] for row in placed], dashes, color=colour, marker=marker, markevery=every, label=label)


def _draw_foretold(
    axes: Axes, curve: Curve, rows: Sequence[Row], value: str, label: str, pen: tuple[str, str, str]
) -> None:
    """Draw each value over its forecast, with the forecast's range if it has one, and the line of equality."""
    for row in rows:
        found = (row.get(f"{curve.across}_{end}") for end in ("least", "most"))
        ends = [float(one) for one in found if isinstance(one, int | float)]
        if len(ends) > 1:
            axes.plot(ends, [row[value]] * 2, color=pen[0], alpha=0.35)
    if rows:
        axes.plot([row[curve.across] for row in rows], [row[value] for row in rows], pen[2], color=pen[0], label=label)
        axes.axline((0, 0), slope=1, color=GREY, linestyle=":")


def _scales(axes: Axes, curve: Curve, rows: Sequence[Row]) -> None:
    """Set the logarithmic axes, and ticks at the places of the rows where these are few."""
    if "x" in curve.log:
        axes.set_xscale("log")
    if "y" in curve.log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        # Over many decades a locator with several ticks a decade draws none.
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 1e3 * low else (1,)))
        # Powers of ten are written in full, as mathematical text is off.
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    places = sorted({float(row[curve.across]) for row in rows})
    if len(places) <= _MOST_TICKS and not curve.diagonal:
        axes.xaxis.set_minor_locator(NullLocator())
        kept = _apart(places, "x" in curve.log)
        axes.set_xticks(kept, [f"{int(one):,}" if one.is_integer() else f"{one:.3g}" for one in kept])


def _apart(places: Sequence[float], logarithmic: bool) -> list[float]:
    """The places whose numbers do not overlap: a twelfth of the axis apart, from the first on."""
    at = [math.log(one) if logarithmic else one for one in places]
    kept: list[int] = []
    for number, one in enumerate(at):
        if not kept or one - at[kept[-1]] >= (at[-1] - at[0]) / 12:
            kept.append(number)
    return [places[number] for number in kept]


def _draw_dots(curve: Curve, named: Mapping[tuple[str, ...], Sequence[Row]], sheet: Sheet) -> None:
    """Draw a dot and its interval for each row: a panel for each value of the panel columns, dots of a name level."""
    dots = [(_key(row, curve.panels), name, row) for name, rows in named.items() for row in rows]
    keys = list(dict.fromkeys(key for key, _, _ in dots))
    texts = {one: [_label(curve, name, [row]) for key, name, row in dots if key == one] for one in keys}
    panels = sheet.named_rows(*(list(dict.fromkeys(texts[one])) for one in keys))
    for axes, one in zip(panels, keys, strict=True):
        levels = list(dict.fromkeys(texts[one]))
        for text, (name, row) in zip(texts[one], ((name, row) for key, name, row in dots if key == one), strict=True):
            place, value = levels.index(text), row[name[0]]
            pen = _PENS[list(named).index(name) if len(curve.values) > 1 else 0]
            axes.plot(value, place, pen[2], color=pen[0], markersize=6)
            ends = [value]
            if f"{name[0]}_low" in row and row.get("seeds", LEAST_SEEDS) >= LEAST_SEEDS:
                ends = [row[f"{name[0]}_{end}"] for end in ("low", "high")]
                axes.plot(ends, [place, place], color=pen[0], linewidth=2.2)
            if texts[one].count(text) == 1:
                axes.annotate(f"{value:.3g}", (ends[-1], place), (7, 0), textcoords="offset points", va="center")
        axes.margins(x=0.2)
        axes.set(title=", ".join(one), xlabel=curve.values_label)
