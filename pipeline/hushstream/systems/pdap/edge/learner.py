"""The learner role of P-DAP: answers by the tickets of the last published model, joins rewards, passes outcomes on.

No click is seen by what chooses: an answer is a function of the context's cell, of a model made of releases alone, and
of a keyed coin of the event. A learner serves the users of one vendor, which contexts name as their track; it reads no
other vendor's contexts or clicks.
The outcome of a decision leaves at its deadline (`hushstream.engine.awaiting`), to the counter of its home, or to the
one counter. Where the chosen arm is another vendor's, a forward tells that vendor: the cell, never the context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from hushstream.engine.awaiting import Awaiting, AwaitingFold
from hushstream.engine.deciding import DECIDING, MEMORIES, Journaled, only_reader
from hushstream.engine.deciding_fold import CERTAIN, MODEL
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.intake import DecodedContexts, decode_checked, eligible_mask
from hushstream.engine.learner.models import ModelReader, OnChain
from hushstream.engine.learner.shown_feedback import ShownEarlyFeedback
from hushstream.engine.records import InputSlice, Output
from hushstream.engine.refusals import WHOLE_RECORD
from hushstream.engine.state.declared import FIXED, Several, State, own_part
from hushstream.engine.state.parts import array, record
from hushstream.feedback.memory import PastDecision
from hushstream.privacy.keys import Key
from hushstream.schemas.columns import OwnMark
from hushstream.systems.pdap.aggregate import Aggregate
from hushstream.systems.pdap.deployment import TRACK, PdapSystem, inside
from hushstream.systems.pdap.outcomes import NAME_BYTES, Outcomes
from hushstream.systems.pdap.reasons import ARM_CHANGED, PdapRefusal
from hushstream.systems.pdap.records import MAX_ROWS_A_RECORD, Forward, forward_fields, outcome_fields, parse_model
from hushstream.systems.pdap.serving import SERVING, Serving
from hushstream.systems.pdap.tickets import TICKETS

_OWN = frozenset({"ArmChange"})


@dataclass(slots=True)
class PathContexts(DecodedContexts):
    """Contexts with their paths on the deepest level of the grid, which no model changes."""

    paths: list[int] = field(default_factory=list)


class OpenRow(NamedTuple):
    """A decision whose reward is awaited: when, for whom, what and where, and what feedback has said so far."""

    decided_ms: int
    user: str
    arm: int
    propensity: int
    model_version: int
    cell: int
    arrival: int
    shown: bool = False
    other_shown: bool = False
    reward: float | None = None


_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    user="string",
    arm="int",
    propensity="long",
    model_version="int",
    cell="long",
    arrival="long",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)


def _pack_open(role: PdapLearnerMachine) -> Mapping[str, Any]:
    return {"open": [{"event_id": event_id, **role.open[event_id]._asdict()} for _, event_id in role.due]}


def _unpack_open(role: PdapLearnerMachine, values: Mapping[str, Any]) -> None:
    role.open, role.due = {}, deque()
    for item in values["open"]:
        event_id = item.pop("event_id")
        role.due.append((item["decided_ms"], event_id))
        role.open[event_id] = OpenRow(**item)


class PdapLearnerMachine(Awaiting[OpenRow]):
    """The learner on one partition of contexts and clicks."""

    state = State(
        "a P-DAP learner's state",
        2,
        "PdapLearnerState",
        DECIDING,
        models=only_reader(),
        serving=own_part(record("Serving", **SERVING)),
        open=Several({"open": array(_OPEN)}, _pack_open, _unpack_open),
        **MEMORIES,
    )
    derived: ClassVar[Mapping[str, str]] = {"due": "the open rows, in their order", "vendor": FIXED, "home": FIXED}
    system: PdapSystem
    spending = None

    def __init__(self, system: PdapSystem, vendor: str, partition: int, key: Key) -> None:
        """Bind to a deployment, a vendor by name, one of its home partitions and its edge key."""
        feedback = system.config.feedback
        # What was shown is public, so that users may share the places; no reward takes one.
        early = ShownEarlyFeedback(feedback.early_feedback, feedback.early_feedback)
        models = [ModelReader(system, 0, TRACK, "TicketModel")]
        super().__init__(system, partition, key, models, early, feedback.remembered_events, system.settle_ms, vendor)
        self.vendor, self.home = vendor, system.homes[vendor]
        self.open: dict[str, OpenRow] = {}
        self.serving = cold_serving(system, key)

    @property
    def _releases(self) -> bool:
        return False

    @property
    def _reaches_ahead(self) -> bool:
        return False

    def _redraw(self) -> None:
        """Nothing is noised here."""

    def outcome_name(self, user: str, event_id: str) -> bytes:
        """16 opaque bytes that stand for the outcome of a user's event, for its counter alone.

        No journal is in it: whoever begins one anew, and sends again what the lost one had sent, sends it under the
        same name, which the counter takes once. Names of two events of one user have nothing in common.
        """
        of = (self.system.config.deployment, self.vendor, user, event_id)
        return self.key.digest("outcome", *(name.encode() for name in of))

    def forward_name(self, event_id: str) -> bytes:
        """16 opaque bytes that stand for the forward of an event, for the serving vendor alone."""
        return self.key.digest("forward", self.chain.genesis_nonce, event_id.encode())

    def _batch(self, sequence: int, journaled: Journaled | None) -> PdapFold:
        return PdapFold(self, journaled)

    def _decode(self, part: InputSlice) -> PathContexts:
        grid = self.system.config.grid
        found = decode_checked(part, self.system.requests, _OWN)
        contexts = found.columns.contexts
        # What is refused has no path; any stands for it.
        paths = grid.paths(np.where(inside(contexts)[:, None], contexts, np.float32(0))).tolist()
        return PathContexts(found.low, found.high, found.columns, found.refused, found.oversized, paths)


def cold_serving(system: PdapSystem, key: Key) -> Serving:
    """What stands before the first version: the tickets that follow from the configuration alone."""
    serving = Serving(system.config.grid, key)
    serving.apply(Aggregate(system.config).publish())
    return serving


POLICY = "tickets"
NO_DIGEST = bytes(16)
"""Where a record comes from the client."""

_SHARE = CERTAIN // TICKETS
"""One ticket of 256, in units of 1e-9: a whole number."""


class PdapFold(AwaitingFold[PdapLearnerMachine, OpenRow]):
    """See `AwaitingFold`."""

    _machine: PdapLearnerMachine

    def __init__(self, machine: PdapLearnerMachine, journaled: Journaled | None) -> None:
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
