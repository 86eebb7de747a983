"""The learner role: many `EdgeAgent`s on a stream (edge zone).

Fold of one batch, in this order: models, then clicks, then contexts. The ranges of all of them, and what was
decided, go into one decisions record, which is at once the answer to the client and the journal. Slots
follow from it; their bytes are fixed by the fold and their digest is journaled before they are sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushstream.edge.agent import EdgeAgent, Slot
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import BoundedMap, ParkedClick, Parking
from hushstream.privacy.keys import Key
from hushstream.roles import learner_state
from hushstream.roles.chain import Chain, Identity, digest_outputs, digest_records, head_fields, ranges_of
from hushstream.roles.intake import MAX_ROWS, DecodedContexts, cut, decode_contexts, eligible_mask
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
from hushstream.roles.outcomes import Outcome, Refusal
from hushstream.roles.refusals import DeadLetters
from hushstream.schemas import codec
from hushstream.schemas.columns import REWARD, FeedbackColumns, SealMark, gather_feedback
from hushstream.schemas.reasons import Reason
from hushstream.systems.p2b import LINES, P2BSystem

CLICK_CLOCK_MARGIN_MS = 30_000
"""A context names a click that was acknowledged before it was sent. When clicks this much younger than the
context have arrived and that one has not, no such click exists; the margin covers clocks of two brokers."""

FLOAT_TIE_MARGIN = 1e-4
"""On replay a journaled arm may differ from the recomputed one only if their scores are this close (another
CPU's rounding); it is counted. Anything more is a change."""

_MODEL, _REPEATED = 0, 2


@dataclass(slots=True)
class _Fold:
    """What one fold gathers."""

    event_ids: list[str] = field(default_factory=list)
    arms: list[int] = field(default_factory=list)
    propensities: list[int] = field(default_factory=list)
    policies: bytearray = field(default_factory=bytearray)
    versions: list[int] = field(default_factory=list)
    slots: int = 0
    releases: list[Output] = field(default_factory=list)
    dead: list[Output] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    journaled: Sequence[int] | None = None
    """On replay: the arms that the journal says."""


class LearnerMachine:
    """The learner on one partition of contexts and clicks."""

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        config = system.config
        self.system = system
        self.partition = partition
        self._key = key
        self.terms = system.edge_terms()
        identity = Identity("learner", config.deployment, system.digest, ("decisions", partition))
        self.chain = Chain(identity, key, "Decisions")
        self._letters = DeadLetters("edge", "learner", partition, key)
        self.models = [ModelReader(system, line) for line in range(system.line_count)]
        self.read: dict[TopicPartition, int] = {("contexts", partition): 0, ("clicks", partition): 0}
        self.agents: dict[str, EdgeAgent] = {}
        self.past: BoundedMap[tuple[str, int, int, int]] = BoundedMap(config.feedback.remembered_events)
        self.late: BoundedMap[None] = BoundedMap(config.feedback.remembered_events)
        self.parking = Parking(config.feedback.parked_clicks)
        self.deadlines: deque[tuple[int, EdgeAgent, str]] = deque()
        self.due: deque[tuple[int, str]] = deque()
        self.now_ms = 0
        self.last_click_ms = 0
        self._decoded: DecodedContexts | None = None
        self.float_ties = 0

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

    def genesis(self, nonce: bytes) -> bytes:
        """See `Machine.genesis`."""
        return self.chain.genesis(nonce)

    def start(self, genesis: bytes) -> None:
        """See `Machine.start`."""
        self.chain.start(genesis)

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
        return self.entry(value).inputs

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
        decoded = self._decode(part)
        columns = decoded.columns
        latest = max(self.last_click_ms, clicks.records[-1].timestamp_ms if clicks and clicks.records else 0)
        high = part.high
        for row, after in enumerate(columns.after_clicks):
            if after >= click_high and columns.timestamps_ms[row] + CLICK_CLOCK_MARGIN_MS >= latest:
                high = columns.offsets[row]
                break
        for mark in columns.seals:
            if mark.after_click >= click_high and mark.offset < high:
                high = mark.offset
        if len(columns.event_ids) > MAX_ROWS and columns.offsets[MAX_ROWS] < high:
            high = max(columns.offsets[MAX_ROWS], columns.offsets[0] + 1)
        if high == part.high:
            return part
        self._decoded = None
        return cut(part, high)

    # The fold.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        fold = self._fold(slices, _Fold())
        head = self._head(slices, fold)
        return [
            Step(
                self.chain.append(self._fields(head, fold)),
                tuple(fold.releases),
                tuple(fold.dead),
                fold.counts,
            )
        ]

    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay`: where scores are as good as equal, the journaled arm stands.

        After a `ReplayMismatch` the machine must be thrown away.
        """
        fields = self.chain.accept(value, self.positions())
        fold = self._fold(slices, _Fold(journaled=np.frombuffer(fields["arms"], "<i4").tolist()))
        head = {**self._head(slices, fold), "sequence": self.chain.sequence}
        again = self._fields(head, fold)
        for name in again:
            if name not in ("propensities",) and again[name] != fields[name]:
                raise ReplayMismatch(
                    f"decisions/{self.partition} record {self.chain.sequence}: its inputs give another {name}"
                )
        return Step(None, tuple(fold.releases), tuple(fold.dead), fold.counts)

    def _head(self, slices: Sequence[InputSlice], fold: _Fold) -> dict[str, Any]:
        return head_fields(
            self.chain.sequence + 1,
            0,
            ranges_of(slices),
            digest_records(self._key, slices),
            digest_outputs(self._key, fold.releases),
        )

    def _fields(self, head: dict[str, Any], fold: _Fold) -> dict[str, Any]:
        return {
            "head": head,
            "log_time_ms": self.now_ms,
            "event_ids": fold.event_ids,
            "arms": np.array(fold.arms, "<i4").tobytes(),
            "propensities": np.array(fold.propensities, "<u4").tobytes(),
            "policy": "linucb",
            "policies": bytes(fold.policies),
            "model_versions": np.array(fold.versions, "<i4").tobytes(),
            "slots": fold.slots,
        }

    def _fold(self, slices: Sequence[InputSlice], fold: _Fold) -> _Fold:
        for part in slices:
            if part.topic == "models":
                self._adopt_models(part, fold)
        clicks = _slice(slices, "clicks")
        if clicks is not None:
            self._join(clicks, fold)
            self.read["clicks", self.partition] = clicks.high
        contexts = _slice(slices, "contexts")
        if contexts is not None:
            self._decide_slice(contexts, fold)
            self.read["contexts", self.partition] = contexts.high
        self._decoded = None
        return fold

    def _adopt_models(self, part: InputSlice, fold: _Fold) -> None:
        reader = self.models[part.partition]
        for model in reader.read(part):
            self.terms.policy.adopt(reader.line, model.version, model.gram, model.moment)
            fold.counts[Outcome.MODEL_ADOPTED] += 1

    # Clicks.

    def _join(self, part: InputSlice, fold: _Fold) -> None:
        columns = gather_feedback(part.records)
        for reject in columns.rejects:
            self._refuse(fold, reject.reason, part, reject.offset, reject.row)
        if part.records:
            self.last_click_ms = max(self.last_click_ms, part.records[-1].timestamp_ms)
        for row in range(len(columns.event_ids)):
            self._feed(_click(columns, row), part, fold)

    def _feed(self, click: ParkedClick, part: InputSlice, fold: _Fold) -> None:
        agent = self.agents.get(click.user)
        if agent is not None and click.event_id in agent.open:
            self._apply(agent, click, fold)
            return
        past = self.past.get(click.event_id)
        if past is None:
            fold.counts[Outcome.PARKED] += 1
            for evicted in self.parking.park(click):
                self._refuse(fold, Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)
        elif past[0] != click.user:
            self._refuse(fold, Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        elif click.event_id in self.late and click.rewarded:
            fold.counts[JoinOutcome.LATE_REWARD] += 1
        else:
            fold.counts[JoinOutcome.REPEATED_FEEDBACK] += 1

    def _apply(self, agent: EdgeAgent, click: ParkedClick, fold: _Fold) -> None:
        if click.arm >= self.system.config.arms:
            part = InputSlice("clicks", self.partition, 0, 0, ())
            self._refuse(fold, Reason.UNKNOWN_ARM, part, click.offset, click.row)
        elif click.rewarded:
            fold.counts[agent.rewarded(click.event_id, click.arm, click.reward)] += 1
        else:
            fold.counts[agent.shown(click.event_id, click.arm)] += 1

    # Contexts.

    def _decide_slice(self, part: InputSlice, fold: _Fold) -> None:
        decoded = self._decode(part)
        columns = decoded.columns
        for reject in columns.rejects:
            self._refuse(fold, reject.reason, part, reject.offset, reject.row)
        done = 0
        for mark in columns.seals:
            self._decide_rows(decoded, done, mark.position, part, fold)
            done = mark.position
            self._seal(mark, fold)
        self._decide_rows(decoded, done, len(columns.event_ids), part, fold)
        self._send_slots(self._settled(), fold)

    def _decide_rows(self, decoded: DecodedContexts, first: int, last: int, part: InputSlice, fold: _Fold) -> None:
        columns = decoded.columns
        if last > first:
            self._expire(columns.timestamps_ms[first], fold)
        refused = decoded.refused
        for row in range(first, last):
            reason = refused.get(row) if refused else None
            past = self.past.get(columns.event_ids[row])
            if reason is not None:
                self._refuse(fold, reason, part, columns.offsets[row], columns.rows[row])
            elif past is not None:
                self._repeat(past, columns.event_ids[row], columns.users[row], part, row, decoded, fold)
            else:
                self._decide(decoded, row, part, fold)
        if last > first:
            self.now_ms = max(self.now_ms, max(columns.timestamps_ms[first:last]))

    def _decide(self, decoded: DecodedContexts, row: int, part: InputSlice, fold: _Fold) -> None:
        columns = decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        agent = self.agents.get(user)
        mask = None
        if agent is None or columns.eligible[row] or columns.baselines[row] >= 0 or columns.after_clicks[row] >= 0:
            reason = self._objection(decoded, row, agent)
            if reason is not None:
                self._refuse(fold, reason, part, columns.offsets[row], columns.rows[row])
                return
            if columns.eligible[row]:
                mask = eligible_mask(columns.eligible[row], self.system.config.arms)
            if agent is None:
                agent = EdgeAgent(self.terms, self.user_key(user), columns.lines[row])
                self.agents[user] = agent
        log_time_ms = columns.timestamps_ms[row]
        choice = agent.decide(event_id, columns.contexts[row].copy(), log_time_ms, mask)
        arm = choice.arm
        if fold.journaled is not None:
            arm = self._as_journaled(agent, event_id, arm, fold)
        self.past.put(event_id, (user, arm, choice.propensity, choice.model_version))
        self.deadlines.append((log_time_ms + self.terms.reward_wait_ms, agent, event_id))
        if choice.slot_due:
            self.due.append((log_time_ms, user))
        self._answer(fold, event_id, arm, choice.propensity, _MODEL, choice.model_version)
        fold.counts[Outcome.DECIDED] += 1
        if self.parking:
            for click in self.parking.claim(event_id):
                self._feed(click, InputSlice("clicks", self.partition, 0, 0, ()), fold)

    def _objection(self, decoded: DecodedContexts, row: int, agent: EdgeAgent | None) -> Refusal | None:
        """Why a decodable context must not be decided, if it must not."""
        columns = decoded.columns
        if columns.after_clicks[row] >= self.read["clicks", self.partition]:
            return Refusal.AFTER_CLICK_UNREACHABLE
        if agent is None and columns.lines[row] not in self.system.lines_for_users:
            return Refusal.LINE_NOT_ALLOWED if columns.lines[row] in LINES else Refusal.UNKNOWN_LINE
        mask = columns.eligible[row]
        if mask:
            baseline = columns.baselines[row]
            if baseline >= 0 and not eligible_mask(mask, self.system.config.arms)[baseline]:
                return Refusal.BASELINE_NOT_ELIGIBLE
        return None

    def _as_journaled(self, agent: EdgeAgent, event_id: str, arm: int, fold: _Fold) -> int:
        """The arm that the journal holds for the next row, if the scores allow it."""
        assert fold.journaled is not None
        row = len(fold.arms)
        if row >= len(fold.journaled):
            raise ReplayMismatch(f"decisions/{self.partition}: the inputs hold more contexts than the record decided")
        journaled = fold.journaled[row]
        if journaled == arm:
            return arm
        if not 0 <= journaled < self.system.config.arms or agent.shortfall(event_id, journaled) > FLOAT_TIE_MARGIN:
            raise ReplayMismatch(
                f"decisions/{self.partition}: the inputs give another arm at row {row}, beyond a float tie"
            )
        agent.correct(event_id, journaled)
        self.float_ties += 1
        return journaled

    def _repeat(
        self,
        past: tuple[str, int, int, int],
        event_id: str,
        user: str,
        part: InputSlice,
        row: int,
        decoded: DecodedContexts,
        fold: _Fold,
    ) -> None:
        if past[0] != user:
            columns = decoded.columns
            self._refuse(fold, Refusal.EVENT_OF_ANOTHER_USER, part, columns.offsets[row], columns.rows[row])
            return
        self._answer(fold, event_id, past[1], past[2], _REPEATED, past[3])
        fold.counts[Outcome.REPEATED_CONTEXT] += 1

    def _answer(self, fold: _Fold, event_id: str, arm: int, propensity: int, policy: int, version: int) -> None:
        fold.event_ids.append(event_id)
        fold.arms.append(arm)
        fold.propensities.append(propensity)
        fold.policies.append(policy)
        fold.versions.append(version)

    def _expire(self, now_ms: int, fold: _Fold) -> None:
        deadlines = self.deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, agent, event_id = deadlines.popleft()
            if event_id in agent.open:
                outcome = agent.expire(event_id)
                fold.counts[outcome] += 1
                if outcome is JoinOutcome.EXPIRED_AS_ZERO:
                    self.late.put(event_id, None)

    # Slots.

    def _settled(self) -> list[str]:
        users = []
        horizon = self.now_ms - round(self.system.config.slot.settle_seconds * 1000)
        while self.due and self.due[0][0] <= horizon:
            users.append(self.due.popleft()[1])
        return users

    def _seal(self, mark: SealMark, fold: _Fold) -> None:
        users = [user for _, user in self.due]
        self.due.clear()
        self._send_slots(users, fold, mark.phase)
        fields = {
            "phase": mark.phase,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        value = codec.encode("Seal", fields)
        for shuffler in range(self.system.config.partitions.shuffler):
            fold.releases.append(Output("reports", shuffler, value))
        if self.system.config.public_dataset:
            fold.releases.append(Output("interactions", LINES.index("nonprivate"), value))
        fold.counts[Outcome.SEAL] += 1

    def _send_slots(self, users: Sequence[str], fold: _Fold, phase: int = 0) -> None:
        """Send the slots of ``users`` in the order of their ids, which is keyed: it tells nothing of who came first."""
        if not users:
            return
        slots = sorted((self.agents[user].take_slot() for user in users), key=lambda slot: slot.report_id)
        period = (self.now_ms // round(self.system.config.slot.period_seconds * 1000)).to_bytes(8, "little")
        for slot in slots:
            fields = {
                "report_id": slot.report_id,
                "period": period,
                "config_digest": self.system.digest,
                "content": slot.content,
            }
            shuffler = int.from_bytes(slot.report_id[:8], "little") % self.system.config.partitions.shuffler
            fold.releases.append(Output("reports", shuffler, codec.encode("SlotReport", fields)))
        if self.system.config.public_dataset:
            self._send_interactions(slots, fold, phase)
        fold.slots += len(slots)
        fold.counts[Outcome.SLOT] += len(slots)

    def _send_interactions(self, slots: Sequence[Slot], fold: _Fold, phase: int) -> None:
        """The same interactions in clear, for the non-private arm of an experiment on public data."""
        known = [slot.interaction for slot in slots if slot.interaction is not None]
        if not known:
            return
        fields = {
            "phase": phase,
            "dimension": self.system.config.context.dimension,
            "contexts": np.array([i.context for i in known], "<f4").tobytes(),
            "arms": np.array([i.arm for i in known], "<i4").tobytes(),
            "rewards": np.array([i.reward for i in known], "<f8").tobytes(),
        }
        fold.releases.append(Output("interactions", LINES.index("nonprivate"), codec.encode("Interactions", fields)))

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self._key.derive("user", user)

    # State on disk.

    def snapshot(self) -> bytes:
        """See `Machine.snapshot`."""
        return learner_state.dump(self)

    def restore(self, snapshot: bytes) -> None:
        """See `Machine.restore`."""
        learner_state.restore(self, snapshot)

    def _decode(self, part: InputSlice) -> DecodedContexts:
        held = self._decoded
        if held is None or (held.low, held.high) != (part.low, part.high):
            config = self.system.config
            held = self._decoded = decode_contexts(part, config.context.dimension, config.arms)
        return held

    def _refuse(self, fold: _Fold, reason: str, part: InputSlice, offset: int, row: int) -> None:
        value = next((record.value for record in part.records if record.offset == offset), b"")
        fold.dead.append(self._letters.letter(reason, part.topic, self.partition, offset, row, value))
        fold.counts[Outcome.REJECTED] += 1


def _slice(slices: Sequence[InputSlice], topic: str) -> InputSlice | None:
    return next((part for part in slices if part.topic == topic), None)


def _click(columns: FeedbackColumns, row: int) -> ParkedClick:
    return ParkedClick(
        columns.kinds[row] == REWARD,
        columns.event_ids[row],
        columns.users[row],
        columns.arms[row],
        columns.rewards[row],
        columns.offsets[row],
        columns.rows[row],
    )
