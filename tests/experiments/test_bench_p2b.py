"""Benchmarks measure what they name, and hold it to the stated targets."""

from __future__ import annotations

import json
import math

import pytest

from hushstream.replay.bench.sizes import write_bench
from hushstream.replay.experiments.rows import at_least, figure
from hushstream.replay.studies.p2b import bench as bench_p2b
from hushstream.replay.studies.p2b.bench import compute_rows


@pytest.fixture(scope="module")
def rows():
    seen: list[str] = []
    small = {name: rows for name, rows in bench_p2b.SUBJECTS.items() if name != "population"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_p2b, "SUBJECTS", small)
        measured = compute_rows(seen.append, rounds=1)
    assert seen == list(small)
    return {row.name: row for row in measured}


@pytest.mark.sweep
def test_every_figure_is_a_positive_number_with_a_unit(rows):
    assert all(math.isfinite(row.value) and row.value > 0 and row.unit for row in rows.values())


@pytest.mark.sweep
def test_the_targets_are_those_of_the_project(rows):
    targets = [row.target for row in rows.values() if row.target]
    least = [100_000]
    declared = [150_000, 400_000, 40_000, 40_000, 100_000, 20_000, 100_000]
    assert targets == [
        *(f"at least {rate}" for rate in least),
        "at most 1",
        *(f"at least {rate}" for rate in declared),
    ]


def test_the_population_row_times_the_whole_run(monkeypatch):
    monkeypatch.setattr(bench_p2b, "USERS", 2_000)
    (row,) = bench_p2b.population_rows(1)
    assert "U=2,000" in row.name
    assert 0 < row.value < 60
    assert row.reached


def test_rows_are_written_as_they_are(tmp_path):
    given = [at_least("speed", [1.0, 3.0, 2.0], "events/s", 5.0), figure("size", [4.0], "MB")]
    path = tmp_path / "report" / "bench.json"
    write_bench(given, path)
    assert json.loads(path.read_text(encoding="utf-8")) == [
        {"name": "speed", "value": 2.0, "unit": "events/s", "target": "at least 5", "reached": False},
        {"name": "size", "value": 4.0, "unit": "MB", "target": "", "reached": None},
    ]
