"""What all learners have in common: contexts and clicks of one partition, published models, a journal of decisions.

`OneInput` is the same for the machines that read one log.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hushstream.engine.declare.conversation import DECISIONS
from hushstream.engine.journal.chain import Chain, Identity, head_fields, ranges_of
from hushstream.engine.journal.digests import digest_outputs, digest_records
from hushstream.engine.journal.generations import in_its_generation
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.intake import MAX_ROWS, DecodedContexts, DecodedOnce, cut
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.learner.named_clicks import NamedClicks
from hushstream.engine.noise.budget import Place
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.spending import Spending
from hushstream.engine.owns_journal import OwnsJournal
from hushstream.engine.records import Awaited, InputSlice, Output, ReplayMismatch, Step, TopicPartition
from hushstream.engine.refusals import DeadLetters
from hushstream.engine.state.declared import FIXED, Declared, Field, Several, Single, integer, remembered
from hushstream.engine.state.parts import EARLY_FEEDBACK, PAST, READER, array
from hushstream.engine.system import DecidingCore
from hushstream.feedback.memory import BoundedMap, FeedbackRow, PastDecision
from hushstream.privacy.amounts import Cost
from hushstream.privacy.keys import Key
from hushstream.schemas.partitioning import partition_of
from hushstream.schemas.topics import of_party

_ANSWERS = (("arms", "<i4"), ("propensities", "<u4"))


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


class Journaled(NamedTuple):
    """What a journal record says was answered, row by row."""

    arms: list[int]
    propensities: list[int]


class DecisionBatch(Protocol):
    """One batch that is folded into a learner; see `hushstream.engine.deciding_fold`."""

    @property
    def releases(self) -> Sequence[Output]:
        """What is sent once the journal record stands."""

    @property
    def dead(self) -> Sequence[Output]:
        """Dead letters."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Events by outcome."""

    def run(self, slices: Sequence[InputSlice]) -> None:
        """Fold one slice of every input."""

    def fields(self) -> dict[str, Any]:
        """What the journal record holds beside its head."""


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


class DecisionRole(OwnsJournal, Declared, ABC):
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
        settle_ms: how long, in log time, what falls due must settle.
        due: (log time of a decision, event or user) of all that settles later, oldest first.
        now_ms: the highest log time of a context or phase end so far; a lower one counts as this one.
        last_click_ms: log time of the youngest click folded.
        float_ties: see `Machine.float_ties`.
        epoch: of the noise of what is released from here.
    """

    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(
            ("topics", "contexts_topic", "clicks_topic", "system", "partition", "arms", "key", "letters", "settle_ms"),
            FIXED,
        ),
        "float_ties": "a count of this process alone",
        "_writing": "set at the beginning of each fold",
        "_decoded": "kept from `ready` to the fold of the same records",
        "_named": "found anew by the next `ready`",
    }

    def __init__(
        self,
        system: DecidingCore,
        partition: int,
        key: Key,
        models: Sequence[ModelReader],
        early: HoldsEarlyFeedback,
        remembered_events: int,
        settle_ms: int,
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
            settle_ms: how long what falls due must settle, at least.
            party: whose topics these are, where each party of the deployment has its own.
        """
        self.topics = DECISIONS.of(party)
        self.contexts_topic, (self.clicks_topic,) = self.topics.asked, self.topics.told
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
        self.settle_ms = settle_ms
        self.due: deque[tuple[int, str]] = deque()
        self.now_ms = 0
        self.last_click_ms = 0
        self.float_ties = 0
        self.epoch = NoiseEpoch()
        self._writing = 0
        """The journal record that covers the batch that is folded."""
        self._decoded = DecodedOnce(self._decode)
        self._named = NamedClicks((self.clicks_topic, partition))

    @abstractmethod
    def _decode(self, part: InputSlice) -> DecodedContexts:
        """A slice of contexts as columns."""

    @abstractmethod
    def _batch(self, sequence: int, journaled: Journaled | None) -> DecisionBatch:
        """The fold of the batch that journal record ``sequence`` covers; ``journaled`` is given on replay only."""

    spending: Spending | None

    @property
    @abstractmethod
    def _releases(self) -> bool:
        """Whether noise is drawn here."""

    @property
    @abstractmethod
    def _reaches_ahead(self) -> bool:
        """Whether it is drawn before what it covers is all there."""

    @abstractmethod
    def _redraw(self) -> None:
        """Noise what is held again, under noise of the epoch that has begun."""

    # What a driver asks before it reads.

    @property
    def nonce(self) -> bytes:
        """What names the noise of this epoch in this journal."""
        return self.epoch.nonce(self.chain.genesis_nonce)

    @property
    def charged(self) -> Cost | None:
        return None if self.spending is None else self.spending.spent

    def answers(self, sequence: int) -> bool:
        return self.epoch.answers(sequence)

    def distrust(self, nonce: bytes, forked: bool = False, lives: int = 0) -> bool:
        if self._reaches_ahead or (forked and self._releases):
            self.epoch.ask(nonce, lives)
        return self.epoch.due

    def charge(self) -> Place:
        """What the release that follows is charged to; opens the epoch of a doubt."""
        if self.epoch.due:
            self.epoch.redraw(self._writing)
            self._redraw()
        return self.epoch.place()

    @property
    def journal(self) -> TopicPartition:
        assert self.topics.answers is not None
        return (self.topics.answers, self.partition)

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        return ((self.contexts_topic, self.partition), (self.clicks_topic, self.partition))

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        return tuple(reader.topic for reader in self.models)

    @property
    def readers(self) -> Sequence[ModelReader]:
        return self.models

    def is_home_of(self, user: str) -> bool:
        """Whether a user's records belong here, by the rule that every writer follows.

        Elsewhere they would have a second allowance, and partitions would no longer hold different users.
        """
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        return {**self.read, **{reader.topic: reader.position for reader in self.models}}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: nothing is remembered beyond the journal, so it equals the positions."""
        return dict(self.read)

    def snapshot(self) -> bytes:
        return self.state.pack(self)

    def restore(self, snapshot: bytes) -> None:
        self.state.restore(self, snapshot)

    # Which part of what arrived may be folded.

    @property
    def awaited(self) -> Awaited | None:
        """See `Machine.awaited`: a click."""
        return self._named.awaited

    def ends_at(self, before: int, end: int) -> None:
        self._named.ends_at(before, end)

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: contexts wait for the click that they name, and a fold has at most `MAX_ROWS`.

        Where rows are left for the next fold, so are the clicks and models of a later log time.
        """
        given = {part.topic: part for part in slices}
        asked = given.get(self.contexts_topic)
        if asked is None:
            return slices
        contexts = self._ready_contexts(asked, given.get(self.clicks_topic))
        parts = [contexts if part is asked else part for part in slices]
        if contexts.high < asked.high and self._rows_in(contexts) >= MAX_ROWS:
            parts = [self._not_beyond(contexts, part) for part in parts]
        return [part for part in parts if part.high > part.low]

    def _rows_in(self, part: InputSlice) -> int:
        return sum(len(piece.rows_of(part)) for piece in self.decode(part))

    def _not_beyond(self, contexts: InputSlice, part: InputSlice) -> InputSlice:
        """The part of a slice that comes before the end of a slice of contexts."""
        until_ms = max(self.now_ms, *(record.timestamp_ms for record in contexts.records))
        named = self._last_named(contexts) if part.topic == self.clicks_topic else -1
        later = (r.offset for r in part.records if r.timestamp_ms > until_ms and r.offset > named)
        return part if part.topic == self.contexts_topic else cut(part, next(later, part.high))

    def _last_named(self, contexts: InputSlice) -> int:
        pieces = self.decode(contexts)
        return max(piece.columns.after_clicks[row] for piece in pieces for row in piece.rows_of(contexts))

    def _ready_contexts(self, part: InputSlice, clicks: InputSlice | None) -> InputSlice:
        click_high = clicks.high if clicks else self.read[self.clicks_topic, self.partition]
        latest_ms = max(self.last_click_ms, clicks.records[-1].timestamp_ms if clicks and clicks.records else 0)
        if self._named.still_holds(part.low, click_high, latest_ms):
            return cut(part, part.low)
        pieces = self.decode(part)
        high = self._named.ready_below(pieces, part, click_high, latest_ms)
        offsets = [piece.columns.offsets[row] for piece in pieces for row in piece.rows_of(part)]
        if len(offsets) > MAX_ROWS:
            high = min(high, max(offsets[MAX_ROWS], offsets[0] + 1))
        return part if high == part.high else cut(part, high)

    def decode(self, part: InputSlice) -> Sequence[DecodedContexts]:
        """A slice of contexts as columns, in pieces; decoded once, though it is asked for again."""
        return self._decoded.over(part)

    def settled(self, due_ms: int, now_ms: int) -> bool:
        """Whether what fell due at ``due_ms`` of log time leaves at ``now_ms``.

        Log time is cut into spans as long as it must settle, and all that fell due in one span leaves when the next but
        one begins: together. What left for itself would tell by its time whose it is.
        """
        span_ms = self.settle_ms
        return now_ms >= due_ms if not span_ms else now_ms // span_ms >= due_ms // span_ms + 2

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        sequence = self.chain.sequence + 1
        fold, fields = self._folded(sequence, None, slices)
        return [Step(self.chain.append(fields), tuple(fold.releases), tuple(fold.dead), fold.counts)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        arms, propensities = (np.frombuffer(fields[name], kind).tolist() for name, kind in _ANSWERS)
        sequence = self.chain.sequence
        self._follow(fields["head"]["epoch"], fields["debits"])
        fold, again = self._folded(sequence, Journaled(arms, propensities), slices)
        ours, theirs = self.chain.written(again), self.chain.written(fields)
        for name in ours:
            if ours[name] != theirs[name]:
                raise ReplayMismatch(
                    f"{self.journal[0]}/{self.partition} record {sequence}: its inputs give another {name}"
                )
        return Step(None, tuple(fold.releases), tuple(fold.dead), fold.counts)

    def _follow(self, epoch: int, debits: Sequence[Mapping[str, Any]]) -> None:
        """Let the record's first release open an epoch if it did so; a record without releases answers no doubt."""
        if debits and self.spending is not None:
            self.epoch.follow(epoch, debits[0]["scope"], self.spending.terms.own)

    def _folded(
        self, sequence: int, journaled: Journaled | None, slices: Sequence[InputSlice]
    ) -> tuple[DecisionBatch, dict[str, Any]]:
        """Fold a batch, and say what the journal record that covers it holds."""
        covered = self._covered(slices)
        self._writing = sequence
        fold = self._batch(sequence, journaled)
        fold.run(covered)
        self._decoded.forget(self.read[self.contexts_topic, self.partition])
        inputs, releases = digest_records(self.key, covered), digest_outputs(self.key, fold.releases)
        head = head_fields(
            sequence, self.epoch.number, ranges_of(covered), inputs, releases, self.chain.schema_generation
        )
        return fold, {"head": head, **fold.fields()}

    def _covered(self, slices: Sequence[InputSlice]) -> list[InputSlice]:
        """One slice for every input in one order, empty ones included.

        A journal record so names the whole watermark: a reader without the key sees from the lows alone whether
        it continues what they have read.
        """
        given = {(part.topic, part.partition): part for part in slices}
        return [
            given.get(source, InputSlice(*source, low=position, high=position, records=()))
            for source, position in sorted(self.positions().items())
        ]
