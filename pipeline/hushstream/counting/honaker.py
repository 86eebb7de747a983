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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.completed import CompletedCounter
from hushstream.counting.counter import Counter, Factorisation, Plan
from hushstream.counting.digits import levels_for
from hushstream.counting.drawing import Wanted
from hushstream.counting.errors import BadPlan
from hushstream.counting.nodes import NodeSource
from hushstream.privacy.mechanisms.noise import Parameter

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
