"""The stream runner: it starts an embedded broker (or uses any Kafka) and one worker process per role, on this machine.

The processes are those that a team deploys: ``hushstream broker`` and ``hushstream worker ROLE``.

*Ports.* Picks a free port on loopback, for a process that is started next.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hushstream.agents.security import Security, read_security
from hushstream.client.kafka import KafkaEventLog
from hushstream.client.logs import EventLog
from hushstream.engine.declare.declaration import System, conversation_of
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import LogCopy, copy_async
from hushstream.ops.topics import apply_async
from hushstream.schemas.errors import HushstreamError

HOST = "127.0.0.1"
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST, _EPHEMERAL_ELSEWHERE = 10_000, 32_768
_TRIES = 200
_GIVEN: set[int] = set()
"""The ports that this process has given away: nothing listens on one until its process has started."""


def free_port() -> int:
    """Return a port that no process listens on now, another at each call.

    It lies below the ephemeral ports. The operating system may give an ephemeral port to any outgoing connection before
    the process listens; the process could not listen then.

    Raises:
        OSError: all ports that were tried are in use.
    """
    for _ in range(_TRIES):
        port = _LEAST + secrets.randbelow(_first_ephemeral() - _LEAST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _GIVEN:
                _GIVEN.add(port)
                return port
    raise OSError(f"expected a free port on 127.0.0.1 from {_LEAST} on, got {_TRIES} that are in use")


def _first_ephemeral() -> int:
    """The first ephemeral port of this system; a default where it is unknown or leaves too few ports below."""
    if not _EPHEMERAL.exists():
        return _EPHEMERAL_ELSEWHERE
    first = int(_EPHEMERAL.read_text(encoding="utf-8").split()[0])
    return first if first > 2 * _LEAST else _EPHEMERAL_ELSEWHERE


def require_free(flag: str, port: int) -> None:
    """Refuse a port on which another program listens.

    Raises:
        HushstreamError: it is in use; the message names the flag that moves it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise not_free(flag, port, error) from None


def not_free(flag: str, port: int, error: OSError) -> Exception:
    """The refusal of a port that another program has; any other error as it is."""
    if error.errno not in (errno.EADDRINUSE, errno.EACCES):
        return error
    came = f"{port}, which is not available ({error.strerror})"
    return HushstreamError(f"{flag}: expected a free port on {HOST}, got {came}; name another one")


BROKER_START_SECONDS = 60.0
READY_SECONDS = 120.0
STOP_SECONDS = 15.0
BROKER, GATEWAY = "broker", "gateway"
_BROKER, _CLI = ((sys.executable, "-m", name) for name in ("hushstream.broker", "hushstream.cli"))
_PR_SET_PDEATHSIG = 1
_LOOK_SECONDS = 0.2
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 60.0
_STEADY_SECONDS = 60.0
"""A process that has run for so long starts again at once when it ends."""
_CANNOT = b"cannot go on, and serves the reason as a metric "
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
        data: folder in which the embedded broker keeps its topics; None: in memory.
        broker_port: port of the embedded broker; 0: any free one.
        marks: folder for the release marks of all workers; None: with their state.
        gateway: settings of a gateway to the deployment (`hushstream.gateway.settings`); None: no gateway.
        logs: folder for what the processes say; None: the deployment's.
    """

    folder: Path
    bootstrap: str | None
    seed: int | None
    resume: bool = False
    security: Path | None = None
    worker_options: tuple[str, ...] = ()
    data: Path | None = None
    broker_port: int = 0
    marks: Path | None = None
    gateway: Mapping[str, Any] | None = None
    logs: Path | None = None


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
        self._commands: dict[str, tuple[str, ...]] = {}
        self._log_starts: dict[str, int] = {}
        self._zone_ports: dict[str, int] = {}
        self._public_ports: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        """Start the broker (unless one was given), create the topics, start a worker per role."""
        try:
            if not self._bootstrap:
                self._bootstrap = await self._start_broker()
            await self._make_topics()
            for role in self._system.role_names:
                self._start_worker(role)
            if self._place.gateway is not None:
                self._start_gateway(self._place.gateway)
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
        self.spawn(role, *self._commands[role])

    async def supervise(self, say: Callable[[str], None]) -> None:
        """Return never; start again whatever ends, after a pause that doubles each time until it has run for long.

        Args:
            say: told which process ended, why, and when it is started again.
        """
        due: dict[str, float] = {}
        pauses: dict[str, float] = {}
        began = dict.fromkeys(self._processes, time.monotonic())
        while True:
            now = time.monotonic()
            for name, process in list(self._processes.items()):
                if process.poll() is None:
                    if now - began[name] > _STEADY_SECONDS:
                        pauses.pop(name, None)
                elif name not in due:
                    pauses[name] = min(_LONGEST_PAUSE_SECONDS, 2 * pauses.get(name, _FIRST_PAUSE_SECONDS / 2))
                    due[name] = now + pauses[name]
                    why = f"{name} ended with code {process.returncode}: {self._last_words(name)}"
                    say(f"{why}; it is started again in {pauses[name]:g} s")
                elif now >= due[name]:
                    del due[name]
                    began[name] = now
                    self.spawn(name, *self._commands[name])
            await asyncio.sleep(_LOOK_SECONDS)

    def _waited_for(self) -> list[str]:
        """The processes that are not at work yet: a worker has no partition, or the gateway does not answer."""
        workers = (*self._system.role_names, *([] if self._place.gateway is None else [GATEWAY]))
        return [name for name in workers if not self._at_work(name)]

    async def ready(self, say: Callable[[str], None]) -> None:
        """Return once every process is at work.

        Args:
            say: told for which it waits.

        Raises:
            HushstreamError: one says that it cannot go on, or is not at work within `READY_SECONDS`.
        """
        before: list[str] = []
        deadline = time.monotonic() + READY_SECONDS
        while waited := await asyncio.to_thread(self._waited_for):
            if waited != before:
                say(f"waiting for {', '.join(waited)} ...")
                before = waited
            if time.monotonic() > deadline:
                raise HushstreamError(f"expected all to work within {READY_SECONDS:g} s, got no {', '.join(waited)}")
            await asyncio.sleep(_LOOK_SECONDS)

    def metrics_ports(self) -> Mapping[str, tuple[int, int]]:
        """The ports of each process's public and zone-private metrics."""
        return {name: (port, self._zone_ports[name]) for name, port in self._public_ports.items()}

    def pids(self) -> Mapping[str, int]:
        """The number of each process."""
        return {name: process.pid for name, process in self._processes.items()}

    def _at_work(self, name: str) -> bool:
        if name == GATEWAY:
            gateway = self._place.gateway
            return gateway is not None and answers(gateway.get("host", HOST), gateway["port"])
        with self._log_path(name).open("rb") as log:
            log.seek(self._log_starts[name])
            said = log.read()
        # It stays for a while, so that a Prometheus reads why; whoever waits for it need not.
        if _CANNOT in said:
            raise WorkerDied(f"{name}: {said.partition(_CANNOT)[2].splitlines()[0].decode(errors='replace')}")
        return b": at journal record " in said

    def connection(self) -> Connection:
        """The connection of the operator's tools to the deployment."""
        return Connection(self._bootstrap, self._prefix, self._security)

    async def _start_broker(self) -> str:
        ready = self._place.folder / "broker.ready"
        ready.unlink(missing_ok=True)
        data = [] if self._place.data is None else ["--data", str(self._place.data)]
        self.spawn(BROKER, *_BROKER, "--port", str(self._place.broker_port), "--ready-file", str(ready), *data)
        deadline = time.monotonic() + BROKER_START_SECONDS
        while not ready.exists() or not ready.read_text(encoding="utf-8").strip():
            if self._processes[BROKER].poll() is not None or time.monotonic() > deadline:
                raise WorkerDied(f"broker did not start: {self._last_words(BROKER)}")
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
        arguments = []
        if self._place.seed is not None:
            arguments += ["--seed", str(self._place.seed)]
        if self._place.marks is not None:
            arguments += ["--release-marks", str(self._place.marks / role)]
        self.start(role, "worker", role, *arguments, *self._place.worker_options)

    def _start_gateway(self, settings: Mapping[str, Any]) -> None:
        file = self._place.folder / "gateway.yaml"
        file.write_text(json.dumps(dict(settings)), encoding="utf-8")
        self.start(GATEWAY, "worker", GATEWAY, "--gateway", str(file))

    def start(self, name: str, *command: str) -> None:
        """Start ``hushstream COMMAND`` on the deployment as a further process, with ports for its metrics."""
        arguments = [*command, "--deployment", str(self._place.folder), "--bootstrap", self._bootstrap]
        if self._place.security is not None:
            arguments += ["--security", str(self._place.security)]
        self._public_ports[name], self._zone_ports[name] = free_port(), free_port()
        arguments += ["--metrics-port", str(self._public_ports[name])]
        self.spawn(name, *_CLI, *arguments, "--zone-metrics-port", str(self._zone_ports[name]))

    def spawn(self, name: str, *command: str) -> None:
        """Start any program as a further process, which is watched and ended as all others."""
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
        self._commands[name] = command
        with self._log_path(name).open("ab") as log:
            self._log_starts[name] = log.tell()
            # Each process gets a session of its own, so that Ctrl-C does not reach it: `_stop` ends all of them, the
            # broker last.
            self._processes[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )

    async def _stop(self) -> None:
        """End all processes; the broker last, because workers commit to it when they end."""
        await self._end([name for name in self._processes if name != BROKER])
        await self._end([BROKER] if BROKER in self._processes else [])

    async def _end(self, names: list[str]) -> None:
        for name in reversed(names):
            if self._processes[name].poll() is None:
                self._processes[name].send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_SECONDS
        for name in names:
            try:
                await asyncio.to_thread(self._processes[name].wait, max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._processes[name].kill()
                await asyncio.to_thread(self._processes[name].wait)

    def _log_path(self, name: str) -> Path:
        return (self._place.logs or self._place.folder) / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log_path(name).read_text(errors="replace", encoding="utf-8").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"


async def first_of(*parts: Awaitable[Any]) -> Any:
    """Run all parts until one ends; return what it returns, or raise what any that has ended raises."""
    tasks = [asyncio.ensure_future(one) for one in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = [task.result() for task in tasks if task in done]
        return ended[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _end_with_parent() -> None:
    """Let the kernel end this process when the one that started it ends, however that ends (Linux alone)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def answers(host: str, port: int) -> bool:
    """Whether a gateway on this machine answers requests."""
    try:
        with urllib.request.urlopen(f"http://{host}:{port}/readyz", timeout=1) as response:
            return bool(response.status == 200)
    except OSError:
        return False


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
