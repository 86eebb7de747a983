"""Serving: every answer stands by itself, can be given again, and says how likely it was."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from hushstream.privacy.keys import seeded_key
from hushstream.systems.pdap.algorithm.serving import Serving, TicketNumbers
from hushstream.systems.pdap.cells import PdapError


@pytest.fixture(scope="module")
def served(pdap):
    run = pdap.Deployment(pdap.config(first_window=300))
    for _ in range(5):
        run.window()
    return run


def asked(count):
    contexts = np.random.default_rng(5).random((count, 2)).astype(np.float32)
    contexts[0] = 1.0
    return contexts, [b"user %d" % place for place in range(count)], [b"%d" % place for place in range(count)]


@pytest.mark.parametrize("batch", [1, 7, 256])
def test_batches_of_any_size_give_the_same_answers(served, batch):
    contexts, users, rounds = asked(300)
    whole = served.serving.choose(contexts, users, rounds)
    for begin in range(0, 300, batch):
        part = slice(begin, begin + batch)
        found = served.serving.choose(contexts[part], users[part], rounds[part])
        for name in ("arms", "propensities", "cells", "arrivals", "tickets"):
            assert np.array_equal(getattr(found, name), getattr(whole, name)[part])


def test_the_propensity_is_the_share_of_tickets_with_that_arm(served):
    contexts = np.repeat(asked(1)[0], 256, axis=0)
    found = served.serving.answer(contexts, np.arange(256, dtype=np.uint8))
    for arm, propensity in zip(found.arms, found.propensities, strict=True):
        assert propensity == (found.arms == arm).sum()


def test_the_serving_cell_is_open_and_the_arrival_one_level_below(served):
    contexts, users, rounds = asked(300)
    found = served.serving.choose(contexts, users, rounds)
    open_cells = set(served.aggregate.partition.cells)
    assert len(open_cells) > 4
    assert set(found.cells.tolist()) <= open_cells
    grid = served.config.grid
    for cell, arrival in zip(found.cells.tolist(), found.arrivals.tolist(), strict=True):
        assert arrival == cell if cell >> 57 == grid.levels else grid.parent(arrival) == cell


def test_tickets_are_a_keyed_function_of_user_and_event():
    numbers, other = TicketNumbers(seeded_key(0, "edge")), TicketNumbers(seeded_key(1, "edge"))
    users, events = [b"a"] * 64 + [b"b"] * 64, [b"%d" % place for place in range(64)] * 2
    first = numbers(users, events)
    assert np.array_equal(first, numbers(users, events))
    assert not np.array_equal(first[:64], first[64:])
    assert not np.array_equal(first, other(users, events))
    # The end of a user's name cannot stand for the beginning of an event's.
    assert not np.array_equal(numbers([b"ab"] * 64, events[:64]), numbers([b"a"] * 64, [b"b" + e for e in events[:64]]))


def test_tickets_are_even():
    # A fixed key: the outcome is fixed. Of random keys one in a million would fail.
    drawn = TicketNumbers(seeded_key(0, "edge"))([b"%d" % place for place in range(25_600)], [b"3"] * 25_600)
    assert chisquare(np.bincount(drawn, minlength=256)).pvalue > 1e-6


def test_a_version_that_is_not_the_next_or_leaves_a_row_out_is_refused(served):
    fresh = Serving(served.config.grid, seeded_key(0, "edge"))
    with pytest.raises(PdapError, match="expected a model, got none"):
        fresh.choose(*asked(1))
    with pytest.raises(PdapError, match="expected version 0, got 1"):
        fresh.apply(served.updates[1])
    fresh.apply(served.updates[0])
    from dataclasses import replace

    opening = next(update for update in served.updates[1:] if len(update.opened))
    damaged = replace(opening, version=1, changed=opening.changed[:-1], tickets=opening.tickets[:-1])
    with pytest.raises(PdapError, match="tickets for each changed and each opened row"):
        fresh.apply(damaged)


def test_a_context_that_cannot_be_is_refused(served):
    with pytest.raises(PdapError, match="entries from 0 to 1"):
        served.serving.choose(np.full((1, 2), np.nan, dtype=np.float32), [b"u"], [b"0"])


def test_one_answer_at_a_time_is_that_of_the_batch(served):
    contexts, users, events = asked(300)
    whole = served.serving.choose(contexts, users, events)
    paths = served.config.grid.paths(contexts).tolist()
    for place in range(300):
        one = served.serving.one(paths[place], users[place], events[place])
        columns = (whole.arms, whole.propensities, whole.cells, whole.arrivals, whole.tickets)
        assert tuple(one) == tuple(int(column[place]) for column in columns)


def test_only_eligible_arms_are_shown_each_as_often_as_it_says(served):
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    eligible[[1, 4, 7]] = True
    path = int(served.config.grid.paths(np.full((1, 2), 0.5))[0])
    drawn: dict[int, list[int]] = {}
    for event in range(20_000):
        found = served.serving.one(path, b"u", b"%d" % event, eligible)
        drawn.setdefault(found.arm, []).append(found.propensity)
    assert set(drawn) <= {1, 4, 7}
    for propensities in drawn.values():
        assert len(set(propensities)) == 1
        # Keyed draws of a fixed key: a binomial within six of its standard deviations (false alarm 2e-9).
        share = propensities[0] / 256
        assert abs(len(propensities) / 20_000 - share) < 6 * (share * (1 - share) / 20_000) ** 0.5
    assert sum(propensities[0] for propensities in drawn.values()) == 256


def test_where_no_ticket_is_of_an_eligible_arm_all_of_them_are_as_likely(served):
    path = int(served.config.grid.paths(np.full((1, 2), 0.5))[0])
    shown = {served.serving.one(path, b"u", b"%d" % event).arm for event in range(4_000)}
    unseen = sorted(set(range(served.config.arms)) - shown)[:2]
    assert len(unseen) == 2
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    eligible[unseen] = True
    found = [served.serving.one(path, b"u", b"%d" % event, eligible) for event in range(400)]
    assert {one.arm for one in found} == set(unseen)
    assert {one.propensity for one in found} == {128}


def test_an_eligible_arm_without_tickets_in_the_cell_is_one_that_others_show_if_there_is_one(served):
    """So one that was withdrawn, which has no ticket anywhere, is not drawn because it is named among others."""
    tickets = np.frombuffer(served.serving.dump()["tickets"], "<i4").reshape(-1, 256)
    path = int(served.config.grid.paths(np.full((1, 2), 0.5))[0])
    row = served.serving.rows(np.full((1, 2), 0.5))[0]
    elsewhere = sorted(set(tickets.ravel().tolist()) - set(tickets[row].tolist()))
    nowhere = sorted(set(range(served.config.arms)) - set(tickets.ravel().tolist()))
    eligible = np.zeros(served.config.arms, dtype=np.bool_)
    eligible[[elsewhere[0], nowhere[0]]] = True
    found = [served.serving.one(path, b"u", b"%d" % event, eligible) for event in range(50)]
    assert {(one.arm, one.propensity) for one in found} == {(elsewhere[0], 256)}


def test_a_packed_model_answers_as_the_one_that_was_packed(served):
    fresh = Serving(served.config.grid, seeded_key(3, "counter"))
    fresh.load(served.serving.dump())
    contexts, users, events = asked(100)
    ours, theirs = fresh.choose(contexts, users, events), served.serving.choose(contexts, users, events)
    assert np.array_equal(ours.arms, theirs.arms)
    assert np.array_equal(ours.propensities, theirs.propensities)
