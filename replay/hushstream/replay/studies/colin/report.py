"""The report of a collaborative run: regret against a random policy, what is promised, and what verify found.

Exact regret is a figure on content: it exists for public data only (PRIVACY.md, rule 11), which is what a world is.
"""

from __future__ import annotations

from collections.abc import Mapping
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

from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.document import counts_json, verify_json
from hushstream.replay.report.errors import BadResult
from hushstream.replay.report.folder import PAGE, RESULTS, figures_csv, json_bytes, write_files
from hushstream.replay.report.palette import BLUE, GREY
from hushstream.replay.report.parts import closing, guarantee_tile, verify_tile, with_meanings
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.printed import answers, facts_grid, warnings
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.sheet import Drawing, Sheet, png
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import EXACT, provenance, provenance_lines, verify_text
from hushstream.replay.views import Headline, View

REGRET, PICTURE = "regret.csv", "regret.png"
_TENTHS = 10


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
        comparison: regret over that of a random policy, with its interval over users; None where chance has no regret.
        payoff: against users who keep apart, each with a learner of their own.
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
    comparison: Comparison | None = None
    payoff: Payoff | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """What was reached privately, and whether it pays: the first lines of whatever shows this result."""
        what = f"{100 * self.share_of_random:.0f} % of the regret of a policy that picks at random"
        first = reached(what, self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no curve or one that does not rise in events, or a count without a class.
        """
        events = [row.events for row in self.rows]
        if not events or any(later <= earlier for earlier, later in pairwise(events)):
            raise BadResult(f"rows: expected a curve that rises in events, got {len(events)} rows that do not")
        require_classed(self.counts)

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

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return {
            "system": "colin",
            "title": self.title,
            "answers": list(self.answers),
            "payoff": None if self.payoff is None else self.payoff.as_json(),
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
            "comparison": None if self.comparison is None else self.comparison.as_json(),
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
    facts = facts_grid(
        (
            ("guarantee", result.privacy.summary),
            ("mean reward", f"{result.mean_reward:.4f}"),
            ("speed", f"{result.throughput['decisions_per_second']:,.0f} decisions/s"),
            ("configuration", result.config_digest),
            ("verify", verify_text(result.verify)),
        )
    )
    return Group(*answers(result.answers), Text(result.privacy.sentence), *warnings(result.privacy.marks), table, facts)


def collaborative_view(result: CollaborativeResult) -> View:
    """Regret as a share of a random policy's, and the regret curve."""
    what, found = "regret over that of a random policy", result.comparison
    return View(
        title=result.title,
        answers=result.answers,
        headline=Headline(what, result.share_of_random)
        if found is None
        else Headline(what, found.ratio, found.low, found.high),
        facts=(result.privacy.summary, f"verify: {verify_text(result.verify)}"),
        marks=result.privacy.marks,
        rows=[asdict(row) for row in result.rows],
        pictures={"regret": partial(png, regret_drawing(result), provenance_lines(result))},
    )


def write_collaborative_report(result: CollaborativeResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, ``regret.csv``, ``regret.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    content = {
        RESULTS: json_bytes(result.as_json()),
        REGRET: figures_csv(
            (column.name for column in fields(RegretRow)), map(astuple, result.rows), [EXACT] * len(result.rows)
        ),
        PICTURE: png(regret_drawing(result), provenance_lines(result)),
    }
    return write_files(directory, content | {PAGE: collaborative_page(result, tuple(content)).encode()})


def regret_drawing(result: CollaborativeResult) -> Drawing:
    """The regret curve beside that of chance."""
    last = result.rows[-1]
    return Drawing(
        "regret",
        "Cumulative regret",
        "What was missed so far against the best item each time, by all users together; below the random policy is "
        "better than chance, and a line that bends down has learned. "
        f"These are {EXACT}.",
        f"Cumulative regret over interactions: {last.regret:.1f} at the end, against {last.random_regret:.1f} of a "
        f"random policy.",
        partial(_draw_regret, result),
    )


def _draw_regret(result: CollaborativeResult, sheet: Sheet) -> None:
    (axes,) = sheet.panels(height=340)
    events = [row.events for row in result.rows]
    axes.plot(events, [row.random_regret for row in result.rows], "--", color=GREY, label="random policy")
    axes.plot(events, [row.regret for row in result.rows], color=BLUE, linewidth=2, label=result.algorithm)
    axes.set(xlabel="Interactions, all users", ylabel="Cumulative regret")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    sheet.legend(axes)


def collaborative_page(result: CollaborativeResult, names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.privacy.marks),
            figure=f"{100 * result.share_of_random:.0f} %",
            outcome=_outcome(result),
            tiles=(
                *_first_tile(result.rows),
                guarantee_tile(result.privacy),
                frame.Tile("Mean reward", f"{result.mean_reward:.4f}", f"{result.users:,} users"),
                *verify_tile(result.verify),
            ),
            sections=(
                frame.Section("plots", "Regret", (frame.Pictures((regret_drawing(result),)),)),
                *closing(result),
            ),
            provenance=provenance(result),
            files=names,
        )
    )


def _outcome(result: CollaborativeResult) -> tuple[str, ...]:
    last, found = result.rows[-1], result.comparison
    share = "of the regret of a policy that picks an item at random"
    first = f"{100 * result.share_of_random:.0f} % {share}."
    if found is not None:
        first = f"{100 * found.ratio:.0f} % {share} (95 % interval over users {_percents(found)})."
    return (
        first,
        f"After {last.events:,} interactions the cumulative regret is {last.regret:.1f}; chance has "
        f"{last.random_regret:.1f}.",
    )


def _percents(found: Comparison) -> str:
    return f"{100 * found.low:.0f} % to {100 * found.high:.0f} %"


def _first_tile(rows: tuple[RegretRow, ...]) -> list[frame.Tile]:
    """The beginning, which a mean over all interactions hides: from the first tenth to the last."""
    if len(rows) < _TENTHS:
        return []
    first, before, last = rows[len(rows) // 10], rows[-1 - len(rows) // 10], rows[-1]
    begins = _share(first.regret, first.random_regret)
    ends = _share(last.regret - before.regret, last.random_regret - before.random_regret)
    since = last.events - before.events
    note = f"of chance's regret in the first {first.events:,} interactions, and in the last {since:,}"
    return [frame.Tile("From beginning to end", f"{begins} to {ends}", note)]


def _share(regret: float, random: float) -> str:
    return f"{100 * regret / random:.0f} %" if random else "–"
