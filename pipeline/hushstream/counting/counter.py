"""One interface for every counter: a plan (with its guarantee and error), and the counter that runs it.

A leaf is one integer vector: one event, or one closed batch. After t leaves a counter can release their sum plus noise.
All sums are exact int64 arithmetic and all noise is a function of the key and the leaves until then, so a release is
such a function, too: a second call, also after a crash, gives the same bytes. If nodes are drawn over the history of
their leaves (`Plan.draws_ahead` is false), other leaves have other, independent noise. So each z below is one draw,
as if it were drawn freshly for these leaves.

Why releases may choose later leaves (adaptivity). A tree counter releases A x + L z, where x are the leaves, z the
noise of the nodes, A the lower triangle of ones, and A = L R with R the 0-1 matrix that says which leaf is in which
node. Let neighbours differ in leaf j, by v (which may depend on all releases before j). Couple the noise z of one with
z + R_j v' , v' = -v, of the other (R_j: column j of R). Then every release is the same: L (z + R_j v') = L z + A_j v',
and A_j is 1 from j on, where the sums differ by v, and 0 before j. So releases before j do not change, and neither does
anything that was chosen because of them, also v. For c leaves j_1 < j_2 < ... of one person the shift is s(z) = sum_i
R_{j_i} v'_i, where v'_i depends on releases before j_i alone. Its price:

* The maps z -> z + k s(z), k a whole number, are one to one: releases before j_1 are those of z, so v'_1 is known
  from the result; take k R_{j_1} v'_1 back, and releases before j_2 are those of z; and so on.
* Laplace: each of the at most h nodes that hold a leaf moves by v, so the probability of any z changes by
  at most exp(c h Delta_1 / scale), point by point: c epsilon for scale = h Delta_1 / epsilon.
* K-norm: a node's vector moves by v, and its probability by at most exp(||v||_2 / scale), by the triangle inequality:
  in the same way c epsilon for scale = h Delta_2 / epsilon.
* Gaussian: ||s||^2 <= c^2 h Delta_2^2; let p be the law of z. For a whole order alpha,
  p(z)^alpha p(z+s)^(1-alpha) = p(z + (1-alpha) s) exp(alpha (alpha-1) ||s||^2 / (2 var)), and z + (1-alpha) s(z) is
  one to one, so the sum over all z is at most exp(alpha (alpha-1) c^2 rho) for var = h Delta_2^2 / (2 rho): the
  Renyi divergence is at most alpha c^2 rho at every whole order alpha >= 2, and epsilon is computed from those.

The factorisation behind each plan is `Plan.factorisation`, and a test extracts L from the running code.

*State.* A counter's stored state: its bytes with a keyed digest, which also covers the counter's identity.

*Drawing.* Counters that draw the noise of a leaf when it has come, many counters in one draw.

A draw of few integers is cheap compared with the calls around it. So counters that take leaves at the same time (one
for each user) first list the nodes that they need, and one pass draws all of them. The integers are the same as one
after the other.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import Budget, NodeNoise
from hushstream.counting.digits import (
    DEFAULT_HORIZON,
    LARGEST_HORIZON,
    LARGEST_SUM,
    Neighbours,
    bound_with,
    column_sums,
    counter_guarantee,
    largest_size,
    require_leaves,
    row_sizes,
)
from hushstream.counting.errors import BadLeaves, BadPlan, BadState, HorizonReached
from hushstream.counting.nodes import NO_HISTORY, KeyedNodes, NodeSource
from hushstream.privacy.amounts import count_text, ratio_text
from hushstream.privacy.keys import DIGEST_BYTES, Key, encode
from hushstream.privacy.mechanisms.noise import NoiseAddress, Parameter
from hushstream.privacy.promises.promise import Deployment, Guarantee

_PURPOSE = "counter-state"


def seal_state(key: Key, identity: bytes, body: bytes) -> bytes:
    """``body`` with the digest of it and of ``identity`` (plan, parameters and address of the counter)."""
    return body + key.digest(_PURPOSE, identity, body)


def open_state(key: Key, identity: bytes, state: bytes) -> bytes:
    """The body of a state that `seal_state` made with the same key and identity.

    Raises:
        BadState: damaged, or of another plan, key or address.
    """
    body, digest = state[:-DIGEST_BYTES], state[-DIGEST_BYTES:]
    if key.digest(_PURPOSE, identity, body) != digest:
        raise BadState("counter state: expected one of this plan, key and address, got a damaged or foreign one")
    return body


LARGEST_DIMENSION = 1 << 24
STATE_VERSION = 2
_STATE_HEAD = struct.Struct("<BQ")


@dataclass(frozen=True, slots=True)
class Factorisation:
    """A = left @ right for the first T leaves.

    Attributes:
        left: (T, draws) float64: a release from the draws.
        right: (draws, T) float64: which leaf moves which draw, by how much.
    """

    left: NDArray[np.float64]
    right: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Release:
    """A noised prefix sum.

    Attributes:
        leaves: how many leaves it sums.
        values: int64 (dimension,), in lattice units.
    """

    leaves: int
    values: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(ABC):
    """What a counter is, before any leaf: it prices, predicts its error and opens counters.

    Attributes:
        budget: epsilon or rho for the whole stream of releases.
        dimension: coordinates of a leaf.
        sensitivity: largest change of its *leaf* by one unit, in lattice units, in the budget's norm (L1 or L2, rounded
            up); the counter adds the cost of its own structure.
        horizon: T_max, the largest number of leaves.
    """

    mechanism: ClassVar[str]
    source: ClassVar[str]
    draws_ahead: ClassVar[bool] = False
    """Whether a release needs nodes before all their leaves have come. The noise of such a node cannot depend on its
    leaves, so a counter that was rolled back would use it again with other leaves."""

    budget: Budget
    dimension: int = 1
    sensitivity: int = 1
    horizon: int = DEFAULT_HORIZON

    def __post_init__(self) -> None:
        """Refuse settings for which no counter exists.

        Raises:
            BadPlan: a dimension, sensitivity or horizon out of range.
            BadNoise: a scale that is too large to draw.
        """
        for name, value, largest in (
            ("dimension", self.dimension, LARGEST_DIMENSION),
            ("sensitivity", self.sensitivity, 1 << 50),
            ("horizon", self.horizon, LARGEST_HORIZON),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
                raise BadPlan(f"{name}: expected a whole number from 1 to {largest}, got {value!r}")
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse what this kind of counter cannot do."""

    @property
    @abstractmethod
    def levels(self) -> int:
        """Nodes that hold one leaf, at most (1 where there is no tree)."""

    @property
    def noise(self) -> NodeNoise:
        """Law of the noise on one coordinate of one node; a leaf is in at most ``levels`` nodes."""
        return self.budget.node_noise(self.levels, self.sensitivity, self.dimension)

    @property
    def changed_draws(self) -> int:
        """Largest number of draws that differ between neighbours: those of all nodes that hold the leaf.

        Each adds its truncation error to delta.
        """
        return self.levels * (self.dimension // self.noise.coordinates)

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Everything that shapes the noise, by name, for its address and the journal."""
        noise = self.noise
        return {
            **self.budget.parameters(),
            "horizon": self.horizon,
            "dimension": self.dimension,
            "sensitivity": self.sensitivity,
            "law": noise.law,
            # Fractions can exceed 64 bits; as text they survive every journal format.
            "noise": f"{noise.numerator}/{noise.denominator}",
        }

    @abstractmethod
    def mean_square(self, leaves: int) -> float:
        """Mean over t = 1..``leaves`` of the noise's variance per coordinate, in lattice units squared."""

    def rmse(self, leaves: int | None = None) -> float:
        """Root mean square error over the first ``leaves`` releases (default: all), closed form, per coordinate.

        Raises:
            BadPlan: leaves outside 1 to the horizon.
        """
        count = self.horizon if leaves is None else leaves
        if not isinstance(count, int) or not 1 <= count <= self.horizon:
            raise BadPlan(f"leaves: expected 1 to {self.horizon}, got {count!r}")
        return float(np.sqrt(self.mean_square(count)))

    @abstractmethod
    def factorisation(self, leaves: int) -> Factorisation:
        """Explicit L and R for the first ``leaves`` leaves (for audits and tests: quadratic in size)."""

    def guarantee(
        self,
        neighbours: Neighbours | None = None,
        units_in_life: int = 1,
        deployment: Deployment = "hosted",
        zone: str = "counter",
    ) -> Guarantee:
        """The guarantee of the whole stream of releases.

        Args:
            neighbours: relation and unit; by default an event against null.
            units_in_life: units of one person that are priced together as that person's lifetime.
            deployment: ``hosted`` or ``edge``.
            zone: whose key draws the noise.

        Raises:
            BadPlan: units out of range.
        """
        pair = neighbours or Neighbours()
        return counter_guarantee(
            self.budget,
            f"{self.mechanism} ({self.source}): running sums of at most "
            f"{count_text(self.horizon, 'leaf')}, {self._shape_text()},"
            f" {self.noise.law} noise with {self._noise_text()} on each node",
            self.sensitivity,
            f"{self.budget.norm} distance of one leaf, {count_text(self.dimension, 'coordinate')}, in {pair.step}",
            self.changed_draws,
            self.noise.truncation,
            pair,
            units_in_life,
            deployment,
            zone,
        )

    def _shape_text(self) -> str:
        return f"{count_text(self.levels, 'node')} to a leaf"

    def _noise_text(self) -> str:
        name = "variance" if self.noise.law == "gaussian" else "scale"
        return f"{name} {ratio_text(self.noise.numerator, self.noise.denominator)}"

    @abstractmethod
    def open_on(self, nodes: NodeSource) -> Counter:
        """Open a counter without leaves on any source of noise (`open` uses the keyed one)."""

    def open(self, key: Key, address: NoiseAddress) -> Counter:
        """Open a counter without leaves.

        Args:
            key: the counter zone's key.
            address: names the counter; purpose, mechanism, parameters and node are filled in here.
        """
        return self.open_on(self._nodes(key, address))

    def open_cells(self, key: Key, address: NoiseAddress, cells: Iterable[int]) -> list[Counter]:
        """Open counters for several cells of the address, as `open` does for one, but faster."""
        nodes = self._nodes(key, address)
        return [self.open_on(nodes.of_cell(cell)) for cell in cells]

    def restore(self, key: Key, address: NoiseAddress, state: bytes) -> Counter:
        """Restore the counter from ``state``; it continues as if it had never stopped.

        Raises:
            BadState: damaged, or of another plan, key or address.
        """
        nodes = self._nodes(key, address)
        counter = self.open_on(nodes)
        counter.load(open_state(key, nodes.identity, state))
        return counter

    def save(self, key: Key, address: NoiseAddress, counter: Counter) -> bytes:
        """The counter's state under a keyed digest. It holds exact sums: as sensitive as the leaves."""
        return seal_state(key, self._nodes(key, address).identity, counter.dump())

    def _nodes(self, key: Key, address: NoiseAddress) -> KeyedNodes:
        return KeyedNodes(key, address, self.mechanism, self.parameters, self.noise, self.dimension)

    @property
    def identity(self) -> bytes:
        """The plan as bytes; two different plans never give the same."""
        named = sorted(self.parameters.items())
        return encode(self.mechanism, tuple(part for pair in named for part in pair))


class Counter(ABC):
    """A running counter: add leaves, release their noised sum."""

    def __init__(self, plan: Plan) -> None:
        """Begin before the first leaf."""
        self.plan = plan
        self.leaves = 0
        self._sum = np.zeros(plan.dimension, dtype=np.int64)
        self._bound = 0

    def add(self, leaves: NDArray[np.int64], origin: bytes = b"") -> None:
        """Take more leaves, in order.

        Args:
            leaves: int64 (n, dimension), lattice units, each within the plan's sensitivity.
            origin: public identity of the leaves' source. So leaves of different sources that are equal by chance have
                different noise, and equal noise does not reveal equal leaves.

        Raises:
            BadLeaves: another type or shape, or a sum that could leave 64 bits. Nothing is taken then.
            HorizonReached: more leaves than the plan allows. Nothing is taken then.
        """
        self._admit(leaves)
        if len(leaves):
            self._advance(leaves, origin)
            self._sum += column_sums(leaves)
            self.leaves += len(leaves)

    @property
    def exact(self) -> NDArray[np.int64]:
        """The sum of all leaves without noise, int64 (dimension,).

        Only an epoch that adds new noise to it may use it.
        """
        return self._sum.copy()

    def release(self) -> Release:
        """The noised sum of all leaves so far; a second call gives the same bytes.

        Raises:
            BadLeaves: there is no leaf yet.
        """
        if not self.leaves:
            raise BadLeaves("release: expected at least one leaf, got none")
        # Both terms are below 2^62 in size (`_admit`, and the plan's `_check`), so their sum fits.
        return Release(self.leaves, self._sum + self._noise())

    def dump(self) -> bytes:
        """The state as bytes, without the digest that `Plan.save` adds."""
        return _STATE_HEAD.pack(STATE_VERSION, self.leaves) + self._sum.astype("<i8").tobytes() + self._dump_extra()

    def load(self, body: bytes) -> None:
        """Take over a state.

        Raises:
            BadState: not the bytes of such a state.
        """
        fixed = _STATE_HEAD.size + 8 * self.plan.dimension
        if len(body) < fixed:
            raise BadState(f"counter state: expected at least {fixed} bytes, got {len(body)}")
        version, leaves = _STATE_HEAD.unpack_from(body)
        if version != STATE_VERSION or leaves > self.plan.horizon:
            raise BadState(
                f"counter state: expected version {STATE_VERSION} and at most {self.plan.horizon} leaves,"
                f" got {version} and {leaves}"
            )
        self._sum = np.frombuffer(body[_STATE_HEAD.size : fixed], dtype="<i8").astype(np.int64)
        self.leaves = leaves
        self._bound = largest_size(self._sum)
        if self._bound > LARGEST_SUM:
            raise BadState("counter state: expected sums within 2^62, got larger ones")
        self._load_extra(body[fixed:])

    def _admit(self, leaves: NDArray[np.int64]) -> None:
        require_leaves(leaves, self.plan.dimension)
        self._admit_size(largest_size(leaves) * len(leaves) if len(leaves) else 0, len(leaves))

    def _admit_size(self, more: int, steps: int) -> None:
        """`_admit` of leaves of valid type and shape that move no sum by more than ``more``."""
        if self.leaves + steps > self.plan.horizon:
            raise HorizonReached(
                f"counter: expected at most {self.plan.horizon} leaves, got {self.leaves} and {steps} more"
            )
        self._bound = bound_with(self._bound, self._sum, more)

    @abstractmethod
    def _noise(self) -> NDArray[np.int64]:
        """Noise of the release after the leaves so far, int64 (dimension,)."""

    @abstractmethod
    def _advance(self, leaves: NDArray[np.int64], origin: bytes) -> None:
        """Move the noise on by leaves, at least one."""

    @abstractmethod
    def _dump_extra(self) -> bytes:
        """The state of the noise besides the number of leaves."""

    @abstractmethod
    def _load_extra(self, extra: bytes) -> None:
        """The inverse of `_dump_extra`."""


class Wanted(NamedTuple):
    """Nodes by their places, each with the history in its noise address."""

    places: Sequence[tuple[int, ...]]
    histories: Sequence[bytes]


class DrawingCounter(Counter):
    """Keeps the history of its leaves. The noise of all leaves that come together is drawn in one request."""

    def __init__(self, plan: Plan, nodes: NodeSource) -> None:
        """Begin before the first leaf."""
        super().__init__(plan)
        self.nodes = nodes
        self._history = NO_HISTORY

    @abstractmethod
    def _wanted(self, leaves: NDArray[np.int64], histories: Sequence[bytes]) -> Wanted:
        """The nodes that the releases after ``leaves`` need and that are not kept; ``histories`` has one for each."""

    @abstractmethod
    def _receive(self, leaves: NDArray[np.int64], drawn: NDArray[np.int64]) -> None:
        """Keep the noise of the wanted nodes, int64 (places, dimension), before the leaves are counted."""

    def _next_histories(self, leaves: NDArray[np.int64], origin: bytes) -> list[bytes]:
        """The history after each of these leaves."""
        histories = self.nodes.histories(self._history, leaves, origin)
        self._history = histories[-1]
        return histories

    @staticmethod
    def _receive_together(
        counters: Sequence[DrawingCounter], leaves: Sequence[NDArray[np.int64]], drawn: Sequence[NDArray[np.int64]]
    ) -> None:
        """`_receive` for many counters of one plan, one leaf each, for kinds that can do it in one pass."""
        for counter, leaf, part in zip(counters, leaves, drawn, strict=True):
            counter._receive(leaf, part)

    def _advance(self, leaves: NDArray[np.int64], origin: bytes) -> None:
        wanted = self._wanted(leaves, self._next_histories(leaves, origin))
        self._receive(leaves, self.nodes.draw_over(*wanted))


def add_together(counters: Sequence[DrawingCounter], leaves: NDArray[np.int64], origins: Sequence[bytes]) -> None:
    """Add one leaf to each of several counters of one plan, as `Counter.add` does, with one draw for all.

    Args:
        counters: at least one.
        leaves: int64 (n, dimension), one for each.
        origins: one for each.

    Raises:
        BadLeaves, HorizonReached: as `Counter.add`. Nothing is taken then.
    """
    plan = counters[0].plan
    require_leaves(leaves, plan.dimension)
    for counter, size in zip(counters, row_sizes(leaves), strict=True):
        counter._admit_size(size, 1)
    rows = [leaves[row : row + 1] for row in range(len(counters))]
    requests = [
        counter._wanted(row, counter._next_histories(row, origin))
        for counter, row, origin in zip(counters, rows, origins, strict=True)
    ]
    streams = [
        stream for counter, wanted in zip(counters, requests, strict=True) for stream in counter.nodes.streams(*wanted)
    ]
    drawn = plan.noise.draw(streams, plan.dimension)
    ends = np.cumsum([len(wanted.places) for wanted in requests])
    counters[0]._receive_together(counters, rows, np.split(drawn, ends[:-1]))
    for counter, row in zip(counters, rows, strict=True):
        counter._sum += row[0]
        counter.leaves += 1
