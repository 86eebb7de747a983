"""Counters on a binary tree whose nodes are drawn when their leaves are all there, each over what came until then.

Node (l, i) holds the leaves i 2^l + 1 to (i + 1) 2^l and is first used by the release after the last of them, by the
prefix walk of the binary digits. So it can be drawn at that step, and its address holds the history at that step: the
keyed running digest of all leaves so far, and of what they come from (`nodes.NodeSource.histories`).

A journal that is rolled back to t leaves and goes on over others therefore shares with its lost branch the noise of
nodes that were complete by then, under the same leaves, and no other: the releases of both branches together are those
of one counter in which a leaf is in at most 2 h nodes, h of each branch. They cost 2 epsilon (or 2 rho), one more than
without the fork; `deploy/docs/proofs.md` has the proof, and what holds for k forks.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.counter import Counter, Plan
from hushstream.counting.errors import BadState
from hushstream.counting.nodes import HISTORY_BYTES, NO_HISTORY, NodeSource


class CompletedCounter(Counter):
    """Keeps the history and, for each set bit of the number of leaves, the noise of that subtree: it redraws none."""

    def __init__(self, plan: Plan, nodes: NodeSource) -> None:
        """Before the first leaf."""
        super().__init__(plan)
        self._nodes = nodes
        self._history = NO_HISTORY
        self._held: dict[int, NDArray[np.int64]] = {}

    @abstractmethod
    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        """Sums of what is held, in lattice units."""

    def _noise(self) -> NDArray[np.int64]:
        return self._rounded(sum(self._held.values(), np.zeros(self.plan.dimension, dtype=np.int64)))

    def _took(self, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        """The history after each of these leaves."""
        histories = self._nodes.histories(self._history, leaves, origin)
        self._history = histories[-1]
        return histories

    def _draw(self, places: Sequence[tuple[int, int]], histories: Sequence[bytes]) -> NDArray[np.int64]:
        """Noise of nodes (level, index) that the leaves of ``histories`` complete, int64 (places, dimension)."""
        first = self.leaves + 1
        over = [histories[((index + 1) << level) - first] for level, index in places]
        return self._nodes.draw_over(places, over)

    def _dump_extra(self) -> bytes:
        return self._history + b"".join(self._held[level].astype("<i8").tobytes() for level in sorted(self._held))

    def _load_extra(self, extra: bytes) -> None:
        levels = [level for level in range(self.plan.levels) if self.leaves >> level & 1]
        width = 8 * self.plan.dimension
        if len(extra) != HISTORY_BYTES + width * len(levels):
            raise BadState(
                f"counter state: expected {HISTORY_BYTES + width * len(levels)} bytes of history and noise,"
                f" got {len(extra)}"
            )
        self._history = extra[:HISTORY_BYTES]
        held = (
            np.frombuffer(extra, "<i8", offset=HISTORY_BYTES).astype(np.int64).reshape(len(levels), self.plan.dimension)
        )
        self._held = dict(zip(levels, held, strict=True))


class BinaryCounter(CompletedCounter):
    """The papers' counter: the noise of a release is the sum of its nodes'; what no release uses is not drawn."""

    def _rounded(self, fine: NDArray[np.int64]) -> NDArray[np.int64]:
        return fine

    def _advance(self, leaves: NDArray[np.int64], origin: bytes) -> None:
        self._hold(leaves, self._took(leaves, origin))

    def _hold(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> None:
        """Draw what the release after these leaves uses and those before did not."""
        end = self.leaves + len(leaves)
        ends = {level: end >> level << level for level in range(end.bit_length()) if end >> level & 1}
        places = [(level, (last >> level) - 1) for level, last in ends.items() if last > self.leaves]
        kept = {level: self._held[level] for level, last in ends.items() if last <= self.leaves}
        drawn = self._draw(places, histories) if places else ()
        self._held = {**kept, **{level: noise for (level, _), noise in zip(places, drawn, strict=True)}}

    def _noise_run(self, leaves: NDArray[np.int64], origin: bytes) -> NDArray[np.int64]:
        histories = self._took(leaves, origin)
        first, end = self.leaves + 1, self.leaves + len(leaves)
        # Only nodes of even index: a prefix whose bit l is set uses the node before it, of index (t >> l) - 1.
        places = [
            (level, index)
            for level in range(end.bit_length())
            for index in range((first - 1) >> level, end >> level)
            if not index & 1
        ]
        noise = np.zeros((len(leaves), self.plan.dimension), dtype=np.int64)
        for level, held in self._held.items():
            noise[: (((first - 1) >> level) + 1 << level) - first] += held
        drawn = self._draw(places, histories)
        for (level, index), node in zip(places, drawn, strict=True):
            begin = ((index + 1) << level) - first
            noise[begin : begin + (1 << level)] += node
        self._held = self._after(end, dict(zip(places, drawn, strict=True)))
        return noise

    def _after(self, end: int, drawn: dict[tuple[int, int], NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
        """What the release after ``end`` leaves uses."""
        used = [(level, (end >> level) - 1) for level in range(end.bit_length()) if end >> level & 1]
        return {place[0]: drawn[place] if place in drawn else self._held[place[0]] for place in used}
