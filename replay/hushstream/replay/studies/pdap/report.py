"""The report of a P-DAP run: rewards of each vendor, shared and alone, the guarantee, and the result of verify.

Exact click rates are figures on content. They exist for public data (PRIVACY.md, rule 11), such as a world, and carry a
warning for an internal log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from functools import partial

from matplotlib.ticker import MaxNLocator

from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.palette import BLUE, GREY
from hushstream.replay.report.parts import interval_text, ratio_text
from hushstream.replay.report.replayed import (
    Columns,
    Replayed,
    Shown,
    figures_table,
    picture_section,
    ratio,
    require_rising,
    speed,
)
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.wording import EXACT


@dataclass(frozen=True, slots=True)
class VendorRow:
    """What one vendor gains by sharing.

    Attributes:
        vendor: name of the vendor.
        visits: number of contexts of its users.
        shared: mean click probability of the items that they were shown.
        alone: the same for a vendor that uses only its own items and its own exact clicks.
        sent: visits of its users that got another vendor's item.
        received: visits of other vendors' users that got one of its items.
    """

    vendor: str
    visits: int
    shared: float
    alone: float
    sent: int
    received: int

    @property
    def gain(self) -> float:
        """The gain by sharing in the click rate of its users, in points."""
        return 100 * (self.shared - self.alone)


@dataclass(frozen=True, slots=True)
class CurveRow:
    """Mean click probability of the first ``contexts`` answers of all vendors: shared, and apart."""

    contexts: int
    shared: float
    alone: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PdapResult(Replayed):
    """The outcome of a run, besides `Replayed`; ``comparison`` compares click rates, over visits.

    Attributes:
        placement: where the counters are.
        vendors: one row for each vendor.
        curve: the points of the curve, rising in contexts.
        internal: whether the log is marked as internal.
    """

    placement: str
    vendors: tuple[VendorRow, ...]
    curve: tuple[CurveRow, ...]
    internal: bool = False

    def __post_init__(self) -> None:
        """Refuse values that no run gives.

        Raises:
            BadResult: no curve or one that does not rise in contexts, or a count without a class.
        """
        require_rising("curve", "contexts", [row.contexts for row in self.curve])
        require_classed(self.counts)

    @property
    def reached(self) -> str:
        """The result in one line."""
        return f"{100 * self.curve[-1].shared:.1f} % of visits are clicked"

    @property
    def title(self) -> str:
        """One line that says what was run."""
        counters = "one counter" if self.placement == "serving" else "a counter of each home"
        return f"P-DAP on {self.dataset}: {counters}"

    @property
    def marks(self) -> tuple[str, ...]:
        """The warnings that every output of the run carries."""
        return (*((INTERNAL_MARK,) if self.internal else ()), *self.privacy.marks)

    @property
    def gain(self) -> float:
        """The gain by sharing in the click rate over all visits, in points."""
        return 100 * (self.curve[-1].shared - self.curve[-1].alone)


def present(result: PdapResult) -> Shown[PdapResult]:
    """Show the click rate of sharing vendors over that of separate vendors, and a row for each vendor."""
    drawing, rows = vendors_drawing(result), [{**asdict(row), "gain": row.gain} for row in result.vendors]
    earned = [_earned(row) for row in result.vendors]
    return Shown(
        result=result,
        system="pdap",
        settings={"placement": result.placement},
        figures={"vendors": rows, "curve": [asdict(row) for row in result.curve], "gain": result.gain},
        compared=Columns(("vendor", "visits", "click rate", "alone", "gain", "sent", "received"), earned),
        facts=(
            ("gain", f"{result.gain:+.1f} points over vendors that keep apart with exact clicks"),
            speed(result, "decisions"),
        ),
        headline=ratio("click rate, shared over apart with exact clicks", result.comparison),
        rows=rows,
        drawing=drawing,
        picture_marks=result.marks,
        curve=Columns(
            [*(column.name for column in fields(VendorRow)), "gain", "marks"],
            [(*astuple(row), row.gain, "; ".join(result.marks)) for row in result.vendors],
            "vendors.csv",
        ),
        figure=ratio_text(result.comparison),
        outcome=_outcome(result),
        first_tiles=_first_tile(result.curve),
        sections=(
            frame.Section(
                "vendors",
                "Click rate of each vendor",
                (
                    figures_table(
                        "Sent: visits of its users that got another vendor's item. Received: visits of others that "
                        f"got its own. These are {EXACT}.",
                        ("Vendor", "Visits", "Click rate", "Alone", "Gain, points", "Sent", "Received"),
                        earned,
                    ),
                ),
            ),
            picture_section("Click rate", drawing),
        ),
    )


def _earned(row: VendorRow) -> tuple[str, ...]:
    rates = (f"{100 * row.shared:.1f} %", f"{100 * row.alone:.1f} %", f"{row.gain:+.1f}")
    return row.vendor, f"{row.visits:,}", *rates, f"{row.sent:,}", f"{row.received:,}"


def vendors_drawing(result: PdapResult) -> Drawing:
    """Draw click rates over the run, shared and apart."""
    last = result.curve[-1]
    return Drawing(
        "vendors",
        "Click rate over the run",
        "Click rate of all answers so far: of vendors that share, and of the same vendors if each used only "
        f"its own items, users and exact clicks. These are {EXACT}.",
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


def _outcome(result: PdapResult) -> tuple[str, ...]:
    against = "vendors that use only their own items, users and exact clicks"
    said = f"Over all visits sharing changed the click rate by {result.gain:+.1f} points, compared with {against}."
    found = result.comparison
    return (said,) if found is None else (said, f"That is {found.ratio:.2f} times theirs ({interval_text(found)}).")


def _first_tile(curve: Sequence[CurveRow]) -> list[frame.Tile]:
    """A tile with the gain in the first visits and in the last ones, which the mean over all visits hides."""
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
