"""Simulated visitors: they call a gateway over HTTP, at most at a fixed pace, and buy by their taste."""

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
"""The most visits a second. A slot leaves 10 s after its visits, so visitors within this time do not learn from it."""
BIN_VISITS = 1000
"""The number of visits for each point of the curve."""
START_SECONDS = 120.0
_AGAIN_SECONDS = 0.2
_BUSY = frozenset({429, 503})


class GatewayRefused(HushstreamError):
    """The gateway refused a request of the visitors."""


@dataclass(slots=True)
class Tally:
    """The outcomes of the visits so far.

    Attributes:
        bins: visits and purchases, for each `BIN_VISITS` visits.
        alone: visits and purchases of visitors who were not yet answered by a model.
        version: the newest version of the model that gave an answer.
    """

    bins: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    alone: list[int] = field(default_factory=lambda: [0, 0])
    version: int = 0

    @property
    def visits(self) -> int:
        """How many visits there were so far."""
        return sum(visits for visits, _ in self.bins)

    def note(self, bought: bool, version: int) -> None:
        """Count a visit that has ended."""
        if self.bins[-1][0] >= BIN_VISITS:
            self.bins.append([0, 0])
        for counted in (self.bins[-1], *([] if version else [self.alone])):
            counted[0] += 1
            counted[1] += bought
        self.version = max(self.version, version)


class Traffic:
    """Plays the visitors."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, visitors: Sequence[Visitor], seed: int) -> None:
        """Use an HTTP session; no visitor has come yet."""
        self.tally = Tally()
        self.goods: dict[str, Mapping[str, Any]] = {}
        """The features of every item that was in the catalogue at some time, by its id."""
        self._session, self._gateway = session, gateway
        self._waiting = _batches(visitors)
        self._draws = random.Random(seed)
        self._next_seconds = 0.0
        """The time of the next visits, on the event loop's clock."""

    async def run(self) -> None:
        """Run until all visitors have come.

        Raises:
            GatewayRefused: the gateway does not accept a request.
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
        # Requests name no baseline, so visitors send them again until a learner answers.
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
        """The public features of an item, which say for which visitors it is made."""
        if item not in self.goods:
            async with self._session.get(f"{self._gateway}/v1/items") as response:
                found = await response.json()
            self.goods.update((one["item"], one["features"]) for one in found["items"])
        # An item that was withdrawn before its features were read is bought as rarely as one that suits no visitor.
        return self.goods.setdefault(item, {})

    async def _post(self, call: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests and return the answers; requests that may be tried again are repeated with their event ids."""
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
        GatewayRefused: no learner answered within the time limit.
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
                    pass  # The gateway does not listen yet.
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError:
        raise GatewayRefused(f"expected an answer within {START_SECONDS:g} s, got none") from None
