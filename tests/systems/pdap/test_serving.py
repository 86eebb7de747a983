"""Serving: every answer stands by itself, can be given again, and says how likely it was."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare

from hushstream.privacy.keys import seeded_key
from hushstream.systems.pdap.errors import PdapError
from hushstream.systems.pdap.serving import Serving, TicketNumbers


@pytest.fixture(scope="module")
def served(pdap):
    run = pdap.Deployment(pdap.config(first_window=300))
    for _ in range(5):
        run.window()
    return run


def asked(count):
    contexts = np.random.default_rng(5).random((count, 2)).astype(np.float32)
    contexts[0] = 1.0
    return contexts, [b"user %d" % place for place in range(count)], list(range(count))


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


def test_tickets_are_a_keyed_function_of_user_and_round():
    numbers, other = TicketNumbers(seeded_key(0, "edge")), TicketNumbers(seeded_key(1, "edge"))
    users, rounds = [b"a"] * 64 + [b"b"] * 64, list(range(64)) * 2
    first = numbers(users, rounds)
    assert np.array_equal(first, numbers(users, rounds))
    assert not np.array_equal(first[:64], first[64:])
    assert not np.array_equal(first, other(users, rounds))
    # Lengths are fixed, so a user's name cannot stand for a round.
    assert len({tuple(numbers([user] * 8, range(8)).tolist()) for user in (b"", b"\x00", b"\x00" * 8)}) == 3


def test_tickets_are_even():
    # A fixed key: the outcome is fixed. Of random keys one in a million would fail.
    drawn = TicketNumbers(seeded_key(0, "edge"))([b"%d" % place for place in range(25_600)], [3] * 25_600)
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
        served.serving.choose(np.full((1, 2), np.nan, dtype=np.float32), [b"u"], [0])
