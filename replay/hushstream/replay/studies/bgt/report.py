"""The report of a BGTplanner run: errors after each round, those of predictors on the device, and the guarantee.

Exact errors are figures on content. They exist for public data only (PRIVACY.md, rule 11), and a replayed world is
public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields
from functools import partial

from matplotlib.ticker import MaxNLocator

from hushstream.replay.report import frame
from hushstream.replay.report.counts import require_classed
from hushstream.replay.report.palette import BLUE, GREY
from hushstream.replay.report.parts import interval_text
from hushstream.replay.report.replayed import Columns, Replayed, Shown, figures_table, picture_section, ratio
from hushstream.replay.report.sheet import Drawing, Sheet
from hushstream.replay.report.values import BadResult
from hushstream.replay.report.wording import EXACT
from hushstream.replay.views import Headline

_SCORES = ("rmse", "f1", "balanced_accuracy")
_LETTERS = {"items": "A", "pairs": "B", "factors": "C"}

Scores = tuple[float, float, float]
"""RMSE on the scale from 0 to 1; F1 and balanced accuracy of being above one half."""


@dataclass(frozen=True, slots=True)
class RoundRow:
    """Scores of the model after a round; ``kind`` is the content of the round's slots, or none."""

    round: int
    kind: str
    rmse: float
    f1: float
    balanced: float

    @property
    def name(self) -> str:
        """The name of the round in tables."""
        if self.kind not in _LETTERS:
            return f"round {self.round + 1}: withheld"
        return f"round {self.round + 1}: {_LETTERS[self.kind]} ({self.kind})"


@dataclass(frozen=True, slots=True, kw_only=True)
class BgtResult(Replayed):
    """The outcome of a run, in addition to what `Replayed` has.

    Its ``comparison`` divides the RMSE by that of the best predictor on the device alone; the sample is the users.

    Attributes:
        users, items: how many users and items.
        ratings: how many ratings are on users' devices.
        judged: how many ratings are kept for the evaluation.
        slot_bytes: size of the content of one slot.
        baselines: scores of the baselines, by name.
        rounds: scores after each round.
        factors: how many factors the last model has.
        ratio: largest eigenvalue of the pairs divided by the edge of the noise; 0 where no edge was tested.
    """

    users: int
    items: int
    ratings: int
    judged: int
    slot_bytes: int
    baselines: Mapping[str, Scores]
    rounds: tuple[RoundRow, ...]
    factors: int
    ratio: float

    def __post_init__(self) -> None:
        """Refuse values that no run gives.

        Raises:
            BadResult: no round, no local mean to compare with, or a count without a class.
        """
        if not self.rounds or "local" not in self.baselines:
            raise BadResult(f"rounds: expected rounds and a local mean beside them, got {len(self.rounds)} rounds")
        require_classed(self.counts)

    @property
    def reached(self) -> str:
        """The result in one line."""
        return f"RMSE {self.rounds[-1].rmse:.4f} of predicted ratings, on a scale from 0 to 1"

    @property
    def title(self) -> str:
        """One line that says what was run."""
        kinds = " ".join(_LETTERS.get(row.kind, "-") for row in self.rounds)
        return f"bgt on {self.dataset}: rounds {kinds}"

    @property
    def local(self) -> float:
        """RMSE of the best predictor on the device alone."""
        return min(self.baselines[name][0] for name in self.baselines if name.startswith("local"))

    @property
    def gain(self) -> float:
        """The RMSE of the best predictor on the device alone minus that of the run; negative where the run is worse."""
        return self.local - self.rounds[-1].rmse

    @property
    def gain_text(self) -> str:
        """The gain as text."""
        if self.gain <= 0:
            return f"nothing is gained over the device alone (RMSE {self.local:.4f})"
        return f"RMSE {self.gain:.4f} below that of the device alone ({self.local:.4f})"

    @property
    def factors_text(self) -> str:
        """The result of the test for factors, as text."""
        if not self.ratio:
            return f"{self.factors} kept"
        return f"{self.factors} kept; the largest eigenvalue is {self.ratio:.2f} times the noise's edge"

    @property
    def compared(self) -> tuple[tuple[str, Scores], ...]:
        """The scores of all predictors, each with its name."""
        ours = [(row.name, (row.rmse, row.f1, row.balanced)) for row in self.rounds]
        return (*self.baselines.items(), *ours)


def present(result: BgtResult) -> Shown[BgtResult]:
    """Show the gain over the device alone, and errors after each round beside those of the baselines."""
    drawing, found = rmse_drawing(result), result.comparison
    compared = [(name, *(f"{score:.4f}" for score in scores)) for name, scores in result.compared]
    caption = f"F1 and balanced accuracy are of being above one half. These are {EXACT}."
    columns = ("Predicted by", "RMSE", "F1", "Balanced accuracy")
    settings = ("users", "items", "ratings", "judged", "slot_bytes", "factors", "ratio")
    return Shown(
        result=result,
        system="bgt",
        settings={name: getattr(result, name) for name in settings},
        figures={
            "baselines": {name: _named(scores) for name, scores in result.baselines.items()},
            "rounds": [dict(zip(("round", "kind", *_SCORES), astuple(row), strict=True)) for row in result.rounds],
            "gain": result.gain,
        },
        compared=Columns(("predicted by", "RMSE", "F1", "balanced accuracy"), compared),
        facts=(
            ("gain", result.gain_text),
            ("factors", result.factors_text),
            ("ratings", f"{result.ratings:,} of {result.users:,} users on {result.items:,} items"),
            ("slots", f"{result.slot_bytes:,} bytes each, {result.slot_bytes * result.users:,} a round"),
        ),
        headline=ratio("RMSE over that of the device alone", found)
        or Headline("RMSE below that of the device alone", result.gain),
        rows=[{"predicted_by": name, **_named(scores)} for name, scores in result.compared],
        view_facts=(f"factors: {result.factors_text}",),
        drawing=drawing,
        curve=Columns([one.name for one in fields(RoundRow)], [astuple(row) for row in result.rounds], "rounds.csv"),
        figure="" if found is None else f"{100 * (found.ratio - 1):+.1f} %",
        outcome=_outcome(result),
        further_tiles=(
            frame.Tile("Factors", f"{result.factors}", result.factors_text),
            frame.Tile("A slot", f"{result.slot_bytes:,} bytes", "whatever it contains"),
        ),
        sections=(picture_section("Error", drawing, figures_table(caption, columns, compared)),),
    )


def _named(scores: Scores) -> dict[str, float]:
    return dict(zip(_SCORES, scores, strict=True))


def rmse_drawing(result: BgtResult) -> Drawing:
    """The picture with errors as bars."""
    return Drawing(
        "rmse",
        "Error of predicted ratings",
        "RMSE on a scale from 0 to 1; shorter is better, and the axis does not start at 0. Grey bars are "
        f"baselines, blue bars are the rounds. These are {EXACT}.",
        f"RMSE after the last round {result.rounds[-1].rmse:.4f}, of the device alone {result.local:.4f}.",
        partial(_draw_rmse, result),
    )


def _draw_rmse(result: BgtResult, sheet: Sheet) -> None:
    (axes,) = sheet.named_rows([name for name, _ in result.compared])
    found = [scores[0] for _, scores in result.compared]
    colours = [GREY] * len(result.baselines) + [BLUE] * len(result.rounds)
    bars = axes.barh(range(len(found)), found, color=colours)
    axes.bar_label(bars, labels=[f"{one:.4f}" for one in found], padding=3)
    # Differences that matter are small compared with the errors themselves.
    axes.set_xlim(0.9 * min(found), max(found) + 0.25 * (max(found) - 0.9 * min(found)))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_xlabel("RMSE")


def _outcome(result: BgtResult) -> tuple[str, ...]:
    kept = f"{result.ratings:,} ratings stay with their users; {result.judged:,} others are predicted."
    after = f"After three rounds: {result.gain_text}."
    found = result.comparison
    if found is None:
        return (after, kept)
    return (f"The error is {found.ratio:.3f} times that of the device alone ({interval_text(found, 3)}).", after, kept)
