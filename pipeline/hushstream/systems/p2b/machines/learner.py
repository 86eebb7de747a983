"""The learner role: many `EdgeAgent`s on a stream (edge zone).

What a batch folds (`hushstream.engine.deciding_fold`) and what was decided go into one decisions record, which is at
once the answer to the client and the journal. Slots follow from it; their bytes are fixed by the fold and their digest
is journaled before they are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.deciding import DECIDING, MEMORIES, DecisionRole, Journaled
from hushstream.engine.deciding_fold import CERTAIN, MODEL, PUBLIC, DecisionFold
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.early_feedback import UserEarlyFeedback
from hushstream.engine.learner.intake import DecodedContexts, decode_checked, eligible_mask
from hushstream.engine.learner.models import ModelReader, OnChain
from hushstream.engine.noise.budget import ledger_fields
from hushstream.engine.noise.spending import SPENDING, Spending
from hushstream.engine.records import InputSlice, Output
from hushstream.engine.state.declared import FIXED, Several, Single, State, after, optional_record
from hushstream.engine.state.packed import finished
from hushstream.engine.state.parts import READER, array, record
from hushstream.engine.state.spilled import MemoryUserStore, StoredUser, UserStore
from hushstream.feedback.join import JoinOutcome, OpenDecision
from hushstream.feedback.memory import FeedbackRow, PastDecision
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.privacy.noise import NoiseAddress
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.systems.p2b.deployment import TRACKS, P2BSystem
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.deadlines import Deadlines
from hushstream.systems.p2b.edge.look_ahead import AHEAD_AT_LEAST, AHEAD_AT_MOST, LookAhead
from hushstream.systems.p2b.edge.user_records import unpack_agent
from hushstream.systems.p2b.edge.users import Users, UsersCut
from hushstream.systems.p2b.lift import LiftCounter, holdout_arm, in_holdout, lift_user
from hushstream.systems.p2b.lift_records import lift_record
from hushstream.systems.p2b.machines.models import decode_model
from hushstream.systems.p2b.machines.sending import TakenSlot, phase_end_outputs, slot_outputs

_SHARED = record("Shared", line="string", version="int", users="long", newest="boolean", state="bytes")


class _UsersField:
    """The users: whom the store holds, who lies in memory, and who waits for a deadline."""

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
        """See `InPortions.portions`: the first step copies what is small, or copied as one block."""
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
    """Who was not spilled: whom the store could not take, and of the others those whose decisions wait, by name."""
    names = {user for user, _ in cut.kept}
    yield from ({"user": user, "value": value} for user, value in cut.kept)
    # They must be in memory, as their deadlines are.
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


class LearnerMachine(DecisionRole):
    """The learner on one partition of contexts and clicks."""

    state = State(
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
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("period_ms", "expire_ms", "sweep_ms", "lift_ms"), FIXED),
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
            [ModelReader(system, track, TRACKS[track], "Model") for track in range(system.track_count)],
            UserEarlyFeedback(config.feedback.early_feedback, config.users.early_feedback),
            config.feedback.remembered_events,
            round(config.slot.settle_seconds * 1000),
        )
        self.terms = system.edge_terms()
        self.agents = self.make_users(None)
        self.deadlines = Deadlines()
        self.period_ms = round(config.slot.period_seconds * 1000)
        after = config.users.expire_after_seconds
        self.expire_ms = None if after is None else max(1, round(after * 1000))
        self.sweep_ms = max(1, (self.expire_ms or 0) // 4)
        """How often, in log time, what has expired is looked for among those who do not come back."""
        self.lift: LiftCounter | None = None
        self.spending: Spending | None = Spending(system.lift_terms, partition) if config.lift.holdout else None
        """What the lift's releases spend, where there are any."""
        self.lift_ms = round(config.lift.every_seconds * 1000)

    @property
    def refused(self) -> Exhausted | None:
        """See `Machine.refused`: the lift's releases."""
        return None if self.spending is None else self.spending.refusal(self.epoch.next_place())

    @property
    def _releases(self) -> bool:
        return self.lift is not None

    @property
    def _reaches_ahead(self) -> bool:
        return self.lift is not None

    def _redraw(self) -> None:
        if self.lift is not None:
            self.lift.redraw(self._lift_address())

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
        """The lift's counter under noise of this journal; None where there is no hold-out."""
        config = self.system.config
        if not config.lift.holdout:
            return None
        wait_ms = self.terms.attribution_window_ms
        key = self.key.derive("lift")
        return LiftCounter(config.lift, config.release.levels, wait_ms, key, self._lift_address())

    def _lift_address(self) -> NoiseAddress:
        return self.system.lift_address(self.nonce, self.partition, self.epoch.number)

    def in_holdout(self, agent: EdgeAgent) -> bool:
        """Whether a user is never answered by a model."""
        return self.lift is not None and in_holdout(agent.key, self.system.config.lift)

    def lift_id(self, *parts: int) -> bytes:
        """16 opaque bytes that name a release of the lift, or (without parts) its counter."""
        place = b"".join(part.to_bytes(8, "little") for part in (self.partition, *parts))
        # The counter keeps its name over all epochs, so that its newest release takes the place of those before.
        return self.key.digest("lift-id", self.nonce if parts else self.chain.genesis_nonce, place)

    def snapshot_portions(self) -> Generator[None, None, bytes]:
        return self.state.portions(self)

    def _find_deadlines(self) -> None:
        """Know when each decision that waits is due."""
        waiting = [
            (decision.deadline_ms, agent, event_id)
            for agent in self.agents.values()
            for event_id, decision in agent.open.items()
        ]
        self.deadlines = Deadlines(sorted(waiting, key=lambda item: item[0]))

    def _batch(self, sequence: int, journaled: Journaled | None) -> LearnerFold:
        return LearnerFold(self, journaled)

    def _decode(self, part: InputSlice) -> DecodedContexts:
        return decode_checked(part, self.system.requests)

    def user_key(self, user: str) -> Key:
        """The key that a user's coins and report ids come from, derived from the edge key."""
        return self.agents.user_key(user)


def _never(arm: int) -> float:
    """The score gap of an answer that no score decides."""
    return np.inf


class LearnerFold(DecisionFold[LearnerMachine]):
    """See `DecisionFold`; what is due here is a user's slot."""

    def __init__(self, machine: LearnerMachine, journaled: Journaled | None) -> None:
        super().__init__(machine, journaled)
        self._taken: list[TakenSlot] = []
        self._ahead = LookAhead(machine.terms.policy)

    _policy = "linucb"

    def run(self, slices: Sequence[InputSlice]) -> None:
        """See `DecisionFold.run`; users whom nobody met for long are spilled after it."""
        super().run(slices)
        self._machine.agents.rest()

    def _adopt(self, reader: ModelReader, record: OnChain) -> None:
        machine = self._machine
        model = decode_model(machine.system, record.fields)
        machine.terms.policy.adopt(reader.track, model.version, model.gram, model.moment)

    # Clicks.

    def _feed(self, click: FeedbackRow, part: InputSlice) -> None:
        machine = self._machine
        agent = machine.agents.get(click.user)
        decision = None if agent is None else agent.open.get(click.event_id)
        if agent is not None and decision is not None:
            self._apply(agent, decision, click, part)
            return
        past = machine.past.get(click.event_id)
        if past is None and agent is not None and agent.open.has_answer(click.event_id):
            self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
        elif past is None:
            self._park(click, part)
        elif past.user != click.user:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        elif past.expired:
            self._too_late(click)
        else:
            self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1

    def _park(self, click: FeedbackRow, part: InputSlice) -> None:
        """Let a click wait for its context; one user's clicks may not take the place of everybody's."""
        gave_way = self._machine.early.hold(click)
        if gave_way is None:
            self._refuse(Refusal.TOO_MUCH_EARLY_FEEDBACK, part, click.offset, click.row)
            return
        self.counts[Outcome.EARLY_FEEDBACK] += 1
        for evicted in gave_way:
            self._refuse(Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)

    def _apply(self, agent: EdgeAgent, decision: OpenDecision, click: FeedbackRow, part: InputSlice) -> None:
        if click.arm >= self._machine.arms:
            self._refuse(Reason.UNKNOWN_ARM, part, click.offset, click.row)
        elif click.time_ms > decision.deadline_ms:
            self._too_late(click)
        elif click.rewarded:
            outcome = agent.rewarded_checked(click.event_id, click.arm, click.reward)
            self.counts[outcome] += 1
            if outcome is JoinOutcome.REWARDED:
                self._count_lift(agent, decision, click.reward)
        else:
            self.counts[agent.shown(click.event_id, click.arm)] += 1

    # Contexts.

    def _decide_rows(self, decoded: DecodedContexts, first: int, last: int, part: InputSlice) -> None:
        """See `DecisionFold._decide_rows`; rows that no click or model comes between are scored together."""
        while first < last:
            # The first row takes what comes before it; what then still waits comes before another row, if at all.
            super()._decide_rows(decoded, first, first + 1, part)
            rows = range(first + 1, min(first + AHEAD_AT_MOST, last))
            undisturbed = self._undisturbed(decoded, rows)
            if len(undisturbed) >= AHEAD_AT_LEAST:
                self._ahead.look(decoded.columns, undisturbed, self._machine.agents.peek)
            super()._decide_rows(decoded, rows.start, rows.stop, part)
            first = max(first + 1, rows.stop)

    def _undisturbed(self, decoded: DecodedContexts, rows: range) -> range:
        """The first of these rows, up to where the next click or model comes or one is refused."""
        times_ms, after_clicks = decoded.columns.timestamps_ms, decoded.columns.after_clicks
        next_ms, next_click = min(self._clicks.next_ms, self._models.next_ms), self._clicks.next_offset
        disturbed = (
            row for row in rows if times_ms[row] >= next_ms or after_clicks[row] >= next_click or row in decoded.refused
        )
        return range(rows.start, next(disturbed, rows.stop))

    def _context(self, decoded: DecodedContexts, row: int, part: InputSlice) -> None:
        columns = decoded.columns
        reason = decoded.refused.get(row) if decoded.refused else None
        past = self._machine.past.get(columns.event_ids[row])
        if reason is None and past is None:
            self._decide(decoded, row, part)
        elif reason is None and past is not None and past.user == columns.users[row]:
            self._repeat(columns.event_ids[row], past)
        else:
            why = reason or Refusal.EVENT_OF_ANOTHER_USER
            self._refuse(why, part, columns.offsets[row], columns.rows[row])

    def _decide(self, decoded: DecodedContexts, row: int, part: InputSlice) -> None:
        machine, columns = self._machine, decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        agent = machine.agents.get(user)
        mask = None
        now_ms = machine.now_ms
        if agent is not None and machine.expire_ms is not None and agent.seen_ms + machine.expire_ms <= now_ms:
            machine.agents.give_up(user)
            self.counts[Outcome.EXPIRED] += 1
            agent = None
        if agent is None or columns.eligible[row] or columns.after_clicks[row] >= 0:
            reason = self._objection(decoded, row, agent)
            if reason is not None:
                self._refuse(reason, part, columns.offsets[row], columns.rows[row])
                return
            if columns.eligible[row]:
                mask = eligible_mask(columns.eligible[row], machine.arms)
            if agent is None:
                agent = machine.agents.begin(user, columns.tracks[row])
        known = agent.known(event_id, now_ms)
        if known is not None:
            self._repeat(event_id, PastDecision(user, known.arm, known.billionths, known.model_version))
            return
        if not agent.within_quota(now_ms):
            self._decide_publicly(agent, event_id, columns.contexts[row], mask)
            return
        best = self._ahead.best(row, agent)
        choice = agent.decide_new(event_id, columns.contexts[row].copy(), now_ms, mask, best)
        past = PastDecision(user, choice.arm, choice.billionths, choice.model_version)
        held_out = machine.in_holdout(agent)
        if held_out:
            past = self._held_out(event_id, past, columns.baselines[row], mask)
            agent.correct(event_id, past.arm, past.propensity)
        if self._journaled is not None:
            gap = _never if held_out else partial(agent.score_gap, event_id)
            past, changed = self._as_journaled(past, self._journaled, gap)
            if changed:
                agent.correct(event_id, past.arm, past.propensity)
        machine.past.put(event_id, past)
        machine.deadlines.add(now_ms + machine.terms.attribution_window_ms, agent, event_id)
        if choice.slot_due:
            machine.due.append((now_ms, user))
        self._answer(event_id, past, PUBLIC if held_out else MODEL)
        self.counts[Outcome.DECIDED] += 1
        if machine.early:
            self._claim(event_id)

    def _held_out(
        self, event_id: str, decided: PastDecision, baseline: int, mask: NDArray[np.bool_] | None
    ) -> PastDecision:
        """The answer of a user in the hold-out: the baseline that the context names, or any eligible arm."""
        machine = self._machine
        if baseline >= 0:
            return decided._replace(arm=baseline, propensity=CERTAIN)
        everyone = np.arange(machine.arms)
        eligible = everyone if mask is None else everyone[mask]
        arm = holdout_arm(machine.agents.user_key(decided.user), event_id, eligible)
        return decided._replace(arm=arm, propensity=CERTAIN // len(eligible))

    def _objection(self, decoded: DecodedContexts, row: int, agent: EdgeAgent | None) -> Refusal | None:
        """Why a decodable context must not be decided, if it must not."""
        columns = decoded.columns
        late = self._late_click(columns.after_clicks[row])
        if late is not None:
            return late
        if agent is None and not self._machine.is_home_of(columns.users[row]):
            return Refusal.FOREIGN_USER
        if agent is None and columns.tracks[row] not in self._machine.system.tracks_for_users:
            return Refusal.TRACK_NOT_ALLOWED if columns.tracks[row] in TRACKS else Refusal.UNKNOWN_TRACK
        return self._bad_baseline(decoded, row)

    def _decide_publicly(
        self, agent: EdgeAgent, event_id: str, context: NDArray[np.float32], mask: NDArray[np.bool_] | None
    ) -> None:
        """Answer a user who asks for more than their share: not from their clicks, and without learning from them."""
        choice = agent.decide_publicly(context, mask)
        answer = PastDecision("", choice.arm, choice.billionths, choice.model_version)
        if self._journaled is not None:
            gap = partial(agent.public_score_gap, context, choice.arm)
            answer, _ = self._as_journaled(answer, self._journaled, gap)
        self._answer(event_id, answer, PUBLIC)
        self.counts[Outcome.OVER_QUOTA] += 1

    # Log time and slots.

    def _advance(self, now_ms: int) -> None:
        """What was shown and not clicked becomes reward 0, what has settled is taken."""
        machine = self._machine
        before_ms, machine.now_ms = machine.now_ms, now_ms
        due = machine.due
        for agent, event_id in machine.deadlines.passed(now_ms):
            machine.agents.touch(agent)
            decision = agent.open[event_id]
            outcome = agent.expire(event_id)
            self.counts[outcome] += 1
            past = machine.past.get(event_id)
            if past is not None:
                machine.past.put(event_id, past._replace(expired=True))
            if outcome is JoinOutcome.EXPIRED_AS_ZERO and decision.shown_arm == decision.arm:
                self._count_lift(agent, decision, 0.0)
        while due and machine.settled(due[0][0], now_ms):
            self._settle(due.popleft()[1])
        self._send()
        if machine.lift is not None and before_ms and now_ms // machine.lift_ms != before_ms // machine.lift_ms:
            self._release_lift()
        if machine.expire_ms is not None and now_ms // machine.sweep_ms != before_ms // machine.sweep_ms:
            self.counts[Outcome.EXPIRED] += machine.agents.expire(now_ms - machine.expire_ms + 1)

    def _close_phase(self, phase: int) -> None:
        machine = self._machine
        self._release_lift()
        self.releases.extend(phase_end_outputs(machine.system, machine.partition, phase, machine.chain.encode))

    def _count_lift(self, agent: EdgeAgent, decision: OpenDecision, reward: float) -> None:
        """Note a decision whose own arm was shown."""
        machine = self._machine
        if machine.lift is not None:
            user, holdout = lift_user(agent.key), machine.in_holdout(agent)
            machine.lift.count(user, holdout, decision.index, decision.deadline_ms, reward)

    def _release_lift(self) -> None:
        """One more release of the lift's running counts, which the log's time or a phase end asks for."""
        machine = self._machine
        if machine.lift is None or machine.spending is None:
            return
        asked = self._ask(machine.spending, machine.charge())
        if asked.refused:
            return
        step = machine.lift.release(machine.now_ms)
        record = lift_record(
            machine.system, step, machine.lift_id(), machine.lift_id(step.leaf), machine.key.reproducible
        )
        self.releases.append(Output("lift", machine.partition, machine.chain.encode("Lift", record)))
        name, digest, stated = machine.system.config.deployment, machine.system.digest, record["private_as_stated"]
        entry = ledger_fields(name, digest, record["release_id"], asked.debit, stated)
        self.releases.append(Output("ledger-edge", machine.partition, machine.chain.encode("LedgerEntry", entry)))
        self.counts[Outcome.RELEASE] += 1

    def _give_up(self, user: str) -> None:
        machine = self._machine
        machine.agents.give_up(user)
        if machine.lift is not None:
            machine.lift.forget(lift_user(machine.user_key(user)))

    def _settle(self, user: str) -> None:
        """A user whose state was given up meanwhile still owes their slot: with null in it."""
        machine = self._machine
        agent = machine.agents.get(user)
        slot = machine.agents.take_owed(user) if agent is None else agent.take_slot()
        self._taken.append(TakenSlot(slot, machine.now_ms // machine.period_ms, machine.user_key(user)))

    def _send(self, phase: int = 0) -> None:
        machine = self._machine
        if self._taken:
            self.releases.extend(slot_outputs(machine.system, self._taken, phase, machine.chain.encode))
            self._sent += len(self._taken)
            self.counts[Outcome.SLOT_SENT] += len(self._taken)
            self._taken.clear()
