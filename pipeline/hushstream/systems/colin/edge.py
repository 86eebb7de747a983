"""The learner role of a collaborative system: decides by the shared model, joins rewards, and sends rows on.

Decisions follow from the last published version, so they reveal nothing to others. With ``learner.clean_share`` below 1
this holds for clean visits; the others are dark: their decisions follow from the user's own exact rewards as well
(`hushstream.systems.colin.algorithm.estimator`), no row of them leaves, and nobody else learns from them.

The row of a decision leaves when its settle time has passed in log time, or at a phase end: the features of the arm
that was on screen, and its reward, 0 if none came by then (`hushstream.engine.learner.awaiting`).

With a trusted counter, rows are sent to it in clear. Otherwise they are added to each user's own counter in this role,
which releases noised sums.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.engine.batch import CHARGES
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.arrivals import DecodedContexts, decode_checked
from hushstream.engine.learner.awaiting import OpenRows, open_rows
from hushstream.engine.learner.batch import (
    CERTAIN,
    MODEL,
    Clicks,
    DecisionBatch,
    eligible_mask,
)
from hushstream.engine.learner.deciding import DECIDING, MEMORIES, AwaitingRole, only_reader
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.noise.spending import ChargeResult
from hushstream.engine.records import Output
from hushstream.engine.state.declared import FIXED, Several, State, integer, optional_part, own_part, record, rows
from hushstream.feedback.memory import PastDecision, PastDecisions, ShownEarlyFeedback
from hushstream.learners.exploration import Drawn, draw
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.colin.algorithm.estimator import OwnRewards, require_invertible
from hushstream.systems.colin.algorithm.noised_sums import NoisedRewardSums
from hushstream.systems.colin.configuration import local_reward_of
from hushstream.systems.colin.deployment import TRACK, CollaborativeSystem, alone_ridge
from hushstream.systems.colin.rows import EVENT, FORGOTTEN, MAX_ROWS_A_RECORD, Rows, sum_of_names


class OpenRow(NamedTuple):
    """A decision that waits for its reward: its log time, the chosen arm's features, and the feedback so far."""

    decided_ms: int
    user: str
    node: int
    arm: int
    model_version: int
    features: NDArray[np.float32]
    clean: bool
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
    clean="boolean",
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
    "CollaborativeLearnerState",
    DECIDING,
    models=only_reader(),
    shared=Several({"model_version": "int", "parameters": "bytes", "widths": "bytes"}, _pack_shared, _unpack_shared),
    open=open_rows(_OPEN, _pack_row, _unpack_row),
    own=optional_part("own rewards"),
    **MEMORIES,
    taken=rows("<i8"),
    leaf=integer(),
    records=integer(),
    noised_sums=Several({"noised_sums": "bytes"}, _pack_sums, _unpack_sums),
    spending=CHARGES,
)
"""Where arms are numbers."""

_NAMED = State(
    "a collaborative learner's state with a catalogue",
    "NamedCollaborativeLearnerState",
    _NUMBERED.fields,
    items=own_part(),
)
"""Where items have names."""


class CollaborativeLearnerMachine(AwaitingRole[OpenRow]):
    """The learner of a collaborative system on one partition of contexts and clicks."""

    state = _NAMED
    derived: ClassVar[Mapping[str, str]] = dict.fromkeys(("state", "foreign", "exploration", "policy"), FIXED)
    system: CollaborativeSystem
    early: ShownEarlyFeedback

    def __init__(self, system: CollaborativeSystem, partition: int, key: Key) -> None:
        """Bind to a deployment, a home partition and the edge key."""
        models = [ModelReader(system, 0, TRACK, "CollaborativeModel")]
        settle_ms, feedback = round(system.config.settle_seconds * 1000), system.config.feedback
        # Each user has a share of the places where early feedback may wait, so that nobody's feedback removes that of
        # another user.
        early = ShownEarlyFeedback(max(1, feedback.early_feedback // system.nodes))
        decode = partial(decode_checked, rules=system.requests)
        super().__init__(
            system,
            partition,
            key,
            models,
            early,
            PastDecisions(feedback.remembered_events),
            decode,
            system.spending_terms,
        )
        self.shared: SharedParameters = cold_parameters(system)
        self.open: OpenRows[OpenRow] = OpenRows(settle_ms, self.arms)
        self.foreign = frozenset(user for user in system.graph.users if not self.is_home_of(user))
        """Users of other partitions."""
        self.policy = system.config.learner.algorithm
        self.exploration = system.config.exploration.rule()
        self.own = own_rewards(system, self.shared.widths)
        self.taken = np.zeros(system.nodes, dtype=np.int64)
        self.leaf = 0
        """Releases made from here (where the noise is added at the edge)."""
        self.records = 0
        """Number of releases by this role. Each has its number in its name, so that boundaries of batches change no
        name."""
        self.noised_sums: NoisedRewardSums | None = None
        rules = system.catalogue_rules
        self.items = None if rules is None else ItemReader(rules)
        self.state = _NUMBERED if self.items is None else _NAMED

    @property
    def draws_noise(self) -> bool:
        """See `BatchMachine.draws_noise`: if the noise is added here; otherwise this role charges nothing."""
        return self.noised_sums is not None

    @property
    def draws_ahead(self) -> bool:
        """See `BatchMachine.draws_ahead`: trees draw noise before all their leaves have come."""
        return self.noised_sums is not None and self.noised_sums.draws_ahead

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
        nonce = self.releases.epoch.nonce(self.chain.genesis_nonce)
        return self.system.noised_sums(noise_key, nonce, self.releases.epoch.number, self.partition)

    # The policy.

    def adopt(self, track: str, fields: dict[str, Any]) -> None:
        self.shared = decode_parameters(self.system, fields)

    def objection(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> Refusal | None:
        columns = decoded.columns
        refusal = self.user_refusal(columns.users[row])
        if refusal is not None:
            return refusal
        if columns.tracks[row] != TRACK:
            return Refusal.UNKNOWN_LINE
        return batch.late_click(columns.after_clicks[row]) or batch.bad_baseline(decoded, row)

    def user_refusal(self, user: str) -> Refusal | None:
        if user not in self.system.graph.index:
            return Refusal.UNKNOWN_USER
        return Refusal.FOREIGN_USER if user in self.foreign else None

    def answer(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> None:
        system, columns = self.system, decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        eligible = eligible_mask(columns.eligible[row], self.arms) if columns.eligible[row] else None
        if self.items is not None:
            eligible = self.offered_among(eligible)
            if not eligible.any():
                batch.refuse_at(Refusal.NOTHING_OFFERED, batch.contexts, columns.offsets[row], columns.rows[row])
                return
        node = system.graph.index[user]
        features = columns.contexts[row].reshape(self.arms, -1)
        shared, own, exact = self.shared, self.own, features.astype(np.float64)
        clean = own is None or self._is_clean(user, event_id)
        if clean or own is None:
            scores = shared.scores(node, exact, system.alpha)
        else:
            scores = own.scores(node, exact, shared.parameters[node], shared.widths[node], system.alpha)
        arm, propensity = self._choose(scores, eligible, user, event_id)
        past = PastDecision(user, arm, propensity, self.shared.version)
        if batch.replayed is not None:
            past = batch.as_journaled(past, partial(self._tie_gap, scores, eligible, (user, event_id)))
            arm = past.arm
        self.past.put(event_id, past)
        early = self.early.claim(event_id)
        if self.taken[node] != FORGOTTEN:
            version, chosen = self.shared.version, features[arm].copy()
            self.open.add(event_id, OpenRow(self.now_ms, user, node, arm, version, chosen, clean))
        batch.answer(event_id, past, MODEL)
        batch.counts[Outcome.DECIDED] += 1
        if early:
            self.learn(Clicks(early), batch.earlier, batch)

    def _is_clean(self, user: str, event_id: str) -> bool:
        """Whether a visit follows from releases alone.

        A coin of the ids: it is no secret, and no reward, journal or key moves it. Otherwise a learner that begins a
        new journal, under a rotated key, would take dark visits of the lost one for clean ones. So would a count of a
        user's visits, by which the first 20 could all be clean: a person would be charged for 29 of 200 rewards, not
        10, and regret (% of random) fell by .6 +- 2.3 and 3.6 +- 5.5 and rose by 2.3 +- .7 and 3.2 +- 4 in four worlds.
        """
        share, name = self.system.config.learner.clean_share, user.encode()
        what = len(name).to_bytes(8, "little") + name + event_id.encode()
        coin = hashlib.blake2b(what, digest_size=8, key=self.system.digest, person=b"colin-visit").digest()
        return int.from_bytes(coin, "little") < share * 2.0**64

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

    def past_of(self, row: OpenRow) -> PastDecision:
        return PastDecision(row.user, row.arm, CERTAIN, row.model_version)

    # Rows that leave.

    def end_phase(self, phase: int, batch: DecisionBatch) -> None:
        super().end_phase(phase, batch)
        fields = {
            "phase": phase,
            "origin": self.partition,
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        topic = "rewards" if self.noised_sums is None else "releases"
        batch.outputs.append(Output(topic, 0, codec.encode("Seal", fields)))

    def close(self, user: str, batch: DecisionBatch) -> None:
        """Delete a user's open rows and sums.

        The user still gets answers, but nothing is learned from them any more.
        """
        self.forget_events(user)
        node = self.system.graph.index.get(user)
        if node is None:
            return
        self.open.drop(user)
        self.taken[node] = FORGOTTEN
        if self.own is not None:
            self.own.forget(node)
        if self.noised_sums is not None:
            self.noised_sums.erase(node)
            return
        fields = {"node": node, "config_digest": self.system.digest}
        batch.outputs.append(Output("rewards", 0, codec.encode("Erasure", fields)))

    def send(self, settled: Sequence[tuple[str, OpenRow]], batch: DecisionBatch) -> None:
        """Send settled rows of clean visits to the counter in clear, or add them to the counters of this role."""
        if self.own is not None:
            for _, row in settled:
                self.own.learn(row.node, row.features.astype(np.float64), row.reward or 0.0)
        clean = [one for one in settled if one[1].clean]
        for first in range(0, len(clean), MAX_ROWS_A_RECORD):
            names, part = zip(*clean[first : first + MAX_ROWS_A_RECORD], strict=True)
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

    def _send_clear(self, rows: Rows, batch: DecisionBatch) -> None:
        fields = {
            # A sum over the rows, so that it does not depend on how the rows are cut into records.
            "batch_id": sum_of_names(rows.events),
            "config_digest": self.system.digest,
            "nodes": rows.nodes.astype("<i4").tobytes(),
            "contexts": rows.features.astype("<f4").tobytes(),
            "rewards": rows.rewards.astype("<f8").tobytes(),
        }
        batch.outputs.append(Output("rewards", 0, codec.encode("Rewards", fields)))
        batch.sent += len(rows)

    def _send_noised(self, rows: Rows, batch: DecisionBatch) -> None:
        allowed = rows.within(self.taken, self.system.config.release.rewards_per_user)
        if len(allowed) < len(rows):
            batch.counts[Outcome.ALLOWANCE_SPENT] += len(rows) - len(allowed)
        if not len(allowed):
            return
        batch.release(partial(self._draw, Rows.joined([allowed], self.system.features.dimension), batch))
        if not batch.withheld:
            batch.sent += len(allowed)

    def _draw(self, ordered: Rows, batch: DecisionBatch, charge: ChargeResult) -> list[Output]:
        """Add rows to the counters, and make the release of their sums."""
        noised_sums = self.noised_sums
        if charge.refused or noised_sums is None:
            return []
        noised_sums.add(ordered)
        self.leaf += 1
        release_id = self._release_id()
        record = self.system.release_record(
            noised_sums, ordered, release_id, self.leaf, self.releases.epoch.number, self.key.reproducible
        )
        release = Output("releases", 0, codec.encode("Release", record))
        return [release, batch.ledger_entry(release_id, charge)] if charge.opens else [release]

    def _release_id(self) -> bytes:
        place = struct.pack("<qq", self.partition, self.records)
        self.records += 1
        return self.key.digest("release-id", self.releases.epoch.nonce(self.chain.genesis_nonce), place)

    def redraw_noise(self) -> None:
        """See `BatchMachine.redraw_noise`: all exact sums get new noise."""
        if self.noised_sums is not None:
            earlier = self.noised_sums
            self.noised_sums = self.open_noised_sums()
            self.noised_sums.redraw(earlier)


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


def own_rewards(system: CollaborativeSystem, cold: NDArray[np.float64]) -> OwnRewards | None:
    """The statistics behind dark visits, before the first; None where all visits are clean.

    Args:
        system: the deployment.
        cold: float64 (N, d, d), the widths of the version before any row.
    """
    config = system.config
    if config.learner.clean_share == 1:
        return None
    noise = 0.0 if config.release.mechanism == "exact" else local_reward_of(config.release).variance
    return OwnRewards(cold, alone_ridge(system.features.dimension), noise)


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
    if system.config.learner.clean_share < 1:
        require_invertible(widths.astype(np.float64))
    return _shared(fields["version"], parameters, widths)


def _shared(version: int, parameters: NDArray[np.float64], widths: NDArray[np.float32]) -> SharedParameters:
    return SharedParameters(version, parameters.astype(np.float64), widths.astype(np.float64))
