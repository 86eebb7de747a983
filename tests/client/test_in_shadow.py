"""A deployment in the shadow: the application gets its own choice back, and the log has what would have been shown."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hushstream.client import BaselineMissing, Client
from hushstream.client.decisions import Decision

X = [0.7, 0.1, 0.1, 0.1]


@pytest.fixture
def shadowed(log: Any, rigs: Any) -> Any:
    log.rig = rigs.LearnerRig(rigs.make_system(mode="shadow"))
    return log


async def asked(client: Client, log: Any, event: str, own: int) -> Decision:
    task = asyncio.create_task(client.decide(event, "ann", X, baseline=own))
    for _ in range(5):
        await asyncio.sleep(0)
    log.work()
    return await task


async def test_the_own_choice_comes_back_and_the_answer_is_in_the_log(shadowed: Any) -> None:
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        for number in range(8):
            own = number % 5
            found = await asked(client, log, f"e{number}", own)
            assert (found.arm, found.policy, found.propensity) == (own, "shadow", None)
            await client.shown(f"e{number}", "ann", own)
            await client.reward(f"e{number}", "ann", own, 1.0)
        log.work()
        # Whoever asks again is not shown what was answered, either.
        assert (await client.decide("e0", "ann", X, baseline=0)).arm == 0
    answers = {answer.event_id: answer for answer in log.rig.seen.answers}
    assert any(answers[f"e{number}"].arm != number % 5 for number in range(8)), "1 - 5^-8 where arms are tied"
    assert log.rig.seen.counts["rewarded"] + log.rig.seen.counts["other_arm"] >= 8, "and it learns of what was shown"


async def test_who_does_not_say_what_is_shown_is_told_to(shadowed: Any) -> None:
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        with pytest.raises(BaselineMissing, match="expected the application's own choice"):
            await client.decide("e", "ann", X)
    assert log.contexts == 0


async def test_where_no_learner_answers_it_is_the_own_choice_as_ever(shadowed: Any) -> None:
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        found = await client.decide("e", "ann", X, baseline=2, timeout=0.01)
    assert (found.arm, found.policy) == (2, "timeout")


async def test_a_slate_is_the_applications_own(shadowed: Any) -> None:
    log = shadowed
    async with Client(log, rules=log.rig.system.requests) as client:
        task = asyncio.create_task(client.rank("e", "ann", X, 3, baseline=[4, 1]))
        while not task.done():
            for _ in range(5):
                await asyncio.sleep(0)
            log.work()
        slate = await task
    assert [(one.event_id, one.arm, one.policy) for one in slate] == [("e", 4, "shadow"), ("e#2", 1, "shadow")]
