"""While learners, or brokers, are away: a marked baseline at once, refusals at once, and nothing that grows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hushstream.gateway.http_server import REMEMBERED_CALLERS, Rate, UserRates
from hushstream.gateway.problems import Problem
from hushstream.gateway.settings import GatewaySettings
from patience import patience

pytestmark = pytest.mark.slow

ASKED = {"user": "ann", "context": [0.7, 0.2], "baseline": 1}


async def _silence(caller: Any) -> None:
    """Ask until it is known that nobody answers."""
    for number in range(50):
        answer = await caller.post("/v1/decide", {**ASKED, "event_id": f"silence-{number}"})
        if answer.json["policy"] == "no_learner":
            return
    raise AssertionError("it was never known that no learner answers")


async def test_without_a_learner_the_baseline_comes_marked_and_feedback_on_it_is_refused(
    gateways: Any, tmp_path: Any
) -> None:
    async with (
        gateways.placed("pdap", tmp_path / "d") as place,
        place.gateway(answer_seconds=0.2) as caller,
    ):
        first = (await caller.post("/v1/decide", {**ASKED, "event_id": "first"})).json
        assert (first["item"], first["propensity"], first["policy"], first["logged"]) == (1, None, "timeout", False)
        await _silence(caller)
        answer = (await caller.post("/v1/decide", {**ASKED, "event_id": "e1"})).json
        assert (answer["item"], answer["policy"], answer["logged"]) == (1, "no_learner", False)
        for path, told in [("shown", {}), ("reward", {"reward": 1.0})]:
            refused = await caller.post(f"/v1/{path}", {"event_id": "e1", **told})
            assert (refused.status, refused.code) == (409, "not-logged")
        assert not await place.rows("clicks.north", "Feedback")
        # Without a baseline there is no answer, and when to try again.
        asked = {"event_id": "e2", "user": "bob", "context": ASKED["context"]}
        nothing = await caller.post("/v1/decide", asked)
        assert (nothing.status, nothing.code, nothing.headers["Retry-After"]) == (503, "no-answer", "1")
        assert 'hushstream_edge_gateway_unlogged_total{call="decide",role="gateway"}' in await caller.zone_metrics()

        # Somebody is there again: what is asked again is decided, and then feedback counts.
        async with place.worker():

            async def decided() -> bool:
                answer = await caller.post("/v1/decide", {**ASKED, "event_id": "e1"})
                return bool(answer.json["logged"])

            await gateways.until(decided, 60.0)
            assert (await caller.post("/v1/reward", {"event_id": "e1", "reward": 1.0})).json == {"logged": True}
            (told,) = await place.rows("clicks.north", "Feedback")
            assert (told["event_id"], told["reward"]) == ("e1", 1.0)


async def test_a_gateways_own_baseline_stands_in_where_a_request_has_none(gateways: Any, tmp_path: Any) -> None:
    asked = {"event_id": "e1", "user": "ann", "context": ASKED["context"]}
    async with (
        gateways.placed("pdap", tmp_path / "d") as place,
        place.gateway(answer_seconds=0.2, baseline=2) as caller,
    ):
        assert (await caller.post("/v1/decide", asked)).json["item"] == 2
        among = await caller.post("/v1/decide", {**asked, "event_id": "e2", "items": [0, 1]})
        assert among.code == "no-answer", "it is not among the items that may be shown"


async def test_more_than_it_takes_is_refused_with_a_time_to_try_again(gateways: Any, tmp_path: Any) -> None:
    async with (
        gateways.placed("pdap", tmp_path / "d") as place,
        place.gateway(answer_seconds=3.0, in_flight=4) as caller,
    ):
        asked = {"user": "ann", "context": ASKED["context"]}
        answers = await asyncio.gather(
            *(caller.post("/v1/decide", {**asked, "event_id": f"e{number}"}) for number in range(12))
        )
        codes = [answer.code for answer in answers]
        assert codes.count("no-answer") == 4
        assert codes.count("too-busy") == 8
        refused = next(answer for answer in answers if answer.code == "too-busy")
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")


async def test_a_caller_may_ask_so_often_and_a_batch_counts_whole(gateways: Any, tmp_path: Any) -> None:
    limits = {"requests_per_second": 0.01, "burst": 8, "batch_requests": 8}
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(**limits) as caller:
        bad = {"event_id": "e", "reward": 1.0}
        assert (await caller.post("/v1/reward/batch", {"requests": [bad] * 6})).status == 200
        assert (await caller.post("/v1/reward/batch", {"requests": [bad] * 6})).code == "too-many-requests"
        assert (await caller.post("/v1/reward", bad)).code == "unknown-event"
        refused = await caller.post("/v1/reward", bad)
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "too-many-requests", "1")
        alive = await caller.get("/healthz")
        assert (alive.status, alive.body) == (200, b"alive"), "probes are no calls"


async def test_a_user_may_ask_so_often_and_feedback_moves_no_refusal_of_a_request(gateways: Any, tmp_path: Any) -> None:
    """Requests and feedback of a user are counted apart, also in a batch; and nobody is named."""
    limits = {"user_requests_per_second": 0.01, "user_burst": 4, "answer_seconds": 0.2}
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(**limits) as caller:

        async def codes(call: str, count: int, **changes: Any) -> list[str]:
            asked = [{**ASKED, "event_id": f"{call}-{n}", **changes} for n in range(count)]
            told = [{"event_id": f"x{n}", "user": "ann", "item": 0, "reward": 1.0, **changes} for n in range(count)]
            answers = await caller.post(f"/v1/{call}/batch", {"requests": asked if call == "decide" else told})
            return [one.get("code", "") for one in answers.json["answers"]]

        assert (await codes("reward", 7)).count("too-many-requests") == 3
        assert (await codes("decide", 3)).count("too-many-requests") == 0, "feedback took none of it"
        assert (await codes("decide", 3, user="bob")).count("too-many-requests") == 0
        assert (await codes("decide", 3)).count("too-many-requests") == 2
        refused = await caller.post("/v1/decide", {**ASKED, "event_id": "last"})
        assert (refused.status, refused.code, refused.headers["Retry-After"]) == (429, "too-many-requests", "1")
        assert b"ann" not in refused.body
        metrics = await caller.zone_metrics() + (await caller.get("/metrics")).body.decode()
        assert '"ann"' not in metrics


def test_by_default_a_user_has_20_requests_a_second_after_a_burst() -> None:
    settings, now = GatewaySettings(), [0.0]
    rate = Rate(settings.user_requests_per_second, settings.user_burst, clock=lambda: now[0])
    rate.take("ann", settings.user_burst)
    now[0] = 1.0
    rate.take("ann", 20)
    with pytest.raises(Problem):
        rate.take("ann", 1)
    assert settings.user_burst <= 1000


def test_no_more_users_are_remembered_than_fit() -> None:
    rate = Rate(1.0, 1, clock=lambda: 0.0)
    rate.take((False, "often"), 1)
    for number in range(REMEMBERED_CALLERS + 10):
        rate.take((False, f"user-{number}"), 1)
        with pytest.raises(Problem):
            rate.take((False, "often"), 1)
    assert len(rate._buckets) == REMEMBERED_CALLERS


def test_however_much_feedback_comes_a_request_is_refused_as_without_it() -> None:
    users = UserRates(1.0, 1, clock=lambda: 0.0)
    users.take(False, "often")
    for number in range(REMEMBERED_CALLERS + 10):
        users.take(True, f"event-{number}")
    with pytest.raises(Problem):
        users.take(False, "often")


async def test_while_the_log_is_away_everybody_gets_an_answer_and_no_queue_grows(gateways: Any, tmp_path: Any) -> None:
    limits = {"answer_seconds": 0.3, "unacknowledged": 5}
    async with gateways.placed("pdap", tmp_path / "d") as place, place.gateway(**limits) as caller:
        # The first question finds out where its answers will be.
        await caller.post("/v1/decide", {**ASKED, "event_id": "before"})
        await place.broker.stop()
        codes = set()
        for number in range(30):
            asked = {"event_id": f"e{number}", "user": "ann", "context": ASKED["context"]}
            answer = await asyncio.wait_for(caller.post("/v1/decide", asked), patience(10))
            codes.add(answer.code)
            told = {"event_id": f"x{number}", "user": "ann", "item": 0, "reward": 1.0}
            codes.add((await asyncio.wait_for(caller.post("/v1/reward", told), patience(10))).code)
        assert codes <= {"no-answer", "log-unavailable", "too-busy"}, codes
        assert "too-busy" in codes, "at most five records wait"

        async def unready() -> bool:
            return (await caller.get("/readyz")).code == "log-unavailable"

        await gateways.until(unready)
        assert (await caller.get("/healthz")).status == 200
        await place.broker.start()


QUESTIONS = [
    ("pdol", "predict", {"event_id": "e", "user": "ann", "node": 0, "indices": [1], "values": [0.5]}, "no-answer"),
    ("pdol", "label", {"event_id": "x", "user": "ann", "node": 0, "label": 1}, "log-unavailable"),
    ("bgt", "predict", {"event_id": "e", "user": "ann", "items": [1]}, "no-answer"),
    ("bgt", "rate", {"user": "ann", "items": [1], "ratings": [4.0]}, "log-unavailable"),
]


@pytest.mark.parametrize(("name", "call", "asked", "code"), QUESTIONS)
async def test_what_the_log_does_not_take_is_answered_all_the_same(
    gateways: Any, tmp_path: Any, name: str, call: str, asked: Any, code: str
) -> None:
    async with gateways.placed(name, tmp_path / "d") as place, place.gateway(answer_seconds=0.3) as caller:
        await place.broker.stop()
        for _ in range(2):
            answer = await asyncio.wait_for(caller.post(f"/v1/{call}", asked), patience(10))
            assert (answer.status, answer.code) == (503, code)
