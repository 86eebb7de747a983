"""The learner role of a collaborative system: decides by the shared model, joins rewards, and sends rows on.

A user has no model of their own: decisions follow from the last published version, so they reveal nothing to others.
The row of a decision leaves when its settle time has passed in log time, or at a phase end: the features of the arm
that was on screen, and its reward, 0 if none came by then (`hushstream.engine.learner.awaiting`).

With a trusted counter, rows are sent to it in clear. Otherwise they are added to each user's own counter in this role,
which releases noised sums.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.deciding import DECIDING, MEMORIES, DecisionRole, only_reader
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.journal.chain import in_its_generation
from hushstream.engine.learner.arrivals import DecodedContexts, decode_checked
from hushstream.engine.learner.awaiting import OpenRows, hold_early, open_rows
from hushstream.engine.learner.batch import (
    CERTAIN,
    MODEL,
    Batch,
    Changed,
    Clicks,
    Contexts,
    Forget,
    PhaseEnd,
    Published,
    eligible_mask,
)
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.models import ModelReader
from hushstream.engine.noise.spending import SPENDING, Spending
from hushstream.engine.records import InputSlice, Output, Step
from hushstream.engine.state.declared import FIXED, Several, State, integer, own_part, rows
from hushstream.engine.state.parts import record
from hushstream.feedback.memory import FeedbackRow, PastDecision, ShownEarlyFeedback
from hushstream.learners.exploration import Drawn, draw
from hushstream.privacy.keys import Key
from hushstream.privacy.ledger import Exhausted
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.reasons import Reason
from hushstream.systems.colin.algorithm.noised_sums import NoisedRewardSums
from hushstream.systems.colin.deployment import TRACK, CollaborativeSystem
from hushstream.systems.colin.rows import EVENT, FORGOTTEN, MAX_ROWS_A_RECORD, Rows, sum_of_names


class OpenRow(NamedTuple):
    """A decision that waits for its reward: its log time, the chosen arm's features, and the feedback so far."""

    decided_ms: int
    user: str
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


def _pack_row(role: CollaborativeLearnerMachine, row: OpenRow) -> Mapping[str, Any]:
    fields = {**row._asdict(), "features": row.features.astype("<f4").tobytes()}
    del fields["user"]
    return fields


def _unpack_row(role: CollaborativeLearnerMachine, fields: dict[str, Any]) -> OpenRow:
    user, features = role.system.graph.users[fields["node"]], np.frombuffer(fields["features"], "<f4")
    return OpenRow(**{**fields, "user": user, "features": features})


def _pack_sums(role: CollaborativeLearnerMachine) -> Mapping[str, Any]:
    return {"noised_sums": b"" if role.noised_sums is None else role.noised_sums.dump()}


def _unpack_sums(role: CollaborativeLearnerMachine, values: Mapping[str, Any]) -> None:
    if role.noised_sums is not None:
        role.noised_sums = role.open_noised_sums()
        role.noised_sums.load(values["noised_sums"])


_NUMBERED = State(
    "a collaborative learner's state",
    6,
    "CollaborativeLearnerState",
    DECIDING,
    models=only_reader(),
    shared=Several({"model_version": "int", "parameters": "bytes", "widths": "bytes"}, _pack_shared, _unpack_shared),
    open=open_rows(_OPEN, _pack_row, _unpack_row),
    **MEMORIES,
    taken=rows("<i8"),
    leaf=integer(),
    records=integer(),
    noised_sums=Several({"noised_sums": "bytes"}, _pack_sums, _unpack_sums),
    spending=own_part(SPENDING),
)
"""Where arms are numbers."""

_NAMED = State(
    "a collaborative learner's state with a catalogue",
    1,
    "NamedCollaborativeLearnerState",
    _NUMBERED.fields,
    items=own_part(),
)
"""Where items have names."""


class CollaborativeLearnerMachine(DecisionRole):
    """The learner of a collaborative system on one partition of contexts and clicks."""

    state = _NAMED
    derived: ClassVar[Mapping[str, str]] = dict.fromkeys(("state", "foreign", "exploration"), FIXED)
    system: CollaborativeSystem
    early: ShownEarlyFeedback
    spending: Spending

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        models = [ModelReader(system, 0, TRACK, "CollaborativeModel")]
        settle_ms, feedback = round(system.config.settle_seconds * 1000), system.config.feedback
        # Each user has a share of the places where early feedback may wait, so that nobody's feedback removes that of
        # another user.
        early = ShownEarlyFeedback(max(1, feedback.early_feedback // system.nodes))
        decode = partial(decode_checked, rules=system.requests)
        super().__init__(system, partition, key, models, early, feedback.remembered_events, decode)
        self.shared: SharedParameters = cold_parameters(system)
        self.open: OpenRows[OpenRow] = OpenRows(settle_ms, self.arms)
        self.foreign = frozenset(user for user in system.graph.users if not self.is_home_of(user))
        """Users of other partitions."""
        self.exploration = system.config.exploration.rule()
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        self.leaf = 0
        """Releases made from here (where the noise is added at the edge)."""
        self.records = 0
        """Number of releases by this role. Each has its number in its name, so that boundaries of batches change no
        name."""
        self.noised_sums: NoisedRewardSums | None = None
        self.spending = Spending(system.spending_terms, partition)
        """Spending of this role if it adds the noise; otherwise it charges nothing."""
        rules = system.catalogue_rules
        self.items = None if rules is None else ItemReader(rules)
        self.state = _NUMBERED if self.items is None else _NAMED

    @property
    def refused(self) -> Exhausted | None:
        return None if self.noised_sums is None else self.spending.refusal(self.epoch.next_charge_key())

    def request_epoch(self, nonce: bytes, forked: bool = False, incarnations: int = 0) -> bool:
        """See `Machine.request_epoch`: trees draw noise before all its leaves have come."""
        if self.noised_sums is not None and (forked or self.noised_sums.draws_ahead):
            self.epoch.request(nonce, incarnations)
        return self.epoch.due

    def row_names(self, event_ids: Sequence[str]) -> list[bytes]:
        """Opaque names of rows' events, 16 bytes each, for this journal and this role alone."""
        return [self.key.digest("row", self.chain.genesis_nonce, event_id.encode()) for event_id in event_ids]

    def start(self, genesis: bytes) -> None:
        super().start(genesis)
        if self.system.config.release.noise_at == "learner":
            self.noised_sums = self.open_noised_sums()

    def open_noised_sums(self) -> NoisedRewardSums:
        """Running sums of this partition's users, under noise of this journal and epoch."""
        noise_key = self.key.derive("local-counters")
        nonce = self.epoch.nonce(self.chain.genesis_nonce)
        return self.system.noised_sums(noise_key, nonce, self.epoch.number, self.partition)

    # A batch, from its inputs to its journal record.

    def fold(self, slices: Sequence[InputSlice]) -> Sequence[Step]:
        """See `Machine.fold`: one step for one batch."""
        return [self._folded(slices)]

    @in_its_generation
    def replay(self, value: bytes, slices: Sequence[InputSlice]) -> Step:
        """See `Machine.replay` and `DecisionRole.begin_decisions`."""
        return self._folded(slices, value)

    def _folded(self, slices: Sequence[InputSlice], journaled: bytes | None = None) -> Step:
        """Take all inputs of a batch in order."""
        batch = self.begin_decisions(slices, journaled)
        for item in batch.in_order(self.now_ms):
            if isinstance(item, Contexts):
                times_ms = item.decoded.columns.timestamps_ms
                for row in item.rows:
                    if times_ms[row] > self.now_ms:
                        self._advance(times_ms[row], batch)
                    self._context(item.decoded, row, batch)
            elif isinstance(item, Clicks):
                for click in item.rows:
                    self._feed(click, batch.clicks.part, batch)
            elif isinstance(item, Published):
                self._adopt(item, batch)
            elif isinstance(item, Changed):
                self.take_item(item, batch)
            elif isinstance(item, PhaseEnd):
                self._advance(item.log_time_ms, batch)
                self._end_phase(item.phase, batch)
            elif isinstance(item, Forget):
                self._advance(item.log_time_ms, batch)
                self._forget(item.user, batch)
        return self.end_decisions(batch, batch.fields(self.now_ms, self.system.config.learner.algorithm))

    def _adopt(self, published: Published, batch: Batch) -> None:
        try:
            self.shared = decode_parameters(self.system, published.record.fields)
        except HushstreamError:
            batch.refuse(Refusal.MALFORMED_MODEL, published.part, published.record.offset)
        else:
            batch.counts[Outcome.MODEL_ADOPTED] += 1

    # Clicks.

    def _feed(self, click: FeedbackRow, part: InputSlice, batch: Batch) -> None:
        """Join one piece of feedback to its decision, or store it until the decision comes."""
        row, past = self.open.get(click.event_id), self.past.get(click.event_id)
        if row is not None:
            self.open.join(row, click, part, batch)
        elif past is None:
            # Only feedback of this partition's users waits for its context.
            unfit = self._user_refusal(click.user) or (Reason.UNKNOWN_ARM if click.arm >= self.arms else None)
            hold_early(self.early, click, part, batch, unfit)
        elif past.user != click.user:
            batch.refuse(Refusal.EVENT_OF_ANOTHER_USER, part, click.offset, click.row)
        else:
            batch.too_late(click)

    # Contexts.

    def _context(self, decoded: DecodedContexts, row: int, batch: Batch) -> None:
        """Answer one context, or refuse it, after log time has advanced to it."""
        event_id = decoded.columns.event_ids[row]
        waiting = self.open.get(event_id)
        past = self.past.get(event_id) if waiting is None else _past_of(waiting)
        reason = decoded.refused.get(row) or self._objection(decoded, row, batch)
        if not batch.turn_away(decoded, row, past, reason):
            self._decide(decoded, row, batch)

    def _objection(self, decoded: DecodedContexts, row: int, batch: Batch) -> Refusal | None:
        columns = decoded.columns
        refusal = self._user_refusal(columns.users[row])
        if refusal is not None:
            return refusal
        if columns.tracks[row] != TRACK:
            return Refusal.UNKNOWN_LINE
        return batch.late_click(columns.after_clicks[row]) or batch.bad_baseline(decoded, row)

    def _user_refusal(self, user: str) -> Refusal | None:
        if user not in self.system.graph.index:
            return Refusal.UNKNOWN_USER
        return Refusal.FOREIGN_USER if user in self.foreign else None

    def _decide(self, decoded: DecodedContexts, row: int, batch: Batch) -> None:
        system, columns = self.system, decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        eligible = eligible_mask(columns.eligible[row], self.arms) if columns.eligible[row] else None
        if self.items is not None:
            eligible = self.offered_among(eligible)
            if not eligible.any():
                batch.refuse(Refusal.NOTHING_OFFERED, batch.contexts, columns.offsets[row], columns.rows[row])
                return
        node = system.graph.index[user]
        features = columns.contexts[row].reshape(self.arms, -1)
        scores = self.shared.scores(node, features.astype(np.float64), system.alpha)
        arm, propensity = self._choose(scores, eligible, user, event_id)
        past = PastDecision(user, arm, propensity, self.shared.version)
        if batch.journaled is not None:
            past = batch.as_journaled(past, partial(self._tie_gap, scores, eligible, (user, event_id)))
            arm = past.arm
        self.past.put(event_id, past)
        if self.taken[node] != FORGOTTEN:
            version, chosen = self.shared.version, features[arm].copy()
            self.open.add(event_id, OpenRow(self.now_ms, user, node, arm, version, chosen))
        batch.answer(event_id, past, MODEL)
        batch.counts[Outcome.DECIDED] += 1
        for click in self.early.claim(event_id):
            self._feed(click, batch.earlier, batch)

    def _choose(
        self, scores: NDArray[np.float64], eligible: NDArray[np.bool_] | None, user: str, event_id: str
    ) -> Drawn:
        if self.exploration is not None:
            return draw(self.exploration.weights(scores, eligible), self._drawn(user, event_id))
        if eligible is not None:
            scores[~eligible] = -np.inf
        return Drawn(int(np.argmax(scores)), CERTAIN)

    def _tie_gap(
        self,
        scores: NDArray[np.float64],
        eligible: NDArray[np.bool_] | None,
        event: tuple[str, str],
        arm: int,
        propensity: int,
    ) -> float:
        """How far scores must move from these to give this answer; 0 if these give it."""
        if self.exploration is None:
            return float(scores.max() - scores[arm])
        return self.exploration.tie_gap(scores, eligible, self._drawn(*event), Drawn(arm, propensity))

    def _drawn(self, user: str, event_id: str) -> int:
        """The random number of an event, from 0 to `CERTAIN` - 1; a repeated request gets the same one."""
        digest = self.key.digest("exploration", user.encode(), event_id.encode())
        return int.from_bytes(digest, "little") % CERTAIN

    # Log time, and rows that leave.

    def _advance(self, now_ms: int, batch: Batch) -> None:
        """Send the rows that have settled."""
        if now_ms > self.now_ms:
            self.now_ms = now_ms
            self._send(self.open.settled(now_ms, batch), batch)

    def _end_phase(self, phase: int, batch: Batch) -> None:
        """Send all rows, and forward the phase end."""
        self._send(self.open.all_settled(batch), batch)
        fields = {
            "phase": phase,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        topic = "rewards" if self.noised_sums is None else "releases"
        batch.releases.append(Output(topic, 0, self.chain.encode("Seal", fields)))

    def _forget(self, user: str, batch: Batch) -> None:
        """Delete a user's open rows and sums.

        The user still gets answers, but nothing is learned from them any more.
        """
        self.forget_events(user)
        node = self.system.graph.index.get(user)
        if node is None:
            return
        self.open.drop(user)
        self.taken[node] = FORGOTTEN
        if self.noised_sums is not None:
            self.noised_sums.erase(node)
            return
        fields = {"node": node, "config_digest": self.system.digest}
        batch.releases.append(Output("rewards", 0, self.chain.encode("Erasure", fields)))

    def _send(self, settled: Sequence[tuple[str, OpenRow]], batch: Batch) -> None:
        """Send settled rows to the counter in clear, or add them to the counters of this role."""
        for first in range(0, len(settled), MAX_ROWS_A_RECORD):
            names, part = zip(*settled[first : first + MAX_ROWS_A_RECORD], strict=True)
            rows = Rows(
                np.array([row.node for row in part], dtype=np.int32),
                np.array([row.features for row in part], dtype=np.float32),
                np.array([row.reward or 0.0 for row in part], dtype=np.float64),
                np.array(self.row_names(names), dtype=EVENT),
            )
            if self.noised_sums is None:
                self._send_clear(rows, batch)
            else:
                self._send_noised(rows, batch)

    def _send_clear(self, rows: Rows, batch: Batch) -> None:
        fields = {
            # A sum over the rows, so that it does not depend on how the rows are cut into records.
            "batch_id": sum_of_names(rows.events),
            "config_digest": self.system.digest,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "rewards": rows.rewards.astype("<f8").tobytes(),
        }
        batch.releases.append(Output("rewards", 0, self.chain.encode("Rewards", fields)))
        batch.sent += len(rows)

    def _send_noised(self, rows: Rows, batch: Batch) -> None:
        allowed = rows.within(self.taken, self.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            batch.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if not len(allowed):
            return
        if self.epoch.due:
            self._redraw(batch.sequence)
        charge_result = batch.try_charge(self.spending, self.epoch.charge_key())
        if charge_result.refused:
            return
        noised_sums, ordered = self.noised_sums, Rows.joined([allowed])
        assert noised_sums is not None
        noised_sums.add(ordered)
        self.leaf += 1
        release_id = self._release_id()
        reproducible = self.key.reproducible
        record = self.system.release_record(
            noised_sums, ordered, release_id, self.leaf, self.epoch.number, reproducible
        )
        batch.releases.append(Output("releases", 0, self.chain.encode("Release", record)))
        if charge_result.opens:
            entry = self.system.ledger_entry(release_id, charge_result.debit, self.system.as_stated(reproducible))
            batch.releases.append(Output("ledger", self.partition, self.chain.encode("LedgerEntry", entry)))
        batch.sent += len(allowed)
        batch.counts[Outcome.RELEASE] += 1

    def _release_id(self) -> bytes:
        place = struct.pack("<qq", self.partition, self.records)
        self.records += 1
        return self.key.digest("release-id", self.epoch.nonce(self.chain.genesis_nonce), place)

    def _redraw(self, sequence: int) -> None:
        """Open the epoch that is due, with journal record ``sequence``; all exact sums get new noise."""
        self.epoch.redraw(sequence)
        if self.noised_sums is not None:
            earlier = self.noised_sums
            self.noised_sums = self.open_noised_sums()
            self.noised_sums.redraw(earlier)


def _past_of(row: OpenRow) -> PastDecision:
    """What was decided for an open row."""
    return PastDecision(row.user, row.arm, CERTAIN, row.model_version)


@dataclass(frozen=True, slots=True, eq=False)
class SharedParameters:
    """One published version; 0 is the state before any row.

    Attributes:
        version: from 1; 0 for cold.
        parameters: float64 (N, d): x is scored by its product with the user's row.
        widths: float64 (N, d, d): the width of x is sqrt(x' C x) with the user's C.
    """

    version: int
    parameters: NDArray[np.float64]
    widths: NDArray[np.float64]

    def scores(self, node: int, features: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
        """Upper confidence bounds of (n, d) features for one user, (n,)."""
        squares = np.einsum("nd,nd->n", features @ self.widths[node], features)
        bounds: NDArray[np.float64] = features @ self.parameters[node] + alpha * np.sqrt(np.maximum(squares, 0.0))
        return bounds


def cold_parameters(system: CollaborativeSystem) -> SharedParameters:
    """Parameters before the first version: no scores, and widths from the relation graph alone."""
    estimator = system.estimator()
    factor = system.width_factor([0] * system.nodes)
    return _shared(0, estimator.parameters(), (estimator.widths() * factor**2).astype("<f4"))


def decode_parameters(system: CollaborativeSystem, fields: dict[str, Any]) -> SharedParameters:
    """The arrays of a CollaborativeModel record.

    Raises:
        HushstreamError: it is not of the deployment's users and features, or its arrays are not.
    """
    shape = (system.nodes, system.features.dimension)
    if (fields["nodes"], fields["dimension"]) != shape:
        raise HushstreamError(
            f"model: expected users and dimension {shape}, got {(fields['nodes'], fields['dimension'])}"
        )
    found = (len(fields["parameters"]), len(fields["widths"]))
    sizes = (8 * math.prod(shape), 4 * math.prod(shape) * shape[1])
    if found != sizes:
        raise HushstreamError(f"model: expected arrays of {sizes} bytes, got {found}")
    parameters = np.frombuffer(fields["parameters"], "<f8").reshape(shape)
    widths = np.frombuffer(fields["widths"], "<f4").reshape(*shape, shape[1])
    if not (np.isfinite(parameters).all() and np.isfinite(widths).all()):
        raise HushstreamError("model: expected finite parameters, got others")
    return _shared(fields["version"], parameters, widths)


def _shared(version: int, parameters: NDArray[np.float64], widths: NDArray[np.float32]) -> SharedParameters:
    return SharedParameters(version, parameters.astype(np.float64), widths.astype(np.float64))
