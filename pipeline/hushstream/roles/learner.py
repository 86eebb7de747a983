"""The learner role: many `EdgeAgent`s on a stream (edge zone).

Fold of one batch, in this order: models, then clicks, then contexts. The ranges of all of them, and what was
decided, go into one decisions record, which is at once the answer to the client and the journal. Slots
follow from it; their bytes are fixed by the fold and their digest is journaled before they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hushstream.edge.deadlines import Deadlines
from hushstream.feedback.memory import BoundedMap, ParkedClick, PastDecision
from hushstream.privacy.keys import Key
from hushstream.roles import learner_state
from hushstream.roles.chain import Chain, Identity, digest_outputs, digest_records, head_fields, ranges_of
from hushstream.roles.intake import DecodedContexts, cut, decode_contexts, ready_below
from hushstream.roles.learner_fold import Journaled, LearnerFold
from hushstream.roles.learner_parking import UserParking
from hushstream.roles.learner_users import Users, UserStore
from hushstream.roles.machine import (
    InputRange,
    InputSlice,
    JournalEntry,
    Output,
    ReplayMismatch,
    Step,
    TopicPartition,
)
from hushstream.roles.models import ModelReader
from hushstream.roles.refusals import DeadLetters
from hushstream.systems.lift import LiftCounter, in_holdout
from hushstream.systems.p2b import P2BSystem


class LearnerMachine:
    """The learner on one partition of contexts and clicks."""

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self._resident: int | None = None
        config = system.config
        self.system = system
        self.partition = partition
        self._key = key
        self.terms = system.edge_terms()
        identity = Identity("learner", config.deployment, system.digest, ("decisions", partition))
        self.chain = Chain(identity, key, "Decisions")
        self.letters = DeadLetters("edge", "learner", partition, key)
        self.models = [ModelReader(system, line) for line in range(system.line_count)]
        self.read: dict[TopicPartition, int] = {("contexts", partition): 0, ("clicks", partition): 0}
        self.agents = self.make_users(None)
        self.past: BoundedMap[PastDecision] = BoundedMap(config.feedback.remembered_events)
        self.parking = self.make_parking(())
        self.deadlines = Deadlines()
        self.due: deque[tuple[int, str]] = deque()
        """(log time of the decision by which it fell due, user) of every slot not yet taken."""
        self.now_ms = 0
        """The highest log time of a context or seal so far; a lower one counts as this one."""
        self.last_click_ms = 0
        self.settle_ms = round(config.slot.settle_seconds * 1000)
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, what has expired is looked for among those who do not come back."""
        self._decoded: DecodedContexts | None = None
        self.float_ties = 0
        self.lift: LiftCounter | None = None
        self.lift_ms = round(config.lift.every_seconds * 1000)

    def keep_users(self, store: UserStore, resident: int) -> None:
        """See `KeepsUsers.keep_users`."""
        self._resident = resident
        self.agents = self.make_users(store)

    def make_users(self, store: UserStore | None) -> Users:
        """Users over a store, none of them in memory."""
        return Users(self.terms, self._key, store, self._resident)

    def make_parking(self, clicks: Iterable[ParkedClick]) -> UserParking:
        """A parking with these clicks in it."""
        config = self.system.config
        return UserParking(config.feedback.parked_clicks, config.users.parked_clicks, clicks)

    # What a driver asks before it reads.

    @property
    def journal(self) -> TopicPartition:
        """See `Machine.journal`."""
        return ("decisions", self.partition)

    @property
    def inputs(self) -> tuple[TopicPartition, ...]:
        """See `Machine.inputs`."""
        return (("contexts", self.partition), ("clicks", self.partition))

    @property
    def broadcasts(self) -> tuple[TopicPartition, ...]:
        """See `Machine.broadcasts`."""
        return tuple(reader.topic for reader in self.models)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self._key, slices)

    def genesis(self, nonce: bytes) -> bytes:
        """See `Machine.genesis`."""
        return self.chain.genesis(nonce)

    def start(self, genesis: bytes) -> None:
        """See `Machine.start`."""
        self.chain.start(genesis)
        self.lift = self.open_lift()

    def open_lift(self) -> LiftCounter | None:
        """The lift's counter under noise of this journal; None where there is no hold-out."""
        config = self.system.config
        if not config.lift.holdout:
            return None
        address = self.system.lift_address(self.chain.genesis_nonce, self.partition)
        return LiftCounter(config.lift, config.release.levels, self._key.derive("lift"), address)

    def in_holdout(self, user: str) -> bool:
        """Whether a user is never answered by a model."""
        return self.lift is not None and in_holdout(self.agents.user_key(user), self.system.config.lift)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        return self._key.digest("lift-id", self.chain.genesis_nonce, place)

    @property
    def reproducible(self) -> bool:
        """Whether the key is seeded: nothing under it is private."""
        return self._key.reproducible

    def entry(self, value: bytes) -> JournalEntry:
        """See `Machine.entry`."""
        return self.chain.read(value)[0]

    def positions(self) -> Mapping[TopicPartition, int]:
        """See `Machine.positions`."""
        return {**self.read, **{reader.topic: reader.position for reader in self.models}}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: nothing is remembered beyond the journal, so it equals the positions."""
        return dict(self.read)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`."""
        return tuple(part for part in self.entry(value).inputs if part.high > part.low)

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: the learner needs none."""
        return None

    # Which part of what arrived may be folded.

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: contexts wait for the click that they name, and a fold has at most `MAX_ROWS`."""
        clicks = _slice(slices, "clicks")
        click_high = clicks.high if clicks else self.read["clicks", self.partition]
        cut_slices = (self._ready_contexts(s, clicks, click_high) if s.topic == "contexts" else s for s in slices)
        return [part for part in cut_slices if part.high > part.low]

    def _ready_contexts(self, part: InputSlice, clicks: InputSlice | None, click_high: int) -> InputSlice:
        columns = self.decode(part).columns
        latest = max(self.last_click_ms, clicks.records[-1].timestamp_ms if clicks and clicks.records else 0)
        high = ready_below(columns, part.high, click_high, latest)
        if high == part.high:
            return part
        self._decoded = None
        return cut(part, high)

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        covered = self._covered(slices)
        fold = self._run(LearnerFold(self), covered)
        journal = self.chain.append({**self._head(self.chain.sequence + 1, covered, fold), **fold.fields()})
        return [Step(journal, tuple(fold.releases), tuple(fold.dead), fold.counts)]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        arms, propensities = (np.frombuffer(fields[name], kind).tolist() for name, kind in _ANSWERS)
        covered = self._covered(slices)
        fold = self._run(LearnerFold(self, Journaled(arms, propensities)), covered)
        again = {**self._head(self.chain.sequence, covered, fold), **fold.fields()}
        for name in again:
            if again[name] != fields[name]:
                raise ReplayMismatch(
                    f"decisions/{self.partition} record {self.chain.sequence}: its inputs give another {name}"
                )
        return Step(None, tuple(fold.releases), tuple(fold.dead), fold.counts)

    def _covered(self, slices: Sequence[InputSlice]) -> list[InputSlice]:
        """One slice for every input in one order, empty ones included.

        A journal record so names the whole watermark: a reader without the key sees from the lows alone whether
        it continues what he has read.
        """
        given = {(part.topic, part.partition): part for part in slices}
        return [
            given.get(source, InputSlice(*source, low=position, high=position, records=()))
            for source, position in sorted(self.positions().items())
        ]

    def _run(self, fold: LearnerFold, covered: Sequence[InputSlice]) -> LearnerFold:
        fold.run(covered)
        self._decoded = None
        self.agents.rest()
        return fold

    def _head(self, sequence: int, covered: Sequence[InputSlice], fold: LearnerFold) -> dict[str, Any]:
        inputs, releases = digest_records(self._key, covered), digest_outputs(self._key, fold.releases)
        return {"head": head_fields(sequence, 0, ranges_of(covered), inputs, releases)}

    def settled(self, due_ms: int, now_ms: int) -> bool:
        """Whether a slot that fell due at ``due_ms`` of log time leaves at ``now_ms``.

        Log time is cut into spans as long as a slot must settle, and whoever fell due in one span leaves when the next
        but one begins: together, in keyed order. A slot that left for itself would tell by its time whose it is.
        """
        span_ms = self.settle_ms
        return now_ms >= due_ms if not span_ms else now_ms // span_ms >= due_ms // span_ms + 2

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self.agents.user_key(user)

    # State on disk.

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return learner_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        learner_state.restore(self, snapshot)

    def decode(self, part: InputSlice) -> DecodedContexts:
        """A slice of contexts as columns; decoded once, though `ready` and `fold` both ask."""
        held = self._decoded
        if held is None or (held.low, held.high) != (part.low, part.high):
            config = self.system.config
            held = self._decoded = decode_contexts(part, config.context.dimension, config.arms)
        return held


_ANSWERS = (("arms", "<i4"), ("propensities", "<u4"))


def _slice(slices: Sequence[InputSlice], topic: str) -> InputSlice | None:
    return next((part for part in slices if part.topic == topic), None)
