"""The pool grows with decisions and never beyond what blocks can tell apart."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.pool import permutation, pool_size


@pytest.mark.parametrize(
    ("decisions", "least", "size"),
    [(0, 3, 12), (500, 3, 16), (200_000, 3, 1341), (200_000, 30, 666), (200_000, 300, 66), (10**9, 3, 4000)],
)
def test_sizes_of_four_thousand_arms(decisions, least, size):
    assert pool_size(4000, decisions, least) == size


def test_fewer_arms_than_the_floor_are_all_shown():
    assert pool_size(5, 0, 30) == 5


def test_the_order_is_public_and_holds_every_arm_once():
    first, again, other = permutation(500, b"one"), permutation(500, b"one"), permutation(500, b"two")
    assert np.array_equal(first, again)
    assert sorted(first.tolist()) == list(range(500))
    assert (first == other).mean() < 0.1
