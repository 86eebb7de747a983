"""The part that all answering roles share. They read input logs and published models, and write answers to a journal.

One journal record covers one batch. The role's own file shows what happens to a batch, in three steps: `begin` takes
the inputs. The role goes through them and notes answers, releases and counts in the batch. `end` writes the journal
record. A replay begins with the record instead (`begin_again`), and ends with the comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Batch as JournaledBatch
from hushstream.engine.journal.chain import Chain, Identity, covered, digest_records, record_of, require_same
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import PartReader
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputRange, InputSlice, Output, Step, TopicPartition
from hushstream.engine.refusals import WHOLE_RECORD, DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, Several, Single
from hushstream.engine.state.parts import READER, array
from hushstream.engine.system import Core, DeploymentValues
from hushstream.privacy.keys import Key


@dataclass(slots=True, eq=False)
class AnsweredBatch:
    """A batch that is being folded: its input, and the answers, releases and counts so far.

    Attributes:
        sequence: of the journal record that covers it.
        slices: one slice of every input, by topic and partition.
        letters: makes dead letters.
        journaled: on a replay, the fields of that record; else None.
        releases: what is sent after the journal record was acknowledged.
        dead: dead letters.
        counts: events by outcome.
    """

    sequence: int
    slices: Mapping[TopicPartition, InputSlice]
    letters: DeadLetters
    journaled: Mapping[str, Any] | None = None
    releases: list[Output] = field(default_factory=list)
    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def refuse(self, reason: str, part: InputSlice, offset: int, row: int = WHOLE_RECORD) -> None:
        """Write a dead letter. Of a record of an earlier batch (early feedback) only the position is known."""
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(self.letters.letter(reason, part.topic, self.letters.home, offset, row, value))
        self.counts[Outcome.REJECTED] += 1


def only_reader() -> Several:
    """State field: position in the one track of models that a role follows."""
    return Several(
        {"reader": READER},
        lambda role: {"reader": role.models[0].dump()},
        lambda role, values: role.models[0].load(values["reader"]),
    )


ANSWERING: Mapping[str, Field] = {
    "chain": owner(),
    "read": Single(
        array("long"), lambda read: list(read.values()), lambda value, read: dict(zip(read, value, strict=True))
    ),
    "models": only_reader(),
}
"""State fields of a role that follows one track of models: its owner and its positions."""


class AnsweringRole(OwnsJournal, Declared):
    """The methods of `Machine` that every answering role shares.

    Attributes:
        system: the deployment.
        partition: the home partition.
        key: of the zone.
        inputs: the co-partitioned inputs.
        journal: the topic of answers.
        chain: of the journal.
        letters: makes dead letters.
        models: readers of the tracks of published models.
        items: reader of the catalogue, where items have names.
        parts: reader of the parts of the first track's models, where a model is larger than a record.
        read: next offset of each input.
        float_ties: see `Machine.float_ties`.
    """

    items: ItemReader | None = None
    parts: PartReader | None = None
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("system", "inputs", "journal", "partition", "key", "letters"), FIXED),
        "float_ties": "a count of this process alone",
    }

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        inputs: tuple[TopicPartition, ...],
        models: Sequence[ModelReader],
        zone: str,
        key: Key,
    ) -> None:
        """Begin before the first record of the inputs.

        Args:
            system: the deployment.
            identity: identity of its journal.
            schema: of its records.
            inputs: the co-partitioned inputs, the home partition first.
            models: readers of the tracks of published models.
            zone: whose operator reads the dead letters.
            key: of that zone.
        """
        self.system = system
        self.partition = inputs[0][1]
        self.inputs = inputs
        self.journal = identity.journal
        self.key = key
        self.chain = Chain(identity, key, schema)
        self.letters = DeadLetters(zone, identity.role, self.partition, key, self.chain.encode)
        self.models = models
        self.read: dict[TopicPartition, int] = dict.fromkeys(inputs, 0)
        self.float_ties = 0

    @property
    def readers(self) -> Sequence[ModelReader]:
        return self.models

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return tuple(reader.topic for reader in self._followed())

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: one digest over all inputs of a batch."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self.read, **{reader.topic: reader.position for reader in self._followed()}}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: it equals the positions, because every folded record is journaled."""
        return dict(self.read)

    def _followed(self) -> Sequence[ModelReader | PartReader | ItemReader]:
        return (*self.models, *(one for one in (self.parts, self.items) if one is not None))

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: no record waits."""
        return slices

    def begin(self, slices: Sequence[InputSlice]) -> AnsweredBatch:
        """Begin a batch of these slices. The next journal record covers it."""
        return AnsweredBatch(self.chain.sequence + 1, covered(self.positions(), slices), self.letters)

    def begin_again(self, value: bytes, slices: Sequence[InputSlice]) -> AnsweredBatch:
        """Begin the batch that a journal record covers. After a `ReplayMismatch` the machine must be discarded."""
        parts = covered(self.positions(), slices)
        fields = self.chain.accept(value, self.positions())
        return AnsweredBatch(self.chain.sequence, parts, self.letters, fields)

    def end(self, batch: AnsweredBatch, answers: Mapping[str, Any], epoch: int = 0) -> Step:
        """Write the journal record of a batch, or compare it with the replayed one.

        Args:
            batch: the batch, after all its inputs were taken.
            answers: fields of the record without its head.
            epoch: noise epoch of its releases.

        Raises:
            ReplayMismatch: the inputs give another record.
        """
        self.read.update((place, batch.slices[place].high) for place in self.inputs)
        parts, releases, journal = batch.slices.values(), tuple(batch.releases), None
        ranges = [InputRange(*part[:4]) for part in parts]
        whole = JournaledBatch(ranges, digest_records(self.key, parts), answers, releases, epoch)
        fields = record_of(self.chain, whole, batch.sequence)
        if batch.journaled is None:
            journal = self.chain.append(fields)
        else:
            require_same(self.chain, fields, batch.journaled)
        return Step(journal, releases, tuple(batch.dead), batch.counts)
