"""The frame of every page: its subject, then figures, pictures, and their sources.

A page is one file that loads nothing from elsewhere. It fits light and dark colour schemes, and wide and narrow
screens. Equal pages have equal bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import ClassVar

import jinja2
from markupsafe import Markup

from hushstream.privacy.promises.sentence import percent
from hushstream.replay.report.sheet import Drawing, css_variables, svg

_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"

MOST_COLUMNS = 2
"""A table with more columns becomes a list of cards on a narrow screen."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the headline with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a table, with a note in small letters below it."""

    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table whose first column names its rows; all further columns are figures."""

    kind: ClassVar[str] = "table"

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def cards(self) -> bool:
        """Whether it has too many columns for a narrow screen."""
        return len(self.columns) > MOST_COLUMNS


@dataclass(frozen=True, slots=True)
class Words:
    """Sentences, one paragraph each."""

    kind: ClassVar[str] = "words"

    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Facts:
    """Names, with a fact about each."""

    kind: ClassVar[str] = "facts"

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list under a heading of its own."""

    kind: ClassVar[str] = "bullets"

    title: str
    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pictures:
    """Drawings, one below the other."""

    kind: ClassVar[str] = "pictures"

    drawings: tuple[Drawing, ...]

    @property
    def shown(self) -> list[tuple[Drawing, Markup]]:
        """Each drawing with its HTML elements."""
        return [(drawing, svg(drawing)) for drawing in self.drawings]


@dataclass(frozen=True, slots=True)
class Odds:
    """Bars for what an observer may come to believe about a person, as label and share: `Guarantee.odds`."""

    kind: ClassVar[str] = "odds"

    shares: tuple[tuple[str, float], ...]

    @property
    def bars(self) -> list[tuple[str, str, str]]:
        """Each bar as label, width and text."""
        return [(label, f"{100 * share:.1f}%", percent(share)) for label, share in self.shares]


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted lines, such as code, under a heading of their own."""

    kind: ClassVar[str] = "code"

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Folded:
    """Parts that a reader opens: what few readers need."""

    kind: ClassVar[str] = "folded"

    title: str
    blocks: tuple[Table | Bullets, ...]


Block = Table | Words | Facts | Bullets | Pictures | Odds | Code | Folded


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page; the navigation links to its ``anchor``."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that a page shows.

    Attributes:
        kind: the kind of page, shown above the title.
        title: what it is about.
        answers: the first sentences: the private result, and whether it pays.
        findings: what the answers rest on, as a list.
        sentence: the guarantee for one person, after the first answer; empty where a page shows several guarantees.
        marks: warnings at the top of the page, each with its meaning or "".
        figure: the main figure; empty where there is none.
        outcome: the meaning of that figure, in sentences.
        tiles: further figures.
        sections: everything else.
        provenance: where the figures come from, shown at the end.
        files: names of the files beside the page.
    """

    kind: str
    title: str
    answers: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    sentence: str = ""
    marks: tuple[tuple[str, str], ...] = ()
    figure: str = ""
    outcome: tuple[str, ...] = ()
    tiles: tuple[Tile, ...] = ()
    sections: tuple[Section, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    files: tuple[str, ...] = ()

    @property
    def navigation(self) -> Sequence[tuple[str, str]]:
        """Anchors and names of all parts."""
        parts = [(one.anchor, one.title) for one in self.sections]
        return [*([("outcome", "Outcome")] if self.has_outcome else []), *parts, ("source", "Where this comes from")]

    @property
    def has_outcome(self) -> bool:
        """Whether anything is shown before the sections."""
        return bool(self.figure or self.outcome or self.tiles)


def html(page: Page) -> str:
    """The page as text."""
    body = _template("page.html.j2").render(page=page)
    return framed(page_title(page.title, page.kind), body, _NOTHING_ELSE)


def page_title(title: str, kind: str) -> str:
    """The title of the window of a page."""
    return f"{title} – {kind}"


def framed(title: str, body: str, policy: str, own_style: str = "") -> str:
    """Put a body into the frame that every page has.

    Args:
        title: title of the browser's window.
        body: HTML elements that we wrote, or that are escaped.
        policy: what the page may load and run (Content-Security-Policy).
        own_style: CSS rules for elements that only this kind of page has.
    """
    css = _style_sheet() + Markup(own_style)
    return _template("frame.html.j2").render(title=title, body=Markup(body), policy=Markup(policy), css=css)


@cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.from_string(_text(name))


@cache
def _style_sheet() -> Markup:
    # The style sheet is our own file and no data. Escaping would break its quotes.
    return Markup(css_variables() + _text("page.css"))


def _text(name: str) -> str:
    return files("hushstream.replay.report").joinpath(name).read_text(encoding="utf-8")
