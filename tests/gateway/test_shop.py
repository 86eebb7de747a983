"""`make shop`: visitors teach the deployment through the gateway, and a person clicks beside them in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from browser import browser, chromium
from hushstream.agents.worker.deployment import read_config
from hushstream.engine.declare.plan import Audience
from hushstream.replay.shop import taste
from hushstream.replay.shop.rehearsal import Rehearsal, pays
from hushstream.replay.shop.storefront import Storefront
from hushstream.replay.shop.traffic import VISITS
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.guarantee.promise import promises_of
from hushstream.systems.p2b.reports.planning.plan import plan, warnings

VISITORS = 6_000
"""More than come before the first slots leave: three thousand do in 15 s."""

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def test_each_kind_of_visitor_has_one_favourite_and_blind_picks_sell_as_stated() -> None:
    made_for = [one.features for one in taste.STOCK]
    favourites = set()
    for kind in taste.KINDS:
        chances = [kind.chance(one) for one in made_for]
        assert chances.count(max(chances)) == 1
        favourites.add(chances.index(max(chances)))
    assert favourites == set(range(len(taste.STOCK)))
    assert taste.best_chance(made_for) == pytest.approx(0.75)
    assert taste.blind_chance(made_for) == pytest.approx(0.05 + 0.35 * (1 / 3 + 1 / 2))
    assert taste.best_chance([]) == taste.blind_chance([]) == 0
    assert {(one.country, one.age) for one in taste.visitors(500, random.Random(0))} == {
        (kind.country, kind.age) for kind in taste.KINDS
    }


def test_the_plan_says_that_the_shop_pays_and_what_a_visitor_pays() -> None:
    with as_file(files("hushstream.replay.shop") / "shop.yaml") as path:
        config = read_config(path)
    assert isinstance(config, P2BConfig)
    rate = taste.blind_chance([one.features for one in taste.STOCK])
    found = plan(config, Audience(config.expected_slots, VISITS, 1.0, rate))
    assert found.beats is True, found.verdict
    assert not [one for one in found.assumed if "settle_seconds" in one]
    assert config.slot.lifetime_slots == 1
    early = replace(config, slot=replace(config.slot, settle_seconds=2))
    said = "a slot leaves 2 to 4 s after its last visit, and a reward may take 10 s"
    assert [said in one for one in warnings(early)] == [True]
    assert not warnings(config)
    assert promises_of(config).together.which.epsilon_micro <= 2_000_000


@pytest.mark.slow
@pytest.mark.slow_statistics
async def test_the_model_pays_in_a_rehearsal(tmp_path: Path) -> None:
    """One seed of those that `--seeds 10` prints; noise and visitors are seeded, so it does not flake."""
    rehearsal = Rehearsal(tmp_path, seed=1)
    await rehearsal.play(6_000)
    assert pays(rehearsal.tally)


@pytest.mark.slow
@pytest.mark.slow_statistics
async def test_an_item_that_is_new_takes_nobody_from_what_they_like(tmp_path: Path) -> None:
    """Everybody's favourite is bought at .73, and at .67 once one is withdrawn; at .45 where all try the new item.

    Noise and visitors are seeded. Of 7,000 visits .62 is 9 standard errors from .67.
    """
    rehearsal = Rehearsal(tmp_path, seed=1)
    await rehearsal.play(9_000, stock_changes=True)
    visits, bought = map(sum, zip(*rehearsal.tally.bins[20:], strict=True))
    assert bought > 0.62 * visits


async def test_the_shelf_refuses_what_it_cannot_take(tmp_path: Path) -> None:
    front = Storefront(10)
    with pytest.raises(HushstreamError, match="the shop is closed"):
        await front.change("withdraw", {"item": "beret"})
    assert front.state() == {"open": False}


@contextlib.asynccontextmanager
async def _shop(folder: Path) -> AsyncIterator[str]:
    """A shop as `make shop` opens it; gives its address."""
    arguments = ["-m", "hushstream.replay.shop", "--port", "0", "--visitors", str(VISITORS)]
    log = (folder / "shop.log").open("wb")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log
    )
    assert process.stdout is not None
    try:
        first = (await process.stdout.readline()).decode()
        found = re.search(r"http://127\.0\.0\.1:\d+", first)
        assert found is not None, (folder / "shop.log").read_text(encoding="utf-8")
        yield found[0]
        assert process.returncode is None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        said = await process.stdout.read()
        log.close()
        assert await process.wait() == 0, said


@pytest.mark.process
@pytest.mark.slow
@needs_chromium
async def test_one_clicks_and_sees_what_the_newest_model_shows(gateways: Any, tmp_path: Path) -> None:
    titles = {one.title for one in taste.STOCK}
    async with _shop(tmp_path) as address, browser(tmp_path / "profile") as tab, aiohttp.ClientSession() as session:

        async def shows(expression: str, seconds: float = 100.0) -> None:
            await gateways.until(lambda: tab.evaluate(expression), seconds)

        await tab.visit(address)
        await shows("!document.getElementById('buy').disabled")
        assert await tab.evaluate("document.getElementById('item').textContent") in titles
        for bought in (1, 2):
            await tab.evaluate("document.getElementById('buy').click()")
            words = f"You bought {bought} of {bought}"
            await shows(f"document.getElementById('you').textContent.startsWith('{words}')")
            await shows("!document.getElementById('buy').disabled")
        await tab.evaluate(
            "(() => { const age = document.getElementById('age'); age.value = 'old';"
            " age.dispatchEvent(new Event('change', { bubbles: true })); })()"
        )
        await shows("document.getElementById('you').textContent.startsWith('You bought 2 of 3')")
        # A new item is on offer at once, and a withdrawn one no more.
        await tab.evaluate(
            "(() => { document.getElementById('title').value = 'Sauna hat';"
            " document.getElementById('for-country').value = 'se';"
            " document.querySelector('#add button').click(); })()"
        )
        await shows("document.getElementById('shelf').textContent.includes('Sauna hat (for se, young)')")
        await tab.evaluate("document.querySelector('#shelf button').click()")
        await shows("!document.getElementById('shelf').textContent.includes('Beret')")
        await tab.evaluate(
            "document.getElementById('title').value = 'Clock'; document.querySelector('#add button').click()"
        )
        await shows("document.getElementById('refused').textContent.includes('expected an id')")
        async with session.post(f"{address}/items/withdraw", json={"item": 7}) as refused:
            assert refused.status == 409
        async with session.post(f"{address}/items/withdraw", data=b"{}") as refused:
            assert refused.status == 415
        # The visitors' sums have become a model, and the page asked it what new visitors of each kind are shown.
        await shows("document.getElementById('since').textContent.startsWith('By model version')", 160.0)
        shown = await tab.evaluate("[...document.querySelectorAll('#shown tr')].map((row) => row.cells[1].textContent)")
        assert len(shown) == len(taste.COUNTRIES) * len(taste.AGES)
        assert set(shown) <= titles | {"Sauna hat"}
        points = await tab.evaluate("document.querySelector('#curve .curve').getAttribute('points')")
        assert len(points.split()) >= 1
        async with session.get(f"{address}/state.json") as response:
            state = await response.json()
        assert state["version"] >= 1
        assert state["visits"] > 0
        assert [one["item"] for one in state["shelf"]][-1] == "sauna-hat"


@pytest.mark.slow
@pytest.mark.process
async def test_the_code_of_the_tutorial_asks_the_shop(gateways: Any, built: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "deploy" / "docs" / "tutorials" / "web-shop.md"
    own = gateways.with_the_client(tmp_path / "own", built, page)
    async with _shop(tmp_path) as address, aiohttp.ClientSession() as session:

        async def opened() -> Any:
            async with session.get(f"{address}/state.json") as response:
                return (await response.json()).get("gateway")

        said = await gateways.node(own, "app.mjs", GATEWAY=await gateways.until(opened, 100.0))
    ids = {one.item for one in taste.STOCK}
    found = re.fullmatch(r"on offer: ([a-z, -]+)\nshow ([a-z-]+)\n", said)
    assert found is not None, said
    assert set(found[1].split(", ")) == ids
    assert found[2] in ids


async def test_a_port_that_is_taken_is_said() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hushstream.replay.shop", "--port", str(port), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert f"expected a free one on 127.0.0.1, got {port}" in said.decode()
