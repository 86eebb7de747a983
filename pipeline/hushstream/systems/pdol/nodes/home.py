"""The role of record holders on a home partition: predicts, waits for labels, counts slots, journals each batch.

It shares noised sums of its records' moments or gradients (`counter_sharing`). The input is one log of the nodes'
records and, later, their labels. The predictions are in the journal, which clients read. A record's slot is counted
after a number of further records, or at a phase end, which is logged. The slot is counted with its content if the
record is within the bounds, within its person's allowance, and labelled by then; otherwise it is counted as null. So
the number of slots follows from the number of records alone.

One journal record covers one batch: its predictions, and a digest and a debit of each release. Published records of
others are read before the batch's records. If the inputs no longer give a journal record, its releases stay, and the
next release opens an epoch with new noise, at its price. A suspected rollback opens an epoch if noise is drawn ahead
(`Machine.request_epoch`); a known fork opens one in any case. A key rotation begins an epoch, too, which is
not charged again.
"""

from __future__ import annotations

import hashlib
import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import CHARGES, KEY_IN_FORCE, NOISE_EPOCH, WHOLE_RECORD, Batch
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity, covered, owner
from hushstream.engine.journal.notes import STAYS
from hushstream.engine.learner.deciding import AnsweringRole
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.records import InputRecord, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.state.declared import (
    FIXED,
    Field,
    Inside,
    Several,
    Single,
    State,
    after,
    array,
    boolean,
    integer,
    record,
    remembered,
    whole_bytes,
)
from hushstream.feedback.memory import BoundedMap
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import Reason, id_fault
from hushstream.systems.pdol.aggregator import PdolOutcome, PdolRefusal
from hushstream.systems.pdol.algorithm.counters import Counters
from hushstream.systems.pdol.algorithm.rows import Features, Past, Rows, Slot, admit
from hushstream.systems.pdol.guarantee import PdolSystem
from hushstream.systems.pdol.nodes.counter_sharing import CounterSharing

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
    "read": Several(
        {"position": "long"},
        lambda role: {"position": role.read[role.inputs[0]]},
        lambda role, values: role.read.update({role.inputs[0]: values["position"]}),
    ),
    "keys": KEY_IN_FORCE,
    "epoch": NOISE_EPOCH,
    "ended_phase": integer(disk="sealed_phase"),
    "absent": Single(array("int"), sorted, lambda value, _: set(value)),
    "events": whole_bytes(16),
    "pending": Single(array(_SLOT), _pack_pending, _unpack_pending),
    "past": remembered(_PAST, Past),
    "spent": Several({"persons": "bytes", "spent": "bytes"}, _pack_spent, _unpack_spent),
    "spending": CHARGES,
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


# A batch.


@dataclass(slots=True, eq=False)
class RecordBatch(Batch):
    """A batch of records and labels, and its predictions.

    Attributes:
        adopting: whether its releases were already sent, so that none is made.
        slots: its records.
        predictions: see `CounterSharing.predictions`.
        counted: slots that were counted since the last release.
        until_release: see `CounterSharing.until_release`.
        event_ids: of the predictions, in order.
        predicted: the labels.
        repeated: which of them are repeats of earlier predictions.
        released: number of releases.
    """

    adopting: bool = False
    slots: Slots | None = None
    predictions: Sequence[int] | None = None
    counted: list[Slot] = field(default_factory=list)
    until_release: int = 0
    event_ids: list[str] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    repeated: list[bool] = field(default_factory=list)
    released: int = 0

    def note(self, event_id: str, predicted: int, *, repeated: bool) -> None:
        """Note the answer to an event."""
        self.event_ids.append(event_id)
        self.predicted.append(predicted)
        self.repeated.append(repeated)


class OtherInputs(ReplayMismatch):
    """The inputs of a journal record are not those that it was made from."""


class HomeMachine(AnsweringRole[RecordBatch]):
    """The role of record holders on one home partition."""

    batch_class = RecordBatch
    reopens = True
    state = State("a domain's state", "NodeState", OWN, sharing=Inside(CounterSharing.fields))
    derived: ClassVar[Mapping[str, str]] = {
        "nodes": FIXED,
        "models": "the readers of `sharing`",
        "_decoded": "kept from `ready` to the fold of the same records",
    }
    system: PdolSystem

    def __init__(self, system: PdolSystem, partition: int, key: Key, ring: KeyRing | None = None) -> None:
        """Bind to a deployment, a home partition, the key that its journal begins with, and the zone's key file."""
        identity, inputs = Identity.of(system, "node", "predictions", partition), (("records", partition),)
        noise, sharing = (system.spending_terms, ring), CounterSharing(system, partition)
        super().__init__(system, identity, "Predictions", inputs, sharing.readers, "edge", key, *noise)
        self.nodes = system.config.nodes_of(partition)
        self.sharing = sharing
        self.ended_phase = -1
        """The last phase that ended in this log."""
        self.absent: set[int] = set()
        """Nodes of this home that have left, or have not joined yet."""
        self.events = 0
        """Sum of the names of all events whose slots were counted; the sum names all of them together."""
        self.pending: OrderedDict[str, Slot] = OrderedDict()
        self.past: BoundedMap[Past] = BoundedMap(system.config.records.remembered_events)
        self.spent: dict[bytes, int] = {}
        """Number of records of each person by tag, counted up to the allowance."""
        self.diverged = False
        """Whether a journal record was adopted that the inputs no longer reproduce; later ones may differ, too."""
        self._decoded: tuple[int, int, list[Incoming]] | None = None
        self.open_noise()

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.open_noise()

    def open_noise(self) -> None:
        """Begin before the first slot, under the noise of this epoch."""
        self.sharing.open_noise(self.partition, self._counters())

    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self.read, **self.sharing.read}

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: a record waits for the model of a phase that it names."""
        phase = self.sharing.model_phase
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
    def draws_ahead(self) -> bool:
        return self.sharing.node.draws_ahead

    def redraw_noise(self) -> None:
        self.sharing.node.redraw(self._counters())

    def _counters(self) -> Counters:
        """The domain's counters under the noise of this epoch."""
        return self.system.counters(self.key, self.releases.nonce, self.releases.epoch.number, self.partition)

    def release_id(self, *place: int) -> bytes:
        """The opaque id of a release, under the noise of the epoch."""
        named = struct.pack(f"<{len(place) + 2}q", self.partition, self.releases.epoch.number, *place)
        return self.key.digest("release-id", self.releases.nonce, named)

    # A batch, from its first record to its journal record.

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: after a `ReplayMismatch` the state is unchanged, and `reopen` may be called.

        Raises:
            HushstreamError: the inputs are unchanged and give another record: this is another program.
        """
        before = self.snapshot() if self.diverged else b""
        try:
            return super().replay(value, slices)
        except OtherInputs:
            raise
        except ReplayMismatch:
            if before:
                self.restore(before)
                raise ReplayMismatch(f"{self._record()}: it follows on one that could not be replayed") from None
            changed = f"{self._record()}: the same inputs give another record: another program wrote it"
            raise HushstreamError(changed) from None

    def follow(self, fields: Mapping[str, Any], input_digest: bytes) -> None:
        if input_digest != fields["head"]["input_digest"]:
            raise OtherInputs(f"{self._record()}: its inputs are not those that it was made from; nothing is sent")
        super().follow(fields, input_digest)

    def reopen(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """Continue after a record that its inputs no longer reproduce.

        Its releases count, and are never sent again. The slots that are in the log now are counted without a release.
        The next release opens an epoch after the record's own.
        """
        batch = RecordBatch(self, slices=covered(self.positions(), slices), adopting=True)
        fields = self.chain.accept(value, self.positions())
        self.diverged = True
        self.take(batch)
        self.read[self.inputs[0]] = batch.slices[self.inputs[0]].high
        self.sharing.node.skip(len(fields["debits"]))
        self.releases.adopt(fields, fields["debits"], 0)
        key_rotated = fields["turned_to"] != STAYS
        if key_rotated:
            self._rotate(fields["turned_to"])
        return Step(None, (), (), {Outcome.DIVERGED: 1}, key_rotated)

    def take(self, batch: RecordBatch) -> Mapping[str, Any]:
        """Take published records of others, then records, in the order of their topics."""
        for (topic, _), part in batch.slices.items():
            if topic == "records":
                self._take_records(part, batch)
            else:
                batch.counts.update(self.sharing.on_broadcast(part))
        self._decoded = None
        return {
            "event_ids": batch.event_ids,
            "predicted": np.array(batch.predicted, dtype=np.int8).tobytes(),
            "repeated": np.array(batch.repeated, dtype=np.uint8).tobytes(),
            "model_version": self.sharing.version,
            "releases": batch.released,
            "debits": batch.debits,
            "turned_to": self.releases.keys.due if batch.replayed is None else batch.replayed.fields["turned_to"],
        }

    def end(self, batch: RecordBatch, answers: Mapping[str, Any]) -> Step:
        """See `AnsweringRole.end`: the record is still under the old key if it rotates the key."""
        step = super().end(batch, answers)
        if answers["turned_to"] == STAYS:
            return step
        self._rotate(answers["turned_to"])
        return replace(step, key_rotated=True)

    def _rotate(self, key_id: bytes) -> None:
        """Begin an epoch under the key that the last record named."""
        self.put_key(key_id)
        self.releases.epoch.rotate()
        self.redraw_noise()

    def _record(self) -> str:
        return f"predictions/{self.partition} record {self.chain.sequence + 1}"

    def _take_records(self, part: InputSlice, batch: RecordBatch) -> None:
        decoded = self._decode(part)
        asked = [one for one in decoded if one.name in RECORD_KINDS]
        if asked:
            batch.slots = Slots.of(asked, self.system.config.records.dimension)
            batch.predictions = self.sharing.predictions(batch.slots.rows)
        batch.until_release = self.sharing.until_release
        place = 0
        for one in decoded:
            if one.name in RECORD_KINDS:
                assert batch.slots is not None
                for row in range(one.rows):
                    self._on_record(one, row, batch.slots, place + row, batch)
                place += one.rows
            elif one.name not in KINDS:
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
        self.sharing.add(batch.counted)

    # Records.

    def _on_record(self, one: Incoming, row: int, slots: Slots, place: int, batch: RecordBatch) -> None:
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

    def _predict(self, event_id: str, tag: bytes, node: int, slots: Slots, place: int, batch: RecordBatch) -> None:
        features, predicted, votes = slots.features(place), 0, b""
        if features is not None and batch.predictions is not None:
            predicted = batch.predictions[place]
        elif features is not None:
            predicted, votes = self.sharing.predict(node, slots.rows.part(place, place + 1), self._coin(event_id))
        if batch.replayed is not None and self.sharing.predicts_in_floats:
            journaled = int(np.frombuffer(batch.replayed.fields["predicted"], np.int8)[len(batch.predicted)])
            self.float_ties += journaled != predicted
            predicted = journaled
        self.past.put(event_id, Past(tag, predicted))
        batch.note(event_id, predicted, repeated=False)
        batch.counts[PdolOutcome.PREDICTED] += 1
        if features is None:
            batch.counts[PdolOutcome.NULL_RECORD] += 1
        # A slot is charged whatever it holds. Beyond the allowance a null slot takes its place, and none can see which.
        if self.spent.get(tag, 0) < self.system.config.records.records_per_user:
            self.spent[tag] = self.spent.get(tag, 0) + 1
        else:
            batch.counts[Outcome.ALLOWANCE_SPENT] += 1
            features = None
        # Count each slot when `label_slots` further ones have come.
        self.pending[event_id] = Slot(node, tag, features, 0, votes)
        while len(self.pending) > self.system.config.records.label_slots:
            self._count(*self.pending.popitem(last=False), batch)

    def _coin(self, event_id: str) -> float:
        """An event's coin, uniform in [0, 1): the same in every replay."""
        drawn = self.key.digest("guard-coin", self.chain.genesis_nonce, event_id.encode())
        return (int.from_bytes(drawn[:8], "little") >> 11) / (1 << 53)

    def _node_refusal(self, node: int) -> PdolRefusal | None:
        if node not in self.nodes:
            return PdolRefusal.UNKNOWN_NODE
        return PdolRefusal.ABSENT_NODE if node in self.absent else None

    def _tag(self, user: str) -> bytes:
        """The tag of a person in this journal (16 bytes), which never changes."""
        return hashlib.blake2b(user.encode(), digest_size=_TAG_BYTES, key=self.chain.genesis_nonce).digest()

    # Labels.

    def _take_label(self, one: Incoming, row: int, event_id: str, user: str, label: int, batch: RecordBatch) -> None:
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

    def _join_or_leave(self, one: Incoming, batch: RecordBatch) -> None:
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

    def _end_phase(self, one: Incoming, batch: RecordBatch) -> None:
        phase = one.fields["phase"]
        if phase <= self.ended_phase or one.fields["origin"] != -1:
            self._refuse(Refusal.BAD_PHASE, one, batch)
            return
        self.ended_phase = phase
        while self.pending:
            self._count(*self.pending.popitem(last=False), batch)
        self._pass_on("Seal", {"phase": phase, "origin": self.partition, "after_click": -1}, batch)
        batch.counts[Outcome.SEAL] += 1

    def _pass_on(self, name: str, fields: Mapping[str, Any], batch: RecordBatch) -> None:
        """Forward a record to the followers of this home, once."""
        if not batch.adopting:
            record = codec.encode(name, {**fields, "config_digest": self.system.digest})
            batch.outputs.append(Output("releases", 0, record))

    def _forget(self, one: Incoming, batch: RecordBatch) -> None:
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

    def _count(self, event_id: str, slot: Slot, batch: RecordBatch) -> None:
        # The name of the event: a number that only this role can compute, in this journal.
        name = int.from_bytes(self.key.digest("slot", self.chain.genesis_nonce, event_id.encode()), "little")
        self.events = (self.events + name) % _EVENTS
        batch.counts[Outcome.SLOT] += 1
        batch.counted.append(slot)
        if len(batch.counted) < batch.until_release:
            return
        if batch.adopting:
            self.sharing.node.drop_leaf()
        else:
            # Charge the release that follows the counted slots, and send it if the budget covers it.
            batch.release(partial(self._draw, batch))
        batch.counted, batch.until_release = [], self.sharing.until_release

    def _draw(self, batch: RecordBatch, charge: ChargeResult) -> list[Output]:
        """The release of what is shared, which goes on without it if its price is refused."""
        release_id, output = self._release(batch.counted)
        batch.released += charge.refused is None
        outputs = [] if charge.refused else [output]
        # The ledger gets a copy of the debit that opened a charge; it is empty if the price was refused.
        return [*outputs, batch.ledger_entry(release_id, charge)] if charge.opens else outputs

    def _release(self, slots: Sequence[Slot]) -> tuple[bytes, Output]:
        """The noised running sum after some counted slots: its opaque id, and the record."""
        self.sharing.add(slots)
        made = self.sharing.node.release(self.events.to_bytes(16, "little"))
        release_id = self.release_id(made.generation, made.leaves)
        fields = {
            "release_id": release_id,
            "config_digest": self.system.digest,
            "mechanism": self.system.config.sharing.counter,
            "domain": made.domain,
            "epoch": self.releases.epoch.number,
            "generation": made.generation,
            "leaf": made.leaves,
            "slots": made.slots,
            "last": made.last,
            "sums": made.values.astype("<i8").tobytes(),
            **self.system.stated[self.system.as_stated(self.key.reproducible)],
        }
        return release_id, Output("releases", 0, codec.encode("GradientSum", fields))

    def _refuse(self, reason: str, one: Incoming, batch: RecordBatch, row: int = WHOLE_RECORD) -> None:
        batch.refuse(reason, one.record, one.place(row))
