"""The part that all answering roles share: input logs, published models, and a journal that holds the answers.

One journal record covers one batch. The role's own file shows what happens to a batch, in three steps: `begin` takes
the inputs, the role goes through them and notes in the batch what they came to, and `end` writes the journal record. A
replay begins with the record instead (`begin_again`), and ends with the comparison.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

from hushstream.engine.declare.outcomes import Outcome
from hushstream.engine.journal.chain import Batch as JournaledBatch
from hushstream.engine.journal.chain import Chain, Identity, covered, digest_records, ranges_of, record_of, require_same
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import PartReader
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import InputSlice, Output, Step, TopicPartition
from hushstream.engine.refusals import WHOLE_RECORD, DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, Several, Single
from hushstream.engine.state.parts import READER, array
from hushstream.engine.system import Core, DeploymentValues
from hushstream.privacy.keys import Key


class AnsweredBatch:
    """A batch that is being folded: its input, and the answers, releases and counts so far.

    Attributes:
        sequence: of the journal record that covers it.
        slices: one of every input, by where it lies.
        letters: what makes dead letters.
        journaled: on a replay, the fields of that record; else None.
        releases: what is sent once the journal record stands.
        dead: dead letters.
        counts: events by outcome.
    """

    def __init__(
        self,
        sequence: int,
        slices: Mapping[TopicPartition, InputSlice],
        letters: DeadLetters,
        journaled: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin without answers, releases or counts."""
        self.sequence = sequence
        self.slices = slices
        self.journaled = journaled
        self.releases: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()
        self.letters = letters

    def refuse(self, reason: str, part: InputSlice, offset: int, row: int = WHOLE_RECORD) -> None:
        """A dead letter; a record of an earlier batch (early feedback) is known by its place alone."""
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(self.letters.letter(reason, part.topic, self.letters.home, offset, row, value))
        self.counts[Outcome.REJECTED] += 1


def only_reader() -> Several:
    """The place in the one track of models that a role follows, as a field of its state."""
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
"""Fields of the state of a role that follows one track of models: whose it is, and how far it has come."""


class AnsweringRole(OwnsJournal, Declared):
    """The part of `Machine` that follows from input logs of one partition, published models, and a journal of answers.

    Attributes:
        system: the deployment.
        partition: the home partition.
        key: of the zone.
        inputs: the co-partitioned inputs.
        journal: where the answers lie.
        chain: of the journal.
        letters: what makes dead letters.
        models: readers of the tracks of published models.
        items: reader of the catalogue, where items have names.
        parts: reader of the parts of the first track's models, where a model is larger than a record.
        read: up to which offset each input was folded.
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
            identity: whose journal it is.
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
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self.read, **{reader.topic: reader.position for reader in self._followed()}}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: nothing is remembered beyond the journal, so it equals the positions."""
        return dict(self.read)

    def _followed(self) -> Sequence[ModelReader | PartReader | ItemReader]:
        return (*self.models, *(one for one in (self.parts, self.items) if one is not None))

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: nothing waits here."""
        return slices

    def begin(self, slices: Sequence[InputSlice]) -> AnsweredBatch:
        """The batch that these slices are; the next record of the journal covers it."""
        return AnsweredBatch(self.chain.sequence + 1, covered(self.positions(), slices), self.letters)

    def begin_again(self, value: bytes, slices: Sequence[InputSlice]) -> AnsweredBatch:
        """The batch that a journal record covers; after a `ReplayMismatch` the machine must be thrown away."""
        parts = covered(self.positions(), slices)
        fields = self.chain.accept(value, self.positions())
        return AnsweredBatch(self.chain.sequence, parts, self.letters, fields)

    def end(self, batch: AnsweredBatch, answers: Mapping[str, Any], epoch: int = 0) -> Step:
        """Write the journal record that covers a batch, or compare it with the one that is replayed.

        Args:
            batch: whose inputs were all taken.
            answers: what the record says beside its head.
            epoch: of the noise of what is released here.

        Raises:
            ReplayMismatch: the inputs give another record.
        """
        self.read.update((place, batch.slices[place].high) for place in self.inputs)
        parts, releases, journal = batch.slices.values(), tuple(batch.releases), None
        whole = JournaledBatch(ranges_of(parts), digest_records(self.key, parts), answers, releases, epoch)
        fields = record_of(self.chain, whole, batch.sequence)
        if batch.journaled is None:
            journal = self.chain.append(fields)
        else:
            require_same(self.chain, fields, batch.journaled)
        return Step(journal, releases, tuple(batch.dead), batch.counts)
