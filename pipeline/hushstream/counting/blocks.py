"""Many counters in one: a block for each user, every leaf in one block only.

Each block is a digit tree of `hushstream.counting.tree` with its own leaf count and node addresses (the block's number
is the cell of the address). Arrays hold all blocks. The leaves of one block in a batch are summed into one leaf.

Privacy: the factorisation of all blocks together is block-diagonal, and the proof of `counting.counter` holds without
change: a leaf is in ``levels`` nodes, all of its own block, and earlier releases of all blocks do not change, whatever
others chose because of them. So an event costs the same as in one counter (parallel composition over blocks), for any
number of blocks. The block of a leaf, and the number of leaves of a block, are public.

Nodes are drawn before their leaves have come. So what `hushstream.counting.tree` says about rollbacks holds here, too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.counter import open_state, seal_state
from hushstream.counting.digits import LARGEST_SUM, Neighbours, bound_after, largest_size, require_leaves, shift
from hushstream.counting.errors import BadLeaves, BadPlan, BadState, HorizonReached
from hushstream.counting.nodes import CellSource, KeyedNodes
from hushstream.counting.tree import NegativeDigitTree, signed_digits
from hushstream.privacy.amounts import count_text
from hushstream.privacy.keys import Key, encode
from hushstream.privacy.mechanisms.noise import NoiseAddress, Parameter
from hushstream.privacy.promises.promise import Deployment, Guarantee

LARGEST_COORDINATES = 1 << 26
STATE_VERSION = 1
_STATE_HEAD = struct.Struct("<BQ")
_DIGITS_PER_DRAW = 16
_ERASED = -1
"""Value in place of an erased block's leaf count. Such a block takes no leaf, and its sum is a zero without noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPlan:
    """A group of equal counters before any leaf.

    Attributes:
        plan: plan of each block; its horizon is that of one block.
        blocks: number of blocks, N.
    """

    plan: NegativeDigitTree
    blocks: int

    def __post_init__(self) -> None:
        """Refuse settings for which no group exists.

        Raises:
            BadPlan: another kind of plan, or too many blocks.
        """
        if not isinstance(self.plan, NegativeDigitTree) or not self.plan.draws_ahead:
            raise BadPlan(f"blocks: expected a tree with negative digits, got {type(self.plan).__name__}")
        largest = LARGEST_COORDINATES // self.plan.dimension
        if not isinstance(self.blocks, int) or isinstance(self.blocks, bool) or not 1 <= self.blocks <= largest:
            raise BadPlan(f"blocks: expected a whole number from 1 to {largest}, got {self.blocks!r}")

    @property
    def mechanism(self) -> str:
        """The name in noise addresses: blocks share no noise with counters that stand alone."""
        return f"{self.plan.mechanism} blocks"

    @property
    def groups_per_block(self) -> int:
        """Number of sibling groups of a tree with one keyed stream; small, because there are many trees."""
        return max(1, _DIGITS_PER_DRAW // self.plan.base)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Everything that shapes the noise, by name, for its address and the journal."""
        return {**self.plan.parameters, "groups_per_block": self.groups_per_block, "blocks": self.blocks}

    @property
    def identity(self) -> bytes:
        """The plan as bytes; two different plans never give the same."""
        return encode(self.mechanism, tuple(part for pair in sorted(self.parameters.items()) for part in pair))

    def rmse(self, leaves: int | None = None) -> float:
        """Root mean square error of one coordinate over the first ``leaves`` releases of a block; see `Plan.rmse`."""
        return self.plan.rmse(leaves)

    def guarantee(
        self,
        neighbours: Neighbours | None = None,
        units_in_life: int = 1,
        deployment: Deployment = "hosted",
        zone: str = "counter",
    ) -> Guarantee:
        """The guarantee of all releases of all blocks: for each unit it is that of one counter; see `Plan.guarantee`.

        A person with c events, in whatever blocks, is priced by ``units_in_life=c``.
        """
        single = self.plan.guarantee(neighbours, units_in_life, deployment, zone)
        return replace(
            single,
            mechanism=f"{count_text(self.blocks, 'block')}, every unit in one of them, each: {single.mechanism}",
            not_protected=("in which block a leaf is", *single.not_protected),
        )

    def open(self, key: Key, address: NoiseAddress) -> BlockCounters:
        """Open the group, without leaves.

        Args:
            key: the counter zone's key.
            address: names the group; purpose, mechanism, parameters, cell and node are filled in here.

        Raises:
            BadPlan: an address that names a cell: cells are the blocks' numbers.
        """
        return BlockCounters(self, self._nodes(key, address))

    def restore(self, key: Key, address: NoiseAddress, state: bytes) -> BlockCounters:
        """Restore the group from ``state``; it continues as if it had never stopped.

        Raises:
            BadState: damaged, or of another plan, key or address.
        """
        nodes = self._nodes(key, address)
        counters = BlockCounters(self, nodes)
        counters.load(open_state(key, nodes.identity, state))
        return counters

    def save(self, key: Key, address: NoiseAddress, counters: BlockCounters) -> bytes:
        """The group's state under a keyed digest. It holds exact sums: as sensitive as the leaves."""
        return seal_state(key, self._nodes(key, address).identity, counters.dump())

    def _nodes(self, key: Key, address: NoiseAddress) -> KeyedNodes:
        if address.cell is not None:
            raise BadPlan(f"blocks: expected an address without a cell, got cell {address.cell}")
        return KeyedNodes(key, address, self.mechanism, self.parameters, self.plan.noise, self.plan.dimension)


class BlockCounters:
    """Running blocks.

    The state is a leaf count and a sum for each block; besides, up to ``levels * base`` noise rows for each block are
    cached.
    """

    def __init__(self, plan: BlockPlan, source: CellSource) -> None:
        """Begin before the first leaf, with a source of noise."""
        tree, blocks, dimension = plan.plan, plan.blocks, plan.plan.dimension
        self.plan = plan
        self._source = source
        self._base, self._levels = tree.base, tree.levels
        self._shift = shift(tree.base, tree.levels)
        self._nodes_drawn = plan.groups_per_block * (tree.base - 1)
        self._rows_drawn = plan.groups_per_block * tree.base
        self._counts = np.zeros(blocks, dtype=np.int64)
        self._sums = np.zeros((blocks, dimension), dtype=np.int64)
        self._bound = 0
        # Pages of zeros cost nothing before they are written: blocks without leaves hold no noise.
        self._held = np.full((self._levels, blocks), -1, dtype=np.int64)
        self._rows = [np.zeros((blocks, self._rows_drawn, dimension), dtype=np.int64) for _ in range(self._levels)]
        self._above_at = np.full(blocks, -1, dtype=np.int64)
        self._above = np.zeros((blocks, dimension), dtype=np.int64)
        self._moved = np.zeros(blocks, dtype=np.bool_)
        self._noise = np.zeros((blocks, dimension), dtype=np.int64)

    @property
    def leaves(self) -> NDArray[np.int64]:
        """How many leaves each block has, int64 (N,); 0 for one that was erased."""
        return np.maximum(self._counts, 0)

    def add(self, blocks: NDArray[np.int64], leaves: NDArray[np.int64]) -> None:
        """Take a batch. The sum of all rows of one block is one leaf of this block.

        Args:
            blocks: int64 (n,), from 0 to N-1: the block of each row.
            leaves: int64 (n, dimension), lattice units, each within the plan's sensitivity.

        Raises:
            BadLeaves: other types, shapes or block numbers, an erased block, or a sum that could leave 64 bits. Nothing
                is taken then.
            HorizonReached: more leaves of some block than the plan allows. Nothing is taken then.
        """
        require_leaves(leaves, self.plan.plan.dimension)
        self._require_blocks(blocks, len(leaves))
        if not len(blocks):
            return
        touched, sums = _summed_by_block(blocks, leaves)
        # As an unsigned integer, the leaf count of an erased block is beyond any horizon.
        if int(self._counts[touched].view(np.uint64).max()) >= self.plan.plan.horizon:
            self._require_kept(touched)
            raise HorizonReached(f"blocks: expected at most {self.plan.plan.horizon} leaves of one block, got one more")
        self._bound = bound_after(self._bound, self._sums, leaves)
        self._sums[touched] += sums
        self._counts[touched] += 1
        self._moved[touched] = True

    def release(self) -> NDArray[np.int64]:
        """The noised sum of every block, int64 (N, dimension); a second call gives the same bytes.

        A block without leaves is a public zero and has no noise.
        """
        moved = np.flatnonzero(self._moved)
        if moved.size:
            self._refresh(moved)
        return self._sums + self._noise

    def release_of(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Some rows of `release`, int64 (n, dimension).

        Raises:
            BadLeaves: other types, shapes or block numbers.
        """
        self._require_blocks(blocks, None)
        moved = blocks[self._moved[blocks]]
        if moved.size:
            self._refresh(np.unique(moved) if moved.size > 1 else moved)
        return np.asarray(self._sums[blocks] + self._noise[blocks])

    def erase(self, block: int) -> None:
        """Delete the content of a block for ever: it is a public zero from here on and takes no further leaf.

        Other sums were released under the noise of its nodes. A later release with the same noise, also of a sum that
        became zero, would reveal the difference of these sums.

        Raises:
            BadLeaves: no such block.
        """
        self._require_blocks(np.array([block], dtype=np.int64), None)
        self._counts[block] = self._above_at[block] = self._held[:, block] = _ERASED
        self._sums[block] = self._above[block] = self._noise[block] = 0
        for rows in self._rows:
            rows[block] = 0
        self._moved[block] = False

    def dump(self) -> bytes:
        """The state as bytes, without the digest that `BlockPlan.save` adds."""
        head = _STATE_HEAD.pack(STATE_VERSION, self.plan.blocks)
        return head + self._counts.astype("<i8").tobytes() + self._sums.astype("<i8").tobytes()

    def load(self, body: bytes) -> None:
        """Take over a state.

        Raises:
            BadState: not the bytes of such a state.
        """
        blocks, dimension = self._sums.shape
        expected = _STATE_HEAD.size + 8 * blocks * (1 + dimension)
        if len(body) != expected or _STATE_HEAD.unpack_from(body) != (STATE_VERSION, blocks):
            raise BadState(
                f"block state: expected version {STATE_VERSION} with {blocks} blocks in {expected} bytes, got another"
                f" version or number, in {len(body)} bytes"
            )
        held = np.frombuffer(body, dtype="<i8", offset=_STATE_HEAD.size).astype(np.int64)
        counts, sums = held[:blocks].copy(), held[blocks:].reshape(blocks, dimension).copy()
        if counts.min() < _ERASED or counts.max() > self.plan.plan.horizon or sums[counts == _ERASED].any():
            raise BadState(f"block state: expected 0 to {self.plan.plan.horizon} leaves of each block, got others")
        bound = largest_size(sums)
        if bound > LARGEST_SUM:
            raise BadState("block state: expected sums within 2^62, got larger ones")
        self._counts, self._sums, self._bound = counts, sums, bound
        self._held[:], self._above_at[:], self._noise[:] = -1, -1, 0
        self._moved[:] = counts > 0

    def _require_blocks(self, blocks: NDArray[np.int64], rows: int | None) -> None:
        if not isinstance(blocks, np.ndarray) or blocks.dtype != np.int64 or blocks.ndim != 1:
            got = f"{blocks.dtype} {blocks.shape}" if isinstance(blocks, np.ndarray) else type(blocks).__name__
            raise BadLeaves(f"block numbers: expected an int64 array of shape (n,), got {got}")
        if rows is not None and len(blocks) != rows:
            raise BadLeaves(f"block numbers: expected one for each of {rows} leaves, got {len(blocks)}")
        # As an unsigned integer, a negative number is a huge one.
        if len(blocks) and int(blocks.view(np.uint64).max()) >= self.plan.blocks:
            raise BadLeaves(f"block numbers: expected 0 to {self.plan.blocks - 1}, got one outside")

    def _require_kept(self, blocks: NDArray[np.int64]) -> None:
        if int(self._counts[blocks].min(initial=0)) == _ERASED:
            raise BadLeaves("blocks: expected leaves of blocks that are kept, got some of an erased one")

    def _refresh(self, blocks: NDArray[np.int64]) -> None:
        """Update the noise of these blocks (each named once) to their leaf counts."""
        ordinary = self._counts[blocks] + self._shift
        above = ordinary // self._base
        # The levels above the lowest change only once in b leaves of a block: their sum is kept.
        late = np.flatnonzero(above != self._above_at[blocks])
        if late.size:
            stale, index = blocks[late], above[late]
            total = np.zeros((len(stale), self.plan.plan.dimension), dtype=np.int64)
            for level in range(1, self._levels):
                total += self._digits(level, stale, index)
                index = index // self._base
            self._above[stale], self._above_at[stale] = total, above[late]
        self._noise[blocks] = self._above[blocks] + self._digits(0, blocks, ordinary)
        self._moved[blocks] = False

    def _digits(self, level: int, blocks: NDArray[np.int64], index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Signed node sums of a level, int64 (n, dimension), by the number of each block's digit on this level."""
        place, row = np.divmod(index, self._rows_drawn)
        missing = np.flatnonzero(self._held[level, blocks] != place)
        if missing.size:
            cells, nodes = blocks[missing].tolist(), [(level, number) for number in place[missing].tolist()]
            drawn = self._source.draw_cells(cells, nodes, self._nodes_drawn)
            self._rows[level][blocks[missing]] = signed_digits(drawn, self._base)
            self._held[level, blocks[missing]] = place[missing]
        return np.asarray(self._rows[level][blocks, row])


def _summed_by_block(
    blocks: NDArray[np.int64], leaves: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The blocks that have leaves, ascending, and the sum of each one's: int64 (m,) and (m, dimension)."""
    if len(blocks) == 1:
        return blocks, leaves
    if not np.all(blocks[1:] > blocks[:-1]):
        order = np.argsort(blocks, kind="stable")
        blocks, leaves = blocks[order], leaves[order]
    starts = np.flatnonzero(np.concatenate([[True], blocks[1:] != blocks[:-1]]))
    return blocks[starts], np.add.reduceat(leaves, starts, axis=0)
