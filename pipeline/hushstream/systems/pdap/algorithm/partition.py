"""The adaptive partition: cells open where contexts arrive, and split where many have arrived. All of it is public.

A cell of level l splits when A m^(p l) contexts arrived in it. Arrivals are counted one level below the serving cell,
so that a split at once opens the children in which contexts have arrived. Other children are not opened: the deepest
open cell above serves them. The same holds when the limit of open cells is reached.

Source: Zhou et al. (P-DAP), Algorithm 1, lines 19 and 20. In the paper children begin to count arrivals at 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdap.cells import PATH_BITS, ROOT, Grid, Int64, PdapError, level_of, levels_of

PARTITION = {"opened": "bytes", "split": "bytes", "arrived": "bytes"}
"""Avro fields of `Partition.dump`."""


class Partition:
    """The open cells in the order in which they opened; the index of a cell is its row.

    Attributes:
        grid: how the space is cut.
        cells: the number of each row's cell.
        parents: the row of each row's parent; the root's is itself.
    """

    def __init__(self, grid: Grid, split_at: float, growth: float, cap: int) -> None:
        """Begin with the root alone.

        Args:
            grid: how the space is cut.
            split_at: A, arrivals at which the root splits.
            growth: p; a cell of level l splits at A m^(p l).
            cap: most open cells.
        """
        self.grid = grid
        self.cells: list[int] = [ROOT]
        self.parents: list[int] = [0]
        self._rows: dict[int, int] = {ROOT: 0}
        self._split: set[int] = set()
        self._arrived: dict[int, int] = {}
        self._met: dict[int, set[int]] = {}
        self._limits = [split_at * grid.branching ** (growth * level) for level in range(grid.levels)]
        self._cap = cap

    def __len__(self) -> int:
        """Number of open cells."""
        return len(self.cells)

    def row(self, cell: int) -> int:
        """The row of the deepest open cell that is ``cell`` or above it."""
        while cell not in self._rows:
            cell = self.grid.parent(cell)
        return self._rows[cell]

    def is_open(self, cell: int) -> bool:
        """Whether ``cell`` has a row."""
        return cell in self._rows

    def observe(self, cells: Int64, counts: Int64) -> None:
        """Count public arrivals.

        Args:
            cells: (n,) the child of the serving cell in which each arrival lies (the serving cell on the last level).
            counts: (n,) how many.

        Raises:
            PdapError: a cell that this grid does not have.
        """
        self.grid.require(cells)
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            self._arrived[cell] = self._arrived.get(cell, 0) + count
            if cell != ROOT:
                self._met.setdefault(self.grid.parent(cell), set()).add(cell)

    def arrivals(self, cell: int) -> int:
        """Number of contexts that arrived in ``cell`` since its parent opened."""
        return self._arrived.get(cell, 0) + sum(self._arrived[child] for child in self._met.get(cell, ()))

    def grow(self) -> list[int]:
        """Split cells with enough arrivals: open their children with arrivals; returns the opened cells in order."""
        before, row = len(self.cells), 0
        # The same pass visits the rows that it opens: a child may have enough arrivals to split at once.
        while row < len(self.cells):
            self._grow_below(self.cells[row], row)
            row += 1
        return self.cells[before:]

    def _grow_below(self, cell: int, row: int) -> None:
        level = level_of(cell)
        if level == self.grid.levels:
            return
        if cell not in self._split and self.arrivals(cell) < self._limits[level]:
            return
        self._split.add(cell)
        for child in sorted(self._met.get(cell, ())):
            if child not in self._rows and len(self.cells) < self._cap:
                self._rows[child] = len(self.cells)
                self.cells.append(child)
                self.parents.append(row)

    def dump(self) -> dict[str, Any]:
        """The state in packed form (`PARTITION`): all of it is public."""
        split = np.array(sorted(self._split), dtype="<i8")
        arrived = np.array(sorted(self._arrived.items()), dtype="<i8").reshape(-1, 2)
        opened = np.array(self.cells, dtype="<i8")
        return {"opened": opened.tobytes(), "split": split.tobytes(), "arrived": arrived.tobytes()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore a dumped state."""
        self.cells = np.frombuffer(state["opened"], "<i8").tolist()
        self._rows = {cell: row for row, cell in enumerate(self.cells)}
        self.parents = [self._rows[self.grid.parent(cell)] for cell in self.cells]
        self._split = set(np.frombuffer(state["split"], "<i8").tolist())
        self._arrived, self._met = {}, {}
        arrived = np.frombuffer(state["arrived"], "<i8").reshape(-1, 2).astype(np.int64)
        self.observe(arrived[:, 0], arrived[:, 1])

    def by_level(self) -> list[tuple[Int64, Int64]]:
        """For each level from the root down: (rows, their parents' rows); levels without rows are left out."""
        levels, parents = levels_of(np.array(self.cells, dtype=np.int64)), np.array(self.parents, dtype=np.int64)
        found = []
        for level in range(self.grid.levels + 1):
            rows = np.flatnonzero(levels == level)
            if len(rows):
                found.append((rows, parents[rows]))
        return found


class CellIndex:
    """Finds the deepest open cell over each point of a batch, by one sorted search."""

    def __init__(self, grid: Grid, cells: NDArray[np.int64]) -> None:
        """Index the open ``cells``, of which the first is the root.

        Raises:
            PdapError: the first is not the root, or a cell opened without its parent.
        """
        if not len(cells) or cells[0] != ROOT:
            raise PdapError("cells: expected the root first, got another cell or none")
        self._grid = grid
        self._starts, self._rows = _runs(grid, cells.tolist())
        self._levels = levels_of(np.asarray(cells, dtype=np.int64))
        self._start_list, self._row_list = self._starts.tolist(), self._rows.tolist()

    def rows(self, paths: Int64) -> Int64:
        """The row of the deepest open cell over each path of the deepest level."""
        return np.asarray(self._rows[np.searchsorted(self._starts, paths, side="right") - 1])

    def row(self, path: int) -> int:
        """The row over one path: as `rows`, but faster."""
        return int(self._row_list[bisect_right(self._start_list, path) - 1])

    def arrivals(self, paths: Int64, rows: Int64) -> Int64:
        """Where arrivals are counted: the child of the serving cell, or the cell itself on the last level."""
        levels = np.minimum(self._levels[rows] + 1, self._grid.levels)
        above = np.int64(self._grid.children) ** (self._grid.levels - levels)
        return np.asarray((levels << PATH_BITS) | (paths // above))


def _runs(grid: Grid, cells: list[int]) -> tuple[Int64, Int64]:
    """Cut the paths where the deepest open cell changes: (first path of each run, row of its cell)."""
    starts, owners = [0], [0]
    # The run of a cell lies within that of its parent: it ends one part of the parent's run, and the next part begins
    # behind it. So one pass with a stack of open parents cuts all runs.
    order = sorted(range(1, len(cells)), key=lambda row: (grid.first_path(cells[row]), level_of(cells[row])))
    stack = [(grid.width(0), 0)]
    for row in order:
        first = grid.first_path(cells[row])
        while stack[-1][0] <= first:
            _cut(starts, owners, stack.pop()[0], stack[-1][1])
        _cut(starts, owners, first, row)
        stack.append((first + grid.width(level_of(cells[row])), row))
    while len(stack) > 1:
        _cut(starts, owners, stack.pop()[0], stack[-1][1])
    return np.array(starts, dtype=np.int64), np.array(owners, dtype=np.int64)


def _cut(starts: list[int], owners: list[int], first: int, row: int) -> None:
    if starts[-1] == first:
        owners[-1] = row
        return
    starts.append(first)
    owners.append(row)
