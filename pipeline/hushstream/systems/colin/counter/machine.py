"""The counter role: rewards in clear come in, noised running sums go out (its own zone).

A step is a batch of rewards that a count, a seal or log time closed. Within it each user's rewards are one leaf
of his own counter, so a step is one more release of a continual release: epsilon is paid once, with the first
record of an epoch, however many steps follow. A step's rows are put in the order of their nodes before anything
else happens, so what is released does not depend on how the partitions of learners raced.

The journal record holds a keyed hash chain of all rows of the epoch and of the batches that they came in. When a replay
finds other leaves than the journal says, nothing is sent for that record again; the next release opens an epoch with
new noise, at its full price (PRIVACY rule 7), or nothing more is released if that price is not allowed. What is drawn
at a step is named by the user's leaves until then, and by the events of all batches; but trees with negative digits
draw ahead, so a take-up that cannot rule a rollback out opens an epoch there, too (`Distrusts`).

A user who is forgotten leaves no exact sum here; what was released of him stands, and no later release names him.

Where the zone's key has turned (`hushstream.engine.key_rotation`), the next record says so and the one after it opens
an epoch under the new key, on the sums that were released: no reward is noised, or pays, a second time.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from hushstream.engine.budget import debit_fields
from hushstream.engine.chain import Chain, Identity, digest_outputs, extend_digest, head_fields
from hushstream.engine.editions import in_its_edition
from hushstream.engine.epochs import NoiseEpoch
from hushstream.engine.key_rotation import STAYS, KeyInForce
from hushstream.engine.machine import (
    InputRecord,
    InputSlice,
    Output,
    ReplayMismatch,
    Step,
)
from hushstream.engine.one_input import START, OneInput
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.phase_ends import SealsSeen
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.spending import Asked, Spending
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.colin.counter import state as counter_state
from hushstream.systems.colin.counter.step import Gathered, Made
from hushstream.systems.colin.deployment import CollaborativeSystem
from hushstream.systems.colin.moments import Moments
from hushstream.systems.colin.rows import FORGOTTEN, MAX_ROWS_A_RECORD, BadRows, Rows, parse_rows

REMEMBERED_IDS = 100_000
"""How many ids of batches are known again, so that what is sent twice counts once."""

_KINDS = frozenset({"Rewards", "Seal", "Tick", "Erasure"})
_INPUT = "rewards"


class CounterMachine(OneInput):
    """The counter on one partition of rewards."""

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity("counter", system.config.deployment, system.digest, ("journal-counter", partition))
        super().__init__(Chain(identity, key, "CounterJournal"), key, identity.journal, (_INPUT, partition))
        self.system = system
        self.partition = partition
        self.keys = KeyInForce(key, ring)
        self._retired = self.keys.retired
        self._letters = DeadLetters("counter", "counter", partition, key, self.chain.encode)
        self.leaf = 0
        self.epoch = NoiseEpoch()
        self.leaves = START
        """Keyed hash chain of the epoch's rows, and of the batches that they came in."""
        self.batches = 0
        """Sum of the ids of all batches that were taken: it names the events until now, however they were cut."""
        self.pending: list[Rows] = []
        self.open_since_ms = 0
        self.seals = SealsSeen(system.config.partitions.learner)
        self.known: BoundedMap[None] = BoundedMap(REMEMBERED_IDS)
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        """How many rewards of each user have counted: his allowance."""
        self.moments = system.moments(key, b"", 0, partition)
        self.spending = Spending(system.spending_terms, partition)

    @property
    def key(self) -> Key:
        """The zone's key in force."""
        return self.keys.key

    @property
    def _nonce(self) -> bytes:
        return self.epoch.nonce(self.chain.genesis_nonce)

    @property
    def _events(self) -> bytes:
        return self.batches.to_bytes(16, "little")

    # What a driver asks before it reads.

    @property
    def refused(self) -> Exhausted | None:
        """Why the next step would not be released; None while the budget has room for it."""
        return self.spending.refusal(self.epoch.next_place())

    def start(self, genesis: bytes) -> None:
        """See `Machine.start`."""
        super().start(genesis)
        self.moments = self.open_moments()

    def distrust(self, nonce: bytes, forked: bool = False) -> bool:
        """See `Distrusts.distrust`."""
        if forked or self.moments.reaches_ahead:
            self.epoch.ask(nonce)
        return self.epoch.due

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: log time must go on while a step waits for its end."""
        open_ms = self.system.open_ms
        if open_ms is None or not self.pending or idle_ms < open_ms:
            return None
        return Output(_INPUT, self.partition, self.chain.encode("Tick", {"config_digest": self.system.digest}))

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`; it may be taken while a step is open."""
        return counter_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        counter_state.restore(self, snapshot)

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each release, and one for what is left."""
        steps: list[Step] = []
        gathered = Gathered()
        for part in slices:
            for record in part.records:
                closed_by = self._feed(record, gathered)
                if closed_by is not None:
                    steps.append(self._release(self._make(closed_by, record.offset + 1, self.keys.due), gathered))
                    gathered = Gathered()
            self.position = part.high
        self._remember(gathered)
        if gathered.dead or gathered.counts:
            steps.append(Step(None, (), tuple(gathered.dead), gathered.counts))
        return steps

    @in_its_edition
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: everything here is whole numbers, so the bytes must be the same.

        After a `ReplayMismatch` the machine's state is as it was, and `reopen` may be asked for.
        """
        fields = self.chain.check(value, self.committed())
        turned_to, before = fields["turned_to"], counter_state.hold(self)
        self.epoch.follow(fields["head"]["epoch"], fields["debit"]["scope"], self.spending.terms.own)
        gathered = Gathered()
        end = self.entry(value).inputs[0].high
        closings = [self._feed(record, gathered) for part in slices for record in part.records]
        closed_by = closings[-1] if closings and not any(closings[:-1]) else None
        made = None if closed_by is None else self._make(closed_by, end, turned_to)
        if made is None or self.chain.would_append(made.fields) != value:
            counter_state.put_back(self, before)
            raise ReplayMismatch(
                f"journal-counter/{self.partition} record {self.chain.sequence + 1}: its inputs give another release; "
                f"nothing is sent"
            )
        step = self._release(made, gathered)
        self.position = end
        return step

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Go on after a record that its inputs no longer give: what it released stands, and is never sent again.

        The rows that are in the log now go into the sums without a release: the record published their features
        already. The next release opens an epoch after the record's own, which another state of this journal may
        have begun: under the noise of any earlier one something else was released.
        """
        fields = self.chain.accept(value, self.committed())
        gathered = Gathered()
        for part in slices:
            for record in part.records:
                self._feed(record, gathered)
        self._remember(gathered)
        if self.pending:
            self._take(Rows.joined(self.pending))
        self.position = self.journaled = self.entry(value).inputs[0].high
        self.running = START
        self.leaf = fields["leaf"]
        debit = fields["debit"]
        self.epoch.adopt(fields["head"]["epoch"], debit["scope"], self.spending.terms.own)
        # What the journal says was paid is paid, whatever its inputs say now.
        if debit["epsilon_micro"] or debit["delta_units"]:
            self.spending.adopt(self.epoch.place())
        if fields["turned_to"] != STAYS:
            self.put_key(fields["turned_to"])
        gathered.counts[Outcome.DIVERGED] += 1
        return Step(None, (), (), gathered.counts)

    # One record; what closes the step, if it does.

    def _feed(self, record: InputRecord, gathered: Gathered) -> str | None:
        self.running = extend_digest(self.key, self.running, record)
        sealed = False
        try:
            name, fields = codec.decode(record.value, _KINDS)
        except CodecError as error:
            self._refuse(gathered, error.reason, record)
        else:
            if fields["config_digest"] != self.system.digest:
                self._refuse(gathered, Refusal.OTHER_CONFIGURATION, record)
            elif name == "Tick":
                gathered.counts[Outcome.TICK] += 1
            elif name == "Seal":
                sealed = self._seal(fields, record, gathered)
            elif name == "Erasure":
                self._erase(fields["node"], record, gathered)
            else:
                self._rewards(fields, record, gathered)
        return self._closed_by(record.timestamp_ms, sealed)

    def _closed_by(self, log_time_ms: int, sealed: bool) -> str | None:
        if not self.pending:
            return None
        if sealed:
            return "seal"
        if sum(len(rows) for rows in self.pending) >= self.system.config.release.rows:
            return "rows"
        open_ms = self.system.open_ms
        if open_ms is not None and log_time_ms - self.open_since_ms >= open_ms:
            return "time"
        return None

    def _seal(self, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> bool:
        outcome = self.seals.note(fields["origin"], fields["phase"])
        if outcome is None:
            self._refuse(gathered, Refusal.UNKNOWN_ORIGIN, record)
            return False
        gathered.counts[Outcome.SEAL] += 1
        return outcome

    def _erase(self, node: int, record: InputRecord, gathered: Gathered) -> None:
        """Drop a user's open rows and his exact sums; nothing of him counts, or is released, from here on."""
        if not 0 <= node < self.system.nodes:
            self._refuse(gathered, Refusal.UNKNOWN_USER, record)
            return
        kept = [rows.without(node) for rows in self.pending]
        self.pending = [rows for rows in kept if len(rows)]
        self.moments.erase(node)
        self.taken[node] = FORGOTTEN
        gathered.counts[Outcome.FORGOTTEN] += 1

    def _rewards(self, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> None:
        batch_id = fields["batch_id"].hex()
        if batch_id in self.known or batch_id in gathered.ids:
            gathered.counts[Outcome.REPEATED_REWARDS] += 1
            return
        try:
            rows = parse_rows(fields["nodes"], fields["contexts"], fields["rewards"], self.system)
            if len(rows) > MAX_ROWS_A_RECORD:
                raise BadRows(f"rows: expected at most {MAX_ROWS_A_RECORD} in a record, got {len(rows)}")
        except BadRows:
            self._refuse(gathered, Refusal.MALFORMED_REWARDS, record)
            return
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

    def _remember(self, gathered: Gathered) -> None:
        for batch_id in gathered.ids:
            self.known.put(batch_id, None)

    def _refuse(self, gathered: Gathered, reason: str, record: InputRecord) -> None:
        letter = self._letters.letter(reason, _INPUT, self.partition, record.offset, value=record.value)
        gathered.dead.append(letter)
        gathered.counts[Outcome.REJECTED] += 1

    # One step.

    def open_moments(self) -> Moments:
        """Running sums without rewards, under the noise of this epoch."""
        return self.system.moments(self.key, self._nonce, self.epoch.number, self.partition)

    def _renoise(self) -> None:
        """Begin the epoch that is due over the exact sums that are held: all of them are noised, and pay, again."""
        self.epoch.renew()
        earlier, self.moments = self.moments, self.open_moments()
        self.moments.renoise(earlier, self._events)
        self.leaves = START

    def _turn(self, key_id: bytes, released: bool) -> None:
        """Begin an epoch under the key that the last record named, on what the one before ``released``, if it did.

        All steps of an epoch are released, or none: its one price is paid with the first, or refused with each.
        """
        self.put_key(key_id)
        self.epoch.turn()
        earlier, self.moments = self.moments, self.open_moments()
        self.moments.continue_from(earlier, released)
        self.leaves = START

    def put_key(self, key_id: bytes) -> None:
        """Go on under the zone's key with this public id.

        Raises:
            KeyFileError: it was destroyed, or the zone never had it.
        """
        key = self.keys.turn_to(key_id)
        self._turn_digests(key)
        self._letters = DeadLetters("counter", "counter", self.partition, key, self.chain.encode)

    def _make(self, closed_by: str, high: int, turned_to: bytes) -> Made:
        """Close the open step: its rows go into the sums, and what follows is put together."""
        if self.epoch.due:
            self._renoise()
        asked = self.spending.ask(self.epoch.place())
        rows = Rows.joined(self.pending)
        self._take(rows)
        self.leaf += 1
        outputs = self._outputs(rows, asked)
        head = head_fields(
            self.chain.sequence + 1,
            self.epoch.number,
            [self._covered(high)],
            self.running,
            digest_outputs(self.key, outputs),
            self.chain.edition,
        )
        fields = {
            "head": head,
            "leaf": self.leaf,
            "rows": len(rows),
            "closed_by": closed_by,
            "mechanism": self.moments.mechanism,
            "parameters": json.dumps(dict(self.moments.parameters), sort_keys=True, separators=(",", ":")),
            "leaves": self.leaves,
            "debit": debit_fields(asked.debit),
            "turned_to": turned_to,
        }
        return Made(fields, outputs, asked.refused is None)

    def _take(self, rows: Rows) -> None:
        """The open step's rows go into the sums, and into the chain of the journal."""
        columns = (rows.nodes.astype("<i4"), rows.features.astype("<f4"), rows.rewards.astype("<f8"))
        content = [column.tobytes() for column in columns]
        self.leaves = self.key.digest("leaves", self.leaves, self._events, *content)
        self.moments.add(rows, self._events)
        self.pending = []

    def _release(self, made: Made, gathered: Gathered) -> Step:
        journal = self.chain.append(made.fields)
        self._close(made.fields["head"]["inputs"][0]["high"])
        self._remember(gathered)
        gathered.counts[Outcome.RELEASE if made.released else Outcome.RELEASE_WITHHELD] += 1
        if made.fields["turned_to"] != STAYS:
            self._turn(made.fields["turned_to"], made.released)
        return Step(journal, made.outputs, tuple(gathered.dead), gathered.counts)

    def _outputs(self, rows: Rows, asked: Asked) -> tuple[Output, ...]:
        place = struct.pack("<qqq", self.partition, self.epoch.number, self.leaf)
        release_id = self.key.digest("release-id", self._nonce, place)
        if asked.refused:
            return self._entry(release_id, asked)
        release = self.system.release_record(
            self.moments, rows, release_id, self.leaf, self.epoch.number, self.key.reproducible
        )
        return (Output("releases", 0, self.chain.encode("Release", release)), *self._entry(release_id, asked))

    def _entry(self, release_id: bytes, asked: Asked) -> tuple[Output, ...]:
        """The ledger's copy of the debit that opened a charge, or of nothing, where its price was refused."""
        if not asked.opens:
            return ()
        entry = self.system.ledger_entry(release_id, asked.debit, self.key.reproducible)
        return (Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)),)
