"""The binary tree with Honaker's estimates from below: every node's sum is estimated from its whole subtree.

A completed node of level l has its own noised sum and, by its two children, a second one. Weighted by their
inverse variances they give an estimate of variance v_l = 2^l / (2^(l+1) - 1) of one node's: it nears one half.
With own noise z, the children's estimates' noises a and b, M = 2^(l+1) - 1 and y = a + b, the estimate's noise is

    (2^l z + (2^l - 1) y) / M  =  (y + z + (z - y)/M) / 2.

It is computed in whole numbers, rounded down, with guard bits: floor((y + z + floor((z - y)/M)) / 2). Adding one
whole number c to z and to y adds c to the result. So what is computed from noises is what would be computed from
noised sums, less the exact sum: the releases, rounding included, are a function of the noised nodes R x + z.

Sensitivity: the nodes of the binary tree, so L1 norm h and L2 norm sqrt(h) for the horizon's h levels. Only complete
nodes are part of a release, and no node that holds leaf j is complete before it. So the shift of `counting.counter`
moves no release before leaf j. Each node is drawn when it is complete, over the history until then
(`counting.completed`).

Source: Honaker 2015 (Efficient Use of Differentially Private Binary Trees), section 3.

*Completed.* Counters on a binary tree whose nodes are drawn when all their leaves have come, each over the history
until then.

Node (l, i) holds the leaves i 2^l + 1 to (i + 1) 2^l and is first used by the release after the last of them, by the
prefix walk of the binary digits. So it can be drawn at that step, and its address holds the history at that step: a
keyed running digest of all leaves so far, and of their origins (`nodes.NodeSource.histories`).

Suppose that a journal is rolled back to t leaves and continues with other ones. It shares with its lost branch only the
noise of nodes that were complete before, with the same leaves. So the releases of both branches together are those of
one counter in which a leaf is in at most 2 h nodes, h of each branch. They cost 2 epsilon (or 2 rho), twice the price
without the fork; `deploy/docs/proofs.md` has the proof, and what holds for k forks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.counter import Counter, DrawingCounter, Factorisation, Plan, Wanted
from hushstream.counting.digits import levels_for
from hushstream.counting.errors import BadPlan, BadState
from hushstream.counting.nodes import HISTORY_BYTES, NodeSource
from hushstream.privacy.mechanisms.noise import Parameter


class CompletedCounter(DrawingCounter):
    """Keeps, for each set bit of the number of leaves, the noise of that subtree: no node is drawn twice."""

    def __init__(self, plan: Plan, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan, nodes)
        self._held: dict[int, NDArray[np.int64]] = {}

    @abstractmethod
    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums of the kept noise, in lattice units."""

    def _noise(self) -> NDArray[np.int64]:
        return self._rounded(sum(self._held.values(), np.zeros(self.plan.dimension, dtype=np.int64)))

    def _over(self, places: Sequence[tuple[int, int]], histories: Sequence[bytes]) -> Wanted:
        """Nodes (level, index) that the leaves of ``histories`` complete, each over the history at its last leaf."""
        first = self.leaves + 1
        return Wanted(places, [histories[((index + 1) << level) - first] for level, index in places])

    def _dump_extra(self) -> bytes:
        return self._history + b"".join(self._held[level].astype("<i8").tobytes() for level in sorted(self._held))

    def _load_extra(self, extra: bytes) -> None:
        levels = [level for level in range(self.plan.levels) if self.leaves >> level & 1]
        size = HISTORY_BYTES + 8 * self.plan.dimension * len(levels)
        if len(extra) != size:
            raise BadState(f"counter state: expected {size} bytes of history and noise, got {len(extra)}")
        self._history = extra[:HISTORY_BYTES]
        held = np.frombuffer(extra, "<i8", offset=HISTORY_BYTES).astype(np.int64)
        self._held = dict(zip(levels, held.reshape(len(levels), self.plan.dimension), strict=True))


class BinaryCounter(CompletedCounter):
    """The papers' counter: the noise of a release is the sum of its nodes' noise.

    Nodes that no release uses are not drawn.
    """

    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        return fine

    def _fresh(self, end: int) -> list[tuple[int, int]]:
        """The nodes that the release after ``end`` leaves uses and that are not kept yet."""
        fresh, level = [], 0
        while end >> level << level > self.leaves:
            if end >> level & 1:
                fresh.append((level, (end >> level) - 1))
            level += 1
        return fresh

    def _wanted(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> Wanted:
        return self._over(self._fresh(self.leaves + len(leaves)), histories)

    def _receive(self, leaves: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
        end = self.leaves + len(leaves)
        fresh = {level: noise for (level, _), noise in zip(self._fresh(end), drawn, strict=True)}
        self._hold(end, fresh)

    def _hold(self, end: int, fresh: dict[int, NDArray[np.int64]]) -> None:
        """Keep the nodes that the release after ``end`` leaves uses, new ones and kept ones."""
        used = [level for level in range(end.bit_length()) if end >> level & 1]
        self._held = {level: fresh[level] if level in fresh else self._held[level] for level in used}

    def _noise_run(self, leaves: NDArray[np.int64], origin: bytes) -> NDArray[np.int64]:
        first, end = self.leaves + 1, self.leaves + len(leaves)
        # Only nodes of even index: a prefix whose bit l is set uses the node before it, of index (t >> l) - 1.
        places = [
            (level, index)
            for level in range(end.bit_length())
            for index in range(self.leaves >> level, end >> level)
            if not index & 1
        ]
        drawn = self.nodes.draw_over(*self._over(places, self._next_histories(leaves, origin)))
        noise = np.zeros((len(leaves), self.plan.dimension), dtype=np.int64)
        for level, held in self._held.items():
            noise[: ((self.leaves >> level) + 1 << level) - first] += held
        for (level, index), node in zip(places, drawn, strict=True):
            begin = ((index + 1) << level) - first
            noise[begin : begin + (1 << level)] += node
        by_place = dict(zip(places, drawn, strict=True))
        self._hold(end, {place[0]: by_place[place] for place in self._fresh(end)})
        return noise


_MOST_GUARD_BITS = 16
_SAFE_BITS = 52
"""Estimates grow by half a draw a level, sums of 40 of them by 2^9: within 2^62 if a draw is within 2^52."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HonakerTree(Plan):
    """Binary tree with estimates from below."""

    mechanism: ClassVar[str] = "binary tree, estimated from below"
    source: ClassVar[str] = "Honaker 2015"

    def _check(self) -> None:
        if self.noise.reach.bit_length() > _SAFE_BITS:
            raise BadPlan(f"noise: expected draws within 2^{_SAFE_BITS}, got up to {self.noise.reach:.3g}")

    @property
    def levels(self) -> int:
        """Levels of the horizon's binary tree, h."""
        return levels_for(2, self.horizon)

    @property
    def guard_bits(self) -> int:
        """Bits below the lattice unit that estimates keep."""
        return min(_MOST_GUARD_BITS, _SAFE_BITS - self.noise.reach.bit_length())

    @property
    def parameters(self) -> dict[str, Parameter]:
        """See `Plan.parameters`; it adds levels and guard bits."""
        return {**Plan.parameters.__get__(self), "levels": self.levels, "guard_bits": self.guard_bits}

    def mean_square(self, leaves: int) -> float:
        """Sum over levels of how often its bit is set, times v_l; up to the rounding to the lattice (1/12)."""
        total = Fraction(0)
        for level in range(self.levels):
            cycles, rest = divmod(leaves + 1, 2 << level)
            ones = (cycles << level) + max(0, rest - (1 << level))
            total += Fraction(ones * (1 << level), (2 << level) - 1)
        return float(total / leaves) * self.noise.variance

    def factorisation(self, leaves: int) -> Factorisation:
        """Nodes by level and index; a completed subtree's node at depth k below weighs 2^(l-k) / (2^(l+1) - 1)."""
        nodes = [(level, index) for level in range(self.levels) for index in range(leaves >> level)]
        column = {node: place for place, node in enumerate(nodes)}
        left, right = np.zeros((leaves, len(nodes))), np.zeros((len(nodes), leaves))
        for (level, index), place in column.items():
            right[place, index << level : (index + 1) << level] = 1
        for t in range(1, leaves + 1):
            for top in range(self.levels):
                if t >> top & 1:
                    for level in range(top + 1):
                        first = ((t >> top) - 1) << (top - level)
                        for index in range(first, first + (1 << (top - level))):
                            left[t - 1, column[level, index]] = 2**level / (2 ** (top + 1) - 1)
        return Factorisation(left, right)

    def open_on(self, nodes: NodeSource) -> Counter:
        return HonakerCounter(self, nodes)


class HonakerCounter(CompletedCounter):
    """Keeps the noise of each subtree's estimate, which contains that of all its nodes: each node is drawn once."""

    def __init__(self, plan: HonakerTree, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan, nodes)
        self._guard = plan.guard_bits

    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._guard:
            return fine
        return np.asarray((fine + (1 << (self._guard - 1))) >> self._guard)

    def _wanted(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> Wanted:
        parts = enumerate(self._completed(len(leaves)))
        return self._over([(level, index) for level, part in parts for index in part], histories)

    def _receive(self, leaves: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
        self._complete(len(leaves), drawn)

    def _noise_run(self, leaves: NDArray[np.int64], origin: bytes) -> NDArray[np.int64]:
        first = self.leaves + 1
        fine = np.zeros((len(leaves), self.plan.dimension), dtype=np.int64)
        times = np.arange(first, first + len(leaves))
        drawn = self.nodes.draw_over(*self._wanted(leaves, self._next_histories(leaves, origin)))
        for level, (start, estimates) in self._complete(len(leaves), drawn).items():
            prefix = times >> level
            rows = np.flatnonzero(prefix & 1)
            fine[rows] += estimates[prefix[rows] - 1 - start]
        return self._rounded(fine)

    def _completed(self, steps: int) -> list[range]:
        """The nodes that the next leaves complete, by level."""
        end = self.leaves + steps
        return [range(self.leaves >> level, end >> level) for level in range(end.bit_length())]

    def _complete(self, steps: int, drawn: NDArray[np.int64]) -> dict[int, tuple[int, NDArray[np.int64]]]:
        """Take leaves; returns for each level the index of the first estimate in use, and all estimates from it on."""
        end, parts = self.leaves + steps, self._completed(steps)
        own = np.split(drawn << self._guard, np.cumsum([len(part) for part in parts])[:-1])
        in_use: dict[int, tuple[int, NDArray[np.int64]]] = {}
        fresh = own[0]
        for level in range(end.bit_length()):
            held = self._held.pop(level, None)
            start = self.leaves >> level
            if held is not None:
                start, fresh = start - 1, np.concatenate([held[None], fresh])
            if len(fresh):
                in_use[level] = start, fresh
            if end >> level & 1:
                self._held[level] = fresh[-1]
            if level + 1 < end.bit_length():
                fresh = _estimates(own[level + 1], fresh, level + 1)
        return in_use


def _estimates(own: NDArray[np.int64], below: NDArray[np.int64], level: int) -> NDArray[np.int64]:
    """The noise of a level's estimates from its nodes' own and from the estimates below, int64 (nodes, dimension)."""
    pairs = below[: 2 * len(own)]
    children = pairs[0::2] + pairs[1::2]
    correction = (own - children) // ((2 << level) - 1)
    return np.asarray((own + children + correction) >> 1)
