"""Running sums of features times reward under a mechanism, one block for each user.

Only noised sums are released. All numbers are whole on a lattice of 2^-`GRID_BITS`.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from hushstream.counting import BlockPlan, NegativeDigitTree, Plan
from hushstream.counting.blocks import BlockCounters
from hushstream.counting.counter import DrawingCounter, add_together
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, Parameter
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.configuration import (
    ContinualConfig,
    FeatureConfig,
    local_reward_of,
    mean_variance,
    plan_of,
)
from hushstream.systems.colin.rows import Rows

_ERASED = -1
"""Replaces the number of leaves of an erased user: nothing more is taken from them or released about them."""


class NoisedRewardSums(ABC):
    """Running sums under one mechanism, in one epoch of noise; N users, d features.

    An epoch may begin on sums that an earlier one released (`continue_from`). Then it releases those noised sums plus
    noised sums of the rewards since. So earlier rewards get no new noise and are not charged again.
    """

    def __init__(self, nodes: int, dimension: int) -> None:
        """Start with no rewards."""
        self._exact = np.zeros((nodes, dimension), dtype=np.int64)
        self._steps = np.zeros(nodes, dtype=np.int64)
        self._base = np.zeros((nodes, dimension), dtype=np.int64)
        self._base_variance = 0.0

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
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all its rewards have come, so that after a rollback it could cover others."""

    @property
    def variance(self) -> float:
        """Variance of the noise in one sum, averaged over the horizon, in squared units of the reward."""
        return self._base_variance + self._own_variance

    def add(self, rows: Rows, step: bytes = b"") -> None:
        """Take rows in the order of their nodes.

        Args:
            rows: the rows. Noise for a single row has its event in the address.
            step: names the events of this step and of all before; noise for a step has it in the address. It does not
                depend on rewards, so nobody's noise depends on another user's reward.

        Raises:
            HushstreamError: some are of an erased user. Nothing is taken then.
        """
        self._require_kept(rows.nodes)
        self._add(rows, step)

    def sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Noised sums of some users, int64 (m, d), on the lattice; a second call gives the same.

        Raises:
            HushstreamError: one of them is erased.
        """
        self._require_kept(blocks)
        return np.asarray(self._base[blocks] + self._own_sums(blocks))

    def erase(self, node: int) -> None:
        """Delete the sums of a user for ever: none of them is released again, in this epoch or a later one.

        Their last release stays. Another release with the same noise, without the erased rewards, would differ from it
        by exactly these rewards.
        """
        self._exact[node] = self._base[node] = 0
        self._steps[node] = _ERASED

    @property
    @abstractmethod
    def _own_variance(self) -> float:
        """`variance` of this epoch's part."""

    @abstractmethod
    def _add(self, rows: Rows, step: bytes) -> None:
        """`add` of valid rows."""

    @abstractmethod
    def _own_sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """`sums` of this epoch's part."""

    def exact_sums(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Users that have rewards, int64 (m,), and their exact sums, int64 (m, d)."""
        blocks = np.flatnonzero(self._steps > 0)
        return blocks, self._exact[blocks]

    def redraw(self, earlier: NoisedRewardSums, step: bytes = b"") -> None:
        """Begin with the exact sums of an earlier epoch, one leaf for each user.

        They get new noise and are charged again.

        Args:
            earlier: the epoch before.
            step: names the events that were taken until then.
        """
        self._base, self._base_variance = earlier._base, earlier._base_variance
        self._erase_as(earlier)
        blocks, sums = earlier.exact_sums()
        if len(blocks):
            self._take(blocks, sums, [step] * len(blocks))

    def continue_from(self, earlier: NoisedRewardSums, released: bool) -> None:
        """Begin on the last release of an earlier epoch.

        Sums that it withheld (``released`` is false) stay withheld.
        """
        self._base, self._base_variance = earlier._base.copy(), earlier._base_variance
        self._erase_as(earlier)
        if released:
            blocks, _ = earlier.exact_sums()
            self._base[blocks] = earlier.sums(blocks)
            self._base_variance = earlier.variance

    def dump(self) -> bytes:
        """The state as bytes; it is as sensitive as the rewards."""
        sums = (self._steps, self._exact, self._base)
        own = struct.pack("<d", self._base_variance) + b"".join(part.astype("<i8").tobytes() for part in sums)
        return own + self._dump_noise()

    def load(self, state: bytes) -> None:
        """Restore a dumped state.

        Raises:
            HushstreamError: the bytes are no state of this kind.
        """
        nodes, dimension = self._exact.shape
        fixed = 8 * (1 + nodes * (1 + 2 * dimension))
        if len(state) < fixed:
            raise HushstreamError(f"noised_sums: expected at least {fixed} bytes of state, got {len(state)}")
        (self._base_variance,) = struct.unpack_from("<d", state)
        numbers = np.frombuffer(state, "<i8", nodes * (1 + 2 * dimension), offset=8).astype(np.int64)
        self._steps = numbers[:nodes].copy()
        self._exact, self._base = numbers[nodes:].reshape(2, nodes, dimension).copy()
        self._load_noise(state[fixed:])

    def _take(self, blocks: NDArray[np.int64], leaves: NDArray[np.int64], origins: Sequence[bytes]) -> None:
        """Add one leaf to each of several users; ``origins`` name the leaves' sources."""
        self._exact[blocks] += leaves
        self._steps[blocks] += 1

    def _require_kept(self, nodes: NDArray[np.int32] | NDArray[np.int64]) -> None:
        if (self._steps[nodes] == _ERASED).any():
            raise HushstreamError("noised_sums: expected users whose sums are kept, got one who was erased")

    def _erase_as(self, earlier: NoisedRewardSums) -> None:
        for node in np.flatnonzero(earlier._steps == _ERASED).tolist():
            self.erase(node)

    def _dump_noise(self) -> bytes:
        return b""

    def _load_noise(self, state: bytes) -> None:
        if state:
            raise HushstreamError(f"noised_sums: expected no state of noise, got {len(state)} bytes")


class CounterSums(NoisedRewardSums):
    """NoisedRewardSums on counters: digit trees in one arena, other counters one by one.

    With ``single_leaves`` each reward is one leaf, named by its event (at the edge, where the boundaries of batches
    must not change the noise). Otherwise the rewards of one user in a step are one leaf, named by the step.
    """

    def __init__(self, plan: Plan, nodes: int, key: Key, address: NoiseAddress, single_leaves: bool) -> None:
        """Start with no rewards, under noise that ``key`` and ``address`` name."""
        super().__init__(nodes, plan.dimension)
        self._plan = plan
        self._key, self._address = key, address
        self._single_leaves = single_leaves
        self._arena: BlockCounters | None = None
        self._counters: list[DrawingCounter] = []
        # A group of trees draws its noise under another mechanism name and other parameters than one tree. The journal
        # must record those of the group, because they are in the address of the noise.
        self._noise: Plan | BlockPlan = plan
        if isinstance(plan, NegativeDigitTree) and plan.draws_ahead:
            self._noise = group = BlockPlan(plan=plan, blocks=nodes)
            self._arena = group.open(key, address)
        else:
            self._counters = self._open_counters(range(nodes))

    @property
    def mechanism(self) -> str:
        return self._noise.mechanism

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        return self._noise.parameters

    @property
    def draws_ahead(self) -> bool:
        return self._plan.draws_ahead

    @property
    def _own_variance(self) -> float:
        return mean_variance(self._plan)

    def _add(self, rows: Rows, step: bytes) -> None:
        quantised = rows.lattice()
        nodes = rows.nodes.astype(np.int64)
        if not self._single_leaves:
            blocks, starts = np.unique(nodes, return_index=True)
            self._take(blocks, np.add.reduceat(quantised, starts, axis=0), [step] * len(blocks))
            return
        events = np.array([event.tobytes() for event in rows.events], dtype=object)
        rank = np.arange(len(nodes)) - np.searchsorted(nodes, nodes)
        for position in range(int(rank.max()) + 1):
            now = rank == position
            self._take(nodes[now], quantised[now], events[now].tolist())

    def _own_sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._arena is not None:
            return self._arena.release_of(blocks)
        return np.vstack([self._base[:0], *(self._counters[block].release().values for block in blocks.tolist())])

    def _take(self, blocks: NDArray[np.int64], leaves: NDArray[np.int64], origins: Sequence[bytes]) -> None:
        if self._arena is not None:
            self._arena.add(blocks, leaves)
        else:
            add_together([self._counters[block] for block in blocks.tolist()], leaves, origins)
        super()._take(blocks, leaves, origins)

    def erase(self, node: int) -> None:
        super().erase(node)
        if self._arena is not None:
            self._arena.erase(node)
        else:
            (self._counters[node],) = self._open_counters([node])

    def _open_counters(self, nodes: Sequence[int]) -> list[DrawingCounter]:
        counters = self._plan.open_cells(self._key, self._address, nodes)
        assert all(isinstance(counter, DrawingCounter) for counter in counters)
        return cast("list[DrawingCounter]", counters)

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
            raise HushstreamError(f"noised_sums: expected {len(self._counters)} counters, got {len(state)} bytes")
        for counter, size in zip(self._counters, struct.unpack_from(f"<{len(self._counters)}q", state), strict=True):
            counter.load(state[place : place + size])
            place += size


class ExactSums(NoisedRewardSums):
    """Sums without noise, for public data only."""

    @property
    def mechanism(self) -> str:
        return "exact"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """See `NoisedRewardSums.parameters`: none."""
        return {}

    @property
    def draws_ahead(self) -> bool:
        """See `NoisedRewardSums.draws_ahead`: there is no noise."""
        return False

    @property
    def _own_variance(self) -> float:
        """See `NoisedRewardSums.variance`: none."""
        return 0.0

    def _add(self, rows: Rows, step: bytes) -> None:
        np.add.at(self._exact, rows.nodes, rows.lattice())
        np.add.at(self._steps, rows.nodes, 1)

    def _own_sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._exact[blocks]


class NoisyRewards(NoisedRewardSums):
    """Each reward gets noise once, before it is added to any sum; everything after is post-processing.

    It gives pure epsilon for this reward against any other, without a horizon and, at the edge, without another trusted
    party (`hushstream.privacy.mechanisms.rewards`). The noise address has the user, the number of the reward, its event
    and its value. So a crash draws no noise twice, and after a rollback another event or reward gets other noise. A
    counter knows no events: the name of the step, which covers the ids of all batches until then, and the features of
    the row take the event's place.
    """

    def __init__(self, release: ContinualConfig, nodes: int, dimension: int, key: Key, address: NoiseAddress) -> None:
        """Start with no rewards."""
        super().__init__(nodes, dimension)
        self._law = local_reward_of(release)
        self._key = key
        self._address = replace(address, purpose="reward-noise", parameters=self.parameters)

    @property
    def mechanism(self) -> str:
        return "noisy-reward"

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        law = self._law
        return {"levels": law.levels, "epsilon_micro": law.epsilon_micro, "law": law.law}

    @property
    def draws_ahead(self) -> bool:
        """See `NoisedRewardSums.draws_ahead`: each draw is for one reward, which has come."""
        return False

    @property
    def _own_variance(self) -> float:
        """See `NoisedRewardSums.variance`: of one reward, as the noise of a sum grows with what was shown."""
        return self._law.variance

    def _add(self, rows: Rows, step: bytes) -> None:
        """See `NoisedRewardSums.add`; the rewards themselves are kept nowhere."""
        noised = np.empty(len(rows), dtype=np.int64)
        steps = np.trunc(rows.rewards * self._law.levels).astype(np.int64)
        for row, node in enumerate(rows.nodes.tolist()):
            name = step + rows.features[row].tobytes() if step else rows.events[row].tobytes()
            content = self._key.digest("reward", name, struct.pack("<q", steps[row]))
            place = replace(self._address, node=(node, int(self._steps[node])), content=content)
            noised[row : row + 1] = self._law.draw(KeyedStream(self._key, place), steps[row : row + 1])
            self._steps[node] += 1
        np.add.at(self._exact, rows.nodes, replace(rows, rewards=self._law.estimate(noised)).lattice())

    def _own_sums(self, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._exact[blocks]


def open_noised_sums(
    release: ContinualConfig, features: FeatureConfig, nodes: int, key: Key, address: NoiseAddress
) -> NoisedRewardSums:
    """The configured mechanism, before the first reward."""
    if release.mechanism == "exact":
        return ExactSums(nodes, features.dimension)
    if release.mechanism == "noisy-reward":
        return NoisyRewards(release, nodes, features.dimension, key, address)
    return CounterSums(plan_of(release, features), nodes, key, address, single_leaves=release.noise_at == "learner")
