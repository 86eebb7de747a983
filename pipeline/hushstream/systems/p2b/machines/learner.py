"""The learner role (edge zone): runs many `EdgeAgent`s on a stream.

A batch is folded record by record, in order (`LearnerMachine._take`): clicks are joined to decisions, models are
adopted, contexts are answered, and slots that have settled are sent. The decisions go into one record, which is both
the answer to the client and the journal. The fold fixes the bytes of slots, and their digest is journaled before they
are sent.

*What is sent.* The outputs of a learner besides decisions: fixed-size reports and forwarded phase ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import CHARGES_IF_ANY
from hushstream.engine.catalogue import Catalogue
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.arrivals import DecodedContexts, decode_checked
from hushstream.engine.learner.batch import (
    CERTAIN,
    NEVER_MS,
    PUBLIC,
    Changed,
    Clicks,
    Contexts,
    DecisionBatch,
    eligible_mask,
    settled_at,
)
from hushstream.engine.learner.deciding import DECIDING, MEMORIES, DecisionRole
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import ModelReader, PartReader
from hushstream.engine.machine import MemoryUserStore, StoredUser, UserStore
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.records import InputSlice, Output
from hushstream.engine.state.declared import FIXED, READER, Flat, Several, Single, State, after, array, own_part, record
from hushstream.engine.state.packed import finished
from hushstream.feedback.join import NO_DECISION, NOT_SHOWN, Decisions, JoinOutcome, OpenDecision
from hushstream.feedback.memory import FeedbackRow, PastDecision, UserEarlyFeedback
from hushstream.privacy.amounts import delta_to_bytes
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import NoiseAddress
from hushstream.schemas import codec
from hushstream.schemas.context_columns import ContextColumns
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.rows import HARM, REWARD, Reason
from hushstream.systems.p2b.deployment import PRIVATE, TRACKS, P2BSystem, decode_model
from hushstream.systems.p2b.edge.agent import EdgeAgent, Mask, Slot, choose, learn, take_slots
from hushstream.systems.p2b.edge.policies import COLD, FeaturePolicy, Lesson
from hushstream.systems.p2b.edge.users import Users, unpack_agent
from hushstream.systems.p2b.lift import (
    Group,
    LiftCounter,
    counted_lift,
    group_of,
    lift_debit,
    lift_user,
    required_lift,
)
from hushstream.systems.p2b.machines.guardrail import Guardrail
from hushstream.systems.p2b.shuffler import ItemRows


class TakenSlot(NamedTuple):
    """A slot whose content is fixed, and the report period in which that happened."""

    slot: Slot
    period: int


def slot_outputs(system: P2BSystem, taken: Sequence[TakenSlot]) -> Iterator[Output]:
    """The records of slots in the order of their ids. The ids are keyed, so the order does not show who came first.

    The partition also follows from the id, the record key is null, and all records have one size. The driver provides
    the rest (no headers, one client id, one producer). The time of a batch of slots cannot be hidden here: whoever also
    reads contexts knows whose slots were due then, so a slot hides only among the slots of its batch.
    """
    ordered = sorted(taken, key=lambda item: item.slot.report_id)
    for item in ordered:
        shuffler = int.from_bytes(item.slot.report_id[:8], "little") % system.config.partitions.shuffler
        yield Output("reports", shuffler, _slot_record(system, item))


def _slot_record(system: P2BSystem, taken: TakenSlot) -> bytes:
    """The record of a slot."""
    slot, period = taken.slot, taken.period.to_bytes(8, "little")
    fields = {"report_id": slot.report_id, "period": period, "config_digest": system.digest, "content": slot.content}
    return codec.encode(system.form.slot_record, fields)


def item_rows_outputs(system: P2BSystem, catalogue: Catalogue) -> Iterator[Output]:
    """The record that says which items the rows of sums stand for, for every shuffler."""
    value = codec.encode("ItemRows", {**ItemRows.of(catalogue)._asdict(), "config_digest": system.digest})
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)


def phase_end_outputs(system: P2BSystem, origin: int, phase: int) -> Iterator[Output]:
    """The phase end of a learner partition, for every shuffler."""
    fields = {"phase": phase, "origin": origin, "config_digest": system.digest, "after_click": -1}
    value = codec.encode("Seal", fields)
    for shuffler in range(system.config.partitions.shuffler):
        yield Output("reports", shuffler, value)


_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")


class _UsersField:
    """The users: those in the store, and those in memory."""

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
        return {"warm": ({"user": user, "value": value} for user, value in cut.kept), "resting": resting}

    def load(self, role: LearnerMachine, name: str, values: Mapping[str, Any]) -> None:
        """See `Field.load`."""
        store = role.agents.store
        spilled = [StoredUser(**item) for item in values["resting"]]
        role.agents = users = role.make_users(store if store.durable else MemoryUserStore(spilled))
        if store.durable:
            users.owe(spilled)
        for item in values["warm"]:
            fields = unpack_agent(item["value"])
            if fields is None:
                raise HushstreamError("snapshot: expected a user's state, got what stays of one")
            users.adopt(item["user"], users.load(item["user"], fields))


def _pack_due(due: Iterable[tuple[int, str]]) -> Iterator[dict[str, Any]]:
    return ({"due_ms": due_ms, "user": user} for due_ms, user in list(due))


def _unpack_due(value: Iterable[dict[str, Any]], before: object) -> deque[tuple[int, str]]:
    return deque((item["due_ms"], item["user"]) for item in value)


def _counter(name: str, opened: Callable[[LearnerMachine], LiftCounter | None]) -> Several:
    """The state of one of a learner's counters; empty if it has none."""

    def dump(role: LearnerMachine) -> Mapping[str, bytes]:
        counter: LiftCounter | None = getattr(role, name)
        return {name: b"" if counter is None else counter.dump()}

    def load(role: LearnerMachine, values: Mapping[str, Any]) -> None:
        counter = opened(role)
        setattr(role, name, counter)
        if counter is not None:
            counter.load(values[name])

    return Several({name: "bytes"}, dump, load)


def _pack_readers(models: Sequence[ModelReader]) -> list[dict[str, Any]]:
    return [reader.dump() for reader in models]


def _unpack_readers(value: Sequence[dict[str, Any]], models: Sequence[ModelReader]) -> Sequence[ModelReader]:
    for reader, place in zip(models, value, strict=True):
        reader.load(place)
    return models


_OF_CODES = State(
    "a learner's state",
    "LearnerState",
    DECIDING,
    models=Single(array(READER), _pack_readers, _unpack_readers, disk="readers"),
    terms=Several(
        {"shared": array(_SHARED)},
        lambda role: {"shared": role.terms.policy.dump_models()},
        lambda role, values: role.terms.policy.restore_models(values["shared"]),
    ),
    past=Flat({"decided": array("string"), "decided_for": array("string"), "decisions": "bytes"}),
    agents=_UsersField(),
    due=Single(array(record("Due", due_ms="long", user="string")), _pack_due, _unpack_due),
    _run=after("_forget_run"),
    early=MEMORIES["early"],
    lift=_counter("lift", lambda role: role.open_lift()),
    guardrail=_counter("guardrail", lambda role: role.open_guardrail()),
    spending=CHARGES_IF_ANY,
)
"""The state in a deployment of codes."""

_OF_FEATURES = State("a learner's state with a catalogue", "NamedLearnerState", _OF_CODES.fields, items=own_part())
"""The state where features are declared."""

_IN_PARTS = State(
    "a learner's state with a catalogue and models in parts",
    "PartedNamedLearnerState",
    _OF_FEATURES.fields,
    parts=own_part(),
)
"""The state if a model is larger than a record."""


class LearnerMachine(DecisionRole):
    """The learner on one partition of contexts and clicks."""

    state = _IN_PARTS
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("state", "settle_ms", "period_ms", "expire_ms", "sweep_ms", "lift_ms"), FIXED),
        "_resident": "the worker's choice: how many users lie in memory",
    }

    spills_users = True
    policy = "linucb"
    system: P2BSystem
    early: UserEarlyFeedback
    past: Decisions

    def __init__(self, system: P2BSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        self._resident: int | None = None
        config, counted = system.config, system.config.counted
        super().__init__(
            system,
            partition,
            key,
            [ModelReader(system, 0, PRIVATE, system.form.model_record)],
            UserEarlyFeedback(config.feedback.early_feedback, config.users.early_feedback),
            Decisions(config.feedback.remembered_events),
            partial(decode_checked, rules=system.requests),
            None if counted is None else system.lift_terms,
        )
        self.settle_ms = round(config.slot.settle_seconds * 1000)
        self.due: deque[tuple[int, str]] = deque()
        """(log time of the last decision, user) of each slot that waits until it has settled, oldest first."""
        self.terms = system.edge_terms(key)
        self.agents = self.make_users(None)
        self._forget_run()
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, all users are searched for expired states."""
        self.lift: LiftCounter | None = None
        self.guardrail: Guardrail | None = None
        self.lift_ms = round(config.measurement.every_seconds * 1000)
        self.items = self._follow_items()
        self.parts = PartReader(0, system.digest) if system.form.parts > 1 else None
        whole = _OF_CODES if self.items is None else _OF_FEATURES
        self.state = whole if self.parts is None else _IN_PARTS

    def _follow_items(self) -> ItemReader | None:
        """Make the reader of the catalogue, and let the policy follow it; None in a deployment of codes."""
        rules, policy = self.system.catalogue_rules, self.terms.policy
        if rules is None:
            return None
        assert isinstance(policy, FeaturePolicy), "the catalogue is followed where features are declared"
        items = ItemReader(rules)
        policy.follow(items.catalogue)
        return items

    @property
    def draws_ahead(self) -> bool:
        """See `BatchMachine.draws_ahead`: the lift's noise is drawn before all decisions that it covers have come."""
        return self.lift is not None

    def redraw_noise(self) -> None:
        """See `BatchMachine.redraw_noise`: the lift's counts get the noise of this epoch."""
        if self.lift is not None:
            self.lift.redraw(self._lift_address())
        if self.guardrail is not None:
            self.guardrail.redraw(self._lift_address())

    def keep_users(self, store: UserStore, resident: int) -> None:
        self._resident = resident
        self.agents = self.make_users(store)

    def make_users(self, store: UserStore | None) -> Users:
        """Users over a store, none of them in memory."""
        return Users(self.terms, self.key, self.past, store, self._resident)

    def start(self, genesis: bytes) -> None:
        before = self.system.before
        if before is not None and codec.decode(genesis)[1]["key_id"].hex() != before.edge_key:
            raise HushstreamError(
                f"edge key: expected {before.edge_key}, that of the generation before, as under another one every "
                "person's slots would count again, got another; bring its key file"
            )
        super().start(genesis)
        self.lift, self.guardrail = self.open_lift(), self.open_guardrail()

    def open_lift(self) -> LiftCounter | None:
        """The lift's counter under noise of this journal; None if no lift is released."""
        counted = counted_lift(self.system.config)
        if counted is None:
            return None
        wait_ms = self.terms.attribution_window_ms
        return LiftCounter(counted, wait_ms, self.key.derive("lift"), self._lift_address())

    def open_guardrail(self) -> Guardrail | None:
        """The counter of the lift's guardrail under noise of this journal; None if there is no guardrail."""
        counted = counted_lift(self.system.config)
        if counted is None or counted.settings.guardrail is None:
            return None
        wait_ms = round(counted.settings.guardrail_wait_seconds * 1000)
        return Guardrail(counted, wait_ms, self.key.derive("guardrail"), self._lift_address())

    def _lift_address(self) -> NoiseAddress:
        nonce = self.releases.epoch.nonce(self.chain.genesis_nonce)
        return self.system.lift_address(nonce, self.partition, self.releases.epoch.number)

    def group_of(self, agent: EdgeAgent) -> Group:
        """The group of a user whose deployment measures groups; otherwise that of the shared model."""
        return group_of(agent.key, self.system.config.measurement)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        genesis_nonce = self.chain.genesis_nonce
        # The counter has one id in all epochs, so that readers replace its earlier releases by its newest one.
        return self.key.digest("lift-id", self.releases.epoch.nonce(genesis_nonce) if parts else genesis_nonce, place)

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        return self.state.portions(self)

    def _forget_run(self) -> None:
        """Forget what a batch left behind."""
        self._run = Run()

    # The policy.

    def finish(self, batch: DecisionBatch) -> None:
        """See `DecisionRole.finish`: learn what is left to learn, and spill users who have had no event for long."""
        assert not self._run.rows, "whoever waited for a click was answered at the last one"
        self._learn_lessons()
        self._run = Run()
        if self._resident is not None:
            self.agents.spill_surplus()

    def adopt(self, track: str, fields: dict[str, Any]) -> None:
        self._answer_run()
        model = decode_model(self.system, fields)
        self.terms.policy.adopt(track, model.version, *model.arrays)

    def change_item(self, changed: Changed, batch: DecisionBatch) -> None:
        """Take changes of the catalogue, and send them to shufflers before any slot that names their version."""
        assert self.items is not None, "nobody reads changes in a deployment of codes"
        catalogue = self.items.catalogue
        before = catalogue.entries
        self._answer_run()
        self._learn_lessons()
        taken = self.take_items(changed, batch)
        if not taken:
            return
        assert isinstance(self.terms.policy, FeaturePolicy), "the catalogue is followed where features are declared"
        for found in taken:
            if found.entered != before[found.row]:
                self.terms.policy.entered(found.row)
        batch.outputs.extend(item_rows_outputs(self.system, catalogue))

    # Clicks.

    def learn(self, rows: Clicks, part: InputSlice, batch: DecisionBatch) -> None:
        """Join feedback to its decisions, or keep it until the decision comes.

        What waits in the run is answered first where a click touches it: its event, its user, or what all count.
        """
        clicks, run, first = rows.rows, self._run, 0
        if run.rows and (
            self.lift is not None or any(one.event_id in run.events or one.user in run.users for one in clicks)
        ):
            self._answer_run()
        held, unusual = self._rewards_of(clicks)
        while first < len(clicks):
            stop = min(first + AT_ONCE, unusual[-1])
            if first == stop:
                unusual.pop()
                stop = first + 1
                self._learn_one(clicks[first], part, batch)
            else:
                self._learn_rewards(clicks[first:stop], held[first:stop], batch)
            first = stop
        if batch.clicks.next_ms >= NEVER_MS:
            self._answer_run()

    def _rewards_of(self, clicks: Sequence[FeedbackRow]) -> tuple[Sequence[int], list[int]]:
        """The decisions that feedback is of, and which of it is taken one by one, the first one last, behind the end.

        One by one comes what is no first reward, in time, of a decision that waits.
        """
        if not clicks:
            return (), [0]
        kinds, events, users, arms, _, _, _, times_ms = zip(*clicks, strict=True)
        held = self.past.waiting_in_time(events, users, times_ms)
        unusual, met = list[int](), {NO_DECISION}
        for place, (kind, number, arm) in enumerate(zip(kinds, held, arms, strict=True)):
            if kind != REWARD or number in met or arm >= self.arms:
                unusual.append(place)
            else:
                met.add(number)
        return held, [len(clicks), *reversed(unusual)]

    def _learn_rewards(self, clicks: Sequence[FeedbackRow], held: Sequence[int], batch: DecisionBatch) -> None:
        """Take in first rewards of decisions that wait."""
        _, events, users, arms, rewards, *_ = zip(*clicks, strict=True)
        at, decisions = self.agents.rows(users), [] if self.lift is None else [*map(self.past.__getitem__, held)]
        lessons, agreed = self.agents.table.rewarded(at, held, arms, rewards)
        self._run.lessons.extend(lessons)
        self._run.taught.update(at)
        found = {JoinOutcome.REWARDED: agreed, JoinOutcome.OTHER_ARM: len(lessons) - agreed}
        batch.counts.update({outcome: count for outcome, count in found.items() if count})
        if self.lift is not None:
            agents = map(self.agents.table.agent, at)
            for agent, event_id, decision, lesson in zip(agents, events, decisions, lessons, strict=True):
                decided = lesson.arm == decision.arm
                self._count_lift(self.lift, agent, event_id, decision, decided, lesson.reward)

    def _learn_one(self, click: FeedbackRow, part: InputSlice, batch: DecisionBatch) -> None:
        """Join a piece of feedback that teaches nothing to its decision, or keep it until the decision comes."""
        if click.kind == HARM:
            self._harmed(click, part, batch)
            return
        decision = self.past.waiting(click.event_id, click.user)
        past = self.past.get(click.event_id, len(self._run.rows))
        if decision is not None and click.arm >= self.arms:
            batch.refuse_at(Reason.UNKNOWN_ARM, part, click.offset, click.row)
        elif decision is not None and click.time_ms > decision.deadline_ms:
            batch.too_late(click)
        elif decision is not None:
            batch.counts[self._agent(click.user).shown_checked(decision, click.arm)] += 1
        elif past is None:
            self._hold_early(click, part, batch)
        elif past.user != click.user:
            batch.refuse_at(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        elif past.expired:
            batch.too_late(click)
        else:
            batch.counts[JoinOutcome.REPEATED_FEEDBACK] += 1

    def _harmed(self, click: FeedbackRow, part: InputSlice, batch: DecisionBatch) -> None:
        """Take a harm for the guardrail, and for nothing else."""
        if self.guardrail is None:
            batch.refuse_at(Reason.UNKNOWN_KIND, part, click.offset, click.row)
            return
        user = lift_user(self.terms.user_key(click.user))
        batch.counts[self.guardrail.told(user, click.event_id, click.reward, click.time_ms)] += 1

    def _hold_early(self, click: FeedbackRow, part: InputSlice, batch: DecisionBatch) -> None:
        """Keep a click until its context comes. One user's clicks cannot take the places of all others."""
        gave_way = self.early.hold(click)
        if gave_way is None:
            batch.refuse_at(Refusal.TOO_MANY_PARKED, part, click.offset, click.row)
            return
        batch.counts[Outcome.PARKED] += 1
        for evicted in gave_way:
            batch.refuse_at(Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)

    def _agent(self, user: str) -> EdgeAgent:
        """The agent of a user whose decision waits."""
        agent = self.agents.get(user)
        assert agent is not None, "with a state, what waits is dropped"
        return agent

    # Contexts.

    def decide(self, rows: Contexts, batch: DecisionBatch) -> None:
        """Answer rows, together with others of the batch (`Run`)."""
        decoded, columns, run = rows.decoded, rows.decoded.columns, self._run
        if decoded is not run.decoded:
            self._answer_run()
            run.decoded, run.batch = decoded, batch
        self._end_unseen(columns, rows.rows, batch)
        calm_ms, times_ms, first, last = self._calm_ms(), columns.timestamps_ms, rows.rows.start, rows.rows.stop
        alone = self._alone(decoded, rows.rows)
        while first < last:
            if calm_ms > times_ms[first] > self.now_ms:
                self.now_ms = times_ms[first]
            elif times_ms[first] > self.now_ms:
                self.advance(times_ms[first], batch)
                calm_ms = self._calm_ms()
            stop = min(first + AT_ONCE - len(run.rows), alone[-1])
            if first == stop:
                alone.pop()
                stop = first + 1
                if self._turned_away(decoded, first, batch):
                    first = stop
                    continue
            elif max(times_ms[first:stop]) >= calm_ms:
                stop = next((row for row in range(first + 1, stop) if times_ms[row] >= calm_ms), stop)
            self._take(decoded, range(first, stop), batch)
            first = stop
        if batch.clicks.next_ms >= NEVER_MS:
            self._answer_run()

    def _end_unseen(self, columns: ContextColumns, rows: range, batch: DecisionBatch) -> None:
        """End the waits of what was never shown that end within some rows, if no answer to the rows tells when."""
        catalogue, last_ms = self.terms.policy.catalogue, max(columns.timestamps_ms[rows.start : rows.stop])
        if self.past.next_ms > last_ms or self.lift is not None or self.expire_ms is not None:
            return
        # Events that are asked again are told how they ended, and caps count what waits.
        narrows = catalogue is not None and catalogue.narrows
        if not narrows and self.past.numbers.keys().isdisjoint(columns.event_ids[rows.start : rows.stop]):
            batch.counts.update({JoinOutcome.NEVER_SHOWN: never} if (never := self.past.end_unseen(last_ms)) else {})

    def _alone(self, decoded: DecodedContexts, rows: range) -> list[int]:
        """The rows that are taken alone, the first one last, behind the end of all.

        Alone come rows that may be turned away or have feedback already, and where caps count what waits, rows of a
        user who has one before.
        """
        columns, some, known = decoded.columns, slice(rows.start, rows.stop), self.past.numbers.keys()
        events, early, met = columns.event_ids[some], self.early.events, self._run.events
        catalogue, refused = self.terms.policy.catalogue, decoded.refused
        narrows = catalogue is not None and catalogue.narrows
        plain = not (refused or narrows) and len(set(events)) == len(events)
        if plain and all(one.isdisjoint(events) for one in (known, early, met)):
            return [rows.stop]
        found, met, users = list[int](), met.copy(), set[str]()
        for row, event_id, user in zip(rows, events, columns.users[some], strict=True):
            if row in refused or (narrows and user in users) or any(event_id in one for one in (known, early, met)):
                found.append(row)
            met.add(event_id)
            users.add(user)
        return [rows.stop, *reversed(found)]

    def _turned_away(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> bool:
        """Refuse a row that cannot be read, or repeat the answer of its event; False if it is still to be taken."""
        event_id, run = decoded.columns.event_ids[row], self._run
        if event_id in run.events:
            self._answer_run()
        past = self.past.get(event_id, len(run.rows)) if event_id in self.past.numbers else None
        if past is None and row not in decoded.refused:
            return False
        self._answer_run()
        return batch.turn_away(decoded, row, past, decoded.refused.get(row))

    def _take(self, decoded: DecodedContexts, rows: range, batch: DecisionBatch) -> None:
        """Take rows into the run, or refuse them, or answer them publicly: each step is of all of them.

        Nothing ends, settles or is released before the last one.
        """
        columns, run, agents, catalogue = decoded.columns, self._run, self.agents, self.terms.policy.catalogue
        some = slice(rows.start, rows.stop)
        times_ms = [*accumulate(columns.timestamps_ms[some], max, initial=self.now_ms)][1:]
        self.now_ms = times_ms[-1]
        users, masks = (
            columns.users[some],
            [eligible_mask(mask, self.arms) if mask else None for mask in columns.eligible[some]],
        )
        if self.items is not None and not self.items.catalogue.full:
            masks = [*map(self.offered_among, masks)]
        at = agents.rows(users)
        kept = self._admit(decoded, rows, at, masks, times_ms, batch)
        found: Sequence[list[Any]] = [*rows], at, masks, times_ms, columns.event_ids[some], users
        if len(kept) < len(rows):
            found = [[column[place] for place in kept] for column in found]
        taken, at, masks, times_ms, events, users = found
        if None in at:
            at = self._begin(users, [columns.tracks[row] for row in taken], at)
        chosen = [] if self.lift is None else [columns.baselines[row] for row in taken]
        own_choices = [arm >= 0 and (mask is None or bool(mask[arm])) for arm, mask in zip(chosen, masks, strict=False)]
        if catalogue is not None and catalogue.narrows:
            if not run.users.isdisjoint(users):
                self._answer_run()
            masks = [*map(EdgeAgent.may_choose, map(agents.table.agent, at), masks, times_ms)]
        beyond, first = agents.table.visit(at, times_ms), 0
        for place in (*beyond, len(at)):
            run.rows += taken[first:place]
            run.at += at[first:place]
            run.masks += masks[first:place]
            run.times_ms += times_ms[first:place]
            run.own_choices += own_choices[first:place]
            run.events.update(events[first:place])
            run.users.update(users[first:place])
            first = place + 1
            if place < len(at):
                self._answer_run()
                agent = agents.table.agent(at[place])
                self._decide_publicly(agent, events[place], columns.contexts[taken[place]], masks[place], batch)
        early = self.early.claim(events[0]) if len(self.early) and len(at) == 1 and not beyond else ()
        if early or len(run.rows) == AT_ONCE:
            self._answer_run()
        if early:
            self.learn(Clicks(early), batch.earlier, batch)

    def _admit(
        self,
        decoded: DecodedContexts,
        rows: range,
        at: list[Any],
        masks: Sequence[Mask],
        times_ms: Sequence[int],
        batch: DecisionBatch,
    ) -> Sequence[int]:
        """Refuse rows to which something is to be objected; returns the places of the others.

        A state that has expired is deleted: its user has no row in ``at`` from then on, and is new.
        """
        columns, seen_ms, expire_ms = decoded.columns, self.agents.table.seen_ms, self.expire_ms or NEVER_MS
        new = [row for row, found in zip(rows, at, strict=True) if found is None] if None in at else []
        if (
            not any(columns.eligible[rows.start : rows.stop])
            and max(columns.after_clicks[rows.start : rows.stop]) < batch.clicks.read_to
            and all(columns.tracks[row] in TRACKS and self.is_home_of(columns.users[row]) for row in new)
            and (masks[0] is None or masks[0].any())  # Without requests' own masks it is that of all.
            and (self.expire_ms is None or (not new and min(map(seen_ms.__getitem__, at)) + expire_ms > times_ms[-1]))
        ):
            return range(len(rows))
        known, kept = set[str](), list[int]()
        for place, (row, mask, now_ms) in enumerate(zip(rows, masks, times_ms, strict=True)):
            user, found = columns.users[row], at[place]
            if found is not None and user not in known and seen_ms[found] + expire_ms <= now_ms:
                self.agents.delete_state(user)
                batch.counts[Outcome.EXPIRED] += 1
                at[:] = [None if one == found else one for one in at]
            reason = self._objection(decoded, row, at[place] is None and user not in known, batch)
            if reason is None and mask is not None and not mask.any():
                reason = Refusal.NOTHING_OFFERED
            if reason is None:
                known.add(user)
                kept.append(place)
            else:
                batch.refuse_at(reason, batch.contexts, columns.offsets[row], columns.rows[row])
        return kept

    def _answer_run(self) -> None:
        """Answer the rows of the run."""
        run, table = self._run, self.agents.table
        if not run.rows:
            return
        if not run.taught.isdisjoint(run.at):
            self._learn_lessons()
        decoded, batch, at, times_ms = run.decoded, run.batch, run.at, run.times_ms
        assert decoded is not None, "rows have contexts"
        columns, contexts = decoded.columns, decoded.columns.contexts[run.rows]
        # A user's name is held once: with every decision it came anew.
        events, users = [columns.event_ids[row] for row in run.rows], [*map(table.user.__getitem__, at)]
        arms, propensities, versions = choose(table, at, events, contexts, run.masks)
        numbers, befores, falls_due = table.count(at, times_ms, self.past.end)
        self.due.extend((times_ms[place], users[place]) for place in falls_due)
        policies = bytearray(len(at))
        if self.lift is not None:
            for place in self._measured(self.lift, events, numbers):
                arms[place], propensities[place] = columns.baselines[run.rows[place]], CERTAIN
                policies[place] = PUBLIC
        if batch.replayed is not None:
            for place in batch.unlike_journaled(arms, propensities):
                decided = PastDecision(users[place], arms[place], propensities[place], versions[place])
                scored = events[place], contexts[place], run.masks[place]
                gap = _never if policies[place] == PUBLIC else partial(table.agent(at[place]).score_gap, *scored)
                _, arms[place], propensities[place], *_ = batch.as_journaled(decided, gap, place)
        deadlines_ms = [now_ms + self.terms.attribution_window_ms for now_ms in times_ms]
        kept = self.terms.policy.kept(contexts)
        self.past.extend(events, users, kept, arms, propensities, versions, numbers, deadlines_ms, befores)
        batch.answer_all(events, arms, propensities, versions, policies)
        batch.counts[Outcome.DECIDED] += len(at)
        run.clear()

    def _learn_lessons(self) -> None:
        """Learn all lessons that wait."""
        run = self._run
        for first in range(0, len(run.lessons), AT_ONCE):
            learn(self.terms.policy, run.lessons[first : first + AT_ONCE])
        run.lessons, run.taught = [], set()

    def _begin(self, users: Sequence[str], tracks: Sequence[str], at: Sequence[Any]) -> list[int]:
        """The rows of users, some of whom are new (None); one who is to learn alone begins cold."""
        new = dict[str, str]()
        for user, track, row in zip(users, tracks, at, strict=True):
            if row is None:
                new.setdefault(user, track)
        begun = dict(zip(new, self.agents.begin(new), strict=True))
        if self.lift is not None:
            for agent in map(self.agents.table.agent, begun.values()):
                self.lift.begun(lift_user(agent.key), self.terms.policy.shared(PRIVATE).version)
                if self.group_of(agent) is Group.OWN:
                    agent.track = COLD
        return [begun[user] if row is None else row for user, row in zip(users, at, strict=True)]

    def _measured(self, lift: LiftCounter, events: Sequence[str], numbers: Sequence[int]) -> Iterator[int]:
        """Have decisions of the run counted that can be compared; yields those that the application's choice answers.

        See `hushstream.systems.p2b.lift`.
        """
        run, baseline = self._run, self.system.config.measurement.baseline
        agents = map(self.agents.table.agent, run.at)
        for place, (agent, own_choice) in enumerate(zip(agents, run.own_choices, strict=True)):
            group = self.group_of(agent)
            track = COLD if group is Group.OWN else PRIVATE
            if agent.track == track and (own_choice or not baseline):
                user = lift_user(agent.key)
                if lift.decided(user, numbers[place]) and self.guardrail is not None:
                    self.guardrail.hold(user, events[place], run.times_ms[place])
            if own_choice and group is Group.BASELINE:
                yield place

    def _objection(self, decoded: DecodedContexts, row: int, is_new: bool, batch: DecisionBatch) -> Refusal | None:
        """The reason to refuse a decodable context; None if there is none."""
        columns = decoded.columns
        late = batch.late_click(columns.after_clicks[row])
        if late is not None:
            return late
        if is_new and not self.is_home_of(columns.users[row]):
            return Refusal.FOREIGN_USER
        if is_new and columns.tracks[row] not in TRACKS:
            return Refusal.UNKNOWN_LINE
        return batch.bad_baseline(decoded, row) if columns.eligible[row] else None

    def _decide_publicly(
        self,
        agent: EdgeAgent,
        event_id: str,
        context: NDArray[np.float32],
        mask: NDArray[np.bool_] | None,
        batch: DecisionBatch,
    ) -> None:
        """Answer a user beyond their quota from the shared model alone, without learning from the decision."""
        choice = agent.decide_publicly(context, mask)
        answer = PastDecision("", choice.arm, choice.billionths, choice.model_version)
        if batch.replayed is not None:
            answer = batch.as_journaled(answer, partial(agent.public_score_gap, context, mask))
        batch.answer(event_id, answer, PUBLIC)
        batch.counts[Outcome.OVER_QUOTA] += 1

    # Log time and slots.

    def advance(self, now_ms: int, batch: DecisionBatch) -> None:
        """Move log time forward: close decisions whose wait is over, send slots that have settled, release the lift."""
        before_ms = self.now_ms
        if now_ms <= before_ms:
            return
        self.now_ms = now_ms
        if self._run.rows:
            oldest_ms = self._run.times_ms[0]
            if min(oldest_ms + self.terms.attribution_window_ms, settled_at(oldest_ms, self.settle_ms)) <= now_ms:
                self._answer_run()
        if self.past.next_ms <= now_ms:
            never, ended = self.past.ended(now_ms, self.lift is not None)
            batch.counts.update({JoinOutcome.NEVER_SHOWN: never} if never else {})
            for event_id, user, decision in ended:
                self._expire(event_id, user, decision, batch)
        due, settled = self.due, []
        if due and settled_at(due[0][0], self.settle_ms) <= now_ms:
            self._answer_run()
        while due and settled_at(due[0][0], self.settle_ms) <= now_ms:
            settled.append(due.popleft()[1])
        if settled:
            self._send_slots(settled, now_ms, batch)
        if self.lift is not None and before_ms and now_ms // self.lift_ms != before_ms // self.lift_ms:
            self._answer_run()
            self._release_lift(batch)
        if self.expire_ms is not None and now_ms // self.sweep_ms != before_ms // self.sweep_ms:
            self._answer_run()
            batch.counts[Outcome.EXPIRED] += self.agents.expire(now_ms - self.expire_ms + 1)

    def _calm_ms(self) -> int:
        """The log time below which nothing ends, settles or is released, whatever rows come."""
        oldest_ms = self._run.times_ms[0] if self._run.rows else self.now_ms
        due_ms = self.due[0][0] if self.due else oldest_ms
        moments = [
            self.past.next_ms,
            oldest_ms + self.terms.attribution_window_ms,
            settled_at(min(oldest_ms, due_ms), self.settle_ms),
        ]
        spans_ms = (self.lift is not None and self.lift_ms, self.expire_ms is not None and self.sweep_ms)
        return min(*moments, *((self.now_ms // span_ms + 1) * span_ms for span_ms in spans_ms if span_ms))

    def _expire(self, event_id: str, user: str, decision: OpenDecision, batch: DecisionBatch) -> None:
        """Learn from a decision whose wait is over."""
        seen, run = decision.shown_arm != NOT_SHOWN, self._run
        if user in run.users or self.lift is not None:
            self._answer_run()
        agent = self._agent(user)
        if seen:
            batch.counts[JoinOutcome.EXPIRED_AS_ZERO] += 1
            run.add(agent.row, agent.expired(decision))
        if self.lift is not None:
            agreed = decision.shown_arm == decision.arm if seen else None
            self._count_lift(self.lift, agent, event_id, decision, agreed, 0.0)

    def _send_slots(self, users: Sequence[str], waited_ms: int, batch: DecisionBatch) -> None:
        """Send a slot of each user. A user whose state was deleted meanwhile still owes a slot, which holds null.

        Reward windows that end by ``waited_ms`` count as ended.
        """
        period, slots = self.now_ms // self.period_ms, list[Slot]()
        for first in range(0, len(users), AT_ONCE):
            found = [(user, self.agents.get(user)) for user in users[first : first + AT_ONCE]]
            slots += [self.agents.take_owed(user) for user, agent in found if agent is None]
            slots += take_slots(self.terms, [agent for _, agent in found if agent is not None], waited_ms)
        batch.outputs.extend(slot_outputs(self.system, [TakenSlot(slot, period) for slot in slots]))
        batch.sent += len(slots)
        batch.counts[Outcome.SLOT_SENT] += len(slots)

    def end_phase(self, phase: int, batch: DecisionBatch) -> None:
        """Send all slots that are due, and pass the phase end on; it is public, and ends all reward windows."""
        self._answer_run()
        if self.due:
            users = [user for _, user in self.due]
            self.due.clear()
            self._send_slots(users, NEVER_MS, batch)
        self._release_lift(batch)
        batch.outputs.extend(phase_end_outputs(self.system, self.partition, phase))

    # The lift, and erasures.

    def _count_lift(
        self,
        lift: LiftCounter,
        agent: EdgeAgent,
        event_id: str,
        decision: OpenDecision,
        agreed: bool | None,
        reward: float,
    ) -> None:
        """Count a decision whose outcome is known, of groups only if what was decided was shown.

        ``agreed`` says whether it was; None: nothing was shown.
        """
        user, index = lift_user(agent.key), decision.number
        if self.system.config.measurement.of == "answers" and agreed is not None:
            lift.count(user, index, 2 * decision.arm + (not agreed), decision.deadline_ms, reward)
        elif agreed:
            group = self.group_of(agent)
            if lift.count(user, index, group, decision.deadline_ms, reward) and self.guardrail is not None:
                self.guardrail.shown(user, event_id, group)
        elif lift.drop(user, index) and self.guardrail is not None:
            self.guardrail.let_go(user, event_id)

    def _release_lift(self, batch: DecisionBatch) -> None:
        """Release the lift's running counts once more, if there is a lift and the budget allows it."""
        if self.lift is not None:
            batch.release(partial(self._draw_lift, self.lift))

    def _draw_lift(self, lift: LiftCounter, charge: ChargeResult) -> tuple[Output, ...]:
        if charge.refused:
            return ()
        step, price = lift.release(self.now_ms), lift_debit(*required_lift(self.system.config)).cost
        record: dict[str, Any] = {
            "release_id": self.lift_id(step.leaf),
            "config_digest": self.system.digest,
            "counter": self.lift_id(),
            "leaf": step.leaf,
            "levels": self.system.config.release.levels,
            "sums": step.sums.astype("<i8").tobytes(),
            "variance": step.variance,
            "epsilon_micro": price.epsilon_micro,
            "delta_units": delta_to_bytes(price.delta_units),
            "private_as_stated": not (self.key.reproducible or self.system.guarantee().tainted),
        }
        if self.guardrail is not None:
            harm = self.guardrail.release(self.now_ms)
            record |= {"guardrail": harm.sums.astype("<i8").tobytes(), "guardrail_variance": harm.variance}
        entry = self.system.ledger_entry(record["release_id"], charge.debit, record["private_as_stated"])
        sent = (("lift", "Lift", record), ("ledger-edge", "LedgerEntry", entry))
        return tuple(Output(topic, self.partition, codec.encode(name, fields)) for topic, name, fields in sent)

    def close(self, user: str, batch: DecisionBatch) -> None:
        """Delete a user's state, and remove their name from the remembered events."""
        self._answer_run()
        self.agents.delete_state(user)
        if self.lift is not None:
            self.lift.forget(lift_user(self.terms.user_key(user)))
        if self.guardrail is not None:
            self.guardrail.forget(lift_user(self.terms.user_key(user)))
        self.forget_events(user)


def _never(arm: int, propensity: int) -> float:
    """The score gap of an answer that no score decides."""
    return np.inf


# What is computed for many users at once.

AT_ONCE = 256
"""How many rows are answered, lessons learned and slots taken at once at most: a row takes memory with every item and
own step of its user, and more of them would not fit a core's cache."""


class Run:
    """Rows that are answered together, and lessons that wait: only the order within one user matters.

    A row waits until something happens that changes its answer: a click or an end of its user or event, another model,
    other items. A decision alone changes no score, so one user may have several rows. A lesson waits until its user's
    next decision, and is learned then with all others.

    Attributes:
        decoded, batch: where the rows belong.
        rows: their numbers.
        at, masks, times_ms, own_choices: of each its user's row, the arms that may be chosen, its log time, and with a
            lift, whether the application's own choice may answer it.
        events, users: their events and users.
        lessons, taught: the lessons that wait, and the rows of their users.
    """

    __slots__ = ("at", "batch", "decoded", "events", "lessons", "masks", "own_choices", "rows", "taught",
                 "times_ms", "users")  # fmt: skip

    batch: DecisionBatch

    def __init__(self) -> None:
        """Begin without rows and lessons."""
        self.decoded: DecodedContexts | None = None
        self.lessons: list[Lesson] = []
        self.taught: set[int] = set()
        self.clear()

    def clear(self) -> None:
        """Begin without rows."""
        self.rows: list[int] = []
        self.at: list[int] = []
        self.masks: list[Mask] = []
        self.times_ms: list[int] = []
        self.own_choices: list[bool] = []
        self.events: set[str] = set()
        self.users: set[str] = set()

    def add(self, at: int, lesson: Lesson) -> None:
        """Have a lesson of the user of a row learned before their next decision."""
        self.lessons.append(lesson)
        self.taught.add(at)
