"""Slots are what the formulas say, within their clips; a `RatingAgent` sends the same, one a round."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.privacy.keys import seeded_key
from hushstream.systems.bgt.configuration import UNIT, bgt_digest
from hushstream.systems.bgt.edge.agent import RatingAgent, Ratings, make_slots, ratings_of
from hushstream.systems.bgt.guarantee import squared_clip
from hushstream.systems.bgt.records import NOTHING, BadRatings, BgtError, Model, Round, first_round, slot_bytes

from .conftest import collector_of, config_of, ratings, slots_of

NAN, INF = float("nan"), float("inf")


def rounds_of(config, seed: int = 0) -> list[Round]:
    """One round of each kind, with biases and factors that were drawn."""
    draw = np.random.default_rng(seed)
    biases = 0.1 * draw.standard_normal(config.items)
    top = np.sort(draw.permutation(config.items)[: config.top])
    factors = Model(biases, 0.1 * draw.standard_normal((config.items, 2)))
    return [
        first_round(config),
        Round(1, "pairs", Model(biases, np.zeros((config.items, 0))), top, 0.5 + draw.random(config.top)),
        Round(2, "factors", factors),
    ]


def dense(known: Ratings, items: int) -> tuple[np.ndarray, np.ndarray]:
    values, there = np.zeros((known.users, items)), np.zeros((known.users, items), dtype=bool)
    values[known.owners, known.items] = known.values
    there[known.owners, known.items] = True
    return values, there


def scattered(slots, items: int) -> np.ndarray:
    out = np.zeros((len(slots), items + 1))
    np.put_along_axis(out, np.where(slots.items == NOTHING, items, slots.items).astype(np.int64), slots.values, axis=1)
    return out[:, :items] / UNIT


def test_a_slot_of_items_holds_counts_and_residuals_as_the_formula_has_them(config):
    known, _ = ratings(config, 30)
    slots = slots_of(known, first_round(config), config)
    values, there = dense(known, config.items)
    for user in range(30):
        own, count = values[user, there[user]], there[user].sum()
        rest = own - 0.7 - (own - 0.7).sum() / (count + 5)
        shrink = min(1, 1 / np.sqrt(count * 0.01 + (rest**2).sum()))
        expected = np.zeros(config.items)
        expected[there[user]] = shrink * rest
        assert np.abs(scattered(slots[[user]], config.items)[0] - expected).max() < 2 / UNIT
        assert slots.weights[user] / UNIT == pytest.approx(shrink * 0.1, abs=2 / UNIT)


def test_a_slot_of_pairs_holds_what_is_left_of_top_items(config):
    known, _ = ratings(config, 30)
    asked = rounds_of(config)[1]
    found = scattered(slots_of(known, asked, config), config.items)
    values, there = dense(known, config.items)
    for user in range(30):
        rest = np.where(there[user], values[user] - 0.7 - asked.model.biases, 0.0)
        rest -= np.where(there[user], rest.sum() / (there[user].sum() + 4), 0.0)
        z = np.zeros(config.items)
        z[asked.top] = asked.gains * rest[asked.top]
        z *= min(1, 1 / np.linalg.norm(z))
        assert np.abs(found[user] - z).max() < 2 / UNIT


def test_a_slot_of_factors_is_the_outer_product_of_residuals_and_the_users_own_ridge_solution(config):
    known, _ = ratings(config, 30)
    asked = rounds_of(config)[2]
    slots = slots_of(known, asked, config)
    values, there = dense(known, config.items)
    for user in range(30):
        rest = (values[user] - 0.7 - asked.model.biases)[there[user]]
        columns = np.column_stack((np.ones(there[user].sum()), asked.model.factors[there[user]]))
        own = np.linalg.solve(columns.T @ columns + np.diag([4, 0.035, 0.035]), columns.T @ rest)
        expected = np.zeros((config.items, 2))
        expected[there[user]] = np.outer(rest - own[0], own[1:])
        expected *= min(1, 0.7 / np.linalg.norm(expected))
        found = np.outer(scattered(slots[[user]], config.items)[0], slots.directions[user, :2] / UNIT)
        assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("place", range(3))
def test_no_slot_is_longer_than_its_clip(config, place):
    """Ratings at both ends of the scale: all of these slots are clipped, and none is refused by a unit."""
    asked = rounds_of(config)[place]
    draw = np.random.default_rng(1)
    users = 200
    rows = np.repeat(np.arange(users), 30)
    items = np.concatenate([draw.permutation(config.items)[:30] for _ in range(users)])
    known = ratings_of(rows, items, draw.integers(0, 2, len(rows)), config, users)
    slots = slots_of(known, asked, config)
    used = np.count_nonzero(slots.items != NOTHING, axis=1)
    squares = (slots.values.astype(np.int64) ** 2).sum(axis=1) + used * slots.weights.astype(np.int64) ** 2
    clip = squared_clip(asked.kind, config.release)
    assert squares.max() <= clip
    assert np.median(squares) > 0.99 * clip
    assert ((slots.directions.astype(np.int64) ** 2).sum(axis=1) <= UNIT**2).all()


def test_slots_are_of_one_size_whatever_they_hold(config):
    known = ratings_of([1, 2, 2], [0, 1, 2], [1.0, 0.5, 0.0], config, 4)
    for asked in rounds_of(config):
        slots = slots_of(known, asked, config)
        sizes = {
            sum(column[row].nbytes for column in (slots.items, slots.values, slots.directions)) for row in range(4)
        }
        assert sizes == {slot_bytes(config) - 4}


def test_who_rated_nothing_or_nothing_of_the_top_sends_null(config):
    asked = rounds_of(config)[1]
    other = np.setdiff1d(np.arange(config.items), asked.top)
    known = ratings_of([1, 1], other[:2], [1.0, 0.0], config, 2)
    slots = slots_of(known, asked, config)
    assert (slots.items == NOTHING).all()
    assert not slots.values.any()
    first = slots_of(known, first_round(config), config)[[0]]
    assert (first.items == NOTHING).all()
    assert not first.weights.any()


def test_more_ratings_than_fit_are_chosen_by_the_salt_and_the_norm_covers_what_is_sent():
    config = config_of(pairs=8)
    known = ratings_of(np.zeros(40, dtype=int), np.arange(40), np.linspace(0, 1, 40), config, 1)
    one, same, other = (
        make_slots(known, first_round(config), config, np.array([salt], dtype=np.uint64)) for salt in (1, 1, 2)
    )
    assert (one.items == same.items).all()
    assert (one.items != other.items).any()
    assert (np.diff(one.items[0]) > 0).all()
    assert len(set(one.items[0].tolist())) == 8


def test_of_a_pair_that_was_rated_twice_the_last_rating_stands(config):
    known = ratings_of([0, 0, 0], [3, 4, 3], [0.1, 0.2, 0.9], config, 1)
    assert known.items.tolist() == [3, 4]
    assert known.values.tolist() == [0.9, 0.2]


@pytest.mark.parametrize(
    ("users", "items", "values", "match"),
    [
        ([0], [60], [0.5], "items: expected numbers from 0 to 59"),
        ([0], [-1], [0.5], "items"),
        ([5], [0], [0.5], "users: expected numbers from 0 to 4"),
        ([0], [0], [NAN], "ratings: expected numbers from 0 to 1, got 1"),
        ([0], [0], [INF], "ratings"),
        ([0, 0], [0, 1], [0.5, 1.01], "got 1 that"),
        ([0], [0.5], [0.5], "whole numbers"),
        ([0], [0, 1], [0.5], "one length"),
    ],
)
def test_ratings_that_are_none_are_refused_without_being_repeated(config, users, items, values, match):
    with pytest.raises(BadRatings, match=match) as caught:
        ratings_of(users, items, values, config, 5)
    assert "1.01" not in str(caught.value)


def agent_of(config, known, user: int, memory: list[int], answered: int = 0) -> RatingAgent:
    agent = RatingAgent(config, seeded_key(user, "edge"), memory.append, answered)
    span = slice(known.ends[user], known.ends[user + 1])
    agent.rate(known.items[span].tolist(), known.values[span].tolist())
    return agent


def test_agents_send_what_the_columns_of_all_users_hold(config):
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


def test_a_round_is_answered_once_and_written_down_before(config):
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


def test_what_cannot_be_written_down_does_not_leave(config):
    def full(answered: int) -> None:
        raise OSError("disk full")

    agent = RatingAgent(config, seeded_key(0, "edge"), full)
    agent.rate([0], [0.5])
    with pytest.raises(OSError, match="disk full"):
        agent.answer(first_round(config), bgt_digest(config))
    assert agent.answered == 0


def test_an_older_copy_of_an_agent_is_counted_once():
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


def test_forgetting_all_ratings_refills_no_allowance(config):
    known, _ = ratings(config, 1)
    agent = agent_of(config, known, 0, [])
    agent.answer(first_round(config), bgt_digest(config))
    agent.forget()
    agent.rate([3], [1.0])
    assert agent.answered == 1
    assert (agent.answer(first_round(config), bgt_digest(config)).slot.items == NOTHING).all()


def test_a_round_of_a_configuration_that_was_not_agreed_to_is_refused(config):
    known, _ = ratings(config, 1)
    agent = agent_of(config, known, 0, [])
    with pytest.raises(BgtError, match="another digest"):
        agent.answer(first_round(config), bgt_digest(config_of(epsilon=10.0)))
    assert agent.answered == 0


def test_predictions_follow_the_model_and_the_users_own_ratings(config):
    agent = RatingAgent(config, seeded_key(0, "edge"), lambda answered: None)
    model = Model(np.linspace(-0.1, 0.1, config.items), np.zeros((config.items, 0)))
    assert agent.predict([0, 59], model).tolist() == pytest.approx([0.62, 0.78])
    agent.rate(range(10), [1.0] * 10)
    assert (agent.predict([0, 59], model) > [0.7, 0.9]).all()
    with pytest.raises(BadRatings):
        agent.predict([60], model)


def test_an_agent_shows_no_rating(config):
    agent = RatingAgent(config, seeded_key(0, "edge"), lambda answered: None)
    agent.rate([17], [0.4321])
    assert "17" not in repr(agent)
    assert "4321" not in repr(agent)
    with pytest.raises(BadRatings) as caught:
        agent.rate([17], [4321.0])
    assert "4321" not in str(caught.value)
