"""What a client of a collaborative deployment sends: a matrix of features for its users alone."""

from __future__ import annotations

import pytest

from hushstream.agents.worker.deployment import KeySource
from hushstream.client import Client, RequestRefused
from hushstream.replay.runners.playing import DirectSession
from hushstream.schemas import codec
from hushstream.systems.colin.configuration import CollaborativeConfig, FeatureConfig
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import SocialGraph
from hushstream.systems.colin.system import declare

ARMS, DIMENSION = 4, 3
WHOLE = [0.1] * (ARMS * DIMENSION)


async def test_a_context_has_a_row_for_each_arm_and_what_is_refused_is_in_the_dead_letters():
    config = CollaborativeConfig(deployment="small", arms=ARMS, features=FeatureConfig(DIMENSION))
    system = declare(CollaborativeSystem.of(config, SocialGraph.of_edges([("ann", "bob", 1.0)])))
    async with DirectSession(system, KeySource(seed=1)) as session, Client(session.event_log()) as client:
        assert (await client.decide("e1", "ann", WHOLE, timeout=60)).policy == "model"
        few = [0.0] * DIMENSION + [0.1] * 2 * DIMENSION + [0.0] * DIMENSION
        assert (await client.decide("e2", "bob", few, eligible=[1, 2], timeout=60)).arm in (1, 2)
        for number, (user, context) in enumerate([("ann", WHOLE[: 2 * DIMENSION]), ("eve", WHOLE)]):
            with pytest.raises(RequestRefused, match="dead-letters list edge"):
                await client.decide(f"refused-{number}", user, context, timeout=None)
        logs = await session.logs()
    letters = [
        codec.decode(record.value)[1] for _, part in logs.of_topic("dead-letters-edge") for record in part.records
    ]
    assert [letter["reason"] for letter in letters] == ["wrong_dimension", "unknown_user"]
