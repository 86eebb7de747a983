"""What a home reads of records: a slice decoded once, and the records in it as slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.intake import cut
from hushstream.engine.machine import InputRecord, InputSlice
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError
from hushstream.systems.pdol.edge import admit
from hushstream.systems.pdol.rows import Rows, join_rows, null_rows

KINDS = frozenset({"Record", "Label", "Seal", "Forget"})
MAX_RECORDS = 4096
"""In one fold, so that its journal record stays within the broker's record size."""


class Incoming(NamedTuple):
    """One record of the log: its kind and fields, or why it is none."""

    record: InputRecord
    name: str
    fields: dict[str, Any]


def decode_slice(part: InputSlice) -> list[Incoming]:
    """All of a slice; what cannot be decoded has the reason for its name, and no fields."""
    return [_decoded(record) for record in part.records]


def _decoded(record: InputRecord) -> Incoming:
    try:
        name, fields = codec.decode(record.value, KINDS)
    except CodecError as error:
        return Incoming(record, str(error.reason), {})
    return Incoming(record, name, fields)


def ready_slice(part: InputSlice, decoded: Sequence[Incoming], held_phase: int, sealed_phase: int) -> InputSlice:
    """The beginning of a slice that may be folded: a record waits for the model of the phase that it names.

    Args:
        part: what arrived.
        decoded: the same, decoded.
        held_phase: the last phase that the model in use knows of.
        sealed_phase: the last phase that ended in this log before the slice. A record that names a later one than has
            ended before it is not waited for: nothing says that such a phase will ever be.
    """
    for number, one in enumerate(decoded):
        if number >= MAX_RECORDS:
            return cut(part, one.record.offset)
        if one.name == "Seal":
            sealed_phase = max(sealed_phase, one.fields["phase"])
        if one.name == "Record" and held_phase < one.fields["after_phase"] <= sealed_phase:
            return cut(part, one.record.offset)
    return part


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """The records of a slice as slots, in their order.

    Attributes:
        rows: those that break a bound are null; labels are not known yet, so all others have 1 in place of one.
        good: bool (m,): which are not null.
    """

    rows: Rows
    good: NDArray[np.bool_]

    @classmethod
    def of(cls, fields: Sequence[dict[str, Any]], dimension: int) -> Slots:
        """From the fields of Record records."""
        parts = [_columns(one) for one in fields]
        slots, refused = admit(join_rows(parts), dimension)
        return cls(slots, (refused == 0) & (slots.labels != 0))


def _columns(fields: dict[str, Any]) -> Rows:
    indices, values = fields["indices"], fields["values"]
    if len(indices) % 4 or len(indices) != len(values):
        return null_rows(1)
    count = len(indices) // 4
    ends = np.array([0, count], dtype=np.int64)
    columns = np.frombuffer(indices, "<i4").astype(np.int32), np.frombuffer(values, "<i4").astype(np.int64)
    return Rows(ends, *columns, np.ones(1, dtype=np.int8))


def labelled(slots: Sequence[tuple[Rows, int]]) -> Rows:
    """Slots with their labels; one without a label is null."""
    return join_rows([_with(rows, label) for rows, label in slots])


def _with(rows: Rows, label: int) -> Rows:
    if not label or not rows.labels[0]:
        return null_rows(1)
    return Rows(rows.indptr, rows.indices, rows.values, np.array([label], dtype=np.int8))
