"""The counter role, in a zone of its own: it reads rewards in clear, and releases noised running sums.

A step is a batch of rewards; a number of rows, a phase end or log time closes it. A phase in which no reward came has a
step without rows, so that a model follows every phase. In a step each user's rewards are one
leaf of their own counter, so a step is one more release of a continual release: epsilon is paid once, with the first
record of an epoch, for any number of steps. A step's rows are first sorted by node, so a release does not depend on the
order in which partitions of learners arrive.

The journal record holds a keyed hash chain of all rows of the epoch and of their batches. If a replay finds other
leaves than the journal says, nothing is sent for that record again. The next release opens an epoch with new noise, at
its full price (PRIVACY rule 7); if the budget refuses this price, nothing more is released. Noise at a step has the
user's leaves so far, and the events of all batches, in its address. But trees with negative digits draw noise before
all its rewards have come. With them, a recovery that suspects a rollback opens an epoch, too
(`Machine.request_epoch`).

The exact sums of an erased user are deleted. The user's released sums stay, and no later release contains sums of this
user. After a rotation of the zone's key (`hushstream.engine.journal.notes`), the next record says so. The record
after it opens an epoch under the new key, on the released sums, so no reward gets new noise or is charged a second
time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hushstream.engine.batch import Batch, Refused
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import START, Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import PHASE_ENDS, PhaseEnds, Read, ReopeningRole, releasing_state
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.state.declared import Flat, Several, integer, known_ids, own_part, raw, rows, whole_bytes
from hushstream.engine.state.packed import KnownIds
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.release import COUNTER_ZONE
from hushstream.systems.colin.rows import FORGOTTEN, MAX_ROWS_A_RECORD, BadRows, Rows, parse_rows

_KINDS = frozenset({"Rewards", "Seal", "Tick", "Erasure"})
_INPUT = "rewards"


def _pack_pending(role: CounterMachine) -> Mapping[str, Any]:
    return {
        "nodes": b"".join(part.nodes.astype("<i4").tobytes() for part in role.pending),
        "features": b"".join(part.features.astype("<f4").tobytes() for part in role.pending),
        "rewards": b"".join(part.rewards.astype("<f8").tobytes() for part in role.pending),
    }


def _unpack_pending(role: CounterMachine, values: Mapping[str, Any]) -> None:
    columns = (values["nodes"], values["features"], values["rewards"])
    role.pending = [parse_rows(*columns, role.system)] if values["nodes"] else []


class CounterMachine(ReopeningRole):
    """The counter on one partition of rewards; a step closes by its rows, a phase end or log time."""

    state = releasing_state(
        "a counter's state",
        "CounterState",
        noise="open_noise",
        leaf=integer(),
        leaves=raw(),
        open_since_ms=integer(),
        phase_ends=Flat(PHASE_ENDS),
        known=known_ids(),
        taken=rows("<i8"),
        batches=whole_bytes(16),
        pending=Several({"nodes": "bytes", "features": "bytes", "rewards": "bytes"}, _pack_pending, _unpack_pending),
        noised_sums=own_part(),
    )
    system: CollaborativeSystem

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity.of(system, "counter", "journal-counter", partition)
        super().__init__(system, identity, "CounterJournal", (_INPUT, partition), COUNTER_ZONE, key, ring)
        self.leaf = 0
        self.leaves = START
        """Keyed hash chain of the epoch's rows and of their batches."""
        self.batches = 0
        """Sum of the ids of all batches so far: it names all events so far, independent of the boundaries of
        batches."""
        self.pending: list[Rows] = []
        self.open_since_ms = 0
        self.phase_ends = PhaseEnds(system.config.partitions.learner)
        self.known = KnownIds()
        """Ids of all batches ever: a sender that died after a release sends its batches again, at any later time."""
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        """Number of rewards of each user that have counted, for their allowance."""
        self.noised_sums = system.noised_sums(key, b"", 0, partition)

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.open_noise()

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each release, and one for what is left."""
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            closed = self._closed_by(one, batch)
            if closed:
                self._release(closed, one.record.offset + 1, batch)
        self.require_followed()
        self._settle(batch)
        return self.finished(slices, batch)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.reopen`: the record has already published the rows' features, so the sums take the rows."""
        fields = self.chain.accept(value, self.committed())
        batch = Batch(self)
        for one in self.read(slices, _KINDS):
            self._closed_by(one, batch)
        self._settle(batch)
        if self.pending:
            self._add(Rows.joined(self.pending, self.system.features.dimension))
        self.leaf = fields["leaf"]
        return self.reopened(fields, self.charge, batch)

    # One record.

    def _closed_by(self, one: Read, batch: Batch) -> str:
        """Take one record; returns what closes the step with it, if anything. Late rows still join the step."""
        ended = self.accept(one, batch, self._take)
        if ended and (self.pending or self.leaf <= self.phase_ends.complete):
            return "seal"
        if not self.pending:
            return ""
        if sum(len(rows) for rows in self.pending) >= self.system.config.release.rows:
            return "rows"
        open_ms = self.system.open_ms
        return "time" if open_ms is not None and one.record.timestamp_ms - self.open_since_ms >= open_ms else ""

    def _take(self, one: Read, batch: Batch) -> bool:
        """Take one record; returns whether it ends a phase."""
        if one.name == "Seal":
            return self.ends_phase(one.fields, batch)
        if one.name == "Tick":
            batch.counts[Outcome.TICK] += 1
        elif one.name == "Erasure":
            self._erase(one.fields["node"], batch)
        else:
            self._rewards(one.fields, one.record, batch)
        return False

    def _erase(self, node: int, batch: Batch) -> None:
        """Delete a user's open rows and exact sums; from now on no reward of the user counts or is released."""
        if not 0 <= node < self.system.nodes:
            raise Refused(Refusal.UNKNOWN_USER)
        kept = [rows.without(node) for rows in self.pending]
        self.pending = [rows for rows in kept if len(rows)]
        self.noised_sums.erase(node)
        self.taken[node] = FORGOTTEN
        batch.counts[Outcome.FORGOTTEN] += 1

    def _rewards(self, fields: dict[str, Any], record: InputRecord, batch: Batch) -> None:
        batch_id = fields["batch_id"].hex()
        if fields["batch_id"] in self.known or batch_id in batch.ids:
            batch.counts[Outcome.REPEATED_REWARDS] += 1
            return
        try:
            rows = parse_rows(fields["nodes"], fields["contexts"], fields["rewards"], self.system)
            if not 1 <= len(rows) <= MAX_ROWS_A_RECORD:
                raise BadRows(f"rows: expected 1 to {MAX_ROWS_A_RECORD} in a record, got {len(rows)}")
        except BadRows:
            raise Refused(Refusal.MALFORMED_REWARDS) from None
        batch.ids[batch_id] = None
        allowed = rows.within(self.taken, self.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            batch.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if len(allowed):
            if not self.pending:
                self.open_since_ms = record.timestamp_ms
            self.pending.append(allowed)
            self.batches = (self.batches + int.from_bytes(fields["batch_id"], "little")) % (1 << 128)
            batch.counts[Outcome.REWARD_TAKEN] += len(allowed)

    def _settle(self, batch: Batch) -> None:
        """Remember the ids of the input, because it now counts."""
        for batch_id in batch.ids:
            self.known.add(bytes.fromhex(batch_id))
        batch.ids.clear()

    # One step.

    def _release(self, closed_by: str, high: int, batch: Batch) -> None:
        """Release the open step, which closed with the input below ``high``; an epoch has one price."""
        rows = Rows.joined(self.pending, self.system.features.dimension)
        batch.release(partial(self._draw, rows, batch))
        fields = {
            "leaf": self.leaf,
            "rows": len(rows),
            "closed_by": closed_by,
            "mechanism": self.noised_sums.mechanism,
            "parameters": json.dumps(dict(self.noised_sums.parameters), sort_keys=True, separators=(",", ":")),
            "leaves": self.leaves,
        }
        self.end(high, fields, batch)
        self._settle(batch)

    def _add(self, rows: Rows) -> None:
        """Add the open step's rows to the sums and to the hash chain."""
        columns = (rows.nodes.astype("<i4"), rows.features.astype("<f4"), rows.rewards.astype("<f8"))
        content = [column.tobytes() for column in columns]
        self.leaves = self.releases.key.digest("leaves", self.leaves, self._events, *content)
        self.noised_sums.add(rows, self._events)
        self.pending = []

    def _draw(self, rows: Rows, batch: Batch, charge: ChargeResult) -> list[Output]:
        """The noised sums after these rows, which also count if their price is refused.

        Nobody has seen a result yet: after a crash here, the same address gives the same draw.
        """
        if len(rows):
            self._add(rows)
        self.leaf += 1
        key, epoch = self.releases.key, self.releases.epoch.number
        release_id = key.digest(
            "release-id", self.releases.nonce, struct.pack("<qqq", self.partition, epoch, self.leaf)
        )
        outputs = []
        if not charge.refused:
            fields = self.system.release_record(self.noised_sums, rows, release_id, self.leaf, epoch, key.reproducible)
            outputs.append(Output("releases", 0, codec.encode("Release", fields)))
        if charge.opens:
            outputs.append(batch.ledger_entry(release_id, charge))
        return outputs

    # The noise of the sums.

    def open_noise(self) -> None:
        """Begin with empty sums, under the noise of this epoch."""
        key, nonce = self.releases.key, self.releases.nonce
        self.noised_sums = self.system.noised_sums(key, nonce, self.releases.epoch.number, self.partition)

    def redraw_noise(self) -> None:
        """See `BatchMachine.redraw_noise`: all exact sums get new noise."""
        earlier = self.noised_sums
        self.open_noise()
        self.noised_sums.redraw(earlier, self._events)
        self.leaves = START

    def rotate_noise(self, released: bool) -> None:
        """See `BatchMachine.rotate_noise`: the next key's epoch begins on the releases before it, if there were any.

        Either all steps of an epoch are released or none: its price is paid with the first step, or refused with each.
        """
        earlier = self.noised_sums
        self.open_noise()
        self.noised_sums.continue_from(earlier, released)
        self.leaves = START

    # What a driver asks.

    @property
    def draws_ahead(self) -> bool:
        return self.noised_sums.draws_ahead

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: while a step with rows is open."""
        open_ms = self.system.open_ms
        return self.tick_record() if open_ms is not None and self.pending and idle_ms >= open_ms else None

    @property
    def _events(self) -> bytes:
        return self.batches.to_bytes(16, "little")
