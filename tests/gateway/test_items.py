"""Items by name over HTTP's own words: answers name ids, and what was not there before is listed when it is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, UnknownArm
from hushstream.gateway.conversation import decisions
from hushstream.gateway.conversation.decisions import DecisionAnswers, DecisionAsked, RewardTold, ShownTold
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings
from recordings import KEYS, Loop

VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "named",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
    "expected_slots": 40,
    "release": {"form": "features"},
}


def answered(folder: Path, play: Callable[[DecisionAnswers, Client], Awaitable[None]], **settings: Any) -> None:
    loop = Loop(prepare(folder, parse_config(VALUES), keys=KEYS))

    async def run() -> None:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            await client.items.add("boots", "Winter boots")
            made = DecisionAnswers(loop.log_of(), loop.system, GatewaySettings(**settings), 1)
            async with made as answers:
                await play(answers, client)

    asyncio.run(run())


def asked(event: str, **more: Any) -> DecisionAsked:
    return DecisionAsked(event_id=event, user="ann", context={"country": "fr"}, **more)


def test_answers_and_feedback_name_items_by_id(tmp_path: Path) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        found = await answers.decide(asked("a", baseline="boots"))
        assert (found.item, found.policy) == ("boots", "model")
        await answers._tell("shown", ShownTold(event_id="a"))
        await answers._tell("reward", RewardTold(event_id="a", item="boots", reward=1.0))
        await client.items.add("socks")
        assert (await answers.decide(asked("b", items=["socks"]))).item == "socks"
        for wrong in (1, "sandals"):
            with pytest.raises((Problem, UnknownArm)):
                await answers.decide(asked(f"c{wrong}", items=[wrong]))

    answered(tmp_path, play)


def test_a_new_item_is_listed_and_a_retired_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "_ITEMS_SECONDS", 0.01)

    async def play(answers: DecisionAnswers, client: Client) -> None:
        assert answers.items() == [{"item": "boots", "title": "Winter boots", "features": {}}]
        await client.items.add("socks")
        await client.items.retire("boots")
        async with asyncio.timeout(60):
            while [one["item"] for one in answers.items()] != ["socks"]:  # noqa: ASYNC110 - as whoever asks does
                await asyncio.sleep(0.01)

    answered(tmp_path, play)
