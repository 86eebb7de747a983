"""Notes of operators about a role's logs. They are records of its journal, but not of the chain.

A note changes no state and continues no record: every reader of the chain skips it. It is sealed under the key of the
role's zone. So nobody with write access to the topic alone can say that records were lost, or that others are foreign.
For a role without a key, notes are made under the public key, as its journal is.

There are two kinds of notes. `LOST`: input was deleted before it was folded, and the role goes on without it.
`FOREIGN`: records in the role's journal or among its marks were written by nobody of the deployment.

*Checkpoints.* Checkpoints: a check of a journal may begin at such a record, and the journal before it may be deleted.

A checkpoint is one more record of a published state (`hushstream.engine.state.published`). It is sealed like the parts
of the state, and belongs to the same publication. It holds the last journal record of the state, a digest of the state,
and the ends of the role's outputs at the time of publication. Outputs behind those ends follow from later records, and
are recomputed. The checkpoint lies beside the state and not in the journal. A check needs the state itself, and a
journal record could hold only its digest; besides, readers of older journals do not know such a record. The digest of
the journal record ties state and journal together. This record stays in the journal (`hushstream.ops.logs.trim`) and
ends with the chain's head; a state counts only while the journal holds the record. The sum of charges is in the state,
so budgets go on from it. How far a journal has released is in the marks, which are kept for ever and are never older
than a checkpoint. So a rolled back journal is refused after a checkpoint as before.

The broker's operator has no key of the zone, and so can make or alter no checkpoint. They can withhold one, or present
an older one. From an older checkpoint the rest of the journal is replayed and compared, which only costs time; if that
rest is deleted, the checkpoint is refused. A journal that ends earlier than marks say is always refused. So no
checkpoint spends an allowance or a budget twice. A role without a key (an aggregator) has no such protection: anybody
with write access to its topics could write its journal and its states. Only the broker's access rules protect both.

*Key rotation.* The key of a journal, and its rotation (PRIVACY rule 9).

A journal record that closes a window or a step may name another key. Everything after that record is under the new key:
the chain, the digests, the noise. The record itself is still under the old key, so only a holder of the old key can
rotate it. Readers follow the journal, and not the present state of their own key file. No window and no step is open at
that point, so no digest and no sum is made under two keys.

Releases after a rotation are about input after it. Earlier sums are kept with their noise, as they were released, and
new sums under the new key are added. So each reward or slot is under one key only and pays once (parallel composition),
however often keys rotate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hmac import compare_digest
from typing import Any, Self

from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.engine.state.declared import array, record
from hushstream.engine.state.packed import Form
from hushstream.privacy.errors import KeyFileError
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.codec import CodecError

STAYS = b""
"""Value in a journal record that does not rotate the key."""


class KeyInForce:
    """The key of a journal, from its genesis on.

    Attributes:
        key: the key in force now.
        due: the value for the next closing record: public id of the key file's current key, or `STAYS` if that key is
            in force.
    """

    def __init__(self, key: Key, ring: KeyRing | None = None) -> None:
        """Begin under ``key``.

        A role whose keys come from a seed (in experiments) has no ring, and its key never rotates.
        """
        self.key = key
        self._ring = ring
        self._newest = key.key_id if ring is None else ring.of(ring.current).key_id
        self.due = STAYS if self._newest == key.key_id else self._newest

    @property
    def retired(self) -> frozenset[bytes]:
        """Public ids of destroyed keys."""
        return frozenset() if self._ring is None else frozenset(key_id for _, key_id in self._ring.retired)

    def rotate_to(self, key_id: bytes) -> Key:
        """Put the key with a public id in force.

        Raises:
            RetiredKey: it was destroyed.
            KeyFileError: the key file never held it.
        """
        if key_id != self.key.key_id:
            if self._ring is None:
                raise KeyFileError(
                    f"key {key_id.hex()}: expected the key file of the zone, since the journal rotated to another key"
                    f" than {self.key.key_id.hex()}, got one key alone"
                )
            self.key = self._ring.named(key_id)
            self.due = STAYS if self._newest == key_id else self._newest
        return self.key


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


_FORM = Form.of(
    "a checkpoint",
    record(
        "Checkpoint",
        sequence="long",
        journal_offset="long",
        record="bytes",
        state="bytes",
        ends=array(record("End", topic="string", partition="int", offset="long")),
    ),
)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a check may begin.

    Attributes:
        sequence: of the journal record that the state ends with.
        journal_offset: where the journal goes on after that record.
        record: `hushstream.engine.state.published.record_digest` of it; the record ends with the chain's head.
        state: digest of the published state.
        ends: topic, partition and end of each output of the role without its journal. All outputs of records up to
            ``sequence`` are before these ends, except for repeats by a later owner.
    """

    sequence: int
    journal_offset: int
    record: bytes
    state: bytes
    ends: tuple[Mapping[str, Any], ...]

    @classmethod
    def of(
        cls, sequence: int, journal_offset: int, record: bytes, state: bytes, ends: Mapping[TopicPartition, int]
    ) -> Self:
        """A checkpoint from the ends by topic and partition."""
        named = ({"topic": topic, "partition": number, "offset": end} for (topic, number), end in sorted(ends.items()))
        return cls(sequence, journal_offset, record, state, tuple(named))

    @classmethod
    def read(cls, packed: bytes) -> Self:
        """Unpack a checkpoint.

        Raises:
            HushstreamError: other bytes, or the form of another release.
        """
        fields = _FORM.read(packed)
        return cls(**{**fields, "ends": tuple(fields["ends"])})

    def pack(self) -> bytes:
        """The content of its record."""
        return _FORM.write({**asdict(self), "ends": list(self.ends)})

    def end(self, source: TopicPartition) -> int | None:
        """The end of an output; None if it was not noted."""
        found = (one["offset"] for one in self.ends if (one["topic"], one["partition"]) == source)
        return next(found, None)
