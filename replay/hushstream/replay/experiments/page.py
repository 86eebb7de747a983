"""The page of an experiment: whether its targets are reached, its pictures, and what they rest on."""

from __future__ import annotations

from collections.abc import Sequence

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.figures import SETTING, Picture, drawing, sources
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.report.frame import Bullets, Cell, Page, Pictures, Section, Table, html
from hushstream.replay.report.parts import with_meanings
from hushstream.replay.report.wording import number

_REACHED = {True: ("reached", "good"), False: ("not reached", "bad"), None: ("not judged", "")}


def findings_page(findings: Findings, pictures: Sequence[Picture], file_names: Sequence[str]) -> str:
    """The page, with the other files of its folder by name."""
    described = findings.description
    judged = [row.reached for row in findings.targets if row.reached is not None]
    return html(
        Page(
            kind=f"hushstream experiment {described.name}",
            title=described.title,
            marks=with_meanings(_marks(findings)),
            figure=f"{sum(judged)} of {len(judged)}" if judged else "",
            outcome=_outcome(described, judged),
            sections=(
                Section("plots", "Pictures", (Pictures(tuple(drawing(one, findings) for one in pictures)),)),
                *([_targets(findings.targets)] if findings.targets else []),
                *([_settings(described)] if described.settings else []),
            ),
            # Settings have a part of their own.
            provenance=tuple(one for one in sources(described) if one[0] != SETTING),
            files=tuple(file_names),
        )
    )


def _marks(findings: Findings) -> list[str]:
    """The warnings of any deployment and of any row, each once."""
    known = [mark for one in findings.description.deployments for mark in one.guarantee.marks]
    of_rows = [mark for row in findings.rows for mark in str(row.get("marks", "")).split("; ") if mark]
    return list(dict.fromkeys([*known, *of_rows]))


def _outcome(described: Description, judged: Sequence[bool]) -> tuple[str, ...]:
    after = f"After {described.source}."
    if not judged:
        return (after, "No target is judged at this size.")
    return (f"{sum(judged)} of {len(judged)} targets are reached.", after)


def _targets(targets: Sequence[BenchRow]) -> Section:
    rows = tuple(
        (Cell(row.name, *_REACHED[row.reached]), Cell(f"{number(row.value)} {row.unit}".strip()), Cell(row.target))
        for row in targets
    )
    return Section("targets", "Targets", (Table("What was found, held to what is asked.", _COLUMNS, rows),))


_COLUMNS = ("Figure", "Found", "Target")


def _settings(described: Description) -> Section:
    return Section("settings", "How it was played", (Bullets("Settings", tuple(described.settings)),))
