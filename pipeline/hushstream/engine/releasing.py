"""The base of roles that release with noise: they gather, close, charge, add noise, journal, and only then release.

A journal record is written when what was gathered closes, and only then: before that the state is a fold of the input
that anyone with the log can repeat. The record names the range and a keyed digest of its input, the debit, and a keyed
digest of what is released; noise is named by the journal's genesis nonce, the epoch and the place within it, so the
same log gives the same release, never a second draw (PRIVACY rules 5 to 7).

Where the zone's key has turned (`hushstream.engine.noise.key_rotation`), the next record says so, and what follows is
released under the new key in an epoch of its own. Where a rollback cannot be ruled out (`Machine.distrust`), whatever
draws ahead of its input begins an epoch that it pays for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.gathered import Gathered
from hushstream.engine.journal.chain import Chain, Identity, head_fields
from hushstream.engine.journal.digests import digest_outputs, extend_digest
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.noise.budget import SpendingTerms, debit_fields
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.key_rotation import STAYS, KeyInForce
from hushstream.engine.noise.spending import SPENDING, Asked, Spending
from hushstream.engine.one_input import PLACE, START, OneInput
from hushstream.engine.records import InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters, Refused
from hushstream.engine.state.declared import FIXED, Field, SavePoint, State, after, key_in_force, own_part
from hushstream.engine.system import Core
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

Closed = TypeVar("Closed")
"""What has closed: its cause, and whatever is released of it."""


@dataclass(frozen=True, slots=True)
class Made:
    """A release as it follows from what closed, before it is journaled.

    Attributes:
        fields: of the journal record.
        outputs: what is sent once the record stands.
        released: whether anything is released; its price may have been refused.
    """

    fields: dict[str, Any]
    outputs: tuple[Output, ...]
    released: bool


_BEFORE: Mapping[str, Field] = {
    **PLACE,
    "keys": key_in_force(),
    "epoch": EPOCH_FIELD,
    "open_noise": after("open_noise"),
}
_AFTER: Mapping[str, Field] = {"spending": own_part(SPENDING)}


def releasing_state(what: str, version: int, name: str, **own: Field) -> State:
    """The declared state of a releasing role: what all of them hold, and fields of its ``own``.

    Its own fields are restored when the counters are open that nothing was put into (`ReleasingRole.open_noise`).
    """
    return State(what, version, name, _BEFORE, own, _AFTER)


class ReleasingRole(OneInput, ABC, Generic[Closed]):
    """One journal of releases over one input log.

    Attributes:
        state: its fields (`releasing_state`); they hold input in clear, so a state is as sensitive as that.
        partition: of the input and of the journal.
        keys: of the zone, and the one in force.
        epoch: where the noise stands.
        spending: what is charged.
    """

    derived: ClassVar[Mapping[str, str]] = {
        "partition": FIXED,
        "system": FIXED,
        "_retired": FIXED,
        "_zone": FIXED,
        "_role": FIXED,
        "_letters": "written under the key in force",
    }

    def __init__(
        self,
        system: Core,
        identity: Identity,
        schema: str,
        source: TopicPartition,
        zone: str,
        key: Key,
        ring: KeyRing | None,
        terms: SpendingTerms,
        first_epoch: int = 0,
    ) -> None:
        """Begin before the first record of ``source``.

        Args:
            system: the deployment.
            identity: whose journal it is.
            schema: of its records.
            source: the input.
            zone: whose operator reads the dead letters.
            key: the zone's key that the journal begins with.
            ring: what the zone's key file holds: where the key turns next.
            terms: what releases cost, and out of which limit.
            first_epoch: number of the first epoch of noise.
        """
        super().__init__(Chain(identity, key, schema), key, identity.journal, source)
        self.partition = identity.journal[1]
        self.keys = KeyInForce(key, ring)
        self.epoch = NoiseEpoch(first_epoch)
        self.spending = Spending(terms, self.partition)
        self.system = system
        self._retired = self.keys.retired
        self._zone, self._role = zone, identity.role
        self._letters = self._open_letters()

    @property
    @abstractmethod
    def expects(self) -> frozenset[str]:
        """The schemas of records that may come."""

    @property
    @abstractmethod
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all that it covers is there, so that no digest of that is in its name."""

    @property
    @abstractmethod
    def waits(self) -> bool:
        """Whether log time alone may close what is gathered."""

    @property
    @abstractmethod
    def open_ms(self) -> int | None:
        """For how long of log time something is gathered; None where log time closes nothing."""

    @abstractmethod
    def on_time(self, log_time_ms: int) -> Closed | None:
        """Log time has come so far: what that closes, before the record that tells it is looked at."""

    @abstractmethod
    def on_record(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> Closed | None:
        """Take one record of this deployment; what closes with it.

        Raises:
            Refused: it must not count.
        """

    @abstractmethod
    def on_phase_end(self, fields: dict[str, Any], gathered: Gathered) -> Closed | None:
        """Take a phase end; what closes with it.

        Raises:
            Refused: it comes from nobody who ends phases here.
        """

    def after(self, record: InputRecord) -> Closed | None:
        """A record was taken, or refused: what closes by that."""
        return None

    @abstractmethod
    def place_of(self, closed: Closed | None) -> int:
        """Which charge of its epoch something is on; None stands for what is gathered now."""

    @abstractmethod
    def close(self, closed: Closed, asked: Asked) -> tuple[dict[str, Any], tuple[Output, ...]]:
        """Take what closed into the state: fields of the journal record, and what is released if that is allowed."""

    @abstractmethod
    def count_release(self, released: bool, gathered: Gathered) -> None:
        """Count what was released, or withheld."""

    @abstractmethod
    def redraw(self) -> None:
        """The epoch has been opened anew for a doubt: begin again under its noise."""

    @abstractmethod
    def rotated(self, released: bool) -> None:
        """The next key is in force, and its epoch has begun: go on under its noise.

        Args:
            released: whether anything was released in the epoch before.
        """

    @abstractmethod
    def open_noise(self) -> None:
        """Begin counters that nothing was put into, under the noise of this epoch."""

    # What a driver asks before it reads.

    @property
    def key(self) -> Key:
        return self.keys.key

    @property
    def nonce(self) -> bytes:
        return self.epoch.nonce(self.chain.genesis_nonce)

    @property
    def charged(self) -> Cost:
        return self.spending.spent

    @property
    def refused(self) -> Exhausted | None:
        return self.spending.refusal(self.epoch.next_place(self.place_of(None)))

    def answers(self, sequence: int) -> bool:
        return self.epoch.answers(sequence)

    def distrust(self, nonce: bytes, forked: bool = False, lives: int = 0) -> bool:
        if forked or self.draws_ahead:
            self.epoch.ask(nonce, lives)
        return self.epoch.due

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.open_noise()

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: log time must go on while what is gathered waits for its end."""
        if self.open_ms is None or not self.waits or idle_ms < self.open_ms:
            return None
        value = self.chain.encode("Tick", {"config_digest": self.system.digest})
        return Output(*self.inputs[0], value)

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for each release, and one for what is left."""
        steps: list[Step] = []
        gathered = Gathered()
        for part in slices:
            for record in part.records:
                closed = self._feed(record, gathered)
                if closed is not None:
                    steps.append(self._release(self._make(closed, record.offset + 1, self.keys.due), gathered))
                    gathered = Gathered()
            self.position = part.high
        self.settle(gathered)
        return [*steps, *gathered.steps()]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: everything here is whole numbers, so the bytes must be the same."""
        fields = self.chain.check(value, self.committed())
        before = self._save_point()
        self.epoch.follow(fields["head"]["epoch"], fields["debit"]["scope"], self.spending.terms.own)
        gathered = Gathered()
        end = self.entry(value).inputs[0].high
        found = [self._feed(record, gathered) for part in slices for record in part.records]
        # A record covers one release, which closes with its last input.
        last = found[-1] if found and all(one is None for one in found[:-1]) else None
        made = None if last is None else self._make(last, end, fields["turned_to"])
        if made is None or self.chain.would_append(made.fields) != value:
            self._roll_back(before)
            topic, partition = self.journal
            raise ReplayMismatch(
                f"{topic}/{partition} record {self.chain.sequence + 1}: its inputs give another release; "
                f"nothing is sent"
            )
        step = self._release(made, gathered)
        self.position = end
        return step

    def _save_point(self) -> SavePoint | None:
        """What `_roll_back` needs after a record of the journal that its inputs do not give."""
        return None

    def _roll_back(self, before: SavePoint | None) -> None:
        """A machine that cannot reopen its journal is thrown away after a `ReplayMismatch`, as it is."""

    def settle(self, gathered: Gathered) -> None:
        """What was gathered counts for certain."""

    def _feed(self, record: InputRecord, gathered: Gathered) -> Closed | None:
        # Refused records are in the range, too: a replay must see that they are what they were.
        self.running = extend_digest(self.key, self.running, record)
        # Log time first, or a record that comes after the end would be counted in what ends before it.
        closed = self.on_time(record.timestamp_ms)
        try:
            name, fields = codec.decode(record.value, self.expects)
            closed = self._take(name, fields, record, gathered) or closed
        except (CodecError, Refused) as error:
            gathered.refuse(self._letters, error.reason, self.inputs[0], record)
        return closed or self.after(record)

    def _take(self, name: str, fields: dict[str, Any], record: InputRecord, gathered: Gathered) -> Closed | None:
        if fields["config_digest"] != self.system.digest:
            raise Refused(Refusal.OTHER_CONFIGURATION)
        if name == "Tick":
            gathered.counts[Outcome.TICK] += 1
            return None
        if name == "Seal":
            closed = self.on_phase_end(fields, gathered)
            gathered.counts[Outcome.PHASE_END] += 1
            return closed
        return self.on_record(name, fields, record, gathered)

    # One release.

    def _make(self, closed: Closed, high: int, turned_to: bytes) -> Made:
        # 0. Answer a doubt: asked before, this release would be on the charge, and under the noise, that are doubted.
        if self.epoch.due:
            self.epoch.redraw(self.chain.sequence + 1)
            self.redraw()
        # 1. Ask: what was paid for is in the state, so a replay is told the same.
        asked = self.spending.ask(self.epoch.place(self.place_of(closed)))
        # 2. Draw. Nothing is known to anybody yet: a crash here repeats the draw from the same address.
        own, outputs = self.close(closed, asked)
        head = head_fields(
            self.chain.sequence + 1,
            self.epoch.number,
            [self._covered(high)],
            self.running,
            digest_outputs(self.key, outputs),
            self.chain.schema_generation,
        )
        fields = {"head": head, **own, "debit": debit_fields(asked.debit), "turned_to": turned_to}
        return Made(fields, outputs, asked.refused is None)

    def _release(self, made: Made, gathered: Gathered) -> Step:
        # 3. Journal: the driver appends this record, and sends the outputs only when it stands (4.).
        journal = self.chain.append(made.fields)
        self._close(made.fields["head"]["inputs"][0]["high"])
        self.settle(gathered)
        self.count_release(made.released, gathered)
        turned_to = made.fields["turned_to"]
        if turned_to != STAYS:
            # 5. The record was digested under the key before; all that follows is under the next one.
            self.put_key(turned_to)
            self.epoch.turn()
            self.rotated(made.released)
        return Step(journal, made.outputs, tuple(gathered.dead), gathered.counts, turned_to != STAYS)

    def put_key(self, key_id: bytes) -> None:
        """Go on under the zone's key with this public id.

        Raises:
            KeyFileError: it was destroyed, or the zone never had it.
        """
        self._turn_digests(self.keys.turn_to(key_id))
        self._letters = self._open_letters()

    def _open_letters(self) -> DeadLetters:
        return DeadLetters(self._zone, self._role, self.partition, self.key, self.chain.encode)


class ReopeningRole(ReleasingRole[Closed]):
    """One that can go on after a record of its journal that its inputs no longer give."""

    def _save_point(self) -> SavePoint:
        return self.state.save_point(self)

    def _roll_back(self, before: SavePoint | None) -> None:
        """Bring the machine back to where it was; then `reopen` may be asked for."""
        if before is not None:
            self.state.roll_back(self, before)

    @abstractmethod
    def adopt(self, fields: Mapping[str, Any]) -> None:
        """Take what is gathered without a release, after a journal record with these fields that stands."""

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Go on after a record that its inputs no longer give: what it released stands, and is never sent again.

        What is in the log now is taken without a release. The next release opens an epoch after the record's own, which
        another state of this journal may have begun: under the noise of any earlier one something else was released.
        """
        fields = self.chain.accept(value, self.committed())
        charged = self.place_of(None)
        gathered = Gathered()
        for part in slices:
            for record in part.records:
                self._feed(record, gathered)
        self.settle(gathered)
        self.adopt(fields)
        self.position = self.journaled = self.entry(value).inputs[0].high
        self.running = START
        debit = fields["debit"]
        self.epoch.adopt(fields["head"]["epoch"], debit["scope"], self.spending.terms.own, self.chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if debit["epsilon_micro"] or debit["delta_units"]:
            self.spending.adopt(self.epoch.place(charged))
        turns = fields["turned_to"] != STAYS
        if turns:
            self.put_key(fields["turned_to"])
        gathered.counts[Outcome.DIVERGED] += 1
        return Step(None, (), (), gathered.counts, turns)
