"""`make shop`: visitors teach the deployment through the gateway, and a person clicks beside them in a browser."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from browser import browser, chromium
from hushstream.replay.shop import taste

VISITORS = 2_000

needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def test_each_kind_of_visitor_has_one_favourite_and_blind_picks_sell_as_stated() -> None:
    kinds = [taste.Visitor("", country, age) for country, age in itertools.product(taste.COUNTRIES, taste.AGES)]
    favourites = set()
    for kind in kinds:
        chances = [kind.chance(item) for item in range(len(taste.GOODS))]
        assert chances.count(taste.BEST_CHANCE) == 1
        favourites.add(chances.index(taste.BEST_CHANCE))
    assert favourites == set(range(len(taste.GOODS)))
    chances = [kind.chance(item) for kind in kinds for item in range(len(taste.GOODS))]
    assert taste.mean_chance() == pytest.approx(sum(chances) / 36)
    assert {(one.country, one.age) for one in taste.visitors(500, random.Random(0))} == {
        (kind.country, kind.age) for kind in kinds
    }


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


@pytest.mark.slow
@needs_chromium
async def test_one_clicks_and_sees_the_model_learn(gateways: Any, tmp_path: Path) -> None:
    async with _shop(tmp_path) as address, browser(tmp_path / "profile") as tab, aiohttp.ClientSession() as session:

        async def shows(expression: str, seconds: float = 100.0) -> None:
            await gateways.until(lambda: tab.evaluate(expression), seconds)

        await tab.visit(address)
        await shows("!document.getElementById('buy').disabled")
        assert await tab.evaluate("document.getElementById('item').textContent") in taste.GOODS
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
        # The visitors' sums have become a model, and the page asked it what new visitors of each kind are shown.
        await shows("document.getElementById('since').textContent.startsWith('By model version')", 160.0)
        shown = await tab.evaluate("[...document.querySelectorAll('#shown tr')].map((row) => row.cells[1].textContent)")
        assert len(shown) == len(taste.COUNTRIES) * len(taste.AGES)
        assert set(shown) <= set(taste.GOODS)
        points = await tab.evaluate("document.querySelector('#curve .curve').getAttribute('points')")
        assert len(points.split()) >= 1
        async with session.get(f"{address}/state.json") as response:
            state = await response.json()
        assert state["version"] >= 1
        assert state["visits"] > 0


async def test_a_port_that_is_taken_is_said() -> None:
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hushstream.replay.shop", "--port", str(port), stderr=asyncio.subprocess.PIPE
        )
        _, said = await process.communicate()
    assert process.returncode == 1
    assert f"expected a free one on 127.0.0.1, got {port}" in said.decode()
