"""A small live deployment under a real Prometheus: embedded broker, workers, a gateway, a replay, two scrapers.

One Prometheus reads the public endpoints, the other the zones' own endpoints. Both use the configuration and the rules
of ``deploy/prometheus``, with other targets and a scrape every second. All of it is on loopback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from panels import DEPLOYMENT, Endpoint

from hushstream.client.kafka import KafkaEventLog
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.runners.stream import free_port
from hushstream.replay.study import studies

RULES = Path(__file__).resolve().parents[1] / "prometheus"
CONFIGURATIONS: Mapping[Endpoint, str] = {"public": "prometheus.yml", "zone": "zone.yml"}
START_SECONDS = 180.0
STOP_SECONDS = 15.0
SCRAPES_BEFORE = 2
"""How often a counter must be scraped at 0 before the play: otherwise its first increase would not show."""
FIRST_COUNTERS: tuple[tuple[Endpoint, str], ...] = (
    ("public", 'hushstream_decisions_total{role="learner"}'),
    ("public", 'hushstream_windows_sealed_total{role="shuffler"}'),
    ("public", 'hushstream_batch_seconds_count{role="shuffler"}'),
    ("zone", 'hushstream_dead_letters_total{role="learner"}'),
)
"""These series exist once a worker runs its partitions."""
GATEWAY = "gateway"
AUDITED = "shuffler"
"""The role that has an auditor."""
GATEWAY_SETTINGS = {"batch_requests": 1, "burst": 4, "requests_per_second": 1}
"""Settings that make the gateway so slow that it turns some callers away."""
SCRAPES_AFTER = 3
"""How many seconds Prometheus continues after the last event, so that it has the last values and alerts."""


class LiveError(Exception):
    """A process did not start, or ended while it was needed."""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer: its labels, and pairs (unix seconds, value) in order."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


class LiveRun:
    """Broker, workers and scrapers that run while the context is open."""

    def __init__(self, folder: Path, users: int, pace: float) -> None:
        """Prepare to play ``users`` contributors at ``pace`` interactions a second, below ``folder``."""
        self._folder = folder
        self._users, self._pace = users, pace
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, int] = {}
        self._pages: dict[str, str] = {}
        self.started = 0.0

    def __enter__(self) -> Self:
        """Start everything.

        Raises:
            LiveError: a process did not start.
        """
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything that was started."""
        self._stop()

    def play(self) -> None:
        """Play the users through the deployment, after one record that must be refused.

        Raises:
            LiveError: a process ended meanwhile.
        """
        self.started = time.time()
        try:
            asyncio.run(self._play())
            time.sleep(SCRAPES_AFTER)
        finally:
            # If a process has ended, report that: the player's error only follows from it.
            self._require_alive()

    def ask(self, endpoint: Endpoint, expr: str) -> list[Series]:
        """The present answer to a dashboard's query."""
        return [
            Series(found["metric"], (_point(found["value"]),))
            for found in self._get(endpoint, "query", query=_concrete(expr))
        ]

    def ask_range(self, endpoint: Endpoint, expr: str) -> list[Series]:
        """The answers to a dashboard's query since the play began, second by second."""
        span = {"start": f"{self.started:.0f}", "end": f"{time.time():.0f}", "step": "1"}
        found = self._get(endpoint, "query_range", query=_concrete(expr), **span)
        return [Series(one["metric"], tuple(map(_point, one["values"]))) for one in found]

    def names(self, endpoint: Endpoint) -> set[str]:
        """The names of all series that a Prometheus has."""
        return {str(name) for name in self._get(endpoint, "label/__name__/values")}

    # Start and stop.

    def _start(self) -> None:
        """Start all processes, as far as possible before waiting for any of them."""
        live = next(study.live for study in studies().values() if study.live is not None)
        ready = self._folder / "broker.ready"
        self._spawn("broker", ["-m", "hushstream.broker", "--port", "0", "--ready-file", str(ready)])
        self._sample = live(self._folder / "deployment", self._users, self._pace)
        system = self._sample.system
        self._prefix = f"{system.config.deployment}."
        self._await("broker", lambda: ready.exists() and ready.read_text(encoding="utf-8").strip() != "")
        self._bootstrap = ready.read_text(encoding="utf-8").strip()
        asyncio.run(apply_async(Connection(self._bootstrap, self._prefix), system))
        for role in system.role_names:
            self._start_process(role, "worker", role, "--seed", "1")
        gateway = self._folder / "gateway.json"
        self._ports[GATEWAY] = free_port()
        gateway.write_text(json.dumps({"port": self._ports[GATEWAY], **GATEWAY_SETTINGS}), encoding="utf-8")
        self._start_process(GATEWAY, "worker", GATEWAY, "--gateway", str(gateway))
        auditor = f"verify-{AUDITED}"
        self._start_process(auditor, "verify", "--follow", "--role", AUDITED, "--seed", "1")
        for endpoint in CONFIGURATIONS:
            self._start_prometheus(endpoint, (*system.role_names, GATEWAY, auditor))
        for name, page in self._pages.items():
            self._await(name, lambda page=page: _answers(page))

    def _start_process(self, role: str, *command: str) -> None:
        place = ["--deployment", str(self._folder / "deployment"), "--bootstrap", self._bootstrap]
        arguments = ["-m", "hushstream.cli", *command, *place]
        for endpoint, option in (("public", "--metrics-port"), ("zone", "--zone-metrics-port")):
            self._ports[f"{role} {endpoint}"] = free_port()
            arguments += [option, str(self._ports[f"{role} {endpoint}"])]
        self._spawn(role, arguments)
        self._pages[role] = f"http://127.0.0.1:{self._ports[f'{role} public']}/metrics"

    def _start_prometheus(self, endpoint: Endpoint, roles: tuple[str, ...]) -> None:
        home = self._folder / f"prometheus-{endpoint}"
        shutil.copytree(RULES, home)
        path = home / CONFIGURATIONS[endpoint]
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        targets = [
            {"targets": [f"127.0.0.1:{self._ports[f'{role} {endpoint}']}"],
             "labels": {"deployment": self._sample.system.config.deployment, "role": role}}
            for role in roles
        ]  # fmt: skip
        (home / "targets" / f"{endpoint}.yml").write_text(yaml.safe_dump(targets), encoding="utf-8")
        name = f"prometheus-{endpoint}"
        port = self._ports[name] = free_port()
        arguments = [f"--config.file={path}", f"--storage.tsdb.path={home / 'data'}", "--log.level=warn"]
        self._spawn(name, [*arguments, f"--web.listen-address=127.0.0.1:{port}"], "prometheus")
        self._pages[name] = f"http://127.0.0.1:{port}/-/ready"

    def _spawn(self, name: str, arguments: list[str], program: str = sys.executable) -> None:
        """Start a process, and delay SIGTERM until it is recorded: a process without a record would never be stopped.

        The signal's handler delays it, not this thread's mask, because another thread could get the signal.
        """
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        held_back: list[int] = []
        before = signal.signal(signal.SIGTERM, lambda number, _: held_back.append(number))
        try:
            with (self._folder / f"{name}.log").open("wb") as log:
                self._processes[name] = subprocess.Popen(
                    [program, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
                )
        finally:
            signal.signal(signal.SIGTERM, before)
        if held_back:
            signal.raise_signal(signal.SIGTERM)

    def _await(self, name: str, ready: Any) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self._processes[name].poll() is not None or time.monotonic() > deadline:
                raise LiveError(f"{name} did not start: {self._last_words(name)}")
            time.sleep(0.05)

    def _require_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise LiveError(f"{name} ended with code {process.returncode}: {self._last_words(name)}")

    def _stop(self) -> None:
        """Stop all processes, the broker last, because workers commit to it when they end."""
        broker = [process for name, process in self._processes.items() if name == "broker"]
        others = [process for name, process in self._processes.items() if name != "broker"]
        for group in (others, broker):
            for process in group:
                process.send_signal(signal.SIGTERM)
            for process in group:
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _last_words(self, name: str) -> str:
        lines = (self._folder / f"{name}.log").read_text(errors="replace", encoding="utf-8").strip().splitlines()
        return lines[-1] if lines else "it wrote nothing"

    # Play and ask.

    async def _play(self) -> None:
        refused = KafkaEventLog(self._bootstrap, self._prefix)
        await refused.start(lambda *_: None)
        await self._scraped_before()
        await refused.append("contexts", 0, b"no record at all")
        await refused.stop()
        calling = asyncio.create_task(self._call_gateway())
        try:
            await self._sample.play(KafkaEventLog(self._bootstrap, self._prefix))
            await asyncio.sleep(SCRAPES_AFTER)
        finally:
            calling.cancel()
            await asyncio.wait([calling])
        if not calling.cancelled():
            calling.result()

    async def _call_gateway(self) -> None:
        """Until cancelled, call every two seconds: one answer, one refusal, and callers who are turned away."""
        good, bad = {}, {"no_such_feature": 1}
        base = f"http://127.0.0.1:{self._ports[GATEWAY]}/v1/decide"
        async with aiohttp.ClientSession() as session:
            for turn in itertools.count():
                for number, context in enumerate((good, bad, bad, bad, bad)):
                    name = f"call-{turn}-{number}"
                    body = {"event_id": name, "user": name, "baseline": 0, "context": context}
                    async with session.post(base, json=body) as answer:
                        await answer.read()
                await asyncio.sleep(2.0)

    async def _scraped_before(self) -> None:
        """Wait until every counter that the play will increase was scraped at 0, twice."""
        deadline = time.monotonic() + START_SECONDS
        for endpoint, counter in FIRST_COUNTERS:
            expr = f"min(count_over_time({counter}[1m]))"
            while not (found := self.ask(endpoint, expr)) or found[0].points[0][1] < SCRAPES_BEFORE:
                self._require_alive()
                if time.monotonic() > deadline:
                    raise LiveError(f"{endpoint}: expected {counter} to be scraped {SCRAPES_BEFORE} times, it was not")
                await asyncio.sleep(0.2)

    def _get(self, endpoint: Endpoint, what: str, **parameters: str) -> list[Any]:
        url = f"http://127.0.0.1:{self._ports[f'prometheus-{endpoint}']}/api/v1/{what}"
        with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(parameters)}", timeout=10) as answer:
            data = json.load(answer)["data"]
        return list(data["result"] if isinstance(data, dict) else data)


def _concrete(expr: str) -> str:
    """A query as Grafana sends it when all deployments are selected."""
    return expr.replace(DEPLOYMENT, ".*")


def _point(pair: list[Any]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except (urllib.error.URLError, OSError):
        return False
