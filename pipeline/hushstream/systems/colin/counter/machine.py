"""The counter role, in a zone of its own: it reads rewards in clear, and releases noised running sums.

A step is a batch of rewards; a number of rows, a phase end or log time closes it. In a step each user's rewards are one
leaf of their own counter, so a step is one more release of a continual release: epsilon is paid once, with the first
record of an epoch, for any number of steps. A step's rows are first sorted by node, so a release does not depend on the
order in which partitions of learners arrive.

The journal record holds a keyed hash chain of all rows of the epoch and of their batches. If a replay finds other
leaves than the journal says, nothing is sent for that record again. The next release opens an epoch with new noise, at
its full price (PRIVACY rule 7); if the budget refuses this price, nothing more is released. Noise at a step has the
user's leaves so far, and the events of all batches, in its address. But trees with negative digits draw noise before
all its rewards have come. With them, a recovery that suspects a rollback opens an epoch, too
(`ReleasingMachine.request_epoch`).

The exact sums of an erased user are deleted. The user's released sums stay, and no later release contains sums of this
user. After a rotation of the zone's key (`hushstream.engine.noise.key_rotation`), the next record says so. The record
after it opens an epoch under the new key, on the released sums, so no reward gets new noise or is charged a second
time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import START, Identity
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.one_input import Gathered, Read
from hushstream.engine.phase_ends import PHASE_ENDS, PhaseEnds
from hushstream.engine.records import InputRecord, InputSlice, Output, Step
from hushstream.engine.refusals import Refused
from hushstream.engine.releasing import ReopeningRole, releasing_state
from hushstream.engine.state.declared import Flat, Several, integer, known_ids, own_part, raw, rows, whole_bytes
from hushstream.engine.state.known_ids import KnownIds
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.rows import FORGOTTEN, MAX_ROWS_A_RECORD, BadRows, Rows, parse_rows
from hushstream.systems.colin.topics import COUNTER_ZONE

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
        8,
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
        gathered = Gathered(self)
        for one in self.read(slices, _KINDS):
            closed = self._take(one, gathered)
            if closed:
                self._release(closed, one.record.offset + 1, gathered)
        self.releases.require_followed()
        self._settle(gathered)
        return self.finished(slices, gathered)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Reopens.reopen`: the record has already published the rows' features, so the sums take the rows."""
        fields = self.chain.accept(value, self.committed())
        gathered = Gathered(self)
        for one in self.read(slices, _KINDS):
            self._take(one, gathered)
        self._settle(gathered)
        if self.pending:
            self._add(Rows.joined(self.pending))
        self.leaf = fields["leaf"]
        return self.reopened(fields, self.charge, gathered)

    # One record.

    def _take(self, one: Read, gathered: Gathered) -> str:
        """Take one record; returns what closes the step with it, if anything. Late rows still join the step."""
        record, name, fields, reason = one
        ended = False
        try:
            if reason:
                raise Refused(reason)
            if name == "Tick":
                gathered.counts[Outcome.TICK] += 1
            elif name == "Seal":
                ended = self._end_phase(fields, gathered)
            elif name == "Erasure":
                self._erase(fields["node"], gathered)
            else:
                self._rewards(fields, record, gathered)
        except Refused as error:
            gathered.refuse(error.reason, record)
        if not self.pending:
            return ""
        if ended:
            return "seal"
        if sum(len(rows) for rows in self.pending) >= self.system.config.release.rows:
            return "rows"
        open_ms = self.system.open_ms
        return "time" if open_ms is not None and record.timestamp_ms - self.open_since_ms >= open_ms else ""

    def _end_phase(self, fields: dict[str, Any], gathered: Gathered) -> bool:
        complete = self.phase_ends.note(fields["origin"], fields["phase"])
        if complete is None:
            raise Refused(Refusal.UNKNOWN_ORIGIN)
        gathered.counts[Outcome.SEAL] += 1
        return complete

    def _erase(self, node: int, gathered: Gathered) -> None:
        """Delete a user's open rows and exact sums; from now on no reward of the user counts or is released."""
        if not 0 <= node < self.system.nodes:
            raise Refused(Refusal.UNKNOWN_USER)
        kept = [rows.without(node) for rows in self.pending]
        self.pending = [rows for rows in kept if len(rows)]
        self.noised_sums.erase(node)
        self.taken[node] = FORGOTTEN
        gathered.counts[Outcome.FORGOTTEN] += 1

    def _rewards(self, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        batch_id = fields["batch_id"].hex()
        if fields["batch_id"] in self.known or batch_id in gathered.ids:
            gathered.counts[Outcome.REPEATED_REWARDS] += 1
            return
        try:
            rows = parse_rows(fields["nodes"], fields["contexts"], fields["rewards"], self.system)
            if len(rows) > MAX_ROWS_A_RECORD:
                raise BadRows(f"rows: expected at most {MAX_ROWS_A_RECORD} in a record, got {len(rows)}")
        except BadRows:
            raise Refused(Refusal.MALFORMED_REWARDS) from None
        gathered.ids[batch_id] = None
        allowed = rows.within(self.taken, self.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            gathered.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if len(allowed):
            if not self.pending:
                self.open_since_ms = record.timestamp_ms
            self.pending.append(allowed)
            self.batches = (self.batches + int.from_bytes(fields["batch_id"], "little")) % (1 << 128)
            gathered.counts[Outcome.REWARD_TAKEN] += len(allowed)

    def _settle(self, gathered: Gathered) -> None:
        """Remember the ids of the input, because it now counts."""
        for batch_id in gathered.ids:
            self.known.add(bytes.fromhex(batch_id))
        gathered.ids.clear()

    # One step.

    def _release(self, closed_by: str, high: int, gathered: Gathered) -> None:
        """Release the open step, which closed with the input below ``high``."""
        releases = self.releases
        if releases.opens_epoch():
            self._redraw()
        # 1. Charge: an epoch has one price.
        charge_result = releases.try_charge()
        # 2. Draw. Nobody has seen a result yet: after a crash here, the same address gives the same draw.
        rows = Rows.joined(self.pending)
        self._add(rows)
        self.leaf += 1
        fields = {
            "leaf": self.leaf,
            "rows": len(rows),
            "closed_by": closed_by,
            "mechanism": self.noised_sums.mechanism,
            "parameters": json.dumps(dict(self.noised_sums.parameters), sort_keys=True, separators=(",", ":")),
            "leaves": self.leaves,
        }
        outputs = self._outputs(rows, charge_result)
        # 3. Journal: the driver appends this record, and sends the outputs only when it is acknowledged.
        key_rotated = self.released(high, fields, outputs, charge_result, gathered)
        self._settle(gathered)
        if key_rotated:
            self._rotate(not charge_result.refused)

    def _add(self, rows: Rows) -> None:
        """Add the open step's rows to the sums and to the hash chain."""
        columns = (rows.nodes.astype("<i4"), rows.features.astype("<f4"), rows.rewards.astype("<f8"))
        content = [column.tobytes() for column in columns]
        self.leaves = self.releases.key.digest("leaves", self.leaves, self._events, *content)
        self.noised_sums.add(rows, self._events)
        self.pending = []

    def _outputs(self, rows: Rows, charge_result: ChargeResult) -> tuple[Output, ...]:
        place = struct.pack("<qqq", self.partition, self.releases.epoch.number, self.leaf)
        release_id = self.releases.key.digest("release-id", self.releases.nonce, place)
        if charge_result.refused:
            return self._entry(release_id, charge_result)
        release = self.system.release_record(
            self.noised_sums, rows, release_id, self.leaf, self.releases.epoch.number, self.releases.key.reproducible
        )
        return (Output("releases", 0, self.chain.encode("Release", release)), *self._entry(release_id, charge_result))

    def _entry(self, release_id: bytes, charge_result: ChargeResult) -> tuple[Output, ...]:
        """The ledger's copy of the debit that opened a charge, which is empty if its price was refused."""
        return (self.debited(release_id, charge_result),) if charge_result.opens else ()

    # The noise of the sums.

    def open_noise(self) -> None:
        """Begin with empty sums, under the noise of this epoch."""
        key, nonce = self.releases.key, self.releases.nonce
        self.noised_sums = self.system.noised_sums(key, nonce, self.releases.epoch.number, self.partition)

    def _redraw(self) -> None:
        """Continue in an opened epoch: all exact sums get new noise and are charged again."""
        earlier = self.noised_sums
        self.open_noise()
        self.noised_sums.redraw(earlier, self._events)
        self.leaves = START

    def _rotate(self, released: bool) -> None:
        """Begin the next key's epoch on the releases of the epoch before, if there were any.

        Either all steps of an epoch are released or none: its price is paid with the first step, or refused with each.
        """
        earlier = self.noised_sums
        self.open_noise()
        self.noised_sums.continue_from(earlier, released)
        self.leaves = START

    # What a driver asks.

    @property
    def charge(self) -> int:
        """See `ReleasingRole.charge`: an epoch has one price."""
        return 0

    @property
    def draws_ahead(self) -> bool:
        return self.noised_sums.draws_ahead

    def tick(self, idle_ms: int) -> Output | None:
        """See `Ticks.tick`: while a step with rows is open."""
        open_ms = self.system.open_ms
        return self.tick_record() if open_ms is not None and self.pending and idle_ms >= open_ms else None

    @property
    def _events(self) -> bytes:
        return self.batches.to_bytes(16, "little")
