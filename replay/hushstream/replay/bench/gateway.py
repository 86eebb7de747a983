"""How many decisions a gateway gives over HTTP, and how soon: ``python -m hushstream.replay.bench.gateway``.

One embedded broker, one learner, one gateway and the callers, each a process of its own on this machine. Requests leave
at a fixed rate, whether or not the answers to those before have come; a latency is counted from the moment at which its
request was due, so that a stall is counted for everybody who would have waited in it.

Where the package vowpalwabbit is installed, what a team would write without all this is measured in the same run
(`hushstream.replay.bench.vowpal`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import numpy as np

from hushstream.agents.worker.deployment import KEYS, parse_config, prepare
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench import vowpal
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.load import make_load
from hushstream.replay.bench.processes import Running, embedded_broker, started
from hushstream.replay.runners.ports import free_port

ARMS, DIMENSION, USERS = 10, 10, 400
CONFIGURATION = {
    "deployment": "bench-gateway",
    "expected_slots": 10_000,
    "items": {"capacity": ARMS},
    "features": {"dimension": DIMENSION, "digits": 1},
    "encoder": {"codes": 16},
}
START_SECONDS = 300.0
HOLDS_SECONDS = 0.1
"""The 99th percentile at which a rate is held."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one rate gave.

    Attributes:
        rate: requests a second that were sent.
        answered: requests a second that were answered with a logged decision.
        seconds: latencies at the 50th and 99th percentile.
        refused: requests that were not answered so.
    """

    rate: float
    answered: float
    seconds: tuple[float, float]
    refused: int

    @property
    def held(self) -> bool:
        """Whether all were answered, and soon."""
        return not self.refused and self.seconds[1] < HOLDS_SECONDS

    def __str__(self) -> str:
        """One line."""
        p50, p99 = (1000 * one for one in self.seconds)
        return (
            f"{self.rate:6.0f} requests/s: {self.answered:6.0f} answered/s, p50 {p50:6.1f} ms, p99 {p99:6.1f} ms, "
            f"{self.refused} refused"
        )


async def measure(url: str, rate: float, seconds: float, seed: int) -> Row:
    """Ask at a rate.

    Args:
        url: of the gateway.
        rate: requests a second.
        seconds: for how long.
        seed: of users and contexts; event ids begin with it.
    """
    count = round(rate * seconds)
    load = make_load(count, USERS, DIMENSION, seed)
    bodies = [
        json.dumps({"event_id": f"{seed}-{event}", "user": user, "context": context}).encode()
        for event, user, context in zip(load.event_ids, load.users, load.contexts.tolist(), strict=True)
    ]
    latencies: list[float] = []
    refused = 0
    begun = time.perf_counter() + 0.1

    async def ask(number: int) -> None:
        nonlocal refused
        due = begun + number / rate
        async with session.post("/v1/decide", data=bodies[number], headers=_JSON) as response:
            answer = await response.json(content_type=None)
        if response.status == 200 and answer["logged"]:
            latencies.append(time.perf_counter() - due)
        else:
            refused += 1

    connector = aiohttp.TCPConnector(limit=400)
    async with aiohttp.ClientSession(url, connector=connector) as session:
        tasks = []
        for number in range(count):
            wait = begun + number / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.create_task(ask(number)))
        await asyncio.gather(*tasks)
    took = time.perf_counter() - begun
    p50, p99 = np.percentile(latencies, (50, 99)) if latencies else (float("inf"),) * 2
    return Row(rate, len(latencies) / took, (float(p50), float(p99)), refused)


_JSON = {"Content-Type": "application/json"}


@asynccontextmanager
async def deployed(folder: Path) -> AsyncIterator[str]:
    """Broker, learner and gateway; gives the gateway's URL once a decision was logged."""
    system = prepare(folder, parse_config(CONFIGURATION))
    generate_keys(folder / KEYS, sorted({zone for role in system.roles for zone in role.key_zones}))
    port = free_port()
    settings = folder / "gateway.yaml"
    settings.write_text(
        f"port: {port}\nrequests_per_second: 100000\nburst: 100000\nin_flight: 2048\n", encoding="utf-8"
    )
    async with embedded_broker(folder) as bootstrap:
        await apply_async(Connection(bootstrap, f"{system.config.deployment}."), system)
        common = ["--deployment", str(folder), "--bootstrap", bootstrap]
        worker = ["-m", "hushstream.cli", "worker"]
        async with (
            started("learner", [*worker, "learner", *common], folder) as learner,
            started("gateway", [*worker, "gateway", *common, "--gateway", str(settings)], folder) as gateway,
        ):
            url = f"http://127.0.0.1:{port}"
            await _until_it_answers(url, learner, gateway)
            yield url


@asynccontextmanager
async def vowpal_wabbit(folder: Path) -> AsyncIterator[str]:
    """The yardstick; gives its URL once it has answered."""
    port = free_port()
    arguments = ["-m", "hushstream.replay.bench.vowpal", "--port", str(port), "--arms", str(ARMS)]
    async with started("vowpal", arguments, folder) as yardstick:
        url = f"http://127.0.0.1:{port}"
        await _until_it_answers(url, yardstick)
        yield url


async def _until_it_answers(url: str, *processes: Running) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not await _answers(url):
        for process in processes:
            process.check()
        if time.monotonic() > deadline:
            raise BenchFailed(f"expected a decision within {START_SECONDS:g} s")
        await asyncio.sleep(0.2)


async def _answers(url: str) -> bool:
    try:
        return not (await measure(url, 5, 1, time.monotonic_ns())).refused
    except aiohttp.ClientError:
        return False


async def climb(url: str, rates: Sequence[float], seconds: float) -> list[Row]:
    """Measure rates, from the lowest on, until one is not held."""
    rows: list[Row] = []
    for number, rate in enumerate(rates):
        rows.append(await measure(url, rate, seconds, number))
        print(rows[-1], flush=True)
        if not rows[-1].held and number:
            break
    return rows


def most_held(rows: Sequence[Row]) -> float:
    """The highest rate that was held, in requests a second; 0 where none was."""
    return max((row.rate for row in rows if row.held), default=0.0)


async def run(rates: Sequence[float], seconds: float) -> None:
    """Measure the gateway and, where it is installed, the yardstick; print both."""
    below = f"with a p99 below {1000 * HOLDS_SECONDS:.0f} ms"
    with tempfile.TemporaryDirectory() as folder:
        async with deployed(Path(folder)) as url:
            own = most_held(await climb(url, rates, seconds))
        print(f"the most that was held {below}: {own:.0f} requests/s")
        if not vowpal.is_installed():
            print(f"Vowpal Wabbit in one process: not measured; pip install {vowpal.PACKAGE}")
            return
        print("Vowpal Wabbit in one process, without a log:", flush=True)
        async with vowpal_wabbit(Path(folder)) as url:
            other = most_held(await climb(url, rates, seconds))
    print(
        f"the most that it held {below}: {other:.0f} requests/s; the gateway holds {own / max(other, 1.0):.2f} of that"
    )


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="How many decisions a gateway gives, and how soon.")
    parser.add_argument("--rates", default="500,1000,1500,2000,3000", help="requests a second, rising")
    parser.add_argument("--seconds", type=float, default=10.0, help="for how long each")
    given = parser.parse_args(arguments)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} before it began", flush=True)
    asyncio.run(run([float(rate) for rate in given.rates.split(",")], given.seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
