"""Slates: no arm twice, an event and an exact chance for each position, and the application's order otherwise."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import permutations
from math import prod
from typing import Any

import pytest

from hushstream.client import Client, UnknownArm
from hushstream.client.decisions import Decision
from hushstream.engine.configuration import ExplorationConfig
from hushstream.schemas.errors import HushstreamError

X = [0.7, 0.1, 0.1, 0.1]


@pytest.fixture
def exploring(log: Any, rigs: Any) -> Any:
    """A log whose learner draws half of its decisions."""
    log.rig = rigs.LearnerRig(rigs.make_system(exploration=ExplorationConfig("epsilon", share=0.5)))
    return log


async def ranked(client: Client, log: Any, *arguments: Any, **keywords: Any) -> list[Decision]:
    """Ask, let the learner work at each position, and give the slate."""
    task = asyncio.create_task(client.rank(*arguments, **keywords))
    while not task.done():
        for _ in range(5):
            await asyncio.sleep(0)
        log.work()
    return await task


async def test_positions_have_events_arms_and_chances_of_their_own(exploring: Any) -> None:
    log = exploring
    async with Client(log, rules=log.rig.system.requests) as client:
        # One arm is known to be the best, so that chances differ.
        log.rig.reward((await ranked(client, log, "first", "ann", X, 1))[0].event_id, 3)
        log.work()
        slate = await ranked(client, log, "e", "ann", X, 9)
        assert [one.event_id for one in slate] == ["e", "e#2", "e#3", "e#4", "e#5"]
        assert sorted(one.arm for one in slate) == list(range(5))
        for place, one in enumerate(slate):
            left = 5 - place
            if one.arm == 3:
                explored = 500_000_000 // left
                assert round(one.propensity * 1e9) == explored + 10**9 - explored * left
        assert slate[-1].propensity == 1.0
        # Again it is the same slate, and nothing is sent.
        sent = log.contexts
        assert await client.rank("e", "ann", X, 9) == slate
        assert log.contexts == sent
        # Feedback finds a position by its event.
        before = log.rig.seen.counts["rewarded"]
        await client.reward("e#2", "ann", slate[1].arm, 1.0)
        log.work()
        assert log.rig.seen.counts["rewarded"] == before + 1


async def test_the_chances_of_all_slates_sum_to_one_and_are_those_with_which_they_come(log: Any, rigs: Any) -> None:
    """Three arms, half of the choices drawn: of 600 slates each order as often as it states (5 deviations)."""
    log.rig = rigs.LearnerRig(rigs.make_system(exploration=ExplorationConfig("epsilon", share=0.5), arms=3))
    found: Counter[tuple[int, ...]] = Counter()
    stated: dict[tuple[int, ...], float] = {}
    async with Client(log, rules=log.rig.system.requests) as client:
        await ranked(client, log, "first", "ann", X, 1)
        log.rig.reward("first", 1)
        log.work()
        for number in range(600):
            slate = await ranked(client, log, f"e{number}", "ann", X, 3)
            order = tuple(one.arm for one in slate)
            found[order] += 1
            chance = prod(one.propensity or 0.0 for one in slate)
            assert stated.setdefault(order, chance) == chance
    assert set(stated) == set(permutations(range(3)))
    assert abs(sum(stated.values()) - 1) < 1e-8
    for order, chance in stated.items():
        assert abs(found[order] - 600 * chance) < 5 * (600 * chance * (1 - chance)) ** 0.5, order


async def test_a_slate_is_the_applications_own_from_where_no_learner_answers(log: Any) -> None:
    async with Client(log, rules=log.rig.system.requests) as client:
        slate = await client.rank("e", "ann", X, 4, eligible=[0, 2, 4], baseline=[4, 1, 0], timeout=0.01)
        assert [(one.arm, one.propensity, one.policy) for one in slate] == [
            (4, None, "timeout"),
            (0, None, "timeout"),
        ], "it ends where the baseline does; what may not be shown is not"
        assert log.contexts == 1, "the first position alone was asked for"
        await client.shown("e#2", "ann", 0)
        assert not log.rig.logs.get(("clicks", 0)), "nobody would know it"


async def test_impossible_slates_are_refused(log: Any) -> None:
    async with Client(log) as client:
        with pytest.raises(HushstreamError, match="positions"):
            await client.rank("e", "ann", X, 0, eligible=[1])
        with pytest.raises(HushstreamError, match="rules"):
            await client.rank("e", "ann", X, 2)
    async with Client(log, rules=log.rig.system.requests) as client:
        with pytest.raises(UnknownArm):
            await client.rank("e", "ann", X, 2, eligible=[1, 9])
        with pytest.raises(HushstreamError, match="event_id"):
            await client.rank("e" * 200, "ann", X, 2)
    assert log.contexts == 0
