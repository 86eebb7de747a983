"""The counters' rows measure what they name; how fast this machine is is not asked here."""

from __future__ import annotations

import math

import pytest

from hushstream.replay.bench import counters
from hushstream.replay.bench.rows import BenchRow


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    seen: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "BATCHES", 8)
        patch.setattr(counters, "BATCHES", 100)
        measured = counters.counter_rows(seen.append, rounds=1)
    assert all(text.startswith("counters: ") for text in seen)
    return measured


def test_every_figure_is_a_number_with_a_unit(rows: list[BenchRow]) -> None:
    assert all(math.isfinite(row.value) and row.value > 0 and row.unit for row in rows)
    assert len({row.name for row in rows}) == len(rows)


def test_the_targets_are_those_of_the_project(rows: list[BenchRow]) -> None:
    targets = {row.target for row in rows if row.target}
    assert targets == {
        "at most 0.4",
        "at most 0.5",
        "at most 1.1",
        "at most 3",
        "at least 400000",
        "at least 2e+07",
        "at least 20",
        "at least 10",
    }


def test_the_errors_keep_their_targets_on_every_machine(rows: list[BenchRow]) -> None:
    errors = [row for row in rows if "RMSE" in row.name]
    assert len(errors) == 6
    assert all(row.reached for row in errors)
