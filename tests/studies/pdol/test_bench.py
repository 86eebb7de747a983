"""The benchmark has its rows and measures work that is done; no test asserts a rate."""

from __future__ import annotations

from hushstream.replay.studies.pdol.bench import pdol_rows


def test_rows_have_names_units_and_targets():
    told: list[str] = []
    rows = pdol_rows(told.append, rounds=1)
    assert [row.target for row in rows] == ["at least 15000", "at least 30000", "", "", ""]
    assert all(row.value > 0 for row in rows)
    assert told[-1] == "PDOL: versions"
