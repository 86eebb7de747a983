"""The part that all learners share: contexts and clicks of one partition, published models, a journal of decisions.

A learner folds a batch (`hushstream.engine.learner.batch`) as every answering role does
(`hushstream.engine.learner.answering`): `begin_decisions` takes the inputs, the learner goes through their items in its
own file, and `end_decisions` writes the journal record that covers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.catalogue import CatalogueItem, ItemRefused
from hushstream.engine.declare.conversation import DECISIONS
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import Identity
from hushstream.engine.journal.ownership import owner
from hushstream.engine.learner.answering import AnsweredBatch, AnsweringRole
from hushstream.engine.learner.arrivals import Arrivals, DecodedContexts
from hushstream.engine.learner.batch import Batch, Changed, FeedbackCursor, PublicCursor
from hushstream.engine.learner.items import until_next_change
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.epochs import EPOCH_FIELD, NoiseEpoch
from hushstream.engine.noise.spending import Spending
from hushstream.engine.records import Awaited, InputSlice, Step
from hushstream.engine.state.declared import FIXED, Field, Several, Single, integer, remembered
from hushstream.engine.state.parts import EARLY_FEEDBACK, PAST, array
from hushstream.engine.system import Core, DecidingValues
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
        """How much feedback waits."""

    def hold(self, click: FeedbackRow) -> object:
        """Let a click wait, if there is a place for it."""

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Take what waits for an event that has now been decided."""

    def clear(self) -> None:
        """Drop everything."""

    def forget(self, user: str) -> None:
        """Drop the feedback of one user."""

    def all(self) -> Iterable[FeedbackRow]:
        """Everything that waits, in an order in which `hold` gives the same state again."""


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


class DecisionRole(AnsweringRole):
    """The part of `Machine` that follows from contexts and clicks of one partition, and what a learner remembers.

    Attributes:
        system: the deployment.
        arms: how many arms there are.
        past: what was decided for the latest events.
        early: feedback that waits for its context.
        now_ms: the highest log time of a context or phase end so far; a lower one counts as this one.
        last_click_ms: log time of the youngest click folded.
        spending: what the releases of this role spend; None where it makes none.
        epoch: of the noise of what is released from here.
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
            remembered_events: how many past events are known again.
            decode: makes columns of a slice of contexts.
            party: whose topics these are, where each party of the deployment has its own.
        """
        topics = DECISIONS.of(party)
        assert topics.answers is not None
        identity = Identity.of(system, "learner", topics.answers, partition)
        inputs = (topics.asked, partition), (topics.told[0], partition)
        super().__init__(system, identity, "Decisions", inputs, models, of_party("edge", party), key)
        self.arms = system.config.arms
        self.past: BoundedMap[PastDecision] = BoundedMap(remembered_events)
        self.early = early
        self.now_ms = 0
        self.last_click_ms = 0
        self.epoch = NoiseEpoch()
        self._arrivals = Arrivals(*inputs, decode)

    # What a driver asks before it reads.

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

    def begin_decisions(self, slices: Sequence[InputSlice]) -> Batch:
        """The batch that these slices are; the next record of the journal covers it."""
        return self._ordered(self.begin(slices))

    def begin_decisions_again(self, value: bytes, slices: Sequence[InputSlice]) -> Batch:
        """The batch that a journal record covers: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        whole = self.begin_again(value, slices)
        assert whole.journaled is not None
        if whole.journaled["debits"] and self.spending is not None:
            # The record's first release opens an epoch if it did so then; a record without releases opens none.
            scope = whole.journaled["debits"][0]["scope"]
            self.epoch.follow(whole.journaled["head"]["epoch"], scope, self.spending.terms.own)
        return self._ordered(whole)

    def _ordered(self, whole: AnsweredBatch) -> Batch:
        contexts, clicks = (whole.slices[place] for place in self.inputs)
        models = [(reader, whole.slices[reader.topic]) for reader in self.models]
        items = None if self.items is None else (self.items, whole.slices[self.items.topic])
        parts = None if self.parts is None else (self.parts, whole.slices[self.parts.topic])
        pieces = self._arrivals.over(contexts) if contexts.records else ()
        return Batch(
            whole,
            pieces,
            (contexts, FeedbackCursor(clicks, self.last_click_ms), PublicCursor(models, items, parts)),
            (self.system.digest, self.arms),
        )

    def end_decisions(self, batch: Batch, policy: str) -> Step:
        """See `AnsweringRole.end`; ``policy`` is what the journal record says that chose."""
        self.last_click_ms = batch.clicks.latest_ms
        self.float_ties += batch.float_ties
        self._arrivals.forget(batch.contexts.high)
        return self.end(batch, batch.fields(self.now_ms, policy), self.epoch.number)

    # What a learner does with its inputs beside its own.

    def is_home_of(self, user: str) -> bool:
        """Whether a user's records belong here, by the rule that every writer follows.

        Elsewhere they would have a second allowance, and partitions would no longer hold different users.
        """
        return partition_of(user, self.system.config.partitions.learner) == self.partition

    def take_item(self, changed: Changed, batch: Batch) -> CatalogueItem | None:
        """Take a change of the catalogue, and say what became of its item; None of one that does not count.

        Nobody who asks again about an event of a row's last item is answered any more: the answer would name the item
        that has entered.
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
        """(K,) which of the arms that a context names (None: it names none) stand for items that are offered."""
        assert self.items is not None, "nothing is offered where items have no names"
        offered = self.items.catalogue.offered
        return offered if eligible is None else eligible & offered

    def forget_events(self, user: str) -> None:
        """Remove a user's name from all remembered events; the events themselves stay known."""
        for event_id, past in list(self.past.items()):
            if past.user == user:
                self.past.put(event_id, past._replace(user=NOBODY))
        self.early.forget(user)
