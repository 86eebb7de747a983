"""The rates of a gateway: which are held, where the climb ends, and the yardstick that it is held against."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from aiohttp.test_utils import TestClient, TestServer

from hushstream.replay.bench import gateway, vowpal
from hushstream.replay.bench.gateway import Row, climb, most_held

SOON, LATE = (0.002, 0.05), (0.002, 0.2)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Rates that were measured, of a server that holds 1,000 requests a second."""
    asked: list[float] = []

    async def measure(url: str, rate: float, seconds: float, seed: int) -> Row:
        asked.append(rate)
        return Row(rate, min(rate, 1000.0), SOON if rate <= 1000 else LATE, 0)

    monkeypatch.setattr(gateway, "measure", measure)
    return asked


@pytest.mark.parametrize(
    ("rates", "climbed", "most"),
    [
        ((500, 1000, 1500, 2000), [500, 1000, 1500], 1000),
        ((2000, 3000), [2000, 3000], 0),
        ((500, 600), [500, 600], 600),
    ],
)
async def test_it_climbs_until_a_rate_is_not_held(
    measured: list[float], rates: Sequence[float], climbed: list[float], most: float
) -> None:
    rows = await climb("http://127.0.0.1:1", rates, 1.0)
    assert measured == climbed
    assert most_held(rows) == most


def test_a_rate_with_a_refused_request_is_not_held() -> None:
    assert not Row(500, 499, SOON, 1).held
    assert not Row(500, 500, LATE, 0).held
    assert Row(500, 500, SOON, 0).held


@pytest.mark.skipif(not vowpal.is_installed(), reason=f"the yardstick is not installed: pip install {vowpal.PACKAGE}")
async def test_the_yardstick_decides_with_chances_and_learns() -> None:
    policy = vowpal.Policy(3, 1)
    shown: list[int] = []
    async with TestClient(TestServer(vowpal.application(policy))) as client:
        for number in range(400):
            event = {"event_id": f"e{number}", "user": "ann", "context": [1.0, 0.0]}
            answer = await (await client.post("/v1/decide", json=event)).json()
            assert 0.05 / 3 - 1e-6 <= answer["propensity"] <= 1
            shown.append(answer["item"])
            await client.post("/v1/reward", json={"event_id": f"e{number}", "reward": float(answer["item"] == 2)})
    # It shows the one that is rewarded, but for what it explores.
    assert shown[200:].count(2) > 150
