"""Runs the processes of a benchmark, and reads their CPU time (from /proc, in steps of 10 ms) and memory."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import key_names
from hushstream.engine.system import DeploymentValues
from hushstream.privacy.keys import generate_keys
from hushstream.replay.experiments.rows import BenchFailed

START_SECONDS = 30.0
STOP_SECONDS = 20.0


def prepared(folder: Path, config: DeploymentValues) -> System:
    """Prepare a deployment in a folder, with the keys of all its zones."""
    system = prepare(folder, config)
    generate_keys(folder / KEYS, key_names(system.roles))
    return system


@dataclass(frozen=True, slots=True)
class Running:
    """A process of the benchmark, and the file with its output."""

    name: str
    process: Process
    log: Path

    def check(self) -> None:
        """Raise if the process has ended.

        Raises:
            BenchFailed: the process has ended; the message has the last line that it wrote.
        """
        if self.process.returncode is not None:
            lines = self.log.read_text(errors="replace", encoding="utf-8").strip().splitlines() or ["it wrote nothing"]
            raise BenchFailed(f"{self.name} ended with code {self.process.returncode}: {lines[-1]}")

    def peak_memory_bytes(self) -> int:
        """The most memory that the process has used so far (VmHWM), in bytes.

        Raises:
            BenchFailed: this system does not report it.
        """
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise BenchFailed(f"memory of {self.name}: expected /proc, got {error.strerror}") from None
        return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])


@asynccontextmanager
async def started(name: str, arguments: Sequence[str], folder: Path, *, kill: bool = False) -> AsyncIterator[Running]:
    """Run ``python ARGUMENTS`` while the context is open; then stop it by SIGTERM, or by SIGKILL if asked."""
    log = folder / f"{name}.log"
    # The same settings as in the container image.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=output, stderr=STDOUT, env=environment
        )
    try:
        yield Running(name, process, log)
    finally:
        await _end(process, kill)


async def _end(process: Process, kill: bool) -> None:
    # A process that has ended in the meantime needs no signal.
    with suppress(ProcessLookupError):
        if not kill:
            process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), STOP_SECONDS)
        if process.returncode is None:
            process.kill()
    await process.wait()


@asynccontextmanager
async def embedded_broker(folder: Path) -> AsyncIterator[str]:
    """Start an embedded broker; yields its ``host:port``."""
    async with broker_process(folder) as (bootstrap, _):
        yield bootstrap


@asynccontextmanager
async def broker_process(folder: Path, data: Path | None = None) -> AsyncIterator[tuple[str, Running]]:
    """Start an embedded broker, which keeps all in ``data`` or in memory; yields its ``host:port``, and its process."""
    ready = folder / "broker.ready"
    arguments = ["-m", "hushstream.broker", "--port", "0", "--ready-file", str(ready)]
    arguments += [] if data is None else ["--data", str(data)]
    async with started("broker", arguments, folder, kill=True) as broker:
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            broker.check()
            if time.monotonic() > deadline:
                raise BenchFailed(f"expected the broker to listen within {START_SECONDS:g} s")
            await asyncio.sleep(0.02)
        yield ready.read_text(encoding="utf-8").strip(), broker


SAMPLE_SECONDS = 0.05

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class CpuMeter:
    """Follows the CPU time of some processes while its context is open."""

    def __init__(self, processes: Sequence[Running]) -> None:
        """Name the processes to follow."""
        self._pids = [one.process.pid for one in processes]
        self._at_ms: list[float] = []
        self._followed: list[float] = []
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
        begun, ended = np.interp([begun_ms, ended_ms], self._at_ms, self._followed)
        return float(ended - begun)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self._sample()

    def _sample(self) -> None:
        try:
            followed = sum(process_seconds(pid) for pid in self._pids)
        except OSError as error:
            raise BenchFailed(f"CPU time: expected /proc and running processes, got {error.strerror}") from None
        self._at_ms.append(time.time() * 1000)
        self._followed.append(followed)


def process_seconds(pid: int) -> float:
    """CPU seconds of a running process since its start.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    user, system = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[11:13]
    return (int(user) + int(system)) / _TICKS_PER_SECOND
