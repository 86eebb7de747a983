"""How a home reads records: a slice is decoded once into columns, for either of the two forms of records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import WHOLE_RECORD
from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.rows import Reason, id_fault
from hushstream.systems.pdol.algorithm.rows import Features, Rows, admit

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
