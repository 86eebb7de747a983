"""The report of a collaborative run: regret against a random policy, what is promised, and what verify found.

Exact regret is a figure on content: it exists for public data only (PRIVACY.md, rule 11), which is what a world is.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Mapping
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

from hushstream.replay.report.counts import COUNT_CLASSES
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult, ReportNotWritten
from hushstream.replay.report.promised import promised
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.views import Headline, View

RESULTS, REGRET, PICTURE, PAGE = "results.json", "regret.csv", "regret.png", "index.html"
_INK, _RANDOM, _OURS = "#1c2430", "#6b7684", "#0b62b0"


@dataclass(frozen=True, slots=True)
class RegretRow:
    """Cumulative regret after ``events`` interactions of all users together, and a random policy's on average."""

    events: int
    regret: float
    random_regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollaborativeResult:
    """What came of a run.

    Attributes:
        dataset: the world, with its variant.
        runner: "direct" or "stream".
        seed: of world, noise and keys.
        deployment: its name.
        config_digest: 32 hexadecimal digits.
        algorithm: linucb, colin or goblin.
        mechanism: how releases are noised.
        noise_at: who adds the noise.
        users: how many there are.
        privacy: the guarantee.
        rows: the regret curve, rising in events.
        mean_reward: over all interactions.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, decisions a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
    """

    dataset: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    algorithm: str
    mechanism: str
    noise_at: str
    users: int
    privacy: StatedGuarantee
    rows: tuple[RegretRow, ...]
    mean_reward: float
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in events, or a count without a class.
        """
        events = [row.events for row in self.rows]
        if not events or any(later <= earlier for earlier, later in pairwise(events)):
            raise BadResult(f"rows: expected a curve that rises in events, got {len(events)} rows that do not")
        for name in self.counts:
            if name not in COUNT_CLASSES:
                raise BadResult(f"counts: expected names with a privacy class, got {name!r}")

    @property
    def events(self) -> int:
        """Interactions in all."""
        return self.rows[-1].events

    @property
    def share_of_random(self) -> float:
        """Cumulative regret as a share of a random policy's; below 1 is better than chance, which has 1."""
        last = self.rows[-1]
        # Where every arm is as good as another, chance has no regret either.
        return last.regret / last.random_regret if last.random_regret else 1.0

    @property
    def title(self) -> str:
        """What was run, in a line."""
        return f"{self.algorithm} on {self.dataset}: {self.mechanism}, noise at the {self.noise_at}"

    @property
    def verify_text(self) -> str:
        """What verify found, in a line."""
        if self.verify is None:
            return "not asked for"
        changed = sum(check.changed for check in self.verify.values())
        equal = sum(check.equal for check in self.verify.values())
        ties = sum(check.ties for check in self.verify.values())
        return f"{equal} records equal, {ties} float ties, {changed} changed"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "system": "colin",
            "title": self.title,
            "dataset": self.dataset,
            "runner": self.runner,
            "seed": self.seed,
            "deployment": self.deployment,
            "config_digest": self.config_digest,
            "algorithm": self.algorithm,
            "mechanism": self.mechanism,
            "noise_at": self.noise_at,
            "users": self.users,
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "marks": list(self.privacy.marks),
            "regret": [dict(zip(("events", "regret", "random_regret"), astuple(r), strict=True)) for r in self.rows],
            "share_of_random": self.share_of_random,
            "mean_reward": self.mean_reward,
            **counts_json(self.counts),
            "throughput": dict(self.throughput),
            "verify": verify_json(self.verify),
            "environment": dict(self.environment),
        }


def collaborative_table(result: CollaborativeResult) -> RenderableType:
    """What stands on the terminal at the end of a run."""
    table = Table(title=Text(result.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    table.add_column("policy")
    table.add_column("events", justify="right")
    table.add_column("cumulative regret", justify="right")
    table.add_column("of random", justify="right")
    last = result.rows[-1]
    table.add_row("random", f"{last.events:,}", f"{last.random_regret:.1f}", "100 %")
    table.add_row(result.algorithm, f"{last.events:,}", f"{last.regret:.1f}", f"{100 * result.share_of_random:.0f} %")
    facts = Table.grid(padding=(0, 1))
    facts.add_column(style="dim", no_wrap=True)
    facts.add_column(overflow="fold")
    for name, value in (
        ("guarantee", result.privacy.summary),
        ("mean reward", f"{result.mean_reward:.4f}"),
        ("speed", f"{result.throughput['decisions_per_second']:,.0f} decisions/s"),
        ("configuration", result.config_digest),
        ("verify", result.verify_text),
    ):
        facts.add_row(name, Text(value))
    marks = [Panel(Text(mark, style="bold"), border_style="yellow") for mark in result.privacy.marks]
    return Group(Text(result.privacy.sentence), *marks, table, facts)


def collaborative_view(result: CollaborativeResult) -> View:
    """Regret as a share of a random policy's, and the regret curve."""
    return View(
        title=result.title,
        headline=Headline("regret over that of a random policy", result.share_of_random),
        facts=(result.privacy.summary, f"verify: {result.verify_text}"),
        marks=result.privacy.marks,
        rows=[asdict(row) for row in result.rows],
        pictures={"regret": lambda: draw_regret(result)},
    )


def write_collaborative_report(result: CollaborativeResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, ``regret.csv``, ``regret.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    folder = Path(directory)
    picture = draw_regret(result)
    content = {
        RESULTS: (json.dumps(result.as_json(), indent=2, ensure_ascii=False) + "\n").encode(),
        REGRET: _csv(result),
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


def draw_regret(result: CollaborativeResult) -> bytes:
    """The regret curve as PNG bytes, the same for the same result."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update({"font.family": "DejaVu Sans", "font.size": 10, "text.parse_math": False})
        figure = Figure(figsize=(6.4, 4.2), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        events = [row.events for row in result.rows]
        axes.plot(events, [row.random_regret for row in result.rows], "--", color=_RANDOM, label="random policy")
        axes.plot(events, [row.regret for row in result.rows], color=_OURS, linewidth=2, label=result.algorithm)
        axes.set_title(result.title, loc="left", fontsize=11, fontweight="bold", color=_INK)
        axes.set_xlabel("interactions, all users")
        axes.set_ylabel("cumulative regret")
        axes.set_ylim(bottom=0)
        axes.grid(axis="y", linewidth=0.8, color="#dfe4ea")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.supxlabel("; ".join((result.privacy.summary, *result.privacy.marks)), fontsize=6.5, wrap=True)
        target = io.BytesIO()
        figure.savefig(target, format="png", metadata={"Software": None})
        return target.getvalue()


def _csv(result: CollaborativeResult) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\n")
    writer.writerow(column.name for column in fields(RegretRow))
    writer.writerows(astuple(row) for row in result.rows)
    return target.getvalue().encode()


def _page(result: CollaborativeResult, picture: bytes) -> str:
    package = files("hushstream.replay.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(package.joinpath("collaborative.html.j2").read_text(encoding="utf-8"))
    css = Markup(package.joinpath("page.css").read_text(encoding="utf-8"))
    image = "data:image/png;base64," + base64.b64encode(picture).decode()
    head = promised(result.privacy.sentence, result.privacy.odds)
    return template.render(
        css=css, promised=head, result=result, last=result.rows[-1], image=image, classes=COUNT_CLASSES
    )
