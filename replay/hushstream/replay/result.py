"""The object that `hushstream.api` returns: it shows a few lines, and holds everything that was found."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from rich.console import Console, RenderableType

from hushstream.replay.views import Headline, View
from hushstream.schemas.errors import HushstreamError

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

    @property
    def verdict(self) -> str:
        """The conclusion, in a sentence; empty where the headline says it."""
        return self.view.verdict

    def table(self) -> RenderableType:
        """The table that the command line prints; a notebook displays it."""
        return self.shown()

    def as_json(self) -> Any:
        """Everything as plain values."""
        return self.document()

    def to_pandas(self) -> Any:
        """Return the rows as a pandas data frame.

        Raises:
            HushstreamError: pandas is not installed.
        """
        return self._frame("pandas")

    def to_polars(self) -> Any:
        """Return the rows as a polars data frame.

        Raises:
            HushstreamError: polars is not installed.
        """
        return self._frame("polars")

    def plot(self, name: str | None = None) -> Picture:
        """Draw a picture, by default the main one.

        Raises:
            HushstreamError: the result has no picture of this name, or no picture at all; the message lists the
                pictures that it has.
        """
        known = self.view.pictures
        chosen = next(iter(known), None) if name is None else name
        if chosen is None or chosen not in known:
            raise HushstreamError(f"plot: expected one of {', '.join(known) or 'none: it has no rows'}, got {name!r}")
        return Picture(chosen, known[chosen]())

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files that the command line writes, into a folder that is made where it is absent.

        Raises:
            HushstreamError: the folder cannot be written.
        """
        return list(self.written(Path(folder)))

    def __repr__(self) -> str:
        view = self.view
        headline = () if view.headline is None else (str(view.headline),)
        verdict = (view.verdict,) if view.verdict else ()
        return "\n".join((view.title, *view.answers, *verdict, *headline, *view.facts, *view.marks))

    def _repr_html_(self) -> str:
        first, *others = repr(self).splitlines()
        lines = "".join(f"<br>{escape(line)}" for line in others)
        console = Console(record=True, width=_HTML_COLUMNS, file=io.StringIO(), force_jupyter=False)
        console.print(self.table())
        table = f"<pre style='line-height:1.2'>{escape(console.export_text())}</pre>"
        return f"<div><strong>{escape(first)}</strong>{lines}<details><summary>table</summary>{table}</details></div>"

    def _frame(self, library: Literal["pandas", "polars"]) -> Any:
        import narwhals as frames

        if find_spec(library) is None:
            raise HushstreamError(f"to_{library}: expected {library} to be installed: pip install hushstream[frames]")
        return frames.from_dict(_columns(self.view.rows), backend=library).to_native()


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
