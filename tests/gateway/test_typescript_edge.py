"""The package for devices: what the Python agent gives, byte for byte; its size; and what its README says."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from browser import browser, chromium
from hushstream.engine.devices.sealing import ContentOpener
from hushstream.engine.devices.travelling import body_bytes, place_of, read_slot
from hushstream.features.schema import declare
from hushstream.privacy.keys import Key
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.rounds import first_round
from hushstream.systems.bgt.slots import packed_slots, slot_bytes
from hushstream.systems.p2b.contribution.feature_layout import layout_of
from hushstream.systems.p2b.contribution.sealed import SealOpener
from patience import Patience

EDGE = Path(__file__).parents[2] / "deploy" / "clients" / "typescript" / "edge"
MOST_BUNDLE_BYTES = 25_000
MOST_RATINGS_BYTES = 15_000
MOST_GOLDEN_BYTES = 300_000

_COUNTRY = {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}}

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def test_the_committed_vectors_are_those_of_the_agent(gateways: Any) -> None:
    golden = gateways.module_of("hushstream_edge_golden", EDGE / "golden.py")
    held = json.loads(golden.TARGET.read_text(encoding="utf-8"))
    assert golden.alike(held, json.loads(golden.text())), "run `make manifests`"
    assert golden.TARGET.stat().st_size < MOST_GOLDEN_BYTES
    held["contexts"][3]["units"][2] += 1
    assert not golden.alike(held, json.loads(golden.text()))


def test_the_committed_vectors_of_ratings_are_those_of_the_agent(
    gateways: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EDGE)
    ratings = gateways.module_of("hushstream_edge_ratings_golden", EDGE / "ratings_golden.py")
    held = json.loads(ratings.TARGET.read_text(encoding="utf-8"))
    assert ratings.golden.alike(held, json.loads(ratings.text())), "run `make manifests`"
    held["deployments"][1]["users"][3]["slots"][2][1] += "00"
    assert not ratings.golden.alike(held, json.loads(ratings.text()))


def test_it_depends_on_nothing_and_its_lock_names_digests_alone() -> None:
    package = json.loads((EDGE / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    lock = json.loads((EDGE / "package-lock.json").read_text(encoding="utf-8"))
    others = {name: one for name, one in lock["packages"].items() if name}
    assert all(one["dev"] and one["integrity"].startswith("sha512-") for one in others.values())
    assert "resolved" not in json.dumps(lock)


@pytest.mark.slow
async def test_it_gives_what_the_agent_gives(gateways: Any, built_edge: Path) -> None:
    said = await gateways.node(built_edge, "--test", "tests/golden.test.mjs")
    assert gateways.passed(said) == 13


@pytest.mark.slow
async def test_a_device_keeps_what_was_agreed(gateways: Any, built_edge: Path) -> None:
    said = await gateways.node(built_edge, "--test", "tests/device.test.mjs")
    assert gateways.passed(said) == 34


@pytest.mark.slow
async def test_a_device_of_ratings_gives_what_the_agent_gives_and_keeps_what_was_agreed(
    gateways: Any, built_edge: Path
) -> None:
    said = await gateways.node(built_edge, "--test", "tests/ratings.test.mjs")
    assert gateways.passed(said) == 14


_ONE_SLOT = """
import { memory } from "./tests/gateway.mjs";
import { RatingDevice } from "./dist/ratings.js";
const [agreement] = JSON.parse(process.argv[1]);
const { store, mark } = memory();
const hex = (bytes) => Buffer.from(bytes).toString("hex");
let body;
const fetch = async (url, request) => {
  body ??= request.body ?? undefined;
  return new Response(null, { status: url.endsWith("slots") ? 204 : 404 });
};
const device = await RatingDevice.open({ agreement, url: "http://gateway.test", store, mark, fetch, random: () => 0 });
await device.rate([3, 14, 5], [5, 1.5, 2]);
await device.sync();
const { key } = JSON.parse(new TextDecoder().decode(store.contents.get("state")));
console.log(JSON.stringify([hex(body), Buffer.from(key.base64, "base64").toString("hex")]));
"""


@pytest.mark.slow
async def test_the_collector_opens_what_a_device_of_ratings_sealed(
    gateways: Any, built_edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EDGE)
    ratings = gateways.module_of("hushstream_edge_ratings_golden", EDGE / "ratings_golden.py")
    system = ratings.system_of(ratings.CONFIGS[0])
    said = json.dumps([json.loads(ratings.agreement_of(system))])
    body, key = json.loads(await gateways.node(built_edge, "--input-type=module", "-e", _ONE_SLOT, said))
    fields = read_slot(bytes.fromhex(body), body_bytes(slot_bytes(system.config)))
    agent = RatingAgent(system.config, Key(bytes.fromhex(key)), lambda answered: None)
    agent.rate([3, 14, 5], [5, 1.5, 2])
    sent = agent.answer(first_round(system.config), agent._digest)
    place = place_of(sent.slot_id, 0, system.digest)
    assert [fields["report_id"], fields["period"], fields["config_digest"]] == list(place)
    assert ContentOpener(ratings.SEALING).open(fields["sealed"], place) == packed_slots(sent.slot)[0]


@pytest.mark.slow
def test_what_is_made_to_be_wrong_is_read_as_python_reads_it(
    gateways: Any, built_edge: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EDGE)
    fuzz = gateways.module_of("hushstream_edge_fuzz", EDGE / "fuzz.py")
    findings, counts = fuzz.fuzzed(built_edge, 1500, 1)
    assert not findings
    assert {"model taken", "model refused", "slot report", "slot null", "slot forged", "values row"} <= set(counts)
    assert {"version taken", "version refused", "rated slot", "rated refused"} <= set(counts)


@pytest.mark.slow
@pytest.mark.parametrize(("bundle", "most"), [("edge", MOST_BUNDLE_BYTES), ("ratings", MOST_RATINGS_BYTES)])
def test_the_bundle_is_small(built_edge: Path, bundle: str, most: int) -> None:
    assert len(gzip.compress((built_edge / "dist" / f"{bundle}.min.js").read_bytes(), 9)) <= most


@contextlib.asynccontextmanager
async def _site(built_edge: Path, script: str, agreement: Any, slots: list[Any]) -> AsyncIterator[str]:
    """A web site whose page runs a script, on an origin that takes slots and has no model: its address."""
    modules = {"@hushstream/edge": "/dist/edge.min.js", "@hushstream/edge/ratings": "/dist/ratings.min.js"}
    imports = json.dumps({"imports": modules})
    page = f'<!doctype html><script type="importmap">{imports}</script><script type="module" src="/app.js"></script>'

    def gives(text: str, kind: str) -> Any:
        async def answer(_: web.Request) -> web.Response:
            return web.Response(text=text, content_type=kind)

        return answer

    async def slot(request: web.Request) -> web.Response:
        slots.append((request.headers.copy(), await request.read()))
        return web.Response(status=204)

    app = web.Application()
    app.add_routes([web.get("/", gives(page, "text/html")), web.get("/app.js", gives(script, "text/javascript"))])
    app.add_routes([web.get("/agreement.json", gives(json.dumps(agreement), "application/json"))])
    app.add_routes([web.static("/dist", built_edge / "dist"), web.post("/v1/slots", slot)])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


_TWO_PAGES = """(async () => {
  const frame = document.createElement("iframe");
  frame.src = "/";
  await new Promise((done) => (frame.onload = done) && document.body.append(frame));
  const agreement = await (await fetch("/agreement.json")).json();
  const opened = (edge) => edge.EdgeDevice.open({
    agreement, url: location.href, store: edge.browserStore("shop"), mark: edge.browserMark("shop") });
  const inner = await frame.contentWindow.eval('import("/dist/edge.min.js")');
  const pages = [await opened(await import("/dist/edge.min.js")), await opened(inner)];
  const found = [];
  for (let number = 0; number < 12; number += 1) {
    const { item } = await pages[number % 2].decide(`e${number}`, { country: "se" });
    await pages[(number + 1) % 2].shown(`e${number}`, item);
    found.push(pages[(number + 1) % 2].status.decided);
  }
  await Promise.all(pages.map((page, place) => page.decide(`at once ${place}`, { country: "fr" })));
  await pages[0].flush();
  return [found, pages[0].status.decided];
})()"""


@pytest.mark.slow
@needs_chromium
async def test_pages_of_one_origin_give_the_state_to_one_another(
    gateways: Any, built_edge: Path, tmp_path: Path
) -> None:
    golden = gateways.module_of("hushstream_edge_golden", EDGE / "golden.py")
    agreement = golden.agreement(layout_of(declare(_COUNTRY), 4, 1, 1.0, 4000))
    async with _site(built_edge, "", agreement, []) as address, browser(tmp_path / "profile") as tab:
        await tab.visit(address)
        assert await tab.evaluate(_TWO_PAGES) == [list(range(1, 13)), 14]


@pytest.mark.slow
@needs_chromium
async def test_a_page_as_the_readme_shows_it_hands_in_one_slot(gateways: Any, built_edge: Path, tmp_path: Path) -> None:
    golden = gateways.module_of("hushstream_edge_golden", EDGE / "golden.py")
    layout = layout_of(declare({"age": {"kind": "number", "range": [16, 96]}, **_COUNTRY}), 4, 1, 1.0, 4000)
    agreement = golden.agreement(layout)
    agreement["terms"] |= {"after_interactions": 1, "attribution_window_ms": 0}
    agreement["slot"]["delay_ms"] = 0
    agreement["sealing"]["public_key"] = SealOpener(Key(bytes(range(32)))).public_key.hex()
    agreement |= golden.stamped(agreement)
    script, _ = _readme()
    slots: list[Any] = []
    async with _site(built_edge, script, agreement, slots) as address, browser(tmp_path / "profile") as tab:
        await tab.visit(address)
        waited = Patience(60)
        while not slots:
            assert not waited.over, await tab.evaluate("document.title")
            await tab.evaluate("import('/dist/edge.min.js').then(() => 0)")
            await asyncio.sleep(0.1)
        assert re.fullmatch("item [0-3]", await tab.evaluate("document.title"))
    ((headers, body),) = slots
    assert len(body) == agreement["slot"]["body_bytes"]
    assert not {"Cookie", "Authorization", "Referer"} & set(headers)


@pytest.mark.slow
@needs_chromium
async def test_a_page_as_the_readme_shows_it_predicts_ratings(
    gateways: Any, built_edge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EDGE)
    ratings = gateways.module_of("hushstream_edge_ratings_golden", EDGE / "ratings_golden.py")
    _, script = _readme()
    system, slots = ratings.system_of(ratings.CONFIGS[0]), list[Any]()
    agent = RatingAgent(system.config, Key(bytes(32)), lambda answered: None)
    agent.rate([3, 14], [5, 2])
    expected = agent.predict([7, 9], first_round(system.config).model).tolist()
    agreement = json.loads(ratings.agreement_of(system))
    async with _site(built_edge, script, agreement, slots) as address, browser(tmp_path / "profile") as tab:
        await tab.visit(address)
        waited = Patience(60)
        while " and " not in (title := await tab.evaluate("document.title")):
            assert not waited.over, title
            await asyncio.sleep(0.1)
    assert [float(one) for one in title.split(" and ")] == pytest.approx(expected)
    assert slots == [], "its delay is not over"


def _readme() -> list[str]:
    """The scripts that the README shows."""
    return re.findall(r"```js\n(.*?)```", (EDGE / "README.md").read_text(encoding="utf-8"), re.DOTALL)
