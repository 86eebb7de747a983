"""Puts the outcomes of a window into blocks, which are its releases: disjoint sums of rewards with noise.

A block is a cell, an arm, the public number n of outcomes in it and the sum of their rewards. At the end of a window,
cells of every arm are visited from the deepest level up. If n reaches the smallest size of the level, the block is
released, and its outcomes are in no later block. Otherwise the outcomes are counted in the parent's cell, too, and
tested there. Outcomes that are too few even at the root stay in their cells for a later window.

*Noise.* Draws the noise of blocks: keyed, of whole numbers, with a digest of the covered content in its address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import (
    KeyedStream,
    NoiseAddress,
    discrete_laplace,
    laplace_scale,
    laplace_variance,
)
from hushstream.systems.pdap.cells import Grid, Int64, PdapError, levels_of
from hushstream.systems.pdap.configuration import PdapConfig


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """Columns of blocks, or of outcomes that wait for a block: (n,) each.

    Attributes:
        cells: the cell of each.
        arms: its arm.
        counts: outcomes in it, at least 1; public.
        sums: sum of their rewards, in reward levels: exact while they wait, noised in releases.
    """

    cells: Int64
    arms: Int64
    counts: Int64
    sums: Int64

    def __post_init__(self) -> None:
        """Refuse columns whose lengths or types do not fit.

        Raises:
            PdapError: a column does not fit; names it.
        """
        for name in ("cells", "arms", "counts", "sums"):
            column = getattr(self, name)
            if column.dtype != np.int64 or column.shape != self.cells.shape or column.ndim != 1:
                raise PdapError(f"blocks: expected {name} int64 {self.cells.shape}, got {column.dtype} {column.shape}")

    @classmethod
    def none(cls) -> Blocks:
        """No block."""
        return cls(*(np.zeros(0, dtype=np.int64) for _ in range(4)))

    def __len__(self) -> int:
        """Number of blocks."""
        return len(self.cells)

    def take(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]] | Int64) -> Blocks:
        """The blocks that a mask or row numbers select."""
        return Blocks(self.cells[rows], self.arms[rows], self.counts[rows], self.sums[rows])

    def canonical(self) -> bytes:
        """All columns as bytes, with their length, for a keyed digest of the content."""
        columns = (self.cells, self.arms, self.counts, self.sums)
        return len(self).to_bytes(8, "little") + b"".join(column.astype("<i8").tobytes() for column in columns)


def joined(parts: Sequence[Blocks]) -> Blocks:
    """All columns one after the other."""
    return Blocks(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("cells", "arms", "counts", "sums"))
    )


def gathered(parts: Sequence[Blocks]) -> Blocks:
    """One row for each (cell, arm), sorted by both; counts and sums are added."""
    everything = joined(parts)
    first, group = _groups(everything.cells, everything.arms)
    return Blocks(
        everything.cells[first],
        everything.arms[first],
        _added(everything.counts, group, len(first)),
        _added(everything.sums, group, len(first)),
    )


def close(grid: Grid, waiting: Blocks, least: Sequence[int]) -> tuple[Blocks, Blocks]:
    """Form the blocks of a window.

    Returns the blocks with exact sums, deepest first, and the rows that go on waiting. Membership depends on cells,
    arms, counts and ``least``, and on no reward.

    Args:
        grid: of the cells.
        waiting: one row for each (cell, arm), see `gathered`.
        least: smallest number of outcomes in a block of each level, from the root down.
    """
    found: list[Blocks] = []
    left, levels = waiting, levels_of(waiting.cells)
    for level in range(grid.levels, -1, -1):
        deep = levels >= level
        lent = left.take(deep)
        above = grid.ancestors(lent.cells, level)
        first, group = _groups(above, lent.arms)
        counts = _added(lent.counts, group, len(first))
        full = counts >= least[level]
        sums = _added(lent.sums, group, len(first))
        found.append(Blocks(above[first], lent.arms[first], counts, sums).take(full))
        stays = np.ones(len(left), dtype=bool)
        stays[np.flatnonzero(deep)] = ~full[group]
        left, levels = left.take(stays), levels[stays]
    return joined(found), left


def _groups(cells: Int64, arms: Int64) -> tuple[Int64, Int64]:
    """Group by (cell, arm), in sorted order: (one row of each group, the group of each row)."""
    order = np.lexsort((arms, cells))
    sorted_cells, sorted_arms = cells[order], arms[order]
    new = np.ones(len(order), dtype=bool)
    new[1:] = (sorted_cells[1:] != sorted_cells[:-1]) | (sorted_arms[1:] != sorted_arms[:-1])
    group = np.empty(len(order), dtype=np.int64)
    group[order] = np.cumsum(new) - 1
    return order[new], group


def _added(values: Int64, group: Int64, groups: int) -> Int64:
    total = np.zeros(groups, dtype=np.int64)
    np.add.at(total, group, values)
    return total


MECHANISM = "blocks"

BlockNoise = Callable[[int, Blocks, bytes], Int64]
"""Maps (window, blocks with exact sums, digest of all outcomes so far) to the noise of their sums, int64 (n,)."""


def block_scales(config: PdapConfig) -> tuple[tuple[int, int], ...]:
    """Scale R / eps_l of the noise on a block of each level, as (numerator, denominator)."""
    return tuple(laplace_scale(epsilon, config.release.reward_levels) for epsilon in config.level_epsilons)


def block_variances(config: PdapConfig) -> tuple[float, ...]:
    """V of each level: variance of that noise on a block's sum of rewards, with rewards scaled to [0, 1]."""
    levels = config.release.reward_levels
    return tuple(laplace_variance(*scale) / levels**2 for scale in block_scales(config))


@dataclass(frozen=True, slots=True, eq=False)
class KeyedBlockNoise:
    """Discrete Laplace noise of one counter.

    The address of a window's noise holds a keyed digest of its blocks, exact sums included, and of all outcomes ever
    taken, names included: a journal that was rolled back and continues with other outcomes draws other noise, so the
    difference of both histories does not cancel the noise. An outcome that both histories release costs epsilon in
    each.

    Attributes:
        key: of the counter's zone.
        address: of the counter; window and content are filled in for each release.
        scales: see `block_scales`.
    """

    key: Key
    address: NoiseAddress
    scales: tuple[tuple[int, int], ...]

    def __call__(self, window: int, blocks: Blocks, history: bytes) -> Int64:
        scales = ",".join(f"{top}/{bottom}" for top, bottom in self.scales)
        content = self.key.digest("pdap-blocks", history, blocks.canonical())
        parameters = {**self.address.parameters, "scales": scales}
        stream = KeyedStream(self.key, replace(self.address, window=window, parameters=parameters, content=content))
        levels, noise = levels_of(blocks.cells), np.zeros(len(blocks), dtype=np.int64)
        for level, scale in enumerate(self.scales):
            here = np.flatnonzero(levels == level)
            noise[here] = discrete_laplace(stream, *scale, len(here))
        return noise
