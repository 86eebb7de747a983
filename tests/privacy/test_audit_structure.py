"""Each place of a release against its law and against all others; what a pooled audit cannot see.

Draws are numpy's from a fixed seed: what is tested is arithmetic, not the product's noise.
"""

import math

import numpy as np
import pytest

from hushstream.privacy.amounts import Cost, epsilon_micro
from hushstream.privacy.audits import (
    Family,
    Noises,
    audit_structure,
    gamma_sizes,
    half_normal_sizes,
    laplace_pair,
    lattice_sizes,
    shared_noise,
    smallest_place,
    surprise_limit,
)
from hushstream.privacy.errors import PrivacyError

PLACES, RUNS = 60, 300
CLAIM = Cost(epsilon_micro(1))
FAMILY = Family(lambda epsilon: laplace_pair(epsilon).power, lambda epsilon: epsilon, smallest=1 / 8)
LAW = gamma_sizes(1, FAMILY)


@pytest.fixture
def drawn():
    return np.random.default_rng(11).laplace(size=(RUNS, PLACES))


def audited(drawn):
    return audit_structure(Noises(drawn, "place {}".format), LAW, CLAIM)


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
    assert not audit_structure(noises, LAW, CLAIM).passed
    assert audit_structure(noises, None, CLAIM).passed, "without a law only pairs are looked at"


@pytest.mark.parametrize("shape", [(0, 5), (5, 1)])
def test_too_little_is_refused(shape):
    with pytest.raises(PrivacyError, match="expected runs of at least two places"):
        audit_structure(Noises(np.zeros(shape), str), LAW, CLAIM)


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
