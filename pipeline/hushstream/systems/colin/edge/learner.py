"""The learner role of a collaborative system: decides by the shared model, joins rewards, passes rows on.

A user has no model of their own here: what they see follows from the last published version, which is why their
decisions tell others nothing. The row of a decision leaves when its settle time has passed in log time, or at a phase
end: the features of the arm that was on screen, and its reward, 0 if none came by then. Log time is cut into spans as
long as the settle time, and the rows decided in one leave together (`DecisionRole.settled`). So whether a row leaves
depends on what was shown alone, and when, and in which record, on the log times of contexts and on phase ends: a
reward, or the lack of one, moves the number in its own row and nothing else. That holds for feedback before its
context, too (`hushstream.engine.learner.shown_feedback`).

Where the counter is trusted, rows go to it in clear; otherwise they enter each user's own counter in this role,
and noised sums are released from here.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.awaiting import Awaiting, AwaitingFold
from hushstream.engine.deciding import DECIDING, MEMORIES, Journaled, only_reader
from hushstream.engine.deciding_fold import CERTAIN, MODEL
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.intake import DecodedContexts, decode_checked, eligible_mask
from hushstream.engine.learner.models import ModelReader, OnChain
from hushstream.engine.learner.shown_feedback import ShownEarlyFeedback
from hushstream.engine.noise.spending import SPENDING, Spending
from hushstream.engine.records import InputSlice, Output
from hushstream.engine.state.declared import FIXED, Several, State, integer, own_part, rows
from hushstream.engine.state.parts import array, record
from hushstream.feedback.memory import PastDecision
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.systems.colin.deployment import TRACK, CollaborativeSystem
from hushstream.systems.colin.edge.models import SharedParameters, cold_parameters, decode_parameters
from hushstream.systems.colin.noised_sums import NoisedRewardSums
from hushstream.systems.colin.rows import EVENT, FORGOTTEN, MAX_ROWS_A_RECORD, Rows, sum_of_names


class OpenRow(NamedTuple):
    """A decision whose reward is awaited: its log time, the chosen arm's features, what feedback has said so far."""

    decided_ms: int
    node: int
    arm: int
    model_version: int
    features: NDArray[np.float32]
    shown: bool = False
    other_shown: bool = False
    reward: float | None = None


_OPEN = record(
    "OpenRow",
    event_id="string",
    decided_ms="long",
    node="int",
    arm="int",
    model_version="int",
    features="bytes",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)


def _pack_shared(role: CollaborativeLearnerMachine) -> Mapping[str, Any]:
    shared = role.shared
    return {
        "model_version": shared.version,
        "parameters": shared.parameters.astype("<f8").tobytes(),
        "widths": shared.widths.astype("<f8").tobytes(),
    }


def _unpack_shared(role: CollaborativeLearnerMachine, values: Mapping[str, Any]) -> None:
    nodes, d = role.system.nodes, role.system.features.dimension
    role.shared = SharedParameters(
        values["model_version"],
        np.frombuffer(values["parameters"], "<f8").reshape(nodes, d).astype(np.float64),
        np.frombuffer(values["widths"], "<f8").reshape(nodes, d, d).astype(np.float64),
    )


def _pack_open(role: CollaborativeLearnerMachine) -> Mapping[str, Any]:
    rows = ((event_id, role.open[event_id]) for _, event_id in role.due)
    return {
        "open": [
            {"event_id": event_id, **row._asdict(), "features": row.features.astype("<f4").tobytes()}
            for event_id, row in rows
        ]
    }


def _unpack_open(role: CollaborativeLearnerMachine, values: Mapping[str, Any]) -> None:
    role.open, role.due = {}, deque()
    for item in values["open"]:
        event_id = item.pop("event_id")
        role.due.append((item["decided_ms"], event_id))
        role.open[event_id] = OpenRow(**{**item, "features": np.frombuffer(item["features"], "<f4")})


def _pack_sums(role: CollaborativeLearnerMachine) -> Mapping[str, Any]:
    return {"noised_sums": b"" if role.noised_sums is None else role.noised_sums.dump()}


def _unpack_sums(role: CollaborativeLearnerMachine, values: Mapping[str, Any]) -> None:
    if role.noised_sums is not None:
        role.noised_sums = role.open_noised_sums()
        role.noised_sums.load(values["noised_sums"])


class CollaborativeLearnerMachine(Awaiting[OpenRow]):
    """The learner of a collaborative system on one partition of contexts and clicks."""

    state = State(
        "a collaborative learner's state",
        6,
        "CollaborativeLearnerState",
        DECIDING,
        models=only_reader(),
        shared=Several(
            {"model_version": "int", "parameters": "bytes", "widths": "bytes"}, _pack_shared, _unpack_shared
        ),
        open=Several({"open": array(_OPEN)}, _pack_open, _unpack_open),
        **MEMORIES,
        taken=rows("<i8"),
        leaf=integer(),
        records=integer(),
        noised_sums=Several({"noised_sums": "bytes"}, _pack_sums, _unpack_sums),
        spending=own_part(SPENDING),
    )
    derived: ClassVar[Mapping[str, str]] = {"due": "the open rows, in their order", "foreign": FIXED}
    system: CollaborativeSystem

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        models = [ModelReader(system, 0, TRACK, "CollaborativeModel")]
        settle_ms, feedback = round(system.config.settle_seconds * 1000), system.config.feedback
        # Each user has a share of the places where feedback may wait, so that nobody's feedback moves another's.
        early = ShownEarlyFeedback(max(1, feedback.early_feedback // system.nodes))
        super().__init__(system, partition, key, models, early, feedback.remembered_events, settle_ms)
        self.shared: SharedParameters = cold_parameters(system)
        self.open: dict[str, OpenRow] = {}
        self.foreign = frozenset(user for user in system.graph.users if not self.is_home_of(user))
        """Users of other partitions."""
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        self.leaf = 0
        """Releases made from here (where the noise is added at the edge)."""
        self.records = 0
        """Releases made from here: each is named by its number, so a cut changes no name."""
        self.noised_sums: NoisedRewardSums | None = None
        self.spending: Spending = Spending(system.spending_terms, partition)
        """What this role spends where the noise is added here; otherwise nothing is asked of it."""

    @property
    def refused(self) -> Exhausted | None:
        return None if self.noised_sums is None else self.spending.refusal(self.epoch.next_place())

    @property
    def _releases(self) -> bool:
        return self.noised_sums is not None

    @property
    def _reaches_ahead(self) -> bool:
        return self.noised_sums is not None and self.noised_sums.reaches_ahead

    def row_name(self, event_id: str) -> bytes:
        """16 opaque bytes that stand for the event of a row, in this journal and for this role alone."""
        return self.key.digest("row", self.chain.genesis_nonce, event_id.encode())

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        if self.system.config.release.noise_at == "learner":
            self.noised_sums = self.open_noised_sums()

    def open_noised_sums(self) -> NoisedRewardSums:
        """Running sums of this partition's users, under noise of this journal and epoch."""
        noise_key = self.key.derive("local-counters")
        return self.system.noised_sums(noise_key, self.nonce, self.epoch.number, self.partition)

    def _redraw(self) -> None:
        if self.noised_sums is not None:
            earlier = self.noised_sums
            self.noised_sums = self.open_noised_sums()
            self.noised_sums.redraw(earlier)

    def _batch(self, sequence: int, journaled: Journaled | None) -> CollaborativeFold:
        return CollaborativeFold(self, journaled)

    def _decode(self, part: InputSlice) -> DecodedContexts:
        return decode_checked(part, self.system.requests)


class CollaborativeFold(AwaitingFold[CollaborativeLearnerMachine, OpenRow]):
    """See `AwaitingFold`."""

    _machine: CollaborativeLearnerMachine

    @property
    def _policy(self) -> str:
        return self._machine.system.config.learner.algorithm

    def _adopt(self, reader: ModelReader, record: OnChain) -> None:
        self._machine.shared = decode_parameters(self._machine.system, record.fields)

    def _past_of(self, row: OpenRow) -> PastDecision:
        return PastDecision(self._machine.system.graph.users[row.node], row.arm, CERTAIN, row.model_version)

    def _objection(self, decoded: DecodedContexts, row: int) -> Refusal | None:
        columns = decoded.columns
        stranger = self._stranger(columns.users[row])
        if stranger is not None:
            return stranger
        if columns.tracks[row] != TRACK:
            return Refusal.UNKNOWN_TRACK
        return self._late_click(columns.after_clicks[row]) or self._bad_baseline(decoded, row)

    def _stranger(self, user: str) -> Refusal | None:
        machine = self._machine
        if user not in machine.system.graph.index:
            return Refusal.UNKNOWN_USER
        return Refusal.FOREIGN_USER if user in machine.foreign else None

    def _decide(self, decoded: DecodedContexts, row: int) -> None:
        machine, columns = self._machine, decoded.columns
        system = machine.system
        event_id, user = columns.event_ids[row], columns.users[row]
        node = system.graph.index[user]
        features = columns.contexts[row].reshape(machine.arms, -1)
        scores = machine.shared.scores(node, features.astype(np.float64), system.alpha)
        if columns.eligible[row]:
            scores[~eligible_mask(columns.eligible[row], machine.arms)] = -np.inf
        past = PastDecision(user, int(np.argmax(scores)), CERTAIN, machine.shared.version)
        if self._journaled is not None:
            best = scores[past.arm]
            journaled, _ = self._as_journaled(past, self._journaled, lambda arm: float(best - scores[arm]))
            past = past._replace(arm=journaled.arm)
        arm = past.arm
        machine.past.put(event_id, past)
        if machine.taken[node] != FORGOTTEN:
            waiting = OpenRow(machine.now_ms, node, arm, machine.shared.version, features[arm].copy())
            self._await(event_id, waiting)
        self._answer(event_id, past, MODEL)
        self.counts[Outcome.DECIDED] += 1
        if machine.early:
            self._claim(event_id)

    # Phase ends, and rows that leave.

    def _close_phase(self, phase: int) -> None:
        machine = self._machine
        fields = {
            "phase": phase,
            "origin": machine.partition,
            "config_digest": machine.system.digest,
            "after_click": -1,
        }
        topic = "rewards" if machine.noised_sums is None else "releases"
        self.releases.append(Output(topic, 0, machine.chain.encode("Seal", fields)))

    def _give_up(self, user: str) -> None:
        """Drop a user's open rows and sums; they are answered as before, and nothing is learned from them again."""
        machine = self._machine
        node = machine.system.graph.index.get(user)
        if node is None:
            return
        self._drop_rows(user)
        machine.taken[node] = FORGOTTEN
        if machine.noised_sums is not None:
            machine.noised_sums.erase(node)
            return
        fields = {"node": node, "config_digest": machine.system.digest}
        self.releases.append(Output("rewards", 0, machine.chain.encode("Erasure", fields)))

    def _send(self, phase: int = 0) -> None:
        """Rows that have settled go to the counter in clear, or into the counters of this role."""
        for first in range(0, len(self._settled), MAX_ROWS_A_RECORD):
            names, part = zip(*self._settled[first : first + MAX_ROWS_A_RECORD], strict=True)
            rows = Rows(
                np.array([row.node for row in part], dtype=np.int32),
                np.array([row.features for row in part], dtype=np.float32),
                np.array([row.reward or 0.0 for row in part], dtype=np.float64),
                np.array([self._machine.row_name(event_id) for event_id in names], dtype=EVENT),
            )
            if self._machine.noised_sums is None:
                self._send_clear(rows)
            else:
                self._send_noised(rows)
        self._settled.clear()

    def _send_clear(self, rows: Rows) -> None:
        machine = self._machine
        fields = {
            # A sum over the rows: what it names does not depend on how they are cut into records.
            "batch_id": sum_of_names(rows.events),
            "config_digest": machine.system.digest,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "rewards": rows.rewards.astype("<f8").tobytes(),
        }
        self.releases.append(Output("rewards", 0, machine.chain.encode("Rewards", fields)))
        self._sent += len(rows)

    def _send_noised(self, rows: Rows) -> None:
        machine = self._machine
        allowed = rows.within(machine.taken, machine.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            self.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if not len(allowed):
            return
        asked = self._ask(machine.spending, machine.charge())
        if asked.refused:
            return
        noised_sums, ordered = machine.noised_sums, Rows.joined([allowed])
        assert noised_sums is not None
        noised_sums.add(ordered)
        machine.leaf += 1
        release_id = self._release_id()
        reproducible = machine.key.reproducible
        record = machine.system.release_record(
            noised_sums, ordered, release_id, machine.leaf, machine.epoch.number, reproducible
        )
        self.releases.append(Output("releases", 0, machine.chain.encode("Release", record)))
        if asked.opens:
            entry = machine.system.ledger_entry(release_id, asked.debit, machine.key.reproducible)
            self.releases.append(Output("ledger", machine.partition, machine.chain.encode("LedgerEntry", entry)))
        self._sent += len(allowed)
        self.counts[Outcome.RELEASE] += 1

    def _release_id(self) -> bytes:
        machine = self._machine
        place = struct.pack("<qq", machine.partition, machine.records)
        machine.records += 1
        return machine.key.digest("release-id", machine.nonce, place)
