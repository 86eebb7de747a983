"""Many users in lockstep are each what the per-event kernel makes of them."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError
from hushstream.learners.sparse import OwnSteps, SparseModel, SparseUCB, contexts_of
from hushstream.learners.sparse_population import NormalPrior, SparsePopulation

ARMS, CELLS, PLACES, USERS, ROUNDS = 4, 12, 3, 9, 6


def _played(covariance_of):
    """Scores of a population and of the per-event kernel, round by round."""
    rng = np.random.default_rng(4)
    means, variances = rng.normal(size=(ARMS, CELLS)), rng.uniform(0.2, 1.0, (ARMS, CELLS))
    model, kernel = SparseModel.of(means, variances, 0.4), SparseUCB(ARMS, CELLS, PLACES)
    population = SparsePopulation(NormalPrior.of(means, covariance_of(variances), 0.4), USERS, ROUNDS)
    own = [OwnSteps(CELLS) for _ in range(USERS)]
    for _ in range(ROUNDS):
        cells = np.array([rng.choice(CELLS, PLACES, replace=False) for _ in range(USERS)])
        values = rng.uniform(0, 1, (USERS, PLACES))
        dense = np.zeros((USERS, CELLS), dtype=np.float32)
        dense[np.arange(USERS)[:, None], cells] = values
        contexts = contexts_of(cells, values)
        yield (
            population.scores(dense),
            np.array([kernel.scores(model, own[u], contexts[u]).copy() for u in range(USERS)]),
        )
        arms, rewards = rng.integers(0, 2, USERS), rng.integers(0, 2, USERS).astype(np.float64)
        population.learn(dense, arms, rewards)
        for user in range(USERS):
            kernel.learn(model, own[user], contexts[user], int(arms[user]), float(rewards[user]))


def test_a_diagonal_prior_gives_the_scores_of_the_per_event_kernel():
    for together, single in _played(lambda variances: variances):
        assert together == pytest.approx(single, abs=1e-4)


def test_a_full_prior_with_a_diagonal_is_that_diagonal():
    for together, single in _played(lambda variances: np.stack([np.diag(row) for row in variances])):
        assert together == pytest.approx(single, abs=1e-4)


def test_impossible_priors_and_too_many_rounds_are_refused():
    with pytest.raises(LearnerError):
        NormalPrior.of(np.zeros((2, 3)), np.zeros((3, 2)), 1.0)
    population = SparsePopulation(NormalPrior.of(np.zeros((2, 3)), np.ones((2, 3)), 1.0), 1, 1)
    step = (np.ones((1, 3), dtype=np.float32), np.zeros(1, dtype=np.int64), np.zeros(1))
    population.learn(*step)
    with pytest.raises(LearnerError, match="at most 1 rounds"):
        population.learn(*step)
