"""The partition: it follows public arrivals alone, opens what was met, and stops at its cap."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.algorithm.partition import CellIndex, Partition
from hushstream.systems.pdap.cells import ROOT, Grid, PdapError

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
