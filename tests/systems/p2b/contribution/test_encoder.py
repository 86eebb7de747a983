"""Contexts on their grid, and the encoder: exact nearest-centroid search in whole numbers."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.systems.p2b.codebook import (
    CENTROID_STEPS,
    Encoder,
    fit_grid,
    grid_points,
    grid_size,
    grid_units,
    normalise_grid,
)
from hushstream.systems.p2b.slots import ContributionError


def nearest(lattice, units, digits):
    """The lowest code at the least squared distance, in unlimited integers."""
    distances = [
        sum((u * CENTROID_STEPS - 10**digits * c) ** 2 for u, c in zip(units, centroid, strict=True))
        for centroid in lattice
    ]
    return distances.index(min(distances))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_codes_are_the_exact_nearest_centroids(data):
    digits = data.draw(st.integers(1, 5))
    dimension = data.draw(st.integers(1, 6))
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    # Coarse centroids give many equal distances, fine ones use the whole range of the sums.
    centroids = rng.dirichlet(np.ones(dimension), 7)
    if data.draw(st.booleans()):
        centroids = np.rint(centroids * 4) / 4
    encoder = Encoder(centroids, digits)
    units = rng.multinomial(10**digits, np.ones(dimension) / dimension, size=20)
    codes = encoder.encode(units)
    lattice = encoder.lattice.tolist()
    assert codes.tolist() == [nearest(lattice, row, digits) for row in units.tolist()]


def test_equal_distances_go_to_the_lowest_code():
    encoder = Encoder(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), 1)
    assert encoder.encode(np.array([[0.5, 0.5], [0.1, 0.9]])).tolist() == [0, 1]


def test_one_context_gets_the_code_that_it_gets_among_many():
    encoder = fit_grid(4, 1, 9, seed=1)
    contexts = np.random.default_rng(2).dirichlet(np.ones(4), 5000).astype(np.float32)
    codes = encoder.encode(contexts)
    assert codes.dtype == np.int32
    assert [int(encoder.encode(x[None])[0]) for x in contexts[::500]] == codes[::500].tolist()


def test_centroids_are_kept_exactly_and_define_the_encoder():
    encoder = fit_grid(5, 1, 12, seed=3)
    again = Encoder(encoder.centroids, 1)
    assert np.array_equal(again.lattice, encoder.lattice)
    assert np.array_equal(encoder.centroids * CENTROID_STEPS, encoder.lattice)


@pytest.mark.parametrize("codes", [8, 100])
def test_a_fit_is_repeatable_and_uses_its_codes(codes):
    first, second = fit_grid(6, 1, codes, seed=4), fit_grid(6, 1, codes, seed=4)
    assert np.array_equal(first.lattice, second.lattice)
    assert first.codes == codes
    used = np.bincount(first.encode(grid_points(6, 1)), minlength=codes)
    assert (used > 0).mean() > 0.9
    assert np.array_equal(first.lattice, first.lattice[np.lexsort(first.lattice.T[::-1])])


def test_fitting_brings_codes_near_their_contexts():
    points = grid_points(6, 1)
    encoder = fit_grid(6, 1, 32, seed=5)
    spread = ((points / 10 - 1 / 6) ** 2).sum(axis=1).mean()
    left = ((points / 10 - encoder.centroids[encoder.encode(points)]) ** 2).sum(axis=1).mean()
    assert left < 0.45 * spread


@pytest.mark.parametrize(
    ("centroids", "digits"),
    [
        (np.zeros(3), 1),
        (np.zeros((0, 3)), 1),
        (np.full((2, 2), np.nan), 1),
        (np.ones((2, 2)), 9),
        (np.full((2, 2), 1000.0), 5),
    ],
)
def test_encoders_outside_the_exact_range_are_refused(centroids, digits):
    with pytest.raises(ContributionError):
        Encoder(centroids, digits)


def test_more_codes_than_grid_points_are_refused():
    with pytest.raises(ContributionError, match="1 to 66 codes"):
        fit_grid(3, 1, 67, seed=0)


@pytest.mark.parametrize(("dimension", "size"), [(3, 66), (10, 92_378), (20, 20_030_010)])
def test_sizes_are_those_of_the_paper(dimension, size):
    assert grid_size(dimension, 1) == size


@pytest.mark.parametrize(("dimension", "digits"), [(1, 1), (2, 2), (3, 1), (5, 1), (10, 1)])
def test_a_small_grid_is_enumerated_completely_and_once(dimension, digits):
    points = grid_points(dimension, digits)
    assert len(points) == grid_size(dimension, digits)
    assert len(np.unique(points, axis=0)) == len(points)
    assert points.min() >= 0
    assert (points.sum(axis=1) == 10**digits).all()


def test_a_large_grid_is_sampled_uniformly_and_again_alike():
    points = grid_points(20, 1, sample=4000, seed=3)
    assert points.shape == (4000, 20)
    assert points.min() >= 0
    assert (points.sum(axis=1) == 10).all()
    assert np.array_equal(points, grid_points(20, 1, sample=4000, seed=3))
    # Mean of an entry over uniform points is 1/2, its standard deviation 0.73: six standard errors.
    assert np.abs(points.mean(axis=0) - 0.5).max() < 6 * 0.73 / math.sqrt(4000)
    # An entry is zero in C(28, 18)/C(29, 19) of all points, which is 19/29.
    share = (points == 0).mean()
    assert abs(share - 19 / 29) < 6 * 0.5 / math.sqrt(4000 * 20 / 4)


histograms = st.lists(st.integers(0, 1000), min_size=1, max_size=12).filter(any)


@given(histograms, st.integers(1, 3))
@settings(max_examples=200, deadline=None)
def test_rounding_is_by_largest_remainder(weights, digits):
    units = grid_units(np.array([weights], dtype=np.float64), digits)[0]
    total = sum(weights)
    exact = [Fraction(weight * 10**digits, total) for weight in weights]
    assert sum(units) == 10**digits
    for unit, share in zip(units.tolist(), exact, strict=True):
        assert math.floor(share - Fraction(1, 4096)) <= unit <= math.ceil(share + Fraction(1, 4096))
    up = [share - math.floor(share) for unit, share in zip(units.tolist(), exact, strict=True) if unit > share]
    down = [share - math.floor(share) for unit, share in zip(units.tolist(), exact, strict=True) if unit < share]
    if up and down:
        assert min(up) >= max(down) - Fraction(1, 2048)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_grid_point_sent_as_float32_is_itself_again(data):
    digits = data.draw(st.integers(1, 4))
    cuts = sorted(data.draw(st.lists(st.integers(0, 10**digits), min_size=1, max_size=9)))
    units = np.diff([0, *cuts, 10**digits])
    sent = (units / 10.0**digits).astype(np.float32)
    assert np.array_equal(grid_units(sent[None, :], digits)[0], units)
    assert np.array_equal(normalise_grid(sent[None, :], digits)[0], sent)


def test_equal_remainders_go_to_the_lower_index():
    assert grid_units(np.ones((1, 4)), 1).tolist() == [[3, 3, 2, 2]]


@pytest.mark.parametrize(
    "contexts",
    [
        np.zeros((1, 3)),
        np.array([[1.0, -0.1]]),
        np.array([[np.nan, 1.0]]),
        np.array([[np.inf, 1.0]]),
        np.ones(3),
    ],
)
def test_what_is_no_histogram_is_refused(contexts):
    with pytest.raises(ContributionError):
        grid_units(contexts, 1)


@pytest.mark.parametrize(("dimension", "digits"), [(0, 1), (3, 0), (3, 6), (5000, 1)])
def test_impossible_grids_are_refused(dimension, digits):
    with pytest.raises(ContributionError, match="dimensions"):
        grid_size(dimension, digits)
