"""Simulated visitors: they ask a gateway over HTTP as fast as it answers, and buy by their taste."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from hushstream.replay.shop.taste import Visitor
from hushstream.schemas.errors import HushstreamError

VISITS = 3
BATCH = 64
BATCHES_AT_ONCE = 4
BIN_VISITS = 1000
"""A point of the curve."""
START_SECONDS = 120.0
_AGAIN_SECONDS = 0.2


class GatewayRefused(HushstreamError):
    """The gateway refused what the visitors ask."""


@dataclass(slots=True)
class Tally:
    """What became of the visits so far.

    Attributes:
        bins: visits and purchases, `BIN_VISITS` visits at a time.
        unlogged: answers that no learner gave.
        version: of the newest model that an answer was given by.
    """

    bins: list[list[int]] = field(default_factory=lambda: [[0, 0]])
    unlogged: int = 0
    version: int = 0

    @property
    def visits(self) -> int:
        """All so far."""
        return sum(visits for visits, _ in self.bins)

    def note(self, bought: bool, version: int) -> None:
        """A visit has ended."""
        if self.bins[-1][0] >= BIN_VISITS:
            self.bins.append([0, 0])
        self.bins[-1][0] += 1
        self.bins[-1][1] += bought
        self.version = max(self.version, version)


class Traffic:
    """Sends visitors."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, visitors: Sequence[Visitor], seed: int) -> None:
        """Over an HTTP session; nobody has come yet."""
        self.tally = Tally()
        self._session, self._gateway = session, gateway
        self._waiting = _batches(visitors)
        self._draws = random.Random(seed)

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

    async def _visit(self, batch: Sequence[Visitor], visit: int) -> None:
        asked = [
            {"event_id": f"{one.name}-{visit}", "user": one.name, "context": one.context, "baseline": 0}
            for one in batch
        ]
        answers = await self._post("decide", asked)
        logged = [(one, answer) for one, answer in zip(batch, answers, strict=True) if answer["logged"]]
        self.tally.unlogged += len(answers) - len(logged)
        if not logged:
            return
        await self._post("shown", [{"event_id": answer["event_id"]} for _, answer in logged])
        bought = []
        for one, answer in logged:
            buys = self._draws.random() < one.chance(answer["item"])
            self.tally.note(buys, answer["model_version"])
            if buys:
                bought.append({"event_id": answer["event_id"], "reward": 1.0})
        if bought:
            await self._post("reward", bought)

    async def _post(self, call: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """The answers to requests; those that may be tried again are, under their own event ids."""
        answers: dict[str, dict[str, Any]] = {}
        left = list(requests)
        while left:
            for request, answer in zip(left, await self._batch(call, left), strict=True):
                if answer.get("status") in (429, 503):
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
    asked = {"event_id": "first", "user": "shopkeeper", "context": Visitor("", "fr", "old").context}
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
