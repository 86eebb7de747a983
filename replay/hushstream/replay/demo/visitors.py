"""Simulated visitors of the demo's shop: they call a gateway over HTTP, as an application or as devices do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from hushstream.client.items import Item
from hushstream.replay.worlds.shop import ITEMS, ShopWorld, shop
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.edge.device import Agreement, Device

GOODS = tuple(Item(title.replace(" ", "-"), title) for title in ITEMS)
"""The items of the shop under the names by which the application knows them."""

VISITS = 5
"""The number of visits of one visitor; then a new visitor comes, who starts from the shared model."""

_PAUSE_SECONDS = 0.1
"""The shortest time between two visits of one visitor."""

_MOST_VISITORS = 2**31
_GROUP = 20
"""The most visitors whose requests travel together."""

_AGAIN_SECONDS = 0.2
_BUSY = frozenset({429, 503})
_OK, _NO_CONTENT = 200, 204


class GatewayRefused(HushstreamError):
    """The gateway refused a request of the visitors."""


@dataclass(slots=True)
class Tally:
    """What the visitors have met so far.

    Attributes:
        visitors: how many have come.
        answered: number of visits that a learner answered.
        alone: number of visits that got their own baseline, as no learner answered.
        answered_at: time of a learner's last answer, on the monotonic clock.
    """

    visitors: int = 0
    answered: int = 0
    alone: int = 0
    answered_at: float = 0.0


class Visitors:
    """Visitors of a gateway in front of learners, without end."""

    def __init__(
        self, session: aiohttp.ClientSession, gateway: str, config: P2BConfig, visitors_at_once: int, seed: int
    ) -> None:
        """Use an HTTP session; tastes are partly drawn from the seed."""
        self.tally = Tally()
        self.answered = asyncio.Event()
        """Set by every answer of a learner; code that waits for an answer clears it first."""
        self._session, self._gateway = session, gateway
        self._features = tuple(config.context.schema.features)
        self._world: ShopWorld = shop(users=_MOST_VISITORS, rounds=VISITS, seed=seed)
        self._items = {one.item: arm for arm, one in enumerate(GOODS)}
        self._baselines = [one.item for one in GOODS[: config.arms]]
        self._at_once = visitors_at_once
        self._open = asyncio.Event()
        self._open.set()
        self._under_way = 0
        self._empty = asyncio.Event()
        self._empty.set()

    async def run(self) -> None:
        """Play visitors until this is cancelled.

        Raises:
            GatewayRefused: the gateway does not accept a request.
        """
        async with asyncio.TaskGroup() as tasks:
            for first in range(0, self._at_once, _GROUP):
                tasks.create_task(self._play_group(min(_GROUP, self._at_once - first)))

    async def pause(self) -> None:
        """Start no visit until `resume`, and wait for the visits that have started."""
        self._open.clear()
        await self._empty.wait()

    def resume(self) -> None:
        """Start visits again."""
        self._open.set()

    async def _play_group(self, size: int) -> None:
        """Play visitors who come at the same time, again and again."""
        while True:
            users = np.arange(self.tally.visitors, self.tally.visitors + size)
            self.tally.visitors += size
            for visit in range(VISITS):
                await self._open.wait()
                with self._visiting():
                    await self._visit(users, visit)
                await asyncio.sleep(_PAUSE_SECONDS)

    @contextmanager
    def _visiting(self) -> Iterator[None]:
        self._under_way += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._empty.set()

    def _contexts(self, users: np.ndarray[Any, np.dtype[np.int64]], visit: int) -> list[dict[str, Any]]:
        """What the application knows of a visit: the features that the configuration declares."""
        seen = self._world.contexts(users, visit)
        return [{name: values[name] for name in self._features} for values in seen]

    async def _visit(self, users: np.ndarray[Any, np.dtype[np.int64]], visit: int) -> None:
        asked = [
            {
                "event_id": f"visit-{user}-{visit}",
                "user": f"visitor-{user}",
                "context": context,
                "baseline": self._baselines[(int(user) + visit) % len(self._baselines)],
            }
            for user, context in zip(users, self._contexts(users, visit), strict=True)
        ]
        answers = await self._post("decide", asked)
        self._count(answers)
        rewards = self._world.rewards(users, visit, np.array([self._items[one["item"]] for one in answers]))
        # Feedback on an answer that is not logged would be refused.
        learned = [(one["event_id"], float(won)) for one, won in zip(answers, rewards, strict=True) if one["logged"]]
        await self._post("shown", [{"event_id": event} for event, _ in learned])
        await self._post("reward", [{"event_id": event, "reward": won} for event, won in learned if won])

    def _count(self, answers: Sequence[Mapping[str, Any]]) -> None:
        by_learner = sum(bool(one["logged"]) for one in answers)
        self.tally.answered += by_learner
        self.tally.alone += len(answers) - by_learner
        if by_learner:
            self.tally.answered_at = time.monotonic()
            self.answered.set()

    async def _post(self, call: str, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Send requests and return the answers; one that may be tried again is repeated under its event id."""
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


class DeviceVisitors:
    """Visitors with devices of their own, without end: each visits three times, and sends one report when it is due."""

    VISITS = 3
    _ROUND_SECONDS = 0.5
    _AT_ONCE = 32

    def __init__(self, session: aiohttp.ClientSession, gateway: str, visitors_a_second: int, seed: int) -> None:
        """Use an HTTP session without cookies."""
        self.tally = Tally()
        self.agreement = b""
        """What the gateway tells every device; empty before `begin`."""
        self._session, self._gateway = session, gateway
        self._a_round = max(1, round(visitors_a_second * self._ROUND_SECONDS))
        self._world = shop(users=_MOST_VISITORS, rounds=self.VISITS, seed=seed)
        self._model: bytes | None = None
        self._tag = ""
        self._waiting: list[tuple[int, int, Device]] = []
        self._numbers = itertools.count()

    async def begin(self) -> None:
        """Fetch the agreement.

        Raises:
            GatewayRefused: the gateway has none.
        """
        async with self._session.get(f"{self._gateway}/v1/agreement") as answer:
            if answer.status != _OK:
                raise GatewayRefused(f"agreement: expected status {_OK}, got {answer.status}")
            self.agreement = await answer.read()

    async def run(self) -> None:
        """Play visitors until this is cancelled.

        Raises:
            GatewayRefused: the gateway refused a report.
        """
        agreement = Agreement.read(self.agreement)
        while True:
            began = time.monotonic()
            await self._fetch_model()
            users = np.arange(self.tally.visitors, self.tally.visitors + self._a_round)
            self.tally.visitors += len(users)
            self._live(agreement, users)
            await self._send_due()
            await asyncio.sleep(max(0.0, self._ROUND_SECONDS - (time.monotonic() - began)))

    def _live(self, agreement: Agreement, users: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Play all visits of some visitors, each on a device."""
        now_ms = _now_ms()
        devices = [Device.begun(agreement, secrets.token_bytes) for _ in users]
        for device in devices:
            if self._model is not None:
                device.take(self._model, now_ms)
        for visit in range(self.VISITS):
            contexts = self._world.contexts(users, visit)
            arms = [
                device.decide(f"visit-{visit}", context, now_ms).arm
                for device, context in zip(devices, contexts, strict=True)
            ]
            rewards = self._world.rewards(users, visit, np.array(arms))
            for device, arm, won in zip(devices, arms, rewards, strict=True):
                device.shown(f"visit-{visit}", arm, now_ms)
                if won:
                    device.reward(f"visit-{visit}", arm, 1.0, now_ms)
        self.tally.answered += self.VISITS * len(users)
        for device in devices:
            due_ms = device.next_ms()
            if due_ms is not None:
                heapq.heappush(self._waiting, (due_ms, next(self._numbers), device))

    async def _send_due(self) -> None:
        due: list[Device] = []
        while self._waiting and self._waiting[0][0] <= _now_ms():
            due.append(heapq.heappop(self._waiting)[-1])
        # The gateway holds each report for a moment before it answers, so one after the other would take long.
        for first in range(0, len(due), self._AT_ONCE):
            await asyncio.gather(*map(self._send, due[first : first + self._AT_ONCE]))

    async def _send(self, device: Device) -> None:
        headers = {"Content-Type": "application/octet-stream"}
        for report in device.outgoing(_now_ms()):
            async with self._session.post(f"{self._gateway}/v1/slots", data=report.body, headers=headers) as answer:
                if answer.status != _NO_CONTENT:
                    raise GatewayRefused(f"slots: expected status {_NO_CONTENT}, got {answer.status}")
            device.handed_in(report.report_id)

    async def _fetch_model(self) -> None:
        """Fetch the newest model once for all devices, since all get the same bytes."""
        async with self._session.get(f"{self._gateway}/v1/model", headers={"If-None-Match": self._tag}) as answer:
            if answer.status == _OK:
                self._model, self._tag = await answer.read(), answer.headers["ETag"]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
