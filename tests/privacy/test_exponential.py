"""The exponential mechanism against its exact law. Streams are seeded: a test that passes once passes always."""

from dataclasses import replace
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hushstream.privacy.bounds import exp_above
from hushstream.privacy.errors import BadNoise
from hushstream.privacy.mechanisms.exponential import (
    exponential_choice,
    exponential_guarantee,
    exponential_residue,
    exponential_weights,
)
from hushstream.privacy.mechanisms.noise import KeyedStream

FALSE_ALARM = 1e-6
utilities = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=20).map(np.array)
small = st.lists(st.integers(-20, 20), min_size=2, max_size=8)


@given(utilities, st.integers(1, 10**9), st.integers(1, 1000))
def test_the_weights_are_the_exact_law_to_within_the_residue(values, micro, sensitivity):
    weights = exponential_weights(values, micro, sensitivity)
    with mpmath.workprec(400):
        rate = mpmath.mpf(micro) / (2 * sensitivity * 10**6)
        exact = [mpmath.exp(rate * (int(value) - int(values.max()))) for value in values]
        distance = (
            sum(abs(w / mpmath.mpf(sum(weights)) - e / sum(exact)) for w, e in zip(weights, exact, strict=True)) / 2
        )
        residue = exponential_residue(len(values))
        assert distance <= mpmath.mpf(residue.numerator) / residue.denominator
    assert min(weights) >= 1


@given(small, st.data(), st.integers(10_000, 5_000_000), st.integers(1, 5))
def test_no_choice_is_more_than_e_to_the_epsilon_likelier_on_a_neighbour(values, data, micro, sensitivity):
    moves = data.draw(st.lists(st.integers(-sensitivity, sensitivity), min_size=len(values), max_size=len(values)))
    one = exponential_weights(np.array(values), micro, sensitivity)
    other = exponential_weights(np.array(values) + np.array(moves), micro, sensitivity)
    limit = exp_above(Fraction(micro, 10**6))
    for mine, theirs in zip(one, other, strict=True):
        ours, base = Fraction(mine, sum(one)), Fraction(theirs, sum(other))
        assert ours <= limit * (base + exponential_residue(len(values))) + exponential_residue(len(values))


def test_choices_follow_the_exact_law(key, address):
    """Chi-square over 5,000 choices, false alarm 1e-6; twice the epsilon is refused by the same test."""
    values, count = np.array([0, 3, 5, 5, 9]), 5_000
    drawn = [
        exponential_choice(KeyedStream(key, replace(address, node=(node,))), values, 1, 2) for node in range(count)
    ]
    observed = np.bincount(drawn, minlength=5)
    p_values = []
    for epsilon in (1, 2):
        law = np.exp(epsilon * values / 4)
        p_values.append(stats.chisquare(observed, count * law / law.sum()).pvalue)
    assert p_values[0] > FALSE_ALARM > p_values[1]


def test_known_choices_stay_the_same_on_every_machine_and_version(key, address):
    values = np.arange(10) * 3
    drawn = [exponential_choice(KeyedStream(key, replace(address, node=(n,))), values, "0.5", 3) for n in range(12)]
    assert drawn == [9, 1, 8, 9, 7, 4, 6, 7, 7, 9, 6, 7]


def test_only_differences_of_utilities_matter_and_the_best_wins_at_large_epsilon(stream):
    values = np.array([5, 1 << 62, 7])
    assert exponential_choice(stream(), values, 100, 1) == 1
    assert exponential_weights(np.array([3, 9]), 10**6, 2) == exponential_weights(np.array([-6, 0]), 10**6, 2)
    extremes = exponential_weights(np.array([-(1 << 63), (1 << 63) - 1]), 1, 1)
    assert extremes[0] == 1
    assert extremes[1] >= 1 << 128


@pytest.mark.parametrize(
    ("values", "epsilon", "sensitivity", "said"),
    [
        (np.array([], dtype=np.int64), 1, 1, "candidates"),
        (np.array([1.0]), 1, 1, "int64"),
        (np.array([[1]]), 1, 1, "shape"),
        (np.array([1]), 0, 1, "epsilon"),
        (np.array([1]), 1001, 1, "epsilon"),
        (np.array([1]), 1, 0, "sensitivity"),
        (np.array([1]), 1, 1.5, "sensitivity"),
    ],
)
def test_an_impossible_choice_is_refused(stream, values, epsilon, sensitivity, said):
    with pytest.raises(BadNoise, match=said):
        exponential_choice(stream(), values, epsilon, sensitivity)


def test_a_choice_promises_its_epsilon_and_twice_that_between_two_reports():
    promise = exponential_guarantee(100, "0.25", 2, choices=4)
    assert promise.epsilon_micro == 250_000
    assert promise.replace_one.epsilon_micro == 500_000
    assert promise.lifetime.cost.epsilon_micro == 1_000_000
    # Far below one unit of 2^-80, which is the smallest delta that is not zero.
    assert promise.delta_units == promise.residue_units == 1
    with pytest.raises(BadNoise, match="choices"):
        exponential_guarantee(100, 1, 1, choices=0)
