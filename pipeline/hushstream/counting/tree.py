"""Digit trees: the binary tree of the papers, and the tree with negative digits that is the pure-epsilon default.

At level i the numbers are cut into nodes of b^i leaves. Written with digits from -((b-1)//2) to b//2, t leads from 0
over the multiples of b^i to t: digit d_i adds the next d_i nodes of level i, or takes back the last |d_i| ones. So the
noise of the release after t leaves is a signed sum of sum_i |d_i| nodes. A node may reach beyond t, because only its
noise is used: a release is the exact sum plus this signed noise. Such a node is drawn before all its leaves have come,
so its address cannot depend on its content. A counter that continued from an older state with other leaves would use
its noise again, and after b^l leaves the difference of the two branches would be exactly that of their leaves. So a
worker that cannot confirm that nothing was released after a state opens an epoch with new noise, at its price
(`hushstream.engine.machine.Abilities.request_epoch`). The binary tree has no such node: `counting.completed`.

Sensitivity. A = L R with R the 0-1 matrix of nodes and leaves and L the signs (the exact sum is L R x by the
walk above). At each level a leaf is in at most one node, so column j of R has at most h ones: L1 norm h, L2
norm sqrt(h), for h levels. The levels are those of the horizon, whatever t is. Adaptivity: `counting.counter`.

Sources: binary tree: Dwork, Naor, Pitassi, Rothblum 2010, and Chan, Shi, Song 2011. Negative digits: Andersson,
Pagh, Steiner, Torkamani 2025 (Count on Your Elders: Laplace vs Gaussian Noise, section 3).

*Crossover.* Chooses between fresh noise for each window and one counter over all windows, from the configuration alone.

A running total over windows that each have fresh noise sums that noise: after t windows its variance is t times
that of one window. A counter's grows with the logarithm of the horizon, but its noise is larger from the first
window on. Both cost a slot, which is in one window, the same epsilon.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.binary import BinaryCounter
from hushstream.counting.calibration import Budget, PureEpsilon
from hushstream.counting.counter import Counter, Factorisation, Plan
from hushstream.counting.digits import DEFAULT_HORIZON, LARGEST_BASE, SAFE_BITS, levels_for, lowest, mean_nodes, shift
from hushstream.counting.errors import BadPlan, BadState
from hushstream.counting.nodes import NodeSource
from hushstream.privacy.amounts import Number, count_text
from hushstream.privacy.mechanisms.noise import Parameter

DEFAULT_BASE = 15
"""With this base, 8 levels are enough for 2^30 leaves."""

LARGEST_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class NegativeDigitTree(Plan):
    """Base-b tree with negative digits.

    Attributes:
        base: b, from 2 to 63; `best_tree` finds the best one for a horizon.
        nodes_per_block: nodes that share a keyed stream and are kept together (whole groups of siblings). Small blocks
            cost more calls. Large ones cost memory, and more draws when a counter is made or restored. The number is
            part of the noise address.
    """

    mechanism: ClassVar[str] = "negative-digit tree"
    source: ClassVar[str] = "Andersson, Pagh, Steiner, Torkamani 2025"
    draws_ahead: ClassVar[bool] = True

    base: int = DEFAULT_BASE
    nodes_per_block: int = 128

    def _check(self) -> None:
        if type(self.nodes_per_block) is not int or not 1 <= self.nodes_per_block <= LARGEST_BLOCK:
            raise BadPlan(
                f"nodes_per_block: expected a whole number from 1 to {LARGEST_BLOCK}, got {self.nodes_per_block!r}"
            )
        largest = self.levels * (self.base // 2) * self.noise.reach
        if largest.bit_length() > SAFE_BITS:
            raise BadPlan(f"noise: expected sums of nodes within 2^62, got up to about 2^{largest.bit_length()}")

    @property
    def levels(self) -> int:
        """Levels of the horizon, h."""
        return levels_for(self.base, self.horizon)

    @property
    def groups_per_block(self) -> int:
        """Sibling groups whose noise comes from one keyed stream."""
        return max(1, self.nodes_per_block // self.base)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """See `Plan.parameters`; it adds base, levels and the size of a block."""
        return {
            **Plan.parameters.__get__(self),
            "base": self.base,
            "levels": self.levels,
            "groups_per_block": self.groups_per_block,
        }

    def mean_square(self, leaves: int) -> float:
        """Mean number of nodes in a release, times the variance of one."""
        return float(mean_nodes(self.base, self.levels, leaves)) * self.noise.variance

    def faded_changes(self, first: int, last: int, fade: float) -> NDArray[np.float64]:
        """Changes of the variance of a fading sum at each step; `faded_variance` adds them up.

        The fading sum weighs the difference between releases s and s - 1 by fade^(t - s). So it is the release after t
        leaves, less (1 - fade) fade^(t - 1 - s) times each earlier release s. A node that is used from release a on has
        the weight fade^(t - a) in it, and fade^(t - a) - fade^(t - e) after release e, which no longer uses it. Nodes
        are independent. So a node that step t begins to use adds its variance. A node that step t stops using, and
        release a used first, adds (1 - 2 fade^(t - a)) of it. The variance from earlier steps is multiplied by fade^2.

        Args:
            first, last: leaves after the first and the last of these steps, from 1 to the horizon.
            fade: in (0, 1].

        Returns:
            (last - first + 1,) float64, made with operations that IEEE 754 fixes.
        """
        ordinary = np.arange(first, last + 1, dtype=np.int64) + shift(self.base, self.levels)
        low, changes = lowest(self.base), np.zeros(last - first + 1)
        for level in range(self.levels):
            span = self.base**level
            # When a digit wraps around, all nodes behind the middle go out of use, and the nodes before the middle
            # come into use. Then each step up to the middle drops one of these, and each step beyond it adds one node.
            left = [1.0 - 2.0 * _power(fade, span * digit) for digit in range(1, self.base)]
            begins = float(low) + math.fsum(left[: self.base // 2])
            table = np.array([begins, *left[:low], *[1.0] * (self.base // 2)])
            changes += np.where(ordinary % span == 0, table[ordinary // span % self.base], 0.0)
        return changes * self.noise.variance

    def faded_variance(self, leaves: int, fade: float) -> float:
        """Variance of the fading sum, which weighs the difference of releases s and s - 1 by fade^(leaves - s).

        Args:
            leaves: from 0 to the horizon.
            fade: in (0, 1).
        """
        # What is older has less than 2^-60 of its weight.
        first = max(1, leaves - math.ceil(30.0 / -math.log2(fade)))
        changes = self.faded_changes(first, leaves, fade)
        return float(changes @ fade ** (2.0 * np.arange(len(changes))[::-1]))

    def _shape_text(self) -> str:
        return f"base {self.base}, {count_text(self.levels, 'level')}"

    def factorisation(self, leaves: int) -> Factorisation:
        """Nodes as they are walked over; see the module's docstring."""
        nodes: dict[tuple[int, int], int] = {}
        signs: list[tuple[int, int, int]] = []
        for t in range(1, leaves + 1):
            ordinary, position = t + shift(self.base, self.levels), 0
            for level in reversed(range(self.levels)):
                digit = ordinary // self.base**level % self.base - lowest(self.base)
                start = position // self.base**level
                for node in range(min(start, start + digit), max(start, start + digit)):
                    column = nodes.setdefault((level, node), len(nodes))
                    signs.append((t - 1, column, 1 if digit > 0 else -1))
                position += digit * self.base**level
        left, right = np.zeros((leaves, len(nodes))), np.zeros((len(nodes), leaves))
        for row, column, sign in signs:
            left[row, column] = sign
        for (level, node), column in nodes.items():
            right[column, node * self.base**level : (node + 1) * self.base**level] = 1
        return Factorisation(left, right)

    def open_on(self, nodes: NodeSource) -> Counter:
        return TreeCounter(self, nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryTree(NegativeDigitTree):
    """The papers' binary tree: base 2, digits 0 and 1. It is a reference only."""

    mechanism: ClassVar[str] = "binary tree"
    source: ClassVar[str] = "Dwork et al. 2010, Chan et al. 2011"
    draws_ahead: ClassVar[bool] = False

    base: int = 2

    @property
    def parameters(self) -> dict[str, Parameter]:
        """See `Plan.parameters`; it adds base and levels, because every node has a stream of its own."""
        return {**Plan.parameters.__get__(self), "base": self.base, "levels": self.levels}

    def open_on(self, nodes: NodeSource) -> Counter:
        return BinaryCounter(self, nodes)

    def _check(self) -> None:
        if self.base != 2:
            raise BadPlan(f"binary tree: expected base 2, got {self.base}")
        NegativeDigitTree._check(self)


def _power(base: float, exponent: int) -> float:
    """A power by squaring, because the last bit of a mathematical library's power may differ between processors."""
    found = 1.0
    while exponent:
        if exponent & 1:
            found *= base
        base *= base
        exponent >>= 1
    return found


def best_tree(
    budget: Budget, horizon: int = DEFAULT_HORIZON, dimension: int = 1, sensitivity: int = 1
) -> NegativeDigitTree:
    """The tree of the base with the smallest error over ``horizon`` leaves; of equals, that of the smallest base.

    All bases from 2 to 63 are tried, each with its fewest levels: the mean square error is the mean number of
    nodes in a release (`digits.mean_nodes`, closed form) times the variance of one, which grows with levels^2 for
    pure epsilon and with levels for rho. 1,024 leaves take base 13 and 3 levels; from base 2 ``horizon`` on there
    is one level, where every leaf has noise of its own and nothing is a tree.

    Args:
        budget: as for every plan.
        horizon: T_max.
        dimension: coordinates of a leaf.
        sensitivity: of a leaf.

    Raises:
        BadPlan, BadNoise: a setting out of range.
    """
    variances: dict[int, float] = {}

    def error(base: int) -> float:
        levels = levels_for(base, horizon)
        if levels not in variances:
            variances[levels] = budget.node_noise(levels, sensitivity, dimension).variance
        return float(mean_nodes(base, levels, horizon)) * variances[levels]

    base = min(range(2, LARGEST_BASE + 1), key=error)
    return NegativeDigitTree(budget=budget, dimension=dimension, sensitivity=sensitivity, horizon=horizon, base=base)


def signed_digits(drawn: NDArray[np.int64], base: int) -> NDArray[np.int64]:
    """Convert the noise of nodes to the noise of digits.

    The nodes of a group are in the order of the walk: first those before its middle, from the middle outwards, then
    those after it. Digit d is the sum of the first d of its side, with its sign.

    Args:
        drawn: int64 (blocks, groups * (base - 1), dimension).
        base: b.

    Returns:
        int64 (blocks, groups * base, dimension): one row for each ordinary digit of each group.
    """
    low = lowest(base)
    blocks, nodes, dimension = drawn.shape
    groups = drawn.reshape(-1, base - 1, dimension)
    signed = np.zeros((len(groups), base, dimension), dtype=np.int64)
    np.cumsum(groups[:, low:], axis=1, out=signed[:, low + 1 :])
    if low:
        signed[:, :low] = -np.cumsum(groups[:, :low], axis=1)[:, ::-1]
    return signed.reshape(blocks, nodes // (base - 1) * base, dimension)


class TreeCounter(Counter):
    """Keeps the exact sum and the number of leaves, and caches noise.

    The cache has the current block of each level and a run of releases. Noise is no state: blocks are drawn again when
    they are needed, and a block that no release uses is never drawn.
    """

    def __init__(self, plan: NegativeDigitTree, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan)
        self._nodes = nodes
        self._base = plan.base
        self._levels = plan.levels
        self._shift = shift(plan.base, plan.levels)
        self._groups = plan.groups_per_block
        self._block_rows = self._groups * plan.base
        self._cached: dict[int, tuple[int, NDArray[np.int64]]] = {}
        self._run_start = 0
        self._run = np.zeros((0, plan.dimension), dtype=np.int64)

    def _noise(self) -> NDArray[np.int64]:
        place = self.leaves - self._run_start
        if not 0 <= place < len(self._run):
            # A whole block's releases at once: most of the cost of one is that of numpy's calls.
            place = (self.leaves + self._shift) % self._block_rows
            self._run_start = self.leaves - place
            self._run = self._noise_from(self._run_start, self._block_rows)
        noise: NDArray[np.int64] = self._run[place]
        return noise

    def _noise_from(self, leaves: int, steps: int) -> NDArray[np.int64]:
        """Noise of the releases after ``leaves`` and after the next leaves, int64 (steps, dimension)."""
        first = leaves + self._shift
        noise = np.zeros((steps, self.plan.dimension), dtype=np.int64)
        constant = np.zeros(self.plan.dimension, dtype=np.int64)
        for level in range(self._levels):
            span = self._base**level
            low, high = first // span, (first + steps - 1) // span
            block = low // self._block_rows
            rows = self._rows(level, block, high // self._block_rows)
            rows = rows[low - block * self._block_rows : high + 1 - block * self._block_rows]
            if low == high:
                constant += rows[0]
            elif level == 0:
                noise += rows
            else:
                lengths = np.full(len(rows), span)
                lengths[0] = (low + 1) * span - first
                lengths[-1] = first + steps - high * span
                noise += np.repeat(rows, lengths, axis=0)
        noise += constant
        return noise

    def _rows(self, level: int, first: int, last: int) -> NDArray[np.int64]:
        """Signed node sums of whole blocks, one row for each ordinary digit, int64 (rows, dimension)."""
        held = self._cached.get(level)
        known = held[1] if held is not None and held[0] == first else None
        if known is not None and first == last:
            return known
        missing = [(level, block) for block in range(first if known is None else first + 1, last + 1)]
        nodes = self._nodes.draw(missing, self._groups * (self._base - 1))
        drawn = signed_digits(nodes, self._base).reshape(-1, self.plan.dimension)
        self._cached[level] = (last, drawn[-self._block_rows :])
        return drawn if known is None else np.concatenate([known, drawn])

    def _advance(self, leaves: NDArray[np.int64], origin: bytes) -> None:
        """Do nothing: noise follows from the number of leaves."""

    def _dump_extra(self) -> bytes:
        return b""

    def _load_extra(self, extra: bytes) -> None:
        if extra:
            raise BadState(f"counter state: expected no more bytes, got {len(extra)}")
        self._cached.clear()
        self._run = self._run[:0]


ReleaseChoice = Literal["fresh", "counter"]

_MOST_FADED = 1 << 16
"""Largest number of windows for the comparison if windows fade."""


def fresh_rmse(epsilon: Number, windows: int, sensitivity: int = 1) -> float:
    """Root mean square error of the running total over ``windows`` releases, each window with fresh noise.

    The mean over t = 1..T of t times the variance of discrete Laplace noise of scale sensitivity/epsilon is
    (T + 1) / 2 times that variance.

    Args:
        epsilon: of each window.
        windows: T.
        sensitivity: L1 distance by which a slot moves its window's sums.

    Raises:
        BadPlan, BadNoise: fewer than one window, or a setting for which no noise exists.
    """
    if not isinstance(windows, int) or isinstance(windows, bool) or windows < 1:
        raise BadPlan(f"windows: expected a whole number above 0, got {windows!r}")
    return math.sqrt((windows + 1) / 2 * PureEpsilon(epsilon).node_noise(1, sensitivity, 1).variance)


def counter_rmse(epsilon: Number, windows: int, horizon: int = DEFAULT_HORIZON, sensitivity: int = 1) -> float:
    """The same error for the best tree of the horizon, with one leaf for each window; closed form.

    Args:
        epsilon: of the whole stream.
        windows: T, at most the horizon.
        horizon: T_max, to which the tree is calibrated.
        sensitivity: as for `fresh_rmse`.

    Raises:
        BadPlan, BadNoise: a setting out of range.
    """
    return best_tree(PureEpsilon(epsilon), horizon, sensitivity=sensitivity).rmse(windows)


def choose_release(
    epsilon: Number, expected_windows: int, horizon: int = DEFAULT_HORIZON, sensitivity: int = 1, fade: float = 1.0
) -> ReleaseChoice:
    """``counter`` if its running total has the smaller error over the expected windows, else ``fresh``.

    If windows fade, the errors of the weighted totals are compared, over at most 65,536 windows. With fresh noise of
    variance v, window s adds fade^(2 (t - s)) v to the variance after window t. For a counter the variance follows from
    `NegativeDigitTree.faded_changes`.

    The choice uses no observations, so it reveals nothing. If errors are equal it is ``fresh``, which keeps no state.

    Args:
        epsilon: of a slot.
        expected_windows: how many windows the configuration expects.
        horizon: T_max of the counter, at least ``expected_windows``.
        sensitivity: L1 distance by which a slot moves its window's sums.
        fade: what a window's weight is multiplied by with each later one, in (0, 1].

    Raises:
        BadPlan, BadNoise: a setting out of range.
    """
    kept, fresh = (
        counter_rmse(epsilon, expected_windows, horizon, sensitivity),
        fresh_rmse(epsilon, expected_windows, sensitivity),
    )
    if fade < 1.0:
        windows = min(expected_windows, _MOST_FADED)
        tree = best_tree(PureEpsilon(epsilon), horizon, sensitivity=sensitivity)
        one = PureEpsilon(epsilon).node_noise(1, sensitivity, 1).variance
        kept = _faded_mean(tree.faded_changes(1, windows, fade), fade)
        fresh = _faded_mean(np.full(windows, one), fade)
    return "counter" if kept < fresh else "fresh"


def _faded_mean(changes: NDArray[np.float64], fade: float) -> float:
    """Mean over all steps of a variance: each step multiplies it by fade^2, then adds its own change.

    A change at step s is in the variances of steps s to T with the weights 1, fade^2, ..., fade^(2 (T - s)).
    """
    left = np.arange(len(changes), 0, -1)
    weights = -np.expm1(2.0 * left * math.log(fade)) / (1.0 - fade * fade)
    return float((changes * weights).mean())
