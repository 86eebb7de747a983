"""What a home of records is, whatever it shares: it predicts, waits for labels, counts slots, and journals each batch.

Its input is what comes at its nodes, in one order: records, and later their labels. What it says of a record is in its
journal, which clients read. A record's slot is counted when so many more records have come (or a phase has ended, which
is logged): with its content if it is admitted, within its person's allowance and labelled by then, else as null. So how
many slots there are follows from how many records came alone.

One journal record covers one batch: what was predicted, and a digest and a debit of each release. What others published
is read before the batch's records.

Where inputs changed under the journal, what was released stands, and the next release opens an epoch, with noise of its
own, at its price. A rollback that cannot be ruled out does so where noise is drawn ahead (`Machine.distrust`); one that
is known does in any case. With a key rotation an epoch begins, too, that nobody pays twice for.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.budget import Place
from hushstream.engine.chain import Chain, Identity, head_fields, ranges_of
from hushstream.engine.digests import digest_outputs, digest_records
from hushstream.engine.epochs import NoiseEpoch
from hushstream.engine.generations import in_its_generation
from hushstream.engine.key_rotation import STAYS, KeyInForce
from hushstream.engine.machine import InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.outcomes import Outcome
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.spending import Spending
from hushstream.engine.state.declared import FIXED, Declared
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.incoming import Incoming, decode_slice, ready_slice
from hushstream.systems.pdol.slot import Past, Slot

_TAG_BYTES = 16


class HomeBatch(Protocol):
    """One batch that is folded into a home; see `hushstream.systems.pdol.home_fold`."""

    @property
    def outputs(self) -> Sequence[Output]:
        """What is released after the journal record."""

    def run(self, covered: Sequence[InputSlice]) -> None:
        """Fold one slice of every input."""

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""

    def step(self, journal: bytes | None, turns: bool) -> Step:
        """What the driver sends; ``turns`` where the zone's next key is in force from here on."""


class HomeMachine(OwnsJournal, Declared, ABC):
    """One home of records, on its partition."""

    derived: ClassVar[Mapping[str, str]] = {
        "system": FIXED,
        "partition": FIXED,
        "letters": "written under the key in force",
        "float_ties": "a count of this process alone",
        "_decoded": "kept from `ready` to the fold of the same records",
    }

    def __init__(self, system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity("node", system.config.deployment, system.digest, ("predictions", partition))
        self.system = system
        self.partition = partition
        self.keys = KeyInForce(key, ring)
        self.chain = Chain(identity, key, "Predictions")
        self.letters = DeadLetters("edge", "node", partition, key, self.chain.encode)
        self.position = 0
        self.ended_phase = -1
        """The last phase that ended in this log."""
        self.absent: set[int] = set()
        """Nodes of this home that have left, or have not joined yet."""
        self.epoch = NoiseEpoch()
        self.events = 0
        """Sum of the names of all events whose slots were counted: it names the events until now."""
        self.pending: OrderedDict[str, Slot] = OrderedDict()
        self.past: BoundedMap[Past] = BoundedMap(system.config.records.remembered_events)
        self.spent: dict[bytes, int] = {}
        """Records of each person that have come, up to the allowance, by tag."""
        self.spending = Spending(system.spending_terms, partition)
        self.float_ties = 0
        self.diverged = False
        """Whether a journal record was adopted that the inputs no longer give: later ones may differ, too."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None
        self.open_noise()

    # What is shared, and how.

    @property
    @abstractmethod
    def broadcasts(self) -> tuple[TopicPartition, ...]: ...

    @property
    @abstractmethod
    def read(self) -> Mapping[TopicPartition, int]:
        """How far each broadcast was read."""

    @property
    @abstractmethod
    def held_phase(self) -> int:
        """The last phase whose end everybody has come to whom predictions follow from."""

    @property
    @abstractmethod
    def version(self) -> int:
        """Of what is predicted by; 0 before there is anything."""

    @property
    @abstractmethod
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all that it covers is there."""

    @property
    def predicts_in_floats(self) -> bool:
        """Whether a replayed prediction may differ by a rounding."""
        return False

    @abstractmethod
    def open_noise(self) -> None:
        """Begin before the first slot, under the noise of this epoch."""

    @abstractmethod
    def redraw_noise(self) -> None:
        """Go on under the noise of an epoch that has begun; what was released before stands."""

    @abstractmethod
    def skip(self, releases: int) -> None:
        """So many releases were made whose content the inputs no longer give."""

    @abstractmethod
    def begin_fold(self, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> HomeBatch: ...

    # What a machine is.

    @property
    def key(self) -> Key:
        """The zone's key in force."""
        return self.keys.key

    @property
    def journal(self) -> TopicPartition:
        return ("predictions", self.partition)

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        return (("records", self.partition),)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, self.keys.retired)
        self.open_noise()

    def positions(self) -> Mapping[TopicPartition, int]:
        return {self.inputs[0]: self.position, **self.read}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: every batch is journaled."""
        return {self.inputs[0]: self.position}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: a record waits for the model of a phase that it names."""
        parts = [part if part.topic != "records" else self._ready(part) for part in slices]
        return [part for part in parts if part.high > part.low]

    def _ready(self, part: InputSlice) -> InputSlice:
        return ready_slice(part, self.decode(part), self.held_phase, self.ended_phase)

    def decode(self, part: InputSlice) -> Sequence[Incoming]:
        """A slice of records; decoded once, though `ready` and `fold` both ask."""
        held = self._decoded
        if held is None or held[0] != part.low or held[1] < part.high:
            held = self._decoded = part.low, part.high, decode_slice(part)
        return held[2][: len(part.records)]

    # Noise, and what it costs.

    @property
    def nonce(self) -> bytes:
        """What names the noise of this epoch in this journal."""
        return self.epoch.nonce(self.chain.genesis_nonce or bytes(32))

    @property
    def charged(self) -> Cost:
        return self.spending.spent

    @property
    def refused(self) -> Exhausted | None:
        return self.spending.refusal(self.epoch.next_place())

    def answers(self, sequence: int) -> bool:
        return self.epoch.answers(sequence)

    def distrust(self, nonce: bytes, forked: bool = False, lives: int = 0) -> bool:
        if forked or self.draws_ahead:
            self.epoch.ask(nonce, lives)
        return self.epoch.due

    def charge(self) -> Place:
        """What the release that follows is charged to; opens the epoch that is due."""
        if self.epoch.due:
            self.epoch.redraw(self.chain.sequence + 1)
            self.redraw_noise()
        return self.epoch.place()

    def tag(self, user: str) -> bytes:
        """16 bytes that stand for a person in this journal, as long as it lasts."""
        return hashlib.blake2b(user.encode(), digest_size=_TAG_BYTES, key=self.chain.genesis_nonce).digest()

    def event_name(self, event_id: str) -> int:
        """A number that stands for an event in this journal, for this role alone."""
        return int.from_bytes(self.key.digest("slot", self.chain.genesis_nonce, event_id.encode()), "little")

    def put_key(self, key_id: bytes) -> None:
        """Go on under the zone's key with this public id.

        Raises:
            KeyFileError: it was destroyed, or the zone never had it.
        """
        key = self.keys.turn_to(key_id)
        self.chain.turn_to(key)
        self.letters = DeadLetters("edge", "node", self.partition, key, self.chain.encode)

    def _turn(self, key_id: bytes) -> None:
        """Begin an epoch under the key that the last record named."""
        if key_id == STAYS:
            return
        self.put_key(key_id)
        self.epoch.turn()
        self.redraw_noise()

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        turned_to = self.keys.due
        fold, fields = self._folded(slices, turned_to)
        journal = self.chain.append(fields)
        self._turn(turned_to)
        return [fold.step(journal, turned_to != STAYS)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is as it was, and `reopen` may be asked for.

        Raises:
            HushstreamError: the inputs are as they were, and give something else: this is another program.
        """
        fields = self.chain.check(value, self.positions())
        if self.input_digest(self._covered(slices)) != fields["head"]["input_digest"]:
            raise ReplayMismatch(f"{self._record()}: its inputs are not those that it was made from; nothing is sent")
        before = self.snapshot() if self.diverged else b""
        if fields["debits"]:
            self.epoch.follow(fields["head"]["epoch"], fields["debits"][0]["scope"], self.spending.terms.own)
        journaled = np.frombuffer(fields["predicted"], np.int8) if self.predicts_in_floats else None
        fold, again = self._folded(slices, fields["turned_to"], journaled)
        if self.chain.would_append(again) != value:
            if before:
                self.restore(before)
                raise ReplayMismatch(f"{self._record()}: it follows on one that could not be replayed")
            raise HushstreamError(f"{self._record()}: the same inputs give another record: another program wrote it")
        self.chain.append(again)
        self._turn(fields["turned_to"])
        return fold.step(None, fields["turned_to"] != STAYS)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Go on after a record that its inputs no longer give: what it released stands, and is never sent again.

        The slots that are in the log now are counted without a release. The next release opens an epoch after the
        record's own.
        """
        fields = self.chain.accept(value, self.positions())
        self.diverged = True
        fold = self.begin_fold(adopting=True)
        fold.run(self._covered(slices))
        self._decoded = None
        own, debits = self.spending.terms.own, fields["debits"]
        self.skip(len(debits))
        scope = debits[-1]["scope"] if debits else self.spending.terms.own_scope(self.partition, self.epoch.place())
        self.epoch.adopt(fields["head"]["epoch"], scope, own, self.chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if any(debit["epsilon_micro"] or debit["delta_units"] for debit in debits):
            self.spending.adopt(self.epoch.place())
        if fields["turned_to"] != STAYS:
            self._turn(fields["turned_to"])
        return Step(None, (), (), {Outcome.DIVERGED: 1}, fields["turned_to"] != STAYS)

    def _folded(
        self, slices: Sequence[InputSlice], turned_to: bytes, journaled: NDArray[np.int8] | None = None
    ) -> tuple[HomeBatch, dict[str, Any]]:
        """Fold a batch, and say what the journal record that covers it holds."""
        covered = self._covered(slices)
        inputs = self.input_digest(covered)
        fold = self.begin_fold(journaled)
        fold.run(covered)
        self._decoded = None
        outputs = digest_outputs(self.key, fold.outputs)
        sequence, schema_generation = self.chain.sequence + 1, self.chain.schema_generation
        head = head_fields(sequence, self.epoch.number, ranges_of(covered), inputs, outputs, schema_generation)
        return fold, {"head": head, **fold.fields(), "turned_to": turned_to}

    def _covered(self, slices: Sequence[InputSlice]) -> list[InputSlice]:
        """One slice for every input, empty ones included, models first."""
        given = {(part.topic, part.partition): part for part in slices}
        return [
            given.get(source, InputSlice(*source, low=position, high=position, records=()))
            for source, position in sorted(self.positions().items())
        ]

    def _record(self) -> str:
        return f"predictions/{self.partition} record {self.chain.sequence + 1}"

    # State on disk.

    def snapshot(self) -> bytes:
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)
