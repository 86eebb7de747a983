"""Trade-off curves: exact where a formula is known, and upper bounds where the docstring says so."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits import (
    Family,
    Pair,
    Sizes,
    audit_attack,
    audit_sizes,
    gaussian_curve,
    gaussian_pair,
    laplace_pair,
    length_pair,
    plane_pair,
    pure,
    sampled_pair,
)
from hushstream.privacy.errors import PrivacyError
from hushstream.privacy.mechanisms.tuples import exact_delta

RATES = np.linspace(0.01, 0.95, 30)


def hockey_stick(pair, epsilon):
    return float(np.maximum(pair.moved - np.exp(epsilon) * pair.null, 0).sum())


def by_enumeration(epsilon, steps, reach=400):
    """One integer moved by ``steps``: all outcomes, from the law itself."""
    ratio = math.exp(-epsilon / steps)
    line = np.arange(-reach, reach + 1.0)
    null = (1 - ratio) / (1 + ratio) * ratio ** np.abs(line)
    moved = (1 - ratio) / (1 + ratio) * ratio ** np.abs(line - steps)
    return Pair(null / null.sum(), moved / moved.sum())


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("epsilon", [0.5, 1, 3])
def test_the_laplace_curve_is_that_of_all_outcomes(epsilon, steps):
    pair, whole = laplace_pair(epsilon, 1, steps), by_enumeration(epsilon, steps)
    for rate in RATES:
        assert pair.power(rate) == pytest.approx(whole.power(rate), abs=1e-9)


def test_several_nodes_are_several_coins():
    pair = laplace_pair(1.0, 10)
    coin = 1 / (1 + math.exp(-0.1))
    np.testing.assert_allclose(pair.moved, stats.binom.pmf(range(11), 10, coin), atol=1e-12)
    np.testing.assert_allclose(pair.null, stats.binom.pmf(range(11), 10, 1 - coin), atol=1e-12)


@pytest.mark.parametrize("draws", [1, 3])
def test_a_finer_lattice_never_has_the_higher_curve(draws):
    coarse, middle, fine = (laplace_pair(1.0, draws, steps) for steps in (1, 4, 16))
    for rate in RATES:
        assert coarse.power(rate) >= middle.power(rate) - 1e-12
        assert middle.power(rate) >= fine.power(rate) - 1e-12


def test_pure_epsilon_is_reached_and_never_exceeded():
    for draws, steps in ((1, 1), (4, 1), (2, 16)):
        pair = laplace_pair(1.0, draws, steps)
        assert hockey_stick(pair, 1.0) == pytest.approx(0, abs=1e-12)
        assert hockey_stick(pair, 0.999) > 0


def test_a_tree_hides_more_than_its_epsilon_says():
    """Why the audit of a tree looks at its curve: with half the noise its best test still looks like epsilon 1.13."""
    pair = laplace_pair(2.0, 10)
    best = max(math.log(pair.power(rate) / rate) for rate in (0.1, 0.2, 0.3))
    assert best < 1.2 < 2


def test_the_gaussian_curve_is_that_of_normal_laws_where_the_lattice_is_fine():
    pair, curve = gaussian_pair(400.0, 20, 1), gaussian_curve(1.0)
    for rate in RATES:
        assert pair.power(rate) == pytest.approx(curve(rate), abs=2e-3)
    four = gaussian_pair(400.0, 10, 4)
    for rate in RATES:
        assert four.power(rate) == pytest.approx(curve(rate), abs=2e-3)


@pytest.mark.parametrize("epsilon", [0.5, 2])
def test_the_plane_keeps_pure_epsilon(epsilon):
    pair = plane_pair(2 / epsilon, 2)
    assert hockey_stick(pair, epsilon) == pytest.approx(0, abs=1e-9)
    assert hockey_stick(pair, 0.95 * epsilon) > 1e-6


@pytest.mark.parametrize(("epsilon", "dimension"), [(0.5, 2), (1.0, 4), (6.0, 4), (2.0, 25), (8.0, 128)])
def test_a_vector_keeps_pure_epsilon_and_a_move_along_its_axis_reaches_it(epsilon, dimension):
    pair = length_pair(epsilon, dimension)
    seen = (pair.null > 1e-12) & (pair.moved > 1e-12)
    ratios = np.log(pair.moved[seen] / pair.null[seen])
    assert np.abs(ratios).max() <= epsilon * (1 + 1e-3)
    if dimension <= 4:
        # Of longer vectors hardly one lies so near to the axis.
        assert np.abs(ratios).max() >= epsilon * (1 - 2e-3)


def test_a_vector_of_two_numbers_is_the_fine_plane_and_longer_ones_hide_more():
    for rate in (0.01, 0.2, 0.5):
        assert length_pair(1.0, 2).power(rate) == pytest.approx(plane_pair(16, 16).power(rate), rel=1e-3)
        powers = [length_pair(4.0, dimension).power(rate) for dimension in (2, 4, 16)]
        assert powers == sorted(powers, reverse=True)


@pytest.mark.parametrize(("threshold", "others"), [(5, 5), (10, 11)])
def test_sampled_tuples_have_the_exact_delta_in_their_worst_crowd(threshold, others):
    delta = float(exact_delta(threshold, 0.5, math.log(2)))
    found = [hockey_stick(sampled_pair(0.5, n, threshold), math.log(2)) for n in range(threshold - 1, 40)]
    assert max(found) == pytest.approx(delta, rel=1e-9)
    assert found[others - threshold + 1] == pytest.approx(delta, rel=1e-9)


def test_a_bound_by_curve_is_the_calibration_that_gives_the_rates():
    family = pure(lambda epsilon: laplace_pair(epsilon, 4).power)
    for epsilon in (0.3, 1.0, 2.5):
        rate = 0.2
        power = laplace_pair(epsilon, 4).power(rate)
        assert family.lower_bound(Fraction(power), Fraction(rate)) == pytest.approx(epsilon, rel=1e-4)
    assert family.lower_bound(Fraction(1, 5), Fraction(1, 5)) == 0


def test_a_mean_size_gives_the_calibration_from_below():
    """Chernoff with many draws: just below the calibration whose mean it is, and never above it."""

    def law(epsilon):
        whole = np.arange(400.0)
        masses = np.exp(-whole * epsilon) * np.where(whole > 0, 2, 1)
        return whole, masses / masses.sum()

    sizes = Sizes(law, Family(lambda epsilon: laplace_pair(epsilon).power, lambda epsilon: epsilon, 0.2))
    whole, masses = law(1.0)
    assert 0.98 < sizes.lower_bound(float(whole @ masses), 100_000, 1e-6) < 1
    assert 0.90 < sizes.lower_bound(float(whole @ masses), 5_000, 1e-6) < 0.98
    assert sizes.lower_bound(1e6, 5_000, 1e-6) == 0
    assert audit_sizes(sizes, float(whole @ masses), Cost(1_000_000), 10_000, 1e-6).passed
    assert not audit_sizes(sizes, 0.9 * float(whole @ masses), Cost(1_000_000), 10_000, 1e-6).passed


def test_laws_and_scores_of_other_shapes_are_refused():
    with pytest.raises(PrivacyError, match="sum to 1"):
        Pair(np.array([0.5, 0.4]), np.array([0.5, 0.5]))
    with pytest.raises(PrivacyError, match="one shape"):
        Pair(np.array([1.0]), np.array([0.5, 0.5]))
    with pytest.raises(PrivacyError, match="expected 10 scores"):
        audit_attack(lambda present, runs: np.zeros(runs - 1), Cost(1), None, 10)
    with pytest.raises(PrivacyError, match="expected 10 scores"):
        audit_attack(lambda present, runs: np.full(runs, np.nan), Cost(1), None, 10)
