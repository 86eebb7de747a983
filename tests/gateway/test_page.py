"""The page of the gateway: its commands run as they stand, its settings are taken, and its table is the code's."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from hushstream.gateway.problems import PROBLEMS, table
from hushstream.gateway.settings import GatewaySettings

ROOT = Path(__file__).parents[2]


def _blocks() -> list[Any]:
    path = ROOT / "deploy" / "docs" / "site" / "blocks.py"
    spec = importlib.util.spec_from_file_location("hushstream_site_blocks_of_gateway", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [block for block in module.all_blocks() if block.page == "deploy/docs/gateway.md"]


@pytest.mark.slow
async def test_the_commands_of_the_page_run_in_their_order(gateways: Any, tmp_path: Any) -> None:
    commands = [block.code for block in _blocks() if block.language == "sh" and block.reason is None]
    assert len(commands) == 3
    answers: list[Any] = []
    async with gateways.placed("p2b", tmp_path / "d") as place, place.worker(), place.gateway() as caller:
        for code in commands:
            process = await asyncio.create_subprocess_exec(
                "sh", "-e", "-c", code, env={**os.environ, "GATEWAY": caller.base}, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await process.communicate()
            assert process.returncode == 0, code
            decoder, text = json.JSONDecoder(), output.decode()
            while text:
                found, end = decoder.raw_decode(text)
                answers.append(found)
                text = text[end:]
    first, shown, reward, batch, items, schema = answers
    assert (first["event_id"], first["logged"]) == ("visit-1", True)
    assert shown == reward == {"logged": True}
    assert [answer["logged"] for answer in batch["answers"]] == [True, True]
    assert len(items["items"]) == 3
    assert schema["context"]["numbers"] == 3


def test_the_settings_of_the_page_are_taken() -> None:
    (code,) = (block.code for block in _blocks() if block.language == "yaml")
    assert GatewaySettings.model_validate(yaml.safe_load(code)).port == 8443


def test_the_table_names_every_problem_once() -> None:
    rows = table().splitlines()[2:]
    assert [row.split("`")[1] for row in rows] == list(PROBLEMS)
