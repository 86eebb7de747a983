"""Cells: numbered as a hand would cut the cube, whatever lies on a face, and bad contexts refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from hushstream.systems.pdap.cells import ROOT, CellsExhausted, Grid, PdapError, level_of, levels_of


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
