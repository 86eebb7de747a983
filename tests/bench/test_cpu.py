"""CPU time is that of the named processes, and a pinned process stays where it was put."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from hushstream.replay.bench.cpu import CpuMeter, cores, pin
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.processes import started

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
        assert 0.0 <= hot.others_cores(begun, ended) <= cold.others_cores(begun, ended)
        assert cold.free_cores(begun, ended) <= hot.free_cores(begun, ended) <= (os.cpu_count() or 1) + 0.1

    asyncio.run(run())


def test_a_process_that_is_gone_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        async with started("short", ["-c", ""], tmp_path) as running:
            await running.process.wait()
            async with CpuMeter([running]):
                raise AssertionError("it was measured")

    with pytest.raises(BenchFailed, match="expected /proc and running processes"):
        asyncio.run(run())


def test_a_pinned_process_runs_on_its_core_alone(tmp_path: Path) -> None:
    async def run() -> set[int]:
        async with started("idle", ["-c", IDLE], tmp_path, kill=True) as running:
            pin(running, core)
            return os.sched_getaffinity(running.process.pid)

    (core,) = cores(1)
    assert asyncio.run(run()) == {core}


def test_more_workers_than_cores_are_refused() -> None:
    with pytest.raises(BenchFailed, match="expected 100000 cores for as many workers, got"):
        cores(100_000)
