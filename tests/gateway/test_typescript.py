"""The TypeScript packages against a gateway: the client and the agent on a device."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from modules import module_at

from browser import browser, chromium
from hushstream.engine.devices.sealing import ContentOpener, body_bytes, place_of, read_slot
from hushstream.privacy.keys import Key
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.records import first_round, packed_slots, slot_bytes
from patience import Patience

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "deploy" / "clients" / "typescript"
EDGE = Path(__file__).parents[2] / "deploy" / "clients" / "typescript" / "edge"

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def test_the_committed_types_are_those_of_the_documents() -> None:
    generate = module_at(CLIENT / "generate.py", "hushstream_typescript_generate")
    assert (CLIENT / "src" / "generated.ts").read_text(encoding="utf-8") == generate.wanted(), "run `make manifests`"


def test_a_schema_without_a_type_of_typescript_ends_the_generator() -> None:
    generate = module_at(CLIENT / "generate.py", "hushstream_typescript_generate")
    with pytest.raises(SystemExit, match="has a type in TypeScript"):
        generate._type({"patternProperties": {}})


@pytest.mark.parametrize("folder", [CLIENT, EDGE], ids=["client", "edge"])
def test_a_package_depends_on_nothing_and_its_lock_names_digests_alone(folder: Path) -> None:
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    lock = json.loads((folder / "package-lock.json").read_text(encoding="utf-8"))
    others = {name: one for name, one in lock["packages"].items() if name}
    assert set(others) >= {f"node_modules/{name}" for name in package["devDependencies"]}
    assert all(one["dev"] and one["integrity"].startswith("sha512-") for one in others.values())
    assert "resolved" not in json.dumps(lock)


@pytest.mark.slow
async def test_faults_are_met_as_the_readme_says(gateways: Any, built: Path) -> None:
    assert gateways.passed(await gateways.node(built, "--test", "tests/retries.test.mjs")) == 11


@pytest.mark.slow
@pytest.mark.parametrize("page", [CLIENT / "README.md", ROOT / "deploy" / "docs" / "tutorials" / "demo.md"])
async def test_the_code_of_a_page_ends_with_one_line_where_no_gateway_is(
    gateways: Any, built: Path, tmp_path: Path, page: Path
) -> None:
    """It ended with Node's trace."""
    own = gateways.with_the_client(tmp_path / "own", built, page)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens on it
        address = f"http://127.0.0.1:{taken.getsockname()[1]}"
        said = await gateways.node(own, "app.mjs", code=1, GATEWAY=address)
    assert said == f"no answer came from the gateway at {address}\n"
    said = await gateways.node(own, "app.mjs", code=1, GATEWAY="")
    assert said == "url: expected a gateway's address, such as http://127.0.0.1:8080, got \n"


@pytest.mark.process(keep=["p2b-decisions"])
@pytest.mark.slow
@pytest.mark.parametrize(("system", "conversation"), [("p2b", "decisions"), ("pdol", "records"), ("bgt", "ratings")])
async def test_it_asks_a_gateway_of_each_conversation(
    gateways: Any, built: Path, tmp_path: Path, system: str, conversation: str
) -> None:
    async with gateways.placed(system, tmp_path / "d") as place, place.worker(), place.gateway() as caller:
        names = {"HUSHSTREAM_GATEWAY": caller.base, "HUSHSTREAM_CONVERSATION": conversation}
        assert gateways.passed(await gateways.node(built, "--test", "tests/gateway.test.mjs", **names)) == 1
        if conversation == "decisions":
            shop = gateways.with_the_client(tmp_path / "shop", built, CLIENT / "README.md")
            assert re.fullmatch(r"show item [012]\n", await gateways.node(shop, "app.mjs", GATEWAY=caller.base))
            rewards = await place.rows("clicks", "Feedback")
            assert [row for row in rewards if row["event_id"].startswith("page-")]


@pytest.mark.slow
async def test_an_answer_that_is_not_logged_says_so(gateways: Any, built: Path, tmp_path: Path) -> None:
    async with gateways.placed("p2b", tmp_path / "d") as place, place.gateway(answer_seconds=0.2) as caller:
        names = {"HUSHSTREAM_GATEWAY": caller.base, "HUSHSTREAM_CONVERSATION": "baseline"}
        assert gateways.passed(await gateways.node(built, "--test", "tests/gateway.test.mjs", **names)) == 1


@contextlib.asynccontextmanager
async def _site(folder: Path) -> AsyncIterator[str]:
    """A web site that gives out the built client: its origin."""

    async def empty(_: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><title>shop</title>", content_type="text/html")

    app = web.Application()
    app.router.add_get("/", empty)
    app.router.add_static("/client", folder / "dist")
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


_IN_A_PAGE = """(async () => {
  const { DecisionClient } = await import("/client/index.js");
  const client = new DecisionClient({ url: "%s" });
  const found = await client.decide({ event_id: "page-1", user: "ann", context: [0.7, 0.2, 0.1], baseline: 2 });
  const refused = await client.shown({ event_id: "page-1" }, { keepalive: true }).catch((error) => error.code);
  return [found.item, found.logged, refused];
})()"""


@pytest.mark.slow
@needs_chromium
async def test_a_page_of_a_named_site_asks_from_its_browser(gateways: Any, built: Path, tmp_path: Path) -> None:
    async with (
        gateways.placed("p2b", tmp_path / "d") as place,
        _site(built) as origin,
        place.gateway(answer_seconds=0.2, cors_origins=(origin,)) as caller,
        browser(tmp_path / "profile") as tab,
    ):
        await tab.visit(f"{origin}/")
        assert await tab.evaluate(_IN_A_PAGE % caller.base) == [2, False, "not-logged"]


MOST_BUNDLE_BYTES = 25_000
MOST_RATINGS_BYTES = 15_000
MOST_GOLDEN_BYTES = 300_000

_COUNTRY = {"country": {"kind": "category", "vocabulary": ["de", "fr", "se"]}}


def test_the_committed_vectors_are_those_of_the_agent() -> None:
    golden = module_at(EDGE / "golden.py", "hushstream_edge_golden")
    held = json.loads(golden.TARGET.read_text(encoding="utf-8"))
    assert golden.alike(held, json.loads(golden.text())), "run `make manifests`"
    assert golden.TARGET.stat().st_size < MOST_GOLDEN_BYTES
    held["contexts"][3]["units"][2] += 1
    assert not golden.alike(held, json.loads(golden.text()))


def test_the_committed_vectors_of_ratings_are_those_of_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EDGE)
    ratings = module_at(EDGE / "ratings_golden.py", "hushstream_edge_ratings_golden")
    held = json.loads(ratings.TARGET.read_text(encoding="utf-8"))
    assert ratings.golden.alike(held, json.loads(ratings.text())), "run `make manifests`"
    held["deployments"][1]["users"][3]["slots"][2][1] += "00"
    assert not ratings.golden.alike(held, json.loads(ratings.text()))


@pytest.mark.slow
async def test_it_gives_what_the_agent_gives(gateways: Any, built_edge: Path) -> None:
    said = await gateways.node(built_edge, "--test", "tests/golden.test.mjs")
    assert gateways.passed(said) == 14


@pytest.mark.slow
async def test_a_device_keeps_what_was_agreed(gateways: Any, built_edge: Path) -> None:
    said = await gateways.node(built_edge, "--test", "tests/device.test.mjs")
    assert gateways.passed(said) == 37


@pytest.mark.slow
async def test_a_device_of_ratings_gives_what_the_agent_gives_and_keeps_what_was_agreed(
    gateways: Any, built_edge: Path
) -> None:
    said = await gateways.node(built_edge, "--test", "tests/ratings.test.mjs")
    assert gateways.passed(said) == 15


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
    ratings = module_at(EDGE / "ratings_golden.py", "hushstream_edge_ratings_golden")
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
def test_what_is_made_to_be_wrong_is_read_as_python_reads_it(built_edge: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EDGE)
    fuzz = module_at(EDGE / "fuzz.py", "hushstream_edge_fuzz")
    findings, counts = fuzz.fuzzed(built_edge, 1500, 1)
    assert not findings
    assert {"model taken", "model refused", "slot report", "slot null", "slot forged", "values row"} <= set(counts)
    assert {"version taken", "version refused", "rated slot", "rated refused"} <= set(counts)


@pytest.mark.slow
@pytest.mark.parametrize(("bundle", "most"), [("edge", MOST_BUNDLE_BYTES), ("ratings", MOST_RATINGS_BYTES)])
def test_the_bundle_is_small(built_edge: Path, bundle: str, most: int) -> None:
    assert len(gzip.compress((built_edge / "dist" / f"{bundle}.min.js").read_bytes(), 9)) <= most


@contextlib.asynccontextmanager
async def _edge_site(built_edge: Path, script: str, agreement: Any, slots: list[Any]) -> AsyncIterator[str]:
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
async def test_pages_of_one_origin_give_the_state_to_one_another(built_edge: Path, tmp_path: Path) -> None:
    golden = module_at(EDGE / "golden.py", "hushstream_edge_golden")
    agreement = golden.agreement(golden.config_of(_COUNTRY, 4))
    async with _edge_site(built_edge, "", agreement, []) as address, browser(tmp_path / "profile") as tab:
        await tab.visit(address)
        assert await tab.evaluate(_TWO_PAGES) == [list(range(1, 13)), 14]


@pytest.mark.slow
@needs_chromium
async def test_a_page_as_the_readme_shows_it_hands_in_one_slot(built_edge: Path, tmp_path: Path) -> None:
    golden = module_at(EDGE / "golden.py", "hushstream_edge_golden")
    config = golden.config_of({"age": {"kind": "number", "range": [16, 96]}, **_COUNTRY}, 4)
    slot = replace(config.slot, after_interactions=1, settle_seconds=0.0)
    feedback = replace(config.feedback, attribution_window_seconds=0.001)
    agreement = golden.agreement(replace(config, slot=slot, feedback=feedback))
    agreement["sealing"]["public_key"] = ContentOpener(Key(bytes(range(32)))).public_key.hex()
    agreement |= golden.stamped(agreement)
    script, _ = _readme()
    slots: list[Any] = []
    async with (
        _edge_site(built_edge, script, agreement, slots) as address,
        browser(tmp_path / "profile") as tab,
    ):
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
    built_edge: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EDGE)
    ratings = module_at(EDGE / "ratings_golden.py", "hushstream_edge_ratings_golden")
    _, script = _readme()
    system, slots = ratings.system_of(ratings.CONFIGS[0]), list[Any]()
    agent = RatingAgent(system.config, Key(bytes(32)), lambda answered: None)
    agent.rate([3, 14], [5, 2])
    expected = agent.predict([7, 9], first_round(system.config).model).tolist()
    agreement = json.loads(ratings.agreement_of(system))
    async with (
        _edge_site(built_edge, script, agreement, slots) as address,
        browser(tmp_path / "profile") as tab,
    ):
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
