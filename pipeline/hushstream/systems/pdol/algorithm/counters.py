"""Opens the counters of a domain, and computes the figures of their noise that the aggregator uses.

The aggregator's model must be the same on every machine, so these figures are made of additions, multiplications,
divisions and square roots of single floats, which IEEE 754 fixes, and of exact fractions: no eigenvalues, no libm.

*Node.* A domain's counter of gradients: it folds slots at the published model, and releases noised running sums.

A domain sums the gradients of B slots (nulls count) in a leaf, closes it, and releases the noised sum of all leaves so
far. After K leaves the counter has reached its horizon: its last release stays for ever, and a new counter with other
noise takes later slots.

*Guarantee.* rho-zCDP, record against null, for everything that all domains ever release together:

* Let neighbours differ in one slot of one domain, at leaf j of counter c. Given that all releases before leaf j is
  released are the same, the published models up to there are the same, since a model is a function of releases and of
  public counts alone. So every other slot, of any domain, has the same gradient on both sides (an adversary who saw the
  releases may have chosen the records), and leaf j differs by g with ||g||_2 <= 2^12 (`gradient`).
* Given also that the releases from j on are the same, models, and with them all later gradients, stay the same. So of
  all leaves of all counters just this one differs, by at most 2^12, and the counter's own proof
  (`hushstream.counting.buffered`, `hushstream.counting.counter`) bounds the divergence of its releases,
  adaptively, by alpha rho at every whole order alpha. Other counters have noise of their own, and equal leaves.
* One record instead of another moves the leaf by at most 2^13: 4 rho. r_i records of one person at domain i: leaves of
  one counter move by at most 2^12 each, so the counter's draws move by at most r_i times its sensitivity (triangle
  inequality over the columns): r_i^2 rho. If the records are in several counters c of the domain, sum_c r_ic^2 <=
  r_i^2. Domains have independent noise, so rho adds over them: sum_i r_i^2 rho.

*A condition.* The proof needs gradients at a model that is computed from releases. With a model that contains the
domain's own exact sums, one record would change the gradients of all later slots, and so move each later leaf by up to
B 2^12. So `fold` takes the published int32 model and knows no other; the audits check this.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BufferedToeplitz, Concentrated, NegativeDigitTree, Plan, best_tree
from hushstream.counting.counter import Counter
from hushstream.counting.errors import BadState
from hushstream.engine.values import ConfigurationError
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress
from hushstream.systems.pdol.algorithm.moments import add_moments, leaf_of, takes_moments
from hushstream.systems.pdol.algorithm.rows import LeafFull, PdolError, Rows, add_gradients, admit
from hushstream.systems.pdol.configuration import PdolConfig, SharingConfig

SYSTEM = "pdol"
PURPOSE = "release-noise"


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
    leaf = leaf_of(dimension)
    if sharing.counter == "negative-digit":
        plan = replace(best_tree(budget, sharing.horizon, leaf.cells, leaf.longest), nodes_per_block=1)
    else:
        plan = BufferedToeplitz(budget=budget, dimension=leaf.cells, sensitivity=leaf.longest, horizon=sharing.horizon)
    # The weighted sum over all domains has to fit into int64 (see `aggregate`). The limit is far above any real
    # setting.
    largest = sharing.horizon * max(sharing.sizes) * leaf.longest + 64 * math.sqrt(figures_of(plan).variance)
    if largest > 1 << leaf.largest_bits:
        raise ConfigurationError(
            f"sharing: expected sums below 2^{leaf.largest_bits}, got a horizon, B or noise that may exceed them"
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
        mechanism=f"sums of {leaf_of(config.records.dimension).content}",
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
        dimension: n.
        silent: without noise.
    """

    plan: Plan
    key: Key
    address: NoiseAddress
    dimension: int
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


_STATE_HEAD = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, eq=False)
class NodeRelease:
    """A release of a domain.

    Attributes:
        domain: number of the domain.
        generation: number of its counter, from 0.
        leaves: number of leaves in the sum.
        slots: number of slots in it with nulls; public.
        values: int64 (cells,), the noised sum in units of the leaf's lattice.
        last: the counter has reached its horizon.
    """

    domain: int
    generation: int
    leaves: int
    slots: int
    values: NDArray[np.int64]
    last: bool


class NodeState:
    """One domain; see the module's docstring. Its state is as sensitive as its records."""

    def __init__(self, domain: int, counters: Counters, slots_per_release: int) -> None:
        """Begin before the first slot."""
        self.domain = domain
        self.generation = 0
        self.slots = 0
        self._counters = counters
        self._size = slots_per_release
        self._counter = counters.open(0)
        self._leaf = np.zeros(counters.plan.dimension, dtype=np.int64)

    @property
    def capacity_left(self) -> int:
        """Number of slots that still fit into the open leaf; at 0 the leaf has to be released."""
        return self._size - self.slots

    @property
    def leaves(self) -> int:
        """Leaves of the current counter."""
        return self._counter.leaves

    def fold(self, rows: Rows, model: NDArray[np.int32]) -> NDArray[np.int8]:
        """Take slots at the published model.

        Args:
            rows: at most `capacity_left` slots; those that break a bound count as null.
            model: int32 (n,), the published weights and nothing else; moments do not depend on it.

        Returns:
            A `Refusal` for each slot, zone-private, int8 (m,).

        Raises:
            LeafFull: more slots than fit. No slot is taken then.
            PdolError: a model of another type or size. No slot is taken then.
        """
        if len(rows) > self.capacity_left:
            raise LeafFull(f"leaf: expected at most {self.capacity_left} slots, got {len(rows)}")
        dimension = self._counters.dimension
        if model.dtype != np.int32 or model.shape != (dimension,):
            raise PdolError(f"model: expected int32 of shape {(dimension,)}, got {model.dtype} of shape {model.shape}")
        slots, refused = admit(rows, dimension)
        if takes_moments(dimension):
            add_moments(self._leaf, slots, dimension)
        else:
            add_gradients(self._leaf, slots, model)
        self.slots += len(rows)
        return refused

    def release(self, origin: bytes = b"") -> NodeRelease:
        """Close the full leaf and release the noised sum so far.

        Args:
            origin: names the events of all slots so far; it is in the noise address of a leaf.

        Raises:
            LeafFull: the leaf is not full; only the number of slots may close a release.
        """
        if self.capacity_left:
            raise LeafFull(f"release: expected a full leaf of {self._size} slots, got {self.slots}")
        self._counter.add(self._leaf[None], origin)
        leaves, last = self._counter.leaves, self._counter.leaves == self._counters.plan.horizon
        released = NodeRelease(
            self.domain, self.generation, leaves, leaves * self._size, self._counter.release().values, last
        )
        self.drop_leaf()
        self._next_if_full()
        return released

    def _next_if_full(self) -> None:
        if self._counter.leaves == self._counters.plan.horizon:
            self.generation += 1
            self._counter = self._counters.open(self.generation)

    @property
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all its slots have come (`Plan.draws_ahead`)."""
        return not self._counters.silent and self._counters.plan.draws_ahead

    def drop_leaf(self) -> None:
        """Delete the open leaf: its content was already released, or never will be."""
        self._leaf[:] = 0
        self.slots = 0

    def skip(self, leaves: int) -> None:
        """Count leaves whose content was released but is no longer known, and delete the open leaf."""
        for _ in range(leaves):
            self.drop_leaf()
            self._counter.add(self._leaf[None])
            self._next_if_full()

    def redraw(self, counters: Counters) -> None:
        """Continue in another counter.

        Earlier releases stay, and later leaves, the open one first, are summed under new noise.

        Args:
            counters: under another key, or at another address.
        """
        self.generation += 1
        self._counters = counters
        self._counter = counters.open(self.generation)

    def dump(self) -> bytes:
        """The state as bytes."""
        head = _STATE_HEAD.pack(self.generation, self.slots)
        return head + self._leaf.astype("<i8").tobytes() + self._counters.save(self.generation, self._counter)

    def load(self, state: bytes) -> None:
        """Restore a dumped state of the same domain.

        Raises:
            BadState: the bytes are no state of this kind.
        """
        fixed = _STATE_HEAD.size + self._leaf.nbytes
        if len(state) < fixed:
            raise BadState(f"domain state: expected at least {fixed} bytes, got {len(state)}")
        generation, slots = _STATE_HEAD.unpack_from(state)
        if slots > self._size:
            raise BadState(f"domain state: expected at most {self._size} slots in the open leaf, got {slots}")
        counter = self._counters.restore(generation, state[fixed:])
        self.generation, self.slots, self._counter = generation, slots, counter
        self._leaf = np.frombuffer(state[_STATE_HEAD.size : fixed], dtype="<i8").astype(np.int64)
