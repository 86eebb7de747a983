"""Estimates: blocks weigh by their known noise, arms lean on their vendor, and columns do not touch one another."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.estimate import Observed, believe, precisions, vendor_means
from hushstream.systems.pdap.configuration import EstimateConfig, steps_to

ROOT_ALONE = [(np.array([0]), np.array([0]))]
TWO_LEVELS = [(np.array([0]), np.array([0])), (np.array([1, 2]), np.array([0, 0]))]
TERMS = EstimateConfig()
OWNERS = np.repeat([0, 1], 3)


def observed(rows, arms, precision, means):
    return Observed(
        np.array(rows), np.array(arms), np.array(precision, float), np.array(precision) * np.array(means, float)
    )


EVERY = np.arange(6)


def believed(levels, seen, pool=EVERY, grand=0.5):
    return believe(levels, seen, pool, OWNERS, grand, TERMS, TERMS.arm_steps, TERMS.vendor_steps)


def test_a_block_weighs_by_scatter_and_noise():
    found = precisions(np.array([10, 40]), np.array([200.0, 0.0]), 0.2)
    assert found == pytest.approx([1 / (0.2 / 10 + 200 / 100), 40 / 0.2])


def test_nothing_released_leaves_every_arm_at_the_prior():
    found = believed(TWO_LEVELS, Observed.none())
    assert found.mean == pytest.approx(np.full((3, 6), 0.35))
    assert found.deviation[0] == pytest.approx(np.full(6, TERMS.arm_variance**0.5))
    assert found.deviation[1] == pytest.approx(np.full(6, (TERMS.arm_variance + TERMS.arm_steps[0]) ** 0.5))


def test_a_vendors_mean_is_the_normal_one_for_arms_that_scatter():
    seen = observed([0, 0, 0], [0, 1, 4], [100.0, 20.0, 50.0], [0.9, 0.6, 0.2])
    means, variances = (one[0] for one in vendor_means(ROOT_ALONE, 1, seen, OWNERS, 0.5, TERMS, TERMS.vendor_steps))
    weights = 1 / (TERMS.arm_spread + 1 / np.array([100.0, 20.0]))
    first = (0.35 / TERMS.vendor_variance + weights @ [0.9, 0.6]) / (1 / TERMS.vendor_variance + weights.sum())
    assert means[0] == pytest.approx(first)
    assert variances[0] == pytest.approx(1 / (1 / TERMS.vendor_variance + weights.sum()))
    assert means[1] < 0.35


def test_an_arm_nobody_showed_is_believed_to_be_as_its_vendors_others():
    seen = observed([0, 0, 0], [0, 1, 3], [500.0, 500.0, 500.0], [0.9, 0.8, 0.1])
    found = believed(ROOT_ALONE, seen).mean[0]
    assert found[2] > 0.55
    assert found[4] < 0.35
    assert found[0] == pytest.approx(0.9, abs=0.04)


def test_a_childs_blocks_tell_of_its_sibling_through_the_parent():
    found = believed(TWO_LEVELS, observed([1], [0], [1000.0], [0.9]))
    assert found.mean[1, 0] > found.mean[2, 0] > found.mean[2, 3]
    assert found.deviation[1, 0] < found.deviation[2, 0] < found.deviation[2, 3]


def test_arms_out_of_the_pool_still_tell_of_their_vendor():
    seen = observed([0, 0], [0, 1], [500.0, 500.0], [0.9, 0.9])
    with_others, alone = believed(ROOT_ALONE, seen, np.array([2])), believed(ROOT_ALONE, Observed.none(), np.array([2]))
    assert with_others.mean[0, 0] > alone.mean[0, 0] + 0.2


def test_pools_of_any_size_are_computed_alike():
    owners = np.repeat(np.arange(4), 150)
    draws = np.random.default_rng(0)
    seen = Observed.none().plus(
        Observed(
            draws.integers(0, 3, 900), draws.integers(0, 600, 900), draws.gamma(1, 50, 900), draws.gamma(1, 30, 900)
        )
    )
    whole = believe(TWO_LEVELS, seen, np.arange(600), owners, 0.4, TERMS, TERMS.arm_steps, TERMS.vendor_steps)
    part = believe(TWO_LEVELS, seen, np.array([599, 3, 256]), owners, 0.4, TERMS, TERMS.arm_steps, TERMS.vendor_steps)
    assert np.array_equal(part.mean, whole.mean[:, [599, 3, 256]])
    assert np.array_equal(part.deviation, whole.deviation[:, [599, 3, 256]])


def test_blocks_of_one_arm_and_cell_add_up():
    both = observed([0], [2], [10.0], [0.5]).plus(observed([0, 1], [2, 2], [30.0, 5.0], [0.9, 0.1]))
    assert both.rows.tolist() == [0, 1]
    assert both.precision.tolist() == [40.0, 5.0]
    assert both.weighted == pytest.approx([32.0, 0.5])


def test_steps_below_those_given_are_halves_of_halves():
    assert steps_to(5, (0.4, 0.2)) == (0.4, 0.2, 0.1, 0.05, 0.025)
    assert steps_to(1, (0.4, 0.2)) == (0.4,)
    assert steps_to(0, (0.4,)) == ()
