"""Simulated visitors: they ask a gateway over HTTP, as fast as it answers up to a pace, and buy by their taste."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from hushstream.replay.shop.taste import KINDS, Visitor
from hushstream.schemas.errors import HushstreamError

VISITS = 3
BATCH = 64
BATCHES_AT_ONCE = 4
VISITS_PER_SECOND = 600
"""At most. A slot leaves 10 s after its visits: those who come within that time teach nobody."""
BIN_VISITS = 1000
"""A point of the curve."""
START_SECONDS = 120.0
_AGAIN_SECONDS = 0.2
_BUSY = frozenset({429, 503})


class GatewayRefused(HushstreamError):
    """The gateway refused what the visitors ask."""


@dataclass(slots=True)
class Tally:
    """What became of the visits so far.

    Attributes:
        bins: visits and purchases, `BIN_VISITS` visits at a time.
        alone: visits and purchases of those whom no model answered yet.
        version: of the newest model that an answer was given by.
    """

    bins: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    alone: list[int] = field(default_factory=lambda: [0, 0])
    version: int = 0

    @property
    def visits(self) -> int:
        """All so far."""
        return sum(visits for visits, _ in self.bins)

    def note(self, bought: bool, version: int) -> None:
        """A visit has ended."""
        if self.bins[-1][0] >= BIN_VISITS:
            self.bins.append([0, 0])
        for counted in (self.bins[-1], *([] if version else [self.alone])):
            counted[0] += 1
            counted[1] += bought
        self.version = max(self.version, version)


class Traffic:
    """Sends visitors."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, visitors: Sequence[Visitor], seed: int) -> None:
        """Over an HTTP session; nobody has come yet."""
        self.tally = Tally()
        self.goods: dict[str, Mapping[str, Any]] = {}
        """Every item that was ever seen on offer, by its id: what it is made for."""
        self._session, self._gateway = session, gateway
        self._waiting = _batches(visitors)
        self._draws = random.Random(seed)
        self._next_seconds = 0.0
        """When the next visits are due, by the clock of the loop."""

    async def run(self) -> None:
        """Until all have come.

        Raises:
            GatewayRefused: a request is one that it does not take.
        """
        await asyncio.gather(*(self._take_turns() for _ in range(BATCHES_AT_ONCE)))

    async def _take_turns(self) -> None:
        for batch in self._waiting:
            for visit in range(VISITS):
                await self._visit(batch, visit)

    async def _keep_pace(self, visits: int) -> None:
        now_seconds = asyncio.get_running_loop().time()
        due_seconds = max(now_seconds, self._next_seconds)
        self._next_seconds = due_seconds + visits / VISITS_PER_SECOND
        await asyncio.sleep(due_seconds - now_seconds)

    async def _visit(self, batch: Sequence[Visitor], visit: int) -> None:
        await self._keep_pace(len(batch))
        # Without a baseline: visitors ask again until a learner answers.
        asked = [{"event_id": f"{one.name}-{visit}", "user": one.name, "context": one.context} for one in batch]
        answers = await self._post("decide", asked)
        await self._post("shown", [{"event_id": answer["event_id"]} for answer in answers])
        bought = []
        for one, answer in zip(batch, answers, strict=True):
            buys = self._draws.random() < one.chance(await self._made_for(answer["item"]))
            self.tally.note(buys, answer["model_version"])
            if buys:
                bought.append({"event_id": answer["event_id"], "reward": 1.0})
        if bought:
            await self._post("reward", bought)

    async def _made_for(self, item: str) -> Mapping[str, Any]:
        """For whom an item is: its public features, as everybody sees them."""
        if item not in self.goods:
            async with self._session.get(f"{self._gateway}/v1/items") as response:
                found = await response.json()
            self.goods.update((one["item"], one["features"]) for one in found["items"])
        # One that was withdrawn before anybody saw it on offer is bought as seldom as one made for nobody.
        return self.goods.setdefault(item, {})

    async def _post(self, call: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers to requests; those that may be tried again are, under their own event ids."""
        answers: dict[str, dict[str, Any]] = {}
        left = list(requests)
        while left:
            for request, answer in zip(left, await self._batch(call, left), strict=True):
                if answer.get("status") in _BUSY:
                    continue
                if "code" in answer:
                    raise GatewayRefused(f"{call}: expected an answer, got {answer['code']}: {answer['detail']}")
                answers[request["event_id"]] = answer
            left = [request for request in left if request["event_id"] not in answers]
            if left:
                await asyncio.sleep(_AGAIN_SECONDS)
        return [answers[request["event_id"]] for request in requests]

    async def _batch(self, call: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        async with self._session.post(f"{self._gateway}/v1/{call}/batch", json={"requests": requests}) as response:
            found = await response.json(content_type=None)
        return [found] * len(requests) if "code" in found else list(found["answers"])


def _batches(visitors: Sequence[Visitor]) -> Iterator[Sequence[Visitor]]:
    for start in range(0, len(visitors), BATCH):
        yield visitors[start : start + BATCH]


async def until_a_learner_answers(session: aiohttp.ClientSession, gateway: str) -> None:
    """Wait for the gateway, and for a learner behind it.

    Raises:
        GatewayRefused: nobody answers for long.
    """
    asked = {"event_id": "first", "user": "shopkeeper", "context": KINDS[0].context}
    try:
        async with asyncio.timeout(START_SECONDS):
            while True:
                try:
                    async with session.post(f"{gateway}/v1/decide", json=asked) as response:
                        if response.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass  # It does not listen yet.
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError:
        raise GatewayRefused(f"expected an answer within {START_SECONDS:g} s, got none") from None
