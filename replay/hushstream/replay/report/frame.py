"""The frame of every page: its subject, then figures, pictures, and their sources.

A page is one file that asks for nothing from elsewhere. It suits light and dark, wide and narrow screens, and equal
pages have equal bytes.
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
from hushstream.replay.report.palette import css_variables
from hushstream.replay.report.sheet import Drawing, svg

_NOTHING_ELSE = "default-src 'none'; style-src 'unsafe-inline'"

MOST_COLUMNS = 2
"""A table of more becomes a list of cards on a narrow screen."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One figure of the headline with its name and a note."""

    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A figure of a table, and what stands small below it."""

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
    """Names with what is to be said of each."""

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
        """Each with its elements."""
        return [(drawing, svg(drawing)) for drawing in self.drawings]


@dataclass(frozen=True, slots=True)
class Odds:
    """What somebody may come to believe of a person, as label and share: `Guarantee.odds`."""

    kind: ClassVar[str] = "odds"

    shares: tuple[tuple[str, float], ...]

    @property
    def bars(self) -> list[tuple[str, str, str]]:
        """Each as label, width and text."""
        return [(label, f"{100 * share:.1f}%", percent(share)) for label, share in self.shares]


@dataclass(frozen=True, slots=True)
class Code:
    """Lines for a machine, or set as one prints them, under a heading of their own."""

    kind: ClassVar[str] = "code"

    title: str
    text: str


Block = Table | Words | Facts | Bullets | Pictures | Odds | Code


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page, which its navigation leads to by ``anchor``."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that a page shows.

    Attributes:
        kind: of page, above its title.
        title: what it is about.
        answers: what was reached privately, and whether that pays: said first.
        sentence: what is promised to one person; empty where a page is about several promises.
        marks: warnings that stand before everything else, each with its meaning or "".
        figure: the one figure that it is about; empty where there is none.
        outcome: what that figure says, in sentences.
        tiles: further figures.
        sections: everything else.
        provenance: where the figures come from, once, at the end.
        files: names of the files beside the page.
    """

    kind: str
    title: str
    answers: tuple[str, ...] = ()
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
        """Whether there is anything to say before the sections."""
        return bool(self.figure or self.outcome or self.tiles)


def html(page: Page) -> str:
    """The page as text."""
    body = _template("page.html.j2").render(page=page)
    return framed(page_title(page.title, page.kind), body, _NOTHING_ELSE)


def page_title(title: str, kind: str) -> str:
    """The title of the window of a page."""
    return f"{title} – {kind}"


def framed(title: str, body: str, policy: str, own_style: str = "") -> str:
    """A body in the frame of every page.

    Args:
        title: of the window.
        body: elements, ours or escaped.
        policy: what the page may load and run (Content-Security-Policy).
        own_style: rules for elements that this kind of page alone has.
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
    # The style sheet is ours, not data; escaped, its quotes would no longer be quotes.
    return Markup(css_variables() + _text("page.css"))


def _text(name: str) -> str:
    return files("hushstream.replay.report").joinpath(name).read_text(encoding="utf-8")
