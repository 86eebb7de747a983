"""The object that `hushstream.api` returns: it shows a few lines, and holds everything that was found."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rich.console import Console, RenderableType

from hushstream.schemas.errors import HushstreamError


class BadResult(HushstreamError):
    """A result holds a value that is impossible, has no class, or must not be shown."""


class ReportNotWritten(HushstreamError):
    """The folder of a report cannot be written."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The main figure of a result.

    Attributes:
        what: the figure is, in words.
        value: the figure: a ratio, a gain or the like.
        low, high: its 95 % interval; None where the spread cannot be estimated, as after a single run.
        ratio: whether it is a ratio, which a page shows in percent.
    """

    what: str
    value: float
    low: float | None = None
    high: float | None = None
    ratio: bool = True

    @property
    def figure(self) -> str:
        """The figure alone, as a page shows it."""
        return f"{100 * self.value:.0f} %" if self.ratio else f"{self.value:+.3f}"

    @property
    def beside_figure(self) -> str:
        """What the figure is, and its interval in the same form."""
        what = f"{self.what[:1].upper()}{self.what[1:]}"
        if self.low is None or self.high is None:
            return f"{what}; one run, so no interval."
        low, high = (replace(self, value=end).figure for end in (self.low, self.high))
        return f"{what}; 95 % interval {low} to {high}."

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return f"{self.what}: {self.value:.3g} (one run: no interval)"
        return f"{self.what}: {self.value:.3g} (95 % interval {self.low:.3g} to {self.high:.3g})"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {"what": self.what, "value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What is shown of a result in a few lines, as a data frame and as a picture.

    Attributes:
        title: what was run.
        answers: the first lines: the private result, and whether it pays, or the verdict.
        headline: the main figure; None where there is none.
        facts: further lines: the guarantee, and what was verified.
        marks: warnings that stand wherever it is shown.
        frames: the data frames by name, as rows of texts, numbers, booleans and None; the first is the main one.
        pictures: PNG bytes by name, drawn when asked for; the first is the main one.
    """

    title: str
    answers: tuple[str, ...] = ()
    headline: Headline | None = None
    facts: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    frames: Mapping[str, Sequence[Mapping[str, Any]]]
    pictures: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)


T = TypeVar("T")

_HTML_COLUMNS = 110


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that a notebook displays."""

    name: str
    png: bytes

    def __repr__(self) -> str:
        return f"Picture({self.name!r}, {len(self.png):,} bytes of PNG)"

    def _repr_png_(self) -> bytes:
        return self.png

    def save(self, path: str | Path) -> Path:
        """Write the picture to a PNG file.

        Raises:
            OSError: the file cannot be written.
        """
        Path(path).write_bytes(self.png)
        return Path(path)


@dataclass(frozen=True, slots=True, repr=False, eq=False, kw_only=True)
class Result(Generic[T]):
    """The result of a run, an evaluation or an experiment.

    Attributes:
        details: everything that was found, in the types of its study.
        view: what is shown of it.
        shown: makes its table from ``details``.
        document: makes plain values from ``details``.
        written: writes its files into a folder.
    """

    details: T
    view: View
    shown: Callable[[], RenderableType]
    document: Callable[[], Any]
    written: Callable[[Path], Sequence[Path]]

    @property
    def headline(self) -> Headline | None:
        """The main figure with its interval; None where the result has no single main figure."""
        return self.view.headline

    def table(self) -> RenderableType:
        """The table that the command line prints; a notebook displays it."""
        return self.shown()

    def as_json(self) -> Any:
        """Everything as plain values."""
        return self.document()

    def to_pandas(self, name: str | None = None) -> Any:
        """Return rows as a pandas data frame, by default the main ones; a run has its ``curve``, too.

        Raises:
            HushstreamError: pandas is not installed, or the result has no rows of this name.
        """
        return self._frame("pandas", name)

    def to_polars(self, name: str | None = None) -> Any:
        """Return rows as a polars data frame; see `to_pandas`.

        Raises:
            HushstreamError: polars is not installed, or the result has no rows of this name.
        """
        return self._frame("polars", name)

    def plot(self, name: str | None = None) -> Picture:
        """Draw a picture, by default the main one.

        Raises:
            HushstreamError: the result has no picture of this name, or no picture at all; the message lists the
                pictures that it has.
        """
        chosen = _chosen("plot", self.view.pictures, name)
        return Picture(chosen, self.view.pictures[chosen]())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files that the command line writes, into a folder that is made where it is absent.

        Raises:
            HushstreamError: the folder cannot be written.
        """
        return list(self.written(Path(folder)))

    def __repr__(self) -> str:
        view = self.view
        headline = () if view.headline is None else (str(view.headline),)
        return "\n".join((view.title, *view.answers, *headline, *view.facts, *view.marks))

    def _repr_html_(self) -> str:
        first, *others = repr(self).splitlines()
        lines = "".join(f"<br>{escape(line)}" for line in others)
        console = Console(record=True, width=_HTML_COLUMNS, file=io.StringIO(), force_jupyter=False)
        console.print(self.table())
        table = f"<pre style='line-height:1.2'>{escape(console.export_text())}</pre>"
        return f"<div><strong>{escape(first)}</strong>{lines}<details><summary>table</summary>{table}</details></div>"

    def _frame(self, library: Literal["pandas", "polars"], name: str | None) -> Any:
        import narwhals as frames

        if find_spec(library) is None:
            raise HushstreamError(f"to_{library}: expected {library} to be installed: pip install hushstream[frames]")
        rows = self.view.frames[_chosen(f"to_{library}", self.view.frames, name)]
        return frames.from_dict(_columns(rows), backend=library).to_native()


def _chosen(call: str, known: Mapping[str, object], name: str | None) -> str:
    """The name that was asked for, or the first one."""
    chosen = next(iter(known), None) if name is None else name
    if chosen is None or chosen not in known:
        raise HushstreamError(f"{call}: expected one of {', '.join(known) or 'none: it has no rows'}, got {name!r}")
    return chosen


def _columns(rows: Sequence[Any]) -> dict[str, list[Any]]:
    """The rows by column; a missing value is None, and a column of texts and numbers holds texts."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    found = {name: [row.get(name) for row in rows] for name in names}
    return {name: _of_one_type(values) for name, values in found.items()}


def _of_one_type(values: list[Any]) -> list[Any]:
    texts = [isinstance(value, str) for value in values if value is not None]
    if not any(texts) or all(texts):
        return values
    return [None if value is None else str(value) for value in values]
