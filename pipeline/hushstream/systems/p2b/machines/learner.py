"""The learner role (edge zone): runs many `EdgeAgent`s on a stream.

A batch is folded record by record, in order (`LearnerMachine._take`): clicks are joined to decisions, models are
adopted, contexts are answered, and slots that have settled are sent. The decisions go into one record, which is both
the answer to the client and the journal. The fold fixes the bytes of slots, and their digest is journaled before they
are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.deciding import DECIDING, MEMORIES, DecisionRole
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import in_its_generation
from hushstream.engine.learner.arrivals import DecodedContexts, decode_checked
from hushstream.engine.learner.batch import (
    CERTAIN,
    MODEL,
    NEVER_MS,
    PUBLIC,
    Batch,
    Changed,
    Clicks,
    Contexts,
    Forget,
    PhaseEnd,
    Published,
    eligible_mask,
    has_settled,
)
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import PartReader
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.spending import SPENDING, Spending
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.state.declared import FIXED, Several, Single, State, after, optional_record, own_part
from hushstream.engine.state.packed import finished
from hushstream.engine.state.parts import READER, array, record
from hushstream.engine.state.spilled import MemoryUserStore, StoredUser, UserStore
from hushstream.feedback.join import JoinOutcome, OpenDecision
from hushstream.feedback.memory import FeedbackRow, PastDecision, UserEarlyFeedback
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.schemas.columns import ContextColumns
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.feature_policy import FeaturePolicy
from hushstream.systems.p2b.edge.policy import UNSCORED, LearnerState, SharedPolicy
from hushstream.systems.p2b.edge.user_records import unpack_agent
from hushstream.systems.p2b.edge.users import Deadlines, Users, UsersCut
from hushstream.systems.p2b.guarantee.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.lift import (
    LiftCounter,
    LiftStep,
    counted_lift,
    holdout_arm,
    in_holdout,
    lift_debit,
    lift_user,
    required_lift,
)
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.machines.sending import TakenSlot, item_rows_outputs, phase_end_outputs, slot_outputs

POLICY = "linucb"
"""The policy's name in the journal record."""

_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")


class _UsersField:
    """The users: those in the store, those in memory, and those whose decisions wait."""

    saved = True

    def schema(self, name: str) -> Mapping[str, Any]:
        """See `Field.schema`."""
        return {
            "warm": array(record("Warm", user="string", value="bytes")),
            "resting": array(record("Resting", key="bytes", seen_ms="long", value="bytes")),
        }

    def dump(self, role: LearnerMachine, name: str) -> Mapping[str, Any]:
        """See `Field.dump`."""
        return finished(self.portions(role, name))

    def portions(self, role: LearnerMachine, name: str) -> Generator[None, None, Mapping[str, Any]]:
        """See `InPortions.portions`: the first step copies everything that is small or can be copied as one block."""
        users = role.agents
        cut = users.cut()
        resting = [stored._asdict() for stored in users.dump()]
        try:
            yield
            yield from cut.write()
        finally:
            users.end_cut(cut)
        return {"warm": _warm(cut), "resting": resting}

    def load(self, role: LearnerMachine, name: str, values: Mapping[str, Any]) -> None:
        """See `Field.load`."""
        store = role.agents.store
        spilled = [StoredUser(**item) for item in values["resting"]]
        role.agents = users = role.make_users(store if store.durable else MemoryUserStore(spilled))
        if store.durable:
            users.owe(spilled)
        for item in values["warm"]:
            if not item["value"]:
                users.get(item["user"])
                continue
            fields = unpack_agent(item["value"])
            if fields is None:
                raise HushstreamError("snapshot: expected a user's state, got what stays of one")
            users.adopt(item["user"], EdgeAgent.load(role.terms, users.user_key(item["user"]), fields))


def _warm(cut: UsersCut) -> Iterator[dict[str, Any]]:
    """The warm users of a snapshot: those that the store had no room for, with their states.

    Of the others, those whose decisions wait are in it by name alone.
    """
    names = {user for user, _ in cut.kept}
    yield from ({"user": user, "value": value} for user, value in cut.kept)
    # They must be in memory after a restart, because their deadlines are.
    yield from ({"user": user, "value": b""} for user in cut.waiting if user not in names)


def _pack_due(due: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    return ({"due_ms": due_ms, "user": user} for due_ms, user in list(due))


def _unpack_due(value: Iterable[dict[str, Any]], before: object) -> deque[tuple[int, str]]:
    return deque((item["due_ms"], item["user"]) for item in value)


def _pack_lift(role: LearnerMachine) -> Mapping[str, Any]:
    return {"lift": b"" if role.lift is None else role.lift.dump()}


def _unpack_lift(role: LearnerMachine, values: Mapping[str, Any]) -> None:
    role.lift = role.open_lift()
    if role.lift is not None:
        role.lift.load(values["lift"])


def _pack_readers(models: Sequence[ModelReader]) -> list[dict[str, Any]]:
    return [reader.dump() for reader in models]


def _unpack_readers(value: Sequence[dict[str, Any]], models: Sequence[ModelReader]) -> Sequence[ModelReader]:
    for reader, place in zip(models, value, strict=True):
        reader.load(place)
    return models


_NUMBERED = State(
    "a learner's state",
    8,
    "LearnerState",
    DECIDING,
    models=Single(array(READER), _pack_readers, _unpack_readers, disk="readers"),
    terms=Several(
        {"shared": array(_SHARED)},
        lambda role: {"shared": role.terms.policy.dump_models()},
        lambda role, values: role.terms.policy.restore_models(values["shared"]),
    ),
    agents=_UsersField(),
    due=Single(array(record("Due", due_ms="long", user="string")), _pack_due, _unpack_due),
    deadlines=after("_find_deadlines"),
    **MEMORIES,
    lift=Several({"lift": "bytes"}, _pack_lift, _unpack_lift),
    spending=optional_record(SPENDING),
)
"""The state if items are numbers."""

_NAMED = State("a learner's state with a catalogue", 1, "NamedLearnerState", _NUMBERED.fields, items=own_part())
"""The state if items have names."""

_NUMBERED_IN_PARTS = State(
    "a learner's state with models in parts", 1, "PartedLearnerState", _NUMBERED.fields, parts=own_part()
)
_NAMED_IN_PARTS = State(
    "a learner's state with a catalogue and models in parts",
    1,
    "PartedNamedLearnerState",
    _NAMED.fields,
    parts=own_part(),
)
"""The states if a model is larger than a record."""


class LearnerMachine(DecisionRole):
    """The learner on one partition of contexts and clicks."""

    state = _NAMED_IN_PARTS
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("state", "settle_ms", "period_ms", "expire_ms", "sweep_ms", "lift_ms"), FIXED),
        "_resident": "the worker's choice: how many users lie in memory",
    }

    system: P2BSystem
    early: UserEarlyFeedback

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self._resident: int | None = None
        config = system.config
        super().__init__(
            system,
            partition,
            key,
            [
                ModelReader(system, track, TRACKS[track], system.form.model_record)
                for track in range(system.track_count)
            ],
            UserEarlyFeedback(config.feedback.early_feedback, config.users.early_feedback),
            config.feedback.remembered_events,
            partial(decode_checked, rules=system.requests),
        )
        self.settle_ms = round(config.slot.settle_seconds * 1000)
        self.due: deque[tuple[int, str]] = deque()
        """(log time of the last decision, user) of each slot that waits until it has settled, oldest first."""
        self.terms = system.edge_terms()
        self.agents = self.make_users(None)
        self.deadlines = Deadlines()
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, all users are searched for expired states."""
        self.lift: LiftCounter | None = None
        counted = config.counted
        self.spending: Spending | None = None if counted is None else Spending(system.lift_terms, partition)
        """The spending of the lift's releases; None if there are none."""
        self.lift_ms = round((config.lift if counted is None else counted).every_seconds * 1000)
        self.items = self._follow_items()
        self.parts = PartReader(0, system.digest) if system.form.parts > 1 else None
        whole, in_parts = (_NUMBERED, _NUMBERED_IN_PARTS) if self.items is None else (_NAMED, _NAMED_IN_PARTS)
        self.state = whole if self.parts is None else in_parts

    def _follow_items(self) -> ItemReader | None:
        """Make the reader of the catalogue, and let the policy follow it; None if items have no names."""
        rules, policy = self.system.catalogue_rules, self.terms.policy
        if rules is None:
            return None
        assert isinstance(policy, FeaturePolicy), "items have names where features are declared"
        items = ItemReader(rules)
        policy.follow(items.catalogue)
        return items

    @property
    def refused(self) -> Exhausted | None:
        """See `Machine.refused`: whether the budget refuses the lift's next release."""
        return None if self.spending is None else self.spending.refusal(self.epoch.next_charge_key())

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        """See `Machine.request_epoch`: the lift's noise is drawn before all decisions that it covers have come."""
        if self.lift is not None:
            self.epoch.request(nonce, incarnations)
        return self.epoch.due

    def keep_users(self, store: UserStore, resident: int) -> None:
        self._resident = resident
        self.agents = self.make_users(store)

    def make_users(self, store: UserStore | None) -> Users:
        """Users over a store, none of them in memory."""
        return Users(self.terms, self.key, store, self._resident)

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        self.lift = self.open_lift()

    def open_lift(self) -> LiftCounter | None:
        """The lift's counter under noise of this journal; None if no lift is released."""
        counted = counted_lift(self.system.config)
        if counted is None:
            return None
        wait_ms, key = self.terms.attribution_window_ms, self.key.derive("lift")
        return LiftCounter(counted.lift, counted.levels, wait_ms, key, self._lift_address(), counted.answers)

    def _lift_address(self) -> NoiseAddress:
        nonce = self.epoch.nonce(self.chain.genesis_nonce)
        return self.system.lift_address(nonce, self.partition, self.epoch.number)

    def in_holdout(self, agent: EdgeAgent) -> bool:
        """Whether a user is in the hold-out, so that no model ever answers them."""
        return in_holdout(agent.key, self.system.config.lift)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        genesis_nonce = self.chain.genesis_nonce
        # The counter has one id in all epochs, so that readers replace its earlier releases by its newest one.
        return self.key.digest("lift-id", self.epoch.nonce(genesis_nonce) if parts else genesis_nonce, place)

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        return self.state.portions(self)

    def _find_deadlines(self) -> None:
        """Make the queue of deadlines from the decisions that wait."""
        waiting = [
            (decision.deadline_ms, agent, event_id)
            for agent in self.agents.values()
            for event_id, decision in agent.open.items()
        ]
        self.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self.agents.user_key(user)

    # A batch, from its first record to its journal record.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        return [self._folded(slices)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay` and `DecisionRole.begin_decisions`."""
        return self._folded(slices, value)

    def _folded(self, slices: Sequence[InputSlice], journaled: bytes | None = None) -> Step:
        """Take everything in a batch, in order, and journal it; then spill users who have had no event for long."""
        batch = self.begin_decisions(slices, journaled)
        for item in batch.in_order(self.now_ms):
            if isinstance(item, Contexts):
                self._answer_rows(item, batch)
            elif isinstance(item, Clicks):
                for click in item.rows:
                    self._feed(click, batch.clicks.part, batch)
            elif isinstance(item, Published):
                self._adopt(item, batch)
            elif isinstance(item, Changed):
                self._change_item(item, batch)
            elif isinstance(item, PhaseEnd):
                self._advance(item.log_time_ms, batch)
                self._end_phase(item.phase, batch)
            elif isinstance(item, Forget):
                self._advance(item.log_time_ms, batch)
                self._forget(item.user)
        step = self.end_decisions(batch, batch.fields(self.now_ms, POLICY))
        if self._resident is not None:
            self.agents.spill_surplus()
        return step

    def _adopt(self, published: Published, batch: Batch) -> None:
        try:
            model = decode_model(self.system, published.record.fields)
            self.terms.policy.adopt(published.reader.track, model.version, *model.arrays)
        except HushstreamError:
            batch.refuse(Refusal.MALFORMED_MODEL, published.part, published.record.offset)
        else:
            batch.counts[Outcome.MODEL_ADOPTED] += 1

    def _change_item(self, changed: Changed, batch: Batch) -> None:
        """Take a change of the catalogue, and send it to shufflers before any slot that names its version."""
        assert self.items is not None, "nobody reads changes where items have no names"
        catalogue = self.items.catalogue
        before = catalogue.entries
        found = self.take_item(changed, batch)
        if found is None:
            return
        if found.entered != before[found.row]:
            assert isinstance(self.terms.policy, FeaturePolicy), "items have names where features are declared"
            self.terms.policy.entered(found.row)
        batch.releases.extend(item_rows_outputs(self.system, catalogue, self.chain.encode))

    # Clicks.

    def _feed(self, click: FeedbackRow, part: InputSlice, batch: Batch) -> None:
        """Join one piece of feedback to its decision, or keep it until the decision comes."""
        agent = self.agents.get(click.user)
        decision = None if agent is None else agent.open.get(click.event_id)
        if agent is not None and decision is not None:
            self._apply(agent, decision, click, part, batch)
            return
        past = self.past.get(click.event_id)
        if past is None and agent is not None and agent.open.has_answer(click.event_id):
            batch.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
        elif past is None:
            self._hold_early(click, part, batch)
        elif past.user != click.user:
            batch.refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        elif past.expired:
            batch.too_late(click)
        else:
            batch.counts[JoinOutcome.REPEATED_FEEDBACK] += 1

    def _hold_early(self, click: FeedbackRow, part: InputSlice, batch: Batch) -> None:
        """Keep a click until its context comes. One user's clicks cannot take the places of all others."""
        gave_way = self.early.hold(click)
        if gave_way is None:
            batch.refuse(Refusal.TOO_MANY_PARKED, part, click.offset, click.row)
            return
        batch.counts[Outcome.PARKED] += 1
        for evicted in gave_way:
            batch.refuse(Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)

    def _apply(
        self, agent: EdgeAgent, decision: OpenDecision, click: FeedbackRow, part: InputSlice, batch: Batch
    ) -> None:
        if click.arm >= self.arms:
            batch.refuse(Reason.UNKNOWN_ARM, part, click.offset, click.row)
        elif click.time_ms > decision.deadline_ms:
            batch.too_late(click)
        elif click.rewarded:
            outcome = agent.rewarded_checked(click.event_id, click.arm, click.reward)
            batch.counts[outcome] += 1
            self._count_lift(agent, decision, outcome is JoinOutcome.REWARDED, click.reward)
        else:
            batch.counts[agent.shown(click.event_id, click.arm)] += 1

    # Contexts.

    def _answer_rows(self, item: Contexts, batch: Batch) -> None:
        """Answer rows without a click or model between them, so that they can be scored together."""
        decoded, times_ms, answer = item.decoded, item.decoded.columns.timestamps_ms, self._context
        rows, refused = item.rows, decoded.refused
        looked_to, ahead = rows.start, None
        for row in rows:
            if row == looked_to:
                looked_to = row + AHEAD_AT_MOST
                some = rows[row - rows.start : looked_to - rows.start]
                ahead = None
                if len(some) >= AHEAD_AT_LEAST:
                    good = [one for one in some if one not in refused] if refused else some
                    ahead = LookAhead(self.terms.policy)
                    ahead.look(decoded.columns, good, self.agents.peek)
            if times_ms[row] > self.now_ms:
                self._advance(times_ms[row], batch)
            answer(decoded, row, ahead, batch)

    def _context(self, decoded: DecodedContexts, row: int, ahead: LookAhead | None, batch: Batch) -> None:
        """Answer one context, or refuse it; log time has advanced to the context's time."""
        columns = decoded.columns
        reason = decoded.refused.get(row) if decoded.refused else None
        past = self.past.get(columns.event_ids[row])
        if reason is None and past is None:
            self._decide(decoded, row, ahead, batch)
        elif reason is None and past is not None and past.user == columns.users[row]:
            batch.repeat(columns.event_ids[row], past)
        else:
            why = reason or Refusal.EVENT_OF_ANOTHER_USER
            batch.refuse(why, batch.contexts, columns.offsets[row], columns.rows[row])

    def _decide(self, decoded: DecodedContexts, row: int, ahead: LookAhead | None, batch: Batch) -> None:
        columns, now_ms, mask = decoded.columns, self.now_ms, None
        event_id, user = columns.event_ids[row], columns.users[row]
        agent = self.agents.get(user)
        if agent is not None and self.expire_ms is not None and agent.seen_ms + self.expire_ms <= now_ms:
            self.agents.delete_state(user)
            batch.counts[Outcome.EXPIRED] += 1
            agent = None
        if agent is None or columns.eligible[row] or columns.after_clicks[row] >= batch.clicks.read_to:
            reason = self._objection(decoded, row, agent, batch)
            if reason is not None:
                batch.refuse(reason, batch.contexts, columns.offsets[row], columns.rows[row])
                return
            if columns.eligible[row]:
                mask = eligible_mask(columns.eligible[row], self.arms)
        if self.items is not None:
            mask = self.offered_among(mask)
            if not mask.any():
                batch.refuse(Refusal.NOTHING_OFFERED, batch.contexts, columns.offsets[row], columns.rows[row])
                return
        if agent is None:
            agent = self.agents.begin(user, columns.tracks[row])
        known = agent.known(event_id, now_ms)
        if known is not None:
            batch.repeat(event_id, PastDecision(user, known.arm, known.billionths, known.model_version))
            return
        if not agent.within_quota(now_ms):
            self._decide_publicly(agent, event_id, columns.contexts[row], mask, batch)
            return
        best = UNSCORED if ahead is None else ahead.best(row, agent)
        choice = agent.decide_new(event_id, columns.contexts[row], now_ms, mask, best)
        past = PastDecision(user, choice.arm, choice.billionths, choice.model_version)
        held_out = self.lift is not None and self.in_holdout(agent)
        if held_out:
            past = self._held_out(event_id, past, columns.baselines[row], mask)
            agent.correct(event_id, past.arm, past.propensity)
        if batch.journaled is not None:
            recomputed, past = (
                past,
                batch.as_journaled(past, _never if held_out else partial(agent.score_gap, event_id, mask)),
            )
            if past is not recomputed:
                agent.correct(event_id, past.arm, past.propensity)
        self.deadlines.add(now_ms + self.terms.attribution_window_ms, agent, event_id)
        if choice.slot_due:
            self.due.append((now_ms, user))
        self.past.put(event_id, past)
        for click in self.early.claim(event_id):
            self._feed(click, batch.earlier, batch)
        batch.answer(event_id, past, PUBLIC if held_out else MODEL)
        batch.counts[Outcome.DECIDED] += 1

    def _held_out(
        self, event_id: str, decided: PastDecision, baseline: int, mask: NDArray[np.bool_] | None
    ) -> PastDecision:
        """The answer of a user in the hold-out: the baseline that the context names, or any eligible arm."""
        if baseline >= 0 and (mask is None or mask[baseline]):
            return decided._replace(arm=baseline, propensity=CERTAIN)
        everyone = np.arange(self.arms)
        eligible = everyone if mask is None else everyone[mask]
        arm = holdout_arm(self.agents.user_key(decided.user), event_id, eligible)
        return decided._replace(arm=arm, propensity=CERTAIN // len(eligible))

    def _objection(self, decoded: DecodedContexts, row: int, agent: EdgeAgent | None, batch: Batch) -> Refusal | None:
        """The reason to refuse a decodable context; None if there is none."""
        columns = decoded.columns
        late = batch.late_click(columns.after_clicks[row])
        if late is not None:
            return late
        if agent is None and not self.is_home_of(columns.users[row]):
            return Refusal.FOREIGN_USER
        if agent is None and columns.tracks[row] not in self.system.tracks_for_users:
            return Refusal.LINE_NOT_ALLOWED if columns.tracks[row] in TRACKS else Refusal.UNKNOWN_LINE
        return batch.bad_baseline(decoded, row)

    def _decide_publicly(
        self,
        agent: EdgeAgent,
        event_id: str,
        context: NDArray[np.float32],
        mask: NDArray[np.bool_] | None,
        batch: Batch,
    ) -> None:
        """Answer a user beyond their quota from the shared model alone, without learning from the decision."""
        choice = agent.decide_publicly(context, mask)
        answer = PastDecision("", choice.arm, choice.billionths, choice.model_version)
        if batch.journaled is not None:
            answer = batch.as_journaled(answer, partial(agent.public_score_gap, context, choice.arm))
        batch.answer(event_id, answer, PUBLIC)
        batch.counts[Outcome.OVER_QUOTA] += 1

    # Log time and slots.

    def _advance(self, now_ms: int, batch: Batch) -> None:
        """Move log time forward: close decisions whose wait is over, send slots that have settled, release the lift."""
        before_ms = self.now_ms
        if now_ms <= before_ms:
            return
        self.now_ms = now_ms
        for agent, event_id in self.deadlines.passed(now_ms):
            self._expire(agent, event_id, batch)
        due, settled = self.due, []
        while due and has_settled(due[0][0], now_ms, self.settle_ms):
            settled.append(due.popleft()[1])
        if settled:
            self._send_slots(settled, 0, now_ms, batch)
        if self.lift is not None and before_ms and now_ms // self.lift_ms != before_ms // self.lift_ms:
            self._release_lift(batch)
        if self.expire_ms is not None and now_ms // self.sweep_ms != before_ms // self.sweep_ms:
            batch.counts[Outcome.EXPIRED] += self.agents.expire(now_ms - self.expire_ms + 1)

    def _expire(self, agent: EdgeAgent, event_id: str, batch: Batch) -> None:
        self.agents.touch(agent)
        decision = agent.open[event_id]
        outcome = agent.expire(event_id)
        batch.counts[outcome] += 1
        past = self.past.get(event_id)
        if past is not None:
            self.past.put(event_id, past._replace(expired=True))
        if outcome is JoinOutcome.EXPIRED_AS_ZERO:
            self._count_lift(agent, decision, decision.shown_arm == decision.arm, 0.0)

    def _send_slots(self, users: Sequence[str], phase: int, waited_ms: int, batch: Batch) -> None:
        """Send a slot of each user. A user whose state was deleted meanwhile still owes a slot, which holds null.

        Reward windows that end by ``waited_ms`` count as ended.
        """
        period, taken = self.now_ms // self.period_ms, []
        for user in users:
            agent = self.agents.get(user)
            slot = self.agents.take_owed(user) if agent is None else agent.take_slot(waited_ms)
            taken.append(TakenSlot(slot, period, self.user_key(user)))
        batch.releases.extend(slot_outputs(self.system, taken, phase, self.chain.encode))
        batch.sent += len(taken)
        batch.counts[Outcome.SLOT_SENT] += len(taken)

    def _end_phase(self, phase: int, batch: Batch) -> None:
        """Send all slots that are due, and pass the phase end on; it is public, and ends all reward windows."""
        if self.due:
            users = [user for _, user in self.due]
            self.due.clear()
            self._send_slots(users, phase, NEVER_MS, batch)
        self._release_lift(batch)
        batch.releases.extend(phase_end_outputs(self.system, self.partition, phase, self.chain.encode))

    # The lift, and erasures.

    def _count_lift(self, agent: EdgeAgent, decision: OpenDecision, agreed: bool, reward: float) -> None:
        """Count a decision for the lift, after it is known what was shown; over a hold-out only if its own arm was."""
        if self.lift is None:
            return
        user = lift_user(agent.key)
        if not self.system.config.lift.holdout:
            self.lift.count_answer(user, decision.arm, agreed, decision.index, decision.deadline_ms, reward)
        elif agreed:
            holdout = self.in_holdout(agent)
            self.lift.count(user, holdout, decision.index, decision.deadline_ms, reward)

    def _release_lift(self, batch: Batch) -> None:
        """Release the lift's running counts once more, if there is a lift and the budget allows it."""
        if self.lift is None or self.spending is None:
            return
        if self.epoch.due:
            self.epoch.redraw(batch.sequence)
            self.lift.redraw(self._lift_address())
        charge_result = batch.try_charge(self.spending, self.epoch.charge_key())
        if charge_result.refused:
            return
        step = self.lift.release(self.now_ms)
        record = lift_record(self.system, step, self.lift_id(), self.lift_id(step.leaf), self.key.reproducible)
        batch.releases.append(Output("lift", self.partition, self.chain.encode("Lift", record)))
        entry = self.system.ledger_entry(record["release_id"], charge_result.debit, record["private_as_stated"])
        batch.releases.append(Output("ledger-edge", self.partition, self.chain.encode("LedgerEntry", entry)))
        batch.counts[Outcome.RELEASE] += 1

    def _forget(self, user: str) -> None:
        """Delete a user's state, and remove their name from the remembered events."""
        self.agents.delete_state(user)
        if self.lift is not None:
            self.lift.forget(lift_user(self.user_key(user)))
        self.forget_events(user)


def _never(arm: int, propensity: int) -> float:
    """The score gap of an answer that no score decides."""
    return np.inf


# Contexts that are scored together.

AHEAD_AT_MOST = 64
"""Number of contexts that are scored together. More would waste work: a user who learns meanwhile is scored again."""

AHEAD_AT_LEAST = 4
"""The least number of contexts that are scored together: for fewer it costs more than it saves."""


class LookAhead:
    """The best arms of some rows, scored together before each row is decided.

    Learning changes scores, and so does a new shared model for users without a state of their own; a decision alone
    does not. So the arm that was found for a row is valid as long as its user's state is the one that was scored. The
    results do not depend on how many rows are scored together, or on whether any are: arms are those of
    `SharedPolicy.choose`.
    """

    __slots__ = ("_found", "_policy")

    def __init__(self, policy: SharedPolicy) -> None:
        """Begin without scored rows."""
        self._policy = policy
        self._found: dict[int, tuple[LearnerState, int, int]] = {}

    def look(self, columns: ContextColumns, rows: Sequence[int], agent_of: Callable[[str], EdgeAgent | None]) -> None:
        """Score these rows if all arms are eligible and the user is in memory; forget the rows before."""
        self._policy.prepare(columns.contexts[rows])
        users, eligible = columns.users, columns.eligible
        found = ((row, agent_of(users[row])) for row in rows if not eligible[row])
        known = [(row, agent.current_state(), agent.steps) for row, agent in found if agent is not None]
        places = [row for row, _, _ in known]
        arms = self._policy.best([state for _, state, _ in known], columns.contexts[places])
        self._found = {row: (state, steps, arm) for (row, state, steps), arm in zip(known, arms, strict=True)}

    def best(self, row: int, agent: EdgeAgent) -> int:
        """The best arm of a row that is decided now; `UNSCORED` if none was found, or it is no longer valid."""
        found = self._found.get(row)
        if found is None:
            return UNSCORED
        state, steps, arm = found
        # A user's own state changes in place with every step, so the steps are compared, too.
        return arm if agent.steps == steps and agent.current_state() is state else UNSCORED


def lift_record(
    system: P2BSystem, step: LiftStep, counter_id: bytes, release_id: bytes, reproducible: bool
) -> dict[str, Any]:
    """The fields of a Lift record; under a ``reproducible`` key nothing is private."""
    config = system.config
    price = lift_debit(*required_lift(config)).cost
    return {
        "release_id": release_id,
        "config_digest": system.digest,
        "counter": counter_id,
        "leaf": step.leaf,
        "levels": config.release.levels,
        "sums": step.sums.astype("<i8").tobytes(),
        "variance": step.variance,
        "epsilon_micro": price.epsilon_micro,
        "delta_units": delta_to_bytes(price.delta_units),
        "private_as_stated": not reproducible,
    }
