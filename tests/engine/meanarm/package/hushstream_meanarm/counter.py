"""The counter: rewards of single users come in, noised sums of closed windows go out, each with its debit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hushstream.engine.batch import Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import ReleasingRole, releasing_state
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.state.declared import integer, listed, recent_ids, record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, checked_add, discrete_laplace
from hushstream.schemas import codec
from hushstream_meanarm.core import COUNTER, Meanarm

REMEMBERED_IDS = 100_000


class CounterMachine(ReleasingRole):
    """The one counter; a window closes by its slots."""

    state = releasing_state(
        "a counter's state",
        "CounterState",
        window=integer(),
        slots=listed(record("Slot", slot_id="bytes", arm="int", reward="int")),
        known=recent_ids(),
    )
    system: Meanarm

    def __init__(self, system: Meanarm, partition: int, key: Key, ring: KeyRing | None) -> None:
        """Bind to a deployment, its one partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity.of(system, "counter", "journal-counter", partition)
        super().__init__(system, identity, "ArmWindow", ("slots", partition), COUNTER, key, ring)
        self.window = 0
        self.slots: list[dict[str, Any]] = []
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)

    @property
    def charge(self) -> int:
        """Every window is charged for itself."""
        return self.window

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """Take slots; a window is released when it is full."""
        batch = Batch(self)
        for slot, _, fields, reason in self.read(slices, frozenset({"ArmSlot"})):
            if reason or not (0 <= fields["arm"] < self.system.config.arms and fields["reward"] in (0, 1)):
                batch.refuse(reason or Refusal.MALFORMED_SLOT, slot)
            elif (name := fields["slot_id"].hex()) in self.known:
                batch.counts[Outcome.REPEATED_SLOT] += 1
            else:
                self.known.put(name, None)
                self.slots.append({name: fields[name] for name in ("slot_id", "arm", "reward")})
                batch.counts[Outcome.SLOT] += 1
            if len(self.slots) >= self.system.config.window_units:
                self._release(slot.offset + 1, batch)
        return self.finished(slices, batch)

    def _release(self, high: int, batch: Batch) -> None:
        """Charge the window, draw its noise if the price fits, and journal it."""
        batch.release(partial(self._draw, batch), self.window)
        self.end(high, {"window": self.window}, batch)
        self.slots, self.window = [], self.window + 1

    def _draw(self, batch: Batch, charge: ChargeResult) -> tuple[Output, ...]:
        if charge.refused:
            return ()
        system, key, nonce = self.system, self.releases.key, self.releases.nonce
        # Two windows that differ in anything, names of slots too, meet other noise.
        chunks = sorted(slot["slot_id"] + bytes([slot["reward"]]) + slot["arm"].to_bytes(4) for slot in self.slots)
        address = system.address(nonce, self.releases.epoch.number, self.window, key.digest("window-content", *chunks))
        shown = np.eye(system.config.arms, dtype=np.int64)[[slot["arm"] for slot in self.slots]]
        exact = np.array([shown.sum(axis=0), [slot["reward"] for slot in self.slots] @ shown])
        noise = discrete_laplace(KeyedStream(key, address), *system.scale, exact.size)
        name = key.digest("sums-id", nonce, self.window.to_bytes(8))
        stated = system.as_stated(key.reproducible)
        sums = checked_add(exact.ravel(), noise).astype("<i8").tobytes()
        fields = {"sums_id": name, "config_digest": system.digest, "sums": sums, "private_as_stated": stated}
        return Output("sums", 0, codec.encode("ArmSums", fields)), batch.ledger_entry(name, charge)
