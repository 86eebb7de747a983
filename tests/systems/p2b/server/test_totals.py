"""Totals are whole numbers in any order; models from noised sums are positive definite whatever the noise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.systems.p2b.server.estimate import (
    AggregationError,
    model_from_sums,
)
from hushstream.systems.p2b.server.totals import WindowTotals


def test_windows_add_up_with_their_variances():
    totals = WindowTotals(2, 3)
    rng = np.random.default_rng(3)
    windows = [rng.integers(-5, 50, (2, 2, 3)) for _ in range(4)]
    for ones, zeros in windows:
        totals.add(ones, zeros, 1.5, 100)
    assert np.array_equal(totals.ones, sum(window[0] for window in windows))
    assert np.array_equal(totals.zeros, sum(window[1] for window in windows))
    assert (totals.variance, totals.windows, totals.slots) == (6.0, 4, 400)
    assert WindowTotals.load(totals.dump()).dump() == totals.dump()


@pytest.mark.parametrize(
    ("ones", "variance", "slots"),
    [
        (np.zeros((3, 2), np.int64), 1.0, 1),
        (np.zeros((2, 3)), 1.0, 1),
        (np.zeros((2, 3), np.int64), -1.0, 1),
        (np.zeros((2, 3), np.int64), float("nan"), 1),
        (np.zeros((2, 3), np.int64), 1.0, -1),
        (np.full((2, 3), np.iinfo(np.int64).min), 1.0, 1),
    ],
)
def test_sums_that_do_not_fit_are_refused_and_change_nothing(ones, variance, slots):
    totals = WindowTotals(2, 3)
    before = totals.dump()
    with pytest.raises(AggregationError):
        totals.add(ones, np.zeros((2, 3), np.int64), variance, slots)
    assert totals.dump() == before


def test_damaged_dumps_are_refused():
    good = WindowTotals(2, 3).dump()
    for broken in (b"", good[:-1], good + b"\0", b"X" + good[1:]):
        with pytest.raises(AggregationError):
            WindowTotals.load(broken)


def test_exact_sums_give_linucb_on_centroids():
    rng = np.random.default_rng(1)
    centroids = rng.dirichlet(np.ones(4), 5)
    codes, arms, levels = rng.integers(0, 5, 300), rng.integers(0, 3, 300), rng.integers(0, 9, 300)
    ones, zeros = np.zeros((5, 3), np.int64), np.zeros((5, 3), np.int64)
    np.add.at(ones, (codes, arms), levels)
    np.add.at(zeros, (codes, arms), 8 - levels)
    sums = model_from_sums(ones, zeros, 8, 0.0, centroids, ridge=0.5)
    for arm in range(3):
        points = centroids[codes[arms == arm]]
        assert np.allclose(sums.gram[arm], 0.5 * np.eye(4) + points.T @ points)
        assert np.allclose(sums.moment[arm], levels[arms == arm] / 8 @ points)
    assert sums.observations == 300


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e6), st.integers(1, 256))
@settings(max_examples=100, deadline=None)
def test_the_gram_is_positive_definite_whatever_the_noise(seed, variance, levels):
    rng = np.random.default_rng(seed)
    ones, zeros = rng.integers(-10_000, 10_000, (2, 6, 3))
    sums = model_from_sums(ones, zeros, levels, variance, rng.dirichlet(np.ones(4), 6))
    assert np.linalg.eigvalsh(sums.gram).min() > 0.999
    assert np.array_equal(sums.gram, sums.gram.transpose(0, 2, 1))


def _cells(ones, zeros, levels, variance, ridge=1.0):
    """The gram's diagonal and the moment, (K, k) each, where each code is a coordinate of its own."""
    sums = model_from_sums(ones, zeros, levels, variance, np.eye(len(ones)), ridge)
    return np.einsum("kii->ki", sums.gram), sums.moment


def test_known_noise_takes_weight_from_small_cells_and_hardly_any_from_large_ones():
    ones, zeros = np.array([[5], [5000]]), np.array([[5], [5000]])
    gram, moment = _cells(ones, zeros, 1, 10.0)
    weights = (gram[0] - 1) / np.array([10, 10_000])
    assert np.allclose(weights, [10 / 50, 10_000 / 10_040])
    assert np.allclose(moment[0] / (gram[0] - 1), 0.5)


def test_units_of_levels_do_not_matter():
    fine = _cells(np.array([[128]]), np.array([[256]]), 64, 64.0**2 * 2.0)
    coarse = _cells(np.array([[2]]), np.array([[4]]), 1, 2.0)
    assert np.allclose(fine, coarse)


def _ridge(ones, zeros, variance, ridge=1.0):
    """The ridge that a model was made with: an empty cell's diagonal is nothing else."""
    ones, zeros = (np.vstack([part, [[0]]]) for part in (ones, zeros))
    return _cells(ones, zeros, 1, variance, ridge)[0][0, -1]


def test_without_noise_the_ridge_is_the_configured_one_however_rare_rewards_are():
    assert _ridge(np.array([[1]]), np.array([[10_000]]), 0.0, ridge=0.5) == 0.5


def test_frequent_rewards_leave_the_ridge_and_rare_ones_under_noise_raise_it():
    often = _ridge(np.full((50, 1), 50), np.full((50, 1), 50), 4.0)
    seldom = _ridge(np.full((50, 1), 1), np.full((50, 1), 99), 4.0)
    assert often == 1.0
    # m = .01 and one standard error, sqrt(51 * 4) / 5000; 5000 / 51 reports a cell.
    mean, average = 0.01 + np.sqrt(204) / 5000, 5000 / 51
    assert seldom == pytest.approx((average * mean * (1 - mean) + 4) / (mean * (average + 16)))
    assert seldom > 2.0


def test_where_noise_prevails_the_ridge_is_one_over_four_times_the_bound_on_the_mean():
    """2,000 cells of a million reports under noise of deviation 10^7: the mean is known well, a cell hardly."""
    ones, zeros = np.full((2000, 1), 20_000), np.full((2000, 1), 980_000)
    variance = 1e14
    mean = 0.02 + np.sqrt(2001 * variance) / 2e9
    assert _ridge(ones, zeros, variance) == pytest.approx(1 / (4 * mean), rel=1e-6)


def test_noise_that_hides_every_reward_bounds_the_ridge_by_its_own_size():
    """Totals below 0 say only that the mean lies within the noise: no more is shrunk than that allows."""
    seldom = _ridge(np.full((50, 1), -3), np.full((50, 1), 20), 9.0)
    assert 1.0 < seldom <= 850 / 4


@pytest.mark.parametrize(
    "changed",
    [
        {"ones": np.zeros((2, 3), np.int64)},
        {"ones": np.zeros((3, 2))},
        {"levels": 0},
        {"variance": -1.0},
        {"variance": float("nan")},
        {"ridge": 0.0},
        {"centroids": np.ones((2, 4))},
    ],
)
def test_sums_that_do_not_fit_are_refused(changed):
    zeros = np.zeros((3, 2), np.int64)
    arguments = {"ones": zeros, "zeros": zeros, "levels": 1, "variance": 0.0, "centroids": np.ones((3, 4))}
    with pytest.raises(AggregationError):
        model_from_sums(**(arguments | changed))
