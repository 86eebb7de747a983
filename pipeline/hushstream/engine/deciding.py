"""What all learners have in common: contexts and clicks of one partition, published models, a journal of decisions.

A learner folds a batch (`hushstream.engine.learner.batch`) in three steps, which stand in its own file: `begin` takes
the inputs, the learner goes through their turns, and `end` writes the journal record that covers them. A replay begins
with the record instead, and ends with the comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from hushstream.engine.declare.conversation import DECISIONS
from hushstream.engine.journal.batches import covered, head_of, require_same
from hushstream.engine.journal.chain import Chain, Identity
from hushstream.engine.journal.digests import digest_records
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.arrivals import Arrivals, DecodedContexts
from hushstream.engine.learner.batch import Batch, ClickTurns, Journaled, ModelTurns
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.spending import Spending
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import Awaited, InputSlice, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, Several, Single, integer, remembered
from hushstream.engine.state.parts import EARLY_FEEDBACK, PAST, READER, array
from hushstream.engine.system import DecidingCore
from hushstream.feedback.memory import BoundedMap, FeedbackRow, PastDecision
from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Key
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import of_party

NOBODY = ""
"""In place of a user who was forgotten; no account has this name."""


class HoldsEarlyFeedback(Protocol):
    """Where feedback waits for a context that has not come."""

    def __len__(self) -> int:
        """0 when nothing waits."""

    def hold(self, click: FeedbackRow) -> object:
        """Let a click wait, if there is a place for it."""

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Take what waits for an event that has now been decided."""

    def clear(self) -> None:
        """Drop everything."""

    def forget(self, user: str) -> None:
        """Drop what a user's feedback left here."""

    def all(self) -> Iterable[FeedbackRow]:
        """Everything that waits; taken in this order it waits as it did."""


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
"""Fields of a state that all learners have: whose it is, and how far it has come."""

MEMORIES: Mapping[str, Field] = {
    "past": remembered(PAST, PastDecision),
    "early": Single(array(EARLY_FEEDBACK), _pack_early, _unpack_early, disk="parked"),
}
"""Fields of a state that all learners have: what is remembered of events."""


def only_reader() -> Several:
    """The place in the one track of models that a learner follows."""
    return Several(
        {"reader": READER},
        lambda role: {"reader": role.models[0].dump()},
        lambda role, values: role.models[0].load(values["reader"]),
    )


class DecisionRole(OwnsJournal, Declared):
    """The part of `Machine` that follows from two input logs of one partition, and what a learner remembers of them.

    Attributes:
        system: the deployment.
        partition: the home partition.
        arms: how many arms there are.
        key: of the edge zone.
        chain: of the journal.
        models: readers of the tracks of published models.
        read: up to which offset each input was folded.
        past: what was decided for the latest events.
        early: feedback that waits for its context.
        now_ms: the highest log time of a context or phase end so far; a lower one counts as this one.
        last_click_ms: log time of the youngest click folded.
        float_ties: see `Machine.float_ties`.
        spending: what the releases of this role spend; None where it makes none.
        epoch: of the noise of what is released from here.
    """

    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("inputs", "journal", "system", "partition", "arms", "key", "letters"), FIXED),
        "float_ties": "a count of this process alone",
        "_arrivals": "kept from `ready` to the fold of the same records, and found anew by the next `ready`",
    }
    spending: Spending | None

    def __init__(
        self,
        system: DecidingCore,
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
            remembered_events: how many past events are known again.
            decode: makes columns of a slice of contexts.
            party: whose topics these are, where each party of the deployment has its own.
        """
        topics = DECISIONS.of(party)
        assert topics.answers is not None
        self.inputs: tuple[TopicPartition, TopicPartition] = ((topics.asked, partition), (topics.told[0], partition))
        self.journal: TopicPartition = (topics.answers, partition)
        self.system = system
        self.partition = partition
        self.arms = system.config.arms
        self.key = key
        identity = Identity("learner", system.config.deployment, system.digest, self.journal)
        self.chain = Chain(identity, key, "Decisions")
        self.letters = DeadLetters(of_party("edge", party), "learner", partition, key, self.chain.encode)
        self.models = models
        self.read: dict[TopicPartition, int] = dict.fromkeys(self.inputs, 0)
        self.past: BoundedMap[PastDecision] = BoundedMap(remembered_events)
        self.early = early
        self.now_ms = 0
        self.last_click_ms = 0
        self.float_ties = 0
        self.epoch = NoiseEpoch()
        self._arrivals = Arrivals(*self.inputs, decode)

    # What a driver asks before it reads.

    @property
    def charged(self) -> Cost | None:
        return None if self.spending is None else self.spending.spent

    def answers(self, sequence: int) -> bool:
        return self.epoch.answers(sequence)

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return tuple(reader.topic for reader in self.models)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self.read, **{reader.topic: reader.position for reader in self.models}}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: nothing is remembered beyond the journal, so it equals the positions."""
        return dict(self.read)

    @property
    def awaited(self) -> Awaited | None:
        """See `Machine.awaited`: a click."""
        return self._arrivals.awaited

    def ends_at(self, before: int, end: int) -> None:
        self._arrivals.ends_at(before, end)

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Arrivals.ready`."""
        return self._arrivals.ready(slices, self.read[self.inputs[1]], self.last_click_ms, self.now_ms)

    # A batch.

    def begin(self, slices: Sequence[InputSlice], journaled: Journaled | None = None) -> Batch:
        """The batch that these slices are; the next record of the journal covers it, or the one that is replayed."""
        parts = covered(self.positions(), slices)
        of = {(part.topic, part.partition): part for part in parts}
        contexts, clicks = (of[place] for place in self.inputs)
        return Batch(
            self.chain.sequence + (journaled is None),
            parts,
            (contexts, self._arrivals.over(contexts) if contexts.records else ()),
            ClickTurns(clicks, self.last_click_ms),
            ModelTurns((reader, of[reader.topic]) for reader in self.models),
            (self.system.digest, self.arms, self.letters),
            journaled,
        )

    def begin_again(self, value: bytes, slices: Sequence[InputSlice]) -> Batch:
        """The batch that a journal record covers: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        if fields["debits"] and self.spending is not None:
            # The record's first release opens an epoch if it did so; a record without releases answers no doubt.
            self.epoch.follow(fields["head"]["epoch"], fields["debits"][0]["scope"], self.spending.terms.own)
        return self.begin(slices, Journaled.of(fields))

    def end(self, batch: Batch, policy: str) -> Step:
        """Write the journal record that covers a batch, or compare it with the one that is replayed.

        Raises:
            ReplayMismatch: the inputs give another record.
        """
        contexts, clicks = batch.contexts, batch.clicks
        self.read.update(zip(self.inputs, (contexts.high, clicks.part.high), strict=True))
        self.last_click_ms = clicks.latest_ms
        self.float_ties += batch.float_ties
        self._arrivals.forget(contexts.high)
        head = head_of(self.chain, self.key, batch.sequence, self.epoch.number, batch.covered, batch.releases)
        fields = {"head": head, **batch.fields(self.now_ms, policy)}
        journal = None
        if batch.journaled is None:
            journal = self.chain.append(fields)
        else:
            require_same(self.chain, fields, batch.journaled.fields)
        return Step(journal, tuple(batch.releases), tuple(batch.dead), batch.counts)

    # What a learner does with its inputs beside its own.

    def is_home_of(self, user: str) -> bool:
        """Whether a user's records belong here, by the rule that every writer follows.

        Elsewhere they would have a second allowance, and partitions would no longer hold different users.
        """
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def forget_events(self, user: str) -> None:
        """Take a user's name out of what is remembered of events."""
        for event_id, past in list(self.past.items()):
            if past.user == user:
                self.past.put(event_id, past._replace(user=NOBODY))
        self.early.forget(user)
