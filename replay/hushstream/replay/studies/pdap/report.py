"""The report of a P-DAP run: what each vendor earned, what it would have earned alone, what is promised, and verify.

Exact click rates are figures on content: they exist for public data only (PRIVACY.md, rule 11), which a world is, and
under a mark for a log of one's own users.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import matplotlib
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from hushstream.replay.logged.log import INTERNAL_MARK
from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult, ReportNotWritten
from hushstream.replay.report.promised import promised
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.views import Headline, View

RESULTS, VENDORS, PICTURE, PAGE = "results.json", "vendors.csv", "vendors.png", "index.html"
_INK, _ALONE, _OURS = "#1c2430", "#6b7684", "#0b62b0"


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
    internal: bool = False

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in contexts, or a count without a class.
        """
        contexts = [row.contexts for row in self.curve]
        if not contexts or any(later <= earlier for earlier, later in pairwise(contexts)):
            raise BadResult(f"curve: expected rows that rise in contexts, got {len(contexts)} that do not")
        for name in self.counts:
            if name not in COUNT_CLASSES:
                raise BadResult(f"counts: expected names with a privacy class, got {name!r}")

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

    @property
    def verify_text(self) -> str:
        """What verify found, in a line."""
        if self.verify is None:
            return "not asked for"
        found = self.verify.values()
        equal, ties, changed = (sum(getattr(one, name) for one in found) for name in ("equal", "ties", "changed"))
        return f"{equal} records equal, {ties} float ties, {changed} changed"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "system": "pdap",
            "title": self.title,
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
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("guarantee", result.privacy.summary),
        ("gain", f"{result.gain:+.1f} points over vendors that keep apart with exact clicks"),
        ("speed", f"{result.throughput['decisions_per_second']:,.0f} decisions/s"),
        ("configuration", result.config_digest),
        ("verify", result.verify_text),
    ):
        facts.add_row(name, Text(value))
    marks = [Panel(Text(mark, style="bold"), border_style="yellow") for mark in result.marks]
    return Group(Text(result.privacy.sentence), *marks, table, facts)


def pdap_view(result: PdapResult) -> View:
    """The click rate of vendors that share over that of vendors that keep apart, and a row for each vendor."""
    last = result.curve[-1]
    ratio = last.shared / last.alone if last.alone else None
    return View(
        title=result.title,
        headline=None if ratio is None else Headline("click rate, shared over apart with exact clicks", ratio),
        facts=(result.privacy.summary, f"verify: {result.verify_text}"),
        marks=result.marks,
        rows=[{**asdict(row), "gain": row.gain} for row in result.vendors],
        pictures={"vendors": lambda: draw(result)},
    )


def write_pdap_report(result: PdapResult, directory: Path | str) -> Sequence[Path]:
    """Write ``results.json``, ``vendors.csv``, ``vendors.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    picture = draw(result)
    content = {
        RESULTS: (json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n").encode(),
        VENDORS: _csv(result),
        PICTURE: picture,
        PAGE: _page(result, picture).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            (folder / name).write_bytes(data)
    except OSError as error:
        raise ReportNotWritten(f"report: expected a folder to write to, got {folder} ({error.strerror})") from error
    return [folder / name for name in content]


def draw(result: PdapResult) -> bytes:
    """Click rates on the way, shared and apart, as PNG bytes, the same for the same result."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False})
        figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        contexts = [row.contexts for row in result.curve]
        axes.plot(contexts, [100 * row.alone for row in result.curve], "--", color=_ALONE, label="apart, exact clicks")
        axes.plot(contexts, [100 * row.shared for row in result.curve], color=_OURS, linewidth=2, label="shared")
        axes.set_title(result.title, loc="left", fontsize=11, fontweight="bold", color=_INK)
        axes.set_xlabel("contexts, all vendors")
        axes.set_ylabel("click rate of all answers so far, %")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", linewidth=0.8, color="#dfe4ea")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.supxlabel("; ".join((result.privacy.summary, *result.marks)), fontsize=6.5, wrap=True)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()


def _csv(result: PdapResult) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow([*(column.name for column in fields(VendorRow)), "gain"])
    writer.writerows((*astuple(row), row.gain) for row in result.vendors)
    return target.getvalue().encode()


def _page(result: PdapResult, picture: bytes) -> str:
    package = files("hushstream.replay.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(package.joinpath("vendors.html.j2").read_text(encoding="utf-8"))
    css = Markup(package.joinpath("page.css").read_text(encoding="utf-8"))
    image = "data:image/png;base64," + base64.b64encode(picture).decode()
    head = promised(result.privacy.sentence, result.privacy.odds)
    return template.render(css=css, promised=head, result=result, image=image, classes=COUNT_CLASSES)
