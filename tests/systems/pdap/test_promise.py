"""What is promised: one epsilon a reward for ever, the largest level's, and c of them for a person's c events."""

from __future__ import annotations

from dataclasses import replace
from math import exp

import pytest

from hushstream.engine.noise.budget import BudgetConfig
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.amounts import DELTA_ONE
from hushstream.privacy.mechanisms.noise import laplace_scale, residue
from hushstream.systems.pdap.promise import budget_facts, epoch_guarantee, release_guarantee, spending_terms


def test_one_reward_pays_epsilon_once_whatever_windows_and_levels(pdap):
    for settings in (pdap.config(epsilon=0.5), pdap.config(epsilon=0.5, first_window=50, window_ratio=1.1)):
        found = release_guarantee(settings)
        assert found.epsilon_micro == 500_000
        assert found.unit == "one reward"
        assert found.replace_one == found.cost
        assert found.private_as_stated


def test_delta_is_the_residue_of_one_draw(pdap):
    found = epoch_guarantee(pdap.config(epsilon=0.5))
    off = residue(*laplace_scale(0.5, 1))
    assert found.delta_units == found.residue_units
    assert float(off) * (1 + exp(0.5)) <= found.delta_units / DELTA_ONE <= float(off) * (1 + exp(0.5)) * 1.001 + 2**-79


def test_a_persons_c_events_cost_c_times_as_much(pdap):
    found = release_guarantee(pdap.config(epsilon=0.5, events_per_person=40))
    assert found.lifetime.units == 40
    assert found.lifetime.cost.epsilon_micro == 40 * 500_000


def test_with_an_epsilon_for_each_level_the_largest_is_promised(pdap):
    settings = pdap.config(epsilon=0.1, level_growth=0.5)
    assert settings.level_epsilons == pytest.approx((0.1, 0.141422, 0.2, 0.282843), abs=1e-6)
    found = release_guarantee(settings)
    assert found.epsilon_micro == 282_843
    assert "0.1, 0.141422, 0.2, 0.282843 on levels 0 to 3" in found.mechanism


def test_levels_of_a_reward_widen_the_noise_and_not_the_price(pdap):
    found = release_guarantee(pdap.config(epsilon=0.5, reward_levels=10))
    assert (found.epsilon_micro, found.sensitivity) == (500_000, 10)
    assert "scale 10/epsilon" in found.mechanism


def test_who_sees_rewards_is_said_for_each_placement(pdap):
    serving, home = (release_guarantee(pdap.config(placement=one)).not_protected for one in ("serving", "home"))
    assert any("all rewards, from whoever runs the counter" in fact for fact in serving)
    assert any("that vendor's counter" in fact for fact in home)
    assert serving[:-1] == home[:-1]


def test_the_rule_that_must_not_be_broken_is_a_condition(pdap):
    conditions = release_guarantee(pdap.config(events_per_person=40)).conditions
    assert any("no arm is chosen by anyone who sees rewards" in fact for fact in conditions)
    assert any("at most 40 events: nobody counts them" in fact for fact in conditions)


def test_a_budget_admits_whole_epochs_and_says_how_many(pdap):
    settings = replace(pdap.config(epsilon=0.5), budget=BudgetConfig(epsilon=1.6, delta=1e-6))
    assert spending_terms(settings).fits == 3
    assert budget_facts(settings).fits == 3
    found = release_guarantee(settings)
    assert found.epsilon_micro == 1_500_000
    assert found.redraws.most == 3
    assert found.redraws.price.epsilon_micro == 500_000
    assert found.lifetime.cost.epsilon_micro == 3 * 100 * 500_000


def test_without_a_budget_one_epoch_is_all(pdap):
    settings = pdap.config(epsilon=0.5)
    assert spending_terms(settings).fits == 1
    assert budget_facts(settings).limit == epoch_guarantee(settings).cost


def test_a_budget_with_room_for_nothing_is_refused(pdap):
    settings = replace(pdap.config(epsilon=0.5), budget=BudgetConfig(epsilon=0.4, delta=1e-6))
    with pytest.raises(ConfigurationError, match="one epoch of noise"):
        release_guarantee(settings)
