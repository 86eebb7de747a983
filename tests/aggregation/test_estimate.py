"""Models from noised sums: LinUCB where there is no noise, positive definite whatever the noise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushstream.aggregation.errors import AggregationError
from hushstream.aggregation.estimate import model_from_sums, onehot_from_sums


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


def test_one_hot_sums_are_the_diagonal_of_the_same_model():
    rng = np.random.default_rng(2)
    ones, zeros = rng.integers(-20, 60, (5, 3)), rng.integers(-20, 60, (5, 3))
    wide = model_from_sums(ones, zeros, 2, 6.0, np.eye(5), ridge=0.5)
    table = onehot_from_sums(ones, zeros, 2, 6.0, ridge=0.5)
    assert np.allclose(np.einsum("kii->ki", wide.gram), table.gram)
    assert np.allclose(wide.moment, table.moment)
    assert np.isclose(wide.observations, table.observations)


@given(st.integers(0, 2**32 - 1), st.floats(0, 1e6), st.integers(1, 256))
@settings(max_examples=100, deadline=None)
def test_the_gram_is_positive_definite_whatever_the_noise(seed, variance, levels):
    rng = np.random.default_rng(seed)
    ones, zeros = rng.integers(-10_000, 10_000, (2, 6, 3))
    sums = model_from_sums(ones, zeros, levels, variance, rng.dirichlet(np.ones(4), 6))
    assert np.linalg.eigvalsh(sums.gram).min() > 0.999
    assert np.array_equal(sums.gram, sums.gram.transpose(0, 2, 1))
    assert (onehot_from_sums(ones, zeros, levels, variance).gram >= 1.0).all()


def test_known_noise_takes_weight_from_small_cells_and_hardly_any_from_large_ones():
    ones, zeros = np.array([[5], [5000]]), np.array([[5], [5000]])
    table = onehot_from_sums(ones, zeros, 1, 10.0)
    weights = (table.gram[0] - 1) / np.array([10, 10_000])
    assert np.allclose(weights, [10 / 50, 10_000 / 10_040])
    assert np.allclose(table.moment[0] / (table.gram[0] - 1), 0.5)


def test_units_of_levels_do_not_matter():
    fine = onehot_from_sums(np.array([[128]]), np.array([[256]]), 64, 64.0**2 * 2.0)
    coarse = onehot_from_sums(np.array([[2]]), np.array([[4]]), 1, 2.0)
    assert np.allclose(fine.gram, coarse.gram)
    assert np.allclose(fine.moment, coarse.moment)


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
