"""Widths by the corrected lemma hold, and the corrections are needed."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest
from scipy.stats import chi2

from hushstream.learners.errors import LearnerError
from hushstream.systems.colin.algorithm.estimator import CollaborativeState
from hushstream.systems.colin.algorithm.lemma import (
    gaussian_norm,
    laplace_norm,
    raw_noise_width,
    reward_width,
)
from hushstream.systems.colin.algorithm.textbook import TextbookCollaborative
from hushstream.systems.colin.relation import Relation


def relation_of(users: int, seed: int) -> Relation:
    weights = np.random.default_rng(seed).random((users, users))
    return Relation("colin", weights / weights.sum(axis=0))


@pytest.mark.parametrize("ridge", [0.2, 1.0])
def test_the_estimate_stays_within_the_width_in_every_round(ridge):
    """Seeded. Each of the 10 runs may fail with probability 0.01 by the lemma; the largest ratio is checked to be
    above 0.2, so that a width of five times the error would not pass for a bound that was tested."""
    users, d, largest = 4, 3, 0.0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        relation = relation_of(users, seed)
        truth = rng.random(users * d)
        truth /= np.linalg.norm(truth) * 2
        state, counts = TextbookCollaborative(relation, d, ridge), [0] * users
        for event in range(300):
            user, features = event % users, np.abs(rng.standard_normal(d))
            features /= np.linalg.norm(features)
            chance = float(state.project(user, features) @ truth)
            state.learn(user, features, float(rng.random() < chance))
            counts[user] += 1
            off = state.theta().ravel() - truth
            width = reward_width(relation, d, counts, ridge=ridge, delta=0.01, parameter_norm=0.5)
            largest = max(largest, sqrt(off @ state.gram @ off) / width)
    assert 0.2 < largest <= 1.0


def test_the_width_covers_the_determinant():
    relation, rng = relation_of(5, 1), np.random.default_rng(2)
    state, counts = TextbookCollaborative(relation, 3, 0.5), [0] * 5
    for _ in range(200):
        user, features = int(rng.integers(5)), rng.standard_normal(3)
        state.observe(user, 2 * features / np.linalg.norm(features))
        counts[user] += 1
    exact = np.linalg.slogdet(state.gram / 0.5)[1]
    width = reward_width(relation, 3, counts, ridge=0.5, delta=0.1, norm=2.0, deviation=1.0, parameter_norm=1.0)
    assert width >= sqrt(exact + 2 * log(10)) + sqrt(0.5)
    shorter = reward_width(relation, 3, counts, ridge=0.5, delta=0.1, norm=1.0, deviation=1.0, parameter_norm=1.0)
    assert shorter < width


def test_noise_moves_an_estimate_by_no_more_than_its_width():
    relation, rng, ridge = relation_of(4, 3), np.random.default_rng(4), 0.25
    state = TextbookCollaborative(relation, 2, ridge)
    for event in range(50):
        state.observe(event % 4, rng.standard_normal(2))
    inverse = np.linalg.inv(state.gram)
    for _ in range(200):
        noise = rng.standard_normal((4, 2))
        projected = (relation.matrix.T @ noise).ravel()
        length = float(np.linalg.norm(noise))
        assert sqrt(projected @ inverse @ projected) <= raw_noise_width(relation, length, ridge)


def test_widths_of_noise_are_met_before_anything_is_observed_and_the_papers_is_exceeded_below_ridge_one():
    relation, ridge = relation_of(4, 3), 0.25
    worst = np.linalg.svd(relation.matrix.T)[2][0]
    state = CollaborativeState(relation, 1, ridge)
    state.set_moment(worst[:, None])
    moved = sqrt(float(worst @ state.parameters().ravel()))
    assert moved == pytest.approx(raw_noise_width(relation, 1.0, ridge), rel=1e-12)
    # The paper's bound is the length of the noise itself, here 1.
    textbook = TextbookCollaborative(relation, 1, ridge)
    assert sqrt(float(np.linalg.inv(textbook.gram)[0, 0])) == pytest.approx(2.0)


@pytest.mark.parametrize("coordinates", [1, 25, 250])
@pytest.mark.parametrize("delta", [0.1, 1e-6])
def test_gaussian_noise_is_within_its_norm(coordinates, delta):
    beyond = chi2.sf((gaussian_norm(1.0, coordinates, delta)) ** 2, coordinates)
    assert beyond <= delta
    # Without the mean it would not be: a bound that leaves out sqrt(m) fails.
    if coordinates == 250:
        assert chi2.sf(2 * log(1 / delta), coordinates) > delta
    assert gaussian_norm(3.0, coordinates, delta) == pytest.approx(3 * gaussian_norm(1.0, coordinates, delta))


def test_laplace_noise_is_within_its_norm_and_not_within_that_of_one_coordinate():
    """Seeded: 2,000 draws of 50 coordinates. The bound may be exceeded by one draw in ten; that of one coordinate,
    which the paper takes for the norm, is exceeded by most."""
    draws = np.random.default_rng(5).laplace(scale=3.0, size=(2000, 50, 8)).sum(axis=2)
    norms = np.linalg.norm(draws, axis=1)
    assert np.mean(norms > laplace_norm(3.0, 8, 50, 0.1)) <= 0.1
    assert np.mean(norms > laplace_norm(3.0, 8, 1, 0.1)) > 0.5


def test_the_inequalities_behind_the_laplace_norm_hold():
    for scale in (0.3, 1.0, 40.0):
        tilt = np.linspace(1e-3, 1 / sqrt(2), 200) / scale
        continuous = 1 / (1 - (tilt * scale) ** 2)
        discrete = 1 / (1 - np.sinh(tilt / 2) ** 2 / np.sinh(1 / (2 * scale)) ** 2)
        assert (continuous <= np.exp(2 * (tilt * scale) ** 2)).all()
        assert (discrete <= continuous * (1 + 1e-12)).all()
        integers = np.arange(-4000, 4001)
        mass = np.exp(-np.abs(integers) / scale)
        summed = [float(np.exp(h * integers - np.abs(integers) / scale).sum() / mass.sum()) for h in tilt[::50]]
        assert np.allclose(summed, discrete[::50], rtol=1e-9)


def test_values_out_of_range_are_refused():
    relation = relation_of(3, 0)
    with pytest.raises(LearnerError, match="finite ridge above 0, got 0"):
        raw_noise_width(relation, 1.0, 0.0)
    with pytest.raises(LearnerError, match="finite ridge above 0, got nan"):
        raw_noise_width(relation, 1.0, float("nan"))
    with pytest.raises(LearnerError, match=r"probability in \(0, 1\), got 1"):
        gaussian_norm(1.0, 2, 1.0)
    with pytest.raises(LearnerError, match="3 counts"):
        reward_width(relation, 2, [1, 2], ridge=1.0, delta=0.1)
    with pytest.raises(LearnerError, match="finite norm above 0, got inf"):
        reward_width(relation, 2, [1, 2, 3], ridge=1.0, delta=0.1, norm=float("inf"))
