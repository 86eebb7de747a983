"""The layout of linear sums: their cells, how a slot's units are divided among blocks, and the units of an interaction.

There is a block for each declared feature and, in cell 0, one for the constant (the arm's total). A slot has U units in
all. Block f has a public budget ``b_f`` of them, and an interaction with shares phi puts ``trunc(b_f phi_j)`` into cell
j. Truncation leaves some units of a budget. The first cells with a share get one more unit each until a block's units
sum to its budget: without this the totals of blocks would be below the number of slots, those of tags most of all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.features.schema import Block, FeatureSchema, SparseBlocks
from hushstream.systems.p2b.contribution.errors import ContributionError

UNITS = 4096
"""U, the largest sum of the absolute units of a slot."""

LEAST_ARM_SHARE, MOST_ARM_SHARE = 0.1, 0.5
_NOISE_OF_ARMS = 24.0

Int64 = NDArray[np.int64]


class SlotUnits(NamedTuple):
    """The units that n interactions add to the sums.

    Attributes:
        cells: (n, places) int64 in [0, P).
        units: (n, places) int64; the absolute values of a row sum to at most U.
    """

    cells: Int64
    units: Int64


@dataclass(frozen=True, slots=True)
class FeatureLayout:
    """The public layout of a slot and of the sums; it follows from the configuration alone.

    Attributes:
        schema: the declared features.
        arms: K, the capacity of the catalogue.
        levels: M, reward levels above 0.
        budgets: units of each block, the constant's first, then in the order of ``schema.table``.
        blocks: the position of each block; the first is the constant's, with the name "".
    """

    schema: FeatureSchema
    arms: int
    levels: int
    budgets: tuple[int, ...]
    blocks: tuple[Block, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse budgets that one slot cannot have.

        Raises:
            ContributionError: not one budget for each block, one below 1, a sum above U, or no arms or levels.
        """
        if min(self.arms, self.levels) < 1:
            raise ContributionError(f"expected at least one arm and level, got {self.arms} and {self.levels}")
        if len(self.budgets) != len(self.schema.table) + 1 or min(self.budgets) < 1 or sum(self.budgets) > UNITS:
            raise ContributionError(
                f"expected {len(self.schema.table) + 1} positive budgets of at most {UNITS} units together, "
                f"got {len(self.budgets)} with {sum(self.budgets)}"
            )
        moved = [
            replace(one, first_cell=one.first_cell + 1, first_place=one.first_place + 1) for one in self.schema.table
        ]
        object.__setattr__(self, "blocks", (Block("", 0, 1, 0, 1, signed=False, complete=True, usual=1.0), *moved))

    @property
    def cells(self) -> int:
        """P, the number of cells of one arm, with that of the constant."""
        return self.schema.cells + 1

    @property
    def places(self) -> int:
        """The number of (cell, units) places in a slot: the most that a context of the schema can need."""
        return self.schema.places + 1

    @property
    def sensitivity(self) -> int:
        """The L1 distance by which a report moves all sums together, against null: M U (see `shuffler.linear_sums`)."""
        return self.levels * UNITS

    def units_of(self, blocks: SparseBlocks) -> SlotUnits:
        """The units of n interactions from the blocks of their contexts."""
        size = len(blocks.cells)
        cells = np.zeros((size, self.places), dtype=np.int64)
        units = np.zeros_like(cells)
        units[:, 0] = self.budgets[0]
        cells[:, 1:] = blocks.cells + 1
        for number, block in enumerate(self.blocks[1:]):
            across = slice(block.first_place, block.first_place + block.places)
            shares = blocks.parts[:, block.first_place - 1 : block.first_place - 1 + block.places]
            units[:, across] = _divided(shares, blocks.wholes[:, number], self.budgets[number + 1])
        return SlotUnits(cells, units)


def budgets(features: int, arms: int, epsilon: float, slots: int, windows: int = 1) -> tuple[int, ...]:
    """The units of each block: ``w_0 = clip(24 K sqrt(W) / (eps N), .1, .5)`` for the arm's total, the rest evenly.

    The noise of an arm's total has the scale 1/(eps w_0) slots, compared with N/K slots of an arm. With few slots, most
    units go to the totals, so that arms can be distinguished; with many slots, totals need few units.

    Args:
        features: the number of blocks besides the constant.
        arms: K, the declared capacity in use; never a live count.
        epsilon: the epsilon of a slot.
        slots: N, the number of slots that the configuration expects in all windows together.
        windows: W, the number of releases with fresh noise; 1 if sums run through a counter.

    Raises:
        ContributionError: a number out of range.
    """
    if min(features, arms, slots, windows) < 1 or not 0 < epsilon < math.inf:
        raise ContributionError(
            "expected at least one feature, arm, slot and window and a positive epsilon, "
            f"got {features}, {arms}, {slots}, {windows} and {epsilon}"
        )
    wanted = _NOISE_OF_ARMS * arms * math.sqrt(windows) / (epsilon * slots)
    share = min(max(wanted, LEAST_ARM_SHARE), MOST_ARM_SHARE)
    each = (UNITS - int(UNITS * share)) // features
    if each < 1:
        raise ContributionError(f"expected at most {UNITS // 2} features, got {features}")
    return (UNITS - each * features, *[each] * features)


def layout_of(
    schema: FeatureSchema, arms: int, levels: int, epsilon: float, slots: int, windows: int = 1
) -> FeatureLayout:
    """The layout with the budgets that `budgets` gives; arguments as there."""
    return FeatureLayout(schema, arms, levels, budgets(len(schema.table), arms, epsilon, slots, windows))


def _divided(parts: Int64, wholes: Int64, budget: int) -> Int64:
    """(n, places) a budget divided by shares ``parts / wholes``, in whole units with the sign of the share."""
    sizes = np.abs(parts)
    units = sizes * budget // wholes[:, None]
    # An empty block gets no units at all.
    left = np.where(sizes.any(axis=1), budget - units.sum(axis=1), 0)
    used = sizes > 0
    units += used & (np.cumsum(used, axis=1) <= left[:, None])
    return np.asarray(units * np.sign(parts))


def cell_names(layout: FeatureLayout) -> Sequence[str]:
    """The names of an arm's P cells."""
    return ["all slots", *layout.schema.cell_names()]
