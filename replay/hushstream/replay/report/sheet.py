"""The sheet of a picture: panels side by side as far as the width allows, with one common legend above.

A drawing is made in two widths, so that its text has the same size on a wide and on a narrow screen. It is written as
SVG with colours that are CSS variables of the page, or as a PNG file with its provenance below. It uses no global
state, and equal figures give equal bytes.

*Palette.* The colours of pages and pictures, each in a light and a dark form.

Pictures are drawn in the light form. On a page every colour becomes a variable of the style sheet, so that one picture
suits both schemes. Every colour of a line has a contrast of at least 3 to 1 with its background (WCAG 2.2, 1.4.11),
every colour of a text one of at least 4.5 to 1 (1.4.3).
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import matplotlib
from cycler import cycler
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

GROUND, INK, FAINT, GRID = "#ffffff", "#1c2430", "#566273", "#dfe4ea"
GREY, STONE, BLACK = "#6b7684", "#8a817c", "#05070a"
BLUE, SKY, INDIGO, PERIWINKLE = "#0b62b0", "#2484b4", "#3b3b98", "#6672c8"
GREEN, AMBER, RED, PURPLE = "#0b7f63", "#a86a00", "#c2410c", "#8e3b8e"

_FORMS = {
    "ground": (GROUND, "#171c24"),
    "ink": (INK, "#e3e8ef"),
    "faint": (FAINT, "#a2adbb"),
    "grid": (GRID, "#333c49"),
    "grey": (GREY, "#98a4b3"),
    "stone": (STONE, "#b5aca6"),
    "black": (BLACK, "#fafcff"),
    "blue": (BLUE, "#62b0f5"),
    "sky": (SKY, "#86d3f2"),
    "indigo": (INDIGO, "#a9a9f7"),
    "periwinkle": (PERIWINKLE, "#8d9af2"),
    "green": (GREEN, "#4fd0a5"),
    "amber": (AMBER, "#f2c14e"),
    "red": (RED, "#ff8f5e"),
    "purple": (PURPLE, "#dd9add"),
}
_NAMES = {light: name for name, (light, _) in _FORMS.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")


def css_variables() -> str:
    """The colours as CSS variables, in both schemes."""
    light, dark = (" ".join(f"--{name}: {forms[scheme]};" for name, forms in _FORMS.items()) for scheme in range(2))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def variable(colour: str) -> str:
    """The CSS variable for a colour of the palette.

    Raises:
        KeyError: the colour is not in the palette, so it has no dark form.
    """
    return f"var(--{_NAMES[colour]})"


def themed(style: str) -> str:
    """A style in which every colour is replaced by its variable; see `variable`."""
    return _COLOUR.sub(lambda found: variable(found[0]), style)


WIDE, NARROW = 880, 330
"""Widths in CSS pixels: of a page's column, and of a telephone's screen."""

_PIXELS_PER_INCH = 96
_PNG_SCALE = 1.5
_TEXT = 13
_SMALL = 11
_LETTER = 0.62
"""The width of a letter divided by its height, in the widest font that a page may use."""

_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_LEGEND_ROW, _HANDLE = 19, 52
_NAME_ROW, _AXIS = 17, 60
_MOST_LETTERS = 44
_TITLE_ROW, _FOOTER_ROW, _MARGIN = 26, 15, 8

_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": _TEXT * 0.75,
    "axes.titlesize": _TEXT * 0.75,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": _TEXT * 0.75,
    "xtick.labelsize": _TEXT * 0.75,
    "ytick.labelsize": _TEXT * 0.75,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": _TEXT * 0.75,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    # Names come from configurations and data, so a dollar sign must not start mathematical notation.
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "hushstream",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), GROUND),
    "grid.color": GRID,
    # Colours where a drawing sets none: of arrows, of edges, and of lines in turn.
    "patch.edgecolor": INK,
    "axes.prop_cycle": cycler(color=(BLUE, RED, GREEN, PURPLE, AMBER)),
}


class Sheet:
    """The surface of a picture; each new panel makes it longer."""

    def __init__(self, width: int) -> None:
        """Make an empty sheet, ``width`` CSS pixels wide."""
        self.width = width
        self.figure = Figure(figsize=(width / _PIXELS_PER_INCH, 1.0))
        self._height = 0
        self._panel_width = width
        self._panel_height = 0
        self._legend: dict[str, Any] = {}

    def panels(
        self,
        count: int = 1,
        *,
        height: int = 250,
        columns: int = 3,
        least: int = 250,
        sharey: bool = False,
    ) -> list[Axes]:
        """Add ``count`` panels of this height, at most ``columns`` in a row, each at least ``least`` pixels wide."""
        across = max(1, min(count, columns, self.width // least))
        rows = -(-count // across)
        grid = self.figure.subplots(rows, across, squeeze=False, sharey=sharey).ravel()
        for axes in grid[count:]:
            axes.remove()
        self._panel_width, self._panel_height = self.width // across, height
        self._height += rows * height
        return list(grid[:count])

    def named_rows(self, *panels: Sequence[str]) -> list[Axes]:
        """Add a panel for each list of names, with one row per name from the top, as high as the names need."""
        made = self.panels(len(panels), height=0, columns=2, least=NARROW)
        wrapped = [[self.name(name) for name in names] for names in panels]
        lines = max((name.count("\n") + 1 for names in wrapped for name in names), default=1)
        self._panel_height = max(map(len, wrapped)) * (lines * _NAME_ROW + _MARGIN) + _AXIS
        across = self.width // self._panel_width
        self._height += -(-len(panels) // across) * self._panel_height
        for axes, names in zip(made, wrapped, strict=True):
            axes.set_yticks(range(len(names)), names)
            axes.set_ylim(len(names) - 0.4, -0.6)
            axes.grid(axis="y", visible=False)
        return made

    def label_left(self, panels: Sequence[Axes], text: str) -> None:
        """Label the vertical axis of the first panel in each row."""
        for axes in panels:
            place = axes.get_subplotspec()
            if place is None or place.is_first_col():
                axes.set_ylabel(text)

    def legend(self, *panels: Axes) -> None:
        """Put one legend above all panels, with every line of these panels once."""
        for axes in panels:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                self._legend.setdefault(label, handle)

    def name(self, text: str) -> str:
        """Break a name at the left edge of a panel into lines, so that most of the width is left for the panel."""
        return textwrap.fill(text, max(12, int(0.36 * self._panel_width / (_TEXT * _LETTER))))

    def finish(self, title: str = "", footer: Sequence[str] = ()) -> None:
        """Add title, legend and footer around the panels."""
        labels, columns = self._legend_plan()
        rows = -(-len(labels) // columns) + sum(label.count("\n") for label in labels) if labels else 0
        above = (_TITLE_ROW if title else 0) + rows * _LEGEND_ROW + (_MARGIN if rows else 0)
        below = len(footer) * _FOOTER_ROW + (_MARGIN if footer else 0)
        height = self._height + above + below
        self.figure.set_size_inches(self.width / _PIXELS_PER_INCH, height / _PIXELS_PER_INCH)
        self.figure.set_layout_engine(ConstrainedLayoutEngine(rect=(0.0, below / height, 1.0, self._height / height)))
        self._wrap_labels()
        if title:
            self.figure.text(
                0.004, 1 - 4 / height, title, fontsize=_TEXT * 0.85, fontweight="bold", va="top", in_layout=False
            )
        if labels:
            self._place_legend(labels, columns, 1 - (_TITLE_ROW if title else 0) / height)
        if footer:
            text = "\n".join(footer)
            self.figure.text(
                0.004, 4 / height, text, fontsize=_SMALL * 0.75, color=FAINT, va="bottom", linespacing=1.25,
                in_layout=False,
            )  # fmt: skip

    def _legend_plan(self) -> tuple[list[str], int]:
        """The names of the legend, broken where one is wider than the sheet, and how many fit side by side."""
        letters = min(_MOST_LETTERS, int((self.width - _HANDLE) / (_TEXT * _LETTER)))
        labels = [textwrap.fill(label, letters) for label in self._legend]
        longest = max((len(line) for label in labels for line in label.split("\n")), default=0)
        columns = int(self.width / (_HANDLE + longest * _TEXT * _LETTER))
        return labels, max(1, min(columns, len(labels)))

    def _place_legend(self, labels: Sequence[str], columns: int, top: float) -> None:
        placed = self.figure.legend(
            list(self._legend.values()),
            labels,
            loc="upper left",
            bbox_to_anchor=(0.0, top),
            borderpad=0.2,
            borderaxespad=0.0,
            labelspacing=0.35,
            # Long enough to see dashes beside the marker.
            handlelength=3.2,
            columnspacing=1.2,
            ncols=columns,
        )
        # Its place is reserved already, so the layout of the panels must not make room for it again.
        placed.set_in_layout(False)

    def _wrap_labels(self) -> None:
        letters = int(self._panel_width / (_TEXT * _LETTER))
        for axes in self.figure.axes:
            axes.set_title(textwrap.fill(axes.get_title(loc="left"), int(0.8 * letters)), loc="left")
            axes.set_xlabel(textwrap.fill(axes.get_xlabel(), int(0.85 * letters)))
            axes.set_ylabel(textwrap.fill(axes.get_ylabel(), int(0.8 * self._panel_height / (_TEXT * _LETTER))))


@dataclass(frozen=True, slots=True)
class Drawing:
    """One picture.

    Attributes:
        name: name of its file without the extension; letters, digits and hyphens.
        title: what it shows.
        caption: how to read it.
        alternative: the text alternative, with the figures.
        draw: draws it.
    """

    name: str
    title: str
    caption: str
    alternative: str
    draw: Callable[[Sheet], None]


def png(drawing: Drawing, provenance: Sequence[str]) -> bytes:
    """A drawing as the bytes of a PNG file, with one line per fact of its provenance below."""
    letters = int(WIDE / (_SMALL * 0.56))
    lines = [line for fact in provenance for line in textwrap.wrap(fact, letters, subsequent_indent="   ")]
    with matplotlib.rc_context():
        figure = _drawn(drawing, WIDE, drawing.title, lines)
        FigureCanvasAgg(figure)
        target = io.BytesIO()
        # Without this the file would name the version of matplotlib.
        figure.savefig(target, format="png", dpi=_PIXELS_PER_INCH * _PNG_SCALE, metadata={"Software": None})
    return target.getvalue()


def svg(drawing: Drawing) -> Markup:
    """A drawing as HTML elements in both widths; the style sheet of the page shows one of them."""
    return Markup("\n").join(_element(drawing, width, form) for width, form in ((WIDE, "wide"), (NARROW, "narrow")))


def _drawn(drawing: Drawing, width: int, title: str = "", footer: Sequence[str] = ()) -> Figure:
    # A matplotlibrc of the user must not change a picture.
    matplotlib.rcdefaults()
    matplotlib.rcParams.update(_STYLE)
    sheet = Sheet(width)
    drawing.draw(sheet)
    sheet.finish(title, footer)
    return sheet.figure


def _element(drawing: Drawing, width: int, form: str) -> Markup:
    with matplotlib.rc_context():
        figure = _drawn(drawing, width)
        FigureCanvasAgg(figure)
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        height = round(figure.get_figheight() * _PIXELS_PER_INCH)
    root = ElementTree.fromstring(target.getvalue())
    own = {
        "class": form,
        "role": "img",
        "aria-label": f"{drawing.title}. {drawing.alternative}",
        "viewBox": f"0 0 {width * 0.75:g} {height * 0.75:g}",
        "width": str(width),
        "height": str(height),
    }
    element = ElementTree.Element("svg", own)
    shown = [one for one in root if _local(one.tag) != "metadata"]
    element.extend([_inlined(one, f"{drawing.name}-{form}-") for one in shown])
    return Markup(ElementTree.tostring(element, encoding="unicode"))


def _inlined(source: ElementTree.Element, prefix: str) -> ElementTree.Element:
    """Make an element of an SVG file fit into a page: prefix its ids, and replace its colours by variables."""
    tag = _local(source.tag)
    given = {_local(name): value for name, value in source.attrib.items() if tag != "g" or name != "id"}
    for name, value in given.items():
        if name == "id":
            given[name] = prefix + value
        elif name == "href":
            given[name] = f"#{prefix}{value[1:]}"
        elif name == "style":
            given[name] = themed(value.replace("font-family: 'DejaVu Sans'; ", ""))
        elif name == "clip-path":
            given[name] = value.replace("url(#", f"url(#{prefix}")
        else:
            # Rounded to hundredths of a point, which no screen can show more finely.
            given[name] = _NUMBER.sub(lambda found: f"{float(found[0]):.2f}", " ".join(value.split()))
    element = ElementTree.Element(tag, given)
    element.text = source.text if tag == "text" else None
    # Dropped, as a style element would apply to the whole page; page.css holds these rules for pictures.
    element.extend([_inlined(one, prefix) for one in source if _local(one.tag) != "style"])
    return element


def _local(name: str) -> str:
    """A name without its namespace, as a page has it."""
    return name.rpartition("}")[2]
