"""The power that an audit states is the one that it has."""

import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest

from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits import (
    Family,
    Noises,
    attack_power,
    audit_structure,
    balanced_rates,
    gamma_sizes,
    gaussian_curve,
    half_normal_sizes,
    laplace_pair,
    lattice_sizes,
    lower_confidence,
    pure,
    reaching,
    setting_of,
    shared_noise,
    size_power,
    smallest_place,
    surprise_limit,
    upper_confidence,
)
from hushstream.privacy.errors import PrivacyError

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
