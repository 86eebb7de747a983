"""The audits as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from hushstream.replay.audits.row import HEADINGS, Effort, Row


def as_table(rows: Sequence[Row]) -> Table:
    """One line for each audit."""
    table = Table(*HEADINGS, caption=_caption(rows), caption_justify="left")
    for row in rows:
        table.add_row(*row.cells(), style=None if row.passed else "bold red")
    return table


def as_json(rows: Sequence[Row], effort: Effort) -> dict[str, Any]:
    """Stable keys: effort, passed, false_alarm_of_all, audits."""
    return {
        "effort": effort,
        "passed": all(row.passed for row in rows),
        "false_alarm_of_all": sum(row.result.false_alarm for row in rows),
        "audits": [row.as_json() for row in rows],
    }


def _caption(rows: Sequence[Row]) -> str:
    failed = [row.name for row in rows if not row.passed]
    caption = f"{len(failed)} of {len(rows)} fail: {', '.join(failed)}." if failed else f"All {len(rows)} pass."
    broken = [row.name for row in rows if row.claim_broken]
    if broken:
        caption += f" The claims of {' and '.join(broken)}, calibrated as in their papers, are broken, as they must be."
    return (
        f"{caption} Epsilon is at least the bound, and at least the bound by curve where noise is all that protects:"
        " the exact trade-off curve at every calibration. Runs: on each of two neighbours."
    )
