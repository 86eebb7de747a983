"""``learner.ridge: auto`` is what the noise of the release asks for, and everything that needs a ridge takes it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hushstream.systems.colin.algorithm.lemma import raw_noise_width
from hushstream.systems.colin.configuration import (
    GRID_BITS,
    CollaborationConfig,
    CollaborativeConfig,
    ContinualConfig,
    FeatureConfig,
)
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.relation import Relation, SocialGraph
from hushstream.systems.colin.release import local_reward_of, plan_of
from hushstream.systems.colin.ridge_rule import noise_aware_ridge, projected_deviation

GRAPH = SocialGraph.of_edges([("ann", "bob", 1.0), ("bob", "cyd", 0.5)])


def make(learner=None, release=None, **changes):
    config = CollaborativeConfig(
        deployment="small",
        arms=4,
        features=FeatureConfig(3),
        learner=CollaborationConfig(**(learner or {})),
        release=ContinualConfig(**{"rewards_per_user": 64, **(release or {})}),
        **changes,
    )
    return CollaborativeSystem.of(config, GRAPH)


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
@pytest.mark.parametrize("noise", ["laplace", "k-norm", "gaussian"])
def test_for_counters_it_is_one_and_three_times_the_noise_on_a_projected_sum(algorithm, noise):
    system = make({"algorithm": algorithm}, {"noise": noise, "epsilon": 0.5})
    plan = plan_of(system.config.release, system.features)
    deviation = plan.rmse() / 2**GRID_BITS
    rows = np.linalg.norm(Relation.of(GRAPH, algorithm).matrix, axis=1)
    assert system.ridge == pytest.approx(1 + 3 * deviation * math.sqrt(np.mean(rows**2)), rel=1e-12)
    assert system.ridge == noise_aware_ridge(projected_deviation(system.relation, deviation), 3.0)
    assert system.ridge > 10


def test_for_noisy_rewards_it_is_one_and_ten_times_the_variance_of_one():
    system = make(release={"noise_at": "learner", "mechanism": "noisy-reward", "epsilon": 2.0})
    assert system.ridge == 1 + 10 * local_reward_of(system.config.release).variance


def test_for_exact_sums_it_is_one():
    assert make(release={"mechanism": "exact"}).ridge == 1.0


def test_a_configured_number_stands():
    assert make({"ridge": 7}).ridge == 7.0


def test_models_and_the_lemma_are_made_with_it():
    auto = make({"alpha": "lemma"})
    same, other = make({"alpha": "lemma", "ridge": auto.ridge}), make({"alpha": "lemma", "ridge": 1.0})
    counts = [3, 4, 5]
    assert auto.width_factor(counts) == same.width_factor(counts) != other.width_factor(counts)
    assert raw_noise_width(auto.relation, 1.0, auto.ridge) < raw_noise_width(auto.relation, 1.0, 1.0)
    states = [system.estimator() for system in (auto, same, other)]
    for state in states:
        state.observe(0, np.array([0.6, 0.8, 0.0]))
    assert states[0].dump() == states[1].dump() != states[2].dump()


def test_more_noise_has_a_larger_ridge_and_a_longer_horizon_than_rewards_can_need_too():
    assert make(release={"epsilon": 0.5}).ridge > make(release={"epsilon": 1.0}).ridge
    assert make(release={"horizon": 1 << 20}).ridge > make().ridge


# The horizon.


def test_without_a_horizon_noise_is_sized_for_as_many_steps_as_rewards_count():
    assert ContinualConfig(rewards_per_user=10).leaves == 10
    assert ContinualConfig(rewards_per_user=10, epochs=3).leaves == 10
    assert ContinualConfig(rewards_per_user=10, horizon=64).leaves == 64
    assert plan_of(ContinualConfig(rewards_per_user=10), FeatureConfig(3)).horizon == 10


def test_ties_that_weigh_more_draw_goblins_users_together_and_leave_the_others_as_they_are():
    one, ten = (make({"algorithm": "goblin", "tie_weight": weight}) for weight in (1.0, 10.0))
    assert np.array_equal(ten.relation.matrix, Relation.goblin(10 * GRAPH.weights).matrix)
    assert (
        abs(ten.relation.matrix[0] - ten.relation.matrix[1]).max()
        < abs(one.relation.matrix[0] - one.relation.matrix[1]).max()
    )
    for algorithm in ("colin", "linucb"):
        plain = make({"algorithm": algorithm}).relation.matrix
        assert np.array_equal(make({"algorithm": algorithm, "tie_weight": 10.0}).relation.matrix, plain)
