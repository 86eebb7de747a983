"""Items by name over HTTP's own words: answers name ids, and what was not there before is listed when it is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from browser import browser, chromium
from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.client import Client, Item, UnknownArm
from hushstream.gateway.conversation import decisions
from hushstream.gateway.conversation.decisions import (
    DecisionAnswers,
    DecisionAsked,
    RankAsked,
    RewardTold,
    ShownTold,
)
from hushstream.gateway.listening import Endpoints
from hushstream.gateway.problems import Problem, problem_of
from hushstream.gateway.server import Gateway
from hushstream.gateway.settings import GatewaySettings
from hushstream.schemas.errors import HushstreamError
from patience import Patience
from recordings import KEYS, Loop

MANY = 2000
VALUES: dict[str, Any] = {
    "system": "p2b",
    "deployment": "named",
    "items": {"capacity": 3, "named": True},
    "features": {"country": {"kind": "category", "vocabulary": ["de", "fr"]}, "hour": {"kind": "time_of_day"}},
    "expected_slots": 40,
    "release": {"form": "features"},
}


def answered(
    folder: Path, play: Callable[[DecisionAnswers, Any], Awaitable[None]], features: Any = None, **settings: Any
) -> None:
    items = VALUES["items"] | ({} if features is None else {"features": features})
    loop = Loop(prepare(folder, parse_config({**VALUES, "items": items}), keys=KEYS))

    async def run() -> None:
        async with Client(loop.log_of(), rules=loop.system.requests) as client:
            await client.items.add("boots", "Winter boots")
            made = DecisionAnswers(loop.log_of(), loop.system, GatewaySettings(**settings))
            async with made as answers:
                await play(answers, client)

    asyncio.run(run())


def asked(event: str, **more: Any) -> DecisionAsked:
    return DecisionAsked(event_id=event, user="ann", context={"country": "fr"}, **more)


def test_answers_and_feedback_name_items_by_id(tmp_path: Path) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        found = await answers.decide(asked("a", baseline="boots"))
        assert (found.item, found.policy) == ("boots", "model")
        await answers.shown(ShownTold(event_id="a"))
        await answers.reward(RewardTold(event_id="a", item="boots", reward=1.0))
        await client.items.add("socks")
        assert (await answers.decide(asked("b", items=["socks"]))).item == "socks"
        for wrong in (1, "sandals"):
            with pytest.raises((Problem, UnknownArm)):
                await answers.decide(asked(f"c{wrong}", items=[wrong]))

    answered(tmp_path, play)


def test_many_items_are_sent_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that follow one another would cost a round trip each."""
    monkeypatch.setattr("hushstream.client.items.MOST_BYTES_OF_CHANGES", 1)
    waiting: list[int] = []

    async def play(answers: DecisionAnswers, client: Client) -> None:
        append = client.items._log.append

        async def counted(*record: Any) -> int:
            waiting.append(max(waiting, default=0) + 1)
            await asyncio.sleep(0)
            assert max(waiting) == 2
            return await append(*record)

        monkeypatch.setattr(client.items._log, "append", counted)
        assert await client.items.add_all([Item("socks"), Item("tent")]) == 3

    answered(tmp_path, play)
    assert len(waiting) == 2


OPERATOR = "operator-" + "t" * 32


@contextlib.asynccontextmanager
async def operated(folder: Path, capacity: int) -> AsyncIterator[str]:
    """The address of a gateway with an operator, of a shop whose items have a colour."""
    features = {"colour": {"kind": "category", "vocabulary": ["blue", "green"]}}
    items = {"capacity": capacity, "named": True, "features": features}
    shop = prepare(folder / "d", parse_config({**VALUES, "items": items}), keys=KEYS)
    tokens = folder / "operators"
    tokens.write_text(f"owner {OPERATOR}", encoding="utf-8")
    tokens.chmod(0o600)
    settings = GatewaySettings(port=0, operators_file=tokens, answer_seconds=60)
    async with Gateway(system=shop, settings=settings, log=Loop(shop).log_of(), endpoints=Endpoints()) as gateway:
        yield f"http://127.0.0.1:{gateway.port}"


def test_an_operator_changes_the_catalogue_in_one_version(tmp_path: Path) -> None:
    """Thousands at once; whatever of it cannot be taken, nothing of it is; and nobody else may."""
    many = [{"item": f"i{number}", "title": f"Item {number}"} for number in range(MANY)]

    async def run() -> None:
        async with operated(tmp_path, MANY) as base, aiohttp.ClientSession(base) as session:

            async def change(expected: int, body: Any, token: str = OPERATOR) -> Any:
                headers = {"Authorization": f"Bearer {token}"}
                sent = {"data": body} if isinstance(body, bytes) else {"json": body}
                headers["Content-Type"] = "application/json"
                async with session.post("/v1/catalogue", **sent, headers=headers) as answer:
                    assert answer.status == expected
                    return await answer.json()

            async def told(body: Any) -> list[int]:
                return list((await change(200, body)).values())

            assert (await change(403, {"items": many}, "x" * 40))["code"] == "not-an-operator"
            assert await told({"items": many}) == [1, MANY, 0, 0, 0, 0]
            assert await told({"items": many}) == [1, 0, 0, 0, 0, MANY]
            for twice in (b'{"retire": ["i3"], "retire": []}', b'{"items": [{"item": "i3", "item": "i4"}]}'):
                assert (await change(400, twice))["code"] == "malformed-json"
            assert (await change(422, {"items": [{"item": "one more"}]}))["code"] == "catalogue-full"
            ruled = {"title": "New", "pinned": True, "cap": {"shows": 3, "within_seconds": 60}}
            assert await told({"items": [{**many[0], **ruled}], "retire": ["i1", "i2"]}) == [2, 0, 1, 0, 2, 0]
            assert await told({"items": [{**many[0], **ruled}]}) == [2, 0, 0, 0, 0, 1]
            for cap in ({"shows": 0, "within_seconds": 60}, {"shows": 1}, {"shows": 1, "within_seconds": 10**9}):
                assert (await change(400, {"items": [{"item": "i0", "cap": cap}]}))["code"] == "invalid-request"
            assert await told({"items": many[1:2], "retire": ["i2"]}) == [3, 0, 0, 1, 0, 1]
            refused = ({"items": many[:1] * 2}, {"items": many[:1], "retire": ["i0"]}, {"retire": ["nothing"]})
            for body in (
                *refused,
                {"items": [{"item": "a\u2028b"}]},
                {"items": [{"item": "x", "features": {"size": 3}}]},
            ):
                told_of = await change(422, {"retire": ["i3"], **body})
                assert told_of["code"] == "bad-item"
                assert "item '" in told_of["detail"] or len(body) + len(body.get("items", ())) == 1, "which of several"
            red = await change(422, {"items": [{**many[0], "features": {"colour": "red"}}]})
            assert red["detail"].startswith(
                "colour: expected a value of its vocabulary (`items.features`), got another"
            )
            async with session.get("/v1/catalogue") as answer:
                found = await answer.json()
            assert found["version"] == 3
            assert found["items"][0] == {"item": "i0", "features": {}, "offered": True, "since": 2, **ruled}
            assert (found["items"][1]["pinned"], found["items"][1]["cap"]) == (False, None)
            assert [one["item"] for one in found["items"] if not one["offered"]] == ["i2"]

    asyncio.run(run())


_OFFERED = """(() => {
  const put = (id, text) => { document.getElementById(id).value = text; };
  put("item", "boots"); put("name", "Winter boots"); put("features", '{"colour": "blue"}'); put("shows", "3");
  document.getElementById("pinned").checked = true;
  document.getElementById("put").requestSubmit();
})()"""


@pytest.mark.slow
@pytest.mark.skipif(chromium() is None, reason="no Chromium is installed (Debian package chromium)")
async def test_an_owner_offers_and_retires_an_item_in_the_page(tmp_path: Path) -> None:
    async with operated(tmp_path, 3) as base, browser(tmp_path / "profile") as tab:

        async def says(text: str, name: str = "status") -> None:
            waiting = Patience(60.0)
            while text not in (said := str(await tab.evaluate(f"document.getElementById('{name}').textContent"))):
                assert not waiting.over, said
                await asyncio.sleep(0.05)

        await tab.visit(f"{base}/catalogue")
        await tab.evaluate(_OFFERED)
        await says("The caller is no operator")
        await tab.evaluate(f"document.getElementById('token').value = '{OPERATOR}'")
        await tab.evaluate(_OFFERED)
        await says("boots: offered since version 1.")
        await tab.evaluate(_OFFERED.replace('{"colour": "blue"}', "colour: blue"))
        await says('Features: expected JSON such as {"colour": "red"}, got other text.')
        await tab.evaluate("document.getElementById('token').dispatchEvent(new Event('change'))")
        waiting = Patience(60.0)
        while await tab.evaluate("document.getElementById('status').textContent"):
            assert not waiting.over, "what went wrong before stands over what went well"
            await asyncio.sleep(0.05)
        rules = "pinned, at most 3 in 86400 s for a user"
        await says(f"bootsWinter bootscolour: blueoffered since version 1, {rules}Retire", "items")
        await tab.evaluate("document.querySelector('[aria-label=\"Retire: boots\"]').click()")
        await says("boots: retired since version 2.")
        await says("0 items are offered; version 2 of the catalogue", "version")
        await tab.evaluate("document.querySelector('[aria-label=\"Offer again: boots\"]').click()")
        await says(f"offered since version 3, {rules}Retire", "items")
        await tab.visit(base)
        waiting = Patience(60.0)
        while await tab.evaluate("document.querySelector('#owner a')?.textContent || 'hidden'") == "hidden":
            assert not waiting.over
            await asyncio.sleep(0.05)


def test_a_request_that_names_a_retired_item_is_answered_from_the_others_and_says_so(tmp_path: Path) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        await client.items.put([Item("socks"), Item("tent")])
        assert (await answers.decide(asked("a", items=["socks", "tent"]))).retired == ()
        await client.items.retire("tent")
        await answers._client.items.refresh()
        found = await answers.decide(asked("b", items=["tent", "socks"]))
        assert (found.item, found.policy, found.retired) == ("socks", "model", ("tent",))
        slate = RankAsked(event_id="c", user="ann", context={"country": "fr"}, items=["tent", "socks"])
        ranked = await answers.rank(slate)
        assert ([one.item for one in ranked.ranked], ranked.retired) == (["socks"], ("tent",))

    answered(tmp_path, play)


def test_an_item_that_was_restored_just_now_is_answered_and_not_called_retired(tmp_path: Path) -> None:
    """The learner has read of it, and the gateway has not."""

    async def play(answers: DecisionAnswers, client: Client) -> None:
        await client.items.put([Item("socks"), Item("tent")])
        await client.items.retire("tent")
        await client.items.retire("socks")
        await answers._client.items.refresh()
        await client.items.put([Item("tent")])
        found = await answers.decide(asked("a", items=["tent", "socks"]))
        assert (found.item, found.retired) == ("tent", ("socks",))

    answered(tmp_path, play)


def test_an_item_that_cannot_be_shown_is_named_by_its_place(tmp_path: Path) -> None:
    visit = {"user": "ann", "context": {"country": "fr"}}
    both = ["boots", "nobodys"]
    calls: list[tuple[str, Any, list[str]]] = [
        ("decide", DecisionAsked(event_id="a", items=both, **visit), ["/items/1"]),
        ("decide", DecisionAsked(event_id="b", baseline="nobodys", **visit), ["/baseline"]),
        ("rank", RankAsked(event_id="c", items=both, baseline=both[::-1], **visit), ["/items/1", "/baseline/0"]),
        ("reward", RewardTold(event_id="d", user="ann", item="nobodys", reward=1.0), ["/item"]),
        ("decide", DecisionAsked(event_id="e", items=["tent"], **visit), []),
        ("decide", DecisionAsked(event_id="f", items=["tent"], baseline="tent", **visit), []),
        ("rank", RankAsked(event_id="g", items=["tent"], **visit), []),
    ]

    async def play(answers: DecisionAnswers, client: Client) -> None:
        await client.items.add("tent")
        await client.items.retire("tent")
        await answers._client.items.refresh()
        for call, asked, places in calls:
            with pytest.raises(Problem) as refused:
                await getattr(answers, call)(asked)
            assert refused.value.kind.code == "unknown-item", asked
            assert sorted(one["pointer"] for one in refused.value.errors) == sorted(places)
            assert places or str(refused.value.detail).endswith("got only retired ones"), refused.value.detail

    answered(tmp_path, play)


def test_a_value_outside_of_its_vocabulary_is_answered_and_named(tmp_path: Path) -> None:
    """But not repeated: nobody would see that a new country is none of the declared ones."""

    async def play(answers: DecisionAnswers, client: Client) -> None:
        visit = {"event_id": "a", "user": "ann", "context": {"country": "Utopia"}}
        found = await answers.decide(DecisionAsked(**visit))
        assert (found.policy, found.unknown) == ("model", ("country",))
        assert (await answers.rank(RankAsked(**visit | {"event_id": "b"}))).unknown == ("country",)
        assert (await answers.decide(asked("c"))).unknown == ()

    answered(tmp_path, play)


def test_an_item_that_comes_by_itself_leaves_out_what_is_not_declared(tmp_path: Path) -> None:
    declared = {"colour": {"kind": "category", "vocabulary": ["blue"]}, "size": {"kind": "number", "range": [0, 9]}}

    async def play(answers: DecisionAnswers, client: Client) -> None:
        await answers.offer("hat", {"colour": "red", "size": 3})
        await client.items.refresh()
        assert client.items.find("hat").features == {"size": 3}
        with pytest.raises(Problem, match="bad-item"):
            await answers.offer("cap", {"size": "big"})

    answered(tmp_path, play, features=declared)


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
        {"city": "canary"},
        {"country": "fr", "city": "canary"},
        {"country": ["fr"]},
        {"country": "fr", "hour": "25:00"},
        {"hour": {"canary": 1}},
        {"country": {"canary": 1}},
        {"country": "canary" * 1000},
        {f"city{number}": "canary" for number in range(60)},
        [0.5],
    ],
)
def test_values_of_no_declared_feature_are_refused_with_its_name_and_not_repeated(tmp_path: Path, context: Any) -> None:
    async def play(answers: DecisionAnswers, client: Client) -> None:
        with pytest.raises(HushstreamError) as refused:
            await answers.decide(DecisionAsked(event_id="a", user="ann", context=context))
        problem = problem_of(refused.value)
        assert (problem.kind.code, problem.kind.status) == ("bad-context", 422)
        assert b"canary" not in problem.body()
        assert (b"hour: expected" in problem.body()) is ("hour" in context)
        assert (b"city" in problem.body()) is ("city" in str(context))
        assert (await answers.decide(asked("a"))).logged, "its event id is free"

    answered(tmp_path, play)
