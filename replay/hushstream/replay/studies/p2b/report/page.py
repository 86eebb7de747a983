"""Makes ``index.html`` of a P2B run: a private start compared with a cold one and one without privacy."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.replay.report.frame import Cell, Page, Pictures, Section, Table, Tile, Words, html
from hushstream.replay.report.parts import (
    closing,
    guarantee_tile,
    interval_text,
    ratio_text,
    verify_tile,
    with_meanings,
)
from hushstream.replay.report.sheet import Drawing
from hushstream.replay.report.wording import EXACT, number, provenance, quantity
from hushstream.replay.studies.p2b.report.results import (
    COLD,
    CONDITIONS,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    ConditionRow,
    ConditionSummary,
    RunResult,
)
from hushstream.replay.studies.p2b.report.summaries import compare, headline
from hushstream.replay.studies.p2b.report.wording import CONDITION_NAMES, CONDITION_STARTS, figures_of, interval, title


def run_page(result: RunResult, drawn: Sequence[Drawing], file_names: Sequence[str]) -> str:
    """Make the page.

    Args:
        result: what to show.
        drawn: the pictures, in their order.
        file_names: the other files of the folder, for the footer.
    """
    data = "public" if result.public_dataset else "not public (live run)"
    return html(
        Page(
            kind="hushstream replay",
            title=title(result),
            answers=result.answers,
            sentence=result.privacy.sentence,
            marks=with_meanings(result.marks),
            figure=ratio_text(headline(result)),
            outcome=tuple(_outcome(result)),
            tiles=tuple(_tiles(result)),
            sections=(
                *([_conditions(result)] if result.conditions else []),
                Section("plots", "Pictures", (Pictures(tuple(drawn)),)),
                *closing(result),
            ),
            provenance=(*provenance(result, figures_of(result)), ("Data", data)),
            files=tuple(file_names),
        )
    )


def _outcome(result: RunResult) -> list[str]:
    if not result.public_dataset:
        return ["This is a live run: rewards are exact figures on content and are not shown."]
    compared = headline(result)
    if COLD not in result.conditions or WARM_PRIVATE not in result.conditions:
        return ["This run did not play both cold and warm private users, so it has no comparison."]
    if compared is None:
        return ["The mean reward of cold users does not clearly differ from 0, so warm private to cold has no ratio."]
    return [
        f"Users who start from the private model earn {compared.ratio:.2f} times what users earn who start cold "
        f"({interval_text(compared)})."
    ]


def _tiles(result: RunResult) -> list[Tile]:
    tiles = [*_first_tile(result.rows), guarantee_tile(result.privacy)]
    if "events_per_second" in result.throughput:
        seconds = result.throughput.get("seconds")
        over = "" if seconds is None else f"over {quantity('seconds', seconds)}"
        tiles.append(Tile("Events per second", number(result.throughput["events_per_second"]), over))
    return tiles + verify_tile(result.verify)


def _first_tile(rows: Sequence[ConditionRow]) -> list[Tile]:
    """The tile with the gain at the first interaction; a mean would hide it, as cold users catch up later."""
    first = {row.condition: row for row in rows if row.round == 1}
    if COLD not in first or WARM_PRIVATE not in first:
        return []
    private, cold = first[WARM_PRIVATE], first[COLD]
    compared = compare(_summary(private), _summary(cold))
    means = f"{private.mean:.3f} warm, private; {cold.mean:.3f} cold"
    if compared is None:
        return [Tile("At the first interaction", f"{private.mean - cold.mean:+.3f}", means)]
    return [Tile("At the first interaction", ratio_text(compared), f"{means}; {interval_text(compared)}")]


def _summary(row: ConditionRow) -> ConditionSummary:
    return ConditionSummary(row.mean, row.ci95, row.users)


def _conditions(result: RunResult) -> Section:
    rows = tuple(_condition_row(result, name) for name in CONDITIONS if name in result.conditions)
    caption = (
        f"Mean reward of an interaction of the evaluated users; below each figure its 95 % interval. These are {EXACT}."
    )
    table = Table(caption, ("Model that users start from", "Users", "Mean reward", "Against cold"), rows)
    return Section("conditions", "Compared", (table, *_arm(result)))


def _arm(result: RunResult) -> list[Words]:
    """The warning beside the figures without privacy."""
    arm = result.comparison_arm
    if arm is None:
        return []
    sentence = f"{'; '.join(arm.privacy.marks)}: the deployment {arm.deployment}, which the figures without privacy"
    return [Words((f"{sentence} come from. {arm.privacy.sentence}",))]


def _condition_row(result: RunResult, name: str) -> tuple[Cell, ...]:
    condition, cold = result.conditions[name], result.conditions.get(COLD)
    compared = None if cold is None or name == COLD else compare(condition, cold)
    within = "" if compared is None else f"{compared.low:.2f} to {compared.high:.2f}"
    return (
        Cell(CONDITION_NAMES[name], CONDITION_STARTS[name], "bad" if name == WARM_NONPRIVATE else ""),
        Cell(number(condition.users)),
        Cell(f"{condition.mean:.4f}", interval(condition)),
        Cell(ratio_text(compared) or "–", within),
    )
