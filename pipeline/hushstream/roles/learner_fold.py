"""One batch of the learner: what its models, clicks and contexts do to the machine, and what follows from them.

Everything that depends on log time happens row by row (`LearnerFold._advance`), so that where a batch was cut
changes no decision and no slot.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.edge.agent import EdgeAgent
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import ParkedClick, PastDecision
from hushstream.roles.intake import FLOAT_TIE_MARGIN, DecodedContexts, clicks_of, eligible_mask
from hushstream.roles.machine import InputSlice, Output, ReplayMismatch
from hushstream.roles.models import decode_model
from hushstream.roles.outcomes import Outcome, Refusal
from hushstream.roles.refusals import WHOLE_RECORD
from hushstream.roles.sending import TakenSlot, seal_outputs, slot_outputs
from hushstream.schemas import codec
from hushstream.schemas.columns import ForgetMark, SealMark, gather_feedback
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.systems.lift import holdout_arm
from hushstream.systems.lift_records import lift_ledger_entry, lift_record
from hushstream.systems.p2b import LINES

if TYPE_CHECKING:
    from hushstream.roles.learner import LearnerMachine

_MODEL, _PUBLIC, _REPEATED = 0, 1, 2
"""How a row was answered: `Decisions.policies`. What everybody would get is the baseline of a user over quota."""


CERTAIN = 10**9
"""The propensity of an answer without chance, in units of 1e-9."""

NOBODY = ""
"""In place of a user who was forgotten; no account has this name."""


def _never(arm: int) -> float:
    """The score gap of an answer that no score decides."""
    return np.inf


class Journaled(NamedTuple):
    """What a journal record says was answered, row by row."""

    arms: list[int]
    propensities: list[int]


class LearnerFold:
    """Folds one batch into a machine, which it changes, and gathers the answers and outputs."""

    def __init__(self, machine: LearnerMachine, journaled: Journaled | None = None) -> None:
        """Begin a batch; ``journaled`` is given on replay only."""
        self._machine = machine
        self._journaled = journaled
        self._event_ids: list[str] = []
        self._arms: list[int] = []
        self._propensities: list[int] = []
        self._policies = bytearray()
        self._versions: list[int] = []
        self._taken: list[TakenSlot] = []
        self._slots = 0
        self.releases: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()

    def run(self, slices: Sequence[InputSlice]) -> None:
        """Fold one slice of every input: models first, then clicks, then contexts."""
        machine = self._machine
        for part in slices:
            if part.topic == "models":
                self._adopt_models(part)
        places = {part.topic: part for part in slices}
        clicks, contexts = places["clicks"], places["contexts"]
        if clicks.records:
            self._join(clicks)
        machine.read["clicks", machine.partition] = clicks.high
        if contexts.records:
            self._decide_slice(contexts, machine.decode(contexts))
        machine.read["contexts", machine.partition] = contexts.high

    def fields(self) -> dict[str, Any]:
        """What the journal record says beside its head."""
        return {
            "log_time_ms": self._machine.now_ms,
            "event_ids": self._event_ids,
            "arms": np.array(self._arms, "<i4").tobytes(),
            "propensities": np.array(self._propensities, "<u4").tobytes(),
            "policy": "linucb",
            "policies": bytes(self._policies),
            "model_versions": np.array(self._versions, "<i4").tobytes(),
            "slots": self._slots,
        }

    def _adopt_models(self, part: InputSlice) -> None:
        machine = self._machine
        reader = machine.models[part.partition]
        for record in reader.read(part):
            try:
                model = decode_model(machine.system, record.fields)
                machine.terms.policy.adopt(reader.line, model.version, model.gram, model.moment)
            except HushstreamError:
                self._refuse(Refusal.MALFORMED_MODEL, part, record.offset, WHOLE_RECORD)
            else:
                self.counts[Outcome.MODEL_ADOPTED] += 1

    # Clicks.

    def _join(self, part: InputSlice) -> None:
        machine = self._machine
        columns = gather_feedback(part.records)
        for reject in columns.rejects:
            self._refuse(reject.reason, part, reject.offset, reject.row)
        machine.last_click_ms = max(machine.last_click_ms, part.records[-1].timestamp_ms)
        for click in clicks_of(columns):
            self._feed(click, part)

    def _feed(self, click: ParkedClick, part: InputSlice) -> None:
        machine = self._machine
        agent = machine.agents.get(click.user)
        if agent is not None and click.event_id in agent.open:
            self._apply(agent, click, part)
            return
        past = machine.past.get(click.event_id)
        if past is None:
            self._park(click, part)
        elif past.user != click.user:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        elif past.expired and click.rewarded:
            self.counts[JoinOutcome.LATE_REWARD] += 1
        else:
            self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1

    def _park(self, click: ParkedClick, part: InputSlice) -> None:
        """Let a click wait for its context; one user's clicks may not take the place of everybody's."""
        gave_way = self._machine.parking.park(click)
        if gave_way is None:
            self._refuse(Refusal.TOO_MANY_PARKED, part, click.offset, click.row)
            return
        self.counts[Outcome.PARKED] += 1
        for evicted in gave_way:
            self._refuse(Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)

    def _apply(self, agent: EdgeAgent, click: ParkedClick, part: InputSlice) -> None:
        if click.arm >= self._machine.system.config.arms:
            self._refuse(Reason.UNKNOWN_ARM, part, click.offset, click.row)
        elif click.rewarded:
            decision = agent.open[click.event_id]
            outcome = agent.rewarded(click.event_id, click.arm, click.reward)
            self.counts[outcome] += 1
            if outcome is JoinOutcome.REWARDED:
                self._count_lift(click.user, decision.index, click.reward)
        else:
            self.counts[agent.shown(click.event_id, click.arm)] += 1

    # Contexts.

    def _decide_slice(self, part: InputSlice, decoded: DecodedContexts) -> None:
        columns = decoded.columns
        for reject in columns.rejects:
            self._refuse(reject.reason, part, reject.offset, reject.row)
        for offset in decoded.oversized:
            self._refuse(Refusal.TOO_MANY_ROWS, part, offset, WHOLE_RECORD)
        done = 0
        marks: list[SealMark | ForgetMark] = [*columns.seals, *columns.forgets]
        for mark in sorted(marks, key=attrgetter("offset")):
            self._decide_rows(decoded, done, mark.position, part)
            done = mark.position
            if isinstance(mark, SealMark):
                self._seal(mark, part)
            else:
                self._forget(mark, part)
        self._decide_rows(decoded, done, len(columns.event_ids), part)
        self._send_slots()

    def _decide_rows(self, decoded: DecodedContexts, first: int, last: int, part: InputSlice) -> None:
        machine, columns = self._machine, decoded.columns
        refused, oversized = decoded.refused, decoded.oversized
        for row in range(first, last):
            if oversized and columns.offsets[row] in oversized:
                continue
            if columns.timestamps_ms[row] > machine.now_ms:
                self._advance(columns.timestamps_ms[row])
            reason = refused.get(row) if refused else None
            past = machine.past.get(columns.event_ids[row])
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
                mask = eligible_mask(columns.eligible[row], machine.system.config.arms)
            if agent is None:
                agent = machine.agents.begin(user, columns.lines[row])
        if event_id not in agent.open and not agent.within_quota(now_ms):
            self._decide_publicly(agent, event_id, columns.contexts[row], mask)
            return
        choice = agent.decide_checked(event_id, columns.contexts[row].copy(), now_ms, mask)
        past = PastDecision(user, choice.arm, choice.propensity, choice.model_version)
        if choice.repeated:
            self._repeat(event_id, past)
            return
        policy = _MODEL
        gap: Callable[[int], float] = partial(agent.score_gap, event_id)
        if machine.in_holdout(user):
            policy, gap = _PUBLIC, _never
            past = self._held_out(event_id, past, columns.baselines[row], mask)
            agent.correct(event_id, past.arm, past.propensity)
        if self._journaled is not None:
            past, changed = self._as_journaled(past, self._journaled, gap)
            if changed:
                agent.correct(event_id, past.arm, past.propensity)
        machine.past.put(event_id, past)
        machine.deadlines.add(now_ms + machine.terms.reward_wait_ms, agent, event_id)
        if choice.slot_due:
            machine.due.append((now_ms, user))
        self._answer(event_id, past, policy)
        self.counts[Outcome.DECIDED] += 1
        if machine.parking:
            for click in machine.parking.claim(event_id):
                self._feed(click, InputSlice("clicks", machine.partition, 0, 0, ()))

    def _held_out(
        self, event_id: str, decided: PastDecision, baseline: int, mask: NDArray[np.bool_] | None
    ) -> PastDecision:
        """The answer of a user in the hold-out: the baseline that the context names, or any eligible arm."""
        machine = self._machine
        if baseline >= 0:
            return decided._replace(arm=baseline, propensity=CERTAIN)
        everyone = np.arange(machine.system.config.arms)
        eligible = everyone if mask is None else everyone[mask]
        arm = holdout_arm(machine.agents.user_key(decided.user), event_id, eligible)
        return decided._replace(arm=arm, propensity=CERTAIN // len(eligible))

    def _objection(self, decoded: DecodedContexts, row: int, agent: EdgeAgent | None) -> Refusal | None:
        """Why a decodable context must not be decided, if it must not."""
        machine, columns = self._machine, decoded.columns
        system = machine.system
        if columns.after_clicks[row] >= machine.read["clicks", machine.partition]:
            return Refusal.AFTER_CLICK_UNREACHABLE
        if agent is None and columns.lines[row] not in system.lines_for_users:
            return Refusal.LINE_NOT_ALLOWED if columns.lines[row] in LINES else Refusal.UNKNOWN_LINE
        mask, baseline = columns.eligible[row], columns.baselines[row]
        if mask and baseline >= 0 and not eligible_mask(mask, system.config.arms)[baseline]:
            return Refusal.BASELINE_NOT_ELIGIBLE
        return None

    def _decide_publicly(
        self, agent: EdgeAgent, event_id: str, context: NDArray[np.float32], mask: NDArray[np.bool_] | None
    ) -> None:
        """Answer a user who asks for more than his share: not from his clicks, and without learning from them."""
        choice = agent.decide_publicly(context, mask)
        answer = PastDecision("", choice.arm, choice.propensity, choice.model_version)
        if self._journaled is not None:
            gap = partial(agent.public_score_gap, context, choice.arm)
            answer, _ = self._as_journaled(answer, self._journaled, gap)
        self._answer(event_id, answer, _PUBLIC)
        self.counts[Outcome.OVER_QUOTA] += 1

    def _as_journaled(
        self, decided: PastDecision, journaled: Journaled, gap: Callable[[int], float]
    ) -> tuple[PastDecision, bool]:
        """What the journal holds for the next row, if the scores allow it, and whether it is another arm."""
        machine, row = self._machine, len(self._arms)
        if row >= len(journaled.arms):
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs hold more contexts than the record decided"
            )
        arm, propensity = journaled.arms[row], journaled.propensities[row]
        if (arm, propensity) == (decided.arm, decided.propensity):
            return decided, False
        if not 0 <= arm < machine.system.config.arms or gap(arm) > FLOAT_TIE_MARGIN:
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs give another arm at row {row}, beyond a float tie"
            )
        machine.float_ties += 1
        return decided._replace(arm=arm, propensity=propensity), True

    def _repeat(self, event_id: str, past: PastDecision) -> None:
        self._answer(event_id, past, _REPEATED)
        self.counts[Outcome.REPEATED_CONTEXT] += 1

    def _answer(self, event_id: str, answer: PastDecision, policy: int) -> None:
        self._event_ids.append(event_id)
        self._arms.append(answer.arm)
        self._propensities.append(answer.propensity)
        self._policies.append(policy)
        self._versions.append(answer.model_version)

    # Log time and slots.

    def _advance(self, now_ms: int) -> None:
        """Let log time go on: what was shown and not clicked becomes reward 0, what has settled is taken."""
        machine = self._machine
        before_ms, machine.now_ms = machine.now_ms, now_ms
        due = machine.due
        for agent, event_id in machine.deadlines.passed(now_ms):
            index = agent.open[event_id].index
            outcome = agent.expire(event_id)
            self.counts[outcome] += 1
            past = machine.past.get(event_id)
            if past is not None:
                machine.past.put(event_id, past._replace(expired=True))
                if outcome is JoinOutcome.EXPIRED_AS_ZERO:
                    self._count_lift(past.user, index, 0.0)
        while due and machine.settled(due[0][0], now_ms):
            self._take_slot(due.popleft()[1])
        if machine.lift is not None and before_ms and now_ms // machine.lift_ms != before_ms // machine.lift_ms:
            self._release_lift()
        if machine.expire_ms is not None and now_ms // machine.sweep_ms != before_ms // machine.sweep_ms:
            self.counts[Outcome.EXPIRED] += machine.agents.expire(now_ms - machine.expire_ms + 1)

    def _seal(self, mark: SealMark, part: InputSlice) -> None:
        machine = self._machine
        reason = None
        if mark.after_click >= machine.read["clicks", machine.partition]:
            reason = Refusal.AFTER_CLICK_UNREACHABLE
        elif mark.phase < 0:
            reason = Refusal.BAD_PHASE
        if reason is not None:
            self._refuse(reason, part, mark.offset, WHOLE_RECORD)
            return
        if mark.timestamp_ms > machine.now_ms:
            self._advance(mark.timestamp_ms)
        while machine.due:
            self._take_slot(machine.due.popleft()[1])
        self._send_slots(mark.phase)
        self._release_lift()
        self.releases.extend(seal_outputs(machine.system, machine.partition, mark.phase))
        self.counts[Outcome.SEAL] += 1

    def _count_lift(self, user: str, index: int, reward: float) -> None:
        machine = self._machine
        if machine.lift is not None:
            machine.lift.count(machine.in_holdout(user), index, reward)

    def _release_lift(self) -> None:
        """One more release of the lift's running counts, which the log's time or a seal asks for."""
        machine = self._machine
        step = None if machine.lift is None else machine.lift.release()
        if step is None:
            return
        record = lift_record(machine.system, step, machine.lift_id(), machine.lift_id(step.leaf), machine.reproducible)
        self.releases.append(Output("lift", machine.partition, codec.encode("Lift", record)))
        if step.leaf == 1:
            entry = lift_ledger_entry(machine.system, record, machine.partition)
            self.releases.append(Output("ledger-edge", machine.partition, codec.encode("LedgerEntry", entry)))
        self.counts[Outcome.RELEASE] += 1

    def _forget(self, mark: ForgetMark, part: InputSlice) -> None:
        """Give up a user's state, and take his name out of what is remembered of events."""
        machine = self._machine
        if mark.config_digest != machine.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, part, mark.offset, WHOLE_RECORD)
            return
        if mark.timestamp_ms > machine.now_ms:
            self._advance(mark.timestamp_ms)
        machine.agents.give_up(mark.user)
        for event_id, past in list(machine.past.items()):
            if past.user == mark.user:
                machine.past.put(event_id, past._replace(user=NOBODY))
        machine.parking.forget(mark.user)
        self.counts[Outcome.FORGOTTEN] += 1

    def _take_slot(self, user: str) -> None:
        """A user whose state was given up meanwhile still owes his slot: with null in it."""
        machine = self._machine
        agent = machine.agents.get(user)
        slot = machine.agents.take_owed(user) if agent is None else agent.take_slot()
        self._taken.append(TakenSlot(slot, machine.now_ms // machine.period_ms, machine.user_key(user)))

    def _send_slots(self, phase: int = 0) -> None:
        if self._taken:
            self.releases.extend(slot_outputs(self._machine.system, self._taken, phase))
            self._slots += len(self._taken)
            self.counts[Outcome.SLOT_SENT] += len(self._taken)
            self._taken.clear()

    def _refuse(self, reason: str, part: InputSlice, offset: int, row: int) -> None:
        """A dead letter; a record of an earlier batch (a parked click) is known by its place alone."""
        machine = self._machine
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(machine.letters.letter(reason, part.topic, machine.partition, offset, row, value))
        self.counts[Outcome.REJECTED] += 1
