"""One batch of any learner: what models, clicks and contexts do to it, and the answers that the journal record holds.

The inputs of a batch take their turns by log time, at equal log times clicks first, then models, then contexts; a
record whose log time lies before its predecessor's counts as if it had that one's. A context that names a click
(``after_click``) comes after it, as far as that is at most `CLICK_CLOCK_MARGIN_MS` younger. Whatever waits for log time
is done when a context or a phase end brings it (`DecisionFold._advance`), never by a click: clicks, or the lack of
them, move nothing that leaves from here, neither when nor together with what. Whether feedback comes in time is judged
by its own log time against the deadline of its decision.

So where batches are cut changes nothing that leaves, as long as no batch holds a context while an input has records
left that come before it. Whoever cuts batches sees to that (`hushstream.agents.partition.schedule`), as far as a log
that was read to its end goes on at a later log time. Where the room for feedback without context
(`feedback.early_feedback`) is shared by all users of a partition, so in a flood that fills it one user's click decides
whether feedback of another is lost; what leaves, and when, it never decides. Where what leaves depends on it, each user
has places of their own, and no reward takes one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np

from hushstream.engine.deciding import DecisionRole, Journaled
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.cursors import NEVER_MS, ClickTurns, ModelTurns
from hushstream.engine.learner.intake import FLOAT_TIE_MARGIN, DecodedContexts, eligible_mask
from hushstream.engine.learner.models import ModelReader, OnChain
from hushstream.engine.noise.budget import Place, debit_fields
from hushstream.engine.noise.spending import Asked, Spending
from hushstream.engine.records import InputSlice, Output, ReplayMismatch
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import FeedbackRow, PastDecision
from hushstream.schemas.columns import ForgetMark, OwnMark, PhaseEndMark
from hushstream.schemas.errors import HushstreamError

MODEL, PUBLIC, REPEATED = 0, 1, 2
"""How a row was answered: `Decisions.policies`. What everybody would get is the baseline of a user over quota."""

CERTAIN = 10**9
"""The propensity of an answer without chance, in units of 1e-9."""

NOBODY = ""
"""In place of a user who was forgotten; no account has this name."""


LearnerT = TypeVar("LearnerT", bound=DecisionRole)


class DecisionFold(ABC, Generic[LearnerT]):
    """Folds one batch into a machine, which it changes, and gathers the answers and outputs."""

    def __init__(self, machine: LearnerT, journaled: Journaled | None) -> None:
        """Begin a batch; ``journaled`` is given on replay only."""
        self._machine = machine
        self._journaled = journaled
        self._models = ModelTurns(())
        self._clicks = ClickTurns(InputSlice(machine.clicks_topic, machine.partition, 0, 0, ()), 0)
        self._event_ids: list[str] = []
        self._arms: list[int] = []
        self._propensities: list[int] = []
        self._policies = bytearray()
        self._versions: list[int] = []
        self._sent = 0
        """Slots or rows that left."""
        self._debits: list[dict[str, Any]] = []
        """What the releases of noised sums were debited, in the order in which they were asked for."""
        self.releases: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()

    # What a learner does in its own way.

    @property
    @abstractmethod
    def _policy(self) -> str:
        """The name of the policy that the journal record holds."""

    @abstractmethod
    def _adopt(self, reader: ModelReader, record: OnChain) -> None:
        """Take over a published model.

        Raises:
            HushstreamError: it is not a model of this deployment.
        """

    @abstractmethod
    def _feed(self, click: FeedbackRow, part: InputSlice) -> None:
        """Join one piece of feedback to its decision, or let it wait for it."""

    @abstractmethod
    def _context(self, decoded: DecodedContexts, row: int, part: InputSlice) -> None:
        """Answer one context, or refuse it; log time has come as far as it."""

    @abstractmethod
    def _advance(self, now_ms: int) -> None:
        """Let log time go on, do what had to wait for it, and send what thereby is fixed."""

    @abstractmethod
    def _settle(self, due: str) -> None:
        """Fix what leaves for an event or user that was due."""

    @abstractmethod
    def _send(self, phase: int = 0) -> None:
        """Send what was fixed since."""

    @abstractmethod
    def _close_phase(self, phase: int) -> None:
        """Pass a phase end on, when all that was due before it has been sent."""

    @abstractmethod
    def _give_up(self, user: str) -> None:
        """Drop what is known of a user who is to be forgotten, beside what every learner remembers of events."""

    def _hear(self, mark: OwnMark, part: InputSlice) -> None:
        """Take a record among contexts that this system alone knows; none is decoded where there are no such."""

    # The batch.

    def run(self, slices: Sequence[InputSlice]) -> None:
        """Fold one slice of every input."""
        machine = self._machine
        places = {part.topic: part for part in slices}
        clicks, contexts = places[machine.clicks_topic], places[machine.contexts_topic]
        published = [(machine.models[part.partition], part) for part in slices if part.topic == "models"]
        self._models = ModelTurns(published)
        self._clicks = ClickTurns(clicks, machine.last_click_ms)
        for reject in self._clicks.rejects:
            self._refuse(reject.reason, clicks, reject.offset, reject.row)
        if contexts.records:
            self._decide_slice(contexts, machine.decode(contexts))
        self._hear_until(NEVER_MS - 1, -1)
        machine.read[machine.clicks_topic, machine.partition] = clicks.high
        machine.read[machine.contexts_topic, machine.partition] = contexts.high

    def _hear_until(self, log_time_ms: int, after_click: int) -> None:
        """Take what comes before a context or phase end of this log time that names this click."""
        machine, clicks = self._machine, self._clicks
        while self._models.next_ms <= log_time_ms:
            for click in clicks.take(self._models.next_ms):
                self._feed(click, clicks.part)
            self._adopt_next()
        for click in clicks.take(log_time_ms, after_click):
            self._feed(click, clicks.part)
        machine.last_click_ms, machine.read[machine.clicks_topic, machine.partition] = clicks.latest_ms, clicks.read_to

    def fields(self) -> dict[str, Any]:
        """What the journal record says beside its head."""
        return {
            "log_time_ms": self._machine.now_ms,
            "event_ids": self._event_ids,
            "arms": np.array(self._arms, "<i4").tobytes(),
            "propensities": np.array(self._propensities, "<u4").tobytes(),
            "policy": self._policy,
            "policies": bytes(self._policies),
            "model_versions": np.array(self._versions, "<i4").tobytes(),
            "slots": self._sent,
            "debits": self._debits,
        }

    def _ask(self, spending: Spending, place: Place) -> Asked:
        """Ask whether a release may be made; the journal record holds what it was debited."""
        asked = spending.ask(place)
        self._debits.append(debit_fields(asked.debit))
        if asked.refused:
            self.counts[Outcome.RELEASE_WITHHELD] += 1
        return asked

    def _adopt_next(self) -> None:
        reader, record, part = self._models.take()
        try:
            self._adopt(reader, record)
        except HushstreamError:
            self._refuse(Refusal.MALFORMED_MODEL, part, record.offset, WHOLE_RECORD)
        else:
            self.counts[Outcome.MODEL_ADOPTED] += 1

    # Clicks.

    def _too_late(self, click: FeedbackRow) -> None:
        """Count feedback whose decision waits no more; only a reward is missed."""
        self.counts[JoinOutcome.LATE_REWARD if click.rewarded else JoinOutcome.REPEATED_FEEDBACK] += 1

    def _claim(self, event_id: str) -> None:
        """Join what waited for an event that has now been decided."""
        machine = self._machine
        for click in machine.early.claim(event_id):
            self._feed(click, InputSlice(machine.clicks_topic, machine.partition, 0, 0, ()))

    # Contexts.

    def _decide_slice(self, part: InputSlice, pieces: Sequence[DecodedContexts]) -> None:
        covered = range(part.low, part.high)
        for piece in pieces:
            for reject in piece.columns.rejects:
                if reject.offset in covered:
                    self._refuse(reject.reason, part, reject.offset, reject.row)
        for piece in pieces:
            for offset in piece.oversized:
                if offset in covered:
                    self._refuse(Refusal.TOO_MANY_ROWS, part, offset, WHOLE_RECORD)
        for piece in pieces:
            self._decide_piece(part, piece)

    def _decide_piece(self, part: InputSlice, decoded: DecodedContexts) -> None:
        columns, rows = decoded.columns, decoded.rows_of(part)
        done = rows.start
        marks: list[PhaseEndMark | ForgetMark | OwnMark] = [*columns.phase_ends, *columns.forgets, *columns.own]
        for mark in sorted(marks, key=attrgetter("offset")):
            if not part.low <= mark.offset < part.high:
                continue
            self._decide_rows(decoded, done, mark.position, part)
            done = mark.position
            if isinstance(mark, PhaseEndMark):
                self._phase_end(mark, part)
            elif isinstance(mark, ForgetMark):
                self._forget(mark, part)
            else:
                self._hear(mark, part)
        self._decide_rows(decoded, done, rows.stop, part)

    def _decide_rows(self, decoded: DecodedContexts, first: int, last: int, part: InputSlice) -> None:
        machine, oversized = self._machine, decoded.oversized
        offsets, times_ms = decoded.columns.offsets, decoded.columns.timestamps_ms
        after_clicks, answer_context = decoded.columns.after_clicks, self._context
        models, clicks = self._models, self._clicks
        for row in range(first, last):
            if oversized and offsets[row] in oversized:
                continue
            now_ms, after_click, before_ms = times_ms[row], after_clicks[row], machine.now_ms
            if now_ms < before_ms:
                now_ms = before_ms
            if clicks.next_ms <= now_ms or clicks.next_offset <= after_click or models.next_ms <= now_ms:
                self._hear_until(now_ms, after_click)
            if now_ms > before_ms:
                self._advance(now_ms)
            answer_context(decoded, row, part)

    def _late_click(self, after_click: int) -> Refusal | None:
        """Whether a click that a record names never came."""
        machine = self._machine
        unreachable = after_click >= machine.read[machine.clicks_topic, machine.partition]
        return Refusal.AFTER_CLICK_UNREACHABLE if unreachable else None

    def _bad_baseline(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        """Whether the baseline that a context names is not among its eligible arms."""
        mask, baseline = decoded.columns.eligible[row], decoded.columns.baselines[row]
        bad = mask and baseline >= 0 and not eligible_mask(mask, self._machine.arms)[baseline]
        return Refusal.BASELINE_NOT_ELIGIBLE if bad else None

    def _as_journaled(
        self, decided: PastDecision, journaled: Journaled, gap: Callable[[int], float]
    ) -> tuple[PastDecision, bool]:
        """What the journal holds for the next row, if the scores allow it, and whether it is another answer."""
        machine, row = self._machine, len(self._arms)
        if row >= len(journaled.arms):
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs hold more contexts than the record decided"
            )
        arm, propensity = journaled.arms[row], journaled.propensities[row]
        if (arm, propensity) == (decided.arm, decided.propensity):
            return decided, False
        if not (0 <= arm < machine.arms and gap(arm) <= FLOAT_TIE_MARGIN):
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs give another arm at row {row}, beyond a float tie"
            )
        machine.float_ties += 1
        return decided._replace(arm=arm, propensity=propensity), True

    def _repeat(self, event_id: str, past: PastDecision) -> None:
        self._answer(event_id, past, REPEATED)
        self.counts[Outcome.REPEATED_CONTEXT] += 1

    def _answer(self, event_id: str, answer: PastDecision, policy: int) -> None:
        self._event_ids.append(event_id)
        self._arms.append(answer.arm)
        self._propensities.append(answer.propensity)
        self._policies.append(policy)
        self._versions.append(answer.model_version)

    # Phase ends and erasures, and what is refused.

    def _phase_end(self, mark: PhaseEndMark, part: InputSlice) -> None:
        machine = self._machine
        now_ms = max(mark.timestamp_ms, machine.now_ms)
        self._hear_until(now_ms, mark.after_click)
        reason = self._late_click(mark.after_click)
        if reason is None and mark.phase < 0:
            reason = Refusal.BAD_PHASE
        if reason is not None:
            self._refuse(reason, part, mark.offset, WHOLE_RECORD)
            return
        if now_ms > machine.now_ms:
            self._advance(now_ms)
        while machine.due:
            self._settle(machine.due.popleft()[1])
        self._send(mark.phase)
        self._close_phase(mark.phase)
        self.counts[Outcome.PHASE_END] += 1

    def _forget(self, mark: ForgetMark, part: InputSlice) -> None:
        """Give up a user's state, and take their name out of what is remembered of events."""
        machine = self._machine
        if mark.config_digest != machine.system.digest:
            self._refuse(Refusal.OTHER_CONFIGURATION, part, mark.offset, WHOLE_RECORD)
            return
        now_ms = max(mark.timestamp_ms, machine.now_ms)
        self._hear_until(now_ms, -1)
        if now_ms > machine.now_ms:
            self._advance(now_ms)
        self._give_up(mark.user)
        for event_id, past in list(machine.past.items()):
            if past.user == mark.user:
                machine.past.put(event_id, past._replace(user=NOBODY))
        machine.early.forget(mark.user)
        self.counts[Outcome.FORGOTTEN] += 1

    def _refuse(self, reason: str, part: InputSlice, offset: int, row: int) -> None:
        """A dead letter; a record of an earlier batch (early feedback) is known by its place alone."""
        machine = self._machine
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(machine.letters.letter(reason, part.topic, machine.partition, offset, row, value))
        self.counts[Outcome.REJECTED] += 1
