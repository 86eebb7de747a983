"""The report of a replayed run, in one form for every system: document, table, view, page and folder.

A system gives the result of its run (`Replayed`) and the parts to show of it (`Shown`). This module makes all files and
printed text from these parts. They show exact figures on content: these exist for public data only (PRIVACY.md, rule
11), or carry a warning.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hushstream.replay.report import frame
from hushstream.replay.report.counts import counts_json
from hushstream.replay.report.folder import PAGE, RESULTS, figures_csv, json_bytes, write_files
from hushstream.replay.report.parts import closing, guarantee_tile, verify_tile, with_meanings
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.printed import answers, facts_grid, warnings
from hushstream.replay.report.results import RoleCheck, StatedGuarantee, verify_json
from hushstream.replay.report.sheet import Drawing, png
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.values import BadResult
from hushstream.replay.report.wording import EXACT, provenance, provenance_lines, verify_text
from hushstream.replay.views import Headline, View

_TENTHS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed(ABC):
    """The result of a run of any system.

    Attributes:
        dataset: name of the world, with its variant.
        runner: "direct" or "stream".
        seed: seed of world, noise and keys.
        deployment: name of the deployment.
        config_digest: 32 hexadecimal digits.
        privacy: the guarantee.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, answers a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
        comparison: the ratio of the run's figure to its baseline's, with its interval; None where there is no such
            ratio.
        payoff: the comparison with doing without the system.
    """

    dataset: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    privacy: StatedGuarantee
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]
    comparison: Comparison | None = None
    payoff: Payoff | None = None

    @property
    @abstractmethod
    def title(self) -> str:
        """One line that says what was run."""

    @property
    @abstractmethod
    def reached(self) -> str:
        """The result in words, without its guarantee."""

    @property
    def answers(self) -> tuple[str, ...]:
        """The first lines of every report: the private result, and whether it pays."""
        first = reached(self.reached, self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    @property
    def marks(self) -> tuple[str, ...]:
        """The warnings that every output of the run carries."""
        return self.privacy.marks


ResultT = TypeVar("ResultT", bound=Replayed)


@dataclass(frozen=True, slots=True)
class Columns:
    """A table of figures by column, for the terminal or for a file.

    Attributes:
        names: names of the columns; the first column names the rows.
        rows: rows with one value for each column.
        file: the file's name; "" where there is none.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Generic[ResultT]):
    """The parts of a run's result that are shown.

    Attributes:
        result: the whole result.
        system: name of the system.
        settings: settings of the run, for ``results.json``.
        figures: figures of the run, for ``results.json``.
        compared: the table on the terminal.
        facts: lines below that table, by name, between the guarantee and the configuration.
        headline: the main figure; None where there is none.
        rows: rows of the data frame.
        view_facts: lines of the view between the guarantee and what was verified.
        drawing: the picture.
        picture_marks: warnings below the picture in its file.
        curve: the table of the CSV file.
        figure: the main figure of the page; "" where there is none.
        outcome: the meaning of that figure, in sentences.
        first_tiles, further_tiles: figures of the page before and after the guarantee.
        sections: sections of the page before those that every page has.
    """

    result: ResultT
    system: str
    settings: Mapping[str, Any]
    figures: Mapping[str, Any]
    compared: Columns
    facts: Sequence[tuple[str, str]]
    headline: Headline | None
    rows: Sequence[Mapping[str, Any]]
    view_facts: Sequence[str] = ()
    drawing: Drawing
    picture_marks: Sequence[str] = ()
    curve: Columns
    figure: str
    outcome: tuple[str, ...]
    first_tiles: Sequence[frame.Tile] = ()
    further_tiles: Sequence[frame.Tile] = ()
    sections: Sequence[frame.Section]


def forms(present: Callable[[Any], Shown[Any]]) -> dict[str, Any]:
    """The forms of a report for the fields of a `Study`; ``present`` makes the parts of a result."""

    def of(form: Callable[..., Any]) -> Callable[..., Any]:
        return lambda result, *more: form(present(result), *more)

    return {"document": of(document), "table": of(table), "view": of(view), "report": of(write)}


def document(shown: Shown[Any]) -> dict[str, Any]:
    """Plain values under stable keys."""
    result = shown.result
    return {
        "system": shown.system,
        "title": result.title,
        "answers": list(result.answers),
        "payoff": None if result.payoff is None else result.payoff.as_json(),
        "dataset": result.dataset,
        "runner": result.runner,
        "seed": result.seed,
        "deployment": result.deployment,
        "config_digest": result.config_digest,
        **shown.settings,
        "privacy": {**result.privacy.values, "text": list(result.privacy.lines)},
        "marks": list(result.marks),
        **shown.figures,
        "comparison": None if result.comparison is None else result.comparison.as_json(),
        **counts_json(result.counts),
        "throughput": dict(result.throughput),
        "verify": verify_json(result.verify),
        "environment": dict(result.environment),
    }


def table(shown: Shown[Any]) -> RenderableType:
    """What a terminal shows at the end of a run."""
    result, compared = shown.result, shown.compared
    found = Table(title=Text(result.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for place, name in enumerate(compared.names):
        found.add_column(name, justify="right" if place else "left")
    for row in compared.rows:
        found.add_row(*row)
    facts = facts_grid(
        (
            ("guarantee", result.privacy.summary),
            *shown.facts,
            ("configuration", result.config_digest),
            ("verify", verify_text(result.verify)),
        )
    )
    return Group(*answers(result.answers), Text(result.privacy.sentence), *warnings(result.marks), found, facts)


def view(shown: Shown[Any]) -> View:
    """A few lines, a data frame and a picture."""
    result = shown.result
    return View(
        title=result.title,
        answers=result.answers,
        headline=shown.headline,
        facts=(result.privacy.summary, *shown.view_facts, f"verify: {verify_text(result.verify)}"),
        marks=result.marks,
        rows=shown.rows,
        pictures={shown.drawing.name: partial(_picture, shown)},
    )


def write(shown: Shown[Any], directory: Path | str) -> list[Path]:
    """Write ``results.json``, the curve, the picture and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    curve = shown.curve
    content = {
        RESULTS: json_bytes(document(shown)),
        curve.file: figures_csv(curve.names, curve.rows, [EXACT] * len(curve.rows)),
        f"{shown.drawing.name}.png": _picture(shown),
    }
    return write_files(directory, content | {PAGE: page(shown, tuple(content)).encode()})


def page(shown: Shown[Any], names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    result = shown.result
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.marks),
            figure=shown.figure,
            outcome=shown.outcome,
            tiles=(
                *shown.first_tiles,
                guarantee_tile(result.privacy),
                *shown.further_tiles,
                *verify_tile(result.verify),
            ),
            sections=(*shown.sections, *closing(result)),
            provenance=provenance(result),
            files=names,
        )
    )


def _picture(shown: Shown[Any]) -> bytes:
    result = shown.result
    return png(shown.drawing, [*provenance_lines(result), *shown.picture_marks])


# Parts that several systems use.


def ratio(what: str, found: Comparison | None) -> Headline | None:
    """The headline of a comparison; None without a comparison."""
    return None if found is None else Headline(what, found.ratio, found.low, found.high)


def speed(result: Replayed, what: str) -> tuple[str, str]:
    """The answers per second as a line of text."""
    return "speed", f"{result.throughput['decisions_per_second']:,.0f} {what}/s"


def figures_table(caption: str, columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> frame.Table:
    """Make a table of a page from texts."""
    return frame.Table(caption, columns, tuple(tuple(map(frame.Cell, row)) for row in rows))


def picture_section(title: str, drawing: Drawing, *more: frame.Block) -> frame.Section:
    """The section of a page that holds the picture."""
    return frame.Section("plots", title, (frame.Pictures((drawing,)), *more))


def beginning_and_end(rows: Sequence[Any]) -> tuple[Any, Any, Any] | None:
    """The rows at the end of a curve's first tenth, before its last tenth, and at its end; None for a short curve."""
    if len(rows) < _TENTHS:
        return None
    return rows[len(rows) // 10], rows[-1 - len(rows) // 10], rows[-1]


def require_rising(what: str, counted: str, places: Sequence[int]) -> None:
    """Refuse a curve that is empty or does not rise, as no run gives one.

    Raises:
        BadResult: the curve has no rows, or does not rise.
    """
    if not places or any(later <= earlier for earlier, later in pairwise(places)):
        raise BadResult(f"{what}: expected a curve that rises in {counted}, got {len(places)} rows that do not")
