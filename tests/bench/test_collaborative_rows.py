"""The collaborative learners' rows measure what they name, in this thread; how fast this machine is is not asked."""

from __future__ import annotations

import math

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.studies.colin.bench import compute as collaborative

THREADS: list[int] = []


def note_threads(text: str) -> None:
    assert text == "collaborative learners: 10 users"
    THREADS.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(limits=2):
        patch.setattr(collaborative, "BOUNDS", {10: collaborative.BOUNDS[10]})
        patch.setattr(collaborative, "_EVENTS", {10: 80})
        patch.setattr(collaborative, "_DENSE_EVENTS", {10: 5})
        patch.setattr(collaborative, "_TEXTBOOK_EVENTS", {10: 2})
        return collaborative.collaborative_rows(note_threads, rounds=2)


def test_every_figure_is_a_number_and_every_rate_one_of_cpu_time(rows: list[BenchRow]) -> None:
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [row.unit for row in rows] == ["events/CPU s", "events/CPU s", "x", "events/CPU s", "x"]
    assert [row.target for row in rows] == ["at least 30000", "", "", "", ""]


def test_what_a_thread_of_its_own_would_do_is_not_hidden_from_the_thread_that_is_timed(rows: list[BenchRow]) -> None:
    assert rows
    assert set(THREADS) == {1}
