"""Cells of [0, 1]^d as whole numbers: every level cuts each side in m, so a cell of level l is m^-l wide.

A cell's *path* is a number to base m^d. Its digits say, level by level, which of the m^d children holds the cell. So
the paths below a cell are one run of numbers, and a division by m^d gives the parent. A point is in the cell whose run
contains the point's path on the deepest level: one sorted search finds the cells of a whole batch. A cell's number is
level * 2^57 + path.

Source: Zhou et al., Differentially Private Online Learning for Cloud-Based Video Recommendation (P-DAP), section V.A.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.schemas.errors import HushstreamError

Int64 = NDArray[np.int64]

PATH_BITS = 57
LARGEST_DIMENSION = 10
_PATH_MASK = (1 << PATH_BITS) - 1

ROOT = 0
"""The cell that is all of [0, 1]^d."""


class PdapError(HushstreamError):
    """An invalid context, outcome, block or model. The message says what was expected and what was given."""


class CellsExhausted(PdapError):
    """A grid has too many cells to number them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """How [0, 1]^d is cut.

    Attributes:
        dimension: d.
        branching: m, parts of a side at each level.
        levels: L, the deepest level.
    """

    dimension: int
    branching: int = 2
    levels: int = 3

    def __post_init__(self) -> None:
        """Refuse a grid whose cells do not fit their numbers.

        Raises:
            CellsExhausted: more than 2^57 cells on the deepest level, or a dimension beyond 10.
        """
        if not 1 <= self.dimension <= LARGEST_DIMENSION or self.branching < 2 or self.levels < 0:
            raise CellsExhausted(
                f"grid: expected d from 1 to {LARGEST_DIMENSION}, m >= 2 and levels >= 0,"
                f" got {self.dimension}, {self.branching}, {self.levels}"
            )
        cells = self.branching ** (self.dimension * self.levels)
        if cells > 1 << PATH_BITS:
            raise CellsExhausted(
                f"grid: expected at most 2^{PATH_BITS} cells on the deepest level (levels * d * log2(m)),"
                f" got about 2^{cells.bit_length() - 1}"
            )

    @property
    def children(self) -> int:
        """m^d, the children of a cell."""
        return int(self.branching**self.dimension)

    def paths(self, contexts: NDArray[np.floating]) -> Int64:
        """The path on the deepest level of each context: int64 (n,).

        A point on an inner face is in the cell above it; x = 1 is in the last cell.

        Args:
            contexts: (n, d), every entry from 0 to 1.

        Raises:
            PdapError: another shape, or an entry that is NaN or outside [0, 1]. The message repeats no entry.
        """
        if contexts.ndim != 2 or contexts.shape[1] != self.dimension:
            raise PdapError(f"contexts: expected shape (n, {self.dimension}), got {contexts.shape}")
        # NaN compares false, so it is refused too.
        if not ((contexts >= 0) & (contexts <= 1)).all():
            raise PdapError("contexts: expected entries from 0 to 1, got one outside or NaN")
        side = self.branching**self.levels
        places = (contexts * np.float64(side)).astype(np.int64)
        np.minimum(places, side - 1, out=places)
        path = np.zeros(len(contexts), dtype=np.int64)
        weights = self.branching ** np.arange(self.dimension, dtype=np.int64)
        for level in range(1, self.levels + 1):
            digits = places // self.branching ** (self.levels - level) % self.branching
            path *= self.children
            path += digits @ weights
        return path

    def at_level(self, paths: Int64, level: int) -> Int64:
        """The cells of ``level`` that hold these paths of the deepest level."""
        return np.asarray((np.int64(level) << PATH_BITS) | (paths // self.children ** (self.levels - level)))

    def cell_at(self, path: int, level: int) -> int:
        """The cell of ``level`` that holds one path of the deepest level."""
        return (level << PATH_BITS) | (path // self.width(level))

    def first_path(self, cell: int) -> int:
        """The first path of the deepest level that is in ``cell``; the run has `width` paths."""
        return int((cell & _PATH_MASK) * self.children ** (self.levels - level_of(cell)))

    def width(self, level: int) -> int:
        """Number of paths of the deepest level below a cell of ``level``."""
        return int(self.children ** (self.levels - level))

    def parent(self, cell: int) -> int:
        """The cell that ``cell`` is a child of; the root's is the root."""
        level = level_of(cell)
        return ROOT if level == 0 else ((level - 1) << PATH_BITS) | ((cell & _PATH_MASK) // self.children)

    def ancestors(self, cells: Int64, level: int | Int64) -> Int64:
        """The ancestor of each cell on ``level`` (one for all, or one for each); no cell may lie above its level."""
        up = levels_of(cells) - level
        paths = (cells & _PATH_MASK) // np.int64(self.children) ** up
        return np.asarray((np.asarray(level, dtype=np.int64) << PATH_BITS) | paths)

    def sides(self, cell: int) -> tuple[tuple[float, float], ...]:
        """The interval of a cell on each of the d axes, within [0, 1]."""
        level, path = level_of(cell), int(cell) & _PATH_MASK
        digits = [path // self.children**above % self.children for above in reversed(range(level))]
        width, found = self.branching**-level, []
        for axis in range(self.dimension):
            place = 0
            for digit in digits:
                place = place * self.branching + digit // self.branching**axis % self.branching
            found.append((place * width, (place + 1) * width))
        return tuple(found)

    def require(self, cells: Int64) -> Int64:
        """The levels of cells; refuse numbers that are no cells of this grid.

        Raises:
            PdapError: a level or a path that does not exist.
        """
        levels = levels_of(cells)
        if ((levels < 0) | (levels > self.levels)).any():
            raise PdapError(f"cells: expected levels from 0 to {self.levels}, got another")
        if ((cells & _PATH_MASK) >= np.int64(self.children) ** levels).any():
            raise PdapError("cells: expected paths within their level, got one beyond")
        return levels


def level_of(cell: int) -> int:
    """The level of a cell."""
    return int(cell) >> PATH_BITS


def levels_of(cells: Int64) -> Int64:
    """The levels of cells, int64 of their shape."""
    return np.asarray(cells >> PATH_BITS, dtype=np.int64)
