"""Blocks: each outcome in one of them or waiting, as a walk by hand would have it; windows close at growing totals."""

from collections import defaultdict

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.blocks import Blocks, close, gathered
from hushstream.systems.pdap.cells import Grid, PdapError
from hushstream.systems.pdap.configuration import Schedule

GRID = Grid(2, 2, 3)


def waiting(seed, rows=400, arms=5):
    draws = np.random.default_rng(seed)
    levels = draws.integers(0, 4, rows)
    paths = GRID.paths(draws.random((rows, 2)))
    cells = np.array([GRID.at_level(path[None], level)[0] for path, level in zip(paths, levels, strict=True)])
    counts = draws.integers(1, 4, rows)
    return gathered([Blocks(cells, draws.integers(0, arms, rows), counts, draws.integers(0, counts + 1))])


def by_hand(rows, least):
    """The walk, row by row: {(cell, arm): (n, s)} of blocks, and what stays."""
    left = {(c, k): (n, s) for c, k, n, s in zip(*map(np.ndarray.tolist, columns(rows)), strict=True)}
    found = {}
    for level in (3, 2, 1, 0):
        groups = defaultdict(list)
        for cell, arm in left:
            if cell >> 57 >= level:
                groups[int(GRID.ancestors(np.array([cell]), level)[0]), arm].append((cell, arm))
        for group, members in groups.items():
            if sum(left[member][0] for member in members) >= least[level]:
                taken = [left.pop(member) for member in members]
                found[group] = (sum(n for n, _ in taken), sum(s for _, s in taken))
    return found, left


def columns(blocks):
    return blocks.cells, blocks.arms, blocks.counts, blocks.sums


def as_dict(blocks):
    return {(c, k): (n, s) for c, k, n, s in zip(*map(np.ndarray.tolist, columns(blocks)), strict=True)}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("least", [(1, 1, 1, 1), (5, 5, 5, 5), (30, 12, 6, 3), (3, 6, 12, 30), (10**6,) * 4])
def test_blocks_are_those_of_a_walk_by_hand(seed, least):
    rows = waiting(seed)
    blocks, left = close(GRID, rows, least)
    found, stays = by_hand(rows, least)
    assert as_dict(blocks) == found
    assert as_dict(left) == stays
    assert len(blocks) == len(found)


@pytest.mark.parametrize("seed", range(5))
def test_no_outcome_is_lost_and_none_is_in_two_blocks(seed):
    rows = waiting(seed)
    blocks, left = close(GRID, rows, (20, 10, 6, 4))
    assert blocks.counts.sum() + left.counts.sum() == rows.counts.sum()
    assert blocks.sums.sum() + left.sums.sum() == rows.sums.sum()


def test_rewards_decide_nothing():
    rows = waiting(9)
    other = Blocks(rows.cells, rows.arms, rows.counts, np.random.default_rng(1).permutation(rows.sums))
    (first, stays), (second, stays_too) = (close(GRID, one, (20, 10, 6, 4)) for one in (rows, other))
    for mine, theirs in ((first, second), (stays, stays_too)):
        assert all(np.array_equal(*pair) for pair in zip(columns(mine)[:3], columns(theirs)[:3], strict=True))


def test_deepest_blocks_come_first_and_each_level_is_sorted():
    blocks, _ = close(GRID, waiting(2), (20, 8, 4, 2))
    levels = (blocks.cells >> 57).tolist()
    assert levels == sorted(levels, reverse=True)
    for level in set(levels):
        pairs = [key for key in as_dict(blocks) if key[0] >> 57 == level]
        assert pairs == sorted(pairs)


def test_columns_that_do_not_fit_are_refused():
    good = np.zeros(2, dtype=np.int64)
    for bad in (np.zeros(2), np.zeros(3, dtype=np.int64), np.zeros((2, 1), dtype=np.int64)):
        with pytest.raises(PdapError, match="blocks: expected sums int64"):
            Blocks(good, good, good, bad)


def test_the_content_that_is_digested_holds_every_column():
    rows = waiting(0)
    seen = {rows.canonical()}
    for name in ("cells", "arms", "counts", "sums"):
        changed = {one: getattr(rows, one).copy() for one in ("cells", "arms", "counts", "sums")}
        changed[name][0] += 1
        seen.add(Blocks(**changed).canonical())
    assert len(seen) == 5


def test_the_defaults_close_at_five_hundred_and_half_as_much_again():
    schedule = Schedule()
    assert [schedule.closes_at(window) for window in range(5)] == [500, 750, 1125, 1688, 2532]
    assert [schedule.windows(total) for total in (0, 499, 500, 749, 750, 200_000)] == [0, 0, 1, 1, 2, 15]


@pytest.mark.parametrize(("first", "ratio"), [(1, 1.01), (1, 1.5), (10, 1.001), (500, 100)])
def test_no_two_windows_close_at_one_total(first, ratio):
    schedule = Schedule(first, ratio)
    totals = [schedule.closes_at(window) for window in range(200 if ratio < 10 else 12)]
    assert totals == sorted(set(totals))
    assert totals[0] == first


@pytest.mark.parametrize(("first", "ratio"), [(1, 1.01), (1, 1.5), (10, 1.001), (500, 100)])
def test_a_window_closes_at_the_first_total_that_was_not_reached_when_it_opened(first, ratio):
    schedule = Schedule(first, ratio)
    totals = [schedule.closes_at(window) for window in range(200 if ratio < 10 else 12)]
    for window, total in enumerate(totals[:-1]):
        assert (schedule.after(total - 1), schedule.after(total)) == (total, totals[window + 1])
        assert schedule.windows(total) == window + 1


@pytest.mark.parametrize(("first", "ratio"), [(0, 1.5), (-1, 2), (10, 1.0), (10, 0.5)])
def test_totals_that_do_not_grow_are_refused(first, ratio):
    with pytest.raises(PdapError, match="a ratio above 1"):
        Schedule(first, ratio)
