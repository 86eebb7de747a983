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
from hushstream.gateway.conversation.decisions import (
    DecisionAnswers,
    DecisionAsked,
    RankAsked,
    RewardTold,
    ShownTold,
)
from hushstream.gateway.problems import Problem, problem_of
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.errors import HushstreamError
from recordings import KEYS, Loop

VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "named",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}},
    "expected_slots": 40,
    "release": {"form": "features"},
}


def answered(folder: Path, play: Callable[[DecisionAnswers, Any], Awaitable[None]], **settings: Any) -> None:
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
        await answers._log_feedback("shown", ShownTold(event_id="a"))
        await answers._log_feedback("reward", RewardTold(event_id="a", item="boots", reward=1.0))
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


def test_a_stated_baseline_that_is_no_item_yet_is_nobody_s_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        assert (await answers.decide(asked("a"))).policy == "model"
        assert len((await answers.rank(RankAsked(event_id="r", user="bob", context={"country": "de"}))).ranked) == 1
        assert answers._default is None
        await client.items.add("socks")
        await answers._client.items.refresh()
        assert answers._default == "socks"

    answered(tmp_path, play, baseline="socks")
    assert [one.getMessage() for one in caplog.records if "baseline" in one.getMessage()] == [
        "baseline: expected the id of an item; requests have no default baseline until there is one"
    ]


def test_a_slate_stays_what_it_was_when_its_items_are_retired(tmp_path: Path) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        await client.items.add("socks")
        await answers._client.items.refresh()
        of_all = RankAsked(event_id="s", user="ann", context={"country": "fr"})
        slate = await answers.rank(of_all)
        own = await client.rank("t", "bob", {"country": "de"}, 2)
        assert {one.item for one in slate.ranked} == {"boots", "socks"} == {one.item for one in own}
        await client.items.retire("boots")
        await answers._client.items.refresh()
        assert await answers.rank(of_all) == slate
        assert (await client.rank("t", "bob", {"country": "de"}, 2))[0] == own[0], "it is no conflict"

    answered(tmp_path, play)


def test_ids_that_nobody_knows_share_a_reading_and_wait_no_longer_than_for_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "_ITEMS_SECONDS", 3600.0)

    async def play(answers: DecisionAnswers, client: Client) -> None:
        read, reads, away = answers._client._log.read, 0, asyncio.Event()

        async def counted(*place: Any) -> Any:
            nonlocal reads
            reads += 1
            await asyncio.sleep(0.01)
            if away.is_set():
                await asyncio.Event().wait()
            return await read(*place)

        monkeypatch.setattr(answers._client._log, "read", counted)
        many = (answers.decide(asked(f"e{number}", items=[f"nobodys-{number}"])) for number in range(50))
        refused = await asyncio.gather(*many, return_exceptions=True)
        assert {one.kind.code for one in refused if isinstance(one, Problem)} == {"unknown-item"}
        assert len(refused) == 50
        assert reads == 2, "one for each would let anybody load the brokers"
        # An item that came in after all of them were read is found at its first request.
        await client.items.add("socks")
        assert (await answers.decide(asked("new", items=["socks"]))).item == "socks"
        away.set()
        for call in (
            answers.decide(asked("f", items=["nobodys"])),
            answers.rank(RankAsked(event_id="g", user="ann", context={"country": "fr"}, items=["nobodys"])),
            answers.reward(RewardTold(event_id="h", user="ann", item="nobodys", reward=1.0)),
        ):
            with pytest.raises(Problem) as ended:
                await call
            assert ended.value.kind.code == "log-unavailable"
        # A slate of all items reads nothing.
        assert (await answers.rank(RankAsked(event_id="i", user="ann", context={"country": "fr"}))).logged

    answered(tmp_path, play, answer_seconds=5.0)


@pytest.mark.parametrize(
    "context",
    [
        {"canary": 1},
        {"country": "fr", "canary": "x"},
        {"country": ["fr"]},
        {"country": {"canary": 1}},
        {"country": "canary" * 1000},
        {f"canary{number}": number for number in range(60)},
        [0.5],
    ],
)
def test_values_of_no_declared_feature_are_refused_and_not_repeated(tmp_path: Path, context: Any) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        with pytest.raises(HushstreamError) as refused:
            await answers.decide(DecisionAsked(event_id="a", user="ann", context=context))
        problem = problem_of(refused.value)
        assert problem.kind.code == "bad-context"
        assert b"canary" not in problem.body()
        assert (await answers.decide(asked("a"))).logged, "its event id is free"

    answered(tmp_path, play)
