"""Audits: the curves that they weigh by, the false-alarm rate that holds, and the power that they state."""

import math
from fractions import Fraction
from functools import cache
from math import exp, log
from statistics import NormalDist

import numpy as np
import pytest
from scipy import stats

from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits import (
    Family,
    Noises,
    Pair,
    Sizes,
    attack_power,
    audit_attack,
    audit_sizes,
    audit_structure,
    balanced_rates,
    delta_lower_bound,
    epsilon_lower_bound,
    gamma_sizes,
    gaussian_curve,
    gaussian_pair,
    half_normal_sizes,
    laplace_pair,
    lattice_sizes,
    length_pair,
    lower_confidence,
    plane_pair,
    pure,
    reaching,
    sampled_pair,
    setting_of,
    shared_noise,
    size_power,
    smallest_place,
    surprise_limit,
    upper_confidence,
)
from hushstream.privacy.errors import PrivacyError
from hushstream.privacy.mechanisms.tuples import exact_delta

FALSE_ALARM = 1e-6
CLAIM = 1.0
TIMES = 200

LAPLACE = pure(lambda epsilon: laplace_pair(epsilon, 1, 4).power)


def found(family, rates, runs, generator):
    """How often, of `TIMES` audits, a release with these rates is found."""
    true_rate, false_rate = rates
    seen = 0
    for _ in range(TIMES):
        hits = (int(generator.binomial(runs, rate)) for rate in (true_rate, false_rate))
        seen += bound(family, *hits, runs) > CLAIM
    return seen


@cache
def bound(family, true_hits, false_hits, runs):
    """What the audit says of these hits, the same for equal ones."""
    few = lower_confidence(true_hits, runs, FALSE_ALARM / 2)
    return family.lower_bound(few, upper_confidence(false_hits, runs, FALSE_ALARM / 2))


@pytest.mark.parametrize("rates", [balanced_rates(LAPLACE), reaching(4)])
def test_an_excess_of_the_stated_size_is_found_as_often_as_stated(rates):
    """At chance .9 fewer than 160 of 200 are found once in 100,000; at 85 % of the excess some are missed."""
    least = attack_power(LAPLACE, CLAIM, 200, FALSE_ALARM, rates)
    assert least > CLAIM
    generator = np.random.default_rng(11)
    assert found(LAPLACE, rates(least), 200, generator) >= 160
    assert found(LAPLACE, rates(CLAIM + 0.7 * (least - CLAIM)), 200, generator) < 190


def test_more_runs_see_smaller_excesses_and_hardly_any_epsilon_is_not_seen_at_all():
    few, many = (attack_power(LAPLACE, CLAIM, runs, FALSE_ALARM) for runs in (500, 20_000))
    assert CLAIM < many < few
    flat = Family(lambda setting: lambda false_rate: false_rate, lambda setting: setting)
    assert attack_power(flat, CLAIM, 1_000_000, FALSE_ALARM) is None


def test_rates_are_those_where_the_curve_is_furthest_above_the_diagonal():
    distance = 1.5
    family = Family(lambda setting: gaussian_curve(distance), lambda setting: setting)
    true_rate, false_rate = balanced_rates(family)(1.0)
    assert false_rate == pytest.approx(NormalDist().cdf(-distance / 2), abs=1e-3)
    assert true_rate == pytest.approx(NormalDist().cdf(distance / 2), abs=1e-3)


def test_a_setting_is_the_one_that_is_sold_for_an_epsilon():
    family = Family(lambda setting: gaussian_curve(setting), lambda setting: setting**2)
    assert setting_of(family, 4.0) == pytest.approx(2.0)


def test_noise_that_lacks_the_stated_size_is_found_as_often_as_stated():
    """At chance .9 fewer than 28 of 40 are found once in 6,000."""
    draws = 5_000
    law = gamma_sizes(1, Family(lambda setting: lambda false_rate: false_rate, lambda setting: setting, CLAIM / 4))
    least = size_power(law, CLAIM, draws, FALSE_ALARM)
    assert CLAIM < least < 1.15
    generator = np.random.default_rng(12)
    means = generator.exponential(1 / least, (40, draws)).mean(axis=1)
    assert sum(law.lower_bound(float(mean), draws, FALSE_ALARM) > CLAIM for mean in means) >= 28
    honest = float(generator.exponential(1 / CLAIM, draws).mean())
    assert law.lower_bound(honest, draws, FALSE_ALARM) <= CLAIM


# Each place of a release against its law and against all others; what a pooled audit cannot see.

PLACES, RUNS = 60, 300
CLAIM_OF_AUDIT_STRUCTURE = Cost(epsilon_micro(1))
FAMILY = Family(lambda epsilon: laplace_pair(epsilon).power, lambda epsilon: epsilon, smallest=1 / 8)
LAW = gamma_sizes(1, FAMILY)


@pytest.fixture
def drawn():
    return np.random.default_rng(11).laplace(size=(RUNS, PLACES))


def audited(drawn):
    return audit_structure(Noises(drawn, "place {}".format), LAW, CLAIM_OF_AUDIT_STRUCTURE)


def test_honest_noise_stands(drawn):
    found = audited(drawn)
    assert found.passed
    assert 0.7 < found.calibrated_lower_bound < 1


def test_one_place_without_noise_is_found_where_the_pool_looks_whole(drawn):
    drawn[:, 17] = 0
    assert not audited(drawn).passed
    pooled = LAW.lower_bound(float(np.abs(drawn).mean()), drawn.size, 1e-6)
    assert pooled < 1, "one of sixty hardly moves the mean"


def test_one_place_with_half_the_noise_is_found(drawn):
    drawn[:, 5] /= 2
    found = audited(drawn)
    assert found.calibrated_lower_bound > 1
    assert not found.passed


@pytest.mark.parametrize("factor", [1, -1])
def test_two_places_that_share_noise_are_named(drawn, factor):
    drawn[:, 40] = factor * drawn[:, 3]
    found = audited(drawn)
    assert found.structure == "place 3 and place 40 share noise"
    assert not found.passed
    assert found.strongest <= 1, "the size of each is as it should be"


def test_noise_that_is_shared_in_part_is_found(drawn):
    """Two of four draws in common: signs agree in two of three runs."""
    common = np.random.default_rng(12).laplace(size=(4_000, 6))
    shared = np.stack([common[:, 0] + common[:, 1] + common[:, 2], common[:, 1] + common[:, 2] + common[:, 3]], axis=1)
    assert shared_noise(shared, 1e-6) == (0, 1)
    assert shared_noise(common, 1e-6) is None


def test_the_limit_of_surprise_is_a_union_over_all_pairs():
    """2 exp(-limit) for each of n (n-1) / 2 pairs is the false alarm."""
    pairs = PLACES * (PLACES - 1) / 2
    assert pairs * 2 * math.exp(-surprise_limit(PLACES, 1e-6)) == pytest.approx(1e-6)


def test_the_share_of_each_place_is_that_of_one_among_all(drawn):
    least = float(np.abs(drawn).mean(axis=0).min())
    assert smallest_place(np.abs(drawn), LAW, 1e-6) == LAW.lower_bound(least, RUNS, 1e-6 / PLACES)


def test_vectors_are_measured_whole():
    lengths = np.full((RUNS, 1), 0.1)
    noises = Noises(np.random.default_rng(3).laplace(size=(RUNS, 2)), str, lengths)
    assert not audit_structure(noises, LAW, CLAIM_OF_AUDIT_STRUCTURE).passed
    assert audit_structure(noises, None, CLAIM_OF_AUDIT_STRUCTURE).passed, "without a law only pairs are looked at"


@pytest.mark.parametrize("shape", [(0, 5), (5, 1)])
def test_too_little_is_refused(shape):
    with pytest.raises(PrivacyError, match="expected runs of at least two places"):
        audit_structure(Noises(np.zeros(shape), str), LAW, CLAIM_OF_AUDIT_STRUCTURE)


@pytest.mark.parametrize("spread", [1, 24])
def test_sizes_on_a_lattice_have_the_mean_of_discrete_laplace(spread):
    """E|x| = 2q / (1 - q^2) in steps."""
    sizes, masses = lattice_sizes(spread, FAMILY).law(2.0)
    ratio = math.exp(-2.0 / spread)
    assert float(sizes @ masses) * spread == pytest.approx(2 * ratio / (1 - ratio**2), rel=1e-9)


@pytest.mark.parametrize("dimension", [1, 2, 6])
def test_lengths_have_the_mean_of_their_law_from_below(dimension):
    """A gamma law of mean d / epsilon; rounding down to the grid takes at most one step of it."""
    sizes, masses = gamma_sizes(dimension, FAMILY).law(2.0)
    assert masses.sum() == pytest.approx(1, abs=1e-9)
    assert dimension / 2 - sizes[1] < float(sizes @ masses) < dimension / 2


def test_half_normal_sizes_have_their_mean_from_below():
    sizes, masses = half_normal_sizes(0.5, FAMILY).law(2.0)
    mean = math.sqrt(2 / math.pi) / 2
    assert masses.sum() == pytest.approx(1, abs=1e-9)
    assert mean - sizes[1] < float(sizes @ masses) < mean


# Trade-off curves: exact where a formula is known, and upper bounds where the docstring says so.

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


AUDITED = 1_000


def test_the_stated_false_alarm_rate_holds():
    """Exact: the sum over all pairs of hits, for the true rates of epsilon 1, where the audit would fail."""
    ratio = exp(-1)
    runs = 60
    with_slot = stats.binom.pmf(range(runs + 1), runs, 1 / (1 + ratio))
    without = stats.binom.pmf(range(runs + 1), runs, ratio / (1 + ratio))
    lower = [lower_confidence(hits, runs, 0.05) for hits in range(runs + 1)]
    upper = [upper_confidence(hits, runs, 0.05) for hits in range(runs + 1)]
    alarm = sum(
        with_slot[t] * without[f]
        for t in range(runs + 1)
        for f in range(runs + 1)
        if lower[t] > exp(1) * float(upper[f]) or 1 - upper[f] > exp(1) * (1 - float(lower[t]))
    )
    assert 0 < alarm <= 0.1
    t, f = 58, 5
    assert epsilon_lower_bound(t, f, runs, 0, 0.1) == pytest.approx(
        max(log(lower[t] / upper[f]), log((1 - upper[f]) / (1 - lower[t])))
    )


@pytest.mark.parametrize("hits", [(58, 5), (60, 0), (55, 2)])
def test_the_least_delta_at_an_epsilon_is_that_whose_least_epsilon_this_is(hits):
    """Both follow from the same two confidence bounds, so both are wrong together."""
    for epsilon in (0.0, 0.5, 1.0):
        delta = delta_lower_bound(*hits, 60, epsilon, 0.1)
        assert 0 < delta < 1
        assert epsilon_lower_bound(*hits, 60, Fraction(delta), 0.1) == pytest.approx(epsilon, abs=1e-9)
    assert delta_lower_bound(*hits, 60, 9.0, 0.1) == 0


@pytest.mark.parametrize("hits", [0, 1, 7, 500, 881, 999, 1000])
@pytest.mark.parametrize("error", [5e-7, 0.025])
def test_confidence_bounds_are_those_of_clopper_and_pearson(hits, error):
    oracle = stats.binomtest(hits, 1000)
    low, high = oracle.proportion_ci(1 - 2 * error, method="exact")
    assert float(lower_confidence(hits, 1000, error)) == pytest.approx(low, abs=1e-9)
    assert float(upper_confidence(hits, 1000, error)) == pytest.approx(high, abs=1e-9)


def test_an_attacker_who_sees_nothing_proves_nothing():
    assert epsilon_lower_bound(500, 500, 1000, 0, 1e-6) == delta_lower_bound(500, 500, 1000, 0.0, 1e-6) == 0
    assert epsilon_lower_bound(0, 1000, 1000, 0, 1e-6) == 0
