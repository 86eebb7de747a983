"""`make shop-edge`: a page learns in its browser, and a proxy in front of it sees every byte that the browser sends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from browser import Browser, browser, chromium
from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.engine.devices.published import SEALING_ZONE, SIGNING_ZONE
from hushstream.gateway.devices.gateway import DeviceGateway, device_log
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.connection import Connection
from hushstream.ops.live import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.runners.ports import free_port
from hushstream.replay.shop.devices import DeviceStorefront
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.prepared.device_agreement import agreement_of
from patience import Patience

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")

VISITS = 3
_CLICK = """(async () => {
  const item = document.getElementById("%s");
  if (item.disabled) return false;
  const shown = document.getElementById("summary").textContent;
  item.click();
  for (let tries = 0; tries < 400; tries += 1) {
    if (document.getElementById("summary").textContent !== shown) return true;
    await new Promise((done) => setTimeout(done, 25));
  }
  return false;
})()"""
_SHOWN = "[...document.querySelectorAll('#left pre')].map((one) => one.textContent).join()"


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One request, as the browser sent it."""

    method: str
    path: str
    host: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@contextlib.asynccontextmanager
async def _tapped(seen: list[Seen], alive: set[str]) -> AsyncIterator[str]:
    """A proxy that notes every request, passes on what goes to the hosts that are up, and refuses all else."""

    async def passed(request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        host = request.headers.get("Host", "")
        seen.append(Seen(request.method, request.path_qs, host, tuple(request.headers.items()), body))
        if host not in alive:
            return web.Response(status=502)
        url = f"http://{host}{request.path_qs}"
        headers = {name: value for name, value in request.headers.items() if name != "Proxy-Connection"}
        async with session.request(request.method, url, headers=headers, data=body or None) as answer:
            found = {name: value for name, value in answer.headers.items() if name not in _HOP}
            return web.Response(status=answer.status, body=await answer.read(), headers=found)

    async with aiohttp.ClientSession(auto_decompress=False) as session:
        runner = web.ServerRunner(web.Server(passed))
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def _is_the_browsers_own(one: Seen) -> bool:
    """Whether Chromium sends it whatever page is open: it asks its maker for updates, and is not answered here."""
    host = one.host.partition(":")[0]
    return any(host.endswith(f".{name}") for name in ("googleapis.com", "google.com", "gvt1.com", "gstatic.com"))


_HOP = ("Content-Length", "Transfer-Encoding", "Connection", "Server", "Date")


class Shop:
    """A deployment for devices with its gateway and its page, behind a proxy."""

    def __init__(self, gateway: DeviceGateway, page: str, connection: Connection, system: Any) -> None:
        self.gateway, self.page, self.connection, self.system = gateway, page, connection, system

    async def slots(self) -> list[bytes]:
        """The records of slots in the log."""
        logs = await copy_async(self.connection, self.system.partitions)
        return [record.value for _, part in logs.of_topic("reports") for record in part.records]


@contextlib.asynccontextmanager
async def _shop(folder: Path, package: Path) -> AsyncIterator[Shop]:
    values = yaml.safe_load((files("hushstream.replay.shop") / "devices.yaml").read_text(encoding="utf-8"))
    values["feedback"] = {"attribution_window_seconds": 0.5, "settle_seconds": 0.5}
    generate_keys(folder / KEYS, (SEALING_ZONE, SIGNING_ZONE))
    system = prepare(folder, parse_config(values), keys=KeySource(folder / KEYS))
    prefix, port = f"{system.config.deployment}.", free_port()
    page = f"http://127.0.0.1:{port}"
    async with EmbeddedBroker() as broker, contextlib.AsyncExitStack() as stack:
        connection = Connection(broker.bootstrap, prefix)
        await apply_async(connection, system)
        settings = GatewaySettings(port=0, cors_origins=(page,), devices=DevicesSettings(relay_seconds=0.2))
        log = device_log(broker.bootstrap, prefix, Security(), system)
        gateway = await stack.enter_async_context(DeviceGateway(system=system, settings=settings, log=log))
        front = DeviceStorefront(package, agreement_of(system.core))
        runner = web.AppRunner(front.application(f"http://127.0.0.1:{gateway.port}"))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield Shop(gateway, page, connection, system)


async def _lived(shop: Shop, tap: str, profile: Path, button: str, seen: list[Seen]) -> str:
    """A person visits, buys or not, and stays until nothing more is to leave; what the panel shows of bodies."""
    flags = (f"--proxy-server=http://{tap}", "--proxy-bypass-list=<-loopback>")
    async with browser(profile, *flags) as tab:
        await tab.visit(f"{shop.page}/")
        await _clicked(tab, button, VISITS - 1)
        waited = Patience(60)
        while not any(one.method == "POST" for one in seen):
            assert not waited.over, await tab.evaluate("document.getElementById('summary').textContent")
            await asyncio.sleep(0.1)
        # What comes after belongs to no slot.
        await _clicked(tab, button, 2 * VISITS)
        asked = sum(one.path == "/v1/model" for one in seen)
        while sum(one.path == "/v1/model" for one in seen) < asked + 2:
            assert not waited.over, "the page asks for no model"
            await asyncio.sleep(0.1)
        return str(
            await tab.evaluate("[...document.querySelectorAll('#left pre')].map((one) => one.textContent).join()")
        )


async def _clicked(tab: Browser, button: str, times: int) -> None:
    waited, done = Patience(60), 0
    while done < times:
        assert not waited.over, f"the page's button {button} does nothing"
        done += bool(await tab.evaluate(_CLICK % button))


@pytest.mark.slow
@needs_chromium
async def test_one_padded_slot_leaves_the_browser_of_equal_size_for_click_and_null(
    built_edge: Path, tmp_path: Path
) -> None:
    posts: dict[str, Seen] = {}
    async with _shop(tmp_path / "d", built_edge) as shop:
        hosts = {shop.page.removeprefix("http://"), f"127.0.0.1:{shop.gateway.port}"}
        for button in ("buy", "next"):
            seen: list[Seen] = []
            async with _tapped(seen, hosts) as tap:
                shown = await _lived(shop, tap, tmp_path / button, button, seen)
            seen = [one for one in seen if not _is_the_browsers_own(one)]
            assert {one.host for one in seen} <= hosts, "it asked somebody else"
            (posts[button],) = (one for one in seen if one.method == "POST")
            others = [one for one in seen if one.method != "POST"]
            assert all(not one.body for one in others)
            pages = {"/", "/devices.js", "/shop.css", "/edge.min.js", "/shelf.json", "/agreement.json", "/favicon.ico"}
            assert {one.path for one in others} <= pages | {"/v1/model", "/v1/slots"}
            assert {one.path for one in others if one.method == "OPTIONS"} <= {"/v1/slots", "/v1/model"}
            assert shown == posts[button].body.hex(" ")
            names = {name.lower() for one in seen for name, _ in one.headers}
            assert not names & {"cookie", "authorization", "referer"}
        slots = await shop.slots()
    click, null = posts["buy"], posts["next"]
    assert len(click.body) == len(null.body) == json.loads(agreement_of(shop.system.core))["slot"]["body_bytes"]
    assert click.body[17:41] == null.body[17:41], "period and configuration are everybody's"
    assert click.body[1:17] != null.body[1:17]
    assert {len(value) for _, value in click.headers} == {len(value) for _, value in null.headers}
    assert [name for name, _ in click.headers] == [name for name, _ in null.headers]
    assert len(slots) == 2
    assert len({len(one) for one in slots}) == 1


def test_a_package_that_is_not_built_is_named(tmp_path: Path) -> None:
    with pytest.raises(HushstreamError, match="npm ci makes it"):
        DeviceStorefront(tmp_path)
