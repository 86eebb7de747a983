"""The report of a replayed run, in one form for every system: document, table, view, page and folder.

A system says what came of its runs (`Replayed`) and which parts are shown of it (`Shown`); everything that is written
or printed is made of these parts here. What is shown are exact figures on content: they exist for public data only
(PRIVACY.md, rule 11), or under a mark.
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
    """What came of a run of any system.

    Attributes:
        dataset: the world, with its variant.
        runner: "direct" or "stream".
        seed: of world, noise and keys.
        deployment: its name.
        config_digest: 32 hexadecimal digits.
        privacy: the guarantee.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, answers a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
        comparison: the figure of the run over that of what it is held against, with its interval; None where these
            cannot be compared.
        payoff: against whoever does without the system.
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
        """What was run, in a line."""

    @property
    @abstractmethod
    def reached(self) -> str:
        """What was reached, in words that a price may follow."""

    @property
    def answers(self) -> tuple[str, ...]:
        """What was reached privately, and whether it pays: the first lines of whatever shows this result."""
        first = reached(self.reached, self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    @property
    def marks(self) -> tuple[str, ...]:
        """What every output of the run says of itself."""
        return self.privacy.marks


ResultT = TypeVar("ResultT", bound=Replayed)


@dataclass(frozen=True, slots=True)
class Columns:
    """Figures by column: for the terminal, or for a file.

    Attributes:
        names: of the columns; the first names the rows.
        rows: as many values each.
        file: the file's name; "" where there is none.
    """

    names: Sequence[str]
    rows: Sequence[Sequence[Any]]
    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown(Generic[ResultT]):
    """The parts that are shown of a run.

    Attributes:
        result: all that came of it.
        system: its name.
        settings: of the run, in its document.
        figures: what was found, in its document.
        compared: what stands on the terminal.
        facts: lines below that, by name: between the guarantee and the configuration.
        headline: the one figure that it is about; None where there is none.
        rows: of a data frame.
        view_facts: lines of the view between the guarantee and what was verified.
        drawing: its picture.
        picture_marks: warnings below the picture in its file.
        curve: the figures of a file.
        figure: the one figure of the page; "" where there is none.
        outcome: what that figure says, in sentences.
        first_tiles, further_tiles: figures before and after the guarantee.
        sections: of the page, before those that every page has.
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
    """The forms of a report, as a `Study` has them, of results that ``present`` shows."""

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
    """What stands on the terminal at the end of a run."""
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
    """What is shown in a few lines, as a data frame and as a picture."""
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


# Parts that several systems show.


def ratio(what: str, found: Comparison | None) -> Headline | None:
    """The headline of a comparison; None where there is none."""
    return None if found is None else Headline(what, found.ratio, found.low, found.high)


def speed(result: Replayed, what: str) -> tuple[str, str]:
    """How many answers a second, as a line of the table."""
    return "speed", f"{result.throughput['decisions_per_second']:,.0f} {what}/s"


def figures_table(caption: str, columns: tuple[str, ...], rows: Iterable[Iterable[str]]) -> frame.Table:
    """A table of a page, from texts."""
    return frame.Table(caption, columns, tuple(tuple(map(frame.Cell, row)) for row in rows))


def picture_section(title: str, drawing: Drawing, *more: frame.Block) -> frame.Section:
    """The section of a page that holds the picture."""
    return frame.Section("plots", title, (frame.Pictures((drawing,)), *more))


def beginning_and_end(rows: Sequence[Any]) -> tuple[Any, Any, Any] | None:
    """Of a curve the rows at the end of its first tenth, before its last tenth, and its last; None of a short one."""
    if len(rows) < _TENTHS:
        return None
    return rows[len(rows) // 10], rows[-1 - len(rows) // 10], rows[-1]


def require_rising(what: str, counted: str, places: Sequence[int]) -> None:
    """Refuse a curve that no run gives.

    Raises:
        BadResult: it has no rows, or does not rise.
    """
    if not places or any(later <= earlier for earlier, later in pairwise(places)):
        raise BadResult(f"{what}: expected a curve that rises in {counted}, got {len(places)} rows that do not")
