"""The partition of contexts: cells as a hand would cut them, opened by public arrivals alone, up to a cap."""

from collections import defaultdict

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.blocks import Blocks, close, gathered
from hushstream.systems.pdap.algorithm.partition import CellIndex, Partition
from hushstream.systems.pdap.cells import ROOT, CellsExhausted, Grid, PdapError, level_of, levels_of
from hushstream.systems.pdap.configuration import Schedule

GRID = Grid(2, 2, 3)


def arrive(partition, points):
    """Count points where the open cells send them, as a counter would."""
    index = CellIndex(partition.grid, np.array(partition.cells))
    paths = partition.grid.paths(np.asarray(points, dtype=float))
    cells, counts = np.unique(index.arrivals(paths, index.rows(paths)), return_counts=True)
    partition.observe(cells, counts)
    return partition.grow()


def test_the_root_splits_at_its_limit_and_opens_only_children_that_were_met():
    partition = Partition(GRID, split_at=10, growth=1, cap=100)
    assert arrive(partition, [[0.1, 0.1]] * 5 + [[0.9, 0.9]] * 4) == []
    opened = arrive(partition, [[0.1, 0.1]])
    assert opened == sorted(set(GRID.at_level(GRID.paths(np.array([[0.1, 0.1], [0.9, 0.9]])), 1).tolist()))
    # Nobody was in the other two: they open with their first arrival.
    assert arrive(partition, [[0.9, 0.1]]) == GRID.at_level(GRID.paths(np.array([[0.9, 0.1]])), 1).tolist()


def test_a_cell_of_level_l_splits_at_a_m_to_the_p_l():
    partition = Partition(GRID, split_at=4, growth=1, cap=100)
    arrive(partition, [[0.1, 0.1]] * 4)
    assert len(partition) == 2
    arrive(partition, [[0.1, 0.1]] * 3)
    assert len(partition) == 2
    # 4 arrivals came while the root served, 4 more make the 8 of level 1.
    arrive(partition, [[0.1, 0.1]])
    assert len(partition) == 3


def test_the_deepest_level_never_splits():
    partition = Partition(Grid(1, 2, 1), split_at=1, growth=0, cap=100)
    for _ in range(5):
        arrive(partition, [[0.2], [0.7]])
    assert len(partition) == 3


def test_beyond_the_cap_the_deepest_open_cell_above_serves():
    partition = Partition(GRID, split_at=1, growth=0, cap=3)
    points = np.random.default_rng(0).random((200, 2))
    for _ in range(4):
        arrive(partition, points)
    assert len(partition) == 3
    rows = CellIndex(GRID, np.array(partition.cells)).rows(GRID.paths(points))
    deepest = [max(row for row, cell in enumerate(partition.cells) if holds(cell, point)) for point in points]
    assert rows.tolist() == deepest


def holds(cell, point):
    return int(GRID.ancestors(GRID.at_level(GRID.paths(point[None]), 3), cell >> 57)[0]) == cell


def test_the_index_finds_the_deepest_open_cell_of_every_point():
    partition = Partition(GRID, split_at=20, growth=0.5, cap=1000)
    draws = np.random.default_rng(3)
    for _ in range(20):
        arrive(partition, draws.beta(2, 5, (60, 2)))
    assert len(partition) > 30
    points = draws.random((500, 2))
    rows = CellIndex(GRID, np.array(partition.cells)).rows(GRID.paths(points))
    for point, row in zip(points, rows.tolist(), strict=True):
        over = [place for place, cell in enumerate(partition.cells) if holds(cell, point)]
        assert row == max(over, key=lambda place: partition.cells[place] >> 57)


def test_rows_of_a_level_come_with_their_parents():
    partition = Partition(GRID, split_at=4, growth=0, cap=1000)
    for _ in range(4):
        arrive(partition, np.random.default_rng(4).random((50, 2)))
    seen = 0
    for rows, parents in partition.by_level():
        seen += len(rows)
        for row, parent in zip(rows.tolist(), parents.tolist(), strict=True):
            assert partition.cells[parent] == GRID.parent(partition.cells[row])
    assert seen == len(partition)


def test_a_cell_that_is_not_open_has_the_row_of_the_open_one_above():
    partition = Partition(GRID, split_at=1e9, growth=1, cap=10)
    deep = int(GRID.at_level(GRID.paths(np.array([[0.3, 0.3]])), 3)[0])
    assert partition.row(deep) == 0
    assert not partition.is_open(deep)
    assert partition.is_open(ROOT)


@pytest.mark.parametrize("cells", [[], [1 << 57]])
def test_an_index_without_the_root_is_refused(cells):
    with pytest.raises(PdapError, match="expected the root first"):
        CellIndex(GRID, np.array(cells, dtype=np.int64))


def by_hand(point, grid, level):
    """The digits of a point's cell, level by level."""
    side = grid.branching**level
    places = [min(int(float(entry) * side), side - 1) for entry in point]
    path = 0
    for depth in range(1, level + 1):
        digits = [place // grid.branching ** (level - depth) % grid.branching for place in places]
        path = path * grid.children + sum(digit * grid.branching**axis for axis, digit in enumerate(digits))
    return (level << 57) | path


@pytest.mark.parametrize(
    ("dimension", "branching", "levels"), [(1, 2, 12), (2, 2, 3), (5, 2, 3), (3, 3, 4), (10, 2, 5)]
)
def test_a_batch_gets_the_cells_that_each_point_has_by_hand(dimension, branching, levels):
    grid = Grid(dimension, branching, levels)
    points = np.random.default_rng(0).random((200, dimension)).astype(np.float32)
    points[:3] = [[0.0] * dimension, [1.0] * dimension, [0.5] * dimension]
    for level in range(levels + 1):
        cells = grid.at_level(grid.paths(points), level)
        assert cells.tolist() == [by_hand(point, grid, level) for point in points]
        assert (levels_of(cells) == level).all()


def test_one_is_in_the_last_cell_and_an_inner_face_in_the_cell_above_it():
    grid = Grid(2, 2, 2)
    corner, face = grid.at_level(grid.paths(np.array([[1.0, 1.0], [0.5, 0.25]])), 2)
    assert corner == (2 << 57) | 15
    assert face == by_hand([0.5, 0.25], grid, 2)


def test_parents_and_ancestors_agree_and_end_at_the_root():
    grid = Grid(3, 2, 4)
    cells = grid.at_level(grid.paths(np.random.default_rng(1).random((50, 3))), 4)
    above = cells
    for level in (3, 2, 1, 0):
        above = np.array([grid.parent(cell) for cell in above.tolist()])
        assert np.array_equal(grid.ancestors(cells, level), above)
    assert (above == ROOT).all()
    assert grid.parent(ROOT) == ROOT
    assert level_of(int(cells[0])) == 4


def test_a_cell_is_one_run_of_paths():
    grid = Grid(2, 2, 3)
    paths = grid.paths(np.random.default_rng(2).random((500, 2)))
    for cell in np.unique(grid.at_level(paths, 1)).tolist():
        inside = (paths >= grid.first_path(cell)) & (paths < grid.first_path(cell) + grid.width(1))
        assert np.array_equal(inside, grid.at_level(paths, 1) == cell)


@pytest.mark.parametrize("entry", [np.nan, np.inf, -np.inf, -1e-7, 1.0000001])
def test_what_is_outside_the_cube_is_refused_and_not_repeated(entry):
    points = np.full((3, 2), 0.5)
    points[1, 1] = entry
    with pytest.raises(PdapError, match=r"expected entries from 0 to 1, got one outside or NaN$"):
        Grid(2).paths(points)


@pytest.mark.parametrize("shape", [(3,), (3, 1), (3, 3), (1, 3, 2)])
def test_another_shape_is_refused(shape):
    with pytest.raises(PdapError, match=r"expected shape \(n, 2\)"):
        Grid(2).paths(np.zeros(shape))


@pytest.mark.parametrize(
    ("dimension", "branching", "levels"), [(10, 2, 6), (1, 2, 58), (4, 3, 10), (0, 2, 1), (11, 2, 1)]
)
def test_a_grid_whose_cells_cannot_be_numbered_is_refused(dimension, branching, levels):
    with pytest.raises(CellsExhausted):
        Grid(dimension, branching, levels)


def test_the_finest_grid_that_fits_numbers_its_corner():
    grid = Grid(3, 2, 19)
    corner = grid.at_level(grid.paths(np.ones((1, 3))), 19)
    assert corner.tolist() == [(19 << 57) | ((1 << 57) - 1)]
    grid.require(corner)


@pytest.mark.parametrize("cell", [-1, 4 << 57, (1 << 57) | 4, 1])
def test_a_number_that_is_no_cell_is_refused(cell):
    with pytest.raises(PdapError, match="cells: expected"):
        Grid(2).require(np.array([ROOT, cell]))


# Blocks: each outcome in one of them or waiting, as a walk by hand would have it; windows close at growing totals.


def waiting(seed, rows=400, arms=5):
    draws = np.random.default_rng(seed)
    levels = draws.integers(0, 4, rows)
    paths = GRID.paths(draws.random((rows, 2)))
    cells = np.array([GRID.at_level(path[None], level)[0] for path, level in zip(paths, levels, strict=True)])
    counts = draws.integers(1, 4, rows)
    return gathered([Blocks(cells, draws.integers(0, arms, rows), counts, draws.integers(0, counts + 1))])


def by_hand_of_blocks(rows, least):
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
    found, stays = by_hand_of_blocks(rows, least)
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
