"""Measures the rate and latency of decisions over HTTP.

It runs one embedded broker, one learner, one gateway and the callers (`hushstream.replay.bench.http_load`), each as a
process on this machine; then two learners and two gateways on the same broker. Besides latencies there is the CPU time
of each process. On a shared machine this figure says what more cores would bring.

`hushstream bench --only peers` compares it with servers that a team would write without a log.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import uvloop

from hushstream.agents.worker.deployment import parse_config
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.bench import baselines
from hushstream.replay.bench.http_load import post, send_at_rate
from hushstream.replay.bench.load import make_load
from hushstream.replay.bench.processes import Running, broker_process, prepared, process_seconds, started
from hushstream.replay.experiments.rows import BenchFailed, BenchRow, Progress, figure
from hushstream.replay.runners.stream import free_port

ARMS, DIMENSION, USERS = 10, 10, 400
CONFIGURATION = {
    "deployment": "bench-gateway",
    "expected_slots": 10_000,
    "items": {"capacity": ARMS},
    "features": {"dimension": DIMENSION, "digits": 1},
    "encoder": {"codes": 16},
}
START_SECONDS = 300.0
SUSTAINED_SECONDS = 0.1
"""A rate is sustained if the 99th percentile of its latencies is at most this."""

EACH = 250.0
"""The requests per second of each gateway when one of each process is compared with two of each."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result for one rate.

    Attributes:
        rate: requests a second that were sent.
        answered: requests a second that were answered with a logged decision.
        seconds: latencies at the 50th and 99th percentile.
        refused: requests without such an answer.
        cpu: CPU seconds of each kind of process for one request that was answered.
    """

    rate: float
    answered: float
    seconds: tuple[float, float]
    refused: int
    cpu: Mapping[str, float] = field(default_factory=dict)

    @property
    def sustained(self) -> bool:
        """Whether all requests were answered with a logged decision, and fast enough."""
        return not self.refused and self.seconds[1] < SUSTAINED_SECONDS

    def a_cpu_second(self, *kinds: str) -> float:
        """Requests answered per CPU second of these kinds of processes."""
        return 1.0 / max(1e-9, sum(self.cpu[kind] for kind in kinds))


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers that are measured.

    Attributes:
        urls: their addresses.
        processes: the processes whose CPU time counts, by kind.
    """

    urls: Sequence[str]
    processes: Mapping[str, Sequence[Running]]

    def cpu(self) -> dict[str, float]:
        """CPU seconds of each kind so far.

        Raises:
            BenchFailed: a process has ended.
        """
        for running in self.processes.values():
            for one in running:
                one.check()
        return {
            kind: sum(process_seconds(one.process.pid) for one in running) for kind, running in self.processes.items()
        }


async def measure(servers: Servers, rate: float, seconds: float, seed: int) -> Row:
    """Send requests at a fixed rate.

    Args:
        servers: the servers.
        rate: requests per second.
        seconds: for how long.
        seed: the seed of users and contexts; event ids begin with it.

    Raises:
        BenchFailed: a process has ended.
    """
    count = round(rate * seconds)
    load = make_load(count, USERS, DIMENSION, seed)
    requests = [
        post("/v1/decide", json.dumps({"event_id": f"{seed}-{event}", "user": user, "context": context}).encode())
        for event, user, context in zip(load.event_ids, load.users, load.contexts.tolist(), strict=True)
    ]
    before, own = servers.cpu(), time.process_time()
    found = await send_at_rate(servers.urls, requests, rate)
    after, own = servers.cpu(), time.process_time() - own
    times = found.latencies
    p50, p99 = np.percentile(times, (50, 99)) if times else (float("inf"),) * 2
    each = max(1, len(times))
    cpu = {**{kind: (after[kind] - before[kind]) / each for kind in after}, "callers": own / each}
    return Row(rate, len(times) / found.took, (float(p50), float(p99)), found.refused, cpu)


@asynccontextmanager
async def deployed(folder: Path, of_each: int = 1) -> AsyncIterator[Servers]:
    """Start a broker and ``of_each`` gateways, learners and partitions of one deployment; wait for logged decisions."""
    system = prepared(folder, parse_config({**CONFIGURATION, "partitions": {"learner": of_each}}))
    async with AsyncExitStack() as stack:
        bootstrap, broker = await stack.enter_async_context(broker_process(folder))
        await apply_async(Connection(bootstrap, f"{system.config.deployment}."), system)
        common = ["--deployment", str(folder), "--bootstrap", bootstrap]
        worker = ["-m", "hushstream.cli", "worker"]
        learners, gateways, urls = [], [], []
        for number in range(of_each):
            state = ["--state", str(folder / f"state-{number}")]
            learner = started(f"learner-{number}", [*worker, "learner", *common, *state], folder)
            learners.append(await stack.enter_async_context(learner))
            port = free_port()
            settings = folder / f"gateway-{number}.yaml"
            settings.write_text(_SETTINGS.format(port=port), encoding="utf-8")
            gateway = started(f"gateway-{number}", [*worker, "gateway", *common, "--gateway", str(settings)], folder)
            gateways.append(await stack.enter_async_context(gateway))
            urls.append(f"http://127.0.0.1:{port}")
        servers = Servers(urls, {"gateway": gateways, "learner": learners, "broker": [broker]})
        await _until_they_answer(servers)
        yield servers


_SETTINGS = "port: {port}\nrequests_per_second: 100000\nburst: 100000\nin_flight: 2048\n"


@asynccontextmanager
async def baseline(name: str, folder: Path) -> AsyncIterator[Servers]:
    """Start a server of `hushstream.replay.bench.baselines`, and wait until it answers."""
    port = free_port()
    async with started(name, ["-m", baselines.__name__, name, str(port), str(ARMS)], folder) as server:
        servers = Servers([f"http://127.0.0.1:{port}"], {name: [server]})
        await _until_they_answer(servers)
        yield servers


async def _until_they_answer(servers: Servers) -> None:
    deadline = time.monotonic() + START_SECONDS
    # Wait for two seconds without a refusal: by then the partitions are distributed among the learners.
    while (await measure(servers, 50, 2, time.monotonic_ns())).refused:
        if time.monotonic() > deadline:
            raise BenchFailed(f"expected decisions within {START_SECONDS:g} s")


RATES = (500.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 6000.0)


def gateway_rows(progress: Progress, rates: Sequence[float] = RATES, seconds: float = 10.0) -> list[BenchRow]:
    """Measure one gateway at rising rates until one is not sustained, and two of each process at twice a rate.

    Args:
        progress: called with what is being measured.
        rates: requests per second, rising.
        seconds: for how long each is measured.

    Raises:
        BenchFailed: a process has ended.
    """
    rows: list[BenchRow] = uvloop.run(_measured(progress, rates, seconds))
    return rows


async def _measured(progress: Progress, rates: Sequence[float], seconds: float) -> list[BenchRow]:
    with tempfile.TemporaryDirectory(prefix="hushstream-gateway-") as folder:
        async with deployed(Path(folder, "one")) as servers:
            rising = await measure_rising(servers, rates, seconds, progress)
            progress("gateway: one and two of each")
            one = await measure(servers, EACH, seconds, len(rates))
        async with deployed(Path(folder, "two"), of_each=2) as servers:
            two = await measure(servers, 2 * EACH, seconds, 0)
    each, both = (row.a_cpu_second("gateway", "learner") for row in (one, two))
    most = max((row.rate for row in rising if row.sustained), default=0.0)
    return [
        figure(f"gateway, highest rate with a p99 below {1000 * SUSTAINED_SECONDS:.0f} ms", [most], "requests/s"),
        *(row for found in rising for row in _rows(found)),
        figure("gateway, two of each over one, requests a CPU second of gateways and learners", [both / each], "x"),
    ]


def _rows(found: Row) -> Iterator[BenchRow]:
    name = f"gateway at {found.rate:g} requests/s"
    yield figure(f"{name}: answered", [found.answered], "requests/s")
    yield figure(f"{name}: refused", [float(found.refused)], "requests")
    for share, latency in zip(("p50", "p99"), found.seconds, strict=True):
        yield figure(f"{name}: {share}", [1000 * latency], "ms")
    for kind, spent in found.cpu.items():
        yield figure(f"{name}: {kind}", [1e6 * spent], "CPU us/request")


async def measure_rising(servers: Servers, rates: Sequence[float], seconds: float, progress: Progress) -> list[Row]:
    """Measure increasing rates until one is not sustained."""
    rows: list[Row] = []
    for number, rate in enumerate(rates):
        progress(f"gateway: {rate:g} requests/s")
        rows.append(await measure(servers, rate, seconds, number))
        if not rows[-1].sustained and number:
            break
    return rows
