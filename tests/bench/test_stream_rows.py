"""Rows of benches: their names, units and targets, and what they measure."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from hushstream.replay.bench import stream
from hushstream.replay.bench.journal import Folded, paces, waits_ms
from hushstream.replay.bench.processes import CpuMeter, started
from hushstream.replay.bench.stream import StreamSizes, open_bench, prepare_deployment, stream_rows
from hushstream.replay.experiments.rows import BenchFailed, BenchRow
from hushstream.replay.studies.colin import study as collaborative
from patience import patience

SIZES = StreamSizes(
    dimension=4,
    arms=3,
    users=20,
    event_pairs=12_000,
    batch_pairs=40 * 256,
    pace=200,
    paced_seconds=0.5,
    memory_events=4096,
    memory_mark=2048,
    memory_chunk=512,
)


@pytest.mark.process
def test_a_small_run_gives_every_row_with_its_size_unit_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    # A busy machine does not keep the pace, which is what makes a run no measurement (below).
    monkeypatch.setattr(stream, "PACE_TOLERANCE", 0.0)
    rows = stream_rows(told.append, rounds=1, sizes=SIZES)
    assert [(row.unit, row.target) for row in rows] == [
        ("events/s", ""),
        ("events/s", ""),
        ("events/s", ""),
        ("x", "at least 3.5"),
        ("x", "at least 5"),
        ("ms", ""),
        ("ms", "at most 100"),
        ("MB", ""),
        ("MB", ""),
        ("x", "at most 1.1"),
    ]
    assert all(row.value > 0 for row in rows[:5])
    assert all(row.value >= 0 for row in rows)
    assert all((row.reached is None) == (not row.target) for row in rows)
    assert "24000 records" in rows[0].name
    assert "12000 contexts + 12000 rewards" in rows[1].name
    assert len(told) == 4


@pytest.mark.process
def test_a_run_that_does_not_keep_its_pace_is_no_measurement(tmp_path: Path) -> None:
    """Log time has milliseconds, so 2,000 contexts are never seen to come at 10^9 a second."""
    sizes = replace(SIZES, pace=10**9, paced_seconds=2e-6)

    async def run() -> None:
        async with open_bench(tmp_path / "paced", prepare_deployment(tmp_path, sizes), sizes) as bench:
            await bench.events()

    with pytest.raises(BenchFailed, match=r"expected 1000000000 contexts/s to be appended, got \d+"):
        asyncio.run(run())


def test_a_process_that_ends_early_is_named_with_its_last_words(tmp_path: Path) -> None:
    async def run() -> None:
        async with started("sleeper", ["-c", "print('nothing to do')"], tmp_path) as running:
            await asyncio.wait_for(running.process.wait(), patience(10))
            running.check()

    with pytest.raises(BenchFailed, match="sleeper ended with code 0: nothing to do"):
        asyncio.run(run())


THREADS: list[int] = []


def note_threads(text: str) -> None:
    assert text == "collaborative learners: 10 users"
    THREADS.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")


@pytest.fixture(scope="module")
def rows() -> list[BenchRow]:
    with pytest.MonkeyPatch.context() as patch, threadpool_limits(limits=2):
        patch.setattr(collaborative, "BOUNDS", {10: collaborative.BOUNDS[10]})
        patch.setattr(collaborative, "_EVENTS", {10: 80})
        return collaborative.collaborative_rows(note_threads, rounds=2)


def test_every_figure_is_a_number_and_every_rate_one_of_cpu_time(rows: list[BenchRow]) -> None:
    assert all(math.isfinite(row.value) and row.value > 0 for row in rows)
    assert [(row.unit, row.target) for row in rows] == [("events/CPU s", "at least 30000")]


def test_what_a_thread_of_its_own_would_do_is_not_hidden_from_the_thread_that_is_timed(rows: list[BenchRow]) -> None:
    assert rows
    assert set(THREADS) == {1}


def _folded(log_time_ms: int, contexts: tuple[int, int], clicks: tuple[int, int] = (0, 0)) -> Folded:
    return Folded(log_time_ms, contexts, clicks, contexts[1] - contexts[0], b"")


def test_a_rate_counts_what_was_appended_after_the_first_moment() -> None:
    records = [
        _folded(1000, (0, 900)),
        _folded(1000, (900, 1000), (0, 50)),
        _folded(1250, (1000, 1100), (50, 100)),
        _folded(1500, (1100, 1150)),
    ]
    meter = cast(CpuMeter, SimpleNamespace(seconds=lambda begun, ended: (ended - begun) / 2000))
    assert paces([(one.log_time_ms, one.inputs) for one in records], meter) == (200 / 0.5, 200 / 0.25)
    with pytest.raises(BenchFailed, match="two log times"):
        paces([(one.log_time_ms, one.inputs) for one in records[:2]], meter)


def test_each_context_waits_from_its_own_append_to_that_of_its_decision() -> None:
    records = [_folded(100, (0, 10)), _folded(117, (10, 12)), _folded(130, (12, 13))]
    assert waits_ms(records, 10, [110, 111, 125]) == [7, 6, 5]


BUSY = "while True: pass"
IDLE = "import time; time.sleep(60)"


def test_a_busy_process_takes_its_time_and_an_idle_one_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            started("busy", ["-c", BUSY], tmp_path, kill=True) as busy,
            started("idle", ["-c", IDLE], tmp_path, kill=True) as idle,
        ):
            await asyncio.sleep(0.5)  # both have started up
            begun = time.time() * 1000
            async with CpuMeter([busy]) as hot, CpuMeter([idle]) as cold:
                await asyncio.sleep(1.0)
            ended = time.time() * 1000
        assert 0.0 < hot.seconds(begun, ended) <= (ended - begun) / 1000 + 0.1
        assert cold.seconds(begun, ended) < hot.seconds(begun, ended)

    asyncio.run(run())


def test_a_process_that_is_gone_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with started("short", ["-c", ""], tmp_path) as running:
            await running.process.wait()
            async with CpuMeter([running]):
                raise AssertionError("it was measured")

    with pytest.raises(BenchFailed, match="expected /proc and running processes"):
        asyncio.run(run())
