"""Counters that draw the noise of a leaf when it has come, many counters in one draw.

A draw of few integers is cheap compared with the calls around it. So counters that take leaves at the same time (one
for each user) first list the nodes that they need, and one pass draws all of them. The integers are the same as one
after the other.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.counter import Counter, Plan
from hushstream.counting.nodes import NO_HISTORY, NodeSource
from hushstream.counting.sums import require_leaves, row_sizes


class Wanted(NamedTuple):
    """Nodes by their places, each with the history in its noise address."""

    places: Sequence[tuple[int, ...]]
    histories: Sequence[bytes]


class DrawingCounter(Counter):
    """Keeps the history of its leaves. The noise of all leaves that come together is drawn in one request."""

    def __init__(self, plan: Plan, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan)
        self.nodes = nodes
        self._history = NO_HISTORY

    @abstractmethod
    def _wanted(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> Wanted:
        """The nodes that the releases after ``leaves`` need and that are not kept; ``histories`` has one for each."""

    @abstractmethod
    def _receive(self, leaves: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
        """Keep the noise of the wanted nodes, int64 (places, dimension), before the leaves are counted."""

    def _next_histories(self, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        """The history after each of these leaves."""
        histories = self.nodes.histories(self._history, leaves, origin)
        self._history = histories[-1]
        return histories

    @staticmethod
    def _receive_together(
        counters: Sequence[DrawingCounter], leaves: Sequence[NDArray[np.int64]], drawn: Sequence[NDArray[np.int64]]
    ) -> None:
        """`_receive` for many counters of one plan, one leaf each, for kinds that can do it in one pass."""
        for counter, leaf, part in zip(counters, leaves, drawn, strict=True):
            counter._receive(leaf, part)

    def _advance(self, leaves: NDArray[np.int64], origin: bytes) -> None:
        wanted = self._wanted(leaves, self._next_histories(leaves, origin))
        self._receive(leaves, self.nodes.draw_over(*wanted))


def add_together(counters: Sequence[DrawingCounter], leaves: NDArray[np.int64], origins: Sequence[bytes]) -> None:
    """Add one leaf to each of several counters of one plan, as `Counter.add` does, with one draw for all.

    Args:
        counters: at least one.
        leaves: int64 (n, dimension), one for each.
        origins: one for each.

    Raises:
        BadLeaves, HorizonReached: as `Counter.add`. Nothing is taken then.
    """
    plan = counters[0].plan
    require_leaves(leaves, plan.dimension)
    for counter, size in zip(counters, row_sizes(leaves), strict=True):
        counter._admit_size(size, 1)
    rows = [leaves[row : row + 1] for row in range(len(counters))]
    requests = [
        counter._wanted(row, counter._next_histories(row, origin))
        for counter, row, origin in zip(counters, rows, origins, strict=True)
    ]
    streams = [
        stream for counter, wanted in zip(counters, requests, strict=True) for stream in counter.nodes.streams(*wanted)
    ]
    drawn = plan.noise.draw(streams, plan.dimension)
    ends = np.cumsum([len(wanted.places) for wanted in requests])
    counters[0]._receive_together(counters, rows, np.split(drawn, ends[:-1]))
    for counter, row in zip(counters, rows, strict=True):
        counter._sum += row[0]
        counter.leaves += 1
