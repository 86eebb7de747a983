"""Parts that the pages of all systems have: guarantee, checks, counts and speed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hushstream.privacy.amounts import epsilon_text
from hushstream.privacy.promises.sentence import Odds as Expected
from hushstream.replay.report.counts import COUNT_CLASSES, RECORDS_PREFIX
from hushstream.replay.report.frame import Block, Bullets, Cell, Facts, Odds, Section, Table, Tile, Words
from hushstream.replay.report.results import RoleCheck, StatedGuarantee
from hushstream.replay.report.summaries import Comparison
from hushstream.replay.report.wording import (
    MARK_MEANINGS,
    RunFields,
    measure_name,
    number,
    overall_status,
    plain_name,
    quantity,
    verify_sentence,
)

_LISTED = {
    "Content of persons": "What is seen by whom",
    "Condition": "It holds only if",
    "Not protected": "Not protected",
}
_TONES = {"equal": "good", "float tie": "good", "changed": "bad", "uncheckable": "unsure"}
_SHOWN = {"slot-public": "", "zone-private": "shown where a dataset is replayed"}


def with_meanings(marks: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The warnings, each with its meaning."""
    return tuple((mark, MARK_MEANINGS.get(mark, "")) for mark in marks)


def ratio_text(found: Comparison | None) -> str:
    """The ratio of a comparison as a page shows it; empty where there is no comparison."""
    return "" if found is None else f"{found.ratio:.2f}×"


def interval_text(found: Comparison, digits: int = 2) -> str:
    """The interval of a comparison as text."""
    return f"95 % interval {found.low:.{digits}f} to {found.high:.{digits}f}"


def guarantee_tile(privacy: StatedGuarantee) -> Tile:
    """The tile with the larger of a person's two lifetime epsilons; its note gives both with their deltas."""
    life = privacy.values["lifetime"]["exchange"]["epsilon_micro"]
    return Tile("Guarantee", f"epsilon {epsilon_text(life)}", f"one person in a whole life: {privacy.lifetime_text}")


def verify_tile(verify: Mapping[str, RoleCheck] | None) -> list[Tile]:
    """The tile with the finding of `verify`; none where it was not asked for."""
    return [Tile("Recomputed from the logs", overall_status(verify.values()), ", ".join(verify))] if verify else []


def guarantee_section(privacy: StatedGuarantee) -> Section:
    """The section with all lines of the guarantee, sorted into sentences, facts and lists."""
    sentences: list[str] = []
    facts: list[tuple[str, str]] = []
    lists: dict[str, list[str]] = {}
    # The top of the page shows the first line.
    for line in privacy.lines[1:]:
        name, separator, value = line.partition(": ")
        if not separator:
            sentences.append(line)
        elif name in _LISTED:
            lists.setdefault(_LISTED[name], []).append(value)
        else:
            facts.append((name, value))
    blocks: list[Block] = [*odds_blocks(privacy.odds), Words(tuple(sentences)), Facts(tuple(facts))]
    blocks += [Bullets(heading, tuple(items)) for heading, items in lists.items()]
    return Section("guarantee", "What is promised", tuple(blocks))


def odds_blocks(odds: Iterable[Expected]) -> list[Block]:
    """The picture of a guarantee; none where there is no guarantee."""
    shares = tuple((f"{one.label}{one.chance}", one.share) for one in odds)
    return [Odds(shares)] if shares else []


def verify_section(verify: Mapping[str, RoleCheck] | None) -> Section:
    """The section with the findings of `verify`, by role."""
    blocks: list[Block] = [Words((verify_sentence(verify),))]
    if verify:
        rows = [
            (
                Cell(role, one.status, _TONES[one.status]),
                *(Cell(number(count)) for count in (one.equal, one.ties, one.changed, one.uncheckable)),
            )
            for role, one in verify.items()
        ]
        columns = ("Worker and finding", "Equal", "Ties", "Changed", "Inputs deleted")
        blocks.append(Table("Published records, computed again from their inputs.", columns, tuple(rows)))
    return Section("verify", "Verify", tuple(blocks))


def counts_section(counts: Mapping[str, int]) -> Section:
    """The section with every count, and its privacy class."""
    ordered = sorted(counts.items(), key=lambda item: (COUNT_CLASSES[item[0]], item[0]))
    rows = tuple((Cell(_count_name(name), _SHOWN[COUNT_CLASSES[name]]), Cell(number(count))) for name, count in ordered)
    caption = (
        "How often each event happened. Counts that depend on users' contexts and rewards are shown for a "
        "replayed dataset only, never for a live deployment."
    )
    return Section("counts", "Counts", (Table(caption, ("Count", "Value"), rows),))


def _count_name(name: str) -> str:
    if name.startswith(RECORDS_PREFIX):
        return f"Records on topic {name.removeprefix(RECORDS_PREFIX)}"
    return plain_name(name)


def speed_section(measured: Mapping[str, float]) -> Section:
    """The section with the speed of a run; it shows the service time of a decision without its waiting time."""
    rows = [(measure_name(name), quantity(name, value)) for name, value in measured.items()]
    if measured.get("decisions") and "seconds" in measured:
        share = measured["seconds"] / measured["decisions"]
        rows.append(("Service time of a decision", f"{number(1000 * share)} ms"))
    table = Table(
        "A replay sends the requests of very many users at once, so answers wait behind one another. The "
        "service time does not contain this wait: it is the duration divided by the number of decisions.",
        ("What", "Value"),
        tuple((Cell(name), Cell(value)) for name, value in rows),
    )
    return Section("speed", "Speed", (table,))


def closing(result: RunFields) -> tuple[Section, ...]:
    """The parts at the end of every page of a run."""
    return (
        guarantee_section(result.privacy),
        verify_section(result.verify),
        counts_section(result.counts),
        speed_section(result.throughput),
    )
