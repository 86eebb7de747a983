"""kill -9 of a gateway in mid-load: what it said is in the log, and each reward that it took counts once."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from typing import Any

import aiohttp
import pytest

from hushstream.replay.runners.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.process]

KILLS = 2
CALLERS = 8


async def test_what_a_killed_gateway_said_is_in_the_log_and_counts_once(gateways: Any, tmp_path: Any) -> None:
    logged: dict[str, int] = {}
    rewarded: dict[str, float] = {}
    stop = asyncio.Event()
    ports = [free_port() for _ in range(KILLS + 1)]
    current = [0]
    shoppers: list[asyncio.Task[None]] = []

    async def shopper(session: aiohttp.ClientSession, number: int) -> None:
        """Decide and reward; whoever gets no answer asks again under the same id, another gateway if need be."""
        visit = 0
        while not stop.is_set():
            event, user = f"e-{number}-{visit}", f"user-{number}"
            asked = {"event_id": event, "user": user, "context": [0.5, 0.5]}
            decided = await insist(session, "decide", asked)
            if decided is None:
                return
            if decided["logged"]:
                logged[event] = decided["item"]
                reward = float((number + visit) % 2)
                told = {"event_id": event, "user": user, "item": decided["item"], "reward": reward}
                if await insist(session, "reward", told) is not None:
                    rewarded[event] = reward
            visit += 1

    async def goes_on(before: int) -> bool:
        for task in shoppers:
            if task.done():
                task.result()
        return len(rewarded) > before + 40

    async def insist(session: aiohttp.ClientSession, call: str, body: Any) -> Any:
        while not stop.is_set():
            url = f"http://127.0.0.1:{ports[current[0]]}/v1/{call}"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(url, json=body, timeout=aiohttp.ClientTimeout(20)) as response:
                    if response.status == 200:
                        return await response.json()
                    assert response.status in (429, 503), await response.text()
            await asyncio.sleep(0.05)
        return None

    async with gateways.placed("pdap", tmp_path / "d") as place, place.worker():
        async with aiohttp.ClientSession() as session, contextlib.AsyncExitStack() as stack:
            running = await _started(stack, place, gateways, ports[0])
            shoppers += [asyncio.create_task(shopper(session, number)) for number in range(CALLERS)]
            for kill in range(KILLS):
                following = await _started(stack, place, gateways, ports[kill + 1])
                before = len(rewarded)

                await gateways.until(lambda before=before: goes_on(before), 120.0)
                running.process.kill()
                current[0] = kill + 1
                await running.process.wait()
                running = following
            before = len(rewarded)
            await gateways.until(lambda: goes_on(before), 120.0)
            stop.set()
            await asyncio.gather(*shoppers)

        decided = {}
        for row in await place.rows("decisions.north", "Decisions"):
            arms = memoryview(row["arms"]).cast("i").tolist()
            for event, arm in zip(row["event_ids"], arms, strict=True):
                assert decided.setdefault(event, arm) == arm, "an event is decided once, and repeated alike"
        assert {event: decided.get(event) for event in logged} == logged
        told: dict[str, set[float]] = {}
        times: Counter[str] = Counter()
        for row in await place.rows("clicks.north", "Feedback"):
            told.setdefault(row["event_id"], set()).add(row["reward"])
            times[row["event_id"]] += 1
        # A record may be there twice, where its first answer was lost; learners count the first of equal ones.
        assert {event: told.get(event) for event in rewarded} == {event: {value} for event, value in rewarded.items()}
        assert len(logged) > 40 * KILLS


async def _started(stack: contextlib.AsyncExitStack, place: Any, gateways: Any, port: int) -> Any:
    """A gateway of its own process, which ends with the stack at the latest."""
    running = await stack.enter_async_context(place.gateway_process(port, kill=True))
    async with gateways.calling(port):
        return running
