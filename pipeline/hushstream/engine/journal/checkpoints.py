"""Checkpoints: records at which a check of a journal may begin, and before which the journal may be deleted.

A checkpoint is one more record of a published state (`hushstream.engine.state.published`), sealed as its parts are and
named by the same publication. It says which journal record the state ends with, which bytes the state is, and where the
role's outputs ended when it was published: what lies behind those ends follows from later records, and is recomputed.

It lies beside the state, and not in the journal, since there the state itself has to be found as well: a journal record
would hold its digest alone, and journals that were begun before would hold records that no reader of theirs knows. What
ties the two together is the digest of the very journal record, which stays in the journal (`hushstream.ops.trim`) and
closes with the chain's head: a state counts only while the journal holds it. The sum of what was charged is in the
state, as it is what the next release is refused by; how far was released stands in the marks, which are kept for ever
and are never older than a checkpoint: so what refuses a journal that was rolled back does not begin anew with one.

Whoever runs the broker has no key of the zone. They can make no checkpoint and alter none; they can withhold one, or
show an older one, whole. From an older one the rest of the journal is replayed and compared, which costs time; where
that rest is deleted, it is refused. A journal that ends earlier than marks say is refused whatever it began with. So no
checkpoint spends an allowance or a budget again. For a role without a key (an aggregator), whose journal anybody could
write who may write its topic, the same holds of its states: there only the broker's access rules protect both.
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
        record: `hushstream.engine.state.published.record_digest` of it, which closes with the chain's head.
        state: digest of the published state.
        ends: topic, partition and end of everything that the role writes to besides its journal: whatever follows from
            records up to ``sequence`` was there, but for what a later owner repeats.
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
        """With the ends by topic and partition."""
        named = ({"topic": topic, "partition": number, "offset": end} for (topic, number), end in sorted(ends.items()))
        return cls(sequence, journal_offset, record, state, tuple(named))

    @classmethod
    def read(cls, packed: bytes) -> Self:
        """What was packed.

        Raises:
            HushstreamError: other bytes, or of another release's form.
        """
        fields = _FORM.read(packed)
        return cls(**{**fields, "ends": tuple(fields["ends"])})

    def pack(self) -> bytes:
        """The content of its record."""
        return _FORM.write({**asdict(self), "ends": list(self.ends)})

    def end(self, source: TopicPartition) -> int | None:
        """Where an output ended; None where that was not noted."""
        found = (one["offset"] for one in self.ends if (one["topic"], one["partition"]) == source)
        return next(found, None)
