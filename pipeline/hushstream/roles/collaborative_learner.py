"""The learner role of a collaborative system: decides by the shared model, joins rewards, passes rows on.

A user has no model of his own here: what he sees follows from the last published version, which is why his
decisions tell others nothing. When the settle time of a decision has passed in log time (or at a seal), its row
leaves: the features of the arm that was on screen, and its reward, 0 if none came. Whether and when it leaves
depends on what was shown alone, never on the reward.

Where the counter is trusted, rows go to it in clear; otherwise they enter each user's own counter in this role,
and noised sums are released from here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.memory import BoundedMap, Parking, PastDecision
from hushstream.privacy.keys import Key
from hushstream.roles import collaborative_state
from hushstream.roles.chain import Chain, Identity, digest_outputs, digest_records, head_fields, ranges_of
from hushstream.roles.collaborative_fold import ANSWERS, CollaborativeFold, Journaled, OpenRow
from hushstream.roles.collaborative_models import SharedParameters, cold_parameters
from hushstream.roles.intake import DecodedContexts, cut, decode_checked, ready_below
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
from hushstream.roles.outcomes import Refusal
from hushstream.roles.refusals import DeadLetters
from hushstream.systems.collaborative import CollaborativeSystem
from hushstream.systems.collaborative_moments import Moments
from hushstream.systems.collaborative_rows import short_enough


class CollaborativeLearnerMachine:
    """The learner of a collaborative system on one partition of contexts and clicks."""

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        config = system.config
        self.system = system
        self.partition = partition
        self.key = key
        identity = Identity("learner", config.deployment, system.digest, ("decisions", partition))
        self.chain = Chain(identity, key, "Decisions")
        self.letters = DeadLetters("edge", "learner", partition, key)
        self.reader = ModelReader(system, 0, "CollaborativeModel")
        self.shared: SharedParameters = cold_parameters(system)
        self.read: dict[TopicPartition, int] = {("contexts", partition): 0, ("clicks", partition): 0}
        self.open: dict[str, OpenRow] = {}
        self.due: deque[tuple[int, str]] = deque()
        """(log time of the decision, event id), oldest first, of every open row."""
        self.past: BoundedMap[PastDecision] = BoundedMap(config.feedback.remembered_events)
        self.parking = Parking(config.feedback.parked_clicks)
        self.now_ms = 0
        self.last_click_ms = 0
        self.settle_ms = round(config.settle_seconds * 1000)
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        self.leaf = 0
        """Releases made from here (where the noise is added at the edge)."""
        self.moments: Moments | None = None
        self.float_ties = 0
        self._decoded: DecodedContexts | None = None

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
        return (self.reader.topic,)

    def input_digest(self, slices: Sequence[InputSlice]) -> bytes:
        """See `Machine.input_digest`: over all inputs of a batch at once."""
        return digest_records(self.key, slices)

    def genesis(self, nonce: bytes) -> bytes:
        """See `Machine.genesis`."""
        return self.chain.genesis(nonce)

    def start(self, genesis: bytes) -> None:
        """See `Machine.start`."""
        self.chain.start(genesis)
        if self.system.config.release.trust == "edge":
            self.moments = self.open_moments()

    def open_moments(self) -> Moments:
        """Running sums of this partition's users, under noise of this journal."""
        noise_key = self.key.derive("local-counters")
        return self.system.moments(noise_key, self.chain.genesis_nonce, 0, self.partition)

    def entry(self, value: bytes) -> JournalEntry:
        """See `Machine.entry`."""
        return self.chain.read(value)[0]

    def positions(self) -> Mapping[TopicPartition, int]:
        """See `Machine.positions`."""
        return {**self.read, self.reader.topic: self.reader.position}

    def committed(self) -> Mapping[TopicPartition, int]:
        """See `Machine.committed`: nothing is remembered beyond the journal, so it equals the positions."""
        return dict(self.read)

    def recovery_ranges(self, value: bytes) -> tuple[InputRange, ...]:
        """See `Machine.recovery_ranges`."""
        return tuple(part for part in self.entry(value).inputs if part.high > part.low)

    def tick(self, idle_ms: int) -> Output | None:
        """See `Machine.tick`: the learner needs none."""
        return None

    def ready(self, slices: Sequence[InputSlice]) -> Sequence[InputSlice]:
        """See `Machine.ready`: contexts wait for the click that they name, and a fold has at most `MAX_ROWS`."""
        clicks = next((part for part in slices if part.topic == "clicks"), None)
        click_high = clicks.high if clicks else self.read["clicks", self.partition]
        parts = [self._ready_contexts(s, clicks, click_high) if s.topic == "contexts" else s for s in slices]
        return [part for part in parts if part.high > part.low]

    def _ready_contexts(self, part: InputSlice, clicks: InputSlice | None, click_high: int) -> InputSlice:
        columns = self.decode(part).columns
        latest = max(self.last_click_ms, clicks.records[-1].timestamp_ms if clicks and clicks.records else 0)
        high = ready_below(columns, part.high, click_high, latest)
        if high == part.high:
            return part
        self._decoded = None
        return cut(part, high)

    def decode(self, part: InputSlice) -> DecodedContexts:
        """A slice of contexts as columns; decoded once, though `ready` and `fold` both ask."""
        held = self._decoded
        if held is None or (held.low, held.high) != (part.low, part.high):
            arms, d = self.system.config.arms, self.system.features.dimension
            held = self._decoded = decode_checked(part, arms * d, arms, self._short, Refusal.TOO_LONG_FEATURES)
        return held

    def _short(self, contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
        arms, d = self.system.config.arms, self.system.features.dimension
        rows = short_enough(contexts.reshape(-1, d), self.system.features)
        return np.asarray(rows.reshape(-1, arms).all(axis=1))

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        covered = self._covered(slices)
        fold = self._run(CollaborativeFold(self, self.chain.sequence + 1), covered)
        journal = self.chain.append({**self._head(self.chain.sequence + 1, covered, fold), **fold.fields()})
        return [Step(journal, tuple(fold.releases), tuple(fold.dead), fold.counts)]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        arms, propensities = (np.frombuffer(fields[name], kind).tolist() for name, kind in ANSWERS)
        covered = self._covered(slices)
        fold = self._run(CollaborativeFold(self, self.chain.sequence, Journaled(arms, propensities)), covered)
        again = {**self._head(self.chain.sequence, covered, fold), **fold.fields()}
        for name in again:
            if again[name] != fields[name]:
                raise ReplayMismatch(
                    f"decisions/{self.partition} record {self.chain.sequence}: its inputs give another {name}"
                )
        return Step(None, tuple(fold.releases), tuple(fold.dead), fold.counts)

    def _covered(self, slices: Sequence[InputSlice]) -> list[InputSlice]:
        """One slice for every input in one order, empty ones included, so that a record names the whole watermark."""
        given = {(part.topic, part.partition): part for part in slices}
        return [
            given.get(source, InputSlice(*source, low=position, high=position, records=()))
            for source, position in sorted(self.positions().items())
        ]

    def _run(self, fold: CollaborativeFold, covered: Sequence[InputSlice]) -> CollaborativeFold:
        fold.run(covered)
        self._decoded = None
        return fold

    def _head(self, sequence: int, covered: Sequence[InputSlice], fold: CollaborativeFold) -> dict[str, Any]:
        inputs, releases = digest_records(self.key, covered), digest_outputs(self.key, fold.releases)
        return {"head": head_fields(sequence, 0, ranges_of(covered), inputs, releases)}

    # State on disk.

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return collaborative_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        collaborative_state.restore(self, snapshot)
