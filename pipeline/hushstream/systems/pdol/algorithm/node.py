"""A domain's counter of gradients: it folds slots at the published model, and releases noised running sums.

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
  (`hushstream.counting.buffered.blt`, `hushstream.counting.counter`) bounds the divergence of its releases,
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

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.errors import BadState
from hushstream.systems.pdol.algorithm.counters import Counters
from hushstream.systems.pdol.algorithm.edge import admit
from hushstream.systems.pdol.algorithm.gradient import add_gradients
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.errors import LeafFull, PdolError

_STATE_HEAD = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True, eq=False)
class NodeRelease:
    """A release of a domain.

    Attributes:
        domain: number of the domain.
        generation: number of its counter, from 0.
        leaves: number of leaves in the sum.
        slots: number of slots in it with nulls; public.
        values: int64 (n,), the noised sum of gradients in units of 2^-12.
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
            model: int32 (n,), the published weights and nothing else.

        Returns:
            A `Refusal` for each slot, zone-private, int8 (m,).

        Raises:
            LeafFull: more slots than fit. No slot is taken then.
            PdolError: a model of another type or size. No slot is taken then.
        """
        if len(rows) > self.capacity_left:
            raise LeafFull(f"leaf: expected at most {self.capacity_left} slots, got {len(rows)}")
        if model.dtype != np.int32 or model.shape != self._leaf.shape:
            raise PdolError(
                f"model: expected int32 of shape {self._leaf.shape}, got {model.dtype} of shape {model.shape}"
            )
        slots, refused = admit(rows, len(self._leaf))
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
