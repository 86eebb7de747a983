"""Responses and local rewards against their exact laws. Streams are seeded: a test that passes once passes always;
the stated false-alarm rates are those of the choice of the seed."""

import math
from fractions import Fraction

import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushstream.privacy.bounds import exp_above, exp_below
from hushstream.privacy.errors import BadAmount, BadGuarantee, BadNoise
from hushstream.privacy.mechanisms.response import RandomisedResponse, _multiply_high
from hushstream.privacy.mechanisms.rewards import LocalReward, _thresholds

FALSE_ALARM = 1e-6
ONE = 1 << 64
epsilons = st.integers(1, 40_000_000).map(lambda micro: Fraction(micro, 10**6))


@given(st.one_of(st.integers(2, 40), st.integers(2, 1 << 20)), epsilons)
def test_no_response_is_more_than_e_to_the_epsilon_likelier_under_another_value(categories, epsilon):
    """Over every outcome: the truth, the most frequent lie and the rarest lie, in whole words."""
    law = RandomisedResponse.of(categories, epsilon)
    others = categories - 1
    words = [ONE // others + (1 if ONE % others else 0), ONE // others]
    chances = [law.keep_units * ONE, *((ONE - law.keep_units) * count for count in words)]
    assert Fraction(max(chances), min(chances)) <= exp_below(epsilon) * (1 + Fraction(1, 1 << 250))


@given(st.integers(2, 1 << 20), epsilons)
def test_the_truth_is_as_likely_as_epsilon_allows(categories, epsilon):
    law = RandomisedResponse.of(categories, epsilon)
    ideal = exp_above(epsilon) / (exp_above(epsilon) + categories - 1)
    assert abs(law.truth - ideal) < Fraction(1, 1 << 40)
    assert abs(law.truth + (categories - 1) * law.lie - 1) == 0


@given(st.integers(0, ONE - 1), st.integers(1, 1 << 20))
def test_lies_are_spread_over_the_other_categories_by_exact_arithmetic(word, below):
    assert int(_multiply_high(np.array([word], dtype=np.uint64), below)[0]) == word * below >> 64


@pytest.mark.parametrize(("categories", "epsilon"), [(2, 1), (3, "0.2"), (7, 2), (40, 4)])
def test_responses_follow_the_exact_law(stream, categories, epsilon):
    """Chi-square, false alarm 1e-6; an epsilon of 0.8 is caught with power above 0.999."""
    size, value = 300_000, categories - 2
    law = RandomisedResponse.of(categories, epsilon)
    drawn = law.draw(stream(), np.full(size, value))
    expected = np.full(categories, float(law.lie))
    expected[value] = float(law.truth)
    observed = np.bincount(drawn, minlength=categories)
    critical = stats.chi2.isf(FALSE_ALARM, categories - 1)
    assert ((observed - size * expected) ** 2 / (size * expected)).sum() < critical
    weaker = RandomisedResponse.of(categories, Fraction(epsilon) * Fraction(4, 5))
    wrong = np.full(categories, float(weaker.lie))
    wrong[value] = float(weaker.truth)
    shift = size * ((wrong - expected) ** 2 / expected).sum()
    assert stats.ncx2.sf(critical, categories - 1, shift) > 0.999


def test_responses_agree_with_an_independent_sampler(stream):
    """Two-sample chi-square against OpenDP at the same probability of the truth, false alarm 1e-6."""
    dp.enable_features("contrib")
    law = RandomisedResponse.of(4, 1)
    oracle = dp.m.make_randomized_response({0, 1, 2, 3}, prob=float(law.truth))
    theirs = np.bincount([oracle(1) for _ in range(20_000)], minlength=4)
    ours = np.bincount(law.draw(stream(), np.full(20_000, 1)), minlength=4)
    assert stats.chi2_contingency(np.stack([theirs, ours])).pvalue > FALSE_ALARM
    half = np.bincount(RandomisedResponse.of(4, 2).draw(stream(), np.full(20_000, 1)), minlength=4)
    assert stats.chi2_contingency(np.stack([theirs, half])).pvalue < FALSE_ALARM


@pytest.mark.parametrize(("categories", "expected"), [(2, "0 1 0 1 1 1 0 1 0 1 1 1"), (5, "0 4 0 0 1 3 4 4 2 4 1 1")])
def test_known_responses_stay_the_same_on_every_machine_and_version(stream, categories, expected):
    values = np.arange(12, dtype=np.int64) % categories
    drawn = RandomisedResponse.of(categories, 1).draw(stream(), values)
    assert drawn.dtype == np.int64
    assert drawn.tolist() == [int(text) for text in expected.split()]
    assert RandomisedResponse.of(categories, 1).draw(stream(), values[:5]).tolist() == drawn[:5].tolist()


def test_counts_are_estimated_without_bias_and_with_the_stated_variance(stream):
    """5.5 standard errors on each of 4 categories: false alarm 2e-7."""
    law = RandomisedResponse.of(4, 1)
    values = np.repeat(np.arange(4), [70_000, 20_000, 10_000, 0])
    estimates = law.counts(law.draw(stream(), values))
    for category, true in enumerate((70_000, 20_000, 10_000, 0)):
        assert abs(estimates[category] - true) < 5.5 * math.sqrt(100_000 * law.variance(true / 100_000))
    assert estimates.sum() == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (np.array([0, 4]), "0 to 3, got others"),
        (np.array([-1]), "0 to 3, got others"),
        (np.array([1.0]), "expected int64"),
        (np.array([[1]]), "shape"),
    ],
)
def test_a_value_that_is_no_category_is_refused_without_repeating_it(stream, values, said):
    with pytest.raises(BadNoise, match=said):
        RandomisedResponse.of(4, 1).draw(stream(), values)


@pytest.mark.parametrize("epsilon", [0, 41, "1e9"])
def test_an_epsilon_without_a_response_is_refused(epsilon):
    for make in (RandomisedResponse.of, LocalReward.of):
        with pytest.raises(BadNoise, match="epsilon: expected above 0 and at most 40"):
            make(2, epsilon)
        for value in (math.inf, math.nan, -1):
            with pytest.raises(BadAmount):
                make(2, value)


@pytest.mark.parametrize("wrong", [0, 1, (1 << 20) + 1, 2.0, True])
def test_a_number_of_categories_without_a_response_is_refused(wrong):
    with pytest.raises(BadNoise, match="categories: expected"):
        RandomisedResponse.of(wrong, 1)


def test_a_response_promises_pure_epsilon_for_every_pair_of_values():
    promise = RandomisedResponse.of(3, "0.5").guarantee(responses=4, devices=2)
    assert promise.cost == promise.replace_one
    assert (promise.epsilon_micro, promise.delta_units, promise.residue_units) == (500_000, 0, 0)
    assert promise.lifetime.cost.epsilon_micro == 8 * 500_000
    assert promise.zone == promise.deployment == "edge"


@given(st.integers(1, 1 << 10), epsilons)
def test_no_bit_is_more_than_e_to_the_epsilon_likelier_under_another_reward(levels, epsilon):
    micro = int(epsilon * 10**6)
    table = [int(units) for units in _thresholds(levels, micro)]
    assert table == sorted(table)
    assert table[0] + table[-1] == ONE
    assert Fraction(table[-1], table[0]) <= exp_above(epsilon)
    assert Fraction(table[-1], table[0]) > exp_below(epsilon) * (1 - Fraction(1 << 60, table[0] * table[0]) * (1 << 6))


@pytest.mark.parametrize("levels", [1, 10])
@pytest.mark.parametrize("law", ["laplace", "response"])
def test_rewards_are_estimated_without_bias_and_within_the_stated_variance(stream, levels, law):
    """Mean within 5.5 standard errors (false alarm 4e-8); variance within 5 % of the stated largest one."""
    size = 200_000
    noise = LocalReward.of(levels, 1, law)
    assert noise.law == law
    reward = levels // 2
    estimates = noise.estimate(noise.draw(stream(), np.full(size, reward)))
    assert abs(estimates.mean() - reward / levels) < 5.5 * math.sqrt(noise.variance / size)
    assert estimates.var() == pytest.approx(noise.variance, rel=0.05)


@pytest.mark.parametrize(
    ("levels", "epsilon", "law"),
    [(1, "0.1", "response"), (1, 2, "response"), (1, 20, "response"), (256, 1, "response"), (256, 5, "laplace")],
)
def test_the_configured_law_is_the_one_with_less_variance(levels, epsilon, law):
    chosen = LocalReward.of(levels, epsilon)
    assert chosen.law == law
    assert chosen.variance == min(LocalReward.of(levels, epsilon, law).variance for law in ("laplace", "response"))


def test_for_clicks_one_coin_has_half_the_variance_of_laplace_noise():
    for epsilon in ("0.1", 1, 3):
        ratio = LocalReward.of(1, epsilon, "laplace").variance / LocalReward.of(1, epsilon, "response").variance
        assert ratio == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize(
    ("law", "expected"), [("laplace", "0 2 -8 0 3 3 5 2 10 21"), ("response", "0 0 0 0 1 1 1 1 1 1")]
)
def test_known_rewards_stay_the_same_on_every_machine_and_version(stream, law, expected):
    rewards = np.arange(10, dtype=np.int64)
    drawn = LocalReward.of(9, 2, law).draw(stream(), rewards)
    assert drawn.tolist() == [int(text) for text in expected.split()]
    assert LocalReward.of(9, 2, law).draw(stream(), rewards[:4]).tolist() == drawn[:4].tolist()


def test_a_reward_out_of_range_or_an_unknown_law_is_refused(stream):
    with pytest.raises(BadNoise, match="rewards: expected whole numbers from 0 to 9, got others"):
        LocalReward.of(9, 1).draw(stream(), np.array([10]))
    with pytest.raises(BadNoise, match="laplace, response or auto"):
        LocalReward.of(9, 1, "gaussian")
    for wrong in (0, True, 1 << 17, 1.0):
        with pytest.raises(BadNoise, match="reward levels"):
            LocalReward.of(wrong, 1)
    with pytest.raises(BadGuarantee, match="above 0"):
        LocalReward.of(9, 1).guarantee(rewards=0)


def test_a_local_reward_promises_its_epsilon_once_for_each_reward():
    for law in ("laplace", "response"):
        promise = LocalReward.of(4, 1, law).guarantee(rewards=10)
        assert promise.epsilon_micro == 1_000_000
        assert promise.lifetime.cost.epsilon_micro == 10_000_000
        assert (promise.delta_units == 0) == (law == "response")
        assert promise.delta_units == promise.residue_units < 1 << 30
        assert promise.replace_one == promise.cost
