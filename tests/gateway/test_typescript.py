"""The TypeScript client: made from the documents, built as its README says, and tried against gateways that run."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from browser import browser, chromium

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "deploy" / "clients" / "typescript"

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def test_the_committed_types_are_those_of_the_documents(gateways: Any) -> None:
    generate = gateways.module_of("hushstream_typescript_generate", CLIENT / "generate.py")
    assert (CLIENT / "src" / "generated.ts").read_text(encoding="utf-8") == generate.wanted(), "run `make manifests`"


def test_a_schema_without_a_type_of_typescript_ends_the_generator(gateways: Any) -> None:
    generate = gateways.module_of("hushstream_typescript_generate", CLIENT / "generate.py")
    with pytest.raises(SystemExit, match="has a type in TypeScript"):
        generate._type({"patternProperties": {}})


def test_it_depends_on_nothing_and_its_lock_names_digests_alone() -> None:
    package = json.loads((CLIENT / "package.json").read_text(encoding="utf-8"))
    assert "dependencies" not in package
    lock = json.loads((CLIENT / "package-lock.json").read_text(encoding="utf-8"))
    others = {name: one for name, one in lock["packages"].items() if name}
    assert set(others) == {f"node_modules/{name}" for name in package["devDependencies"]}
    assert all(one["dev"] and one["integrity"].startswith("sha512-") for one in others.values())
    assert "resolved" not in json.dumps(lock)


@pytest.mark.slow
async def test_faults_are_met_as_the_readme_says(gateways: Any, built: Path) -> None:
    assert gateways.passed(await gateways.node(built, "--test", "tests/retries.test.mjs")) == 11


@pytest.mark.slow
@pytest.mark.parametrize("page", [CLIENT / "README.md", ROOT / "deploy" / "docs" / "tutorials" / "web-shop.md"])
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
