"""The part that all answering roles share. They read input logs and published models, and write answers to a journal.

One journal record covers one batch. `AnsweringRole` begins the batch from its inputs, lets the role `take` it, and ends
it: it writes the journal record, or in a replay compares it. The role goes through the inputs, notes outputs and counts
in the batch, and returns its answers.

A learner is an answering role that reads contexts and clicks of one partition, and answers with decisions.
`DecisionRole` merges its inputs and goes through them in order, and the system writes a policy: it decides runs of
contexts, learns from runs of feedback, adopts models, and closes users (`decide`, `learn`, `adopt`, `close`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import NOISE_EPOCH, Batch, BatchMachine, Releases
from hushstream.engine.catalogue import CatalogueItem, ItemRefused
from hushstream.engine.declare.declaration import DECISIONS
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity, Replayed, covered, digest_records, owner, record_of
from hushstream.engine.learner.arrivals import Arrivals, DecodedContexts
from hushstream.engine.learner.awaiting import EARLY, OpenRows, RowT
from hushstream.engine.learner.batch import (
    Changed,
    Clicks,
    Contexts,
    DecisionBatch,
    FeedbackCursor,
    PhaseEnd,
    PublicCursor,
    Published,
)
from hushstream.engine.learner.items import ItemReader, until_next_change
from hushstream.engine.learner.model_parts import ModelReader, PartReader
from hushstream.engine.noise.spending import SpendingTerms
from hushstream.engine.records import Awaited, InputSlice, Step, TopicPartition
from hushstream.engine.state.declared import (
    EARLY_FEEDBACK,
    FIXED,
    PAST,
    READER,
    Field,
    Several,
    Single,
    array,
    integer,
    remembered,
)
from hushstream.engine.system import Core, DecidingValues, DeploymentValues
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import FeedbackRow, PastDecision, PastDecisions, ShownEarlyFeedback
from hushstream.privacy.key_files import KeyRing
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import HARM, Reason
from hushstream.schemas.topics import of_party, partition_of

BatchT = TypeVar("BatchT", bound=Batch)

# Roles that answer.


def only_reader() -> Several:
    """State field: position in the one track of models that a role follows."""
    return Several(
        {"reader": READER},
        lambda role: {"reader": role.models[0].dump()},
        lambda role, values: role.models[0].load(values["reader"]),
    )


READING: Mapping[str, Field] = {
    "chain": owner(),
    "read": Single(
        array("long"), lambda read: list(read.values()), lambda value, read: dict(zip(read, value, strict=True))
    ),
}
"""State fields of a role that answers: its owner and its positions."""

ANSWERING: Mapping[str, Field] = {**READING, "models": only_reader()}
"""The same of a role that follows one track of models."""


class AnsweringRole(BatchMachine, Generic[BatchT]):
    """The methods of `Machine` that every answering role shares.

    Attributes:
        releases: key, epoch and budget of its releases; without terms it makes none with noise.
        models: readers of the tracks of published models.
        items: reader of the catalogue, where items have names.
        parts: reader of the parts of the first track's models, where a model is larger than a record.
        read: next offset of each input.
        float_ties: see `Abilities.float_ties`.
        batch_class: the class of its batches.
    """

    batch_class: type[BatchT]
    items: ItemReader | None = None
    parts: PartReader | None = None
    derived: ClassVar[Mapping[str, str]] = {
        "releases": "its parts that change are declared",
        "float_ties": "a count of this process alone",
    }
    releases: Releases

    def __init__(
        self,
        system: Core[DeploymentValues],
        identity: Identity,
        schema: str,
        inputs: tuple[TopicPartition, ...],
        models: Sequence[ModelReader],
        zone: str,
        key: Key,
        terms: SpendingTerms | None = None,
        ring: KeyRing | None = None,
    ) -> None:
        """Begin before the first record of the inputs; see `BatchMachine`.

        Args:
            system, identity, schema, inputs, zone: of the role.
            models: readers of the tracks of published models.
            key: of the zone.
            terms: prices and limit of its releases, if it makes any with noise.
            ring: content of the zone's key file, for key rotation.
        """
        super().__init__(system, identity, schema, inputs, zone, key)
        self.key = key
        self.releases = Releases(self.chain, self.letters, key, terms, ring)
        self.models = models
        self.read: dict[TopicPartition, int] = dict.fromkeys(inputs, 0)
        self.float_ties = 0

    @property
    def readers(self) -> Sequence[ModelReader]:
        return self.models

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: one digest over all inputs of a batch."""
        return digest_records(self.key, slices)

    def positions(self) -> Mapping[TopicPartition, int]:
        found = dict(self.read)
        for reader in (*self.models, self.parts, self.items):
            if reader is not None:
                found[reader.topic] = reader.position
        return found

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: no record waits."""
        return slices

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        batch = self.begin(slices)
        return [self.end(batch, self.take(batch))]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: the same batch again, compared with its journal record."""
        batch = self.begin(slices, value)
        return self.end(batch, self.take(batch))

    @abstractmethod
    def take(self, batch: BatchT) -> Mapping[str, Any]:
        """Go through the inputs of a batch; returns the fields of its journal record without the head."""

    def begin(self, slices: Sequence[InputSlice], value: bytes | None = None) -> BatchT:
        """Begin a batch without answers.

        After a `ReplayMismatch` the machine must be discarded, unless it reopens its journal.

        Args:
            slices: the new input.
            value: in a replay, the journal record that covers it; otherwise the next one will.

        Raises:
            OffChain: the record does not continue the chain.
        """
        positions, replayed = self.positions(), None
        parts = covered(positions, slices)
        digest = digest_records(self.key, parts.values())
        if value is not None:
            replayed = Replayed(self.chain, value, positions)
            self.follow(replayed.fields, digest)
        return self.batch_class(self, replayed, parts, digest)

    def follow(self, fields: Mapping[str, Any], input_digest: bytes) -> None:
        """Prepare for the journal record that is replayed, over inputs with this digest."""
        self.releases.follow(fields, fields.get("debits", ()))

    def end(self, batch: BatchT, answers: Mapping[str, Any]) -> Step:
        """Write the journal record of a batch, or compare it with the replayed one.

        Args:
            batch: the batch, after all its inputs were taken.
            answers: fields of the record without its head.

        Raises:
            ReplayMismatch: the inputs give another record.
        """
        self.read.update((place, batch.slices[place].high) for place in self.inputs)
        epoch, journal = self.releases.epoch.number, None
        record = record_of(self.chain, batch.slices.values(), batch.input_digest, answers, batch.outputs, epoch)
        if batch.replayed is None:
            journal = self.chain.append(record)
        else:
            batch.replayed.follow(record)
        return Step(journal, tuple(batch.outputs), tuple(batch.dead), batch.counts)


# Learners.


class Remembers(Protocol):
    """A memory of the latest decisions."""

    def get(self, event_id: str, /) -> PastDecision | None:
        """The decision for an event; None if it is not remembered."""

    def hide(self, which: Callable[[PastDecision], bool]) -> None:
        """Tell nobody the answers of some decisions any longer."""


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
    "epoch": NOISE_EPOCH,
}
"""Fields that the state of every learner has: its owner and its position in the logs."""

MEMORIES: Mapping[str, Field] = {
    "past": remembered(PAST, PastDecision),
    "early": Single(array(EARLY_FEEDBACK), _pack_early, _unpack_early, disk="parked"),
}
"""Fields that the state of every learner has: its memory of past events."""


class DecisionRole(AnsweringRole[DecisionBatch]):
    """What every learner does with contexts and clicks of one partition, and what it remembers of them.

    Attributes:
        system: the deployment.
        arms: how many arms there are.
        past: decisions for the latest events.
        early: feedback that waits for its context.
        now_ms: the highest log time of a context or phase end so far; a record with a lower one is treated as if it had
            this one.
        last_click_ms: log time of the youngest click folded.
        policy: name of its policy, for the journal record.
    """

    batch_class = DecisionBatch
    policy: str

    derived: ClassVar[Mapping[str, str]] = {
        "arms": FIXED,
        "_arrivals": "kept from `ready` to the fold of the same records, and found anew by the next `ready`",
    }
    system: Core[DecidingValues]

    def __init__(
        self,
        system: Core[DecidingValues],
        partition: int,
        key: Key,
        models: Sequence[ModelReader],
        early: HoldsEarlyFeedback,
        past: Remembers,
        decode: Callable[[InputSlice], DecodedContexts],
        terms: SpendingTerms | None = None,
        party: str = "",
    ) -> None:
        """Begin before the first record of the inputs.

        Args:
            system: the deployment.
            partition: of contexts and clicks.
            key: of the edge zone.
            models: readers of the tracks of published models, by track.
            early: where feedback waits for its context.
            past: remembers past decisions.
            decode: makes columns of a slice of contexts.
            terms: prices and limit of its releases, if it makes any with noise.
            party: the party whose topics these are, if each party of the deployment has its own.
        """
        topics = DECISIONS.of(party)
        assert topics.answers is not None
        identity = Identity.of(system, "learner", topics.answers, partition)
        inputs = (topics.requests, partition), (topics.feedback[0], partition)
        super().__init__(system, identity, "Decisions", inputs, models, of_party("edge", party), key, terms)
        self.arms = system.config.arms
        self.past = past
        self.early = early
        self.now_ms = 0
        self.last_click_ms = 0
        self._arrivals = Arrivals(*inputs, decode)

    # What a driver needs before it reads.

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

    def take(self, batch: DecisionBatch) -> Mapping[str, Any]:
        """Take all inputs in their order, and hand each run of them to the policy.

        In a replay, if two scores are nearly equal, the journaled arm counts.
        """
        contexts, clicks = (batch.slices[place] for place in self.inputs)
        pieces = self._arrivals.take(contexts)
        models = [(reader, batch.slices[reader.topic]) for reader in self.models]
        items = None if self.items is None else (self.items, batch.slices[self.items.topic])
        parts = None if self.parts is None else (self.parts, batch.slices[self.parts.topic])
        inputs = contexts, FeedbackCursor(clicks, self.last_click_ms), PublicCursor(models, items, parts)
        batch.merge(pieces, inputs, self.arms)
        for item in batch.in_order(self.now_ms):
            if isinstance(item, Contexts):
                self.decide(item, batch)
            elif isinstance(item, Clicks):
                self.learn(item, batch.clicks.part, batch)
            elif isinstance(item, Published):
                try:
                    self.adopt(item.reader.track, item.record.fields)
                    batch.counts[Outcome.MODEL_ADOPTED] += 1
                except HushstreamError:
                    batch.refuse_at(Refusal.MALFORMED_MODEL, item.part, item.record.offset)
            elif isinstance(item, Changed):
                self.change_item(item, batch)
            elif isinstance(item, PhaseEnd):
                self.advance(item.log_time_ms, batch)
                self.end_phase(item.phase, batch)
            else:
                self.advance(item.log_time_ms, batch)
                self.close(item.user, batch)
        self.last_click_ms = batch.clicks.latest_ms
        self.float_ties += batch.float_ties
        answers = batch.fields(self.now_ms, self.policy)
        self.finish(batch)
        return answers

    # The policy, which a system writes.

    @abstractmethod
    def decide(self, rows: Contexts, batch: DecisionBatch) -> None:
        """Answer a run of contexts, which have no click and no model between them; log time advances with them."""

    @abstractmethod
    def learn(self, rows: Clicks, part: InputSlice, batch: DecisionBatch) -> None:
        """Join a run of feedback to its decisions, or keep it until they come.

        Args:
            rows: the feedback, oldest first.
            part: its slice.
            batch: what is made of it.
        """

    @abstractmethod
    def adopt(self, track: str, fields: dict[str, Any]) -> None:
        """Use a published model from here on.

        Raises:
            HushstreamError: it is none of this deployment's; nothing has changed.
        """

    @abstractmethod
    def close(self, user: str, batch: DecisionBatch) -> None:
        """Delete what is kept of a user who is erased."""

    @abstractmethod
    def advance(self, now_ms: int, batch: DecisionBatch) -> None:
        """Move log time forward, if it is later than before, and send what falls due."""

    @abstractmethod
    def end_phase(self, phase: int, batch: DecisionBatch) -> None:
        """Send all that waits, and pass the phase end on."""

    def change_item(self, changed: Changed, batch: DecisionBatch) -> None:
        """Take a record of the catalogue's topic."""
        self.take_items(changed, batch)

    def finish(self, batch: DecisionBatch) -> None:
        """End a batch, after its last input."""

    # What a learner does with its inputs beside its own.

    def is_home_of(self, user: str) -> bool:
        """Whether this is the home partition of a user, by the hash that every writer uses.

        A user who was accepted in a second partition would have a second allowance there.
        """
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def take_items(self, changed: Changed, batch: DecisionBatch) -> Sequence[CatalogueItem]:
        """Apply a record of the catalogue's topic, and return the items after it; none if it does not count.

        A repeated request about an event of a row's previous item is no longer answered, because the answer would
        name the new item.
        """
        assert self.items is not None, "nobody reads changes where items have no names"
        catalogue, read, reason = self.items.catalogue, changed.read, changed.read.reason
        before = catalogue.entries
        found: Sequence[CatalogueItem] = ()
        if read.changes:
            try:
                found = catalogue.take_all(read.changes, changed.log_time_ms)
            except ItemRefused:
                reason = Refusal.ITEM_REFUSED
        if not found:
            batch.refuse_at(reason, changed.part, read.offset)
        moved = {catalogue.rules.arms[one.row] for one in found if before[one.row] not in (0, one.entered)}
        if moved:
            self.past.hide(lambda past: past.arm in moved)
        batch.counts[Outcome.ITEM_CHANGED] += len(found)
        return found

    def offered_among(self, eligible: NDArray[np.bool_] | None) -> NDArray[np.bool_]:
        """(K,) which of the arms that a context names (None for all arms) have an item that is offered."""
        assert self.items is not None, "nothing is offered where items have no names"
        offered = self.items.catalogue.offered
        return offered if eligible is None else eligible & offered

    def forget_events(self, user: str) -> None:
        """Remove a user's name from all remembered events; the events themselves stay known."""
        self.past.hide(lambda past: past.user == user)
        self.early.forget(user)


# Learners whose decisions wait for their reward.


class AwaitingRole(DecisionRole, Generic[RowT]):
    """A learner whose decisions wait for their reward, and then leave as rows.

    Attributes:
        open: the rows that wait.
    """

    open: OpenRows[RowT]
    early: ShownEarlyFeedback
    past: PastDecisions

    @abstractmethod
    def past_of(self, row: RowT) -> PastDecision:
        """What was decided for a row that waits."""

    @abstractmethod
    def user_refusal(self, user: str) -> Refusal | None:
        """Why records of a user are refused, if they are."""

    @abstractmethod
    def objection(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> Refusal | None:
        """Why a decodable context is refused, if it is."""

    @abstractmethod
    def answer(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> None:
        """Decide a context that is neither refused nor a repeat."""

    @abstractmethod
    def send(self, settled: Sequence[tuple[str, RowT]], batch: DecisionBatch) -> None:
        """Let settled rows leave, each with its event."""

    def bad_reward(self, click: FeedbackRow) -> str | None:
        """Why a reward is refused, if it is."""
        return None

    def decide(self, rows: Contexts, batch: DecisionBatch) -> None:
        decoded, times_ms = rows.decoded, rows.decoded.columns.timestamps_ms
        for row in rows.rows:
            if times_ms[row] > self.now_ms:
                self.advance(times_ms[row], batch)
            event_id = decoded.columns.event_ids[row]
            waiting = self.open.get(event_id)
            past = self.past.get(event_id) if waiting is None else self.past_of(waiting)
            reason = decoded.refused.get(row) or self.objection(decoded, row, batch)
            if not batch.turn_away(decoded, row, past, reason):
                self.answer(decoded, row, batch)

    def learn(self, rows: Clicks, part: InputSlice, batch: DecisionBatch) -> None:
        """Join feedback to its decisions, or store it until the decision comes."""
        for click in rows.rows:
            row, past = self.open.get(click.event_id), self.past.get(click.event_id)
            if click.kind == HARM:
                batch.refuse_at(Reason.UNKNOWN_KIND, part, click.offset, click.row)
            elif row is not None:
                self.open.join(row, click, part, batch, self.bad_reward(click))
            elif past is None:
                self._hold_early(click, part, batch)
            elif past.user != click.user:
                batch.refuse_at(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
            else:
                batch.too_late(click)

    def _hold_early(self, click: FeedbackRow, part: InputSlice, batch: DecisionBatch) -> None:
        """Store feedback until its context comes, if it is of a user of this partition."""
        unfit = self.user_refusal(click.user) or (Reason.UNKNOWN_ARM if click.arm >= self.arms else None)
        outcome = unfit or EARLY[self.early.hold(click)]
        if isinstance(outcome, (Outcome, JoinOutcome)):
            batch.counts[outcome] += 1
        else:
            batch.refuse_at(outcome, part, click.offset, click.row)

    def advance(self, now_ms: int, batch: DecisionBatch) -> None:
        """Send the rows that have settled."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
            self.send(self.open.settled(now_ms, batch), batch)

    def end_phase(self, phase: int, batch: DecisionBatch) -> None:
        """Send all rows."""
        self.send(self.open.all_settled(batch), batch)
