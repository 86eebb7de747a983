from fractions import Fraction
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import iv, mp

from hushstream.privacy.bounds import exp_above, exp_below, log_above, to_fraction
from hushstream.privacy.errors import BadAmount, BadNoise
from hushstream.privacy.mechanisms.amplification import amplified_epsilon_micro, noise_epsilon
from hushstream.privacy.mechanisms.binomial import at_least, at_most, probability_of, working


def _interval(function, value):
    """An enclosure by mpmath's interval arithmetic, which rounds outwards and knows no slack of ours."""
    iv.prec = 240
    enclosure = function(iv.mpf(value.numerator) / value.denominator)
    ends = [mp.mpf(end) for end in (enclosure.a, enclosure.b)]
    return [to_fraction(end) for end in ends]


@given(st.fractions(min_value=-40, max_value=40, max_denominator=10**6))
def test_exponentials_lie_on_their_stated_side(value):
    with mp.workprec(240):
        low, high = _interval(iv.exp, value)
    assert low <= exp_above(value)
    assert exp_below(value) <= high
    assert exp_below(value) < exp_above(value) <= exp_below(value) * (1 + Fraction(1, 2**250))


@given(st.fractions(min_value=Fraction(1, 10**6), max_value=10**6, max_denominator=10**6))
def test_logarithms_are_not_below_the_true_ones(value):
    with mp.workprec(240):
        low, high = _interval(iv.log, value)
    assert log_above(value) >= low
    assert log_above(value) - high < Fraction(1, 2**200)


def test_the_librarys_own_precision_is_neither_used_nor_changed():
    before = mp.prec
    with mp.workprec(20):
        assert exp_above(Fraction(1)) - exp_below(Fraction(1)) < Fraction(1, 2**250)
    assert mp.prec == before


@pytest.mark.parametrize("value", [Fraction(-3, 4), Fraction(0), Fraction(1, 2**70), Fraction(5)])
def test_dyadic_numbers_convert_exactly(value):
    assert to_fraction(working(value)) == value


def test_what_no_formula_needs_is_refused():
    with pytest.raises(BadAmount, match="within"):
        exp_above(Fraction(1001))
    with pytest.raises(BadAmount, match="above 0"):
        log_above(Fraction(0))


@pytest.mark.parametrize(("trials", "chance"), [(1, Fraction(1, 3)), (12, Fraction(1, 2)), (40, Fraction(9, 10))])
def test_binomial_tails_equal_their_rational_sums(trials, chance):
    exact = [comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    for k in range(-1, trials + 2):
        inside = exact[k] if 0 <= k <= trials else Fraction(0)
        pairs = [
            (probability_of(trials, k, working(chance)), inside),
            (at_least(trials, k, working(chance)), sum(exact[max(k, 0) :], Fraction(0))),
            (at_most(trials, k, working(chance)), sum(exact[: max(k + 1, 0)], Fraction(0))),
        ]
        for computed, true in pairs:
            assert abs(to_fraction(computed) - true) < Fraction(1, 2**240)


def test_sampling_half_of_the_slots_at_epsilon_one_gives_the_textbook_figure():
    # ln(1 + (e - 1)/2) = 0.6201145069...
    assert amplified_epsilon_micro(1, "0.5") == 620_115
    assert amplified_epsilon_micro("1.234567", 1) == 1_234_567
    assert amplified_epsilon_micro(0, "0.5") in (0, 1)


@given(st.integers(1, 5_000_000), st.fractions(min_value=Fraction(1, 1000), max_value=1, max_denominator=1000))
def test_the_noise_for_a_target_keeps_it_and_one_millionth_more_would_not(micro, chance):
    target = Fraction(micro, 1_000_000)
    noise = noise_epsilon(target, chance)
    assert noise >= target
    assert amplified_epsilon_micro(noise, chance) <= micro
    assert amplified_epsilon_micro(noise + Fraction(1, 1_000_000), chance) > micro


@pytest.mark.parametrize("chance", [0, -1, 2])
def test_a_sampling_probability_out_of_range_is_refused(chance):
    with pytest.raises((BadAmount, BadNoise), match="expected"):
        amplified_epsilon_micro(1, chance)


@given(
    st.fractions(min_value=Fraction(1, 100), max_value=1, max_denominator=100),
    st.fractions(min_value=Fraction(1, 10), max_value=4, max_denominator=10),
)
def test_the_amplified_epsilon_bounds_both_directions_of_the_worst_pair(chance, epsilon):
    """Randomised response is the worst (eps, 0) pair: two outcomes with ratio e^eps each way."""
    grow = exp_above(epsilon)
    with_slot, without = grow / (1 + grow), 1 / (1 + grow)
    mixed = chance * with_slot + (1 - chance) * without
    bound = exp_above(Fraction(amplified_epsilon_micro(epsilon, chance), 1_000_000))
    assert mixed <= bound * without * (1 + Fraction(1, 2**200))
    assert with_slot <= bound * (1 - mixed) * (1 + Fraction(1, 2**200))
