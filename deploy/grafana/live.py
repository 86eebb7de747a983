"""A small live deployment under a real Prometheus: embedded broker, workers, a gateway, a replay, two scrapers.

One Prometheus reads the public endpoints, the other the zones' own endpoints. Both use the configuration and the rules
of ``deploy/prometheus``, with other targets and a scrape every second. All of it is on loopback.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from panels import DEPLOYMENT, Endpoint

from hushstream.replay.runners.stream import StreamPlace, StreamSession, first_of, free_port
from hushstream.replay.runners.up import write_targets
from hushstream.replay.study import studies
from hushstream.schemas.errors import HushstreamError

RULES = Path(__file__).resolve().parents[1] / "prometheus"
CONFIGURATIONS: Mapping[Endpoint, str] = {"public": "prometheus.yml", "zone": "zone.yml"}
START_SECONDS = 180.0
SCRAPES_BEFORE = 2
"""How often a counter must be scraped at 0 before the play: otherwise its first increase would not show."""
FIRST_COUNTERS: tuple[tuple[Endpoint, str], ...] = (
    ("public", 'hushstream_decisions_total{role="learner"}'),
    ("public", 'hushstream_windows_sealed_total{role="shuffler"}'),
    ("public", 'hushstream_batch_seconds_count{role="shuffler"}'),
    ("zone", 'hushstream_dead_letters_total{role="learner"}'),
)
"""These series exist once a worker runs its partitions."""
AUDITED = "shuffler"
"""The role that has an auditor."""
AUDITOR = f"verify-{AUDITED}"
GATEWAY_SETTINGS = {"batch_requests": 1, "burst": 4, "requests_per_second": 1}
"""Settings that make the gateway so slow that it turns some callers away."""
SCRAPES_AFTER = 3
"""How many seconds Prometheus continues after the last event, so that it has the last values and alerts."""


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
        self._ports: dict[Endpoint, int] = {}
        self._runner, self._stack = asyncio.Runner(), AsyncExitStack()
        self.started = 0.0

    def __enter__(self) -> Self:
        """Start everything.

        Raises:
            HushstreamError: a process did not start.
        """
        try:
            self._runner.run(self._start())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything that was started."""
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def play(self) -> None:
        """Play the users through the deployment, after one record that must be refused.

        Raises:
            HushstreamError: a process ended meanwhile.
        """
        self.started = time.time()
        self._runner.run(first_of(self._play(), self._session.watch()))

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

    async def _start(self) -> None:
        """Start all processes, as far as possible before waiting for any of them."""
        live = next(study.live for study in studies().values() if study.live is not None)
        folder = self._folder / "deployment"
        self._sample = live(folder, self._users, self._pace)
        system, gateway = self._sample.system, {"port": free_port(), **GATEWAY_SETTINGS}
        self._gateway = f"http://127.0.0.1:{gateway['port']}"
        self._session = StreamSession(system, StreamPlace(folder, None, 1, gateway=gateway, logs=self._folder))
        await self._stack.enter_async_context(self._session)
        self._session.start(AUDITOR, "verify", "--follow", "--role", AUDITED, "--seed", "1")
        for endpoint in CONFIGURATIONS:
            self._start_prometheus(endpoint)
        await first_of(self._session.watch(), self._ready())

    async def _ready(self) -> None:
        await self._session.ready(lambda said: None)
        pages = [f"http://127.0.0.1:{port}/-/ready" for port in self._ports.values()]
        pages.append(f"http://127.0.0.1:{self._session.metrics_ports()[AUDITOR][0]}/metrics")
        async with asyncio.timeout(START_SECONDS):
            for page in pages:
                while not await asyncio.to_thread(_answers, page):  # noqa: ASYNC110 - they are other processes
                    await asyncio.sleep(0.05)

    def _start_prometheus(self, endpoint: Endpoint) -> None:
        home = self._folder / f"prometheus-{endpoint}"
        shutil.copytree(RULES, home)
        path = home / CONFIGURATIONS[endpoint]
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        write_targets(home / "targets", self._sample.system, self._session)
        port = self._ports[endpoint] = free_port()
        arguments = [f"--config.file={path}", f"--storage.tsdb.path={home / 'data'}", "--log.level=warn"]
        arguments.append(f"--web.listen-address=127.0.0.1:{port}")
        self._session.spawn(f"prometheus-{endpoint}", "prometheus", *arguments)

    # Play and ask.

    async def _play(self) -> None:
        refused = self._session.event_log()
        await refused.start(lambda *_: None)
        await self._scraped_before()
        await refused.append("contexts", 0, b"no record at all")
        await refused.stop()
        calling = asyncio.create_task(self._call_gateway())
        try:
            await self._sample.play(self._session.event_log())
            await asyncio.sleep(2 * SCRAPES_AFTER)
        finally:
            calling.cancel()
            await asyncio.wait([calling])
        if not calling.cancelled():
            calling.result()

    async def _call_gateway(self) -> None:
        """Until cancelled, call every two seconds: one answer, one refusal, and callers who are turned away."""
        good, bad = {}, {"no_such_feature": 1}
        base = f"{self._gateway}/v1/decide"
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
                if time.monotonic() > deadline:
                    raise HushstreamError(
                        f"{endpoint}: expected {counter} to be scraped {SCRAPES_BEFORE} times, it was not"
                    )
                await asyncio.sleep(0.2)

    def _get(self, endpoint: Endpoint, what: str, **parameters: str) -> list[Any]:
        url = f"http://127.0.0.1:{self._ports[endpoint]}/api/v1/{what}"
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
