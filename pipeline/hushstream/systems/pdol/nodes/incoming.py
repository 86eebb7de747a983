"""What a home reads of records: a slice decoded once into columns, whichever of the two forms its records have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.declare.outcomes import Refusal
from hushstream.engine.learner.arrivals import cut
from hushstream.engine.records import InputRecord, InputSlice
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.schemas.reasons import Reason
from hushstream.systems.pdol.algorithm.edge import admit
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.algorithm.slot import Features

ASKED = frozenset({"Record", "RecordBatch"})
TOLD = frozenset({"Label", "LabelBatch"})
KINDS = ASKED | TOLD | {"Membership", "Seal", "Forget"}
MAX_RECORDS = 4096
"""In one fold, so that its journal record stays within the broker's record size; no batch of more rows is taken."""


class Incoming(NamedTuple):
    """One record of the log: its kind and fields, or why it is none; ``rows`` records or labels are in it."""

    record: InputRecord
    name: str
    fields: dict[str, Any]
    rows: int = 1

    def place(self, row: int) -> int:
        """How a dead letter names a row."""
        return row if self.name.endswith("Batch") else WHOLE_RECORD


def decode_slice(part: InputSlice) -> list[Incoming]:
    """All of a slice; what cannot be decoded has the reason for its name, and no fields."""
    decoded = []
    for record in part.records:
        try:
            name, fields = codec.decode(record.value, KINDS)
        except CodecError as error:
            decoded.append(Incoming(record, str(error.reason), {}))
        else:
            decoded.append(_batch(record, name, fields) if name.endswith("Batch") else Incoming(record, name, fields))
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


def ready_slice(part: InputSlice, decoded: Sequence[Incoming], held_phase: int, ended_phase: int) -> InputSlice:
    """The beginning of a slice that may be folded: a record waits for the model of the phase that it names.

    Args:
        part: what arrived.
        decoded: the same, decoded.
        held_phase: the last phase that the model in use knows of.
        ended_phase: the last phase that ended in this log before the slice. A record that names a later one than has
            ended before it is not waited for: nothing says that such a phase will ever be.
    """
    rows = 0
    for one in decoded:
        rows += max(one.rows, 1)
        if rows > MAX_RECORDS:
            return cut(part, one.record.offset)
        if one.name == "Seal":
            ended_phase = max(ended_phase, one.fields["phase"])
        if one.name in ASKED and held_phase < one.fields["after_phase"] <= ended_phase:
            return cut(part, one.record.offset)
    return part


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The records of a slice as slots, in their order.

    Attributes:
        rows: those that break a bound are null; labels are not known yet, so all others have 1 in place of one.
        good: which are not null.
        nodes: where each came.
    """

    rows: Rows
    good: Sequence[bool]
    nodes: Sequence[int]

    @classmethod
    def of(cls, asked: Sequence[Incoming], dimension: int) -> Slots:
        """From what arrived, of the kinds `ASKED`."""
        parts = [_columns(one) for one in asked]
        lengths, indices, values, marks = (np.concatenate(column) for column in zip(*parts, strict=True))
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        slots, refused = admit(Rows(ends, indices, values, marks), dimension)
        nodes = [node for one in asked for node in _nodes(one)]
        return cls(slots, ((refused == 0) & (slots.labels != 0)).tolist(), nodes)

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
    """Lengths, coordinates and values of records, and a mark of 1 for each in place of its label."""
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
    """What is told, of the kinds `TOLD`."""
    if one.name == "Label":
        return [one.fields["label"]]
    labels: list[int] = np.frombuffer(one.fields["labels"], np.int8).tolist()
    return labels
