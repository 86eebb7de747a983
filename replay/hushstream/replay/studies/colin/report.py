"""The report of a collaborative run: regret against a random policy, the guarantee, and the result of verify.

Exact regret is a figure on content. It exists for public data only (PRIVACY.md, rule 11), and a world is public.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass, fields
from functools import partial

from matplotlib.ticker import MaxNLocator

from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.palette import BLUE, GREY
from hushstream.replay.report.replayed import (
    Columns,
    Replayed,
    Shown,
    beginning_and_end,
    picture_section,
    ratio,
    require_rising,
    speed,
)
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import EXACT
from hushstream.replay.views import Headline


@dataclass(frozen=True, slots=True)
class RegretRow:
    """Cumulative regret after ``events`` interactions of all users, and the mean regret of a random policy."""

    events: int
    regret: float
    random_regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollaborativeResult(Replayed):
    """The outcome of a run, besides `Replayed`; ``comparison`` compares regret with a random policy's, over users.

    Attributes:
        algorithm: linucb, colin or goblin.
        mechanism: mechanism of the noise.
        noise_at: who adds the noise.
        users: how many users there are.
        rows: the regret curve, rising in events.
        mean_reward: mean reward over all interactions.
    """

    algorithm: str
    mechanism: str
    noise_at: str
    users: int
    rows: tuple[RegretRow, ...]
    mean_reward: float

    def __post_init__(self) -> None:
        """Refuse values that no run gives.

        Raises:
            BadResult: no curve or one that does not rise in events, or a count without a class.
        """
        require_rising("rows", "events", [row.events for row in self.rows])
        require_classed(self.counts)

    @property
    def events(self) -> int:
        """The number of interactions in all."""
        return self.rows[-1].events

    @property
    def share_of_random(self) -> float:
        """Cumulative regret as a share of a random policy's: 1 is chance, and below 1 is better."""
        last = self.rows[-1]
        # Where all arms are equally good, a random policy has no regret either.
        return last.regret / last.random_regret if last.random_regret else 1.0

    @property
    def reached(self) -> str:
        """The result in one line."""
        return f"{100 * self.share_of_random:.0f} % of the regret of a policy that picks at random"

    @property
    def title(self) -> str:
        """One line that says what was run."""
        return f"{self.algorithm} on {self.dataset}: {self.mechanism}, noise at the {self.noise_at}"


def present(result: CollaborativeResult) -> Shown[CollaborativeResult]:
    """Show regret as a share of a random policy's, and the regret curve."""
    drawing, last, what = regret_drawing(result), result.rows[-1], "regret over that of a random policy"
    share = f"{100 * result.share_of_random:.0f} %"
    return Shown(
        result=result,
        system="colin",
        settings={name: getattr(result, name) for name in ("algorithm", "mechanism", "noise_at", "users")},
        figures={
            "regret": [asdict(row) for row in result.rows],
            "share_of_random": result.share_of_random,
            "mean_reward": result.mean_reward,
        },
        compared=Columns(
            ("policy", "events", "cumulative regret", "of random"),
            (
                ("random", f"{last.events:,}", f"{last.random_regret:.1f}", "100 %"),
                (result.algorithm, f"{last.events:,}", f"{last.regret:.1f}", share),
            ),
        ),
        facts=(("mean reward", f"{result.mean_reward:.4f}"), speed(result, "decisions")),
        headline=ratio(what, result.comparison) or Headline(what, result.share_of_random),
        rows=[asdict(row) for row in result.rows],
        drawing=drawing,
        curve=Columns([one.name for one in fields(RegretRow)], [astuple(row) for row in result.rows], "regret.csv"),
        figure=share,
        outcome=_outcome(result),
        first_tiles=_first_tile(result.rows),
        further_tiles=(frame.Tile("Mean reward", f"{result.mean_reward:.4f}", f"{result.users:,} users"),),
        sections=(picture_section("Regret", drawing),),
    )


def regret_drawing(result: CollaborativeResult) -> Drawing:
    """Draw the regret curve beside that of a random policy."""
    last = result.rows[-1]
    return Drawing(
        "regret",
        "Cumulative regret",
        "The sum over all users and interactions so far of the best item's mean reward minus that of the "
        "shown item. Below the random policy is better than chance; a curve whose slope falls shows learning. "
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
    """A tile with the share of regret in the first tenth and the last, which a mean over all interactions hides."""
    found = beginning_and_end(rows)
    if found is None:
        return []
    first, before, last = found
    begins = _share(first.regret, first.random_regret)
    ends = _share(last.regret - before.regret, last.random_regret - before.random_regret)
    since = last.events - before.events
    note = f"of chance's regret in the first {first.events:,} interactions, and in the last {since:,}"
    return [frame.Tile("From beginning to end", f"{begins} to {ends}", note)]


def _share(regret: float, random: float) -> str:
    return f"{100 * regret / random:.0f} %" if random else "–"
