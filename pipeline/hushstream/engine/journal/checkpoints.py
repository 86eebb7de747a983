"""Checkpoints: a check of a journal may begin at such a record, and the journal before it may be deleted.

A checkpoint is one more record of a published state (`hushstream.engine.state.published`). It is sealed like the parts
of the state, and belongs to the same publication. It holds the last journal record of the state, a digest of the state,
and the ends of the role's outputs at the time of publication. Outputs behind those ends follow from later records, and
are recomputed. The checkpoint lies beside the state and not in the journal. A check needs the state itself, and a
journal record could hold only its digest; besides, readers of older journals do not know such a record. The digest of
the journal record ties state and journal together. This record stays in the journal (`hushstream.ops.trim`) and ends
with the chain's head; a state counts only while the journal holds the record. The sum of charges is in the state, so
budgets go on from it. How far a journal has released is in the marks, which are kept for ever and are never older than
a checkpoint. So a rolled back journal is refused after a checkpoint as before.

The broker's operator has no key of the zone, and so can make or alter no checkpoint. They can withhold one, or present
an older one. From an older checkpoint the rest of the journal is replayed and compared, which only costs time; if that
rest is deleted, the checkpoint is refused. A journal that ends earlier than marks say is always refused. So no
checkpoint spends an allowance or a budget twice. A role without a key (an aggregator) has no such protection: anybody
with write access to its topics could write its journal and its states. Only the broker's access rules protect both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from hushstream.engine.records import TopicPartition
from hushstream.engine.state.packed import Form
from hushstream.engine.state.parts import array, record

_FORM = Form.of(
    "a checkpoint",
    1,
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
