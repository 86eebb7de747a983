"""What is shown of releases: measurement and budget to the owner, in a call and in the page; items alike to all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from browser import browser, chromium
from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item
from hushstream.gateway.conversation.similar import Similar, SimilarAsked
from hushstream.gateway.listening import Endpoints
from hushstream.gateway.problems import Problem
from hushstream.gateway.server import Gateway
from hushstream.gateway.settings import GatewaySettings
from hushstream.ops import budget
from hushstream.ops.ending import catalogues_in
from hushstream.ops.log_copy import LogCopy
from hushstream.schemas import codec
from hushstream.systems.p2b.reports import read_lift, read_model, similar_to
from patience import Patience
from recordings import KEYS, Loop

OPERATOR = {"Authorization": "Bearer operator-" + "t" * 32}
VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "seen",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
    "expected_slots": 400,
    "slot": {"after_interactions": 1},
    "release": {"form": "features", "window_units": 10, "sums": "fresh"},
    "feedback": {"settle_seconds": 1.0, "attribution_window_seconds": 1.0},
    "measurement": {
        "baseline": 0.3,
        "own": 0.3,
        "epsilon": 8.0,
        "every_seconds": 20.0,
        "releases": 4,
        "guardrail": "complained",
        "guardrail_share": 0.5,
        "guardrail_wait_seconds": 1.0,
    },
}


@contextlib.asynccontextmanager
async def seen(folder: Path) -> AsyncIterator[tuple[str, Loop, Client]]:
    """The address of a gateway with an operator, the loop behind it, and a client of its users."""
    loop = Loop(prepare(folder / "d", parse_config(VALUES), keys=KEYS))
    tokens = folder / "operators"
    tokens.write_text(f"owner {OPERATOR['Authorization'].split()[1]}", encoding="utf-8")
    tokens.chmod(0o600)
    settings = GatewaySettings(port=0, operators_file=tokens, answer_seconds=60)
    log, end = loop.log_of(), Endpoints()
    async with (
        Client(loop.log_of(), rules=loop.system.requests) as client,
        Gateway(system=loop.system, settings=settings, log=log, endpoints=end) as gateway,
    ):
        await client.items.add_all([Item("boots"), Item("socks")])
        yield f"http://127.0.0.1:{gateway.port}", loop, client


async def visits(client: Client, users: range) -> None:
    """Users who are shown an item once each, and click on boots."""
    for number in users:
        found = await client.decide(f"e{number}", f"u{number}", {"country": "fr"}, baseline="socks", timeout=None)
        await client.shown(f"e{number}", f"u{number}", found.item)
        if found.item == "boots":
            await client.reward(f"e{number}", f"u{number}", found.item, 1.0)


async def test_an_owner_sees_what_was_released_and_paid_and_nobody_else_does(tmp_path: Path) -> None:
    async with seen(tmp_path) as (base, loop, client), aiohttp.ClientSession(base) as session:

        async def shown(status: int = 200, **headers: str) -> Any:
            async with session.get("/v1/overview", headers=headers) as answer:
                assert answer.status == status
                return await answer.json()

        assert (await shown(403))["code"] == "not-an-operator"
        fresh = await shown(**OPERATOR)
        assert fresh["measurement"]["comparisons"] == []
        assert "expected at least one release" in fresh["measurement"]["about"]
        assert [(one["paid"]["epsilon"], one["releases"], one["releases_left"]) for one in fresh["budget"]] == [
            (0.0, 0, None),
            (0.0, 0, 4),
        ]
        await visits(client, range(200))
        last = await client.decide("last", "last", {"country": "fr"}, baseline="socks", timeout=None)
        await client.shown("last", "last", last.item)
        found = await shown(**OPERATOR)
        # A click moves nothing until the next release.
        await client.reward("last", "last", last.item, 1.0)
        assert await shown(**OPERATOR) == found
        lift = read_lift((record.value for record in loop.log.slice("lift", 0, 0).records), loop.system)
        compared = [(one["over"], one["counted"], one["difference"]) for one in found["measurement"]["comparisons"]]
        assert compared == [(one.over, one.counted, one.difference) for one in lift.comparisons()]
        assert any(difference is not None for _, _, difference in compared)
        spent = budget.read(LogCopy.of(loop.log), loop.system)
        windows = [one for one in spent.charges if one.scope.startswith("window/")]
        of_slots, of_lift = found["budget"]
        assert of_slots["releases"] == len(windows) > 1
        assert of_slots["paid"]["epsilon"] == pytest.approx(1.0)
        assert (of_lift["paid"]["epsilon"], of_lift["left"]["epsilon"]) == (pytest.approx(8.0), 0.0)
        assert of_lift["releases"] + of_lift["releases_left"] == 4


async def test_a_harm_is_told_over_http_and_compared_beside_the_rewards(tmp_path: Path) -> None:
    async with seen(tmp_path) as (base, loop, client), aiohttp.ClientSession(base) as session:

        async def told(status: int, **body: Any) -> Any:
            async with session.post("/v1/harm", json=body) as answer:
                assert answer.status == status, await answer.text()
                return await answer.json()

        async with session.get("/v1/schema") as answer:
            assert (await answer.json())["harm"] == "complained"
        asked = {"event_id": "mine", "user": "ann", "context": {"country": "de"}, "baseline": "socks"}
        async with session.post("/v1/decide", json=asked) as answer:
            assert answer.status == 200
        assert await told(200, event_id="mine", harm=0.5) == {"logged": True}
        assert await told(200, event_id="mine", harm=0.5, user="ann") == {"logged": True}
        assert (await told(409, event_id="mine", harm=1.0))["code"] == "feedback-conflict"
        assert (await told(409, event_id="mine", harm=0.5, user="bob"))["code"] == "event-conflict"
        assert (await told(404, event_id="e0", harm=1.0))["code"] == "unknown-event"
        await visits(client, range(100))
        assert await told(200, event_id="e99", harm=1.0, user="u99") == {"logged": True}
        sent = [codec.decode(record.value)[1] for record in loop.log.slice("clicks", 0, 0).records]
        harms = [(one["event_id"], one["user"], one["reward"]) for one in sent if one["kind"] == "harm"]
        assert harms == [("mine", "ann", 0.5), ("e99", "u99", 1.0)]
        await visits(client, range(100, 200))
        async with session.get("/v1/overview", headers=OPERATOR) as answer:
            compared = (await answer.json())["measurement"]["comparisons"]
        assert [one["harm"] for one in compared] == ["", "", "complained", "complained"]


async def test_items_alike_are_named_by_the_newest_released_model_as_the_command_names_them(tmp_path: Path) -> None:
    async with seen(tmp_path) as (base, loop, client), aiohttp.ClientSession(base) as session:

        async def similar(body: Any, status: int = 200, path: str = "/v1/similar") -> Any:
            async with session.post(path, json=body) as answer:
                assert answer.status == status, await answer.text()
                return await answer.json()

        assert (await similar({"item": "boots"}, 404))["code"] == "no-model"
        versions = set()
        for turn in range(2):
            await visits(client, range(100 * turn, 100 * turn + 100))
            found = await similar({"item": "boots"})
            models = [record.value for record in loop.log.slice("models", 0, 0).records]
            catalogue = catalogues_in(LogCopy.of(loop.log), loop.system)[""]
            told = similar_to(read_model(loop.system.core, models, None, catalogue), "boots", 5)
            assert found == {**told.as_json(), "about": told.as_text()}
            assert found["similar"][0]["item"] == "socks"
            versions.add(found["version"])
        assert len(versions) == 2, "each answer is of the newest version"
        assert max(versions) == max(fields["version"] for _, fields in codec.readable(models) if "version" in fields)
        # A click moves nothing until the next release.
        last = await client.decide("last", "last", {"country": "fr"}, baseline="socks", timeout=None)
        await client.reward("last", "last", last.item, 1.0)
        assert await similar({"item": "boots"}) == found
        await client.items.add("hats")
        refused = await similar({"item": "hats"}, 422)
        assert refused["code"] == "unknown-item"
        assert refused["detail"].startswith("model: expected an item of version")
        assert (await similar({"item": "boots", "most": 0}, 400))["code"] == "invalid-request"
        many = await similar({"requests": [{"item": "boots"}, {"item": "none"}]}, path="/v1/similar/batch")
        assert [one.get("code") for one in many["answers"]] == [None, "unknown-item"]


async def test_nothing_is_kept_of_earlier_versions_and_codes_have_none_alike(tmp_path: Path) -> None:
    async with seen(tmp_path) as (_, loop, client):
        similar = Similar(loop.log_of(), loop.system)
        for turn in range(3):
            await visits(client, range(60 * turn, 60 * turn + 60))
            await similar.find(SimilarAsked(item="boots"), client.items)
            assert sum(map(len, similar._kept.values())) == 1
    with pytest.raises(Problem, match="no-model") as refused:
        await Similar(loop.log_of(), replace(loop.system, models=None)).find(SimilarAsked(item=1), client.items)
    assert "expected declared features" in str(refused.value.detail)


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")
async def test_the_page_shows_measurement_and_budget_to_who_has_the_token(tmp_path: Path) -> None:
    async with seen(tmp_path) as (base, _, client), browser(tmp_path / "profile") as tab:
        await visits(client, range(200))
        await tab.visit(f"{base}/catalogue")
        assert await tab.evaluate("document.getElementById('overview').hidden") is True
        token = OPERATOR["Authorization"].split()[1]
        await tab.evaluate(
            f"const token = document.getElementById('token'); token.value = '{token}';"
            "token.dispatchEvent(new Event('change'))"
        )
        waiting = Patience(60.0)
        while await tab.evaluate("document.getElementById('overview').hidden"):
            assert not waiting.over
            await asyncio.sleep(0.05)
        text = str(await tab.evaluate("document.getElementById('overview').innerText"))
        assert "the application's own choice" in text
        assert "epsilon 8, delta" in text
        assert "complained, over the application's own choice" in text
        assert "nothing to pay: the price of all releases is fixed and charged in advance" in text
        for width, scheme in ((1280, "light"), (390, "dark")):
            await tab.look_as(width, scheme)
            assert await tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), width
