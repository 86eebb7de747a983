"""The report of a BGTplanner run: errors after each round beside what costs nothing, and what is promised.

Exact errors are figures on content: they exist for public data only (PRIVACY.md, rule 11), which a replayed world is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import partial
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
from hushstream.replay.report.parts import closing, guarantee_tile, interval_text, verify_tile, with_meanings
from hushstream.replay.report.payoff import Payoff, reached
from hushstream.replay.report.printed import answers, facts_grid, warnings
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.sheet import Drawing, Sheet, png
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import EXACT, provenance, provenance_lines, verify_text
from hushstream.replay.views import Headline, View

CURVE, PICTURE = "rounds.csv", "rmse.png"
_LETTERS = {"items": "A", "pairs": "B", "factors": "C"}

Scores = tuple[float, float, float]
"""RMSE on the scale from 0 to 1; F1 and balanced accuracy of being above one half."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """What is predicted by the model that followed a round; ``kind`` is what its slots held, or none."""

    round: int
    kind: str
    rmse: float
    f1: float
    balanced: float

    @property
    def name(self) -> str:
        """For people."""
        if self.kind not in _LETTERS:
            return f"round {self.round + 1}: withheld"
        return f"round {self.round + 1}: {_LETTERS[self.kind]} ({self.kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BgtResult:
    """What came of a run.

    Attributes:
        dataset: the world, with its variant.
        runner: "direct" or "stream".
        seed: of split, noise and keys.
        deployment: its name.
        config_digest: 32 hexadecimal digits.
        users, items: how many.
        ratings: on users' devices.
        judged: kept to judge by.
        slot_bytes: content of one slot.
        privacy: the guarantee.
        baselines: scores of what costs nothing, by name.
        rounds: after each.
        factors: of the last model.
        ratio: largest eigenvalue of the pairs over the noise's edge; 0 where no edge was tested.
        counts: events by outcome and records by topic, each with a class.
        throughput: seconds, users a second, latencies, memory by process.
        verify: what recomputing found, by role; None when it was not asked for.
        environment: versions and cores.
        comparison: RMSE over that of the best that a device can do alone, with its interval over users.
        payoff: against each device alone.
    """

    dataset: str
    runner: str
    seed: int
    deployment: str
    config_digest: str
    users: int
    items: int
    ratings: int
    judged: int
    slot_bytes: int
    privacy: StatedGuarantee
    baselines: Mapping[str, Scores]
    rounds: tuple[RoundRow, ...]
    factors: int
    ratio: float
    counts: Mapping[str, int]
    throughput: Mapping[str, float]
    verify: Mapping[str, RoleCheck] | None
    environment: Mapping[str, Any]
    comparison: Comparison | None = None
    payoff: Payoff | None = None

    @property
    def answers(self) -> tuple[str, ...]:
        """What was reached privately, and whether it pays: the first lines of whatever shows this result."""
        first = reached(f"RMSE {self.rounds[-1].rmse:.4f} of predicted ratings, on a scale from 0 to 1", self.privacy)
        return (first,) if self.payoff is None else (first, self.payoff.sentence)

    def __post_init__(self) -> None:
        """Refuse what no run gives.

        Raises:
            BadResult: no round, no local mean to compare with, or a count without a class.
        """
        if not self.rounds or "local" not in self.baselines:
            raise BadResult(f"rounds: expected rounds and a local mean beside them, got {len(self.rounds)} rounds")
        require_classed(self.counts)

    @property
    def title(self) -> str:
        """What was run, in a line."""
        kinds = " ".join(_LETTERS.get(row.kind, "-") for row in self.rounds)
        return f"bgt on {self.dataset}: rounds {kinds}"

    @property
    def local(self) -> float:
        """RMSE of the best that a device can do alone."""
        return min(self.baselines[name][0] for name in self.baselines if name.startswith("local"))

    @property
    def gain(self) -> float:
        """RMSE below that of the best that a device can do alone; negative where nothing is gained."""
        return self.local - self.rounds[-1].rmse

    @property
    def gain_text(self) -> str:
        """The same for people."""
        if self.gain <= 0:
            return f"nothing is gained over the device alone (RMSE {self.local:.4f})"
        return f"RMSE {self.gain:.4f} below that of the device alone ({self.local:.4f})"

    @property
    def factors_text(self) -> str:
        """What the test for factors said."""
        if not self.ratio:
            return f"{self.factors} kept"
        return f"{self.factors} kept; the largest eigenvalue is {self.ratio:.2f} times the noise's edge"

    @property
    def compared(self) -> tuple[tuple[str, Scores], ...]:
        """Who predicted how well."""
        ours = [(row.name, (row.rmse, row.f1, row.balanced)) for row in self.rounds]
        return (*self.baselines.items(), *ours)

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        plain = ("dataset", "runner", "seed", "deployment", "config_digest", "users", "items", "ratings", "judged")
        scores = ("rmse", "f1", "balanced_accuracy")
        return {
            "system": "bgt",
            "title": self.title,
            "answers": list(self.answers),
            "payoff": None if self.payoff is None else self.payoff.as_json(),
            **{name: getattr(self, name) for name in (*plain, "slot_bytes", "factors", "ratio")},
            "privacy": {**self.privacy.values, "text": list(self.privacy.lines)},
            "marks": list(self.privacy.marks),
            "baselines": {name: dict(zip(scores, found, strict=True)) for name, found in self.baselines.items()},
            "rounds": [dict(zip(("round", "kind", *scores), astuple(row), strict=True)) for row in self.rounds],
            "gain": self.gain,
            "comparison": None if self.comparison is None else self.comparison.as_json(),
            **counts_json(self.counts),
            "throughput": dict(self.throughput),
            "verify": verify_json(self.verify),
            "environment": dict(self.environment),
        }


def bgt_table(result: BgtResult) -> RenderableType:
    """What stands on the terminal at the end of a run."""
    table = Table(title=Text(result.title), box=box.SIMPLE_HEAD, title_justify="left", title_style="bold")
    for name in ("predicted by", "RMSE", "F1", "balanced accuracy"):
        table.add_column(name, justify="left" if name == "predicted by" else "right")
    for name, scores in result.compared:
        table.add_row(name, *(f"{score:.4f}" for score in scores))
    facts = facts_grid(
        (
            ("guarantee", result.privacy.summary),
            ("gain", result.gain_text),
            ("factors", result.factors_text),
            ("ratings", f"{result.ratings:,} of {result.users:,} users on {result.items:,} items"),
            ("slots", f"{result.slot_bytes:,} bytes each, {result.slot_bytes * result.users:,} a round"),
            ("configuration", result.config_digest),
            ("verify", verify_text(result.verify)),
        )
    )
    return Group(*answers(result.answers), Text(result.privacy.sentence), *warnings(result.privacy.marks), table, facts)


def bgt_view(result: BgtResult) -> View:
    """The gain over the device alone, and errors after each round beside those of what costs nothing."""
    scores, found = ("rmse", "f1", "balanced_accuracy"), result.comparison
    return View(
        title=result.title,
        answers=result.answers,
        headline=Headline("RMSE below that of the device alone", result.gain)
        if found is None
        else Headline("RMSE over that of the device alone", found.ratio, found.low, found.high),
        facts=(result.privacy.summary, f"factors: {result.factors_text}", f"verify: {verify_text(result.verify)}"),
        marks=result.privacy.marks,
        rows=[{"predicted_by": name, **dict(zip(scores, found, strict=True))} for name, found in result.compared],
        pictures={"rmse": partial(png, rmse_drawing(result), provenance_lines(result))},
    )


def write_bgt_report(result: BgtResult, directory: Path | str) -> list[Path]:
    """Write ``results.json``, ``rounds.csv``, ``rmse.png`` and ``index.html`` into a folder.

    Returns:
        The paths written, the page last.

    Raises:
        ReportNotWritten: the folder cannot be written.
    """
    content = {
        RESULTS: json_bytes(result.as_json()),
        CURVE: figures_csv(
            (column.name for column in fields(RoundRow)), map(astuple, result.rounds), [EXACT] * len(result.rounds)
        ),
        PICTURE: png(rmse_drawing(result), provenance_lines(result)),
    }
    return write_files(directory, content | {PAGE: bgt_page(result, tuple(content)).encode()})


def rmse_drawing(result: BgtResult) -> Drawing:
    """Errors as bars."""
    return Drawing(
        "rmse",
        "Error of predicted ratings",
        "RMSE on a scale from 0 to 1; shorter is better, and the axis does not begin at 0. Grey costs no privacy, blue "
        "is after each round. "
        f"These are {EXACT}.",
        f"RMSE after the last round {result.rounds[-1].rmse:.4f}, of the device alone {result.local:.4f}.",
        partial(_draw_rmse, result),
    )


def _draw_rmse(result: BgtResult, sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([name for name, _ in result.compared])
    found = [scores[0] for _, scores in result.compared]
    colours = [GREY] * len(result.baselines) + [BLUE] * len(result.rounds)
    bars = axes.barh(range(len(found)), found, color=colours)
    axes.bar_label(bars, labels=[f"{one:.4f}" for one in found], padding=3)
    # Differences that matter are small beside the errors themselves.
    axes.set_xlim(0.9 * min(found), max(found) + 0.25 * (max(found) - 0.9 * min(found)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("RMSE")


def bgt_page(result: BgtResult, names: tuple[str, ...]) -> str:
    """The page, with the other files of its folder by name."""
    found = result.comparison
    return frame.html(
        frame.Page(
            kind="hushstream replay",
            title=result.title,
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.privacy.marks),
            figure="" if found is None else f"{100 * (found.ratio - 1):+.1f} %",
            outcome=_outcome(result),
            tiles=(
                guarantee_tile(result.privacy),
                frame.Tile("Factors", f"{result.factors}", result.factors_text),
                frame.Tile("A slot", f"{result.slot_bytes:,} bytes", "whatever it holds"),
                *verify_tile(result.verify),
            ),
            sections=(
                frame.Section("plots", "Error", (frame.Pictures((rmse_drawing(result),)), _scores(result))),
                *closing(result),
            ),
            provenance=provenance(result),
            files=names,
        )
    )


def _outcome(result: BgtResult) -> tuple[str, ...]:
    kept = f"{result.ratings:,} ratings stay with their users; {result.judged:,} others are predicted."
    after = f"After three rounds: {result.gain_text}."
    found = result.comparison
    if found is None:
        return (after, kept)
    return (f"The error is {found.ratio:.3f} times that of the device alone ({interval_text(found, 3)}).", after, kept)


def _scores(result: BgtResult) -> frame.Table:
    rows = ((name, *(f"{score:.4f}" for score in scores)) for name, scores in result.compared)
    caption = f"F1 and balanced accuracy are of being above one half. These are {EXACT}."
    columns = ("Predicted by", "RMSE", "F1", "Balanced accuracy")
    return frame.Table(caption, columns, tuple(tuple(map(frame.Cell, row)) for row in rows))
