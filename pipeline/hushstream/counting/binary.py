"""The papers' binary tree: nodes are drawn when all their leaves have come, each over the history until then.

Node (l, i) holds the leaves i 2^l + 1 to (i + 1) 2^l and is first used by the release after the last of them, by the
prefix walk of the binary digits. So it can be drawn at that step, and its address holds the history at that step: a
keyed running digest of all leaves so far, and of their origins (`nodes.NodeSource.histories`).

Suppose that a journal is rolled back to t leaves and continues with other ones. It shares with its lost branch only the
noise of nodes that were complete before, with the same leaves. So the releases of both branches together are those of
one counter in which a leaf is in at most 2 h nodes, h of each branch. They cost 2 epsilon (or 2 rho), twice the price
without the fork; `deploy/docs/proofs.md` has the proof, and what holds for k forks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.counter import DrawingCounter, Plan, Wanted
from hushstream.counting.errors import BadState
from hushstream.counting.nodes import HISTORY_BYTES, NodeSource


class BinaryCounter(DrawingCounter):
    """Keeps, for each set bit of the number of leaves, the noise of that node; a release's noise is their sum.

    No node is drawn twice, and none that no release uses.
    """

    def __init__(self, plan: Plan, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan, nodes)
        self._held: dict[int, NDArray[np.int64]] = {}

    def _noise(self) -> NDArray[np.int64]:
        return np.asarray(sum(self._held.values(), np.zeros(self.plan.dimension, dtype=np.int64)))

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
