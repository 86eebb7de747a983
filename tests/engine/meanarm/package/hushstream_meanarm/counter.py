"""The counter: rewards of single users come in, noised sums of closed windows go out, each with its debit."""

from __future__ import annotations

from typing import Any

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Identity
from hushstream.engine.noise.budget import ledger_fields
from hushstream.engine.noise.spending import Asked
from hushstream.engine.records import InputRecord, Output
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReleasingRole, releasing_state
from hushstream.engine.state.declared import integer, listed, recent_ids
from hushstream.engine.state.parts import record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import KeyedStream, checked_add, discrete_laplace
from hushstream_meanarm.core import COUNTER, Meanarm, guarantee_of

MALFORMED = "malformed_slot"
REMEMBERED_IDS = 100_000


class CounterMachine(ReleasingRole[str]):
    """The one counter; a window closes by its slots."""

    state = releasing_state(
        "a counter's state",
        1,
        "CounterState",
        window=integer(),
        slots=listed(record("Slot", slot_id="bytes", arm="int", reward="int")),
        known=recent_ids(),
    )
    system: Meanarm
    draws_ahead, waits, open_ms = False, False, None
    expects = frozenset({"ArmSlot"})

    def __init__(self, system: Meanarm, key: Key, ring: KeyRing | None) -> None:
        """Bind to a deployment, the key that its journal begins with, and the zone's key file."""
        identity = Identity("counter", system.config.deployment, system.digest, ("journal-counter", 0))
        super().__init__(system, identity, "ArmWindow", ("slots", 0), COUNTER, key, ring, system.terms)
        self.window = 0
        self.slots: list[dict[str, Any]] = []
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)

    def on_time(self, log_time_ms: int) -> None:
        """Log time closes nothing."""

    def on_phase_end(self, fields: dict[str, Any], gathered: Gathered) -> None:
        """There are no phases."""
        raise Refused(Refusal.UNKNOWN_ORIGIN)

    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        """Take a slot."""
        if not (0 <= fields["arm"] < self.system.config.arms and fields["reward"] in (0, 1)):
            raise Refused(MALFORMED)
        if (name := fields["slot_id"].hex()) in self.known:
            gathered.counts[Outcome.REPEATED_SLOT] += 1
            return
        self.known.put(name, None)
        self.slots.append({name: fields[name] for name in ("slot_id", "arm", "reward")})
        gathered.counts[Outcome.SLOT] += 1

    def after(self, record: InputRecord) -> str | None:
        """A window closes when it is full."""
        return "slots" if len(self.slots) >= self.system.config.window_slots else None

    def place_of(self, closed: str | None) -> int:
        """Every window is charged for itself."""
        return self.window

    def close(self, closed: str, asked: Asked) -> tuple[dict[str, Any], tuple[Output, ...]]:
        """Release the window, if its price fits."""
        outputs = () if asked.refused else self._outputs(asked)
        fields = {"window": self.window}
        self.slots, self.window = [], self.window + 1
        return fields, outputs

    def count_release(self, released: bool, gathered: Gathered) -> None:
        """Count it."""
        gathered.counts[Outcome.RELEASE if released else Outcome.RELEASE_WITHHELD] += 1

    def open_noise(self) -> None:
        """Nothing runs from one window to the next."""

    def redraw(self) -> None:
        """The next window's noise is of the epoch's own nonce."""

    def rotated(self, released: bool) -> None:
        """So it is after a key rotation."""

    def _outputs(self, asked: Asked) -> tuple[Output, ...]:
        system, arms = self.system, [slot["arm"] for slot in self.slots]
        # Two windows that differ in anything, names of slots too, meet other noise.
        chunks = sorted(slot["slot_id"] + bytes([slot["reward"]]) + slot["arm"].to_bytes(4) for slot in self.slots)
        address = system.address(self.nonce, self.epoch.number, self.window, self.key.digest("window-content", *chunks))
        rewards = [slot["reward"] for slot in self.slots]
        exact = np.array([np.bincount(arms, weights, system.config.arms) for weights in (None, rewards)]).astype(
            np.int64
        )
        noise = discrete_laplace(KeyedStream(self.key, address), *system.scale, exact.size)
        name = self.key.digest("sums-id", self.nonce, self.window.to_bytes(8))
        stated = guarantee_of(system.config).private_as_stated and not self.key.reproducible
        sums = checked_add(exact.ravel(), noise).astype("<i8").tobytes()
        fields = {"sums_id": name, "config_digest": system.digest, "sums": sums, "private_as_stated": stated}
        entry = ledger_fields(system.config.deployment, system.digest, name, asked.debit, stated)
        return (
            Output("sums", 0, self.chain.encode("ArmSums", fields)),
            Output("ledger", 0, self.chain.encode("LedgerEntry", entry)),
        )
