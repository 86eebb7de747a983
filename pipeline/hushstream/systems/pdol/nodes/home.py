"""The role of record holders on a home partition: predicts, waits for labels, counts slots, journals each batch.

Its `Sharing` decides what it shares: sums of gradients (`counter_sharing`), or parameters between nodes
(`gossip_sharing`). The input is one log of the nodes' records and, later, their labels. The predictions are in the
journal, which clients read. A record's slot is counted after a number of further records, or at a phase end, which is
logged. The slot is counted with its content if the record is within the bounds, within its person's allowance, and
labelled by then; otherwise it is counted as null. So the number of slots follows from the number of records alone.

One journal record covers one batch: its predictions, and a digest and a debit of each release. Published records of
others are read before the batch's records. If the inputs no longer give a journal record, its releases stay, and the
next release opens an epoch with new noise, at its price. A suspected rollback opens an epoch if noise is drawn ahead
(`ReleasingMachine.request_epoch`); a known fork opens one in any case. A key rotation begins an epoch, too, which is
not charged again.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Batch as JournaledBatch
from hushstream.engine.journal.chain import (
    Chain,
    Identity,
    covered,
    digest_records,
    in_its_generation,
    record_of,
    require_same,
)
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.key_rotation import STAYS, KeyInForce
from hushstream.engine.noise.spending import SPENDING, Spending, debit_fields
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRange, InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import WHOLE_RECORD, DeadLetters
from hushstream.engine.state.declared import (
    FIXED,
    DeclaresFields,
    Field,
    Inside,
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
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.schemas.rows import id_fault
from hushstream.systems.pdol.algorithm.edge import admit
from hushstream.systems.pdol.algorithm.rows import Features, Past, Rows, Slot
from hushstream.systems.pdol.deployment import PdolSystem
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


def home_state(what: str, name: str, sharing: Mapping[str, Field]) -> State:
    """The declared state of a home: its own fields, and those of its `Sharing`, which need open noise."""
    return State(what, 2, name, OWN, sharing=Inside(sharing))


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
        "said": slot.votes,
    }


def _read(item: dict[str, Any]) -> Slot:
    indices = np.frombuffer(item["indices"], "<i4").astype(np.int32)
    values = np.frombuffer(item["values"], "<i8").astype(np.int64)
    features = None if item["null"] else Features(indices, values)
    return Slot(item["node"], item["user"], features, item["label"], item["said"])


OWN: Mapping[str, Field] = {
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
"""State fields of every home."""

_EVENTS = 1 << 128


# How a home reads records: a slice is decoded once into columns, for either of the two forms of records.

RECORD_KINDS = frozenset({"Record", "RecordBatch"})
LABEL_KINDS = frozenset({"Label", "LabelBatch"})
KINDS = RECORD_KINDS | LABEL_KINDS | {"Membership", "Seal", "Forget"}
MAX_RECORDS = 4096
"""Largest number of records in one fold, so that the journal record fits the broker's record size. A batch record with
more rows is refused."""


class Incoming(NamedTuple):
    """One record of the log: its kind and fields, or why it is invalid; it has ``rows`` records or labels."""

    record: InputRecord
    name: str
    fields: dict[str, Any]
    rows: int = 1

    def place(self, row: int) -> int:
        """The number by which a dead letter names a row."""
        return row if self.name.endswith("Batch") else WHOLE_RECORD


def decode_slice(part: InputSlice) -> list[Incoming]:
    """Decode a slice. A record that cannot be decoded has the reason as its name, and no fields."""
    decoded = []
    for one in part.records:
        try:
            name, fields = codec.decode(one.value, KINDS)
        except CodecError as error:
            decoded.append(Incoming(one, str(error.reason), {}))
        else:
            decoded.append(_batch(one, name, fields) if name.endswith("Batch") else Incoming(one, name, fields))
    return decoded


def _batch(record: InputRecord, name: str, fields: dict[str, Any]) -> Incoming:
    """A record of many rows, if its columns agree and there are not too many."""
    rows = len(fields["event_ids"])
    agrees = _batch_agrees(fields, rows) if name == "RecordBatch" else len(fields["labels"]) == rows
    if not agrees or len(fields["users"]) != rows:
        return Incoming(record, str(Reason.COLUMNS_DISAGREE), {})
    if rows > MAX_RECORDS:
        return Incoming(record, str(Refusal.TOO_MANY_ROWS), {})
    return Incoming(record, name, fields, rows)


def _batch_agrees(fields: Mapping[str, Any], rows: int) -> bool:
    if not len(fields["nodes"]) == len(fields["lengths"]) == 4 * rows:
        return False
    lengths = np.frombuffer(fields["lengths"], "<i4")
    features = int(lengths.sum(dtype=np.int64))
    return bool((lengths >= 0).all()) and len(fields["indices"]) == len(fields["values"]) == 4 * features


def ready_slice(part: InputSlice, decoded: Sequence[Incoming], predictor_phase: int, ended_phase: int) -> InputSlice:
    """The beginning of a slice that may be folded: a record waits for the model of the phase that it names.

    Args:
        part: the input that has arrived.
        decoded: the same, decoded.
        predictor_phase: the last phase that all sources of predictions have ended.
        ended_phase: the last phase that ended in this log before the slice. A record that names a later phase does not
            wait, because such a phase may never come.
    """
    rows = 0
    for place, one in enumerate(decoded):
        rows += max(one.rows, 1)
        if one.name == "Seal":
            ended_phase = max(ended_phase, one.fields["phase"])
        waits = one.name in RECORD_KINDS and predictor_phase < one.fields["after_phase"] <= ended_phase
        if waits or rows > MAX_RECORDS:
            return part._replace(high=one.record.offset, records=part.records[:place])
    return part


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The records of a slice as slots, in their order.

    Attributes:
        rows: slots that break a bound are null; labels are not known yet, so all others have label 1.
        good: which are not null.
        nodes: node of each.
        names: event id and user of each.
        faults: why an id of the record is invalid; None if both are valid.
    """

    rows: Rows
    good: Sequence[bool]
    nodes: Sequence[int]
    names: Sequence[tuple[str, str]]
    faults: Sequence[str | None]

    @classmethod
    def of(cls, asked: Sequence[Incoming], dimension: int) -> Slots:
        """Slots from input of the kinds `RECORD_KINDS`."""
        parts = [_columns(one) for one in asked]
        lengths, indices, values, marks = (np.concatenate(column) for column in zip(*parts, strict=True))
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        slots, refused = admit(Rows(ends, indices, values, marks), dimension)
        nodes = [node for one in asked for node in _nodes(one)]
        names = [name for one in asked for name in named(one)]
        faults = [id_fault(event_id) or id_fault(user) for event_id, user in names]
        return cls(slots, ((refused == 0) & (slots.labels != 0)).tolist(), nodes, names, faults)

    def features(self, place: int) -> Features | None:
        """Those of one slot, as views."""
        if not self.good[place]:
            return None
        low, high = self.rows.indptr[place], self.rows.indptr[place + 1]
        return Features(self.rows.indices[low:high], self.rows.values[low:high])


_Columns = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64], NDArray[np.int8]]
_BROKEN: _Columns = (
    np.zeros(1, dtype=np.int64),
    np.zeros(0, dtype=np.int32),
    np.zeros(0, dtype=np.int64),
    np.zeros(1, dtype=np.int8),
)
"""A null slot."""


def _columns(one: Incoming) -> _Columns:
    """Lengths, coordinates and values of records, and label 1 for each."""
    fields = one.fields
    indices, values = fields["indices"], fields["values"]
    if one.name == "Record" and (len(indices) % 4 or len(indices) != len(values)):
        return _BROKEN
    held = np.frombuffer(indices, "<i4").astype(np.int32), np.frombuffer(values, "<i4").astype(np.int64)
    if one.name == "Record":
        return np.array([len(held[0])]), *held, np.ones(1, dtype=np.int8)
    lengths = np.frombuffer(fields["lengths"], "<i4").astype(np.int64)
    return lengths, *held, np.ones(one.rows, dtype=np.int8)


def _nodes(one: Incoming) -> list[int]:
    if one.name == "Record":
        return [one.fields["node"]]
    nodes: list[int] = np.frombuffer(one.fields["nodes"], "<i4").tolist()
    return nodes


def named(one: Incoming) -> list[tuple[str, str]]:
    """(event id, user) of each record or label in it."""
    if one.name in ("Record", "Label"):
        return [(one.fields["event_id"], one.fields["user"])]
    return list(zip(one.fields["event_ids"], one.fields["users"], strict=True))


def labels_of(one: Incoming) -> list[int]:
    """The labels in a record of the kinds `LABEL_KINDS`."""
    if one.name == "Label":
        return [one.fields["label"]]
    labels: list[int] = np.frombuffer(one.fields["labels"], np.int8).tolist()
    return labels


def within_allowance(spent: MutableMapping[bytes, int], user: bytes, cap: int) -> bool:
    """Charge a slot to its user, whatever its content, and return whether the allowance covers it.

    Args:
        spent: number of slots by user, counted up to the cap.
        user: user of the slot.
        cap: `RecordConfig.records_per_user`.

    Returns:
        False if a null slot takes its place; observers cannot see which.
    """
    before = spent.get(user, 0)
    if before < cap:
        spent[user] = before + 1
    return before < cap


# What it shares, and a batch.


class Sharing(Protocol):
    """What a home shares, and how. All methods except `release` change this object alone."""

    @property
    def state(self) -> State:
        """The declared state of a home with this sharing."""

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """The broadcast partitions that this home follows."""

    @property
    def readers(self) -> Sequence[ModelReader]:
        """Readers of published models, if it follows any."""

    @property
    def read(self) -> Mapping[TopicPartition, int]:
        """Next offset of each broadcast."""

    @property
    def phase_ends(self) -> TopicPartition:
        """The topic of forwarded phase ends and memberships."""

    @property
    def version(self) -> int:
        """Version of the predictor; 0 before the first."""

    @property
    def draws_ahead(self) -> bool:
        """Whether noise is drawn before all its slots have come."""

    @property
    def predicts_in_floats(self) -> bool:
        """Whether a replayed prediction may differ by a rounding."""

    def predictor_phase(self, ended_phase: int) -> int:
        """The last phase that all sources of predictions have ended; without others it is ``ended_phase``."""

    def open_noise(self, home: HomeMachine) -> None:
        """Begin before the first slot, under the noise of this epoch."""

    def redraw_noise(self, home: HomeMachine) -> None:
        """Continue under the noise of a new epoch; earlier releases stay."""

    def on_broadcast(self, part: InputSlice) -> Mapping[str, int]:
        """Take published records of others; returns their numbers by outcome."""

    def predictions(self, slots: Slots) -> Sequence[int] | None:
        """The predicted labels of a batch; None if one may depend on other records of it, or on their labels."""

    def predict(self, slots: Slots, place: int) -> tuple[int, bytes]:
        """If there are no `predictions`: the one of a record, and those of the node's experts, if there are any."""

    def learn(self, slot: Slot, label: int) -> None:
        """Let the node's experts learn from a label, if they predicted the record.

        No release may depend on a label before its slot is counted.
        """

    @property
    def until_release(self) -> int | None:
        """After how many counted slots the next release follows; None if none follows any more."""

    def add(self, slots: Sequence[Slot]) -> None:
        """Take counted slots that no release follows yet."""

    def release(self, home: HomeMachine, slots: Sequence[Slot]) -> tuple[bytes, Output]:
        """Make the release that follows the last of some counted slots; returns its opaque id and the record."""

    def drop(self) -> None:
        """Leave out the release that is due, and its slots."""

    def skip(self, releases: int) -> None:
        """Count releases that the inputs no longer reproduce."""


@dataclass(slots=True)
class Batch:
    """One batch, and its results.

    Attributes:
        journaled: the journaled predictions, int8, if floats may differ by a rounding.
        adopting: whether its releases were already sent, so that none is made.
        slots: its records.
        predictions: see `Sharing.predictions`.
        counted: slots that were counted since the last release.
        until_release: see `Sharing.until_release`.
        outputs: records to send after the journal record.
        dead: dead letters.
        counts: events by outcome.
        event_ids: of the predictions, in order.
        predicted: the labels.
        repeated: which of them are repeats of earlier predictions.
        debits: of the releases.
        released: number of releases.
    """

    journaled: NDArray[np.int8] | None = None
    adopting: bool = False
    slots: Slots | None = None
    predictions: Sequence[int] | None = None
    counted: list[Slot] = field(default_factory=list)
    until_release: int | None = None
    outputs: list[Output] = field(default_factory=list)
    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    event_ids: list[str] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)
    debits: list[dict[str, Any]] = field(default_factory=list)
    released: int = 0

    def note(self, event_id: str, predicted: int, *, repeated: bool) -> None:
        """Note the answer to an event."""
        self.event_ids.append(event_id)
        self.predicted.append(predicted)
        self.repeated.append(repeated)

    def fields(self, model_version: int) -> dict[str, Any]:
        """The fields of the journal record without its head."""
        return {
            "event_ids": self.event_ids,
            "predicted": np.array(self.predicted, dtype=np.int8).tobytes(),
            "repeated": np.array(self.repeated, dtype=np.uint8).tobytes(),
            "model_version": model_version,
            "releases": self.released,
            "debits": self.debits,
        }

    def step(self, journal: bytes | None, key_rotated: bool) -> Step:
        """The step for the driver; ``key_rotated`` if the zone's next key is in force from here on."""
        return Step(journal, tuple(self.outputs), tuple(self.dead), self.counts, key_rotated)


class HomeMachine(OwnsJournal, DeclaresFields):
    """The role of record holders on one home partition.

    Attributes:
        state: the declared state, by what is shared.
    """

    fields: ClassVar[Mapping[str, Field]] = {**OWN, "sharing": Inside({})}
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("system", "inputs", "journal", "partition", "nodes", "state"), FIXED),
        "key": "the one in force of `keys`",
        "letters": "written under the key in force",
        "float_ties": "a count of this process alone",
        "_decoded": "kept from `ready` to the fold of the same records",
    }

    def __init__(
        self, system: PdolSystem, partition: int, sharing: Sharing, key: Key, ring: KeyRing | None = None
    ) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity = Identity.of(system, "node", "predictions", partition)
        self.system = system
        self.partition = partition
        self.inputs: tuple[TopicPartition, ...] = (("records", partition),)
        self.journal = identity.journal
        self.nodes = system.nodes_of(partition)
        self.state = sharing.state
        self.sharing = sharing
        self.key = key
        """The zone's key in force."""
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
        """Sum of the names of all events whose slots were counted; the sum names all of them together."""
        self.pending: OrderedDict[str, Slot] = OrderedDict()
        self.past: BoundedMap[Past] = BoundedMap(system.config.records.remembered_events)
        self.spent: dict[bytes, int] = {}
        """Number of records of each person by tag, counted up to the allowance."""
        self.spending = Spending(system.spending_terms, partition)
        self.float_ties = 0
        self.diverged = False
        """Whether a journal record was adopted that the inputs no longer reproduce; later ones may differ, too."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None
        self.open_noise()

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return self.sharing.broadcasts

    @property
    def readers(self) -> Sequence[ModelReader]:
        return self.sharing.readers

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        self.state.restore(self, snapshot)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: one digest over all inputs of a batch."""
        return digest_records(self.key, slices)

    def start(self, genesis: bytes) -> None:
        self.chain.start(genesis, self.keys.retired)
        self.open_noise()

    def open_noise(self) -> None:
        """Begin before the first slot, under the noise of this epoch."""
        self.sharing.open_noise(self)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {("records", self.partition): self.position, **self.sharing.read}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: every batch is journaled."""
        return {("records", self.partition): self.position}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: a record waits for the model of a phase that it names."""
        phase = self.sharing.predictor_phase(self.ended_phase)
        parts = [
            ready_slice(part, self._decode(part), phase, self.ended_phase) if part.topic == "records" else part
            for part in slices
        ]
        return [part for part in parts if part.high > part.low]

    def _decode(self, part: InputSlice) -> Sequence[Incoming]:
        """Decode a slice of records once, though `ready` and `fold` both ask."""
        held = self._decoded
        if held is None or held[0] != part.low or held[1] < part.high:
            held = self._decoded = part.low, part.high, decode_slice(part)
        return held[2][: len(part.records)]

    # Noise, and what it costs.

    @property
    def nonce(self) -> bytes:
        """The nonce in the noise addresses of this epoch."""
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
        if forked or self.sharing.draws_ahead:
            self.epoch.request(nonce, incarnations)
        return self.epoch.due

    def release_id(self, *place: int) -> bytes:
        """The opaque id of a release, under the noise of the epoch."""
        named = struct.pack(f"<{len(place) + 2}q", self.partition, self.epoch.number, *place)
        return self.key.digest("release-id", self.nonce, named)

    def put_key(self, key_id: bytes) -> None:
        """Use the zone's key with this public id from now on.

        Raises:
            KeyFileError: the key was destroyed, or the zone never had it.
        """
        self.key = self.keys.rotate_to(key_id)
        self.chain.rotate_to(self.key)
        self.letters.rotate_to(self.key)

    def _rotate_to(self, key_id: bytes) -> None:
        """Begin an epoch under the key that the last record named."""
        if key_id == STAYS:
            return
        self.put_key(key_id)
        self.epoch.rotate()
        self.sharing.redraw_noise(self)

    # A batch, from its first record to its journal record.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        turned_to = self.keys.due
        batch, fields = self._folded(slices, turned_to)
        journal = self.chain.append(fields)
        self._rotate_to(turned_to)
        return [batch.step(journal, turned_to != STAYS)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is unchanged, and `reopen` may be called.

        Raises:
            HushstreamError: the inputs are unchanged and give another record: this is another program.
        """
        fields = self.chain.check(value, self.positions())
        parts = covered(self.positions(), slices)
        if self.input_digest(list(parts.values())) != fields["head"]["input_digest"]:
            raise ReplayMismatch(f"{self._record()}: its inputs are not those that it was made from; nothing is sent")
        before = self.snapshot() if self.diverged else b""
        if fields["debits"]:
            self.epoch.follow(fields["head"]["epoch"], fields["debits"][0]["scope"], self.spending.terms.own)
        journaled = np.frombuffer(fields["predicted"], np.int8) if self.sharing.predicts_in_floats else None
        batch, again = self._folded(slices, fields["turned_to"], journaled)
        try:
            require_same(self.chain, again, fields)
        except ReplayMismatch:
            if before:
                self.restore(before)
                raise ReplayMismatch(f"{self._record()}: it follows on one that could not be replayed") from None
            changed = f"{self._record()}: the same inputs give another record: another program wrote it"
            raise HushstreamError(changed) from None
        self.chain.append(again)
        self._rotate_to(fields["turned_to"])
        return batch.step(None, fields["turned_to"] != STAYS)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Continue after a record that its inputs no longer reproduce.

        Its releases count, and are never sent again. The slots that are in the log now are counted without a release.
        The next release opens an epoch after the record's own.
        """
        fields = self.chain.accept(value, self.positions())
        self.diverged = True
        self._take(covered(self.positions(), slices), Batch(adopting=True))
        own, debits = self.spending.terms.own, fields["debits"]
        self.sharing.skip(len(debits))
        scope = (
            debits[-1]["scope"] if debits else self.spending.terms.own_scope(self.partition, self.epoch.charge_key())
        )
        self.epoch.adopt(fields["head"]["epoch"], scope, own, self.chain.sequence)
        # What the journal record paid stays paid, whatever its inputs are now.
        if any(debit["epsilon_micro"] or debit["delta_units"] for debit in debits):
            self.spending.try_charge(self.epoch.charge_key(), already_paid=True)
        if fields["turned_to"] != STAYS:
            self._rotate_to(fields["turned_to"])
        return Step(None, (), (), {Outcome.DIVERGED: 1}, fields["turned_to"] != STAYS)

    def _folded(
        self, slices: Sequence[InputSlice], turned_to: bytes, journaled: NDArray[np.int8] | None = None
    ) -> tuple[Batch, dict[str, Any]]:
        """Fold a batch, and return it with the fields of its journal record."""
        parts = covered(self.positions(), slices)
        batch = Batch(journaled)
        self._take(parts, batch)
        fields = {**batch.fields(self.sharing.version), "turned_to": turned_to}
        ranges, inputs = [InputRange(*part[:4]) for part in parts.values()], digest_records(self.key, parts.values())
        whole = JournaledBatch(ranges, inputs, fields, tuple(batch.outputs), self.epoch.number)
        return batch, record_of(self.chain, whole, self.chain.sequence + 1)

    def _record(self) -> str:
        return f"predictions/{self.partition} record {self.chain.sequence + 1}"

    def _take(self, parts: Mapping[TopicPartition, InputSlice], batch: Batch) -> None:
        """Take published records of others, then records, in the order of their topics."""
        for (topic, _), part in parts.items():
            if topic == "records":
                self._take_records(part, batch)
            else:
                batch.counts.update(self.sharing.on_broadcast(part))
        self._decoded = None

    def _take_records(self, part: InputSlice, batch: Batch) -> None:
        decoded = self._decode(part)
        asked = [one for one in decoded if one.name in RECORD_KINDS]
        if asked:
            batch.slots = Slots.of(asked, self.system.config.records.dimension)
            batch.predictions = self.sharing.predictions(batch.slots)
        batch.until_release = self.sharing.until_release
        place = 0
        for one in decoded:
            if one.name in RECORD_KINDS:
                assert batch.slots is not None
                for row in range(one.rows):
                    self._on_record(one, row, batch.slots, place + row, batch)
                place += one.rows
            else:
                self._take_other(one, batch)
        self.sharing.add(batch.counted)
        self.position = part.high

    def _take_other(self, one: Incoming, batch: Batch) -> None:
        if one.name not in KINDS:
            self._refuse(one.name, one, batch)
        elif one.name in LABEL_KINDS:
            for row, ((event_id, user), label) in enumerate(zip(named(one), labels_of(one), strict=True)):
                self._take_label(one, row, event_id, user, label, batch)
        elif one.name == "Seal":
            self._end_phase(one, batch)
        elif one.name == "Membership":
            self._join_or_leave(one, batch)
        else:
            self._forget(one, batch)

    # Records.

    def _on_record(self, one: Incoming, row: int, slots: Slots, place: int, batch: Batch) -> None:
        """Predict one record, answer it again, or refuse it."""
        node, (event_id, user) = slots.nodes[place], slots.names[place]
        reason = slots.faults[place] or self._node_refusal(node)
        if reason is not None:
            self._refuse(str(reason), one, batch, row)
            return
        tag, past = self._tag(user), self.past.get(event_id)
        if past is None:
            self._predict(event_id, tag, node, slots, place, batch)
        elif past.user == tag:
            batch.note(event_id, past.predicted, repeated=True)
            batch.counts[PdolOutcome.REPEATED_RECORD] += 1
        else:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, batch, row)

    def _predict(self, event_id: str, tag: bytes, node: int, slots: Slots, place: int, batch: Batch) -> None:
        features, predicted, votes = slots.features(place), 0, b""
        if features is not None and batch.predictions is not None:
            predicted = batch.predictions[place]
        elif features is not None:
            predicted, votes = self.sharing.predict(slots, place)
        if batch.journaled is not None:
            journaled = int(batch.journaled[len(batch.predicted)])
            self.float_ties += journaled != predicted
            predicted = journaled
        self.past.put(event_id, Past(tag, predicted))
        batch.note(event_id, predicted, repeated=False)
        batch.counts[PdolOutcome.PREDICTED] += 1
        if features is None:
            batch.counts[PdolOutcome.NULL_RECORD] += 1
        if not within_allowance(self.spent, tag, self.system.config.records.records_per_user):
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            features = None
        # Count each slot when `label_slots` further ones have come.
        self.pending[event_id] = Slot(node, tag, features, 0, votes)
        while len(self.pending) > self.system.config.records.label_slots:
            self._count(*self.pending.popitem(last=False), batch)

    def _node_refusal(self, node: int) -> PdolRefusal | None:
        if node not in self.nodes:
            return PdolRefusal.UNKNOWN_NODE
        return PdolRefusal.ABSENT_NODE if node in self.absent else None

    def _tag(self, user: str) -> bytes:
        """The tag of a person in this journal (16 bytes), which never changes."""
        return hashlib.blake2b(user.encode(), digest_size=_TAG_BYTES, key=self.chain.genesis_nonce).digest()

    # Labels.

    def _take_label(self, one: Incoming, row: int, event_id: str, user: str, label: int, batch: Batch) -> None:
        past, slot = self.past.get(event_id), self.pending.get(event_id)
        whose = slot.user if slot is not None else None if past is None else past.user
        if whose is None:
            self._refuse(PdolRefusal.LABEL_WITHOUT_RECORD, one, batch, row)
        elif whose != self._tag(user):
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, one, batch, row)
        elif label not in (1, -1):
            self._refuse(PdolRefusal.UNKNOWN_LABEL, one, batch, row)
        elif slot is None:
            batch.counts[PdolOutcome.LATE_LABEL] += 1
        elif slot.label:
            batch.counts[PdolOutcome.REPEATED_LABEL] += 1
        else:
            self.pending[event_id] = slot._replace(label=label)
            batch.counts[PdolOutcome.LABELLED] += 1
            if slot.votes:
                self.sharing.learn(slot, label)

    # Who takes part, ends of phases, and erasures.

    def _join_or_leave(self, one: Incoming, batch: Batch) -> None:
        """Take a node that joins or leaves.

        Its waiting slots are counted as all others. Later records of a node that has left are refused.
        """
        node, present = one.fields["node"], one.fields["present"]
        if self._node_refusal(node) is PdolRefusal.UNKNOWN_NODE:
            self._refuse(PdolRefusal.UNKNOWN_NODE, one, batch)
            return
        self.absent = self.absent - {node} if present else self.absent | {node}
        self._pass_on("Membership", {"node": node, "present": present}, batch)
        batch.counts[PdolOutcome.MEMBERSHIP] += 1

    def _end_phase(self, one: Incoming, batch: Batch) -> None:
        phase = one.fields["phase"]
        if phase <= self.ended_phase or one.fields["origin"] != -1:
            self._refuse(Refusal.BAD_PHASE, one, batch)
            return
        self.ended_phase = phase
        while self.pending:
            self._count(*self.pending.popitem(last=False), batch)
        self._pass_on("Seal", {"phase": phase, "origin": self.partition, "after_click": -1}, batch)
        batch.counts[Outcome.SEAL] += 1

    def _pass_on(self, name: str, fields: Mapping[str, Any], batch: Batch) -> None:
        """Forward a record to the followers of this home, once."""
        if not batch.adopting:
            record = self.chain.encode(name, {**fields, "config_digest": self.system.digest})
            batch.outputs.append(Output(*self.sharing.phase_ends, record))

    def _forget(self, one: Incoming, batch: Batch) -> None:
        """Make a person's waiting slots null. They are still counted, and the spent allowance stays spent."""
        if one.fields["config_digest"] != self.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, one, batch)
            return
        tag = self._tag(one.fields["user"])
        for event_id, slot in self.pending.items():
            if slot.user == tag:
                self.pending[event_id] = slot._replace(features=None, votes=b"")
        batch.counts[Outcome.FORGOTTEN] += 1

    # Slots that are counted, and what leaves.

    def _count(self, event_id: str, slot: Slot, batch: Batch) -> None:
        # The name of the event: a number that only this role can compute, in this journal.
        name = int.from_bytes(self.key.digest("slot", self.chain.genesis_nonce, event_id.encode()), "little")
        self.events = (self.events + name) % _EVENTS
        batch.counts[Outcome.SLOT] += 1
        batch.counted.append(slot)
        if batch.until_release is None or len(batch.counted) < batch.until_release:
            return
        if batch.adopting:
            self.sharing.drop()
        else:
            self._release(batch)
        batch.counted, batch.until_release = [], self.sharing.until_release

    def _release(self, batch: Batch) -> None:
        """Charge the release that follows the counted slots, and send it if the budget covers it."""
        if self.epoch.due:
            self.epoch.redraw(self.chain.sequence + 1)
            self.sharing.redraw_noise(self)
        charge_result = self.spending.try_charge(self.epoch.charge_key())
        batch.debits.append(debit_fields(charge_result.debit))
        release_id, output = self.sharing.release(self, batch.counted)
        if charge_result.refused is None:
            batch.outputs.append(output)
            batch.released += 1
        batch.counts[Outcome.RELEASE if charge_result.refused is None else Outcome.RELEASE_WITHHELD] += 1
        # The ledger gets a copy of the debit that opened a charge; it is empty if the price was refused.
        if charge_result.opens:
            as_stated = self.system.as_stated(self.key.reproducible)
            entry = self.system.ledger_entry(release_id, charge_result.debit, as_stated)
            batch.outputs.append(Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)))

    def _refuse(self, reason: str, one: Incoming, batch: Batch, row: int = WHOLE_RECORD) -> None:
        letter = self.letters.letter(
            reason, "records", self.partition, one.record.offset, one.place(row), one.record.value
        )
        batch.dead.append(letter)
        batch.counts[Outcome.REJECTED] += 1
