"""The shop whose visitors keep all data on their own devices: simulated devices, and the page of one more.

A simulated visitor is a Python device that makes three visits. It sends one slot, at the time that the agreement sets.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import json
import random
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from hushstream.replay.shop import taste
from hushstream.replay.shop.traffic import VISITS, VISITS_PER_SECOND, Tally
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.device.agreement import Agreement
from hushstream.systems.p2b.device.device import Device

_BUNDLE = Path("dist") / "edge.min.js"
_ROUND_SECONDS = 0.5
_AT_ONCE = 32
_NO_CONTENT = 204
_OK = 200


class DeviceTraffic:
    """Simulated visitors, each with a device."""

    def __init__(self, session: aiohttp.ClientSession, gateway: str, agreement: Agreement, seed: int) -> None:
        """Use an HTTP session without cookies; no visitor has come yet."""
        self.tally = Tally()
        self.handed_in = 0
        self._session, self._gateway, self._agreement = session, gateway, agreement
        self._draws = random.Random(seed)
        self._model: bytes | None = None
        self._tag = ""
        self._waiting: list[tuple[int, int, Device]] = []
        self._numbers = itertools.count()

    async def run(self, visitors: Sequence[taste.Visitor]) -> None:
        """Run until all visitors have come and their slots were sent.

        Raises:
            HushstreamError: the gateway refused a slot.
        """
        each_round = max(1, round(VISITS_PER_SECOND * _ROUND_SECONDS / VISITS))
        waiting = list(reversed(visitors))
        while waiting or self._waiting:
            began = time.monotonic()
            await self._fetch_model()
            for _ in range(min(each_round, len(waiting))):
                self._live(waiting.pop())
            await self._hand_in()
            await asyncio.sleep(max(0.0, _ROUND_SECONDS - (time.monotonic() - began)))

    def _live(self, one: taste.Visitor) -> None:
        """Play all visits of one visitor on their device."""
        device, now_ms = Device.begun(self._agreement, secrets.token_bytes), _now_ms()
        if self._model is not None:
            device.take(self._model, now_ms)
        for visit in range(VISITS):
            event = f"visit-{visit}"
            choice = device.decide(event, one.context, now_ms)
            device.shown(event, choice.arm, now_ms)
            buys = self._draws.random() < one.chance(taste.STOCK[choice.arm].features)
            self.tally.note(buys, choice.model_version)
            if buys:
                device.reward(event, choice.arm, 1.0, now_ms)
        due_ms = device.next_ms()
        if due_ms is not None:
            heapq.heappush(self._waiting, (due_ms, next(self._numbers), device))

    async def _hand_in(self) -> None:
        due: list[Device] = []
        while self._waiting and self._waiting[0][0] <= _now_ms():
            due.append(heapq.heappop(self._waiting)[-1])
        for first in range(0, len(due), _AT_ONCE):
            await asyncio.gather(*map(self._send, due[first : first + _AT_ONCE]))

    async def _send(self, device: Device) -> None:
        for slot in device.outgoing(_now_ms()):
            headers = {"Content-Type": "application/octet-stream"}
            async with self._session.post(f"{self._gateway}/v1/slots", data=slot.body, headers=headers) as answer:
                if answer.status != _NO_CONTENT:
                    raise HushstreamError(f"slots: expected the gateway to take one, got status {answer.status}")
            device.handed_in(slot.report_id)
            self.handed_in += 1

    async def _fetch_model(self) -> None:
        """Fetch the newest model once for all devices, since all get the same bytes."""
        async with self._session.get(f"{self._gateway}/v1/model", headers={"If-None-Match": self._tag}) as answer:
            if answer.status == _OK:
                self._model, self._tag = await answer.read(), answer.headers["ETag"]


@dataclass(slots=True)
class DeviceStorefront:
    """Serves the page of a device: its files, the package, the agreement and the names of the goods.

    Attributes:
        package: folder of the built package.
        agreement: the agreement as a file; None until the shop is open.
    """

    package: Path
    agreement: bytes | None = None
    _pages: dict[str, tuple[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read the pages.

        Raises:
            HushstreamError: the package is not built.
        """
        try:
            bundle = (self.package / _BUNDLE).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise HushstreamError(f"--devices: expected {self.package / _BUNDLE} (npm ci makes it), got none") from None
        page = files(__package__) / "page"
        shelf = [{"title": one.title, **one.features} for one in taste.STOCK]
        self._pages = {
            "/": ((page / "devices.html").read_text(encoding="utf-8"), "text/html"),
            "/devices.js": ((page / "devices.js").read_text(encoding="utf-8"), "text/javascript"),
            "/shop.css": ((page / "shop.css").read_text(encoding="utf-8"), "text/css"),
            "/edge.min.js": (bundle, "text/javascript"),
            "/shelf.json": (json.dumps(shelf), "application/json"),
        }

    def application(self, gateway: str) -> web.Application:
        """The web application of the page, which may call a gateway for devices."""
        policy = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' {gateway}"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}

        def gives(text: str, kind: str) -> Any:
            async def answer(_: web.Request) -> web.Response:
                return web.Response(text=text, content_type=kind, headers=headers)

            return answer

        async def agreed(_: web.Request) -> web.Response:
            if self.agreement is None:
                raise web.HTTPServiceUnavailable(headers=headers)
            said = json.dumps({"agreement": json.loads(self.agreement), "gateway": gateway})
            return web.Response(text=said, content_type="application/json", headers=headers)

        made = web.Application()
        made.add_routes([web.get(path, gives(*of)) for path, of in self._pages.items()])
        made.add_routes([web.get("/agreement.json", agreed)])
        return made


async def until_agreed(session: aiohttp.ClientSession, gateway: str) -> bytes:
    """Wait for the gateway and return the agreement; the caller watches the gateway's process."""
    while True:
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with session.get(f"{gateway}/v1/agreement") as answer:
                if answer.status == _OK:
                    return await answer.read()
        await asyncio.sleep(_ROUND_SECONDS)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
