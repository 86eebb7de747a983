"""kill -9 of gateway, learner or broker in mid-load: what was said is in the log, and each reward taken counts once.

How long the longest answer took is printed, not asserted: it hangs on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hushstream.replay.runners.stream import free_port

pytestmark = [pytest.mark.slow, pytest.mark.process]

KILLS = 2
CALLERS = 8
GOES_ON = 40
"""Rewards that are taken before the next kill."""


class Shoppers:
    """Who decide and reward, over and over; whoever gets no answer asks again under the same id.

    Attributes:
        port: of the gateway that they ask now.
        logged: the item of each event that was decided.
        alone: events that were answered by the baseline.
        rewarded: the reward of each event that was taken.
        longest: seconds that the longest answer took, whatever it said.
    """

    def __init__(self, session: aiohttp.ClientSession, port: int) -> None:
        self.port = port
        self.logged: dict[str, int] = {}
        self.alone: set[str] = set()
        self.rewarded: dict[str, float] = {}
        self.longest = 0.0
        self._session, self._stop = session, asyncio.Event()
        self._tasks = [asyncio.create_task(self._shop(number)) for number in range(CALLERS)]

    async def go_on(self, gateways: Any) -> None:
        """Wait until many more rewards were taken."""
        before = len(self.rewarded)

        async def gone_on() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return len(self.rewarded) > before + GOES_ON

        await gateways.until(gone_on, 120.0)

    async def end(self) -> None:
        """Stop, once each has the answer that it waits for."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _shop(self, number: int) -> None:
        visit = 0
        while not self._stop.is_set():
            event, user = f"e-{number}-{visit}", f"user-{number}"
            asked = {"event_id": event, "user": user, "context": [0.5, 0.5], "baseline": 0}
            decided = await self._insist("decide", asked)
            if decided is None:
                return
            if decided["logged"]:
                self.logged[event] = decided["item"]
                reward = float((number + visit) % 2)
                told = {"event_id": event, "user": user, "item": decided["item"], "reward": reward}
                if await self._insist("reward", told) is not None:
                    self.rewarded[event] = reward
            else:
                assert decided["item"] == 0
                self.alone.add(event)
            visit += 1

    async def _insist(self, call: str, body: Any) -> Any:
        while not self._stop.is_set():
            url = f"http://127.0.0.1:{self.port}/v1/{call}"
            asked = time.monotonic()
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with self._session.post(url, json=body, timeout=aiohttp.ClientTimeout(20)) as response:
                    self.longest = max(self.longest, time.monotonic() - asked)
                    if response.status == 200:
                        return await response.json()
                    assert response.status in (429, 503), await response.text()
            await asyncio.sleep(0.05)
        return None


async def require_logged(place: Any, shoppers: Shoppers) -> None:
    """Whatever was said is in the log, once and alike."""
    decided: dict[str, int] = {}
    for row in await place.rows("decisions.north", "Decisions"):
        arms = memoryview(row["arms"]).cast("i").tolist()
        for event, arm in zip(row["event_ids"], arms, strict=True):
            assert decided.setdefault(event, arm) == arm, "an event is decided once, and repeated alike"
    assert {event: decided.get(event) for event in shoppers.logged} == shoppers.logged
    told = await told_of(place)
    # A record may be there twice, where its first answer was lost; learners count the first of equal ones.
    assert {event: told.get(event) for event in shoppers.rewarded} == {
        event: {value} for event, value in shoppers.rewarded.items()
    }
    assert len(shoppers.logged) > GOES_ON * KILLS


async def told_of(place: Any) -> dict[str, set[float]]:
    """The rewards in the log, by event."""
    told: dict[str, set[float]] = {}
    for row in await place.rows("clicks.north", "Feedback"):
        told.setdefault(row["event_id"], set()).add(row["reward"])
    return told


async def require_counted_once(place: Any, gateways: Any, session: aiohttp.ClientSession, zone_port: int) -> None:
    """The learner, which was never killed, has counted as many rewards as there are events with one in the log."""
    told = await told_of(place)
    line = 'hushstream_events_total{outcome="rewarded",role="learner.north"}'

    async def counted() -> float:
        async with session.get(f"http://127.0.0.1:{zone_port}/metrics") as response:
            lines = (await response.text()).splitlines()
        return sum(float(one.rpartition(" ")[2]) for one in lines if one.startswith(line))

    async def all_counted() -> bool:
        return await counted() >= len(told)

    await gateways.until(all_counted, 60.0)
    assert await counted() == len(told)


async def test_what_a_killed_gateway_said_is_in_the_log_and_counts_once(gateways: Any, tmp_path: Any) -> None:
    ports = [free_port() for _ in range(KILLS + 1)]
    zone = ("--zone-metrics-port", str(zone_port := free_port()))
    async with gateways.placed("pdap", tmp_path / "d") as place, place.worker(*zone):
        async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
            running = await _started(stack, place, gateways, ports[0])
            shoppers = Shoppers(session, ports[0])
            for port in ports[1:]:
                following = await _started(stack, place, gateways, port)
                await shoppers.go_on(gateways)
                running.process.kill()
                shoppers.port = port
                await running.process.wait()
                running = following
            await shoppers.go_on(gateways)
            await shoppers.end()
            await require_counted_once(place, gateways, session, zone_port)
        await require_logged(place, shoppers)
    print(f"a gateway killed {KILLS} times: {len(shoppers.logged)} logged, longest answer {shoppers.longest:.2f} s")


async def test_while_a_killed_learner_is_away_callers_get_the_baseline_and_nothing_is_lost(
    gateways: Any, tmp_path: Any
) -> None:
    port = free_port()
    async with gateways.placed("pdap", tmp_path / "d") as place:
        async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
            learner = await stack.enter_async_context(place.worker(kill=True))
            await _started(stack, place, gateways, port)
            shoppers = Shoppers(session, port)
            for _ in range(KILLS):
                await shoppers.go_on(gateways)
                learner.process.kill()
                await learner.process.wait()
                alone = len(shoppers.alone)

                async def answered(alone: int = alone) -> bool:
                    return len(shoppers.alone) > alone + CALLERS

                await gateways.until(answered, 120.0)
                learner = await stack.enter_async_context(place.worker(kill=True))
            await shoppers.go_on(gateways)
            await shoppers.end()
        await require_logged(place, shoppers)
    print(f"a learner killed {KILLS} times: {len(shoppers.logged)} logged, longest answer {shoppers.longest:.2f} s")


GIVEN = os.environ.get("HUSHSTREAM_TEST_THREE")
THREE = Path(GIVEN).resolve() if GIVEN else None
LOCAL = Path(__file__).parents[2] / "deploy" / "kafka" / "local.py"


@pytest.fixture
def bootstrap() -> str:
    assert THREE is not None
    return (THREE / "bootstrap").read_text(encoding="utf-8")


async def _local(command: str, broker: int) -> None:
    arguments = [sys.executable, str(LOCAL), command, str(broker), "--folder", str(THREE)]
    process = await asyncio.create_subprocess_exec(*arguments)
    assert await process.wait() == 0


@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    not THREE,
    reason="needs three brokers of Apache Kafka: start them with `make kafka-up-three` and set HUSHSTREAM_TEST_THREE "
    "to their folder",
)
async def test_while_brokers_are_killed_callers_are_answered_and_nothing_is_lost(
    gateways: Any, bootstrap: str, tmp_path: Any
) -> None:
    port, zone_port = free_port(), free_port()
    name = f"shop-{uuid.uuid4().hex[:8]}"
    async with (
        gateways.placed("pdap", tmp_path / "d", bootstrap=bootstrap, deployment=name) as place,
        place.worker("--zone-metrics-port", str(zone_port)),
        aiohttp.ClientSession() as session,
        contextlib.AsyncExitStack() as stack,
    ):
        await _started(stack, place, gateways, port)
        shoppers = Shoppers(session, port)
        for broker in (1, 2, 3):
            await shoppers.go_on(gateways)
            await _local("kill", broker)
            await shoppers.go_on(gateways)
            await _local("start", broker)
        await shoppers.go_on(gateways)
        await shoppers.end()
        await require_counted_once(place, gateways, session, zone_port)
        await require_logged(place, shoppers)
    print(f"three brokers killed in turn: {len(shoppers.logged)} logged, longest answer {shoppers.longest:.2f} s")


async def _started(stack: contextlib.AsyncExitStack, place: Any, gateways: Any, port: int) -> Any:
    """A gateway of its own process, which ends with the stack at the latest."""
    running = await stack.enter_async_context(place.gateway_process(port, kill=True))
    async with gateways.calling(port):
        return running
