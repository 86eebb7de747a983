"""The ridge that known noise asks for: its formula, and that the noise it goes by is the one on projected sums."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.learners.errors import LearnerError
from hushstream.systems.colin.relation import Relation, SocialGraph
from hushstream.systems.colin.ridge_rule import noise_aware_ridge, projected_deviation

TIES = SocialGraph.of_edges([("a", "b", 1.0), ("b", "c", 2.0), ("c", "d", 0.5)])


def test_without_noise_it_is_one_and_it_grows_by_the_factor():
    assert noise_aware_ridge(0.0, 3.0) == 1.0
    assert noise_aware_ridge(16.0, 3.0) == 49.0
    assert noise_aware_ridge(16.0, 0.0) == 1.0


@pytest.mark.parametrize("algorithm", ["linucb", "colin", "goblin"])
def test_the_deviation_is_that_of_raw_noise_after_projection(algorithm):
    """Seeded: 40,000 draws, of which the mean square has a relative standard error of at most 0.7 % (4 coordinates
    that need not be independent): 3 % are four of them (false alarm below 1e-4, once and for all), and a transposed
    or forgotten matrix is off by more (asserted)."""
    relation = Relation.of(TIES, algorithm)
    noise = 5.0 * np.random.default_rng(1).standard_normal((40_000, 4))
    measured = float(np.sqrt(np.mean(np.square(noise @ relation.matrix))))
    assert projected_deviation(relation, 5.0) == pytest.approx(measured, rel=0.03)
    if algorithm != "linucb":
        assert abs(5.0 / measured - 1) > 0.06


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_noise_that_is_no_size_is_refused(wrong):
    with pytest.raises(LearnerError, match="ridge: expected a finite noise of at least 0"):
        noise_aware_ridge(wrong, 3.0)
    with pytest.raises(LearnerError, match="ridge: expected a finite per_noise of at least 0"):
        noise_aware_ridge(1.0, wrong)
