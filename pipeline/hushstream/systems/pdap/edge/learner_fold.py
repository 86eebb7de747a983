"""One batch of a P-DAP learner: what models, clicks and contexts do to it, and what follows from them.

See `hushstream.engine.deciding_fold` for the order in which they do, and for what a cut between batches changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from hushstream.engine.awaiting import AwaitingFold
from hushstream.engine.deciding import Journaled
from hushstream.engine.deciding_fold import CERTAIN, MODEL
from hushstream.engine.intake import DecodedContexts, eligible_mask
from hushstream.engine.machine import InputSlice, Output
from hushstream.engine.models import ModelReader, OnChain
from hushstream.engine.outcomes import Outcome, Refusal
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.feedback.memory import PastDecision
from hushstream.schemas.columns import OwnMark
from hushstream.systems.pdap.edge.learner_base import OpenRow, PathContexts, PdapLearner
from hushstream.systems.pdap.outcomes import NAME_BYTES, Outcomes
from hushstream.systems.pdap.reasons import ARM_CHANGED, PdapRefusal
from hushstream.systems.pdap.records import (
    MAX_ROWS_A_RECORD,
    Forward,
    forward_fields,
    outcome_fields,
    parse_model,
)
from hushstream.systems.pdap.tickets import TICKETS

POLICY = "tickets"
NO_DIGEST = bytes(16)
"""Where a record comes from the client."""

_SHARE = CERTAIN // TICKETS
"""One ticket of 256, in units of 1e-9: a whole number."""


class PdapFold(AwaitingFold[PdapLearner, OpenRow]):
    """See `AwaitingFold`."""

    _machine: PdapLearner

    def __init__(self, machine: PdapLearner, journaled: Journaled | None) -> None:
        super().__init__(machine, journaled)
        self._forwards: dict[int, list[Forward]] = {}

    def run(self, slices: Sequence[InputSlice]) -> None:
        """See `DecisionFold.run`: forwards leave with their batch."""
        super().run(slices)
        machine = self._machine
        for serving, forwards in sorted(self._forwards.items()):
            fields = forward_fields(serving, machine.system.digest, forwards)
            topic = machine.system.own_topic("forwards", serving)
            self.releases.append(Output(topic, 0, machine.chain.encode("Forwards", fields)))

    @property
    def _policy(self) -> str:
        return POLICY

    def _adopt(self, reader: ModelReader, record: OnChain) -> None:
        self._machine.serving.apply(parse_model(record.fields, self._machine.arms))

    def _past_of(self, row: OpenRow) -> PastDecision:
        return PastDecision(row.user, row.arm, row.propensity, row.model_version)

    def _stranger(self, user: str) -> Refusal | None:
        return None if self._machine.is_home_of(user) else Refusal.FOREIGN_USER

    def _bad_reward(self, reward: float) -> str | None:
        return None if self._machine.system.requests.good_reward(reward) else PdapRefusal.REWARD_OFF_LEVELS

    # Contexts.

    def _objection(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        columns = decoded.columns
        if columns.tracks[row] != self._machine.vendor:
            return Refusal.UNKNOWN_TRACK
        stranger = self._stranger(columns.users[row])
        return stranger or self._late_click(columns.after_clicks[row]) or self._bad_baseline(decoded, row)

    def _decide(self, decoded: DecodedContexts, row: int) -> None:
        machine, columns = self._machine, decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        mask = columns.eligible[row]
        eligible = eligible_mask(mask, machine.arms) if mask else None
        path = cast("PathContexts", decoded).paths[row]
        found = machine.serving.one(path, user.encode(), event_id.encode(), eligible)
        version = machine.serving.version
        past = PastDecision(user, found.arm, found.propensity * _SHARE, version)
        if self._journaled is not None:
            # Whole numbers alone decide, so no other arm is as good.
            self._as_journaled(past, self._journaled, lambda arm: float("inf"))
        machine.past.put(event_id, past)
        place = (found.arm, past.propensity, version, found.cell, found.arrival)
        self._await(event_id, OpenRow(machine.now_ms, user, *place))
        serving = int(machine.system.owners[found.arm])
        if serving != machine.home:
            name = machine.forward_name(event_id)
            forward = Forward(machine.home, name, found.cell, found.arm, found.ticket, version)
            self._forwards.setdefault(serving, []).append(forward)
        self._answer(event_id, past, MODEL)
        self.counts[Outcome.DECIDED] += 1
        if machine.early:
            self._claim(event_id)

    # Changes of the catalogue, phase ends, and rows that leave.

    def _hear(self, mark: OwnMark, part: InputSlice) -> None:
        """A vendor changes its own catalogue: passed on, as no model is made here."""
        machine, fields = self._machine, mark.fields
        reason: str | None = None
        if fields["config_digest"] not in (NO_DIGEST, machine.system.digest):
            reason = Refusal.OTHER_CONFIGURATION
        else:
            reason = machine.system.bad_change(fields["arm"], machine.home)
        if reason is not None:
            self._refuse(reason, part, mark.offset, WHOLE_RECORD)
            return
        self._to_counter("ArmChange", {**fields, "config_digest": machine.system.digest})
        self.counts[ARM_CHANGED] += 1

    def _close_phase(self, phase: int) -> None:
        machine = self._machine
        fields = {
            "phase": phase,
            "origin": machine.system.origin_of(machine.home, machine.partition),
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        self._to_counter("Seal", fields)

    def _give_up(self, user: str) -> None:
        """Drop the open rows: nothing of what is awaited will count."""
        self._drop_rows(user)

    def _send(self, phase: int = 0) -> None:
        """Rows that have settled go to the counter."""
        for first in range(0, len(self._settled), MAX_ROWS_A_RECORD):
            self._send_some(self._settled[first : first + MAX_ROWS_A_RECORD])
        self._settled.clear()

    def _send_some(self, rows: Sequence[tuple[str, OpenRow]]) -> None:
        machine = self._machine
        levels = [machine.system.within_levels(row.reward or 0.0) or 0 for _, row in rows]
        names = b"".join(machine.outcome_name(row.user, event_id) for event_id, row in rows)
        outcomes = Outcomes(
            np.array([row.cell for _, row in rows], dtype=np.int64),
            np.array([row.arrival for _, row in rows], dtype=np.int64),
            np.array([row.arm for _, row in rows], dtype=np.int64),
            np.array(levels, dtype=np.int64),
            np.frombuffer(names, np.uint8).reshape(-1, NAME_BYTES),
        )
        counter = machine.system.counter_of(machine.home)
        self._to_counter("Outcomes", outcome_fields(counter, machine.system.digest, outcomes))
        self._sent += len(rows)

    def _to_counter(self, name: str, fields: dict[str, Any]) -> None:
        machine = self._machine
        topic = machine.system.counters_topic("outcomes", machine.vendor)
        self.releases.append(Output(topic, 0, machine.chain.encode(name, fields)))
