"""`RatingAgent`: the same slots as many users' columns, one a round, and nothing refills its allowance."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.systems.bgt.configuration import bgt_digest
from hushstream.systems.bgt.edge.agent import RatingAgent
from hushstream.systems.bgt.errors import BadRatings, BgtError
from hushstream.systems.bgt.rounds import Model, first_round
from hushstream.systems.bgt.slots import NOTHING

from .conftest import collector_of, config_of, ratings, slots_of
from .test_making import rounds_of


def agent_of(config, known, user: int, memory: list[int], answered: int = 0) -> RatingAgent:
    agent = RatingAgent(config, seeded_key(user, "edge"), memory.append, answered)
    span = slice(known.ends[user], known.ends[user + 1])
    agent.rate(known.items[span].tolist(), known.values[span].tolist())
    return agent


def test_agents_send_what_the_columns_of_all_users_hold(config) -> None:
    known, _ = ratings(config, 12)
    digest = bgt_digest(config)
    agents = [agent_of(config, known, user, []) for user in range(12)]
    for asked in rounds_of(config):
        columns = slots_of(known, asked, config)
        for user, agent in enumerate(agents):
            sent = agent.answer(asked, digest)
            for name in ("items", "values", "weights", "directions"):
                # A device adds up its own ratings alone, the columns everybody's: floats may differ in the last bit.
                difference = getattr(sent.slot, name).astype(int) - getattr(columns[[user]], name)
                assert np.abs(difference).max() <= 1


def test_a_round_is_answered_once_and_written_down_before(config) -> None:
    known, _ = ratings(config, 1)
    digest = bgt_digest(config)
    memory: list[int] = []
    agent = agent_of(config, known, 0, memory)
    first = agent.answer(first_round(config), digest)
    assert memory == [1]
    again = agent.answer(first_round(config), digest)
    assert again.slot_id == first.slot_id
    assert (again.slot.items == NOTHING).all()
    restored = agent_of(config, known, 0, memory, answered=memory[-1])
    assert (restored.answer(first_round(config), digest).slot.items == NOTHING).all()


def test_what_cannot_be_written_down_does_not_leave(config) -> None:
    def full(answered: int) -> None:
        raise OSError("disk full")

    agent = RatingAgent(config, seeded_key(0, "edge"), full)
    agent.rate([0], [0.5])
    with pytest.raises(OSError, match="disk full"):
        agent.answer(first_round(config), bgt_digest(config))
    assert agent.answered == 0


def test_an_older_copy_of_an_agent_is_counted_once() -> None:
    config = config_of(noise="exact")
    known, _ = ratings(config, 1)
    digest, asked = bgt_digest(config), first_round(config)
    one, copy = (agent_of(config, known, 0, []) for _ in range(2))
    copy.rate([7], [1.0])
    sent, other = one.answer(asked, digest), copy.answer(asked, digest)
    collector = collector_of(asked, config)
    collector.take(sent.slot, [sent.slot_id])
    assert collector.take(other.slot, [other.slot_id]).repeated.all()
    assert collector.release().slots == 1


def test_forgetting_all_ratings_refills_no_allowance(config) -> None:
    known, _ = ratings(config, 1)
    agent = agent_of(config, known, 0, [])
    agent.answer(first_round(config), bgt_digest(config))
    agent.forget()
    agent.rate([3], [1.0])
    assert agent.answered == 1
    assert (agent.answer(first_round(config), bgt_digest(config)).slot.items == NOTHING).all()


def test_a_round_of_a_configuration_that_was_not_agreed_to_is_refused(config) -> None:
    known, _ = ratings(config, 1)
    agent = agent_of(config, known, 0, [])
    with pytest.raises(BgtError, match="another digest"):
        agent.answer(first_round(config), bgt_digest(config_of(epsilon=10.0)))
    assert agent.answered == 0


def test_predictions_follow_the_model_and_the_users_own_ratings(config) -> None:
    agent = RatingAgent(config, seeded_key(0, "edge"), lambda answered: None)
    model = Model(np.linspace(-0.1, 0.1, config.items), np.zeros((config.items, 0)))
    assert agent.predict([0, 59], model).tolist() == pytest.approx([0.6, 0.8])
    agent.rate(range(10), [1.0] * 10)
    assert (agent.predict([0, 59], model) > [0.7, 0.9]).all()
    with pytest.raises(BadRatings):
        agent.predict([60], model)


def test_an_agent_shows_no_rating(config) -> None:
    agent = RatingAgent(config, seeded_key(0, "edge"), lambda answered: None)
    agent.rate([17], [0.4321])
    assert "17" not in repr(agent)
    assert "4321" not in repr(agent)
    with pytest.raises(BadRatings) as caught:
        agent.rate([17], [4321.0])
    assert "4321" not in str(caught.value)
