"""Input and output of a counter."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdap.algorithm.blocks import Blocks
from hushstream.systems.pdap.cells import Int64

NAME_BYTES = 16
ROW = np.dtype("V48")
"""A whole outcome as bytes; its name comes first."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Outcomes at their deadlines, int64 (n,) each.

    Attributes:
        cells: the cell that served each context.
        arrivals: the cell in which its arrival is counted: a child of the serving cell, or that cell itself on the last
            level.
        arms: the shown arms.
        rewards: in reward levels, 0 without a click.
        names: uint8 (n, 16), the public name of each event, which is never used again.
    """

    cells: Int64
    arrivals: Int64
    arms: Int64
    rewards: Int64
    names: NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of outcomes."""
        return len(self.cells)

    def take(self, rows: slice | Int64) -> Outcomes:
        """The outcomes of these rows."""
        return Outcomes(self.cells[rows], self.arrivals[rows], self.arms[rows], self.rewards[rows], self.names[rows])

    def rows(self) -> NDArray[np.void]:
        """Every row as 48 bytes, V48 (n,); its name comes first."""
        columns = [
            one.astype("<i8")[:, None].view(np.uint8) for one in (self.cells, self.arrivals, self.arms, self.rewards)
        ]
        return np.ascontiguousarray(np.hstack([self.names, *columns])).view(ROW)[:, 0]


@dataclass(frozen=True, slots=True, eq=False)
class Release:
    """The release of a window.

    Attributes:
        window: its number.
        blocks: with noised sums; deepest level first, then by cell and arm.
        arrived: cells in which contexts arrived, sorted; public.
        arrivals: how many in each; public.
        outcomes: in this window; public.
    """

    window: int
    blocks: Blocks
    arrived: Int64
    arrivals: Int64
    outcomes: int
