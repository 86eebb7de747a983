"""The demo and its pages, with and without devices, through a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web
from modules import module_at

from browser import Browser, browser, chromium
from hushstream.agents.security import Security
from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.client import Item, connect
from hushstream.engine.devices.published import SEALING_ZONE, SIGNING_ZONE
from hushstream.gateway.devices.server import DeviceGateway, device_log
from hushstream.gateway.problems import PROBLEMS, table
from hushstream.gateway.settings import DevicesSettings, GatewaySettings
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import copy_async
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys
from hushstream.replay.demo.page import application, bundle_of
from hushstream.replay.demo.visitors import GOODS
from hushstream.replay.runners.stream import free_port
from hushstream.replay.worlds.shop import ITEMS
from hushstream.systems.p2b.prepared import agreement_of
from patience import Patience

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


@contextlib.asynccontextmanager
async def _demo(folder: Path) -> AsyncIterator[str]:
    """A demo that runs as its command starts it; gives the page's address."""
    arguments = ["-m", "hushstream.cli", "demo", "--serve", "--folder", str(folder / "demo"), "--visitors", "20"]
    arguments += ["--port", "0", "--gateway-port", "0"]
    log = (folder / "demo.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log
    )
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline() + await process.stdout.readline()).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None, said + (folder / "demo.log").read_text(encoding="utf-8")
        yield found[0]
        assert process.returncode is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        last = await process.stdout.read()
        log.close()
        assert await process.wait() == 0, last


async def _state(address: str) -> Any:
    return json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(f"{address}/state.json").read()))


@pytest.mark.process
@pytest.mark.slow
@needs_chromium
async def test_one_clicks_beside_the_visitors_and_the_page_learns(gateways: Any, tmp_path: Path) -> None:
    async with _demo(tmp_path) as address, browser(tmp_path / "profile") as tab:

        async def shows(expression: str, seconds: float = 100.0) -> None:
            await gateways.until(lambda: tab.evaluate(expression), seconds)

        await tab.visit(address)
        await shows("!document.getElementById('buy').disabled")
        assert await tab.evaluate("document.getElementById('item').textContent") in ITEMS
        for bought in (1, 2):
            await tab.evaluate("document.getElementById('buy').click()")
            await shows(f"document.getElementById('summary').textContent.startsWith('You bought {bought} of {bought}')")
            await shows("!document.getElementById('buy').disabled")
        await tab.evaluate(
            "(() => { const country = document.getElementById('country'); country.value = 'it';"
            " country.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )
        await shows("document.getElementById('summary').textContent.startsWith('You bought 2 of 3')")
        assert (await _state(address))["visitors"] >= 20


@pytest.mark.slow
@pytest.mark.process
async def test_the_code_of_the_tutorial_asks_the_demo(gateways: Any, built: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "deploy" / "docs" / "tutorials" / "demo.md"
    own = gateways.with_the_client(tmp_path / "own", built, page)
    async with _demo(tmp_path) as address:
        said = await gateways.node(own, "app.mjs", GATEWAY=(await _state(address))["gateway"])
    ids = {one.item for one in GOODS}
    found = re.fullmatch(r"on offer: ([a-z, -]+)\nshow ([a-z-]+)\n", said)
    assert found is not None, said
    assert set(found[1].split(", ")) == ids
    assert found[2] in ids


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


class Shown:
    """The state of a demo in which nobody else visits, and nothing was released."""

    def __init__(self, system: Any, gateway: str) -> None:
        self.system, self.gateway = system, gateway

    def state(self) -> dict[str, Any]:
        return {
            "seconds": 1.0,
            "devices": True,
            "gateway": self.gateway,
            "items": list(ITEMS),
            "names": [],
            "features": self.system.core.config.context.schema.plain,
            "visitors": 0,
            "answered": 0,
            "figures": {},
            "promised": "",
            "trouble": "",
            "tools": "",
            "configuration": "",
        }

    def agreement(self) -> bytes:
        return agreement_of(self.system.core)

    async def kill(self) -> None:
        raise AssertionError("there is no button")


@contextlib.asynccontextmanager
async def _shop(folder: Path, package: Path) -> AsyncIterator[Shop]:
    values = yaml.safe_load((files("hushstream.replay.demo") / "devices.yaml").read_text(encoding="utf-8"))
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
        origin = f"http://127.0.0.1:{gateway.port}"
        runner = web.AppRunner(application(Shown(system, origin), origin, bundle_of(package)))
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
            pages = {"/", "/figures.js", "/visit.js", "/edge.min.js", "/state.json", "/agreement.json", "/favicon.ico"}
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


ROOT = Path(__file__).parents[2]


def _blocks(gateways: Any, page: str = "deploy/docs/gateway.md") -> list[Any]:
    blocks = module_at(ROOT / "deploy" / "docs" / "site" / "blocks.py", "hushstream_site_blocks_of_gateway")
    return [block for block in blocks.all_blocks() if block.page == page]


async def _answers(gateway: str, commands: list[str], folder: Path) -> list[Any]:
    """What commands in a folder print, which is JSON upon JSON."""
    answers: list[Any] = []
    for code in commands:
        process = await asyncio.create_subprocess_exec(
            "sh", "-e", "-c", code, env={**os.environ, "GATEWAY": gateway}, stdout=asyncio.subprocess.PIPE, cwd=folder
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, code
        decoder, text = json.JSONDecoder(), output.decode()
        while text:
            found, end = decoder.raw_decode(text)
            answers.append(found)
            text = text[end:]
    return answers


@pytest.mark.slow
async def test_the_commands_of_the_page_run_in_their_order(gateways: Any, tmp_path: Any) -> None:
    commands = [block.code for block in _blocks(gateways) if block.language == "sh" and block.reason is None]
    assert len(commands) == 3
    configured, *_ = _yaml(gateways)
    values, left_out = yaml.safe_load(configured), ("encoder",)
    async with (
        gateways.placed("p2b", tmp_path / "d", without=left_out, **values) as place,
        connect(place.broker.bootstrap, place.folder) as client,
        place.worker(),
    ):
        await client.items.add_all([Item("boots", "Winter boots"), Item("socks"), Item("sandals")])
        async with place.gateway() as caller:
            answers = await _answers(caller.base, commands, tmp_path)
    first, shown, reward, batch, items, schema = answers
    assert (first["event_id"], first["logged"]) == ("visit-1", True)
    assert shown == reward == {"logged": True}
    assert [answer["logged"] for answer in batch["answers"]] == [True, True]
    assert batch["answers"][0]["item"] in ("boots", "socks")
    assert {one["item"] for one in items["items"]} == {"boots", "socks", "sandals"}
    assert set(schema["context"]["features"]) == {"country", "age", "hour"}


@pytest.mark.slow
async def test_the_commands_for_any_language_run_as_they_stand(gateways: Any, tmp_path: Any) -> None:
    labels, ratings, careful = (block.code for block in _blocks(gateways, "deploy/docs/reference/curl.md"))
    async with gateways.placed("pdol", tmp_path / "records") as place, place.worker(), place.gateway() as caller:
        predicted, told, schema, problem = await _answers(caller.base, [labels, careful], tmp_path)
    assert (predicted["event_id"], predicted["logged"], told) == ("mail-1", True, {"logged": True})
    assert schema["nodes"] == 2
    assert problem["code"] == "invalid-request"
    async with gateways.placed("bgt", tmp_path / "ratings") as place, place.worker(), place.gateway() as caller:
        told, rated = await _answers(caller.base, [ratings], tmp_path)
    assert told == {"logged": True}
    assert (rated["event_id"], len(rated["values"]), rated["logged"]) == ("evening-1", 3, True)


_NAMED = {
    "p2b": {
        "items": {"capacity": 3, "named": True},
        "features": {
            "country": {"kind": "category", "vocabulary": ["de", "fr"]},
            "age": {"kind": "number", "range": [16, 96]},
            "likes": {"kind": "tags", "vocabulary": ["art", "tea"], "most": 2},
            "at": {"kind": "time_of_day"},
            "both": {"kind": "cross", "of": ["country", "age"]},
        },
    },
    "colin": {"items": {"capacity": 3, "named": True}},
}
_SENT = """(() => {
  const call = document.getElementById("call");
  call.value = [...call.options].map((one) => one.value).find((one) => one.endsWith("/v1/decide"));
  call.dispatchEvent(new Event("change"));
  const body = document.getElementById("body");
  body.value = body.value.replace("user-1", "ann");
  document.getElementById("send").click();
})()"""


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("system", list(_NAMED))
async def test_the_page_on_which_calls_are_tried_sends_what_is_taken_and_shows_titles(
    gateways: Any, tmp_path: Any, system: str
) -> None:
    left_out = ("encoder",) if system == "p2b" else ()
    async with (
        gateways.placed(system, tmp_path / "d", without=left_out, **_NAMED[system]) as place,
        connect(place.broker.bootstrap, place.folder) as client,
        place.worker(),
    ):
        await client.items.add("boots", "Winter boots")
        async with place.gateway() as caller, browser(tmp_path / "profile") as tab:

            async def said(name: str) -> str:
                return str(await tab.evaluate(f"document.getElementById('{name}').textContent"))

            await tab.visit(caller.base)
            filled = "document.getElementById('body').value.length > 0 || document.getElementById('body').disabled"
            await gateways.until(lambda: tab.evaluate(filled), 60.0)
            await tab.evaluate(_SENT)
            await gateways.until(lambda: tab.evaluate("document.getElementById('answer').textContent.length > 0"), 60.0)
            answer = await said("answer")
            assert await said("status") == "200 OK", answer
            assert json.loads(answer)["item"] == "boots"
            assert await said("named") == "boots: Winter boots"


def _yaml(gateways: Any) -> list[str]:
    """The configuration of the deployment, the gateway's settings, and those of a gateway for devices."""
    return [block.code for block in _blocks(gateways) if block.language == "yaml"]


def test_the_settings_of_the_page_are_taken(gateways: Any) -> None:
    _, *codes = _yaml(gateways)
    applications, devices = (GatewaySettings.model_validate(yaml.safe_load(code)) for code in codes)
    assert (applications.port, applications.devices) == (8443, None)
    assert devices.devices is not None
    assert devices.devices.address_header == "X-Forwarded-For"


def test_the_table_names_every_problem_once() -> None:
    rows = table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(PROBLEMS)
