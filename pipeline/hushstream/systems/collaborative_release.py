"""Running sums of features times reward, one block for each user, and what of them may leave.

The sums are not projected by the relation matrix: that is done afterwards, to what was released. A reward so
moves its own user's d numbers and nothing else, by at most the length of its features, whatever the matrix
(the paper, Algorithm 1, noises the projected sum of d*N numbers instead, with a sensitivity that the matrix
enters). All users' blocks together cost one reward what one block costs (parallel composition).
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import (
    BinaryTree,
    BlockPlan,
    Budget,
    BufferedToeplitz,
    Concentrated,
    Counter,
    HonakerTree,
    NegativeDigitTree,
    Neighbours,
    Plan,
    PureEpsilon,
    best_tree,
)
from hushstream.counting.blocks import BlockCounters
from hushstream.privacy.amounts import DELTA_ONE, Cost
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import (
    KeyedStream,
    NoiseAddress,
    Parameter,
)
from hushstream.privacy.promise import Guarantee, Lifetime
from hushstream.privacy.rewards import LocalReward
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.collaborative_configuration import GRID_BITS, ContinualConfig, FeatureConfig
from hushstream.systems.collaborative_rows import Rows

_MARGIN = 1 + 2.0**-30
"""Above what `short_enough` lets pass, and far below anything that matters."""

NEIGHBOURS = Neighbours(
    relation="replace one reward: neighbours differ in one reward of one user, any two values in [0, 1]",
    unit="one reward",
    any_content=True,
)
NOT_PROTECTED = (
    "contexts, features of arms, which arm was shown, the relation graph, and when anything happened (all public)",
    "how many rewards each user has given",
)


class Moments(ABC):
    """Running sums under one mechanism, in one epoch of noise; N users, d features."""

    def __init__(self, nodes: int, dimension: int) -> None:
        """Start with no rewards."""
        self._exact = np.zeros((nodes, dimension), dtype=np.int64)
        self._steps = np.zeros(nodes, dtype=np.int64)

    @property
    @abstractmethod
    def mechanism(self) -> str:
        """Its name."""

    @property
    @abstractmethod
    def parameters(self) -> Mapping[str, Parameter]:
        """Everything that shapes the noise."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance of the noise in one sum, averaged over the horizon, in squared units of the reward."""

    @abstractmethod
    def add(self, rows: Rows) -> NDArray[np.int64]:
        """Take rows in the order of their nodes; returns what was added, int64 (n, d), on the lattice."""

    @abstractmethod
    def sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Noised sums of some users, int64 (m, d), on the lattice; asking again gives the same."""

    def held(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Users that have rewards, int64 (m,), and their exact sums, int64 (m, d)."""
        blocks = np.flatnonzero(self._steps)
        return blocks, self._exact[blocks]

    def carry(self, blocks: NDArray[np.int64], sums: NDArray[np.int64]) -> None:
        """Begin with exact sums of an earlier epoch: one leaf for each user."""
        if len(blocks):
            self._take(blocks, sums)

    def dump(self) -> bytes:
        """The state; as sensitive as the rewards."""
        return self._steps.astype("<i8").tobytes() + self._exact.astype("<i8").tobytes() + self._dump_noise()

    def load(self, state: bytes) -> None:
        """Take over a state.

        Raises:
            HushstreamError: not the bytes of such a state.
        """
        nodes, dimension = self._exact.shape
        fixed = 8 * nodes * (1 + dimension)
        if len(state) < fixed:
            raise HushstreamError(f"moments: expected at least {fixed} bytes of state, got {len(state)}")
        held = np.frombuffer(state, "<i8", nodes * (1 + dimension)).astype(np.int64)
        self._steps, self._exact = held[:nodes].copy(), held[nodes:].reshape(nodes, dimension).copy()
        self._load_noise(state[fixed:])

    def _take(self, blocks: NDArray[np.int64], leaves: NDArray[np.int64]) -> None:
        """Add one leaf to each of some different users."""
        self._exact[blocks] += leaves
        self._steps[blocks] += 1

    def _dump_noise(self) -> bytes:
        return b""

    def _load_noise(self, state: bytes) -> None:
        if state:
            raise HushstreamError(f"moments: expected no state of noise, got {len(state)} bytes")


def budget_of(release: ContinualConfig) -> Budget:
    """The configured price as the counter's calibration takes it."""
    if release.noise == "laplace":
        return PureEpsilon(release.epsilon)
    return Concentrated.for_epsilon(release.epsilon, release.delta)


def lattice_sensitivity(features: FeatureConfig, norm: str) -> int:
    """How far one reward moves a sum, in units of 2^-`GRID_BITS`, rounded up; see `Rows.lattice`."""
    length = features.l1_bound if norm == "L1" else features.norm
    return math.ceil(length * _MARGIN * (1 << GRID_BITS))


@lru_cache(maxsize=64)
def plan_of(release: ContinualConfig, features: FeatureConfig) -> Plan:
    """The counter of one user's block.

    Raises:
        BadPlan: no counter has these settings.
    """
    budget, horizon, dimension = budget_of(release), release.horizon, features.dimension
    sensitivity = lattice_sensitivity(features, budget.norm)
    if release.mechanism == "negative-digit":
        return best_tree(budget, horizon, dimension, sensitivity)
    kinds: Mapping[str, type[Plan]] = {"binary": BinaryTree, "honaker": HonakerTree, "blt": BufferedToeplitz}
    kind = kinds[release.mechanism]
    return kind(budget=budget, dimension=dimension, sensitivity=sensitivity, horizon=horizon)


@lru_cache(maxsize=64)
def counter_guarantee_of(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """What a counter's releases promise for one reward, and for all rewards of one user in all epochs."""
    plan = plan_of(release, features)
    zone = "counter" if release.trust == "server" else "edge"
    promise = plan.guarantee(NEIGHBOURS, release.rewards_per_user * release.epochs, "hosted", zone)
    return replace(
        promise,
        mechanism=f"{nodes} users, every reward in one user's counter, each: {promise.mechanism}",
        conditions=(*promise.conditions, *_of_epochs(release.epochs)),
        not_protected=(*NOT_PROTECTED, *promise.not_protected),
    )


def _of_epochs(epochs: int) -> tuple[str, ...]:
    """What the price of one reward leaves out where noise may have further epochs; the lifetime has all of them."""
    if epochs == 1:
        return ()
    return (f"no second epoch of noise: each one, {epochs} at most, costs every reward before it the same again",)


class CounterMoments(Moments):
    """Moments on counters: digit trees in one arena, other counters one by one.

    With ``single_leaves`` each reward is a leaf of its own (at the edge, where a batch is cut must not change the
    noise); otherwise a step's rewards of one user are one leaf.
    """

    def __init__(self, plan: Plan, nodes: int, key: Key, address: NoiseAddress, single_leaves: bool) -> None:
        """Start with no rewards, under noise that ``key`` and ``address`` name."""
        super().__init__(nodes, plan.dimension)
        self._plan = plan
        self._single_leaves = single_leaves
        self._arena: BlockCounters | None = None
        self._counters: list[Counter] = []
        # What the journal records must be what the noise is drawn under: a group of trees has names of its own.
        self._noise: Plan | BlockPlan = plan
        if isinstance(plan, NegativeDigitTree):
            self._noise = group = BlockPlan(plan=plan, blocks=nodes)
            self._arena = group.open(key, address)
        else:
            self._counters = [plan.open(key, replace(address, cell=node)) for node in range(nodes)]

    @property
    def mechanism(self) -> str:
        """See `Moments.mechanism`."""
        return self._noise.mechanism

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """See `Moments.parameters`."""
        return self._noise.parameters

    @property
    def variance(self) -> float:
        """See `Moments.variance`."""
        return mean_variance(self._plan)

    def add(self, rows: Rows) -> NDArray[np.int64]:
        """See `Moments.add`."""
        quantised = rows.lattice()
        nodes = rows.nodes.astype(np.int64)
        if not self._single_leaves:
            blocks, starts = np.unique(nodes, return_index=True)
            self._take(blocks, np.add.reduceat(quantised, starts, axis=0))
            return quantised
        rank = np.arange(len(nodes)) - np.searchsorted(nodes, nodes)
        for turn in range(int(rank.max()) + 1):
            now = rank == turn
            self._take(nodes[now], quantised[now])
        return quantised

    def sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Moments.sums`."""
        if self._arena is not None:
            return self._arena.release_of(blocks)
        return np.array([self._counters[block].release().values for block in blocks.tolist()])

    def _take(self, blocks: NDArray[np.int64], leaves: NDArray[np.int64]) -> None:
        if self._arena is not None:
            self._arena.add(blocks, leaves)
        else:
            for block, leaf in zip(blocks.tolist(), leaves, strict=True):
                self._counters[block].add(leaf[None, :])
        super()._take(blocks, leaves)

    def _dump_noise(self) -> bytes:
        if self._arena is not None:
            return self._arena.dump()
        parts = [counter.dump() for counter in self._counters]
        return struct.pack(f"<{len(parts)}q", *map(len, parts)) + b"".join(parts)

    def _load_noise(self, state: bytes) -> None:
        if self._arena is not None:
            self._arena.load(state)
            return
        place = 8 * len(self._counters)
        if len(state) < place:
            raise HushstreamError(f"moments: expected {len(self._counters)} counters, got {len(state)} bytes")
        for counter, size in zip(self._counters, struct.unpack_from(f"<{len(self._counters)}q", state), strict=True):
            counter.load(state[place : place + size])
            place += size


class ExactMoments(Moments):
    """Sums without noise, for public data only."""

    @property
    def mechanism(self) -> str:
        """See `Moments.mechanism`."""
        return "exact"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """See `Moments.parameters`: none."""
        return {}

    @property
    def variance(self) -> float:
        """See `Moments.variance`: none."""
        return 0.0

    def add(self, rows: Rows) -> NDArray[np.int64]:
        """See `Moments.add`."""
        quantised = rows.lattice()
        np.add.at(self._exact, rows.nodes, quantised)
        np.add.at(self._steps, rows.nodes, 1)
        return quantised

    def sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Moments.sums`."""
        return self._exact[blocks]


class NoisyRewards(Moments):
    """Each reward is noised once, before it enters any sum; everything after it is post-processing.

    Pure epsilon for that reward against any other, without a horizon and without trust in anybody else
    (`hushstream.privacy.rewards`). The noise is named by user and number of the reward, so a crash draws none twice.
    """

    def __init__(self, release: ContinualConfig, nodes: int, dimension: int, key: Key, address: NoiseAddress) -> None:
        """Start with no rewards."""
        super().__init__(nodes, dimension)
        self._law = local_reward_of(release)
        self._key = key
        self._address = replace(address, purpose="reward-noise", parameters=self.parameters)

    @property
    def mechanism(self) -> str:
        """See `Moments.mechanism`."""
        return "noisy-reward"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """See `Moments.parameters`."""
        law = self._law
        return {"levels": law.levels, "epsilon_micro": law.epsilon_micro, "law": law.law}

    @property
    def variance(self) -> float:
        """See `Moments.variance`: of one reward, as the noise of a sum grows with what was shown."""
        return self._law.variance

    def add(self, rows: Rows) -> NDArray[np.int64]:
        """See `Moments.add`; returns the noised rows, as the rewards themselves are kept nowhere."""
        noised = np.empty(len(rows), dtype=np.int64)
        steps = np.trunc(rows.rewards * self._law.levels).astype(np.int64)
        for row, node in enumerate(rows.nodes.tolist()):
            place = replace(self._address, node=(node, int(self._steps[node])))
            noised[row : row + 1] = self._law.draw(KeyedStream(self._key, place), steps[row : row + 1])
            self._steps[node] += 1
        quantised = replace(rows, rewards=self._law.estimate(noised)).lattice()
        np.add.at(self._exact, rows.nodes, quantised)
        return quantised

    def sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `Moments.sums`."""
        return self._exact[blocks]


def local_reward_of(release: ContinualConfig) -> LocalReward:
    """How one reward is noised: the law of smaller variance for the configured levels and epsilon."""
    return LocalReward.of(release.reward_levels, release.epsilon)


def open_moments(
    release: ContinualConfig, features: FeatureConfig, nodes: int, key: Key, address: NoiseAddress
) -> Moments:
    """The configured mechanism, before the first reward."""
    if release.mechanism == "exact":
        return ExactMoments(nodes, features.dimension)
    if release.mechanism == "noisy-reward":
        return NoisyRewards(release, nodes, features.dimension, key, address)
    return CounterMoments(plan_of(release, features), nodes, key, address, single_leaves=release.trust == "edge")


@lru_cache(maxsize=64)
def mean_variance(plan: Plan) -> float:
    """Mean variance of a counter's noise over its horizon, in squared units of the reward."""
    return plan.rmse() ** 2 / float(1 << (2 * GRID_BITS))


@lru_cache(maxsize=64)
def release_guarantee(release: ContinualConfig, features: FeatureConfig, nodes: int) -> Guarantee:
    """What the releases promise for one reward, and for all rewards of one user."""
    if release.mechanism == "exact":
        return _no_guarantee(release)
    if release.mechanism == "noisy-reward":
        return _noisy_reward_guarantee(release)
    return counter_guarantee_of(release, features, nodes)


def _noisy_reward_guarantee(release: ContinualConfig) -> Guarantee:
    promise = local_reward_of(release).guarantee(release.rewards_per_user, deployment="hosted")
    return replace(promise, not_protected=(*NOT_PROTECTED, *promise.not_protected))


def _no_guarantee(release: ContinualConfig) -> Guarantee:
    nothing = Cost(0, DELTA_ONE)
    return Guarantee(
        mechanism="no noise at all, for public data",
        relation=NEIGHBOURS.relation,
        unit=NEIGHBOURS.unit,
        cost=nothing,
        report_against_report=nothing,
        lifetime=Lifetime(release.rewards_per_user, 1, nothing),
        sensitivity=0,
        norm="nothing is hidden",
        zone="counter",
        deployment="hosted",
        residue_units=0,
        not_protected=("anything",),
    )
