"""The shop with named features: a world like the others, played beside a model without privacy."""

import numpy as np
import pytest

from hushstream.features.schema import Outcome, declare
from hushstream.replay.studies.p2b.run import P2BOptions, clear_rewards, clear_sums_of, run_p2b, written_out
from hushstream.replay.worlds.shop import DECLARATION, INTERESTS, ITEMS, shop
from hushstream.replay.worlds.world import World, WorldError


def test_a_visit_is_the_same_in_whatever_order_it_is_asked_for():
    world = shop(users=300, seed=4)
    assert isinstance(world, World)
    users = np.arange(300)
    contexts, arms = world.contexts(users, 3), users % world.arms
    backwards = world.contexts(users[::-1], 3)[::-1]
    assert contexts.tolist() == backwards.tolist()
    assert world.rewards(users, 3, arms).tolist() == world.rewards(users[::-1], 3, arms[::-1])[::-1].tolist()
    alone = [world.rewards(users[n : n + 1], 3, arms[n : n + 1])[0] for n in range(20)]
    assert world.rewards(users, 3, arms)[:20].tolist() == alone


def test_what_visitors_tell_is_what_is_declared():
    """No value is unknown, missing or outside its range: whoever reads the example may take it as one."""
    schema = declare(DECLARATION)
    for values in shop(users=500, seed=1).contexts(np.arange(500), 0):
        assert set(values) == set(DECLARATION)
        assert Outcome.UNKNOWN not in (found := schema.encode(values).outcomes).values(), found
        assert not found


def test_an_interest_has_its_item():
    """The mean chance of an interest's item is above .3 with it and below .15 without, over some hundred visits."""
    world, users = shop(users=3_000, seed=2), np.arange(3_000)
    chances = world.visits(users, 0).chances
    for interest, item in (("cooking", "cookbook"), ("sport", "running shoes")):
        there = np.array([interest in one["interests"] for one in world.contexts(users, 0)])
        assert chances[there, ITEMS.index(item)].mean() > 0.3
        assert chances[~there, ITEMS.index(item)].mean() < 0.15
    assert len(INTERESTS) < len(ITEMS)


def test_fewer_items_are_the_first_ones_and_impossible_options_are_refused():
    users, arms = np.arange(50), np.full(50, 2)
    assert shop(users=50, arms=3).expected(users, 1, arms).tolist() == shop(users=50).expected(users, 1, arms).tolist()
    for options in ({"arms": 1}, {"arms": len(ITEMS) + 1}, {"users": 0}, {"rounds": 0}, {"seed": -1}):
        with pytest.raises(WorldError, match=f"shop: {next(iter(options))} must be"):
            shop(**options)


def test_a_model_of_everything_in_clear_is_ridge_regression():
    """Against the textbook's normal equations in float64, one item at a time."""
    world, users = shop(users=40, seed=3), np.arange(40)
    chosen = np.random.default_rng(0).integers(0, world.arms, (40, world.rounds))
    rewards = np.stack([world.rewards(users, turn, chosen[:, turn]) for turn in range(world.rounds)], axis=1)
    prior = clear_sums_of(world, users, chosen, rewards).prior()
    contexts = np.concatenate(
        [written_out(world.schema, world.visits(users, turn).rows) for turn in range(world.rounds)]
    )
    for arm in range(world.arms):
        mine = chosen.T.ravel() == arm
        gram = contexts[mine].T.astype(float) @ contexts[mine] + 5.0 * np.eye(contexts.shape[1])
        wanted = np.linalg.solve(gram, contexts[mine].T @ rewards.T.ravel()[mine])
        assert prior.means[arm] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.slow
def test_a_replay_of_named_features_is_equal_and_stands_beside_a_model_without_privacy():
    """300 slots: users who start from everything in clear earn more than cold ones. Seeded, so it does not flake."""
    result = run_p2b(P2BOptions(dataset="shop", contributors=300, evaluated=50, seed=5))
    assert result.verify is not None
    assert all(check.equal and not check.changed for check in result.verify.values())
    private, own, exact = (row["mean_reward"] for row in result.rows.plain)
    assert exact > max(private, own + 0.05)
    assert result.headline is not None
    assert result.headline.ratio
    assert not result.beside


def test_users_of_a_model_in_clear_have_the_coins_of_the_world():
    world, users = shop(users=80, seed=6), np.arange(60, 80)
    shown = np.zeros((60, world.rounds), dtype=np.int64)
    prior = clear_sums_of(world, np.arange(60), shown, np.zeros(shown.shape)).prior()
    first, second = (clear_rewards(world, prior, users, 1) for _ in range(2))
    assert first.tolist() == second.tolist()
    assert set(np.unique(first)) <= {0.0, 1.0}
