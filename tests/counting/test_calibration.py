"""Noise for a budget: conversions, where a counter beats fresh noise, and rows of benches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from hushstream.counting import (
    BadPlan,
    BinaryTree,
    BufferedToeplitz,
    Concentrated,
    NegativeDigitTree,
    PureEpsilon,
    best_tree,
    choose_release,
    counter_rmse,
    fresh_rmse,
)
from hushstream.counting.buffered import BltCounter, lower_bound, shape_for
from hushstream.privacy.amounts import delta_units, epsilon_micro
from hushstream.privacy.conversions import rho_to_epsilon_micro
from hushstream.privacy.errors import BadNoise, PrivacyError
from hushstream.privacy.mechanisms.noise import KeyedStream, discrete_laplace, laplace_scale


@pytest.mark.parametrize("epsilon", ["0.1", 1, 8])
def test_the_rho_for_an_epsilon_is_the_largest(epsilon):
    budget = Concentrated.for_epsilon(epsilon, 1e-6)
    target = int(Fraction(epsilon) * 1_000_000)
    rho, units = epsilon_micro(budget.rho), delta_units(1e-6)
    assert rho_to_epsilon_micro(rho, units) <= target < rho_to_epsilon_micro(rho + 1, units)
    plan = NegativeDigitTree(budget=budget, horizon=1000)
    assert plan.guarantee().cost.epsilon_micro <= target


def test_an_epsilon_that_no_rho_gives_is_refused():
    with pytest.raises(BadPlan, match="some rho"):
        Concentrated.for_epsilon("0.000001", 1e-12)


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "x", None, True])
def test_an_impossible_epsilon_is_refused(epsilon):
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        PureEpsilon(epsilon)  # type: ignore[arg-type]
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        Concentrated(epsilon, 1e-6)  # type: ignore[arg-type]


@pytest.mark.parametrize("delta", [0, 1, 2, -1e-6, math.nan])
def test_an_impossible_delta_is_refused(delta):
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        Concentrated(0.5, delta)


def test_noise_that_does_not_fit_is_refused():
    with pytest.raises((BadPlan, PrivacyError), match="expected"):
        NegativeDigitTree(budget=PureEpsilon(1), sensitivity=1 << 50)
    with pytest.raises(BadPlan, match=r"2\^37"):
        BufferedToeplitz(budget=Concentrated(0.000_001, 1e-6))


@pytest.mark.parametrize("exponent", [6, 8, 10, 12, 14, 17, 20, 22])
def test_the_toeplitz_counter_is_within_a_tenth_of_the_lower_bound(exponent):
    """Root mean square error in units of Delta_2 / sqrt(2 rho), roundings and lattice included.

    No factorisation is below ||A||_* / T (Henzinger, Upadhyay, Upadhyay 2023); see `blt_shapes.lower_bound`.
    """
    horizon = 1 << exponent
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=horizon, dimension=25, sensitivity=1 << 10)
    assert 1 <= plan.rmse() / plan.sensitivity / lower_bound(horizon) <= 1.10


@pytest.mark.parametrize(("exponent", "bound"), [(10, 2.91), (14, 3.79), (20, 5.11)])
def test_the_lower_bound_is_the_published_one(exponent, bound):
    assert lower_bound(1 << exponent) == pytest.approx(bound, abs=0.005)


@pytest.mark.parametrize("horizon", [300, 1 << 14, 1 << 30])
def test_roundings_move_the_toeplitz_counters_noise_by_no_more_than_is_paid_for(horizon):
    """The proof's step: leaves that differ by v at j need noise that differs by c_k v, but for the bound e."""
    plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=horizon, dimension=400)
    steps, change = 300, 1 << plan.fine_bits
    correlated = np.random.default_rng(3).integers(-(1 << 33), 1 << 33, (steps, 400))
    first, second = BltCounter(plan, NoNodes()), BltCounter(plan, NoNodes())
    exact = plan.shape.column(steps) * change
    for step in range(steps):
        moved = correlated[step] + (change if step == 0 else 0)
        fresh = correlated[step] + first.feedback(), moved + second.feedback()
        assert np.abs(fresh[1] - fresh[0] - exact[step]).max() <= float(plan.rounding) + 1e-3
        first.push(correlated[step])
        second.push(moved)


def test_every_weight_fits_the_whole_number_arithmetic_of_the_toeplitz_counter():
    """Gaps above one half once overflowed a product: rarely, and by some thousand fine units."""
    for exponent in (10, 14, 20, 24, 30):
        for pair in shape_for(1 << exponent).dyadic:
            for mantissa, bits in pair:
                assert 0 < mantissa < 1 << 31
                assert bits >= 31


class NoNodes:
    """The noise is given by hand: nothing is drawn."""

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> np.ndarray:
        raise AssertionError("expected no draw")

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> np.ndarray:
        raise AssertionError("expected no draw")

    def histories(self, before: bytes, leaves: np.ndarray, origin: bytes) -> list[bytes]:
        raise AssertionError("expected no leaf")


def test_the_toeplitz_counter_says_on_what_its_guarantee_rests():
    promise = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), horizon=100).guarantee()
    assert any("not integer" in condition for condition in promise.conditions)
    digits = NegativeDigitTree(budget=Concentrated(0.5, 1e-6), horizon=100).guarantee()
    assert not any("not integer" in condition for condition in digits.conditions)


def test_roundings_cost_the_toeplitz_counter_next_to_nothing():
    for dimension in (1, 25, 2500):
        plan = BufferedToeplitz(budget=Concentrated(0.5, 1e-6), dimension=dimension)
        exact = float(plan.shape.squared_norm(plan.horizon)) * 4.0**plan.fine_bits
        assert exact < plan.squared_sensitivity < 1.005 * exact


def test_a_thousand_windows_cost_less_than_half_of_fresh_noise():
    assert counter_rmse(1, 1000, 1024) < 0.5 * fresh_rmse(1, 1000)


def test_the_error_of_fresh_noise_is_the_closed_form(key, address):
    """4,000 runs of 100 windows: standard error 1.2 %, so 6 % are five of them (false alarm below 1e-6)."""
    noise = discrete_laplace(KeyedStream(key, address), *laplace_scale(1, 3), 400_000).reshape(4000, 100)
    assert np.sqrt(np.mean(np.cumsum(noise, axis=1) ** 2.0)) == pytest.approx(fresh_rmse(1, 100, 3), rel=0.06)


def test_few_windows_have_fresh_noise_and_many_a_counter():
    choices = [choose_release(1, windows, 1024) for windows in (1, 10, 100, 1000)]
    assert choices == ["fresh", "fresh", "fresh", "counter"]
    assert choose_release(1, 100) == "fresh"
    assert choose_release(1, 10_000) == "counter"


def test_the_choice_changes_once_where_the_errors_cross():
    choices = [choose_release("0.5", windows, 2000, 256) for windows in range(1, 2001, 97)]
    first = choices.index("counter")
    assert set(choices[:first]) == {"fresh"}
    assert set(choices[first:]) == {"counter"}
    windows = range(1, 2001, 97)[first]
    assert counter_rmse("0.5", windows, 2000, 256) < fresh_rmse("0.5", windows, 256)


def test_equal_errors_keep_fresh_noise():
    assert counter_rmse(1, 8, 8) == fresh_rmse(1, 8)
    assert choose_release(1, 8, 8) == "fresh"


def test_the_best_tree_is_no_worse_than_any_other():
    for budget in (PureEpsilon(1), Concentrated(0.5, 1e-6)):
        for horizon in (1, 5, 31, 100, 1024, 1 << 20):
            best = best_tree(budget, horizon).rmse()
            for base in (2, 3, 5, 8, 15, 19, 33, 62):
                assert best <= NegativeDigitTree(budget=budget, horizon=horizon, base=base).rmse()


def test_the_negative_digit_tree_is_below_two_fifths_of_the_binary_one():
    million = 1 << 20
    default, binary = NegativeDigitTree(budget=PureEpsilon(1)), BinaryTree(budget=PureEpsilon(1))
    assert default.rmse(million) < 0.40 * binary.rmse(million)
    assert (round(default.rmse(million), 1), round(binary.rmse(million), 1)) == (49.4, 138.6)
    small = best_tree(PureEpsilon(1), million)
    assert small.rmse() < 0.40 * BinaryTree(budget=PureEpsilon(1), horizon=million).rmse()


@pytest.mark.parametrize(
    ("epsilon", "windows", "horizon", "sensitivity"),
    [(0, 10, 100, 1), (1, 0, 100, 1), (1, 101, 100, 1), (1, 10, 0, 1), (1, 10, 100, 0), (1, 1.5, 100, 1)],
)
def test_impossible_configurations_are_refused(epsilon, windows, horizon, sensitivity):
    with pytest.raises((BadPlan, BadNoise), match="expected"):
        choose_release(epsilon, windows, horizon, sensitivity)
