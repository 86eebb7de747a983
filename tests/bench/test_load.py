"""The load of a benchmark is the same events in both forms of a record."""

import numpy as np

from hushstream.replay.bench.load import (
    context_batches,
    context_events,
    draw_rewards,
    make_load,
    reward_batches,
    reward_events,
)
from hushstream.schemas.columns import gather_contexts, gather_feedback
from hushstream.schemas.partitioning import partition_of

LOAD = make_load(50, users=7, dimension=4, seed=1)


def _records(values: list[bytes]) -> list[tuple[int, int, bytes]]:
    return [(offset, 0, value) for offset, value in enumerate(values)]


def test_contexts_are_histograms_of_the_stated_users() -> None:
    assert np.allclose(LOAD.contexts.sum(axis=1), 1.0, atol=1e-6)
    assert len(set(LOAD.users)) <= 7
    assert len(set(LOAD.event_ids)) == len(LOAD) == 50


def test_users_of_a_partition_are_at_home_there() -> None:
    for home in (0, 1):
        users = set(make_load(200, users=7, dimension=4, seed=1, home=home, partitions=2).users)
        assert len(users) == 7
        assert {partition_of(user, 2) for user in users} == {home}


def test_both_forms_hold_the_same_contexts() -> None:
    events = gather_contexts(_records(context_events(LOAD)), 4, 3)
    batches = gather_contexts(_records(context_batches(LOAD, 16)), 4, 3)
    assert not events.rejects
    assert not batches.rejects
    assert (events.event_ids, events.users) == (batches.event_ids, batches.users) == (LOAD.event_ids, LOAD.users)
    assert np.array_equal(events.contexts, batches.contexts)
    assert np.array_equal(events.contexts, LOAD.contexts)


def test_both_forms_hold_the_same_rewards() -> None:
    arms, rewards = [number % 3 for number in range(50)], draw_rewards(50, seed=2)
    events = gather_feedback(_records(reward_events(LOAD, arms, rewards)))
    batches = gather_feedback(_records(reward_batches(LOAD, arms, rewards, 16)))
    assert not events.rejects
    assert not batches.rejects
    for columns in (events, batches):
        assert (columns.event_ids, columns.arms, columns.rewards) == (LOAD.event_ids, arms, rewards)
        assert set(columns.kinds) == {1}
