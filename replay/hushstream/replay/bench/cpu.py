"""Reads the CPU time of a benchmark's processes over its run from /proc (in steps of 10 ms)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.processes import Running

SAMPLE_SECONDS = 0.05

_LEAST_CORES = 0.01
"""The smallest number of free cores that is reported. Less cannot be measured, and rates are divided by it."""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_BUSY = ("user", "nice", "system", "irq", "softirq")
_COLUMNS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq")


class CpuMeter:
    """Follows the CPU time of some processes, of this one and of the whole machine while its context is open."""

    def __init__(self, processes: Sequence[Running]) -> None:
        """Name the processes to follow."""
        self._pids = [one.process.pid for one in processes]
        self._at_ms: list[float] = []
        self._followed: list[float] = []
        self._machine: list[float] = []
        self._own: list[float] = []
        self._sampling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._sample()
        self._sampling = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sampling is not None:
            self._sampling.cancel()
            await asyncio.gather(self._sampling, return_exceptions=True)
        if error is None:
            self._sample()

    def seconds(self, begun_ms: float, ended_ms: float) -> float:
        """CPU seconds of the processes together, between two moments of the wall clock (Unix time, ms)."""
        return self._between(self._followed, begun_ms, ended_ms)

    def others_cores(self, begun_ms: float, ended_ms: float) -> float:
        """How many cores all other processes of this machine used between two moments, without this process."""
        others = [a - b - c for a, b, c in zip(self._machine, self._followed, self._own, strict=True)]
        return self._between(others, begun_ms, ended_ms) * 1000 / (ended_ms - begun_ms)

    def free_cores(self, begun_ms: float, ended_ms: float) -> float:
        """How many cores were free for the followed processes between two moments; at least a hundredth."""
        rest = [a - b for a, b in zip(self._machine, self._followed, strict=True)]
        left = (os.cpu_count() or 1) - self._between(rest, begun_ms, ended_ms) * 1000 / (ended_ms - begun_ms)
        return max(_LEAST_CORES, left)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._sample()

    def _sample(self) -> None:
        try:
            followed = sum(process_seconds(pid) for pid in self._pids)
            machine = _machine_seconds()
        except OSError as error:
            raise BenchFailed(f"CPU time: expected /proc and running processes, got {error.strerror}") from None
        self._at_ms.append(time.time() * 1000)
        self._followed.append(followed)
        self._machine.append(machine)
        self._own.append(time.process_time())

    def _between(self, series: Sequence[float], begun_ms: float, ended_ms: float) -> float:
        begun, ended = np.interp([begun_ms, ended_ms], self._at_ms, series)
        return float(ended - begun)


def cores(count: int) -> list[int]:
    """Choose ``count`` different cores that this process may use.

    Raises:
        BenchFailed: there are fewer cores.
    """
    found = sorted(os.sched_getaffinity(0))
    if len(found) < count:
        raise BenchFailed(f"expected {count} cores for as many workers, got {len(found)}")
    return found[:count]


def pin(running: Running, core: int) -> None:
    """Keep all threads of a process, and those that it will start, on one core."""
    for task in Path(f"/proc/{running.process.pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def process_seconds(pid: int) -> float:
    """CPU seconds of a running process since its start.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_SECOND


def _machine_seconds() -> float:
    first = Path("/proc/stat").read_text(encoding="utf-8").partition("\n")[0]
    ticks = dict(zip(_COLUMNS, map(int, first.split()[1:]), strict=False))
    return sum(ticks[name] for name in _BUSY) / _TICKS_PER_SECOND
