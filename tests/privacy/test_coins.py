from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.errors import BadNoise
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.coins import (
    COIN_ONE,
    bernoulli,
    choice,
    coin_probability,
    permutation,
    probability_units,
)
from hushstream.privacy.mechanisms.noise import KeyedStream

FALSE_ALARM = 1e-6


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
