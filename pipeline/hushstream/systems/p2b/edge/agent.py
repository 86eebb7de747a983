"""`EdgeAgent`: everything that sees one user's contexts and clicks in clear (the edge zone).

It decides with its own copy of the shared model, learns from its own feedback, and owes one slot after a
stated number of decisions. The content of a slot is private, but its existence and its time are public (PRIVACY rule
2). So a slot falls due by the number of decisions and by log time, whatever contexts and clicks say, and a slot whose
interaction has no reward yet holds null. `EdgeTerms.choice` (`DrawnBefore`, or `TwoCandidates` of declared features)
chooses the interaction of a slot with coins from the user's key.

A slot's report id is a pseudorandom function of the user's key and the slot's number in their life, and nothing else.
The shuffler counts an id once for as long as the deployment lasts (`hushstream.systems.p2b.shuffler.windows`). So even
if agents continue from several copies of a state, one content is counted for each number: a user is in at most
``lifetime_slots`` reports, and restoring an older copy gives them no further slots. If the id depended on the content
or the period too, a second content of the same number would count as another report and cost its epsilon again.

The learner role runs many of these agents on a stream, with the same code and the same bytes as on a device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.join import NOT_SHOWN, Answered, JoinOutcome, OpenDecision, OpenDecisions
from hushstream.learners.exploration import Drawn, EpsilonMixture, Exploration, draw
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.contribution.slots import reward_level
from hushstream.systems.p2b.edge.policy import UNSCORED, LearnerState
from hushstream.systems.p2b.edge.terms import (
    CERTAIN,
    HISTOGRAM_TOLERANCE,
    Allowance,
    Began,
    Choice,
    EdgeTerms,
    Interaction,
    OlderState,
    Resolved,
    Slot,
)

_UNSPENT = Allowance()


class EdgeAgent:
    """The agent of one user.

    It is not thread-safe. The outcome of a call depends only on the calls before it, the shared models and the user's
    key.
    """

    __slots__ = (
        "_key",
        "_waits",
        "base_version",
        "decided",
        "due",
        "first",
        "open",
        "period",
        "renews_ms",
        "seen_ms",
        "sent",
        "state",
        "steps",
        "terms",
        "track",
        "used",
    )

    def __init__(self, terms: EdgeTerms, key: Key, track: str, spent: Allowance | None = None) -> None:
        """Begin the life of a new user, or continue that of a user whose state was deleted.

        Args:
            terms: the terms of the deployment.
            key: the user's key; coins and report ids come from it.
            track: the track of the shared model that the user starts from ("cold" for none).
            spent: the `allowance` that was kept when this user's state was deleted; None for a new user.
        """
        self.terms = terms
        self._key = key
        self.track = track
        self.state: LearnerState | None = None
        self.steps = 0
        """How many interactions were learned since this object was made; it shows changes of `state` in place."""
        self.base_version = 0
        self.decided, self.due, self.sent, self.period, self.used, self.first, self.renews_ms = spent or _UNSPENT
        self.seen_ms = 0
        """Log time of the last context."""
        self.open = OpenDecisions()
        self._waits = terms.choice.nothing
        """What waits for slots that were not taken yet, as `SlotChoice` holds it."""
        # The slot in progress is begun again: its coins come from the key alone, so they are the same as before.
        done = self.decided % terms.after_interactions
        in_slot = done > 0 if terms.renew_ms is None else self._in_slot()
        if in_slot and self.due < terms.lifetime_slots:
            first = self.decided - done if terms.renew_ms is None else self.first
            began = Began(self.due, first, terms.after_interactions)
            self._waits = terms.choice.decided(self._waits, key, self.seen_ms, began)

    @property
    def key(self) -> Key:
        """The user's key: coins and report ids come from it."""
        return self._key

    def allowance(self) -> Allowance:
        """What must be kept when this state is deleted."""
        return Allowance(self.decided, self.due, self.sent, self.period, self.used, self.first, self.renews_ms)

    def delete_state(self) -> None:
        """Delete everything that came from the user's contexts and clicks, waiting decisions included."""
        if self.state is not None:
            self.terms.policy.end(self.track, self.base_version)
            self.state = None
        self.open = OpenDecisions()
        self._waits = self.terms.choice.nothing

    def within_quota(self, log_time_ms: int) -> bool:
        """Count one context of the user, and return whether the quota allows to learn from it."""
        terms, self.seen_ms = self.terms, log_time_ms
        if terms.contexts_per_period is None:
            return True
        period = log_time_ms // terms.quota_period_ms
        if period != self.period:
            self.period, self.used = period, 0
        self.used = min(self.used + 1, terms.contexts_per_period + 1)
        return self.used <= terms.contexts_per_period

    def decide_publicly(self, context: NDArray[np.float32], eligible: NDArray[np.bool_] | None = None) -> Choice:
        """Choose the best arm of the shared model alone; nothing of the decision is remembered, learned or reported."""
        policy = self.terms.policy
        shared = policy.shared(self.track)
        arm, ties = policy.highest.choose(policy.scores(shared.state, context), self._pick, eligible)
        return Choice(arm, CERTAIN // ties, shared.version, False, False)

    def decide(
        self,
        event_id: str,
        context: NDArray[np.float32],
        log_time_ms: int,
        eligible: NDArray[np.bool_] | None = None,
    ) -> Choice:
        """Choose an arm for a context of shape (d,) and remember the decision until feedback comes.

        Args:
            event_id: the application's name for this decision. Until its deadline, the same id gets the same answer
                again, also after its reward. At the deadline, call `expire` if the decision still waits.
            context: float32 (d,), a histogram; a copy is kept.
            log_time_ms: log time of the context; the deadline for feedback counts from it.
            eligible: bool (K,), or None for all arms.

        Raises:
            HushstreamError: the context is no histogram of the deployment's dimension, or no arm is eligible.
        """
        require_histogram(context, self.terms.policy.context_dimension)
        known = self.known(event_id, log_time_ms)
        return self.decide_new(event_id, context, log_time_ms, eligible) if known is None else known

    def known(self, event_id: str, log_time_ms: int) -> Choice | None:
        """The answer that an event got before; None for a new event, or after the event's deadline."""
        known = self.open.known(event_id, log_time_ms)
        if known is None:
            return None
        self.open.forget_answers(log_time_ms)
        return Choice(known.arm, known.propensity, known.model_version, False, True)

    def decide_new(
        self,
        event_id: str,
        context: NDArray[np.float32],
        log_time_ms: int,
        eligible: NDArray[np.bool_] | None = None,
        best: int = UNSCORED,
    ) -> Choice:
        """See `decide`; the event must not be `known`, and the caller must have checked the context.

        ``best`` is the only arm with the highest score, where the caller has computed it already (`LookAhead`).
        """
        self.open.forget_answers(log_time_ms)
        terms, policy = self.terms, self.terms.policy
        context = policy.kept(context)
        if self.state is None:
            shared = policy.shared(self.track)
            state, version = shared.state, shared.version
        else:
            state, version = self.state, self.base_version
        if terms.exploration is not None:
            arm, propensity = self._explored(terms.exploration, state, event_id, context, eligible, best)
        elif best != UNSCORED:
            arm, propensity = best, CERTAIN
        else:
            arm, ties = policy.highest.choose(policy.scores(state, context), self._pick, eligible)
            propensity = CERTAIN // ties
        self.seen_ms, index = log_time_ms, self.decided
        slot_due = self._count_decision(log_time_ms)
        deadline_ms = log_time_ms + terms.attribution_window_ms
        self.open[event_id] = OpenDecision(context, arm, propensity, version, index, deadline_ms)
        return Choice(arm, propensity, version, slot_due, False)

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Record the arm that was on screen for a waiting event.

        Raises:
            HushstreamError: no such event waits, or there is no such arm.
        """
        self._require_open(event_id)
        self._require_arm(arm)
        return self.open.shown(event_id, arm)

    def rewarded(self, event_id: str, arm: int, reward: float) -> JoinOutcome:
        """Learn from the reward in [0, 1] of a waiting event.

        Raises:
            HushstreamError: no such event waits, there is no such arm, or the reward is outside.
        """
        self._require_open(event_id)
        self._require_arm(arm)
        # Written so that NaN, which compares false, is refused.
        if not 0.0 <= reward <= 1.0:
            raise HushstreamError("reward: expected a number in [0, 1], got one outside or NaN")
        return self.rewarded_checked(event_id, arm, reward)

    def rewarded_checked(self, event_id: str, arm: int, reward: float) -> JoinOutcome:
        """See `rewarded`; the caller must have checked event, arm and reward."""
        decision, on_screen = self.open.rewarded(event_id, arm)
        self._learn(decision, on_screen, reward)
        return JoinOutcome.REWARDED if on_screen == decision.arm else JoinOutcome.OTHER_ARM

    def expire(self, event_id: str) -> JoinOutcome:
        """Close a waiting event whose deadline has passed: what was shown without a reward has reward 0.

        Raises:
            HushstreamError: no such event waits.
        """
        self._require_open(event_id)
        decision = self.open.pop(event_id)
        if decision.shown_arm == NOT_SHOWN:
            return JoinOutcome.NEVER_SHOWN
        self._learn(decision, decision.shown_arm, 0.0)
        return JoinOutcome.EXPIRED_AS_ZERO

    def current_state(self) -> LearnerState:
        """The state that the next decision follows from: the user's own, or the shared one before they have one."""
        if self.state is not None:
            return self.state
        shared: LearnerState = self.terms.policy.shared(self.track).state
        return shared

    def score_gap(self, event_id: str, eligible: NDArray[np.bool_] | None, arm: int, propensity: int) -> float:
        """How much scores must differ from today's for ``arm`` and ``propensity`` to be the answer to a waiting event.

        A small gap shows that the answers differ by rounding alone.
        """
        decision, exploration = self.open[event_id], self.terms.exploration
        scores = self.terms.policy.scores(self.current_state(), decision.context)
        if exploration is None:
            return abs(float(scores[decision.arm]) - float(scores[arm]))
        return exploration.tie_gap(scores, eligible, self._drawn(event_id), Drawn(arm, propensity))

    def public_score_gap(self, context: NDArray[np.float32], arm: int, other: int, propensity: int) -> float:
        """How far apart two arms score in the shared model; ``propensity`` is not compared."""
        policy = self.terms.policy
        scores = policy.scores(policy.shared(self.track).state, context)
        return abs(float(scores[arm]) - float(scores[other]))

    def correct(self, event_id: str, arm: int, propensity: int) -> None:
        """Replace a waiting event's answer by the journal's, where rounding broke a near tie the other way."""
        decision = self.open[event_id]
        decision.arm, decision.propensity = arm, propensity

    def take_slot(self, log_time_ms: int | None = None) -> Slot:
        """Return the oldest slot that is due and not yet taken; its content no longer changes after this.

        Args:
            log_time_ms: log time; None: the log time of the last context.

        Raises:
            HushstreamError: none is due.
        """
        if self.sent >= self.due:
            raise HushstreamError(
                f"take_slot: expected a slot that is due, got {self.sent} of {self.due} taken already"
            )
        number = self.sent
        self.sent += 1
        terms, now_ms = self.terms, self.seen_ms if log_time_ms is None else log_time_ms
        interaction, self._waits = terms.choice.taken(self._waits, self._key, now_ms, number)
        return Slot(
            self._key.digest("report-id", number.to_bytes(8, "little")),
            self._content(interaction),
            interaction,
        )

    def dump(self) -> dict[str, Any]:
        """The user's whole state as plain values (contexts as float32 bytes), for a snapshot."""
        return {
            "line": self.track,
            "learned": self.state is not None,
            "state": b"" if self.state is None else self.terms.policy.dump_own(self.state),
            "base_version": self.base_version,
            "decided": self.decided,
            "due": self.due,
            "sent": self.sent,
            "period": self.period,
            "used": self.used,
            "first": self.first,
            "renews_ms": self.renews_ms,
            "seen_ms": self.seen_ms,
            "open": [
                {
                    "event_id": event_id,
                    "context": decision.context.tobytes(),
                    "arm": decision.arm,
                    "propensity": decision.propensity,
                    "model_version": decision.model_version,
                    "index": decision.index,
                    "deadline_ms": decision.deadline_ms,
                    "shown_arm": decision.shown_arm,
                }
                for event_id, decision in self.open.items()
            ],
            "answered": [{"event_id": event_id, **answer._asdict()} for event_id, answer in self.open.answers()],
            **self.terms.choice.dump(self._waits),
        }

    @classmethod
    def load(cls, terms: EdgeTerms, key: Key, dumped: Mapping[str, Any], spent: Allowance | None = None) -> EdgeAgent:
        """Restore the agent that `dump` described.

        An agent restored from an older copy gives the numbers of slots that were sent before to slots with other
        content. The shuffler drops these by their ids, so they cost the user nothing, and only the shuffler's zone sees
        them. But what they hold is lost to the model, and the quota begins where the copy stood. A copy does not show
        its age. So keep `allowance` in a place that a restored backup does not overwrite, and pass it as ``spent``.

        Args:
            terms: the terms of the deployment.
            key: the user's key, the same as when the state was dumped.
            dumped: from `dump`.
            spent: the newest `allowance` that is known of this user; None: an older copy is accepted.

        Raises:
            OlderState: less is spent in ``dumped`` than in ``spent``. A new agent made with ``spent`` can continue,
                without what the user had learned.
        """
        agent = cls(terms, key, dumped["line"])
        agent.base_version = dumped["base_version"]
        if dumped["learned"]:
            agent.state = terms.policy.load_own(agent.track, agent.base_version, dumped["state"])
        agent.decided, agent.due, agent.sent = dumped["decided"], dumped["due"], dumped["sent"]
        agent.period, agent.used, agent.seen_ms = dumped["period"], dumped["used"], dumped["seen_ms"]
        agent.first, agent.renews_ms = dumped.get("first", _UNSPENT.first), dumped.get("renews_ms", _UNSPENT.renews_ms)
        for item in dumped["open"]:
            context = np.frombuffer(item["context"], terms.policy.context_type)
            answer = (item["arm"], item["propensity"], item["model_version"])
            place = (item["index"], item["deadline_ms"], item["shown_arm"])
            agent.open[item["event_id"]] = OpenDecision(context, *answer, *place)
        for item in dumped["answered"]:
            answer = (item["arm"], item["propensity"], item["model_version"])
            agent.open.keep_answer(item["event_id"], Answered(*answer, item["deadline_ms"]))
        agent._waits = terms.choice.load(dumped)
        if spent is not None and not agent.allowance().covers(spent):
            raise OlderState(
                f"state: expected no less spent than is known ({spent}), got an older copy ({agent.allowance()})"
            )
        return agent

    def _content(self, interaction: Interaction | None) -> bytes:
        policy = self.terms.policy
        if interaction is None:
            return policy.null()
        return policy.content(interaction.context, interaction.arm, reward_level(interaction.reward, self.terms.levels))

    def _learn(self, decision: OpenDecision, arm: int, reward: float) -> None:
        policy = self.terms.policy
        if self.state is None:
            self.base_version, self.state = policy.begin(self.track)
        self.state = policy.learned(self.state, decision.context, arm, reward)
        self.steps += 1
        slot = self._slot_of(decision.index)
        if self.sent <= slot < self.terms.lifetime_slots:
            one = Resolved(decision.index, decision.deadline_ms, Interaction(decision.context, arm, reward))
            self._waits = self.terms.choice.resolved(self._waits, slot, one)

    def _count_decision(self, log_time_ms: int) -> bool:
        """Count a decision, and begin a slot if it is the first of one; returns whether a slot falls due with it."""
        terms, index, slot_length = self.terms, self.decided, self.terms.after_interactions
        begins = index % slot_length == 0 if terms.renew_ms is None else self._renews(log_time_ms)
        began = None
        # Without the cap of a life a user would get slots without end, and no bound on their cost would hold.
        if begins and self.due < terms.lifetime_slots:
            began = Began(self.due, index, slot_length)
            if terms.renew_ms is not None:
                self.first = index
        self._waits = terms.choice.decided(self._waits, self._key, log_time_ms, began)
        self.decided = index + 1
        if terms.renew_ms is None:
            falls_due = self.due < terms.lifetime_slots and self.decided == (self.due + 1) * slot_length
        else:
            falls_due = self.first >= 0 and self.decided == self.first + slot_length
        if falls_due:
            self.due += 1
            if terms.renew_ms is not None:
                self.renews_ms = log_time_ms + terms.renew_ms
        return falls_due

    def _renews(self, log_time_ms: int) -> bool:
        """Where slots are renewed: whether the next decision is the first of a slot, if the user has slots left."""
        return not self._in_slot() and log_time_ms >= self.renews_ms

    def _in_slot(self) -> bool:
        """Where slots are renewed: whether the newest slot has begun and is not due yet."""
        return self.first >= 0 and self.decided < self.first + self.terms.after_interactions

    def _slot_of(self, index: int) -> int:
        """The number of the slot that covers a decision; where slots are renewed, -1 if it is not the newest slot."""
        length = self.terms.after_interactions
        if self.terms.renew_ms is None:
            return index // length
        if not 0 <= self.first <= index < self.first + length:
            return -1
        return self.due if self._in_slot() else self.due - 1

    def _explored(
        self,
        exploration: Exploration,
        state: LearnerState,
        event_id: str,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        best: int,
    ) -> Drawn:
        """Draw an arm and its propensity with the event's number; ``best`` as in `decide_new`."""
        policy, number = self.terms.policy, self._drawn(event_id)
        if best != UNSCORED and eligible is None and isinstance(exploration, EpsilonMixture):
            return draw(exploration.weights_around(best, policy.arms), number)
        return draw(exploration.weights(policy.scores(state, context), eligible), number)

    def _drawn(self, event_id: str) -> int:
        """The keyed number by which an event draws its arm; the same for every request of the event."""
        # From the event's id: with the count of decisions, a client could repeat a request until it got another item.
        return int.from_bytes(self._key.digest("exploration", event_id.encode()), "little") % CERTAIN

    def _pick(self, ties: int) -> int:
        return uniform(self._key, "tie", self.decided, ties)

    def _require_open(self, event_id: str) -> None:
        if event_id not in self.open:
            raise HushstreamError("feedback: expected an event that waits for it, got an unknown or resolved one")

    def _require_arm(self, arm: int) -> None:
        arms = self.terms.policy.arms
        if not 0 <= arm < arms:
            raise HushstreamError(f"feedback: expected an arm from 0 to {arms - 1}, got another number")


# Which interaction a slot holds, where it is drawn before it happens.


class DrawnTargets(NamedTuple):
    """What waits for slots where the interaction is drawn before it happens.

    Attributes:
        targets: the index of each drawn decision, and the slot that its interaction goes into.
        kept: the slots whose drawn interaction is resolved, and that interaction.
    """

    targets: dict[int, int]
    kept: dict[int, Interaction]


# Most users have neither most of the time, so they share these: an empty dictionary for each takes 64 bytes or more.
_NO_TARGETS: dict[int, int] = {}
_NOTHING_KEPT: dict[int, Interaction] = {}
_NOTHING_DRAWN = DrawnTargets(_NO_TARGETS, _NOTHING_KEPT)


class DrawnBefore:
    """Draws, from the user's key, one of the decisions that a slot covers before any of them is made."""

    nothing = _NOTHING_DRAWN

    def decided(self, waits: DrawnTargets, key: Key, log_time_ms: int, began: Began | None) -> DrawnTargets:
        if began is None:
            return waits
        target = began.first + uniform(key, "slot-target", began.slot, began.length)
        return waits._replace(targets={**waits.targets, target: began.slot})

    def resolved(self, waits: DrawnTargets, slot: int, one: Resolved) -> DrawnTargets:
        aimed = waits.targets.get(one.number)
        return waits if aimed is None else waits._replace(kept={**waits.kept, aimed: one.interaction})

    def taken(
        self, waits: DrawnTargets, key: Key, log_time_ms: int, slot: int
    ) -> tuple[Interaction | None, DrawnTargets]:
        targets = {index: aimed for index, aimed in waits.targets.items() if aimed != slot} or _NO_TARGETS
        kept = {other: one for other, one in waits.kept.items() if other != slot} or _NOTHING_KEPT
        return waits.kept.get(slot), _drawn_targets(targets, kept)

    def dump(self, waits: DrawnTargets) -> dict[str, Any]:
        return {
            "targets": [{"index": index, "slot": slot} for index, slot in waits.targets.items()],
            "kept": [{"slot": slot, **one.dump()} for slot, one in waits.kept.items()],
        }

    def load(self, dumped: Mapping[str, Any]) -> DrawnTargets:
        targets = {item["index"]: item["slot"] for item in dumped["targets"]} or _NO_TARGETS
        kept = {item["slot"]: Interaction.load(item, np.float32) for item in dumped["kept"]} or _NOTHING_KEPT
        return _drawn_targets(targets, kept)


def _drawn_targets(targets: dict[int, int], kept: dict[int, Interaction]) -> DrawnTargets:
    return DrawnTargets(targets, kept) if targets or kept else _NOTHING_DRAWN


def uniform(key: Key, purpose: str, number: int, below: int) -> int:
    """A keyed uniform integer in [0, below): 128 bits reduced, so its bias is under below * 2^-128."""
    return int.from_bytes(key.digest(purpose, number.to_bytes(8, "little")), "little") % below


# What a context is.


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= HISTOGRAM_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good


def is_normalised(context: Sequence[float]) -> bool:
    """Whether one row of float32 numbers is a histogram, as `normalised` decides it."""
    return abs(sum(context) - 1.0) <= HISTOGRAM_TOLERANCE and min(context) >= 0


def require_histogram(context: NDArray[np.float32], dimension: int) -> None:
    """Refuse a context that is not a histogram with ``dimension`` entries.

    Raises:
        HushstreamError: another shape or type, an entry below 0, or a sum other than 1.
    """
    if context.shape != (dimension,) or context.dtype != np.float32:
        raise HushstreamError(
            f"context: expected float32 of shape ({dimension},), got {context.dtype} of shape {context.shape}"
        )
    # Written so that NaN, which compares false, is refused.
    if not (context.min() >= 0 and abs(float(context.sum(dtype=np.float64)) - 1.0) <= HISTOGRAM_TOLERANCE):
        raise HushstreamError("context: expected entries of at least 0 that sum to 1, got others")
