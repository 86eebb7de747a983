"""From noised blocks to tickets: estimates, beliefs on the tree, which arms are in the pool, and what a ticket says."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from hushstream.systems.pdap.algorithm.aggregate import (
    TICKETS,
    CellBeliefs,
    Observed,
    believe,
    draw_tickets,
    permutation,
    pool_size,
    posterior,
    precisions,
    rounded,
    ticket_counts,
    vendor_means,
)
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


POOL = np.array([7, 3, 11])


def drawn(mu, sd, pool=POOL, temper=1.0, cell=0, vendor_deviation=(0.0,), owners=None):
    rows = [rounded(np.asarray(row, float)) for row in (mu, sd, vendor_deviation)]
    owned = np.zeros(len(pool), dtype=np.int64) if owners is None else np.array(owners)
    beliefs = CellBeliefs(cell, pool, owned, *rows, temper)
    return draw_tickets(beliefs, beliefs.digest())


def test_the_same_row_has_the_same_tickets_and_any_other_row_others():
    base = {"mu": [0.5, 0.5, 0.5], "sd": [0.1, 0.1, 0.1]}
    assert np.array_equal(drawn(**base), drawn(**base))
    wide = np.arange(40)
    rows = [
        drawn(np.full(40, 0.5), np.full(40, 0.1), wide, cell=cell, temper=temper)
        for cell, temper in ((0, 1.0), (1 << 57, 1.0), (0, 0.5))
    ]
    assert len({row.tobytes() for row in rows}) == 3


def test_without_temper_every_ticket_is_the_best_arms():
    assert (drawn([0.5, 0.6, 0.4], [9.0, 0.0, 9.0], temper=0.0) == 3).all()


def test_of_two_arms_each_wins_as_often_as_its_draw_is_larger():
    # The number of tickets is binomial; the bounds leave out 1e-9 on either side. Deviations of twice the size, or
    # untempered ones, would give .69 in place of .84 of the tickets, 9 standard errors away.
    mu, sd, temper = [0.6, 0.5], [0.1, 0.1], 0.7071
    chance = norm.cdf(0.1 / (temper * 0.1 * 2**0.5))
    wins = int((drawn(mu, sd, POOL[:2], temper) == 7).sum())
    assert binom.ppf(1e-9, TICKETS, chance) <= wins <= binom.ppf(1 - 1e-9, TICKETS, chance)


def test_a_vendors_doubt_moves_all_its_arms_together():
    # Two vendors of twenty equal arms each, and no other doubt: in each ticket one vendor's draw decides. Vendors win
    # as often as each other; the bounds leave out 1e-9 on either side.
    pool, owners = np.arange(40), np.repeat([0, 1], 20)
    tickets = drawn(np.full(40, 0.5), np.zeros(40), pool, vendor_deviation=(0.1, 0.1), owners=owners)
    # Among equals the first wins, so one arm of each vendor has tickets.
    assert set(tickets.tolist()) == {0, 20}
    wins = int((tickets == 0).sum())
    assert binom.ppf(1e-9, TICKETS, 0.5) <= wins <= binom.ppf(1 - 1e-9, TICKETS, 0.5)


def test_a_vendor_that_is_doubted_is_tried_though_its_mean_is_low():
    mu, sd, owners = [0.5, 0.2, 0.2], [0.01] * 3, [0, 1, 1]
    assert (drawn(mu, sd, vendor_deviation=(0.01, 0.01), owners=owners) == 7).all()
    assert (drawn(mu, sd, vendor_deviation=(0.01, 0.3), owners=owners) != 7).sum() > 10


def test_counts_are_of_each_tickets_own_arm():
    rows = np.stack([drawn([0.5, 0.5, 0.5], [0.1, 0.2, 0.1], cell=cell) for cell in range(3)])
    counts = ticket_counts(rows)
    for row, count in zip(rows, counts, strict=True):
        assert count.tolist() == [(row == arm).sum() for arm in row]
    assert ticket_counts(np.zeros((0, TICKETS), dtype=np.int64)).shape == (0, TICKETS)


def test_beliefs_are_rounded_to_the_grid_exactly():
    assert rounded(np.array([1 / 3])).tolist() == [5461 / 16384]
    assert rounded(np.array([-0.25])).tolist() == [-0.25]


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
