"""Notes of operators about a role's logs. They are records of its journal, but not of the chain.

A note changes no state and continues no record: every reader of the chain skips it. It is sealed under the key of the
role's zone. So nobody with write access to the topic alone can say that records were lost, or that others are foreign.
For a role without a key, notes are made under the public key, as its journal is.

There are two kinds of notes. `LOST`: input was deleted before it was folded, and the role goes on without it.
`FOREIGN`: records in the role's journal or among its marks were written by nobody of the deployment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

LOST, FOREIGN = "lost", "foreign"
_TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class Note:
    """What an operator noted about a range of a log.

    Attributes:
        kind: `LOST` or `FOREIGN`.
        source: topic and partition.
        low, high: ``low <= offset < high``.
        after_ms, before_ms: log times between which the records were appended, if known.
    """

    kind: str
    source: TopicPartition
    low: int
    high: int
    after_ms: int = 0
    before_ms: int = 0

    def covers(self, source: TopicPartition, low: int, high: int) -> bool:
        """Whether it covers this whole range."""
        return self.source == source and self.low <= low and high <= self.high

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        topic, partition = self.source
        return {
            "topic": topic, "partition": partition, "low": self.low, "high": self.high,
            "records": self.high - self.low, "after_ms": self.after_ms, "before_ms": self.before_ms,
        }  # fmt: skip


def read_without_key(value: bytes, deployment: str, role: str, partition: int) -> Note | None:
    """A note about this partition, without a check of its writer. None for any other record."""
    try:
        _, fields = codec.decode(value, frozenset({"OperatorNote"}))
    except CodecError:
        return None
    return _note_of(fields) if _place_of(fields) == (deployment, role, partition) else None


def _note_of(fields: Mapping[str, Any]) -> Note:
    source = (fields["topic"], fields["topic_partition"])
    return Note(fields["kind"], source, fields["low"], fields["high"], fields["after_ms"], fields["before_ms"])


def _place_of(fields: Mapping[str, Any]) -> tuple[str, str, int]:
    return (fields["deployment"], fields["role"], fields["partition"])


class NoteSeal:
    """Packs and opens the notes of one home partition of a role."""

    def __init__(self, deployment: str, role: str, partition: int, ring: KeyRing) -> None:
        """Seal under the current key of the ring; open notes under any of its keys."""
        self._place = (deployment, role, partition)
        self._ring = ring

    def pack(self, note: Note) -> bytes:
        """The record of a note."""
        key = self._ring.of(self._ring.current)
        deployment, role, partition = self._place
        (topic, topic_partition) = note.source
        fields = {
            "deployment": deployment, "role": role, "partition": partition, "kind": note.kind, "topic": topic,
            "topic_partition": topic_partition, "low": note.low, "high": note.high, "after_ms": note.after_ms,
            "before_ms": note.before_ms, "key_id": key.key_id, "tag": self._tag(key, note),
        }  # fmt: skip
        return codec.encode("OperatorNote", fields)

    def unpack(self, value: bytes) -> Note | None:
        """Open the record of a note; None for anything else."""
        try:
            _, fields = codec.decode(value, frozenset({"OperatorNote"}))
            key = self._ring.named(fields["key_id"])
        except (CodecError, KeyFileError):
            return None
        note = _note_of(fields)
        return (
            note if _place_of(fields) == self._place and compare_digest(self._tag(key, note), fields["tag"]) else None
        )

    def _tag(self, key: Key, note: Note) -> bytes:
        ranges = (*note.source, note.low, note.high, note.after_ms, note.before_ms)
        return key.prf("operator-note", *self._place, note.kind, *ranges)[:_TAG_BYTES]


def notes_in(records: Sequence[InputRecord], seal: NoteSeal) -> dict[int, Note]:
    """The operators' notes among the records of a journal, by offset."""
    opened = ((record.offset, seal.unpack(record.value)) for record in records)
    return {offset: note for offset, note in opened if note is not None}


def is_noted(notes: Iterable[Note], source: TopicPartition, offset: int) -> bool:
    """Whether a note calls a record foreign."""
    return any(note.kind == FOREIGN and note.covers(source, offset, offset + 1) for note in notes)
