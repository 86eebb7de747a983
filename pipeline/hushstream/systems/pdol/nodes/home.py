"""What a home of records is, whatever it shares: it predicts, waits for labels, counts slots, and journals each batch.

Its input is what comes at its nodes, in one order: records, and later their labels. What it says of a record is in its
journal, which clients read. A record's slot is counted when so many more records have come (or a phase has ended, which
is logged): with its content if it is admitted, within its person's allowance and labelled by then, else as null. So how
many slots there are follows from how many records came alone.

One journal record covers one batch: what was predicted, and a digest and a debit of each release. What others published
is read before the batch's records.

Where inputs changed under the journal, what was released stands, and the next release opens an epoch, with noise of its
own, at its price. A suspected rollback opens one where noise is drawn ahead (`ReleasingMachine.request_epoch`); a
fork that is known opens one in any case. With a key rotation an epoch begins, too, that nobody pays twice for.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.batch import covered, head_of
from hushstream.engine.journal.chain import Chain, Identity
from hushstream.engine.journal.digests import digest_records
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.journal.ownership import owner
from hushstream.engine.noise.budget import ChargeKey, debit_fields
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.key_rotation import STAYS, KeyInForce
from hushstream.engine.noise.spending import SPENDING, Asked, Spending
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import WHOLE_RECORD, DeadLetters
from hushstream.engine.state.declared import (
    FIXED,
    Declared,
    Field,
    Several,
    Single,
    State,
    after,
    boolean,
    integer,
    key_in_force,
    own_part,
    remembered,
    whole_bytes,
)
from hushstream.engine.state.parts import array, record
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.amounts import Cost
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import id_fault, plain
from hushstream.systems.pdol.algorithm.edge import within_allowance
from hushstream.systems.pdol.algorithm.slot import Features, Past, Slot
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.nodes.incoming import (
    ASKED,
    KINDS,
    TOLD,
    Incoming,
    Slots,
    decode_slice,
    labels_of,
    named,
    ready_slice,
)
from hushstream.systems.pdol.outcomes import PdolOutcome, PdolRefusal

_SLOT = record(
    "OpenSlot",
    event_id="string",
    node="int",
    user="bytes",
    indices="bytes",
    values="bytes",
    null="boolean",
    label="int",
    said="bytes",
)
_PAST = record("PastRecord", event_id="string", user="bytes", predicted="int")
_TAG_BYTES = 16


def home_state(what: str, name: str, **own: Field) -> State:
    """The declared state of a home: what all of them hold, and fields of its ``own``, which need open noise."""
    return State(what, 2, name, _SHARED, own)


def _pack_spent(role: Any) -> Mapping[str, Any]:
    persons = b"".join(role.spent)
    return {"persons": persons, "spent": np.array(list(role.spent.values()), dtype="<i8").tobytes()}


def _unpack_spent(role: Any, values: Mapping[str, Any]) -> None:
    persons, spent = values["persons"], np.frombuffer(values["spent"], "<i8").tolist()
    tags = [persons[place : place + _TAG_BYTES] for place in range(0, len(persons), _TAG_BYTES)]
    role.spent = dict(zip(tags, spent, strict=True))


def _pack_pending(pending: Mapping[str, Slot]) -> list[dict[str, Any]]:
    return [_slot(event_id, slot) for event_id, slot in pending.items()]


def _unpack_pending(value: Iterable[dict[str, Any]], before: object) -> OrderedDict[str, Slot]:
    return OrderedDict((item["event_id"], _read(item)) for item in value)


def _slot(event_id: str, slot: Slot) -> dict[str, Any]:
    features = slot.features
    return {
        "event_id": event_id,
        "node": slot.node,
        "user": slot.user,
        "indices": b"" if features is None else features.indices.astype("<i4").tobytes(),
        "values": b"" if features is None else features.values.astype("<i8").tobytes(),
        "null": features is None,
        "label": slot.label,
        "said": slot.said,
    }


def _read(item: dict[str, Any]) -> Slot:
    indices = np.frombuffer(item["indices"], "<i4").astype(np.int32)
    values = np.frombuffer(item["values"], "<i8").astype(np.int64)
    features = None if item["null"] else Features(indices, values)
    return Slot(item["node"], item["user"], features, item["label"], item["said"])


_SHARED: Mapping[str, Field] = {
    "chain": owner(),
    "position": integer(),
    "keys": key_in_force(),
    "epoch": EPOCH_FIELD,
    "ended_phase": integer(disk="sealed_phase"),
    "absent": Single(array("int"), sorted, lambda value, _: set(value)),
    "events": whole_bytes(16),
    "pending": Single(array(_SLOT), _pack_pending, _unpack_pending),
    "past": remembered(_PAST, Past),
    "spent": Several({"persons": "bytes", "spent": "bytes"}, _pack_spent, _unpack_spent),
    "spending": own_part(SPENDING),
    "diverged": boolean(),
    "open_noise": after("open_noise"),
}
"""Fields of a state that all homes have."""


_TAG_BYTES = 16


class HomeBatch(Protocol):
    """One batch that is folded into a home; see `HomeFold`."""

    @property
    def outputs(self) -> Sequence[Output]:
        """What is released after the journal record."""

    def run(self, parts: Mapping[TopicPartition, InputSlice]) -> None:
        """Fold one slice of every input."""

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""

    def step(self, journal: bytes | None, key_rotated: bool) -> Step:
        """What the driver sends; ``key_rotated`` where the zone's next key is in force from here on."""


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
        return self.spending.refusal(self.epoch.next_charge_key())

    def opened_epoch_since(self, sequence: int) -> bool:
        return self.epoch.opened_epoch_since(sequence)

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        if forked or self.draws_ahead:
            self.epoch.ask(nonce, incarnations)
        return self.epoch.due

    def charge(self) -> ChargeKey:
        """What the release that follows is charged to; opens the epoch that is due."""
        if self.epoch.due:
            self.epoch.redraw(self.chain.sequence + 1)
            self.redraw_noise()
        return self.epoch.charge_key()

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
        key = self.keys.rotate_to(key_id)
        self.chain.rotate_to(key)
        self.letters = DeadLetters("edge", "node", self.partition, key, self.chain.encode)

    def _rotate_to(self, key_id: bytes) -> None:
        """Begin an epoch under the key that the last record named."""
        if key_id == STAYS:
            return
        self.put_key(key_id)
        self.epoch.rotate()
        self.redraw_noise()

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        turned_to = self.keys.due
        fold, fields = self._folded(slices, turned_to)
        journal = self.chain.append(fields)
        self._rotate_to(turned_to)
        return [fold.step(journal, turned_to != STAYS)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is as it was, and `reopen` may be asked for.

        Raises:
            HushstreamError: the inputs are as they were, and give something else: this is another program.
        """
        fields = self.chain.check(value, self.positions())
        parts = covered(self.positions(), slices)
        if self.input_digest(list(parts.values())) != fields["head"]["input_digest"]:
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
        self._rotate_to(fields["turned_to"])
        return fold.step(None, fields["turned_to"] != STAYS)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Go on after a record that its inputs no longer give: what it released stands, and is never sent again.

        The slots that are in the log now are counted without a release. The next release opens an epoch after the
        record's own.
        """
        fields = self.chain.accept(value, self.positions())
        self.diverged = True
        fold = self.begin_fold(adopting=True)
        fold.run(covered(self.positions(), slices))
        self._decoded = None
        own, debits = self.spending.terms.own, fields["debits"]
        self.skip(len(debits))
        scope = (
            debits[-1]["scope"] if debits else self.spending.terms.own_scope(self.partition, self.epoch.charge_key())
        )
        self.epoch.adopt(fields["head"]["epoch"], scope, own, self.chain.sequence)
        # What the journal says was paid is paid, whatever its inputs say now.
        if any(debit["epsilon_micro"] or debit["delta_units"] for debit in debits):
            self.spending.adopt(self.epoch.charge_key())
        if fields["turned_to"] != STAYS:
            self._rotate_to(fields["turned_to"])
        return Step(None, (), (), {Outcome.DIVERGED: 1}, fields["turned_to"] != STAYS)

    def _folded(
        self, slices: Sequence[InputSlice], turned_to: bytes, journaled: NDArray[np.int8] | None = None
    ) -> tuple[HomeBatch, dict[str, Any]]:
        """Fold a batch, and say what the journal record that covers it holds."""
        parts = covered(self.positions(), slices)
        fold = self.begin_fold(journaled)
        fold.run(parts)
        self._decoded = None
        sequence = self.chain.sequence + 1
        head = head_of(self.chain, self.key, sequence, self.epoch.number, parts.values(), fold.outputs)
        return fold, {"head": head, **fold.fields(), "turned_to": turned_to}

    def _record(self) -> str:
        return f"predictions/{self.partition} record {self.chain.sequence + 1}"


_EVENTS = 1 << 128


class HomeFold(ABC):
    """A batch on its way.

    Attributes:
        outputs: what is released after the journal record.
        dead: dead letters.
        counts: events by outcome.
    """

    def __init__(self, machine: HomeMachine, journaled: NDArray[np.int8] | None = None, adopting: bool = False) -> None:
        """Begin.

        Args:
            machine: it is changed.
            journaled: what the journal says was predicted, where floats may differ by a rounding.
            adopting: nothing is released, as what it was is out already.
        """
        self._machine = machine
        self._journaled = journaled
        self._adopting = adopting
        self.outputs: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()
        self._event_ids: list[str] = []
        self._predicted: list[int] = []
        self._repeated: list[bool] = []
        self._debits: list[dict[str, Any]] = []
        self._released = 0

    @abstractmethod
    def on_broadcast(self, part: InputSlice) -> None:
        """Take what others published."""

    @abstractmethod
    def prepare(self, slots: Slots) -> None:
        """The records of the batch are known, and nothing of it was folded yet."""

    @abstractmethod
    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """The label of the batch's record of this place, and what the node's experts said, if there are any."""

    def learn(self, slot: Slot, label: int) -> None:  # noqa: B027 - a home without learners of its own
        """A label has come: nothing that is released may follow from that before the slot is counted."""

    @abstractmethod
    def take(self, slot: Slot) -> None:
        """A slot is counted."""

    def flush(self) -> None:  # noqa: B027 - a home that takes each slot for itself has nothing to do
        """No more slots are counted for now."""

    @property
    @abstractmethod
    def phase_ends(self) -> TopicPartition:
        """Where ends of phases are passed on, and who joins and leaves."""

    def run(self, parts: Mapping[TopicPartition, InputSlice]) -> None:
        """Fold what others published, then records: so their topics are sorted."""
        source = self._machine.inputs[0]
        for place, part in parts.items():
            if place == source:
                self._fold_records(part)
            else:
                self.on_broadcast(part)

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""
        return {
            "event_ids": self._event_ids,
            "predicted": np.array(self._predicted, dtype=np.int8).tobytes(),
            "repeated": np.array(self._repeated, dtype=np.uint8).tobytes(),
            "model_version": self._machine.version,
            "releases": self._released,
            "debits": self._debits,
        }

    def step(self, journal: bytes | None, key_rotated: bool) -> Step:
        """What the driver sends; ``key_rotated`` where the zone's next key is in force from here on."""
        return Step(journal, tuple(self.outputs), tuple(self.dead), self.counts, key_rotated)

    # Records.

    def _fold_records(self, part: InputSlice) -> None:
        machine = self._machine
        decoded = machine.decode(part)
        asked = [one for one in decoded if one.name in ASKED]
        if asked:
            self._slots = Slots.of(asked, machine.system.config.records.dimension)
            self.prepare(self._slots)
        place = 0
        for one in decoded:
            if one.name in ASKED:
                for row, (event_id, user) in enumerate(named(one)):
                    self._record(one, row, place + row, event_id, user)
                place += one.rows
            else:
                self._other(one)
        self.flush()
        machine.position = part.high

    def _other(self, one: Incoming) -> None:
        if one.name not in KINDS:
            self._refuse(one.name, one)
        elif one.name in TOLD:
            for row, ((event_id, user), label) in enumerate(zip(named(one), labels_of(one), strict=True)):
                self._label(one, row, event_id, user, label)
        elif one.name == "Seal":
            self._phase_end(one)
        elif one.name == "Membership":
            self._join_or_leave(one)
        else:
            self._forget(one)

    def _record(self, one: Incoming, row: int, place: int, event_id: str, user: str) -> None:
        machine, node = self._machine, self._slots.nodes[place]
        reason = self._id_fault(event_id, user) or self._stranger(node)
        if reason is not None:
            self._refuse(str(reason), one, row)
            return
        tag, past = machine.tag(user), machine.past.get(event_id)
        if past is None:
            self._take_up(event_id, tag, node, place)
        elif past.user == tag:
            self._note(event_id, past.predicted, repeated=True)
            self.counts[PdolOutcome.REPEATED_RECORD] += 1
        else:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, row)

    def _take_up(self, event_id: str, tag: bytes, node: int, place: int) -> None:
        machine, features = self._machine, self._slots.features(place)
        predicted, said = (0, b"") if features is None else self.predict(self._slots, place)
        predicted = self._as_journaled(predicted)
        self._answer(event_id, tag, predicted)
        if features is None:
            self.counts[PdolOutcome.NULL_RECORD] += 1
        if not within_allowance(machine.spent, tag, machine.system.config.records.records_per_user):
            self.counts[Outcome.ALLOWANCE_SPENT] += 1
            features = None
        self._wait(event_id, node, tag, features, said)

    @staticmethod
    def _id_fault(event_id: str, user: str) -> str | None:
        if plain(event_id) and plain(user):
            return None
        return id_fault(event_id) or id_fault(user)

    def _stranger(self, node: int) -> PdolRefusal | None:
        machine = self._machine
        known = 0 <= node < machine.system.config.nodes and machine.system.home_of(node) == machine.partition
        if not known:
            return PdolRefusal.UNKNOWN_NODE
        return PdolRefusal.ABSENT_NODE if node in machine.absent else None

    def _as_journaled(self, predicted: int) -> int:
        """What the journal says was predicted, if it does."""
        if self._journaled is None:
            return predicted
        journaled = int(self._journaled[len(self._predicted)])
        self._machine.float_ties += journaled != predicted
        return journaled

    def _answer(self, event_id: str, tag: bytes, predicted: int) -> None:
        self._machine.past.put(event_id, Past(tag, predicted))
        self._note(event_id, predicted, repeated=False)
        self.counts[PdolOutcome.PREDICTED] += 1

    def _note(self, event_id: str, predicted: int, *, repeated: bool) -> None:
        self._event_ids.append(event_id)
        self._predicted.append(predicted)
        self._repeated.append(repeated)

    def _wait(self, event_id: str, node: int, tag: bytes, features: Features | None, said: bytes) -> None:
        """A slot is due: it is counted when so many more have come."""
        machine = self._machine
        machine.pending[event_id] = Slot(node, tag, features, 0, said)
        while len(machine.pending) > machine.system.config.records.label_slots:
            self._settle(*machine.pending.popitem(last=False))

    # Labels.

    def _label(self, one: Incoming, row: int, event_id: str, user: str, label: int) -> None:
        machine = self._machine
        past, slot = machine.past.get(event_id), machine.pending.get(event_id)
        whose = slot.user if slot is not None else None if past is None else past.user
        if whose is None:
            self._refuse(PdolRefusal.LABEL_WITHOUT_RECORD, one, row)
        elif whose != machine.tag(user):
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, row)
        elif label not in (1, -1):
            self._refuse(PdolRefusal.UNKNOWN_LABEL, one, row)
        elif slot is None:
            self.counts[PdolOutcome.LATE_LABEL] += 1
        elif slot.label:
            self.counts[PdolOutcome.REPEATED_LABEL] += 1
        else:
            machine.pending[event_id] = slot._replace(label=label)
            self.counts[PdolOutcome.LABELLED] += 1
            self.learn(slot, label)

    # Who takes part, ends of phases, and erasures.

    def _join_or_leave(self, one: Incoming) -> None:
        """Slots that are open when their node leaves are counted as all others; what it comes with later is refused."""
        machine, node, present = self._machine, one.fields["node"], one.fields["present"]
        if self._stranger(node) is PdolRefusal.UNKNOWN_NODE:
            self._refuse(PdolRefusal.UNKNOWN_NODE, one)
            return
        machine.absent = machine.absent - {node} if present else machine.absent | {node}
        fields = {"node": node, "present": present, "config_digest": machine.system.digest}
        if not self._adopting:
            self.outputs.append(Output(*self.phase_ends, machine.chain.encode("Membership", fields)))
        self.counts[PdolOutcome.MEMBERSHIP] += 1

    def _phase_end(self, one: Incoming) -> None:
        machine, phase = self._machine, one.fields["phase"]
        if phase <= machine.ended_phase or one.fields["origin"] != -1:
            self._refuse(Refusal.BAD_PHASE, one)
            return
        machine.ended_phase = phase
        while machine.pending:
            self._settle(*machine.pending.popitem(last=False))
        self.flush()
        fields = {
            "phase": phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        if not self._adopting:
            self.outputs.append(Output(*self.phase_ends, machine.chain.encode("Seal", fields)))
        self.counts[Outcome.SEAL] += 1

    def _forget(self, one: Incoming) -> None:
        """What waits of a person becomes null; that a slot is due stays, and so does what they have spent."""
        machine = self._machine
        if one.fields["config_digest"] != machine.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, one)
            return
        tag = machine.tag(one.fields["user"])
        for event_id, slot in machine.pending.items():
            if slot.user == tag:
                machine.pending[event_id] = slot._replace(features=None, said=b"")
        self.counts[Outcome.FORGOTTEN] += 1

    # Slots that are counted, and what leaves.

    def _settle(self, event_id: str, slot: Slot) -> None:
        machine = self._machine
        machine.events = (machine.events + machine.event_name(event_id)) % _EVENTS
        self.counts[Outcome.SLOT] += 1
        self.take(slot)

    def charge(self) -> Asked:
        """Debit a release that is about to be made; where it is refused, nothing may leave."""
        asked = self._machine.spending.ask(self._machine.charge())
        self._debits.append(debit_fields(asked.debit))
        return asked

    def released(self, asked: Asked, release_id: bytes, output: Output) -> None:
        """Send a release if it was paid for, and the entry that says so."""
        if asked.refused is None:
            self.outputs.append(output)
            self._released += 1
        self.counts[Outcome.RELEASE if asked.refused is None else Outcome.RELEASE_WITHHELD] += 1
        self._enter(release_id, asked)

    def _enter(self, release_id: bytes, asked: Asked) -> None:
        """The ledger's copy of the debit that opened a charge, or of nothing, where its price was refused."""
        if not asked.opens:
            return
        machine = self._machine
        entry = machine.system.ledger_entry(release_id, asked.debit, machine.key.reproducible)
        self.outputs.append(Output("ledger", machine.partition, machine.chain.encode("LedgerEntry", entry)))

    def release_id(self, *place: int) -> bytes:
        """The opaque id of what is released at a place, under the noise of the epoch."""
        machine = self._machine
        named = struct.pack(f"<{len(place) + 2}q", machine.partition, machine.epoch.number, *place)
        return machine.key.digest("release-id", machine.nonce, named)

    def _refuse(self, reason: str, one: Incoming, row: int = WHOLE_RECORD) -> None:
        machine, record, place = self._machine, one.record, one.place(row)
        source = machine.inputs[0]
        self.dead.append(machine.letters.letter(reason, *source, record.offset, place, record.value))
        self.counts[Outcome.REJECTED] += 1
