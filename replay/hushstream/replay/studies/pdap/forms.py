"""Other mechanisms for the same rewards at the same epsilon, to compare with disjoint blocks.

* *per event*: a counter for each (cell, arm), released after each of its events. Here it is read when a window closes,
  which gives the same information. Its noise is that of a tree over 2^20 leaves: the papers' binary one, or the better
  one with negative digits. A reward is in one counter and in as many nodes as the tree has levels.
* *exponential*: when a window closes, each cell with enough outcomes names one arm, by the exponential mechanism on the
  arms' clicks (sensitivity 1), and its outcomes are used up. Cells with too few outcomes give them to the parent.

The noise of trees is drawn node by node from the world's generator. It protects no one, and is for simulations only.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from hushstream.counting import PureEpsilon, best_tree
from hushstream.counting.digits import levels_for, lowest, shift
from hushstream.engine.configuration import config_digest
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.exponential import exponential_choice
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, laplace_scale, laplace_variance
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdap.algorithm.aggregate import Aggregate
from hushstream.systems.pdap.algorithm.blocks import Blocks, gathered, joined
from hushstream.systems.pdap.algorithm.estimate import Observed
from hushstream.systems.pdap.algorithm.outcomes import Release
from hushstream.systems.pdap.cells import Int64, levels_of
from hushstream.systems.pdap.configuration import PdapConfig
from hushstream.systems.pdap.counter.pending import Counter

HORIZON = 1 << 20
"""The horizon in leaves of each per-event counter."""


def exact_noise(window: int, blocks: Blocks, history: bytes) -> Int64:
    """No noise: for comparisons on public data."""
    return np.zeros(len(blocks), dtype=np.int64)


class TreeNoise:
    """The noise of the prefix sums of many counters, made node by node as in `hushstream.counting.tree`."""

    def __init__(self, kind: Literal["binary", "negative-digit"], epsilon: float, seed: int) -> None:
        """Make trees over `HORIZON` leaves at ``epsilon`` a leaf."""
        self.base = 2 if kind == "binary" else best_tree(PureEpsilon(epsilon), HORIZON, 1, 1).base
        self.levels = levels_for(self.base, HORIZON)
        scale = laplace_scale(epsilon, self.levels)
        self.variance = laplace_variance(*scale)
        self._ratio = -scale[0] / scale[1]
        self._draws = Draws(seed, f"pdap-tree {kind} {epsilon!r}")

    def prefixes(self, counters: Int64, leaves: Int64) -> tuple[Int64, Int64]:
        """Noise of the sum of the first ``leaves`` of each counter, and the number of nodes in it: (n,) each."""
        ordinary, position = leaves + shift(self.base, self.levels), np.zeros_like(leaves)
        noise, nodes = np.zeros_like(leaves), np.zeros_like(leaves)
        for level in reversed(range(self.levels)):
            width = self.base**level
            digits, start = ordinary // width % self.base - lowest(self.base), position // width
            for step in range(int(np.abs(digits).max(initial=0))):
                here = np.flatnonzero(np.abs(digits) > step)
                node = start[here] + np.where(digits[here] > 0, step, -step - 1)
                noise[here] += np.sign(digits[here]) * self._node(counters[here], level, node)
            nodes += np.abs(digits)
            position += digits * width
        return noise, nodes

    def _node(self, counters: Int64, level: int, node: Int64) -> Int64:
        """Discrete Laplace noise, as the difference of two geometric variables."""
        uniform = self._draws.uniforms(counters, level, 2, node)
        geometric = np.floor(np.log1p(-uniform) * self._ratio)
        return np.asarray(geometric[:, 0] - geometric[:, 1], dtype=np.int64)


class PerEvent(Aggregate):
    """The aggregator of per-event counters: it knows only the latest noised prefix sum of each counter."""

    def __init__(self, config: PdapConfig, kind: Literal["binary", "negative-digit"], seed: int) -> None:
        """Make a counter for every (cell, arm); `counter` takes the outcomes."""
        super().__init__(config)
        self._tree = TreeNoise(kind, config.release.epsilon, seed)
        self._arms = config.arms
        self._sums = Blocks.none()
        self._found = 0.0
        # The counter gives exact sums; `fold` adds the noise.
        self.counter = Counter(config, exact_noise)

    def fold(self, release: Release) -> None:
        """Add the window's outcomes to their counters, and read all of them again."""
        before = self._observed
        super().fold(release)
        self._observed = before
        self._sums = gathered([self._sums, release.blocks])
        rows = np.array([self.partition.row(cell) for cell in self._sums.cells.tolist()], dtype=np.int64)
        noise, nodes = self._tree.prefixes(rows * self._arms + self._sums.arms, self._sums.counts)
        sizes = self._sums.counts.astype(np.float64)
        scatter = self._config.estimate.reward_variance / sizes
        precision = 1.0 / (scatter + nodes * self._tree.variance / sizes**2)
        weighted = precision * (self._sums.sums + noise) / sizes
        self._observed = Observed.none().plus(Observed(rows, self._sums.arms, precision, weighted))
        self._found = float(weighted.sum() / precision.sum()) if len(precision) else 0.0

    @property
    def grand_mean(self) -> float:
        """The mean weighted by precision, as the plain sum of this many noisy counters would be mostly noise."""
        return min(1.0, max(0.0, self._found))


class SelectedCounter(Counter):
    """A counter whose blocks name their best arm; the release is (cell, arm, 1, 1)."""

    def __init__(self, config: PdapConfig, key: Key) -> None:
        """Draw choices under ``key``."""
        super().__init__(config, exact_noise)
        self._key = key
        self._waiting = Blocks.none()

    def close(self, window: int) -> Release:
        """Close the window as `Counter.close` does, but let each block name an arm."""
        exact = super().close(window)
        waiting = gathered([self._waiting, exact.blocks])
        found: list[Blocks] = []
        for level in range(self._grid.levels, -1, -1):
            deep = levels_of(waiting.cells) >= level
            above = self._grid.ancestors(waiting.cells[deep], level)
            done = np.zeros(len(waiting), dtype=bool)
            for cell in np.unique(above).tolist():
                places = np.flatnonzero(deep)[above == cell]
                some = gathered([Blocks(np.full(len(places), cell), *_rest(waiting.take(places)))])
                if some.counts.sum() >= self._least(len(some)):
                    found.append(self._choice(window, cell, some))
                    done[places] = True
            waiting = waiting.take(~done)
        self._waiting = waiting
        return Release(window, joined([Blocks.none(), *found]), exact.arrived, exact.arrivals, exact.outcomes)

    def _least(self, arms: int) -> float:
        """How many outcomes are enough for the best of ``arms`` arms to lead by 2 ln(arms) / eps clicks."""
        return 2 * math.log(arms + 1) * self._config.release.kappa / self._config.release.epsilon

    def _choice(self, window: int, cell: int, some: Blocks) -> Blocks:
        address = NoiseAddress(
            "choice", "study", bytes(32), "pdap", "exponential", {}, config_digest(self._config), 0, window, (cell,)
        )
        stream = KeyedStream(self._key, address)
        best = exponential_choice(stream, some.sums, self._config.release.epsilon, 1)
        one = np.ones(1, dtype=np.int64)
        return Blocks(np.array([cell]), some.arms[best : best + 1], one, one)


def _rest(blocks: Blocks) -> tuple[Int64, Int64, Int64]:
    return blocks.arms, blocks.counts, blocks.sums


class Selected(Aggregate):
    """The aggregator of named arms: an arm that is named counts as clicked, without further noise."""

    def __init__(self, config: PdapConfig, key: Key) -> None:
        """Use the counter that names arms."""
        super().__init__(config)
        self._variances = np.zeros_like(self._variances)
        self.counter = SelectedCounter(config, key)
