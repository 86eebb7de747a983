"""Tickets follow from a row alone, in proportion to how often an arm is the best of a draw."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom, norm

from hushstream.systems.pdap.algorithm.tickets import TICKETS, CellBeliefs, draw_tickets, rounded, ticket_counts

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
