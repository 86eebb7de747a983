"""Makes the published model from releases and public counts: it is post-processing of these.

Of moments the model is their weighted sum, sum_i A_i S_i, which each node solves (`algorithm.moments`). Of gradients:

    a_i = T_i / (T_i + n (sigma f)^2)      T_i slots in the release of counter i, (sigma f Delta)^2 its noise's variance
    A = a / max a
    G = -sum_i A_i S_i
    H_j += (G_j - its previous value)^2
    w_j = R soft(G_j, c s) / sqrt(H_j),    s = sigma f Delta ||A||_2

Dual averaging with the steps of AdaGrad (Xiao 2010; Duchi, Hazan, Singer 2011), on noised sums; a_i is the share of
information in a sum of T_i unit vectors under noise of energy n (sigma f Delta)^2, so counters with little information
have a small weight. Frozen counters are treated as all others; those of one domain are all full, so they have the same
weight and one sum.

*The model is the same on every machine.* A_i is a whole number of 2^-16, G a sum of int64 products: exact, in any
order. The rest is additions, products, quotients and square roots of single doubles, each of which IEEE 754 fixes,
coordinate by coordinate, with no sum over coordinates; the weights are rounded to int32 in units of 2^-12 (ties to
even). G_j is the sum of its changes, and H_j the sum of their squares, so |w_j| <= R sqrt(versions) by Cauchy and
Schwarz: far below 2^19.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.digits import LARGEST_SUM, largest_size
from hushstream.systems.pdol.algorithm.counters import NodeRelease, Noise, noise_of
from hushstream.systems.pdol.algorithm.moments import WEIGHT_BITS, Leaf, Solved, leaf_of, solve, takes_moments
from hushstream.systems.pdol.algorithm.rows import BadRelease
from hushstream.systems.pdol.configuration import UNIT, PdolConfig

_ONE = 1 << WEIGHT_BITS


class Taken(Enum):
    """What the aggregator did with a release."""

    TAKEN = "taken"
    STALE = "stale"
    """It is not later than the last release that was taken of the same counter."""
    SCREENED = "screened"


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The published model.

    Attributes:
        version: from 0, with all weights 0.
        weights: int32 (n,) in units of 2^-12; of moments their weighted sums, int64 (cells,) in units of 2^-32.
        releases: number of releases in it.
        deviation: of the noise of one sum, in the same units; 0 for weights.
    """

    version: int
    weights: NDArray[np.int32] | NDArray[np.int64]
    releases: int
    deviation: float = 0.0

    def solved(self, dimension: int) -> Solved:
        """The linear model, as a node uses it."""
        if takes_moments(dimension):
            return solve(self.weights.astype(np.int64), self.deviation, dimension)
        return Solved(self.weights.astype(np.int32))


class Aggregate:
    """Folds releases; see the module's docstring. It holds public values alone."""

    def __init__(self, config: PdolConfig, noise: Noise | None = None) -> None:
        """Begin before the first release.

        Args:
            config: of the sound form.
            noise: of the releases; None for that of the configured counter.
        """
        self._config = config
        self._noise = noise_of(config.sharing, config.records.dimension) if noise is None else noise
        self._leaf = leaf_of(config.records.dimension)
        shape = config.domains, self._leaf.cells
        self._sums = np.zeros(shape, dtype=np.int64)
        self._leaves = np.zeros(config.domains, dtype=np.int64)
        self._generations = np.zeros(config.domains, dtype=np.int64)
        self._frozen = np.zeros(shape, dtype=np.int64)
        self._frozen_counters = np.zeros(config.domains, dtype=np.int64)
        self._sizes = np.array([config.slots_of(domain) for domain in range(config.domains)], dtype=np.float64)
        self._direction = np.zeros(shape[1], dtype=np.int64)
        self._energy = np.zeros(shape[1])
        self._taken = 0
        self._since = 0
        self._heard = np.zeros(config.domains, dtype=np.int64)
        self._absent = np.zeros(config.nodes, dtype=np.int64)
        self._expected = config.releases_per_version
        self.screened = 0
        self.model = Model(0, self._published(np.zeros(shape[1])), 0)

    @property
    def due(self) -> bool:
        """Whether enough releases have come for another version.

        A second release of a domain shows that a round is over. Then the version does not wait for dead domains or lost
        releases, if half of the required releases have come. But by then the next round is nearly over, too, and was
        computed with an old model. So the next version waits for seven eighths of the releases of this one, and each
        further version for one more, until all domains release again.
        """
        return self._since >= self._expected or self._round_is_over

    @property
    def _round_is_over(self) -> bool:
        return bool((self._heard > 1).any()) and 2 * self._since >= self._wanted

    @property
    def _wanted(self) -> int:
        """Number of releases for a version in normal operation: as configured, of domains with participants."""
        config = self._config
        if config.model.releases_per_version is not None:
            return config.releases_per_version
        staying = {config.domain_of(int(node)) for node in np.flatnonzero(self._absent == 0)}
        return max(1, len(staying))

    def on_membership(self, node: int, present: bool) -> None:
        """Note that a node joins or leaves.

        The releases of its counter stay. No version waits for a node that has left.

        Raises:
            BadRelease: there is no such node.
        """
        if not 0 <= node < len(self._absent):
            raise BadRelease(f"membership: expected a node below {len(self._absent)}, got {node}")
        self._absent[node] = not present
        self._expected = self._wanted

    def on_release(self, release: NodeRelease) -> Taken:
        """Take a release, unless it is stale or impossibly large.

        Raises:
            BadRelease: a domain, counter or number of leaves that does not exist; values of another type or size.
        """
        self._check(release)
        domain = release.domain
        held = int(self._generations[domain]), int(self._leaves[domain])
        if (release.generation, release.leaves) <= held:
            return Taken.STALE
        # All releases count toward the next version, so that a screened domain does not hold up the others.
        self._since += 1
        self._heard[domain] += 1
        fresh = release.generation > held[0]
        before = 0 if fresh else held[1]
        difference = release.values if fresh else release.values - self._sums[domain]
        size = self._config.slots_of(domain)
        if too_long(difference, longest(self._noise, size, self._leaf, before, release.leaves)):
            self.screened += 1
            return Taken.SCREENED
        if fresh:
            self._freeze(domain, release.generation)
        self._sums[domain] = release.values
        self._leaves[domain] = release.leaves
        self._taken += 1
        return Taken.TAKEN

    def publish(self) -> Model:
        """The next version, from the releases so far.

        Raises:
            BadRelease: the weighted sum might not fit into 64 bits; this needs millions of counters.
        """
        weights, frozen = self.weights()
        self._require_capacity()
        sums = weights @ self._sums + frozen @ self._frozen
        squares = int(weights @ weights) + int(frozen * self._frozen_counters @ frozen)
        deviation = math.sqrt(self._noise.variance) * math.sqrt(float(squares))
        self._expect()
        self._since = 0
        self._heard[:] = 0
        version = self.model.version + 1
        if takes_moments(self._config.records.dimension):
            self.model = Model(version, sums, self._taken, deviation)
        else:
            self._energy += (-sums - self._direction).astype(np.float64) ** 2
            self._direction = -sums
            self.model = Model(version, self._weigh(deviation), self._taken)
        return self.model

    def _expect(self) -> None:
        """Set the number of releases that the next version waits for; a phase end does not change it."""
        if self._since >= self._expected:
            self._expected = min(self._wanted, self._expected + 1)
        elif self._round_is_over:
            self._expected = max(1, 7 * self._since // 8)

    def weights(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """A_i of the current counter of each domain and of each of its frozen ones, int64 (D,), in units of 2^-16."""
        unknown = self._config.records.dimension * (self._noise.variance / float(self._leaf.unit**2))
        slots = self._leaves.astype(np.float64) * self._sizes
        shares = slots / np.maximum(slots + unknown, 1.0)
        full = self._sizes * float(self._config.sharing.horizon)
        frozen = np.where(self._frozen_counters > 0, full / (full + unknown), 0.0)
        most = max(float(shares.max()), float(frozen.max()), 2.0**-60)
        current, stand = np.rint(shares / most * _ONE), np.rint(frozen / most * _ONE)
        return current.astype(np.int64), stand.astype(np.int64)

    def dump(self) -> dict[str, NDArray[np.generic]]:
        """The state that later versions depend on, as arrays by name."""
        numbers = self._taken, self._since, self._expected, self.screened, self.model.version, self.model.releases
        counts = np.array(numbers)
        return {
            "sums": self._sums.copy(),
            "leaves": self._leaves.copy(),
            "generations": self._generations.copy(),
            "frozen": self._frozen.copy(),
            "frozen_counters": self._frozen_counters.copy(),
            "heard": self._heard.copy(),
            "absent": self._absent.copy(),
            "direction": self._direction.copy(),
            "energy": self._energy.copy(),
            "model": self.model.weights.copy(),
            "deviation": np.array(self.model.deviation),
            "counts": counts,
        }

    def load(self, state: dict[str, NDArray[np.generic]]) -> None:
        """Restore what `dump` gave.

        Raises:
            BadRelease: arrays of another shape or type, or missing ones.
        """
        own = self.dump()
        for name, array in own.items():
            found = state.get(name)
            if found is None or found.shape != array.shape or found.dtype != array.dtype:
                raise BadRelease(f"aggregate state: expected {name} of {array.dtype} and shape {array.shape}")
        self._sums, self._leaves = _int64(state["sums"]), _int64(state["leaves"])
        self._generations, self._frozen = _int64(state["generations"]), _int64(state["frozen"])
        self._direction, self._heard = _int64(state["direction"]), _int64(state["heard"])
        self._absent = _int64(state["absent"])
        self._energy = np.array(state["energy"], dtype=np.float64)
        taken, since, expected, screened, version, releases = (int(number) for number in _int64(state["counts"]))
        self._taken, self._since, self._expected, self.screened = taken, since, expected, screened
        self._frozen_counters = _int64(state["frozen_counters"])
        deviation = float(state["deviation"])
        self.model = Model(version, self._published(state["model"]), releases, deviation)

    def _published(self, values: NDArray[np.generic]) -> NDArray[np.int32] | NDArray[np.int64]:
        """A copy in the type of what is published."""
        return _int64(values) if takes_moments(self._config.records.dimension) else values.astype(np.int32)

    def _weigh(self, deviation: float) -> NDArray[np.int32]:
        size = np.abs(self._direction).astype(np.float64) - self._config.model.threshold * deviation
        signed = np.copysign(np.maximum(size, 0.0), self._direction.astype(np.float64))
        steps = np.sqrt(np.where(self._energy > 0, self._energy, 1.0))
        return np.rint(signed * (self._config.radius * UNIT) / steps).astype(np.int32)

    def _require_capacity(self) -> None:
        largest = (largest_size(self._sums) + largest_size(self._frozen)) * len(self._sums)
        if largest << WEIGHT_BITS > LARGEST_SUM:
            raise BadRelease("releases: expected a weighted sum below 2^62, got too many counters for that")

    def _freeze(self, domain: int, generation: int) -> None:
        """Keep the domain's last sum; the next counter begins empty.

        The sum has the weight of a full counter, even if its last releases were lost.
        """
        if self._leaves[domain]:
            self._frozen[domain] += self._sums[domain]
            self._frozen_counters[domain] += 1
        self._generations[domain] = generation

    def _check(self, release: NodeRelease) -> None:
        sharing, values = self._config.sharing, release.values
        if not 0 <= release.domain < self._config.domains:
            raise BadRelease(f"release: expected a domain below {self._config.domains}, got {release.domain}")
        if release.generation < 0 or not 1 <= release.leaves <= sharing.horizon:
            raise BadRelease(f"release: expected 1 to {sharing.horizon} leaves, got {release.leaves}")
        if values.dtype != np.int64 or values.shape != self._direction.shape:
            raise BadRelease(f"release: expected int64 of shape {self._direction.shape}, got {values.dtype}")


def _int64(array: NDArray[np.generic]) -> NDArray[np.int64]:
    return np.array(array, dtype=np.int64)


_DEVIATIONS = 6.0
_HALF_BITS = 20
_HALF = (1 << _HALF_BITS) - 1


def longest(noise: Noise, slots_per_release: int, leaf: Leaf, before: int, after: int) -> int:
    """Largest norm of the difference of two releases of a counter, in lattice units, rounded up.

    Args:
        noise: of the counter.
        slots_per_release: B.
        leaf: what it holds.
        before: leaves in the earlier release (0: there is none).
        after: leaves in the later one.
    """
    variance = noise.increment(before, after)
    moved = float((after - before) * slots_per_release * leaf.longest)
    return math.ceil(math.sqrt(moved * moved + leaf.cells * variance) + _DEVIATIONS * math.sqrt(variance))


def too_long(difference: NDArray[np.int64], limit: int) -> bool:
    """Whether the norm of a vector exceeds ``limit``, in whole numbers: the answer is the same on every machine."""
    if len(difference) and max(int(difference.max()), -int(difference.min())) > limit:
        return True
    # Cut each value into two halves: their squares are summed exactly in 64 bits for up to 2^20 coordinates.
    high, low = difference >> _HALF_BITS, difference & _HALF
    squares = (int(high @ high) << 2 * _HALF_BITS) + (int(high @ low) << (_HALF_BITS + 1)) + int(low @ low)
    return squares > limit * limit
