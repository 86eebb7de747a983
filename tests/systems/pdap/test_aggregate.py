"""The aggregator: a model follows from releases alone, version by version, and only what changed is sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.algorithm.outcomes import Release
from hushstream.systems.pdap.algorithm.pool import FLOOR
from hushstream.systems.pdap.cells import ROOT, PdapError

EMPTY = np.zeros(0, dtype=np.int64)


def release(cells=(), arms=(), counts=(), sums=(), outcomes=0):
    columns = (np.array(column, dtype=np.int64) for column in (cells, arms, counts, sums))
    return Release(0, Blocks(*columns), EMPTY, EMPTY, outcomes)


def test_the_same_releases_give_the_same_versions(pdap):
    run = pdap.Deployment(pdap.config(first_window=200))
    for _ in range(6):
        run.window()
    again = Aggregate(run.config)
    updates = [again.publish()]
    for one in run.releases:
        again.fold(one)
        updates.append(again.publish())
    for mine, theirs in zip(run.updates, updates, strict=True):
        for name in ("version", "opened", "changed", "tickets", "pool"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name))


def test_the_first_version_opens_the_root_and_shares_tickets_among_the_first_arms(pdap):
    settings = pdap.config(vendors=4, arms=100)
    first = Aggregate(settings).publish()
    assert (first.version, first.opened.tolist(), first.changed.tolist(), first.pool) == (0, [ROOT], [0], 12)
    # 256 tickets over 12 equal arms: fewer than 9 of one has probability 5e-4 at most, and the coins are fixed.
    _, counts = np.unique(first.tickets, return_counts=True)
    assert len(counts) == 12
    assert counts.min() >= 5


def test_a_row_whose_beliefs_did_not_change_is_not_sent_again(pdap):
    aggregate = Aggregate(pdap.config())
    aggregate.publish()
    assert len(aggregate.publish().changed) == 0
    aggregate.fold(release([ROOT], [1], [50], [40], 50))
    assert aggregate.publish().changed.tolist() == [0]


def test_the_better_arm_gets_more_tickets_and_in_the_end_all(pdap):
    aggregate = Aggregate(pdap.config(arms=5))
    aggregate.fold(release([ROOT] * 10, range(10), [200] * 10, [180 if arm == 4 else 40 for arm in range(10)], 2000))
    tickets = aggregate.publish().tickets[0]
    assert (tickets == 4).sum() > 200
    assert (aggregate.publish(greedy=True).tickets == 4).all()
    assert aggregate.best().tolist() == [4]


def test_noise_from_far_out_moves_a_belief_no_further_than_its_slope_allows(pdap):
    def mean(total, epsilon):
        aggregate = Aggregate(pdap.config(arms=5, epsilon=epsilon))
        aggregate.fold(release([ROOT], [4], [30], [total], 30))
        found = aggregate.beliefs()
        return float(found.mean[0, found.pool.tolist().index(4)])

    assert mean(60, 0.1) == mean(90, 0.1)
    assert mean(60, 0.1) > mean(20, 0.1) > mean(0, 0.1)
    # Where noise is next to nothing, the mean counts as it is.
    assert mean(30, 20.0) > mean(29, 20.0) > mean(20, 20.0)


def test_a_retired_arm_has_no_ticket_from_the_next_version_on_and_comes_back(pdap):
    aggregate = Aggregate(pdap.config(arms=5))
    before = set(aggregate.publish().tickets[0].tolist())
    first, others = min(before), set(range(10)) - {min(before)}
    assert all(aggregate.change(arm, offered=False) for arm in others)
    assert set(aggregate.publish().tickets[0].tolist()) == {first}
    assert not aggregate.change(first, offered=True), "it is offered already"
    assert aggregate.change(first, offered=False)
    assert aggregate.publish().pool == 0, "nothing is offered, and no ticket stands for an arm"
    assert aggregate.change(first, offered=True)
    assert all(aggregate.change(arm, offered=True) for arm in others)
    assert set(aggregate.publish().tickets[0].tolist()) == before


def test_what_was_released_of_a_retired_arm_is_known_when_it_is_offered_again(pdap):
    aggregate = Aggregate(pdap.config(arms=5, epsilon=20.0))
    aggregate.fold(release([ROOT], [4], [200], [190], 200))
    aggregate.change(4, offered=False)
    assert 4 not in aggregate.publish().tickets
    aggregate.fold(release([ROOT], [4], [100], [95], 100))
    aggregate.change(4, offered=True)
    assert (aggregate.publish().tickets == 4).sum() > 200


def named(config, arms):
    return replace(config, vendors=tuple(replace(vendor, arms=arms, named=True) for vendor in config.vendors))


def test_an_arm_that_comes_later_is_tried_once_it_is_offered_however_small_the_pool_is(pdap):
    aggregate = Aggregate(named(pdap.config(arms=5), 100))
    assert len(aggregate.pool) == 0
    assert all(aggregate.change(arm, offered=True) for arm in range(190))
    assert len(aggregate.pool) == FLOOR, "those of the beginning are tried as decisions grow in number"
    before = aggregate.pool.tolist()
    aggregate.fold(release(outcomes=1))
    assert aggregate.change(199, offered=True)
    assert aggregate.pool.tolist() == [*before, 199]
    # Nothing was released of any arm, so all of the pool have tickets in turn.
    assert 199 in aggregate.publish().tickets
    aggregate.change(199, offered=False)
    assert aggregate.pool.tolist() == before
    aggregate.change(199, offered=True)
    aggregate.change(before[0], offered=False)
    assert aggregate.pool.tolist()[-1] == 199
    aggregate.change(before[0], offered=True)
    assert aggregate.pool.tolist() == [*before, 199], "who was there before has the place that it had"


def test_named_items_offered_at_once_give_the_models_of_numbered_ones(pdap):
    """The model is a function of what is offered and of releases: names change nothing of it."""
    plain = pdap.config(arms=5)
    numbered, by_name = Aggregate(plain), Aggregate(named(plain, 5))
    by_name._order = numbered._order  # It follows from the digest, which differs.
    assert all(by_name.change(arm, offered=True) for arm in range(10))
    for _ in range(2):
        one, other = numbered.publish(), by_name.publish()
        assert np.array_equal(one.tickets, other.tickets)
        for aggregate in (numbered, by_name):
            aggregate.fold(release([ROOT] * 2, [1, 4], [50, 40], [40, 2], 90))


@pytest.mark.parametrize("arm", [20, -1])
def test_an_arm_that_is_not_there_is_no_change(pdap, arm):
    with pytest.raises(PdapError, match="arm: expected one from 0 to 19"):
        Aggregate(pdap.config()).change(arm, offered=False)


def test_a_block_of_a_cell_beyond_the_grid_is_refused(pdap):
    with pytest.raises(PdapError, match="levels from 0 to 3"):
        Aggregate(pdap.config()).fold(release([9 << 57], [0], [10], [1], 10))


def test_counters_of_several_homes_add_up_to_one_model(pdap):
    settings = pdap.config(placement="home")
    shared, split = Aggregate(settings), Aggregate(settings)
    shared.fold(release([ROOT, ROOT], [1, 1], [50, 50], [40, 44], 100))
    for total in (40, 44):
        split.fold(replace(release([ROOT], [1], [50], [total]), outcomes=50))
    assert shared.decisions == split.decisions == 100
    assert split.grand_mean == shared.grand_mean == 0.84


def test_a_vendor_that_keeps_to_itself_shows_its_own_arms_alone(pdap):
    own = np.arange(10)
    assert set(Aggregate(pdap.config(), own).publish().tickets[0].tolist()) <= set(own.tolist())
