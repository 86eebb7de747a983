"""Sums of a partition's windows through a counter, published window by window as differences.

After window t the counter's release is the noised total of all windows so far. Its difference to the release before is
published. The differences of all windows up to t add up to the release after t, so a reader of crowds need not know
that there is a counter. Differences are post-processing of the counter's releases.

If the model forgets, differences are added up with weights (`hushstream.systems.p2b.server.forgetting`). The variance
that is published is then that of the weighted sum.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import Counter, NegativeDigitTree
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress


class RunningStep(NamedTuple):
    """What one window adds: noised sums, int64 (cells,), and how much the variance of the total changes.

    If windows fade, the change is V(t) - fade^2 V(t - 1), the part that does not come from fading.
    """

    sums: NDArray[np.int64]
    variance: float


class RunningSums:
    """The counter over the windows of one partition."""

    def __init__(self, tree: NegativeDigitTree, key: Key, address: NoiseAddress, fade: float = 1.0) -> None:
        """Begin before the first window.

        Args:
            tree: the mechanism of the counter.
            key, address: name the noise.
            fade: factor of the weights of earlier windows with each later one.
        """
        self._tree = tree
        self._fade = fade
        self._counter: Counter = tree.open(key, address)

    @property
    def windows(self) -> int:
        """How many windows were added."""
        return self._counter.leaves

    def step(self, sums: NDArray[np.int64]) -> RunningStep:
        """Add a window's exact sums, (cells,), and return what is published for it.

        Raises:
            HorizonReached: more windows than the counter's price pays for.
        """
        before = self._released()
        self._counter.add(sums[None, :])
        return RunningStep(self._counter.release().values - before, self._change())

    def dump(self) -> bytes:
        """The state; as sensitive as the slots."""
        return self._counter.dump()

    def load(self, state: bytes) -> None:
        """Return to a state that `dump` wrote.

        Raises:
            BadState: these are not the bytes of such a state.
        """
        self._counter.load(state)

    def _released(self) -> NDArray[np.int64]:
        if not self._counter.leaves:
            return np.zeros(self._tree.dimension, dtype=np.int64)
        return self._counter.release().values

    def _change(self) -> float:
        leaves = self._counter.leaves
        if self._fade == 1.0:
            return self._variance(leaves) - self._variance(leaves - 1)
        return float(self._tree.faded_changes(leaves, leaves, self._fade)[0])

    def _variance(self, leaves: int) -> float:
        """The variance of the total after t windows: t m(t) - (t-1) m(t-1), m(t) being the mean variance over 1..t."""
        if not leaves:
            return 0.0
        rest = (leaves - 1) * self._tree.mean_square(leaves - 1) if leaves > 1 else 0.0
        return leaves * self._tree.mean_square(leaves) - rest


def open_running(
    tree: NegativeDigitTree | None, key: Key, address: NoiseAddress, fade: float = 1.0
) -> RunningSums | None:
    """The counter of a partition; None if each window has fresh noise. Arguments as in `RunningSums`."""
    return None if tree is None else RunningSums(tree, key, address, fade)
