"""Benches of the gateway and their load."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from hushstream.replay.bench import baselines, gateway
from hushstream.replay.bench.gateway import Row, Servers, measure_rising
from hushstream.replay.bench.http_load import post, send_at_rate
from hushstream.replay.bench.load import (
    make_load,
)
from hushstream.schemas.topics import partition_of

NOBODY = Servers(["http://127.0.0.1:1"], {})
SOON, LATE = (0.002, 0.05), (0.002, 0.2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rates that were measured, of a server that holds 1,000 requests a second."""
    asked: list[float] = []

    async def measure(servers: Servers, rate: float, seconds: float, seed: int) -> Row:
        asked.append(rate)
        return Row(rate, min(rate, 1000.0), SOON if rate <= 1000 else LATE, 0)

    monkeypatch.setattr(gateway, "measure", measure)
    return asked


@pytest.mark.parametrize(
    ("rates", "climbed"),
    [
        ((500, 1000, 1500, 2000), [500, 1000, 1500]),
        ((2000, 3000), [2000, 3000]),
        ((500, 600), [500, 600]),
    ],
)
async def test_rates_rise_until_one_is_not_sustained(
    measured: list[float], rates: Sequence[float], climbed: list[float]
) -> None:
    rows = await measure_rising(NOBODY, rates, 1.0, lambda _: None)
    assert measured == climbed
    assert [row.sustained for row in rows] == [rate <= 1000 for rate in climbed]


def test_requests_a_cpu_second_are_of_the_processes_that_are_named() -> None:
    row = Row(500, 500, SOON, 0, {"gateway": 0.0004, "learner": 0.0001, "broker": 0.01})
    assert row.a_cpu_second("gateway", "learner") == pytest.approx(2000)
    assert [one.value for one in gateway._rows(row)] == pytest.approx([500, 0, 2, 50, 400, 100, 10_000])


async def test_callers_take_turns_and_count_what_is_not_logged() -> None:
    came: list[list[int]] = [[], []]

    def server(number: int) -> TestServer:
        async def decide(request: web.Request) -> web.Response:
            event = (await request.json())["event"]
            came[number].append(event)
            if event == 7:
                return web.json_response({"code": "too-busy"}, status=429)
            if event == 8:
                return web.json_response({"logged": False})
            if event == 9:
                assert request.transport is not None
                request.transport.abort()
            return web.json_response({"logged": True, "filling": "\r\n\r\n" * 20_000})

        made = web.Application()
        made.add_routes([web.post("/v1/decide", decide)])
        return TestServer(made)

    requests = [post("/v1/decide", b'{"event": %d}' % event) for event in range(40)]
    async with server(0) as one, server(1) as two:
        found = await send_at_rate([str(one.make_url("")), str(two.make_url(""))], requests, 1000.0)
    assert sorted(came[0] + came[1]) == list(range(40)), "each request came once"
    assert set(came[0]) == set(range(0, 40, 2))
    assert (len(found.latencies), found.refused) == (37, 3)
    assert min(found.latencies) > 0


async def test_requests_to_nobody_are_refused_requests() -> None:
    found = await send_at_rate(NOBODY.urls, [post("/v1/decide", b"{}")] * 3, 1000.0)
    assert (found.latencies, found.refused) == ([], 3)


async def test_the_baseline_decides_with_chances_and_learns() -> None:
    policy = baselines.Policy(3, 1)
    shown: list[int] = []
    async with TestClient(TestServer(baselines.application(policy))) as client:
        for number in range(400):
            event = {"event_id": f"e{number}", "user": "ann", "context": [1.0, 0.0]}
            answer = await (await client.post("/v1/decide", json=event)).json()
            assert 0.05 / 3 - 1e-6 <= answer["propensity"] <= 1
            shown.append(answer["item"])
            await client.post("/v1/reward", json={"event_id": f"e{number}", "reward": float(answer["item"] == 2)})
    # It shows the one that is rewarded, but for what it explores.
    assert shown[200:].count(2) > 150


def test_users_of_a_partition_are_at_home_there() -> None:
    for home in (0, 1):
        users = set(make_load(200, users=7, dimension=4, seed=1, home=home, partitions=2).users)
        assert len(users) == 7
        assert {partition_of(user, 2) for user in users} == {home}
