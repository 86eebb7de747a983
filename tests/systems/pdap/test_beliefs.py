"""Beliefs on the tree are those of conditioning one joint normal vector."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.beliefs import posterior

PARENTS = (0, 0, 0, 1, 1, 2, 3, 3, 6)
DEPTHS = (0, 1, 1, 2, 2, 2, 3, 3, 4)
STEPS = (0.3, 0.2, 0.1, 0.05)
LEVELS = [
    (np.flatnonzero(np.array(DEPTHS) == depth), np.array(PARENTS)[np.array(DEPTHS) == depth]) for depth in range(5)
]


def covariance(root):
    """Prior covariance: the variance of the path that two cells share."""
    size = len(PARENTS)
    ways = []
    for row in range(size):
        way = {0}
        while row:
            way.add(row)
            row = PARENTS[row]
        ways.append(way)
    variance = [root if not depth else STEPS[depth - 1] for depth in DEPTHS]
    return np.array([[sum(variance[one] for one in ways[a] & ways[b]) for b in range(size)] for a in range(size)])


@pytest.mark.parametrize("seed", range(4))
def test_means_and_variances_are_those_of_the_joint_normal(seed):
    draws = np.random.default_rng(seed)
    precision = draws.gamma(1, 10, (len(PARENTS), 3)) * (draws.random((len(PARENTS), 3)) < 0.6)
    seen = draws.standard_normal((len(PARENTS), 3))
    mean, variance = posterior(LEVELS, precision, precision * seen, 0.7, STEPS)
    inverse = np.linalg.inv(covariance(0.7))
    for column in range(3):
        joint = np.linalg.inv(inverse + np.diag(precision[:, column]))
        assert np.allclose(mean[:, column], joint @ (precision[:, column] * seen[:, column]))
        assert np.allclose(variance[:, column], np.diag(joint))


def test_what_was_given_is_left_as_it_was():
    precision, weighted = np.ones((9, 1)), np.ones((9, 1))
    posterior(LEVELS, precision, weighted, 1.0, STEPS)
    assert (precision == 1).all()
    assert (weighted == 1).all()
