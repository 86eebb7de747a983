"""One batch of a collaborative learner: what models, clicks and contexts do to it, and what follows from them.

Everything that depends on log time happens row by row, so that where a batch was cut changes no decision.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.join import JoinOutcome
from hushstream.feedback.memory import ParkedClick, PastDecision
from hushstream.roles.collaborative_models import decode_parameters
from hushstream.roles.intake import FLOAT_TIE_MARGIN, DecodedContexts, clicks_of, eligible_mask
from hushstream.roles.machine import InputSlice, Output, ReplayMismatch
from hushstream.roles.outcomes import Outcome, Refusal
from hushstream.roles.refusals import WHOLE_RECORD
from hushstream.schemas import codec
from hushstream.schemas.columns import SealMark, gather_feedback
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.systems.collaborative import LINE
from hushstream.systems.collaborative_rows import MAX_ROWS_A_RECORD, Rows

if TYPE_CHECKING:
    from hushstream.roles.collaborative_learner import CollaborativeLearnerMachine

ANSWERS = (("arms", "<i4"), ("propensities", "<u4"))
CERTAIN = 10**9
"""The propensity of a choice without chance, in units of 1e-9."""

_MODEL, _REPEATED = 0, 2


class OpenRow(NamedTuple):
    """A decision whose reward is awaited: features of the chosen arm, and what feedback has said so far."""

    node: int
    arm: int
    model_version: int
    features: NDArray[np.float32]
    shown: bool = False
    other_shown: bool = False
    reward: float | None = None


class Journaled(NamedTuple):
    """What a journal record says was answered, row by row."""

    arms: list[int]
    propensities: list[int]


class CollaborativeFold:
    """Folds one batch into a machine, which it changes, and gathers the answers and outputs."""

    def __init__(self, machine: CollaborativeLearnerMachine, sequence: int, journaled: Journaled | None = None) -> None:
        """Begin the batch that journal record ``sequence`` covers; ``journaled`` is given on replay only."""
        self._machine = machine
        self._sequence = sequence
        self._journaled = journaled
        self._event_ids: list[str] = []
        self._arms: list[int] = []
        self._policies = bytearray()
        self._versions: list[int] = []
        self._settled: list[OpenRow] = []
        self._records_out = 0
        self._rows_out = 0
        self.releases: list[Output] = []
        self.dead: list[Output] = []
        self.counts: Counter[str] = Counter()

    def run(self, slices: Sequence[InputSlice]) -> None:
        """Fold one slice of every input: models first, then clicks, then contexts."""
        machine = self._machine
        places = {part.topic: part for part in slices}
        self._adopt_models(places["models"])
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
            "propensities": np.full(len(self._arms), CERTAIN, "<u4").tobytes(),
            "policy": self._machine.system.config.learner.algorithm,
            "policies": bytes(self._policies),
            "model_versions": np.array(self._versions, "<i4").tobytes(),
            "slots": self._rows_out,
        }

    def _adopt_models(self, part: InputSlice) -> None:
        machine = self._machine
        for record in machine.reader.read(part):
            try:
                machine.shared = decode_parameters(machine.system, record.fields)
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
        row = machine.open.get(click.event_id)
        past = machine.past.get(click.event_id)
        if row is not None:
            if machine.system.graph.index.get(click.user) != row.node:
                self._refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
            elif click.arm >= machine.system.config.arms:
                self._refuse(Reason.UNKNOWN_ARM, part, click.offset, click.row)
            else:
                machine.open[click.event_id] = self._heard(row, click)
        elif past is None:
            self.counts[Outcome.PARKED] += 1
            for evicted in machine.parking.park(click):
                self._refuse(Refusal.CLICK_WITHOUT_CONTEXT, part, evicted.offset, evicted.row)
        elif past.user != click.user:
            self._refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        else:
            late = click.rewarded
            self.counts[JoinOutcome.LATE_REWARD if late else JoinOutcome.REPEATED_FEEDBACK] += 1

    def _heard(self, row: OpenRow, click: ParkedClick) -> OpenRow:
        """What an open row knows after one piece of feedback; the first of each kind stands."""
        if click.rewarded:
            if row.reward is not None:
                self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
                return row
            self.counts[JoinOutcome.REWARDED] += 1
            return row._replace(reward=click.reward)
        if row.shown or row.other_shown:
            self.counts[JoinOutcome.REPEATED_FEEDBACK] += 1
            return row
        own = click.arm == row.arm
        self.counts[JoinOutcome.SHOWN if own else JoinOutcome.OTHER_ARM] += 1
        return row._replace(shown=own, other_shown=not own)

    # Contexts.

    def _decide_slice(self, part: InputSlice, decoded: DecodedContexts) -> None:
        columns = decoded.columns
        for reject in columns.rejects:
            self._refuse(reject.reason, part, reject.offset, reject.row)
        for offset in decoded.oversized:
            self._refuse(Refusal.TOO_MANY_ROWS, part, offset, WHOLE_RECORD)
        done = 0
        for mark in columns.seals:
            self._decide_rows(decoded, done, mark.position, part)
            done = mark.position
            self._seal(mark, part)
        self._decide_rows(decoded, done, len(columns.event_ids), part)
        self._send_rows()

    def _decide_rows(self, decoded: DecodedContexts, first: int, last: int, part: InputSlice) -> None:
        machine, columns = self._machine, decoded.columns
        for row in range(first, last):
            if decoded.oversized and columns.offsets[row] in decoded.oversized:
                continue
            if columns.timestamps_ms[row] > machine.now_ms:
                self._advance(columns.timestamps_ms[row])
            past = self._known(columns.event_ids[row])
            reason = decoded.refused.get(row) or self._objection(decoded, row)
            if reason is None and past is not None:
                if past.user == columns.users[row]:
                    self._answer(columns.event_ids[row], past, _REPEATED)
                    self.counts[Outcome.REPEATED_CONTEXT] += 1
                    continue
                reason = Refusal.EVENT_OF_ANOTHER_USER
            if reason is None:
                self._decide(decoded, row)
            else:
                self._refuse(reason, part, columns.offsets[row], columns.rows[row])

    def _known(self, event_id: str) -> PastDecision | None:
        """What was decided for an event, if it is remembered or its reward is still awaited."""
        machine = self._machine
        row = machine.open.get(event_id)
        if row is None:
            return machine.past.get(event_id)
        return PastDecision(machine.system.graph.users[row.node], row.arm, CERTAIN, row.model_version)

    def _objection(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        """Why a decodable context must not be decided, if it must not."""
        machine, columns = self._machine, decoded.columns
        if columns.users[row] not in machine.system.graph.index:
            return Refusal.UNKNOWN_USER
        if columns.lines[row] != LINE:
            return Refusal.UNKNOWN_LINE
        if columns.after_clicks[row] >= machine.read["clicks", machine.partition]:
            return Refusal.AFTER_CLICK_UNREACHABLE
        mask, baseline = columns.eligible[row], columns.baselines[row]
        if mask and baseline >= 0 and not eligible_mask(mask, machine.system.config.arms)[baseline]:
            return Refusal.BASELINE_NOT_ELIGIBLE
        return None

    def _decide(self, decoded: DecodedContexts, row: int) -> None:
        machine, columns = self._machine, decoded.columns
        system = machine.system
        event_id, user = columns.event_ids[row], columns.users[row]
        node = system.graph.index[user]
        features = columns.contexts[row].reshape(system.config.arms, -1)
        scores = machine.shared.scores(node, features.astype(np.float64), system.alpha)
        if columns.eligible[row]:
            scores[~eligible_mask(columns.eligible[row], system.config.arms)] = -np.inf
        arm = self._as_journaled(scores, int(np.argmax(scores)))
        past = PastDecision(user, arm, CERTAIN, machine.shared.version)
        machine.past.put(event_id, past)
        machine.open[event_id] = OpenRow(node, arm, machine.shared.version, features[arm].copy())
        machine.due.append((machine.now_ms, event_id))
        self._answer(event_id, past, _MODEL)
        self.counts[Outcome.DECIDED] += 1
        for click in machine.parking.claim(event_id):
            self._feed(click, InputSlice("clicks", machine.partition, 0, 0, ()))

    def _as_journaled(self, scores: NDArray[np.float64], arm: int) -> int:
        """What the journal holds for the next row, if the scores allow it."""
        machine, row = self._machine, len(self._arms)
        if self._journaled is None:
            return arm
        if row >= len(self._journaled.arms):
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs hold more contexts than the record decided"
            )
        journaled = self._journaled.arms[row]
        if journaled == arm:
            return arm
        gap = scores[arm] - scores[journaled] if 0 <= journaled < len(scores) else np.inf
        if not gap <= FLOAT_TIE_MARGIN:
            raise ReplayMismatch(
                f"decisions/{machine.partition}: the inputs give another arm at row {row}, beyond a float tie"
            )
        machine.float_ties += 1
        return journaled

    def _answer(self, event_id: str, answer: PastDecision, policy: int) -> None:
        self._event_ids.append(event_id)
        self._arms.append(answer.arm)
        self._policies.append(policy)
        self._versions.append(answer.model_version)

    # Log time, seals, and rows that leave.

    def _advance(self, now_ms: int) -> None:
        machine = self._machine
        machine.now_ms = now_ms
        while machine.due and machine.due[0][0] + machine.settle_ms <= now_ms:
            self._settle(machine.due.popleft()[1])

    def _settle(self, event_id: str) -> None:
        """The row of a decision is as it will stay; only what was shown decides whether it leaves."""
        row = self._machine.open.pop(event_id)
        if row.shown:
            self._settled.append(row)
        else:
            self.counts[Outcome.NOT_SHOWN] += 1

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
            self._settle(machine.due.popleft()[1])
        self._send_rows()
        fields = {
            "phase": mark.phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        topic = "rewards" if machine.moments is None else "releases"
        self.releases.append(Output(topic, 0, codec.encode("Seal", fields)))
        self.counts[Outcome.SEAL] += 1

    def _send_rows(self) -> None:
        """Rows that have settled go to the counter in clear, or into the counters of this role."""
        for first in range(0, len(self._settled), MAX_ROWS_A_RECORD):
            part = self._settled[first : first + MAX_ROWS_A_RECORD]
            rows = Rows(
                np.array([row.node for row in part], dtype=np.int32),
                np.array([row.features for row in part], dtype=np.float32),
                np.array([row.reward or 0.0 for row in part], dtype=np.float64),
            )
            if self._machine.moments is None:
                self._send_clear(rows)
            else:
                self._send_noised(rows)
        self._settled.clear()

    def _send_clear(self, rows: Rows) -> None:
        machine = self._machine
        fields = {
            "batch_id": self._record_id("rewards-id"),
            "config_digest": machine.system.digest,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "rewards": rows.rewards.astype("<f8").tobytes(),
        }
        self.releases.append(Output("rewards", 0, codec.encode("Rewards", fields)))
        self._rows_out += len(rows)

    def _send_noised(self, rows: Rows) -> None:
        machine = self._machine
        moments = machine.moments
        assert moments is not None
        allowed = rows.within(machine.taken, machine.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            self.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if not len(allowed):
            return
        ordered = Rows.joined([allowed])
        moments.add(ordered)
        machine.leaf += 1
        release_id = self._record_id("release-id")
        record = machine.system.release_record(moments, ordered, release_id, machine.leaf, 0, machine.key.reproducible)
        self.releases.append(Output("releases", 0, codec.encode("Release", record)))
        if machine.leaf == 1:
            entry = machine.system.ledger_entry(record, f"epoch/{machine.partition}/0")
            self.releases.append(Output("ledger", machine.partition, codec.encode("LedgerEntry", entry)))
        self._rows_out += len(allowed)
        self.counts[Outcome.RELEASE] += 1

    def _record_id(self, purpose: str) -> bytes:
        machine = self._machine
        place = struct.pack("<qqq", machine.partition, self._sequence, self._records_out)
        self._records_out += 1
        return machine.key.digest(purpose, machine.chain.genesis_nonce, place)

    def _refuse(self, reason: str, part: InputSlice, offset: int, row: int) -> None:
        """A dead letter; a record of an earlier batch (a parked click) is known by its place alone."""
        machine = self._machine
        place = bisect_left(part.records, offset, key=attrgetter("offset"))
        found = place < len(part.records) and part.records[place].offset == offset
        value = part.records[place].value if found else b""
        self.dead.append(machine.letters.letter(reason, part.topic, machine.partition, offset, row, value))
        self.counts[Outcome.REJECTED] += 1
