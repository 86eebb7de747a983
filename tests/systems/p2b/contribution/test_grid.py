"""The grid of contexts: all of it, only it, and rounding onto it by largest remainders."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.systems.p2b.contribution.errors import ContributionError
from hushstream.systems.p2b.contribution.grid import grid_points, grid_size, grid_units, normalise_grid


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
