"""The pages of the gateway: their commands run as they stand, their settings are taken, and the table is the code's."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from browser import browser, chromium
from hushstream.client import Item, connect
from hushstream.gateway.problems import PROBLEMS, table
from hushstream.gateway.settings import GatewaySettings

ROOT = Path(__file__).parents[2]
needs_chromium = pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")


def _blocks(gateways: Any, page: str = "deploy/docs/gateway.md") -> list[Any]:
    blocks = gateways.module_of("hushstream_site_blocks_of_gateway", ROOT / "deploy" / "docs" / "site" / "blocks.py")
    return [block for block in blocks.all_blocks() if block.page == page]


async def _answers(gateway: str, commands: list[str]) -> list[Any]:
    """What commands print, which is JSON upon JSON."""
    answers: list[Any] = []
    for code in commands:
        process = await asyncio.create_subprocess_exec(
            "sh", "-e", "-c", code, env={**os.environ, "GATEWAY": gateway}, stdout=asyncio.subprocess.PIPE
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
            answers = await _answers(caller.base, commands)
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
        predicted, told, schema, problem = await _answers(caller.base, [labels, careful])
    assert (predicted["event_id"], predicted["logged"], told) == ("mail-1", True, {"logged": True})
    assert schema["nodes"] == 2
    assert problem["code"] == "invalid-request"
    async with gateways.placed("bgt", tmp_path / "ratings") as place, place.worker(), place.gateway() as caller:
        told, rated = await _answers(caller.base, [ratings])
    assert told == {"logged": True}
    assert (rated["event_id"], len(rated["values"]), rated["logged"]) == ("shelf-1", 3, True)


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
