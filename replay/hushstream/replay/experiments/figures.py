"""Draws the pictures of experiments from their rows; each has a caption that says where its figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from hushstream.replay.experiments.findings import Description, Findings, promise
from hushstream.replay.experiments.rows import Row
from hushstream.replay.report.sheet import Drawing, Sheet, png

LEAST_SEEDS = 3
"""The fewest seeds for a band: a 95 % interval over two seeds is wider than any picture."""

SETTING = "Setting"
"""The entry of `sources` with the settings of the whole experiment."""

_MOST_DIGESTS = 32


@dataclass(frozen=True, slots=True)
class Pen:
    """The look of one line of a picture; lines differ by marker, too, for readers without colour vision."""

    colour: str
    dashes: str
    marker: str


Draw = Callable[[Sequence[Row], Sheet], None]


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        title: the title above it.
        draw: draws it.
        suffix: the end of its file's name, where an experiment has several.
    """

    title: str
    draw: Draw
    suffix: str = ""


def drawing(picture: Picture, findings: Findings) -> Drawing:
    """Make the drawing of a picture from the findings."""
    name = f"{findings.description.name}{picture.suffix}"
    bands = _bands(findings)
    lines = f"Drawn from {len(findings.rows):,} rows, which are in {findings.description.name}.csv."
    return Drawing(name, picture.title, bands, f"{bands} {lines}".strip(), partial(picture.draw, findings.rows))


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
    """A picture as PNG bytes, with the sources of its figures below."""
    return png(drawing(picture, findings), caption(findings.description))


def caption(description: Description) -> list[str]:
    """Source, worlds, seeds, guarantees and digests, one fact a line."""
    return [f"{name}: {text}" for name, text in sources(description)]


def sources(description: Description) -> list[tuple[str, str]]:
    """Where the figures come from, by name."""
    facts = [("Source", f"{description.source}."), *(("World", f"{world}.") for world in description.worlds)]
    if description.seeds:
        facts.append(("Seeds", f"{_spans(description.seeds)}."))
    facts += [(SETTING, text) for text in ([] if description.deployments else description.settings)]
    facts += _promises(description)
    digests = list(dict.fromkeys(known.digest[:8] for known in description.deployments))
    if len(digests) > _MOST_DIGESTS:
        facts.append(("Deployments", f"{len(digests)}; configuration digests in column digest of the CSV."))
    elif digests:
        facts.append(("Configuration digests", f"{' '.join(digests)}."))
    return facts


def _bands(findings: Findings) -> str:
    if len(findings.description.seeds) < LEAST_SEEDS:
        return ""
    return f"Bands are 95 % intervals over {len(findings.description.seeds)} seeds."


def _promises(description: Description) -> list[tuple[str, str]]:
    """Each distinct guarantee once, after the names of the lines that have it."""
    lines: dict[str, dict[str, None]] = {}
    for known in description.deployments:
        lines.setdefault(promise(known.guarantee), {})[known.label] = None
    return [(", ".join(labels), f"{text}.") for text, labels in lines.items()]


def _spans(seeds: Sequence[int]) -> str:
    if len(seeds) == 1:
        return str(seeds[0])
    return f"{seeds[0]} to {seeds[-1]}" if list(seeds) == list(range(seeds[0], seeds[-1] + 1)) else str(list(seeds))


def ticks(axes: Axes, places: Sequence[float]) -> None:
    """Put ticks at these places only, as many as are readable."""
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(places, [f"{int(place):,}" if float(place).is_integer() else f"{place:g}" for place in places])


def plain_logarithm(axes: Axes) -> None:
    """Make the vertical axis logarithmic, and write powers of ten in full, as mathematical text is off."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def line(
    axes: Axes, rows: Sequence[Row], across: str, value: str, pen: Pen, label: str, every: int | None = None
) -> None:
    """Draw a line and its band over the column ``across``, from ``value``, ``value_low`` and ``value_high``.

    The band is an interval over seeds; with fewer than `LEAST_SEEDS` seeds there is no band.
    """
    rows = sorted(rows, key=lambda row: float(row[across]))
    if not rows:
        return
    places = [row[across] for row in rows]
    if f"{value}_low" in rows[0] and min(row.get("seeds", LEAST_SEEDS) for row in rows) >= LEAST_SEEDS:
        low, high = ([row[f"{value}_{end}"] for row in rows] for end in ("low", "high"))
        axes.fill_between(places, low, high, color=pen.colour, alpha=0.13, linewidth=0)
    values = [row[value] for row in rows]
    axes.plot(places, values, pen.dashes, color=pen.colour, marker=pen.marker, markevery=every, label=label)
