"""Opens the counters of a domain, and computes the figures of their noise that the aggregator uses.

The aggregator's model must be the same on every machine, so these figures are made of additions, multiplications,
divisions and square roots of single floats, which IEEE 754 fixes, and of exact fractions: no eigenvalues, no libm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, NegativeDigitTree, Plan, best_tree
from hushstream.counting.counter import Counter
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.systems.pdol.configuration import UNIT, PdolConfig, SharingConfig
from hushstream.systems.pdol.errors import PdolError

SYSTEM = "pdol"
PURPOSE = "release-noise"
MECHANISM = "sums of hinge gradients"
LARGEST_SUM_BITS = 32
"""One domain's sums, with noise, stay below 2^32 on the lattice: weighted sums of 2^14 counters fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a domain's releases, for each coordinate, in lattice units.

    Attributes:
        variance: mean variance over the horizon, (sigma f Delta)^2; 0 without noise.
        steps: l_0, l_1, ...: the noise after t leaves is sum_s l_s z_(t-s) with z of variance ``fresh``; empty if the
            counter's noise has another form.
        fresh: variance of one z.
        most: a bound on the variance of the difference of two releases, if ``steps`` is empty.
    """

    variance: float
    steps: tuple[float, ...]
    fresh: float
    most: float

    def increment(self, before: int, after: int) -> float:
        """Variance of the difference between the noise of the releases after ``after`` and ``before`` leaves."""
        if not self.steps:
            return self.most
        gap = after - before
        total = 0.0
        for place in range(after):
            earlier = self.steps[place - gap] if place >= gap else 0.0
            total += (self.steps[place] - earlier) ** 2
        return self.fresh * total


SILENT = Noise(0.0, (), 0.0, 0.0)


@lru_cache(maxsize=64)
def plan_of(sharing: SharingConfig, dimension: int) -> Plan:
    """The counter of one domain; at n = 10,000 a buffered Toeplitz counter holds half a megabyte.

    Raises:
        BadPlan, ConfigurationError: no counter has these settings.
    """
    budget = Concentrated.for_epsilon(sharing.epsilon, sharing.delta)
    plan: Plan
    if sharing.counter == "negative-digit":
        plan = replace(best_tree(budget, sharing.horizon, dimension, UNIT), nodes_per_block=1)
    else:
        plan = BufferedToeplitz(budget=budget, dimension=dimension, sensitivity=UNIT, horizon=sharing.horizon)
    # The weighted sum over all domains has to fit into int64 (see `aggregate`). The limit is far above any real
    # setting.
    largest = sharing.horizon * max(sharing.sizes) * UNIT + 64 * math.sqrt(figures_of(plan).variance)
    if largest > 1 << LARGEST_SUM_BITS:
        raise ConfigurationError(
            f"sharing: expected sums below 2^{LARGEST_SUM_BITS}, got a horizon, B or noise that may exceed them"
        )
    return plan


@lru_cache(maxsize=64)
def noise_of(sharing: SharingConfig, dimension: int) -> Noise:
    """The figures of a counter's noise; see the module's docstring."""
    return SILENT if sharing.counter == "exact" else figures_of(plan_of(sharing, dimension))


@lru_cache(maxsize=64)
def figures_of(plan: Plan) -> Noise:
    """The figures of any counter of this kind.

    Raises:
        ConfigurationError: a counter of another kind.
    """
    if isinstance(plan, BufferedToeplitz):
        steps = _steps(plan)
        fresh = plan.noise.variance * 4.0**-plan.fine_bits
        return Noise(fresh * _mean_square(steps), steps, fresh, 0.0)
    if not isinstance(plan, NegativeDigitTree):
        raise ConfigurationError(f"counter: expected blt or negative-digit, got {plan.mechanism}")
    # A release has the noise of at most b // 2 nodes of each level. The difference of two releases has that of twice as
    # many.
    nodes = 2 * plan.levels * (plan.base // 2)
    return Noise(plan.mean_square(plan.horizon), (), 0.0, nodes * plan.noise.variance)


def _steps(plan: BufferedToeplitz) -> tuple[float, ...]:
    """Coefficients of A C^-1: what one z adds to the running sum, by the counter's own recursion in floats."""
    pairs = [(float(weight), float(gap)) for weight, gap in plan.shape.pairs]
    buffers = [0.0] * len(pairs)
    total, steps = 0.0, []
    for step in range(plan.horizon):
        taken = 0.0
        for (weight, _), buffer in zip(pairs, buffers, strict=True):
            taken += weight * buffer
        correlated = (1.0 if step == 0 else 0.0) - taken
        buffers = [buffer - gap * buffer + correlated for (_, gap), buffer in zip(pairs, buffers, strict=True)]
        total += correlated
        steps.append(total)
    return tuple(steps)


def _mean_square(steps: tuple[float, ...]) -> float:
    """Mean over t of the sum of the first t squares."""
    running = mean = 0.0
    for step in steps:
        running += step * step
        mean += running
    return mean / len(steps)


def counter_address(
    config: PdolConfig, digest: bytes, nonce: bytes, epoch: int, domain: int, generation: int, partition: int = 0
) -> NoiseAddress:
    """The noise address of one counter: its domain (cell), and the number of full counters before it (window)."""
    return NoiseAddress(
        purpose=PURPOSE,
        deployment=config.deployment,
        genesis_nonce=nonce,
        system=SYSTEM,
        mechanism=MECHANISM,
        parameters={"slots_per_release": config.slots_of(domain)},
        config_digest=digest,
        epoch=epoch,
        window=generation,
        cell=domain,
        partition=partition,
    )


class NoNoise:
    """A source without noise, for sums of public data."""

    def __init__(self, dimension: int) -> None:
        """For leaves of ``dimension`` coordinates."""
        self._dimension = dimension

    def draw(self, blocks: Sequence[tuple[int, ...]], nodes: int) -> NDArray[np.int64]:
        return np.zeros((len(blocks), nodes, self._dimension), dtype=np.int64)

    def draw_over(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> NDArray[np.int64]:
        return np.zeros((len(places), self._dimension), dtype=np.int64)

    def streams(self, places: Sequence[tuple[int, ...]], histories: Sequence[bytes]) -> Sequence[KeyedStream]:
        """See `NodeSource`: there is no noise to draw."""
        raise PdolError(f"sums without noise: expected no draw, got one of {len(places)} nodes")

    def histories(self, before: bytes, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        """See `NodeSource`: no noise depends on it."""
        return [before] * len(leaves)


@dataclass(frozen=True, slots=True)
class Counters:
    """Opens the counters of one domain, one after the other.

    Attributes:
        plan: see `plan_of`.
        key: the domain's own.
        address: address of its first counter; later ones differ in the window.
        silent: without noise.
    """

    plan: Plan
    key: Key
    address: NoiseAddress
    silent: bool = False

    def open(self, generation: int) -> Counter:
        """An empty counter."""
        if self.silent:
            return self.plan.open_on(NoNoise(self.plan.dimension))
        return self.plan.open(self.key, replace(self.address, window=generation))

    def restore(self, generation: int, state: bytes) -> Counter:
        """Restore a counter that `save` stored.

        Raises:
            BadState: damaged, or of another plan, key or address.
        """
        if self.silent:
            counter = self.open(generation)
            counter.load(state)
            return counter
        return self.plan.restore(self.key, replace(self.address, window=generation), state)

    def save(self, generation: int, counter: Counter) -> bytes:
        """The state of a counter, with a keyed digest if there is noise."""
        if self.silent:
            return counter.dump()
        return self.plan.save(self.key, replace(self.address, window=generation), counter)
