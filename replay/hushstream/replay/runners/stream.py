"""The stream runner: it starts an embedded broker (or uses any Kafka) and one worker process per role, on this machine.

The processes are those that a team deploys: ``hushstream broker`` and ``hushstream worker ROLE``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hushstream.agents.security import Security, read_security
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.logs.event_log import EventLog
from hushstream.engine.declare.conversation import conversation_of
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.ops.log_copy import LogCopy
from hushstream.ops.topics import apply_async
from hushstream.replay.runners.ports import free_port
from hushstream.schemas.errors import HushstreamError

BROKER_START_SECONDS = 20.0
STOP_SECONDS = 15.0
SETTLE_SECONDS = 0.5
SETTLE_POLLS = 40


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where a stream runs.

    Attributes:
        folder: the deployment's folder (configuration and encoder); state and logs go below it.
        bootstrap: address of a Kafka, or None to start the embedded broker.
        seed: seed of the keys (for experiments on public data only); None takes the deployment's key files.
        resume: go on with topics that hold records of an earlier run; refused otherwise.
        security: file with the SASL and TLS settings of the given Kafka, for this process and for the workers.
        worker_options: further arguments of every ``hushstream worker``.
    """

    folder: Path
    bootstrap: str | None
    seed: int | None
    resume: bool = False
    security: Path | None = None
    worker_options: tuple[str, ...] = ()


class WorkerDied(HushstreamError):
    """A process of the stream ended while it was needed; the message repeats the last line of its log."""


class StreamSession:
    """Runs broker and workers as processes of their own, for as long as the context is open."""

    def __init__(self, system: System, place: StreamPlace) -> None:
        """Prepare to run a deployment; nothing is started yet."""
        self._system = system
        self._place = place
        self._prefix = f"{system.config.deployment}."
        self._bootstrap = place.bootstrap or ""
        self._security = Security() if place.bootstrap is None else read_security(place.security)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._zone_ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        """Start the broker (unless one was given), create the topics, start a worker per role."""
        try:
            if not self._bootstrap:
                self._bootstrap = await self._start_broker()
            await self._make_topics()
            for role in self._system.role_names:
                self._start_worker(role)
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the workers, then the broker."""
        await self._stop()

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the broker."""
        return self._bootstrap

    def event_log(self, party: str = "") -> EventLog:
        """A client's log on the broker; ``party`` says whose topics, where each party has topics of its own."""
        topics = conversation_of(self._system, party)
        return KafkaEventLog(self._bootstrap, self._prefix, security=self._security, topics=topics)

    async def logs(self) -> LogCopy:
        """A copy of all topics as they are now."""
        return await copy_async(self.connection(), self._system.partitions)

    async def counts(self) -> Mapping[str, int]:
        """Events by outcome over all roles, once the workers have nothing left to fold.

        They come from the metrics endpoints of the zones, which whoever owns all zones may read.
        """
        counts = await self._scrape()
        for _ in range(SETTLE_POLLS):
            await asyncio.sleep(SETTLE_SECONDS)
            before, counts = counts, await self._scrape()
            if counts == before:
                break
        return counts

    async def _scrape(self) -> dict[str, int]:
        total: Counter[str] = Counter()
        for port in self._zone_ports.values():
            total.update(await asyncio.to_thread(_scrape_events, port))
        return dict(sorted(total.items()))

    def peak_memory_bytes(self) -> Mapping[str, int]:
        """The peak resident bytes of each process, by name."""
        return {name: _peak_memory(process.pid) for name, process in self._processes.items()}

    async def watch(self) -> None:
        """Return never; raise when a process ends.

        Raises:
            WorkerDied: with the last line that the process wrote.
        """
        while True:
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise WorkerDied(f"{name} ended with code {process.returncode}: {self._last_words(name)}")
            await asyncio.sleep(0.2)

    async def kill(self, role: str) -> None:
        """SIGKILL the worker of a role, and start it again as a supervisor does."""
        process = self._processes.pop(role)
        process.kill()
        await asyncio.to_thread(process.wait)
        self._start_worker(role)

    def connection(self) -> Connection:
        """The connection of the operator's tools to the deployment."""
        return Connection(self._bootstrap, self._prefix, self._security)

    async def _start_broker(self) -> str:
        ready = self._place.folder / "broker.ready"
        ready.unlink(missing_ok=True)
        self._spawn("broker", ["-m", "hushstream.broker", "--port", "0", "--ready-file", str(ready)])
        deadline = time.monotonic() + BROKER_START_SECONDS
        while not ready.exists() or not ready.read_text(encoding="utf-8").strip():
            if self._processes["broker"].poll() is not None or time.monotonic() > deadline:
                raise WorkerDied(f"broker did not start: {self._last_words('broker')}")
            await asyncio.sleep(0.05)
        return ready.read_text(encoding="utf-8").strip()

    async def _make_topics(self) -> None:
        created = await apply_async(self.connection(), self._system)
        if len(created) < len(self._system.topics) and not self._place.resume:
            raise HushstreamError(
                f"{self._bootstrap}: expected no topics of deployment {self._system.config.deployment}, found some of "
                f"an earlier run; choose another name (--set deployment=NAME) or resume it (--from)"
            )

    def _start_worker(self, role: str) -> None:
        self._zone_ports[role] = free_port()
        arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(self._place.folder)]
        arguments += ["--bootstrap", self._bootstrap]
        if self._place.seed is not None:
            arguments += ["--seed", str(self._place.seed)]
        if self._place.security is not None:
            arguments += ["--security", str(self._place.security)]
        arguments += ["--zone-metrics-port", str(self._zone_ports[role]), *self._place.worker_options]
        self._spawn(role, arguments)

    def _spawn(self, name: str, arguments: list[str]) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        with self._log_path(name).open("wb") as log:
            # Each process gets a session of its own, so that Ctrl-C does not reach it: `_stop` ends all of them, the
            # broker last.
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    async def _stop(self) -> None:
        for name in reversed(list(self._processes)):
            process = self._processes[name]
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for process in self._processes.values():
            try:
                await asyncio.to_thread(process.wait, max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                await asyncio.to_thread(process.wait)

    def _log_path(self, name: str) -> Path:
        return self._place.folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log_path(name).read_text(errors="replace", encoding="utf-8").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


def _scrape_events(port: int) -> Counter[str]:
    total: Counter[str] = Counter()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        for line in response.read().decode().splitlines():
            if line.startswith("hushstream_events_total{"):
                labels, value = line.rsplit(" ", 1)
                outcome = labels.split('outcome="')[1].split('"')[0]
                total[outcome] += int(float(value))
    return total


def _peak_memory(pid: int) -> int:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines: Iterator[str] = iter(Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines())
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
    return 0
