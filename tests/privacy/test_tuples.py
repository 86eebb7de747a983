from fractions import Fraction
from functools import cache
from math import comb, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.privacy.bounds import exp_below
from hushstream.privacy.errors import BadAmount, BadNoise
from hushstream.privacy.mechanisms.tuples import curve_epsilon, exact_delta, smallest_threshold

HALF = curve_epsilon("0.5")


@cache
def _law(trials, chance):
    return [comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]


def _thresholded(trials, chance, threshold, shift=0):
    """The law of the emitted count: 0 below the threshold, itself from there on."""
    law = {}
    for count, share in enumerate(_law(trials, chance)):
        shown = count + shift if count + shift >= threshold else 0
        law[shown] = law.get(shown, Fraction(0)) + share
    return law


def _hockey_stick(first, second, factor):
    return sum(
        (max(Fraction(0), share - factor * second.get(k, Fraction(0))) for k, share in first.items()), Fraction(0)
    )


def _worst(threshold, chance, factor, slots, others, injected=0):
    """The definition, enumerated in exact rationals: both directions, every number of other reports up to a limit."""
    return max(
        _hockey_stick(*pair, factor)
        for n in range(others + 1)
        for p, q in [
            (
                _thresholded(n + slots, chance, threshold, injected),
                _thresholded(n, chance, threshold, injected),
            )
        ]
        for pair in ((p, q), (q, p))
    )


@settings(max_examples=25, deadline=None)
@given(
    threshold=st.integers(1, 6),
    chance=st.sampled_from([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)]),
    epsilon=st.sampled_from(["0", "0.05", "0.3", "0.693", "0.694", "1.5", "3"]),
    slots=st.integers(1, 3),
)
def test_the_delta_is_that_of_the_definition(threshold, chance, epsilon, slots):
    """Enumeration over up to 60 other reports; the worst case lies below that for all of these settings."""
    factor = exp_below(Fraction(epsilon))
    definition = _worst(threshold, chance, factor, slots, others=60)
    computed = exact_delta(threshold, chance, epsilon, slots)
    assert definition <= computed <= definition + Fraction(2, 2**80)


@pytest.mark.parametrize("injected", [0, 1, 3, 4, 9])
def test_injected_reports_lower_the_threshold_that_counts(injected):
    factor = exp_below(HALF)
    definition = _worst(5, Fraction(1, 2), factor, 1, others=40, injected=injected)
    computed = exact_delta(5, "0.5", HALF, injected=injected)
    assert definition <= computed <= definition + Fraction(2, 2**80)


@pytest.mark.parametrize(("threshold", "delta"), [(10, 7.57e-3), (20, 6.00e-4), (50, 9.24e-7), (100, 5.30e-11)])
def test_the_published_deltas_at_one_half_and_ln_two_come_out(threshold, delta):
    assert float(exact_delta(threshold, "0.5", HALF)) == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("p", "threshold"), [("0.1", 36), ("0.25", 41), ("0.5", 50), ("0.75", 73), ("0.9", 148)])
def test_the_smallest_thresholds_for_one_in_a_million_come_out(p, threshold):
    epsilon = curve_epsilon(p)
    assert smallest_threshold(p, epsilon, "1e-6") == threshold
    assert exact_delta(threshold, p, epsilon) <= Fraction(1, 10**6) < exact_delta(threshold - 1, p, epsilon)


@pytest.mark.parametrize(("slots", "delta"), [(2, 2.5e-6), (10, 1.48e-4)])
def test_several_slots_in_one_crowd_cost_what_was_published(slots, delta):
    assert float(exact_delta(50, "0.5", slots * HALF, slots)) == pytest.approx(delta, rel=5e-3)


@pytest.mark.parametrize(("injected", "delta"), [(25, 1.73e-4), (49, 0.5), (50, 0.5), (1000, 0.5)])
def test_injected_reports_void_the_coin_at_the_edge(injected, delta):
    assert float(exact_delta(50, "0.5", HALF, injected=injected)) == pytest.approx(delta, rel=5e-3)


@given(st.integers(1, 80), st.floats(0.05, 0.95), st.floats(0, 3), st.integers(1, 4))
def test_delta_never_grows_with_threshold_or_epsilon(threshold, p, epsilon, slots):
    base = exact_delta(threshold, p, epsilon, slots)
    assert exact_delta(threshold + 1, p, epsilon, slots) <= base
    assert exact_delta(threshold, p, epsilon + 0.1, slots) <= base
    assert 0 < base <= 1


def test_an_epsilon_just_below_the_curve_needs_far_more_reports_to_be_worst_and_is_still_bounded():
    close = exact_delta(10, "0.5", log(2) - 1e-9)
    assert exact_delta(10, "0.5", HALF) <= close <= exact_delta(10, "0.5", HALF) * Fraction(101, 100)


def test_large_settings_stay_quick_and_never_fall_below_one_unit():
    assert exact_delta(1_000_000, "0.5", "0.6") == Fraction(1, 2**80)
    assert exact_delta(10_000_000, "0.999", curve_epsilon("0.999")) >= Fraction(1, 2**80)


def test_the_papers_epsilon_is_minus_ln_of_one_minus_p_rounded_up():
    assert Fraction(693_148, 1_000_000) == HALF
    for p in ("0.1", "0.25", "0.75", "0.9"):
        gap = float(curve_epsilon(p)) + log(1 - float(p))
        assert 0 <= gap < 1e-6


@pytest.mark.parametrize(
    "call",
    [
        lambda: exact_delta(0, "0.5", 1),
        lambda: exact_delta(10.0, "0.5", 1),
        lambda: exact_delta(10, "0.5", -1),
        lambda: exact_delta(10, "0.5", float("nan")),
        lambda: exact_delta(10, 1, 1),
        lambda: exact_delta(10, 0, 1),
        lambda: exact_delta(10, 2, 1),
        lambda: exact_delta(10, "0.5", 1, 0),
        lambda: exact_delta(10, "0.5", 1, 1, -1),
        lambda: smallest_threshold("0.5", 1, 0),
        lambda: smallest_threshold("0.5", 1, 1),
        lambda: curve_epsilon(1),
    ],
)
def test_settings_that_have_no_guarantee_are_refused(call):
    with pytest.raises((BadAmount, BadNoise), match="expected"):
        call()


def test_a_delta_that_no_threshold_reaches_is_refused():
    # At epsilon 0 the delta falls like 1/sqrt(l) only.
    with pytest.raises(BadAmount, match="got none"):
        smallest_threshold("0.5", 0, "1e-6")


def test_two_slots_in_one_crowd_cost_more_than_twice_one():
    """Why the lifetime sum of tuples is not simply m delta: a user's own slots fill their crowd."""
    assert exact_delta(50, "0.5", 2 * HALF, 2) > 2 * exact_delta(50, "0.5", HALF)
    assert exact_delta(50, "0.5", 100 * HALF, 100) > Fraction(1, 2)
