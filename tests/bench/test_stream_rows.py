"""The stream's benchmark runs with real processes and gives its rows; how fast is not asked here."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.processes import started
from hushstream.replay.bench.stream import runs
from hushstream.replay.bench.stream.rows import stream_rows
from hushstream.replay.bench.stream.runs import StreamSizes, open_bench, prepare_deployment
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
    long_interactions=4096,
    modest_pairs=150,
)


@pytest.mark.process
def test_a_small_run_gives_every_row_with_its_size_unit_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    # A busy machine does not keep the pace, which is what makes a run no measurement (below).
    monkeypatch.setattr(runs, "PACE_TOLERANCE", 0.0)
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
        ("bytes/interaction", "at most 60"),
        *[("bytes/interaction", "")] * 4,
        ("ms", ""),
        ("ms", ""),
        ("bytes/interaction", ""),
        ("ms", ""),
        ("ms", ""),
        ("bytes/interaction", "at most 60"),
        ("MB", ""),
        ("s", "at most 10"),
        ("records", ""),
        ("s", "at most 60"),
        ("records", ""),
        ("records", ""),
    ]
    assert all(row.value > 0 for row in rows[:5])
    assert all(row.value >= 0 for row in rows)
    assert all((row.reached is None) == (not row.target) for row in rows)
    assert "24000 records" in rows[0].name
    assert "12000 contexts + 12000 rewards" in rows[1].name
    assert len(told) == 6


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
