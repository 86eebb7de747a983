"""What the page on sizing comes from: every topic of each system is counted, and what its roles hold and take."""

from __future__ import annotations

from pathlib import Path

import pytest

from hushstream.replay.bench.sizes import measure, page_with, tables_of
from hushstream.replay.experiments.rows import BenchRow
from hushstream.replay.study import study_of
from hushstream.schemas.errors import HushstreamError

SMALL = {
    "p2b": {"users": 6, "window_slots": 3, "codes": 2, "dimension": 3, "arms": 3},
    "colin": {"users": 4, "rounds": 4, "rounds_per_phase": 2, "rows": 4, "dimension": 3},
}
TOPICS = {
    "p2b": {"contexts", "clicks", "decisions", "reports", "journal-shuffler", "window-sums", "ledger", "models"},
    "colin": {"contexts", "clicks", "decisions", "rewards", "journal-counter", "releases", "ledger", "models"},
}
ROLES = {"p2b": ("learner", "shuffler", "aggregator"), "colin": ("learner", "counter", "aggregator")}


@pytest.mark.sweep(keep=["colin"])
@pytest.mark.parametrize("system", ["p2b", "colin"])
def test_every_topic_and_every_role_is_counted(system: str, tmp_path: Path) -> None:
    make = study_of(system).sample
    assert make is not None
    rows = {
        (row.name.removeprefix("it: "), row.unit): row.value for row in measure(make(tmp_path, **SMALL[system]), "it")
    }
    records = {name: value for (name, unit), value in rows.items() if unit == "bytes/record"}
    # No more: a deployment has no topic of what a replay of public data writes in clear.
    assert records.keys() == TOPICS[system]
    shares = {name: value for (name, unit), value in rows.items() if unit == "bytes/interaction" and name in records}
    written = sum(share * (1 + 10 / records[name]) for name, share in shares.items())
    assert rows["all topics, at a broker", "bytes/interaction"] == pytest.approx(written)
    held = {name for name, unit in rows if unit == "bytes/user"}
    assert held == {f"{role}, {what}" for role in ROLES[system] for what in ("state", "memory")}
    micros = [name for name, unit in rows if unit == "us/interaction"]
    assert micros == [f"{role}, CPU" for role in (*ROLES[system], "auditor")]
    assert min(rows.values()) > 0


def test_a_page_has_one_table_a_system_with_a_column_a_shape() -> None:
    rows = [
        BenchRow(f"p2b, dimension {size}: {what}", size * 10.5, "bytes/record") for size in (3, 10) for what in "ab"
    ]
    page = "Before.\n<!-- sizes of p2b -->\nold\n<!-- -->\nAfter.\n"
    made = page_with(tables_of(rows), page)
    assert "| | unit | dimension 3 | dimension 10 |" in made
    assert "| b | bytes/record | 31.5 | 105 |" in made
    assert "old" not in made
    assert page_with(tables_of(rows), made) == made
    with pytest.raises(HushstreamError, match="expected one place for sizes of p2b in the page, got 0"):
        page_with(tables_of(rows), "No place.")
