"""The page of the shop: it shows visitors and the items on offer, and changes the items."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from aiohttp import web

from hushstream.client.items import Items
from hushstream.replay.shop import taste
from hushstream.replay.shop.traffic import BIN_VISITS, VISITS, Traffic
from hushstream.schemas.errors import HushstreamError

_PAGES = {
    "/": ("shop.html", "text/html"),
    "/shop.js": ("shop.js", "text/javascript"),
    "/shop.css": ("shop.css", "text/css"),
}


@dataclass(frozen=True, slots=True)
class _Open:
    """The parts of an open shop.

    Attributes:
        items: the catalogue.
        traffic: its visitors.
        gateway: address of its gateway.
    """

    items: Items
    traffic: Traffic
    gateway: str


class Storefront:
    """The state that the page shows, and the changes that it may make."""

    def __init__(self, visitors: int) -> None:
        """Start closed, with the number of visitors that will come."""
        self._visits = visitors * VISITS
        self._open: _Open | None = None

    def open(self, items: Items, traffic: Traffic, gateway: str) -> None:
        """Open the shop: visitors come from now on."""
        self._open = _Open(items, traffic, gateway)

    def state(self) -> dict[str, Any]:
        """The state as plain values."""
        if self._open is None:
            return {"open": False}
        tally = self._open.traffic.tally
        shelf = [one for one in self._open.items.known() if one.offered]
        made_for = [one.features for one in shelf]
        return {
            "open": True,
            "gateway": self._open.gateway,
            "shelf": [{"item": one.item, "title": one.title, **one.features} for one in shelf],
            "countries": taste.COUNTRIES,
            "ages": taste.AGES,
            "visits": tally.visits,
            "expected_visits": self._visits,
            "expected_bins": -(-self._visits // BIN_VISITS),
            "bins": tally.bins,
            "version": tally.version,
            "chance": taste.blind_chance(made_for),
            "best": taste.best_chance(made_for),
        }

    async def change(self, call: str, asked: Any) -> None:
        """Add an item, or withdraw one, as the page asks.

        Raises:
            HushstreamError: the shop is closed, or the change is refused.
        """
        match call, asked:
            case _ if self._open is None:
                raise HushstreamError("the shop is closed")
            case "add", {"title": str(title), "country": str(country), "age": str(age)}:
                name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
                await self._open.items.add(name, title, {"country": country, "age": age})
            case "withdraw", {"item": str(item)}:
                await self._open.items.retire(item)
            case _:
                raise HushstreamError("expected add with title, country and age, or withdraw with item; got another")

    def application(self, gateway: str) -> web.Application:
        """The web application: the page, the state as JSON, and changes of items; the page may call a gateway."""
        policy = f"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self' {gateway}"
        headers = {"Content-Security-Policy": policy, "Cache-Control": "no-store"}

        async def state(_: web.Request) -> web.Response:
            return web.json_response(self.state(), headers=headers)

        async def change(request: web.Request) -> web.Response:
            # For pages of other origins a browser sends this type only after a preflight, which is not answered.
            if request.content_type != "application/json":
                raise web.HTTPUnsupportedMediaType
            try:
                await self.change(request.match_info["call"], await request.json())
            except (HushstreamError, json.JSONDecodeError) as error:
                return web.json_response({"error": str(error)}, status=409, headers=headers)
            return web.json_response(self.state(), headers=headers)

        def page(name: str, kind: str) -> Any:
            text = (files(__package__) / "page" / name).read_text(encoding="utf-8")

            async def answer(_: web.Request) -> web.Response:
                return web.Response(text=text, content_type=kind, headers=headers)

            return answer

        made = web.Application()
        made.add_routes([web.get(path, page(*of)) for path, of in _PAGES.items()])
        made.add_routes([web.get("/state.json", state), web.post("/items/{call}", change)])
        return made
