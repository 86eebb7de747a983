"""The learner role of P-DAP: answers by the tickets of the last published model, joins rewards, and sends outcomes on.

Choices do not depend on clicks: an answer is a function of the context's cell, of a model made from releases alone, and
of a keyed random number of the event. A learner serves the users of one vendor, which contexts name as their track; it
reads no other vendor's contexts or clicks. The outcome of a decision leaves when it has settled
(`hushstream.engine.learner.awaiting`), to the counter of its home, or to the one counter. If the chosen arm is another
vendor's, a forward tells that vendor the cell, but never the context.

This holds for clean visits. The others, at a vendor on trial (`hushstream.systems.pdap.algorithm.aggregate`), are dark:
they show its own items by the exact rewards of its own users (`OwnRewards`), are never forwarded, and no outcome of
them leaves. Each partition learns from its own users alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from hushstream.engine.catalogue import Bools, Catalogue
from hushstream.engine.declare.outcomes import Outcome, Refusal
from hushstream.engine.learner.arrivals import DecodedContexts, decode_checked
from hushstream.engine.learner.awaiting import OpenRows, open_rows
from hushstream.engine.learner.batch import (
    CERTAIN,
    MODEL,
    Changed,
    Clicks,
    DecisionBatch,
    eligible_mask,
)
from hushstream.engine.learner.deciding import DECIDING, MEMORIES, AwaitingRole, only_reader
from hushstream.engine.learner.items import ItemReader
from hushstream.engine.learner.model_parts import ModelReader
from hushstream.engine.records import InputSlice, Output
from hushstream.engine.state.declared import FIXED, State, own_part, record
from hushstream.feedback.memory import FeedbackRow, PastDecision, PastDecisions, ShownEarlyFeedback
from hushstream.privacy.keys import Key
from hushstream.schemas import codec
from hushstream.schemas.rows import REWARD
from hushstream.systems.pdap.algorithm.aggregate import NAME_BYTES, TICKETS, Aggregate, Outcomes
from hushstream.systems.pdap.algorithm.serving import OWN_REWARDS, SERVING, OwnRewards, Serving
from hushstream.systems.pdap.cells import Grid
from hushstream.systems.pdap.deployment import TRACK, PdapRefusal, PdapSystem
from hushstream.systems.pdap.records import MAX_ROWS_A_RECORD, Forward, forward_fields, outcome_fields, parse_model

_SHARE = CERTAIN // TICKETS
"""One ticket of 256, in units of 1e-9: a whole number."""


@dataclass(slots=True)
class PathContexts(DecodedContexts):
    """Contexts with their paths on the deepest level of the grid. Paths do not depend on the model."""

    paths: list[int] = field(default_factory=list)


class MayShow(NamedTuple):
    """Which arms may be shown if items have names, under one model and one version of the vendor's catalogue.

    Attributes:
        versions: versions of both.
        named: (arms,) for a context that names items.
        by_default: (arms,) for a context that names none; None for all arms with tickets.
    """

    versions: tuple[int, int]
    named: Bools
    by_default: Bools | None


class OpenRow(NamedTuple):
    """A decision that waits for its reward: log time, user, arm, path and cells, and the feedback so far."""

    decided_ms: int
    user: str
    arm: int
    propensity: int
    model_version: int
    cell: int
    arrival: int
    path: int
    clean: bool
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
    path="long",
    clean="boolean",
    shown="boolean",
    other_shown="boolean",
    reward=["null", "double"],
)


_NUMBERED = State(
    "a P-DAP learner's state",
    "PdapLearnerState",
    DECIDING,
    models=only_reader(),
    serving=own_part(record("Serving", **SERVING)),
    open=open_rows(_OPEN, lambda _, row: row._asdict(), lambda _, fields: OpenRow(**fields)),
    **MEMORIES,
)
"""Where items are numbers, without a trial."""

_NAMED = State(
    "a P-DAP learner's state with a catalogue",
    "NamedPdapLearnerState",
    _NUMBERED.fields,
    items=own_part(),
)
"""Where items have names, without a trial."""

_TRIAL = State(
    "a P-DAP learner's state on trial",
    "TrialPdapLearnerState",
    _NUMBERED.fields,
    own=own_part(record("OwnRewards", **OWN_REWARDS)),
)
"""Where items are numbers, and vendors join on trial."""

_NAMED_TRIAL = State(
    "a P-DAP learner's state on trial with a catalogue",
    "NamedTrialPdapLearnerState",
    _TRIAL.fields,
    items=own_part(),
)
"""Where items have names, and vendors join on trial."""


class PdapLearnerMachine(AwaitingRole[OpenRow]):
    """The learner on one partition of contexts and clicks."""

    state = _NAMED_TRIAL
    policy = "tickets"
    derived: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("state", "vendor", "home"), FIXED),
        "_forwards": "empty between two batches (`finish`)",
        "_may_show": "found anew from model and catalogue, whose versions it names",
    }
    system: PdapSystem
    early: ShownEarlyFeedback

    def __init__(self, system: PdapSystem, vendor: str, partition: int, key: Key) -> None:
        """Bind to a deployment, a vendor by name, one of its home partitions and its edge key."""
        feedback = system.config.feedback
        # Users may share the places for early feedback, because only pieces that say what was shown take one, and that
        # is public; no reward takes a place.
        early = ShownEarlyFeedback(feedback.early_feedback, feedback.early_feedback)
        models = [ModelReader(system, 0, TRACK, "TicketModel")]
        decode = partial(_decode, system, system.config.grid)
        super().__init__(
            system, partition, key, models, early, PastDecisions(feedback.remembered_events), decode, party=vendor
        )
        self.vendor, self.home = vendor, system.homes[vendor]
        self.open: OpenRows[OpenRow] = OpenRows(system.settle_ms, self.arms)
        self.serving = cold_serving(system, key)
        rules = system.catalogues.get(vendor)
        self.items = None if rules is None else ItemReader(rules)
        self.own = OwnRewards(system.config, self.home, key) if system.config.on_trial else None
        named, numbered = (_NAMED, _NUMBERED) if self.own is None else (_NAMED_TRIAL, _TRIAL)
        self.state = numbered if self.items is None else named
        self._may_show: MayShow | None = None
        self._forwards: dict[int, list[Forward]] = {}

    def outcome_name(self, user: str, event_id: str) -> bytes:
        """An opaque name of the outcome of a user's event, 16 bytes, for its counter alone.

        It does not depend on the journal. So a new journal that sends outcomes of a lost one again uses the same names,
        and the counter takes each once. Names of two events of one user cannot be linked.
        """
        of = (self.system.config.deployment, self.vendor, user, event_id)
        return self.key.digest("outcome", *(name.encode() for name in of))

    def forward_name(self, event_id: str) -> bytes:
        """An opaque name of the forward of an event, 16 bytes, for the serving vendor alone."""
        return self.key.digest("forward", self.chain.genesis_nonce, event_id.encode())

    # The policy.

    def finish(self, batch: DecisionBatch) -> None:
        """See `DecisionRole.finish`: forwards are sent with their batch."""
        for serving, fields in sorted(self._forwards.items()):
            value = codec.encode("Forwards", forward_fields(serving, self.system.digest, fields))
            batch.outputs.append(Output(self.system.own_topic("forwards", serving), 0, value))
        self._forwards = {}

    def adopt(self, track: str, fields: dict[str, Any]) -> None:
        self.serving.apply(parse_model(fields, self.arms))

    def bad_reward(self, click: FeedbackRow) -> str | None:
        """Why a reward is refused, if it is."""
        good = click.kind != REWARD or self.system.requests.good_reward(click.reward)
        return None if good else PdapRefusal.REWARD_OFF_LEVELS

    def objection(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> Refusal | None:
        columns = decoded.columns
        if columns.tracks[row] != self.vendor:
            return Refusal.UNKNOWN_LINE
        refusal = self.user_refusal(columns.users[row])
        return refusal or batch.late_click(columns.after_clicks[row]) or batch.bad_baseline(decoded, row)

    def answer(self, decoded: DecodedContexts, row: int, batch: DecisionBatch) -> None:
        columns = decoded.columns
        event_id, user = columns.event_ids[row], columns.users[row]
        eligible = self._eligible(columns.eligible[row])
        if self.items is not None and eligible is not None and not eligible.any():
            batch.refuse_at(Refusal.NOTHING_OFFERED, batch.contexts, columns.offsets[row], columns.rows[row])
            return
        path = cast("PathContexts", decoded).paths[row]
        serving, own = self.serving, self._dark(user, event_id, columns.eligible[row])
        if own is not None and self.own is not None:
            serving, eligible = self.own.serving, own
        found = serving.one(path, user.encode(), event_id.encode(), eligible)
        version = self.serving.version
        past = PastDecision(user, found.arm, found.propensity * _SHARE, version)
        if batch.replayed is not None:
            # Whole numbers decide, so rounding can give no other answer.
            batch.as_journaled(past, lambda arm, propensity: float("inf"))
        self.past.put(event_id, past)
        early = self.early.claim(event_id)
        place = (found.arm, past.propensity, version, found.cell, found.arrival, path, own is None)
        self.open.add(event_id, OpenRow(self.now_ms, user, *place))
        owner = int(self.system.owners[found.arm])
        if owner != self.home:
            name = self.forward_name(event_id)
            forward = Forward(self.home, name, found.cell, found.arm, found.ticket, version)
            self._forwards.setdefault(owner, []).append(forward)
        batch.answer(event_id, past, MODEL)
        batch.counts[Outcome.DECIDED] += 1
        if early:
            self.learn(Clicks(early), batch.earlier, batch)

    def _dark(self, user: str, event_id: str, mask: bytes) -> Bools | None:
        """The vendor's own items that a dark visit may show, (arms,); None for a clean visit.

        All visits are clean without a trial, and at a vendor that shares. So is one that may show no item of the vendor
        itself, as what it may show is public.
        """
        if self.own is None or self.serving.shares[self.home] or self.is_clean(user, event_id):
            return None
        found = self._own_eligible(mask)
        return found if found.any() else None

    def is_clean(self, user: str, event_id: str) -> bool:
        """Whether a visit to a vendor on trial follows from releases alone.

        A coin of the ids: it is no secret, and no reward, journal or key moves it. Otherwise a learner that begins a
        new journal, under a rotated key, would take dark visits of the lost one for clean ones.
        """
        share, name = self.system.config.trial_share, user.encode()
        what = len(name).to_bytes(8, "little") + name + event_id.encode()
        coin = hashlib.blake2b(what, digest_size=8, key=self.system.digest, person=b"pdap-visit").digest()
        return int.from_bytes(coin, "little") < share * 2.0**64

    def _own_eligible(self, mask: bytes) -> Bools:
        """The items of the vendor itself that may be shown to a context that names these arms, or none: (arms,)."""
        eligible = eligible_mask(mask, self.arms) if mask else np.ones(self.arms, dtype=np.bool_)
        own = self.system.owners == self.home
        if self.items is not None:
            own[own] = self.items.catalogue.offered
        return np.asarray(eligible & own)

    def _eligible(self, mask: bytes) -> Bools | None:
        """The arms that may be shown to a context that names these arms, or none: (arms,).

        None for all arms with tickets. An arm that its vendor has retired is not shown any more, even if the last model
        has tickets for it.
        """
        eligible = eligible_mask(mask, self.arms) if mask else None
        if self.items is None:
            return eligible
        here = self._may_show_now(self.items.catalogue)
        return here.by_default if eligible is None else eligible & here.named

    def _may_show_now(self, catalogue: Catalogue) -> MayShow:
        versions = self.serving.version, catalogue.version
        if self._may_show is None or self._may_show.versions != versions:
            arms, shown = catalogue.rules.arms, self.serving.shown
            own = slice(arms.start, arms.stop)
            named, with_tickets = np.ones((2, self.arms), dtype=np.bool_)
            named[own] = catalogue.offered
            with_tickets[:] = False
            with_tickets[shown[named[shown]]] = True
            if not with_tickets.any():
                # The model has no ticket for an offered item yet, so all offered items of this vendor may be shown.
                with_tickets[own] = catalogue.offered
            all_still_offered = len(shown) > 0 and bool(named[shown].all())
            self._may_show = MayShow(versions, named, None if all_still_offered else with_tickets)
        return self._may_show

    def user_refusal(self, user: str) -> Refusal | None:
        """Why a user's record is refused, if this is not their home partition."""
        return None if self.is_home_of(user) else Refusal.FOREIGN_USER

    def past_of(self, row: OpenRow) -> PastDecision:
        return PastDecision(row.user, row.arm, row.propensity, row.model_version)

    # Changes of the catalogue, phase ends, and rows that leave.

    def change_item(self, changed: Changed, batch: DecisionBatch) -> None:
        """Forward changes of the vendor's catalogue to the aggregator; the first partition does it."""
        for found in self.take_items(changed, batch):
            if self.partition == 0:
                arm = self.system.catalogues[self.vendor].arms[found.row]
                fields = {"arm": arm, "offered": found.offered, "config_digest": self.system.digest}
                self._to_counter("ArmChange", fields, batch)
            if self.own is not None:
                self.own.change(found.row, offered=found.offered)

    def end_phase(self, phase: int, batch: DecisionBatch) -> None:
        super().end_phase(phase, batch)
        fields = {
            "phase": phase,
            "origin": self.system.origin_of(self.home, self.partition),
            "config_digest": self.system.digest,
            "after_click": -1,
        }
        self._to_counter("Seal", fields, batch)

    def close(self, user: str, batch: DecisionBatch) -> None:
        """Drop a user's open rows, so that they never count."""
        self.open.drop(user)
        self.forget_events(user)

    def send(self, settled: Sequence[tuple[str, OpenRow]], batch: DecisionBatch) -> None:
        """Send settled rows of clean visits to the counter; own items' rewards are learned here, too."""
        clean = [one for one in settled if one[1].clean]
        for first in range(0, len(clean), MAX_ROWS_A_RECORD):
            self._send_some(clean[first : first + MAX_ROWS_A_RECORD], batch)
        if self.own is not None:
            self._learn_alone(self.own, [row for _, row in settled if self.system.owners[row.arm] == self.home])

    def _learn_alone(self, own: OwnRewards, rows: Sequence[OpenRow]) -> None:
        while rows:
            some, rows = rows[: own.capacity_left], rows[own.capacity_left :]
            paths, arms = (np.array([getattr(row, name) for row in some], dtype=np.int64) for name in ("path", "arm"))
            own.take(paths, arms, np.array([self._level(row) for row in some], dtype=np.int64))

    def _level(self, row: OpenRow) -> int:
        return self.system.within_levels(row.reward or 0.0) or 0

    def _send_some(self, rows: Sequence[tuple[str, OpenRow]], batch: DecisionBatch) -> None:
        levels = [self._level(row) for _, row in rows]
        names = b"".join(self.outcome_name(row.user, event_id) for event_id, row in rows)
        outcomes = Outcomes(
            np.array([row.cell for _, row in rows], dtype=np.int64),
            np.array([row.arrival for _, row in rows], dtype=np.int64),
            np.array([row.arm for _, row in rows], dtype=np.int64),
            np.array(levels, dtype=np.int64),
            np.frombuffer(names, np.uint8).reshape(-1, NAME_BYTES),
        )
        counter = self.system.counter_of(self.home)
        self._to_counter("Outcomes", outcome_fields(counter, self.system.digest, outcomes), batch)
        batch.sent += len(rows)

    def _to_counter(self, name: str, fields: dict[str, Any], batch: DecisionBatch) -> None:
        topic = self.system.counters_topic("outcomes", self.vendor)
        batch.outputs.append(Output(topic, 0, codec.encode(name, fields)))


def _decode(system: PdapSystem, grid: Grid, part: InputSlice) -> PathContexts:
    found, schema = decode_checked(part, system.requests), system.config.declared
    contexts = found.columns.contexts
    good = np.ones(len(contexts), dtype=np.bool_)
    good[list(found.refused)] = False
    # A refused context has no path; any path takes its place, and nothing reads it.
    paths = np.zeros(len(contexts), dtype=np.int64)
    known = contexts[good] if schema is None else schema.positions(schema.read(contexts[good].tobytes()))
    paths[good] = grid.paths(known)
    return PathContexts(
        found.low, found.high, found.columns, found.named, found.refused, found.oversized, found.losses, paths.tolist()
    )


def cold_serving(system: PdapSystem, key: Key) -> Serving:
    """The model before the first version: tickets from the configuration alone."""
    serving = Serving(system.config.grid, key)
    serving.apply(Aggregate(system.config).publish())
    return serving
