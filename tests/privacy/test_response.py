"""Mechanisms on devices: randomised response and exact coins."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushstream.privacy.conversions import exp_above, exp_below
from hushstream.privacy.errors import BadAmount, BadGuarantee, BadNoise
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import (
    COIN_ONE,
    KeyedStream,
    bernoulli,
    choice,
    coin_probability,
    permutation,
    probability_units,
)
from hushstream.privacy.mechanisms.rewards import LocalReward, _thresholds
from hushstream.privacy.mechanisms.tuples import RandomisedResponse, _multiply_high

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
    assert (promise.epsilon_micro, promise.delta_units, promise.truncation_units) == (500_000, 0, 0)
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
        assert promise.delta_units == promise.truncation_units < 1 << 30
        assert promise.replace_one == promise.cost


def test_a_probability_rounds_up_to_the_coin_that_is_thrown():
    assert probability_units("0.5") == 2**63
    assert probability_units(0) == 0
    assert probability_units(1) == COIN_ONE
    assert 0 < coin_probability(probability_units("0.1")) - Fraction(1, 10) < Fraction(1, 2**64)
    for wrong in (-0.1, 1.1):
        with pytest.raises(BadNoise, match="from 0 to 1"):
            probability_units(wrong)


@pytest.mark.parametrize("probability", ["0.001", "0.25", "0.5", "0.9"])
def test_coins_fall_true_with_their_probability(stream, probability):
    """Exact binomial test on 100,000 coins, false alarm 1e-6.

    A coin off by a tenth of p is caught with power above 0.999 from p = 0.25 on (16 sigma against 4.9).
    """
    drawn = int(bernoulli(stream(), probability_units(probability), 100_000).sum())
    assert stats.binomtest(drawn, 100_000, float(probability)).pvalue > FALSE_ALARM


def test_certain_coins_are_certain(stream):
    assert bernoulli(stream(), COIN_ONE, 1000).all()
    assert not bernoulli(stream(), 0, 1000).any()
    for units in (-1, COIN_ONE + 1):
        with pytest.raises(BadNoise, match="0 to 2"):
            bernoulli(stream(), units, 1)


def test_one_more_slot_changes_no_earlier_coin(stream):
    longer = bernoulli(stream(), 2**63, 101)
    assert longer[:100].tolist() == bernoulli(stream(), 2**63, 100).tolist()


def test_choices_are_in_range_and_even(stream):
    """Chi-square over 6,000 choices of 6, false alarm 1e-6; a side at 1/4 is caught with power > 0.999."""
    one = stream()
    drawn = [choice(one, 6) for _ in range(6000)]
    assert set(drawn) == set(range(6))
    assert stats.chisquare(np.bincount(drawn)).pvalue > FALSE_ALARM
    assert choice(one, 1) == 0
    assert 0 <= choice(one, 2**63) < 2**63
    for below in (0, -1, 2**63 + 1):
        with pytest.raises(BadNoise, match="choice: expected"):
            choice(one, below)


def test_every_order_is_as_likely_as_another(stream):
    """Chi-square over 12,000 orders of 4 things, false alarm 1e-6; an order that never comes is caught."""
    one = stream()
    orders = [tuple(permutation(one, 4).tolist()) for _ in range(12_000)]
    counts = [orders.count(order) for order in sorted(set(orders))]
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_an_order_holds_each_position_once(stream, size):
    order = permutation(stream(), size)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(size))


def test_known_answers_stay_the_same_for_ever(stream):
    one = stream()
    assert np.packbits(bernoulli(one, 2**62, 64)).tobytes().hex() == "c00430000010040a"
    assert [choice(one, 1000) for _ in range(3)] == [586, 553, 466]
    assert permutation(one, 8).tolist() == [0, 2, 1, 3, 5, 6, 7, 4]


def test_another_key_throws_other_coins(stream, address):
    other = bernoulli(KeyedStream(seeded_key(8, "shuffler"), address), 2**63, 256)
    # Equal streams would agree everywhere; unrelated ones do so in 200 of 256 with probability under 1e-19.
    assert int((other == bernoulli(stream(), 2**63, 256)).sum()) < 200
