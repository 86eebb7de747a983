"""The result of a replayed run, and its report, in one form for every system.

A system's run returns a `RunResult`: rows that compare it with doing without the system, one curve, and the guarantee.
This module makes every file and all printed text from it: nothing here asks which system it was. The figures are exact
figures on content: these exist for public data only (CONTRIBUTING.md, rule 11), or carry a warning.

*Folder.* Writes the files of a report into their folder.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hushstream.privacy.amounts import epsilon_text
from hushstream.privacy.promises.page import page_json
from hushstream.privacy.promises.promise import Guarantee
from hushstream.privacy.promises.sentence import noun
from hushstream.replay.report import frame
from hushstream.replay.report.parts import (
    EXACT,
    RoleCheck,
    counts_json,
    counts_section,
    guarantee_section,
    number,
    require_classed,
    slot_public,
    speed_section,
    verify_json,
    verify_section,
    verify_text,
    verify_tile,
    with_meanings,
)
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.sheet import BLACK, BLUE, GREY, RED, Drawing, Sheet, png
from hushstream.replay.result import BadResult, Headline, ReportNotWritten, View

RESULTS, PAGE = "results.json", "index.html"
RELEASED = "released figures and public counts, none of them exact"
"""The label of a run that shows no figure of content."""


MOST_OPEN_ROWS = 8
"""A longer table is folded where a picture shows the same: on a phone each row of it is a card."""

_HEADINGS = {"ci95": "± (95 %)", "ci95_low": "95 % from", "ci95_high": "95 % to"}


class Column(NamedTuple):
    """A column of figures.

    Attributes:
        name: its key in files; with blanks in place of underscores its heading.
        form: how readers see its values, as `format` takes it.
    """

    name: str
    form: str = ""

    @property
    def heading(self) -> str:
        """The name for readers."""
        return _HEADINGS.get(self.name) or self.name.replace("_", " ")

    def text(self, value: Any) -> str:
        """A value for readers; a percent sign has a blank before it, and there may be no value."""
        if value is None:
            return "–"
        return format(value, self.form).replace("%", " %") if self.form else str(value)


@dataclass(frozen=True, slots=True)
class RunRows:
    """What a run is compared with, row by row; the first column names the rows.

    Attributes:
        caption: what the figures are, in sentences.
        columns: what each row has.
        rows: a value for each column.
    """

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...] = ()

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        """The row of this name, by column."""
        return next(row for row in self.plain if row[self.columns[0].name] == name)

    @property
    def plain(self) -> list[dict[str, Any]]:
        """Every row by column."""
        return [{column.name: value for column, value in zip(self.columns, row, strict=True)} for row in self.rows]

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """Every row as readers see it."""
        return [tuple(column.text(value) for column, value in zip(self.columns, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCurve:
    """The one curve of a run.

    Attributes:
        name: the name of its files.
        title: what it shows.
        caption: how to read it, in sentences.
        what: the vertical axis.
        across: the horizontal axis, as what is counted along it.
        at: (n,) the places along it, rising.
        lines: (n,) values by the name of the line: the run's own first, then what it is compared with.
        half_widths: (n,) half-widths of the 95 % intervals, of the lines that have them.
        form: whether a value is the mean of all up to its place, their sum, or that of its place alone.
    """

    name: str
    title: str
    caption: str
    what: str
    across: str
    at: tuple[int, ...] = ()
    lines: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    half_widths: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    form: Literal["mean", "sum", "alone"] = "mean"

    def __post_init__(self) -> None:
        """Refuse a curve that no run gives.

        Raises:
            BadResult: its places do not rise, or a line has not a value for each.
        """
        if any(later <= earlier for earlier, later in pairwise(self.at)):
            raise BadResult(f"{self.name}: expected a curve that rises in {self.across}, got places that do not")
        if any(len(values) != len(self.at) for values in (*self.lines.values(), *self.half_widths.values())):
            raise BadResult(f"{self.name}: expected {len(self.at)} values of each line, got other numbers")

    @property
    def points(self) -> list[dict[str, Any]]:
        """Every point of every line, with its half-width where the line has them."""
        return [
            {"line": name, "at": at, "value": value}
            | ({"ci95": self.half_widths[name][place]} if name in self.half_widths else {})
            for name, values in self.lines.items()
            for place, (at, value) in enumerate(zip(self.at, values, strict=True))
        ]

    def mean(self, line: str, after: int, to: int) -> float:
        """The mean of a line over what lies after one point, by its index, and up to another; -1: from the start."""
        values, at = self.lines[line], (*self.at, 0)
        if self.form == "alone":
            return sum(values[after + 1 : to + 1]) / (to - after)
        before = values[after] if after >= 0 else 0.0
        if self.form == "sum":
            return (values[to] - before) / (at[to] - at[after])
        return (at[to] * values[to] - at[after] * before) / (at[to] - at[after])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of a run of any system.

    Attributes:
        system: the system's name.
        title: what was run, in one line.
        dataset: name of the world, with its variant.
        runner: "direct" or "stream".
        seed: seed of world, noise and keys; None where keys are random.
        deployment: name of the deployment.
        config_digest: 32 hexadecimal digits.
        privacy: the guarantee.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, answers a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
        facts: settings and single figures by name, in words.
        reached: the result in words, without its guarantee; empty where the run shows none.
        headline: the main figure with its interval; None where there is none.
        payoff: the comparison with doing without the system.
        verdict: the conclusion of a result that has no such comparison: a sentence, then what it rests on.
        rows: what is compared.
        curve: the result over the run; without points where it has no course.
        picture: the picture of the rows, where there is no curve.
        sections: further parts of the page, at its end.
        ending: the last lines on a terminal.
        details: further plain values, before all others of the same name.
        remarks: further sentences for readers.
        warnings: warnings beside those of the guarantee.
        unprotected: why the figures of a row or line are not private, by its name.
        public: whether the data is public; a live run (False) shows no exact figure on content.
    """

    system: str
    title: str
    dataset: str
    runner: str
    seed: int | None
    deployment: str
    config_digest: str
    privacy: Guarantee
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    reached: str = ""
    headline: Headline | None = None
    payoff: Payoff | None = None
    verdict: tuple[str, ...] = ()
    rows: RunRows
    curve: RunCurve = RunCurve(name="curve", title="", caption="", what="", across="")
    picture: Drawing | None = None
    sections: tuple[frame.Section, ...] = ()
    ending: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    unprotected: Mapping[str, str] = field(default_factory=dict)
    public: bool = True

    def __post_init__(self) -> None:
        """Refuse a count without a class, and exact figures on content in a live run.

        Raises:
            BadResult: names the field, what it accepts and what it got.
        """
        require_classed(self.counts)
        if self.public:
            return
        shown = "the dataset must be marked public to show it"
        exact = {"rows": self.rows.rows, "curve": self.curve.at, "headline": self.headline, "payoff": self.payoff}
        found = [name for name, value in exact.items() if value]
        if found:
            raise BadResult(f"{', '.join(found)}: expected no exact figure on content in a live run; {shown}")
        private = sorted(set(self.counts) - set(slot_public(self.counts)))
        if private:
            raise BadResult(f"counts: expected slot-public counts in a live run, got {', '.join(private)}; {shown}")

    @property
    def answers(self) -> tuple[str, ...]:
        """The first lines of every report: the private result, what is beside it, and whether it pays."""
        result, _, beside = self.reached.partition("; ")
        first = (reached(result, self.privacy),) if result else ()
        more = (f"{beside[:1].upper()}{beside[1:]}.",) if beside else ()
        paid = () if self.payoff is None else (self.payoff.sentence,)
        return (*first, *more, *paid, *self.verdict[:1])

    @property
    def marks(self) -> tuple[str, ...]:
        """The warnings that every output of the run carries."""
        return (*self.warnings, *self.privacy.marks)

    @property
    def label(self) -> str:
        """What the figures of the run are; those that are not private by their names, with the reason."""
        if not self.public:
            return RELEASED
        names = self.curve.lines or {row[0] for row in self.rows.rows}
        return "; ".join([EXACT, *(f"{name}: {why}" for name, why in self.unprotected.items() if name in names)])

    def label_of(self, name: str) -> str:
        """What the figures of a row or line are, for a reader who has that one alone."""
        why = (self.unprotected[name],) if name in self.unprotected else ()
        return "; ".join([*self.marks, *why, EXACT])


def document(result: RunResult) -> dict[str, Any]:
    """Plain values under stable keys."""
    settings = ("system", "title", "dataset", "public", "runner", "seed", "deployment", "config_digest", "remarks")
    return {
        **{name: getattr(result, name) for name in (*settings, "throughput", "environment")},
        "answers": list(result.answers),
        "findings": list(result.verdict[1:]),
        "payoff": None if result.payoff is None else result.payoff.as_json(),
        "headline": None if result.headline is None else result.headline.as_json(),
        "privacy": page_json(result.privacy),
        "marks": list(result.marks),
        "facts": {name.replace(" ", "_"): value for name, value in result.facts.items()},
        "figures": result.label,
        "rows": result.rows.plain,
        "curve": result.curve.points,
        **counts_json(result.counts),
        "verify": verify_json(result.verify),
        **result.details,
    }


_RUNNERS = {"direct": "all parts in one process", "stream": "broker and workers as processes of their own"}


def provenance(result: RunResult) -> tuple[tuple[str, str], ...]:
    """The facts that say where figures come from, for the end of a page and the foot of every picture file."""
    guarantee = "; ".join((result.privacy.summary, *result.privacy.marks))
    made_with = ", ".join(f"{name} {value}" for name, value in result.environment.items())
    return (
        ("Figures", result.label),
        ("Seed", _seed(result)),
        ("Guarantee", guarantee),
        ("Deployment", f"{result.deployment} ({result.privacy.deployment})"),
        ("Configuration digest", result.config_digest),
        ("Run", f"{_RUNNERS.get(result.runner, result.runner)}; {made_with}"),
    )


def _seed(result: RunResult) -> str:
    if result.seed is None:
        return "none"
    return str(result.seed) if result.privacy.reproducible else f"{result.seed} of users and choices; keys are random"


def provenance_lines(result: RunResult) -> list[str]:
    """`provenance` as lines below a picture."""
    return [f"{name}: {value}." for name, value in provenance(result)]


def table(result: RunResult) -> RenderableType:
    """What a terminal shows at the end of a run."""
    title = Text(result.title)
    found = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for place, column in enumerate(result.rows.columns):
        found.add_column(column.heading, justify="right" if place else "left")
    for row in result.rows.texts:
        found.add_row(*map(Text, row))
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, text in (
        *(one for one in provenance(result) if one[0] != "Guarantee"),
        *_facts(result),
        ("speed", f"{result.throughput['decisions_per_second']:,.0f} decisions/s"),
        ("verify", verify_text(result.verify)),
    ):
        facts.add_row(name.lower(), Text(text))
    return Group(
        *(Text(line, style="" if place else "bold") for place, line in enumerate(result.answers)),
        *(Text(f"* {line}") for line in result.verdict[1:]),
        Text(result.privacy.sentence()),
        *(Panel(Text(mark, style="bold"), border_style="yellow") for mark in result.marks),
        found if result.rows.rows else title,
        *map(Text, result.remarks),
        facts,
        *((Text(result.ending),) if result.ending else ()),
    )


def view(result: RunResult) -> View:
    """A few lines, data frames and a picture."""
    curve = [{**point, "figures": result.label_of(point["line"])} for point in result.curve.points]
    rows = [{**row, "figures": result.label_of(row[result.rows.columns[0].name])} for row in result.rows.plain]
    return View(
        title=result.title,
        answers=result.answers,
        headline=result.headline,
        facts=(result.privacy.summary, f"verify: {verify_text(result.verify)}"),
        marks=result.marks,
        frames={"rows": rows, "curve": curve},
        pictures={drawing(result).name: partial(_picture, result)} if _drawn(result) else {},
    )


def write(result: RunResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, rows and curve as CSV, the picture and ``index.html`` into a folder.

    A run without rows or a curve has neither its file nor the picture; those of an earlier run are removed.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    curve, picture = f"{result.curve.name}.csv", f"{drawing(result).name}.png"
    shown = view(result)
    content = {RESULTS: json_bytes(document(result))}
    files = {"rows.csv": shown.frames["rows"], curve: shown.frames["curve"]}
    content |= {file: csv_bytes(rows) for file, rows in files.items() if rows}
    content |= {f"{name}.png": draw() for name, draw in shown.pictures.items()}
    content[PAGE] = page(result, tuple(content)).encode()
    return write_files(directory, content, ("rows.csv", curve, picture))


def page(result: RunResult, names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    headline, caption = result.headline, f"{result.rows.caption} These are {EXACT}."
    said = result.reached.partition("; ")[0]
    compared = frame.Table(
        caption,
        tuple(column.heading.capitalize() for column in result.rows.columns),
        tuple(tuple(map(frame.Cell, row)) for row in result.rows.texts),
    )
    many = len(result.rows.rows)
    folded = _drawn(result) and many > MOST_OPEN_ROWS
    sections = (
        frame.Section("compared", "Compared", (frame.Folded(f"All {many} rows", (compared,)) if folded else compared,)),
        frame.Section("plots", "Picture", (frame.Pictures((drawing(result),)),)),
        frame.Section("facts", "What was run", (frame.Facts(tuple((n.capitalize(), t) for n, t in _facts(result))),)),
    )
    closing = (
        guarantee_section(result.privacy),
        verify_section(result.verify),
        counts_section(result.counts),
        speed_section(result.throughput),
    )
    shown = (result.rows.rows, _drawn(result), result.facts)
    parts = (one for one, there in zip(sections, shown, strict=True) if there)
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=(f"{said}.", *result.answers[1:]) if said else result.answers,
            findings=result.verdict[1:],
            sentence=result.privacy.sentence(),
            marks=with_meanings(result.marks),
            figure="" if headline is None else headline.figure,
            outcome=(*(() if headline is None else (headline.beside_figure,)), *result.remarks),
            tiles=(*_beginning_and_end(result.curve), *verify_tile(result.verify)),
            sections=(*parts, *closing, *result.sections),
            provenance=provenance(result),
            files=names,
        )
    )


def _facts(result: RunResult) -> list[tuple[str, str]]:
    return [(name, value if isinstance(value, str) else number(value)) for name, value in result.facts.items()]


def _beginning_and_end(curve: RunCurve) -> list[frame.Tile]:
    """Tiles with the run's own line and the line it is compared with, first and last, which a mean would hide.

    First and last are a tenth of the points each, or one point of a short curve.
    """
    if len(curve.at) < 2 or len(curve.lines) < 2:
        return []
    own, other = list(curve.lines)[:2]
    first, before, last = len(curve.at) // 10, len(curve.at) - 1 - max(1, len(curve.at) // 10), len(curve.at) - 1
    since = curve.at[last] - curve.at[before]
    names = [f"First {curve.at[first]:,} {curve.across}", f"Last {since:,}"]
    if curve.at[first] == since == 1:
        names = [f"First of {curve.at[last]:,} {curve.across}", f"Last of {curve.at[last]:,}"]
    means = [[curve.mean(line, *ends) for line in (own, other)] for ends in ((-1, first), (before, last))]
    note = f"{own} against {other}"
    return [
        frame.Tile(name, f"{ours:#.3g} against {others:#.3g}", note)
        for name, (ours, others) in zip(names, means, strict=True)
    ]


_PENS = ((BLUE, "-", "o"), (GREY, "--", "s"), (RED, "-.", "^"), (BLACK, ":", "D"))
_MOST_MARKERS = 30


def _drawn(result: RunResult) -> bool:
    return bool(result.curve.at or result.picture)


def drawing(result: RunResult) -> Drawing:
    """The picture of the curve, whose own line names the run's guarantee; or that of the rows."""
    if result.picture is not None:
        return result.picture
    curve = result.curve
    ends = "; ".join(f"at {curve.at[index]:,}: {_values(curve, index)}" for index in ((0, -1) if curve.at else ()))
    return Drawing(
        curve.name,
        curve.title,
        f"{curve.caption} These are {EXACT}.",
        f"{curve.what} over {curve.across}, {ends}.",
        partial(_draw, curve, _legend(result.privacy)),
    )


def _values(curve: RunCurve, index: int) -> str:
    halves = {name: f" ± {found[index]:.3f}" for name, found in curve.half_widths.items()}
    return ", ".join(f"{name} {values[index]:.3f}{halves.get(name, '')}" for name, values in curve.lines.items())


def _legend(privacy: Guarantee) -> str:
    """The guarantee in a legend's few words; the page's head and a picture's foot give all of it."""
    if privacy.marks or privacy.in_all.weak:
        return privacy.marks[0].lower() if privacy.marks else f"{privacy.in_all.weak} guaranteed for one person"
    level, prices = (noun(privacy.unit), privacy.unit_prices) if privacy.person.assumed else ("user", privacy.in_all)
    return f"{level}-level epsilon {epsilon_text(prices.which.epsilon_micro)} (replace-one)"


def _draw(curve: RunCurve, guarantee: str, sheet: Sheet) -> None:
    (axes,) = sheet.panels(height=340)
    for place, ((name, values), (colour, dashes, marker)) in enumerate(zip(curve.lines.items(), _PENS, strict=False)):
        label = name if place else f"{name}: {guarantee}"
        marker = marker if len(curve.at) <= _MOST_MARKERS else ""
        axes.plot(curve.at, values, dashes, color=colour, marker=marker, label=label, linewidth=2)
        if name in curve.half_widths:
            low, high = (
                [value + sign * half for value, half in zip(values, curve.half_widths[name], strict=True)]
                for sign in (-1, 1)
            )
            axes.fill_between(curve.at, low, high, color=colour, alpha=0.18, linewidth=0)
    axes.set(xlabel=curve.across[:1].upper() + curve.across[1:], ylabel=curve.what)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    sheet.legend(axes)


def _picture(result: RunResult) -> bytes:
    return png(drawing(result), [*provenance_lines(result), *result.warnings])


# Folder.


def write_files(directory: Path | str, content: Mapping[str, bytes], owned: Sequence[str] = ()) -> list[Path]:
    """Write files into a folder, and remove those of an earlier report that ``owned`` names and ``content`` lacks.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in set(owned) - set(content):
            (folder / name).unlink(missing_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ReportNotWritten(f"report: expected a folder to write to, got {folder} ({error.strerror})") from error
    return [folder / name for name in content]


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A document as the bytes of a JSON file.

    Raises:
        ValueError: a number is not finite.
    """
    return (json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def csv_bytes(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Rows as the bytes of a CSV file, with every column that any of them has."""
    found = list(rows)
    target = io.StringIO()
    names = list(dict.fromkeys(name for row in found for name in row))
    writer = csv.DictWriter(target, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return target.getvalue().encode()
