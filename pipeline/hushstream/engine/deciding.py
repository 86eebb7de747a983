"""The part that all answering roles share. They read input logs and published models, and write answers to a journal.

One journal record covers one batch (`hushstream.engine.learner.batch`). The role's own file shows what happens to a
batch, in three steps: `begin` takes the inputs. The role goes through them and notes answers, releases and counts in
the batch. `end` writes the journal record. In a replay `begin` is given that record, and `end` compares it.

A learner is an answering role that reads contexts and clicks of one partition, and answers with decisions. Its batch
merges these inputs, so its steps are `begin_decisions` and `end_decisions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import CatalogueItem, ItemRefused
from hushstream.engine.declare.conversation import DECISIONS
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Batch as JournaledBatch
from hushstream.engine.journal.chain import Chain, Identity, covered, digest_records, record_of, require_same
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.arrivals import Arrivals, DecodedContexts
from hushstream.engine.learner.batch import AnsweredBatch, Batch, Changed, FeedbackCursor, PublicCursor
from hushstream.engine.learner.items import ItemReader, until_next_change
from hushstream.engine.learner.model_parts import PartReader
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.spending import Spending
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import Awaited, InputRange, InputSlice, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, Several, Single, integer, remembered
from hushstream.engine.state.parts import EARLY_FEEDBACK, PAST, READER, array
from hushstream.engine.system import Core, DecidingValues, DeploymentValues
from hushstream.feedback.memory import BoundedMap, FeedbackRow, PastDecision
from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Key
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import of_party

NOBODY = ""
"""Value in place of the name of an erased user; no account has this name."""


# Roles that answer.


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
        return tuple(place for place in self.positions() if place not in self.read)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: one digest over all inputs of a batch."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        found = dict(self.read)
        for reader in (*self.models, self.parts, self.items):
            if reader is not None:
                found[reader.topic] = reader.position
        return found

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: it equals the positions, because every folded record is journaled."""
        return dict(self.read)

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: no record waits."""
        return slices

    def begin(self, slices: Sequence[InputSlice], journaled: bytes | None = None) -> AnsweredBatch:
        """Begin a batch. After a `ReplayMismatch` the machine must be discarded.

        Args:
            slices: the new input.
            journaled: in a replay, the journal record that covers it; otherwise the next one will.
        """
        positions = self.positions()
        parts = covered(positions, slices)
        if journaled is None:
            return AnsweredBatch(self.chain.sequence + 1, parts, self.letters)
        fields = self.chain.accept(journaled, positions)
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


# Learners.


class HoldsEarlyFeedback(Protocol):
    """A store of feedback whose context has not arrived."""

    def __len__(self) -> int:
        """Number of waiting clicks."""

    def hold(self, click: FeedbackRow) -> object:
        """Store a click, if there is space."""

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Remove and return the feedback that waits for an event, which has now been decided."""

    def clear(self) -> None:
        """Drop everything."""

    def forget(self, user: str) -> None:
        """Drop the feedback of one user."""

    def all(self) -> Iterable[FeedbackRow]:
        """All waiting feedback, in an order in which calls of `hold` restore the same state."""


def _pack_read(role: DecisionRole) -> Mapping[str, int]:
    contexts, clicks = role.inputs
    return {"contexts": role.read[contexts], "clicks": role.read[clicks]}


def _unpack_read(role: DecisionRole, values: Mapping[str, int]) -> None:
    role.read.update(zip(role.inputs, (values["contexts"], values["clicks"]), strict=True))


def _pack_early(early: HoldsEarlyFeedback) -> Iterator[dict[str, Any]]:
    return (click._asdict() for click in early.all())


def _unpack_early(value: Iterable[dict[str, Any]], early: HoldsEarlyFeedback) -> HoldsEarlyFeedback:
    early.clear()
    for item in value:
        early.hold(FeedbackRow(**item))
    return early


DECIDING: Mapping[str, Field] = {
    "chain": owner(),
    "read": Several({"contexts": "long", "clicks": "long"}, _pack_read, _unpack_read),
    "now_ms": integer(),
    "last_click_ms": integer(),
    "epoch": EPOCH_FIELD,
}
"""Fields that the state of every learner has: its owner and its position in the logs."""

MEMORIES: Mapping[str, Field] = {
    "past": remembered(PAST, PastDecision),
    "early": Single(array(EARLY_FEEDBACK), _pack_early, _unpack_early, disk="parked"),
}
"""Fields that the state of every learner has: its memory of past events."""


class DecisionRole(AnsweringRole):
    """What every learner does with contexts and clicks of one partition, and what it remembers of them.

    Attributes:
        system: the deployment.
        arms: how many arms there are.
        past: decisions for the latest events.
        early: feedback that waits for its context.
        now_ms: the highest log time of a context or phase end so far; a record with a lower one is treated as if it had
            this one.
        last_click_ms: log time of the youngest click folded.
        spending: spending of this role's releases; None if it makes none.
        epoch: noise epoch of its releases.
    """

    derived: ClassVar[Mapping[str, str]] = {
        "arms": FIXED,
        "_arrivals": "kept from `ready` to the fold of the same records, and found anew by the next `ready`",
    }
    system: Core[DecidingValues]
    spending: Spending | None

    def __init__(
        self,
        system: Core[DecidingValues],
        partition: int,
        key: Key,
        models: Sequence[ModelReader],
        early: HoldsEarlyFeedback,
        remembered_events: int,
        decode: Callable[[InputSlice], DecodedContexts],
        party: str = "",
    ) -> None:
        """Begin before the first record of the inputs.

        Args:
            system: the deployment.
            partition: of contexts and clicks.
            key: of the edge zone.
            models: readers of the tracks of published models, by track.
            early: where feedback waits for its context.
            remembered_events: how many past events are remembered.
            decode: makes columns of a slice of contexts.
            party: the party whose topics these are, if each party of the deployment has its own.
        """
        topics = DECISIONS.of(party)
        assert topics.answers is not None
        identity = Identity.of(system, "learner", topics.answers, partition)
        inputs = (topics.requests, partition), (topics.feedback[0], partition)
        super().__init__(system, identity, "Decisions", inputs, models, of_party("edge", party), key)
        self.arms = system.config.arms
        self.past: BoundedMap[PastDecision] = BoundedMap(remembered_events)
        self.early = early
        self.now_ms = 0
        self.last_click_ms = 0
        self.epoch = NoiseEpoch()
        self._arrivals = Arrivals(*inputs, decode)

    # What a driver needs before it reads.

    @property
    def charged(self) -> Cost | None:
        return None if self.spending is None else self.spending.spent

    def opened_epoch_since(self, sequence: int) -> bool:
        return self.epoch.opened_epoch_since(sequence)

    @property
    def awaited(self) -> Awaited | None:
        """See `Machine.awaited`: a click."""
        return self._arrivals.awaited

    def ends_at(self, before: int, end: int) -> None:
        self._arrivals.ends_at(before, end)

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Arrivals.ready`; a batch decides under one version of the catalogue, where there is one."""
        left = False
        if self.items is not None:
            slices, left = until_next_change(slices, (self.inputs[0], self.items.topic), self.now_ms)
        return self._arrivals.ready(slices, self.read[self.inputs[1]], self.last_click_ms, self.now_ms, left)

    # A batch.

    def begin_decisions(self, slices: Sequence[InputSlice], journaled: bytes | None = None) -> Batch:
        """See `AnsweringRole.begin`. In a replay, if two scores are nearly equal, the journaled arm counts."""
        whole = self.begin(slices, journaled)
        if whole.journaled is not None and whole.journaled["debits"] and self.spending is not None:
            # The record's first release opens an epoch if it did so then; a record without releases opens none.
            scope = whole.journaled["debits"][0]["scope"]
            self.epoch.follow(whole.journaled["head"]["epoch"], scope, self.spending.terms.own)
        contexts, clicks = (whole.slices[place] for place in self.inputs)
        pieces = self._arrivals.take(contexts)
        models = [(reader, whole.slices[reader.topic]) for reader in self.models]
        items = None if self.items is None else (self.items, whole.slices[self.items.topic])
        parts = None if self.parts is None else (self.parts, whole.slices[self.parts.topic])
        inputs = contexts, FeedbackCursor(clicks, self.last_click_ms), PublicCursor(models, items, parts)
        return Batch(whole, pieces, inputs, (self.system.digest, self.arms))

    def end_decisions(self, batch: Batch, answers: Mapping[str, Any]) -> Step:
        """See `AnsweringRole.end`; the answers are `Batch.fields`."""
        self.last_click_ms = batch.clicks.latest_ms
        self.float_ties += batch.float_ties
        return self.end(batch, answers, self.epoch.number)

    # What a learner does with its inputs beside its own.

    def is_home_of(self, user: str) -> bool:
        """Whether this is the home partition of a user, by the hash that every writer uses.

        A user who was accepted in a second partition would have a second allowance there.
        """
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def take_item(self, changed: Changed, batch: Batch) -> CatalogueItem | None:
        """Apply a change of the catalogue, and return the item after it; None if the change does not count.

        A repeated request about an event of the row's previous item is no longer answered, because the answer would
        name the new item.
        """
        assert self.items is not None, "nobody reads changes where items have no names"
        catalogue, read, reason, found = self.items.catalogue, changed.read, changed.read.reason, None
        before = catalogue.entries
        if read.change is not None:
            try:
                found = catalogue.take(read.change, changed.log_time_ms)
            except ItemRefused:
                reason = Refusal.ITEM_REFUSED
        if found is None:
            batch.refuse(reason, changed.part, read.offset)
            return None
        if before[found.row] and found.entered != before[found.row]:
            arm = catalogue.rules.arms[found.row]
            for event_id, past in list(self.past.items()):
                if past.arm == arm:
                    self.past.put(event_id, past._replace(user=NOBODY))
        batch.counts[Outcome.ITEM_CHANGED] += 1
        return found

    def offered_among(self, eligible: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """(K,) which of the arms that a context names (None for all arms) have an item that is offered."""
        assert self.items is not None, "nothing is offered where items have no names"
        offered = self.items.catalogue.offered
        return offered if eligible is None else eligible & offered

    def forget_events(self, user: str) -> None:
        """Remove a user's name from all remembered events; the events themselves stay known."""
        for event_id, past in list(self.past.items()):
            if past.user == user:
                self.past.put(event_id, past._replace(user=NOBODY))
        self.early.forget(user)
