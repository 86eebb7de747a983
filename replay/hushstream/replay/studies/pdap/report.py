"""The report of a P-DAP run: what each vendor earned, what it would have earned alone, what is promised, and verify.

Exact click rates are figures on content: they exist for public data only (PRIVACY.md, rule 11), which a world is, and
under a mark for a log of one's own users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult
from hushstream.replay.report.folder import PAGE, RESULTS, figures_csv, json_bytes, write_files
from hushstream.replay.report.palette import BLUE, GREY
from hushstream.replay.report.parts import (
    closing,
    guarantee_tile,
    interval_text,
    ratio_text,
    verify_tile,
    with_meanings,
)
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.printed import answers, facts_grid, warnings
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.sheet import Drawing, Sheet, png
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import EXACT, provenance, provenance_lines, verify_text
from hushstream.replay.views import Headline, View

VENDORS, PICTURE = "vendors.csv", "vendors.png"


@dataclass(frozen=True, slots=True)
class VendorRow:
    """What sharing did for one vendor.

    Attributes:
        vendor: its name.
        visits: contexts of its users.
        shared: mean click probability of what they were shown.
        alone: the same, had it kept to its own items and its own exact clicks.
        sent: visits that got another vendor's item.
        received: visits of others' users that got one of its items.
    """

    vendor: str
    visits: int
    shared: float
    alone: float
    sent: int
    received: int

    @property
    def gain(self) -> float:
        """Points of the click rate that its users have by sharing."""
        return 100 * (self.shared - self.alone)


@dataclass(frozen=True, slots=True)
class CurveRow:
    """Mean click probability of the first ``contexts`` answers of all vendors, shared and apart."""

    contexts: int
    shared: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PdapResult:
    """What came of a run.

    Attributes:
        dataset: the world, with its variant.
        runner: "direct" or "stream".
        seed: of world, noise and keys.
        deployment: its name.
        config_digest: 32 hexadecimal digits.
        placement: of the counters.
        privacy: the guarantee.
        vendors: one row each.
        curve: rising in contexts.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, decisions a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
        internal: whether it was played on a log of somebody's own users.
        comparison: click rate over that of vendors apart, with its interval over visits; None where theirs is 0.
        payoff: against vendors that keep apart.
    """

    dataset: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    placement: str
    privacy: StatedGuarantee
    vendors: tuple[VendorRow, ...]
    curve: tuple[CurveRow, ...]
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]
    comparison: Comparison | None = None
    payoff: Payoff | None = None
    internal: bool = False

    @property
    def answers(self) -> tuple[str, ...]:
        """What was reached privately, and whether it pays: the first lines of whatever shows this result."""
        first = reached(f"{100 * self.curve[-1].shared:.1f} % of visits are clicked", self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in contexts, or a count without a class.
        """
        contexts = [row.contexts for row in self.curve]
        if not contexts or any(later <= earlier for earlier, later in pairwise(contexts)):
            raise BadResult(f"curve: expected rows that rise in contexts, got {len(contexts)} that do not")
        require_classed(self.counts)

    @property
    def title(self) -> str:
        """What was run, in a line."""
        counters = "one counter" if self.placement == "serving" else "a counter of each home"
        return f"P-DAP on {self.dataset}: {counters}"

    @property
    def marks(self) -> tuple[str, ...]:
        """What every output of the run says of itself."""
        return (*((INTERNAL_MARK,) if self.internal else ()), *self.privacy.marks)

    @property
    def gain(self) -> float:
        """Points of the click rate by sharing, over all visits."""
        return 100 * (self.curve[-1].shared - self.curve[-1].alone)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "system": "pdap",
            "title": self.title,
            "answers": list(self.answers),
            "payoff": None if self.payoff is None else self.payoff.as_json(),
            "dataset": self.dataset,
            "runner": self.runner,
            "seed": self.seed,
            "deployment": self.deployment,
            "config_digest": self.config_digest,
            "placement": self.placement,
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "marks": list(self.marks),
            "vendors": [{**asdict(row), "gain": row.gain} for row in self.vendors],
            "curve": [asdict(row) for row in self.curve],
            "gain": self.gain,
            "comparison": None if self.comparison is None else self.comparison.as_json(),
            **counts_json(self.counts),
            "throughput": dict(self.throughput),
            "verify": verify_json(self.verify),
            "environment": dict(self.environment),
        }


def pdap_table(result: PdapResult) -> RenderableType:
    """What stands on the terminal at the end of a run."""
    table = Table(title=Text(result.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("vendor")
    for heading in ("visits", "click rate", "alone", "gain", "sent", "received"):
        table.add_column(heading, justify="right")
    for row in result.vendors:
        rates = (f"{100 * row.shared:.1f} %", f"{100 * row.alone:.1f} %", f"{row.gain:+.1f}")
        table.add_row(row.vendor, f"{row.visits:,}", *rates, f"{row.sent:,}", f"{row.received:,}")
    facts = facts_grid(
        (
            ("guarantee", result.privacy.summary),
            ("gain", f"{result.gain:+.1f} points over vendors that keep apart with exact clicks"),
            ("speed", f"{result.throughput['decisions_per_second']:,.0f} decisions/s"),
            ("configuration", result.config_digest),
            ("verify", verify_text(result.verify)),
        )
    )
    return Group(*answers(result.answers), Text(result.privacy.sentence), *warnings(result.marks), table, facts)


def pdap_view(result: PdapResult) -> View:
    """The click rate of vendors that share over that of vendors that keep apart, and a row for each vendor."""
    found = result.comparison
    return View(
        title=result.title,
        answers=result.answers,
        headline=None
        if found is None
        else Headline("click rate, shared over apart with exact clicks", found.ratio, found.low, found.high),
        facts=(result.privacy.summary, f"verify: {verify_text(result.verify)}"),
        marks=result.marks,
        rows=[{**asdict(row), "gain": row.gain} for row in result.vendors],
        pictures={"vendors": partial(png, vendors_drawing(result), [*provenance_lines(result), *result.marks])},
    )


def write_pdap_report(result: PdapResult, directory: Path | str) -> Sequence[Path]:
    """Write ``results.json``, ``vendors.csv``, ``vendors.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    columns = [*(column.name for column in fields(VendorRow)), "gain", "marks"]
    content = {
        RESULTS: json_bytes(result.as_json()),
        VENDORS: figures_csv(
            columns,
            ((*astuple(row), row.gain, "; ".join(result.marks)) for row in result.vendors),
            [EXACT] * len(result.vendors),
        ),
        PICTURE: png(vendors_drawing(result), [*provenance_lines(result), *result.marks]),
    }
    return write_files(directory, content | {PAGE: pdap_page(result, tuple(content)).encode()})


def vendors_drawing(result: PdapResult) -> Drawing:
    """Click rates on the way, shared and apart."""
    last = result.curve[-1]
    return Drawing(
        "vendors",
        "Click rate on the way",
        "Of all answers so far: by vendors that share, and by the same vendors if each kept to its own items, users "
        "and exact clicks. "
        f"These are {EXACT}.",
        f"Click rate of all answers so far over contexts: {100 * last.shared:.1f} % at the end, against "
        f"{100 * last.alone:.1f} % of vendors apart.",
        partial(_draw_vendors, result),
    )


def _draw_vendors(result: PdapResult, sheet: Sheet) -> None:
    (axes,) = sheet.panels(height=340)
    contexts = [row.contexts for row in result.curve]
    axes.plot(contexts, [100 * row.alone for row in result.curve], "--s", color=GREY, label="apart, exact clicks")
    axes.plot(contexts, [100 * row.shared for row in result.curve], "-o", color=BLUE, linewidth=2, label="shared")
    axes.set(xlabel="Contexts, all vendors", ylabel="Click rate of all answers so far, %")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    sheet.legend(axes)


def pdap_page(result: PdapResult, names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.marks),
            figure=ratio_text(result.comparison),
            outcome=_outcome(result),
            tiles=(*_first_tile(result.curve), guarantee_tile(result.privacy), *verify_tile(result.verify)),
            sections=(
                frame.Section("vendors", "What each vendor earned", (_vendors(result.vendors),)),
                frame.Section("plots", "Click rate", (frame.Pictures((vendors_drawing(result),)),)),
                *closing(result),
            ),
            provenance=provenance(result),
            files=names,
        )
    )


def _outcome(result: PdapResult) -> tuple[str, ...]:
    against = "vendors that keep to their own items, users and exact clicks"
    said = f"Over all visits sharing made {result.gain:+.1f} points of the click rate, against {against}."
    found = result.comparison
    return (said,) if found is None else (said, f"That is {found.ratio:.2f} times theirs ({interval_text(found)}).")


def _first_tile(curve: Sequence[CurveRow]) -> list[frame.Tile]:
    """The beginning apart from the end, which the mean over all visits hides."""
    if len(curve) < 2:
        return []
    first, before, last = curve[0], curve[-2], curve[-1]
    since = last.contexts - before.contexts
    end = (last.contexts * (last.shared - last.alone) - before.contexts * (before.shared - before.alone)) / since
    return [
        frame.Tile(
            "From beginning to end",
            f"{100 * (first.shared - first.alone):+.1f} to {100 * end:+.1f} points",
            f"in the first {first.contexts:,} visits, and in the last {since:,}",
        )
    ]


def _vendors(rows: Sequence[VendorRow]) -> frame.Table:
    columns = ("Vendor", "Visits", "Click rate", "Alone", "Gain, points", "Sent", "Received")
    caption = (
        "Sent: visits of its users that got another vendor's item. Received: visits of others that got its own. "
        f"These are {EXACT}."
    )
    return frame.Table(caption, columns, tuple(_vendor(row) for row in rows))


def _vendor(row: VendorRow) -> tuple[frame.Cell, ...]:
    rates = (f"{100 * row.shared:.1f} %", f"{100 * row.alone:.1f} %", f"{row.gain:+.1f}")
    figures = (f"{row.visits:,}", *rates, f"{row.sent:,}", f"{row.received:,}")
    return (frame.Cell(row.vendor), *map(frame.Cell, figures))
