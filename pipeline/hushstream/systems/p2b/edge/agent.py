"""`EdgeAgent`: everything that sees one user's contexts and clicks in clear (the edge zone).

It decides with its own copy of the shared model, learns from its own feedback, and owes one slot after a
stated number of decisions. What a slot holds is private; that it came, and when, is public (PRIVACY rule 2):
so which interaction a slot reports is drawn *before* it happens, from the user's key alone, and a slot whose
interaction has no reward yet holds null.

A slot's report id is a pseudorandom function of the user's key and the slot's number in their life, and nothing else.
The shuffler counts an id once for as long as the deployment lasts (`hushstream.systems.p2b.shuffler.windows`). So of
all copies of a state that were ever gone on from, one content is counted for each number: a user is in at most
``lifetime_slots`` reports, and an older copy refills nothing. An id that followed from the content too, or from the
period, would make the second content of a number another report, which costs its epsilon once more.

The learner role is many of these on a stream: same code, same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.answers import Answered
from hushstream.feedback.join import NOT_SHOWN, JoinOutcome, OpenDecision, OpenDecisions
from hushstream.learners.exploration import Drawn, EpsilonMixture, Exploration, draw
from hushstream.privacy.keys import Key
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.contribution.slots import reward_level
from hushstream.systems.p2b.edge.choosing import Interaction, Resolved
from hushstream.systems.p2b.edge.policy import UNSCORED, LearnerState
from hushstream.systems.p2b.edge.terms import (
    CERTAIN,
    HISTOGRAM_TOLERANCE,
    Allowance,
    Choice,
    EdgeTerms,
    OlderState,
    Slot,
)

_UNSPENT = Allowance()


class EdgeAgent:
    """One user. Not thread-safe; every call's outcome depends on the calls before it and the user's key only."""

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
        """Begin a user's life, or go on with one whose state was given up.

        Args:
            terms: what the deployment agreed with its users.
            key: the user's key; coins and report ids come from it.
            track: the shared model that the user starts from ("cold" for none).
            spent: what an earlier state of this user left (`allowance`).
        """
        self.terms = terms
        self._key = key
        self.track = track
        self.state: LearnerState | None = None
        self.steps = 0
        """Interactions learned since this object was made: a state may change in place."""
        self.base_version = 0
        self.decided, self.due, self.sent, self.period, self.used, self.first, self.renews_ms = spent or _UNSPENT
        self.seen_ms = 0
        """Log time of the last context."""
        self.open = OpenDecisions()
        self._waits = terms.choice.nothing
        """What waits for slots that were not taken."""
        # The slot in progress keeps its target: what that slot reports was drawn before, from the key alone.
        if terms.renew_ms is not None:
            if self._in_slot():
                self._begin_slot(self.first)
        elif self.decided % terms.after_interactions:
            self._begin_slot(self.decided - self.decided % terms.after_interactions)

    @property
    def key(self) -> Key:
        """The user's key: coins and report ids come from it."""
        return self._key

    def allowance(self) -> Allowance:
        """What must be kept when this state is given up."""
        return Allowance(self.decided, self.due, self.sent, self.period, self.used, self.first, self.renews_ms)

    def give_up(self) -> None:
        """Drop everything that the user's contexts and clicks left here; nothing waits for feedback any more."""
        if self.state is not None:
            self.terms.policy.end(self.track, self.base_version)
            self.state = None
        self.open = OpenDecisions()
        self._waits = self.terms.choice.nothing

    def within_quota(self, log_time_ms: int) -> bool:
        """Count one context of the user's, and say whether it may still be learned from."""
        terms, self.seen_ms = self.terms, log_time_ms
        if terms.contexts_per_period is None:
            return True
        period = log_time_ms // terms.quota_period_ms
        if period != self.period:
            self.period, self.used = period, 0
        self.used = min(self.used + 1, terms.contexts_per_period + 1)
        return self.used <= terms.contexts_per_period

    def decide_publicly(self, context: NDArray[np.float32], eligible: NDArray[np.bool_] | None = None) -> Choice:
        """Choose with the shared model alone, by score: nothing of this decision is remembered, learned or reported."""
        shared = self.terms.policy.shared(self.track)
        arm, ties = self.terms.policy.choose(shared.state, context, eligible, self._pick)
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
            event_id: the application's name for this decision; until its deadline it gets the same answer again,
                rewarded or not. At the deadline `expire` must be called for what still waits.
            context: float32 (d,), a histogram; kept, so it must not be a view of a reused buffer.
            log_time_ms: log time of the context; the deadline for feedback counts from it.
            eligible: bool (K,), or None for all arms.

        Raises:
            HushstreamError: the context is no histogram of the deployment's dimension, or no arm is eligible.
        """
        require_histogram(context, self.terms.policy.context_dimension)
        known = self.known(event_id, log_time_ms)
        return self.decide_new(event_id, context, log_time_ms, eligible) if known is None else known

    def known(self, event_id: str, log_time_ms: int) -> Choice | None:
        """The answer that an event had before, if it is one that gets it again."""
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
        """See `decide`; for an event that is not `known` and a context that was checked, as the learner's are.

        ``best`` is the only arm with the highest score, where that is known already (`LookAhead`).
        """
        self.open.forget_answers(log_time_ms)
        terms = self.terms
        if terms.exploration is not None:
            arm, propensity = self._explored(terms.exploration, event_id, context, eligible, best)
        elif best != UNSCORED:
            arm, propensity = best, CERTAIN
        else:
            arm, ties = terms.policy.choose(self.knows(), context, eligible, self._pick)
            propensity = CERTAIN // ties
        version = self.base_version if self.state is not None else terms.policy.shared(self.track).version
        self.seen_ms = log_time_ms
        index = self.decided
        if index % terms.after_interactions == 0 if terms.renew_ms is None else self._renews(log_time_ms):
            self._begin_slot(index)
        self._waits = terms.choice.settled(self._waits, self._key, terms.after_interactions, log_time_ms)
        self.decided = index + 1
        deadline_ms = log_time_ms + terms.attribution_window_ms
        self.open[event_id] = OpenDecision(context, arm, propensity, version, index, deadline_ms)
        return Choice(arm, propensity, version, self._falls_due(log_time_ms), False)

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Note the arm that was on screen for a waiting event.

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
        """See `rewarded`; for callers that have checked all of it, as the learner does before."""
        decision, on_screen = self.open.rewarded(event_id, arm)
        self._learn(decision, on_screen, reward)
        return JoinOutcome.REWARDED if on_screen == decision.arm else JoinOutcome.OTHER_ARM

    def expire(self, event_id: str) -> JoinOutcome:
        """Close a waiting event whose deadline has passed.

        Raises:
            HushstreamError: no such event waits.
        """
        self._require_open(event_id)
        decision = self.open.pop(event_id)
        if decision.shown_arm == NOT_SHOWN:
            return JoinOutcome.NEVER_SHOWN
        self._learn(decision, decision.shown_arm, 0.0)
        return JoinOutcome.EXPIRED_AS_ZERO

    def knows(self) -> LearnerState:
        """What the next decision follows from: the user's own state, or the shared one until they have one."""
        if self.state is not None:
            return self.state
        shared: LearnerState = self.terms.policy.shared(self.track).state
        return shared

    def score_gap(self, event_id: str, eligible: NDArray[np.bool_] | None, arm: int, propensity: int) -> float:
        """How far scores must be off for this to be the answer to a waiting event, as the agent knows things now."""
        decision, exploration = self.open[event_id], self.terms.exploration
        scores = self.terms.policy.scores(self.knows(), decision.context)
        if exploration is None:
            return abs(float(scores[decision.arm]) - float(scores[arm]))
        return exploration.tie_gap(scores, eligible, self._drawn(event_id), Drawn(arm, propensity))

    def public_score_gap(self, context: NDArray[np.float32], arm: int, other: int, propensity: int) -> float:
        """How far apart two arms score for everybody who has no state of their own; their ties are theirs to divide."""
        policy = self.terms.policy
        scores = policy.scores(policy.shared(self.track).state, context)
        return abs(float(scores[arm]) - float(scores[other]))

    def correct(self, event_id: str, arm: int, propensity: int) -> None:
        """Take over what a journal holds for a waiting event, in place of a float tie's other side."""
        decision = self.open[event_id]
        decision.arm, decision.propensity = arm, propensity

    def take_slot(self, log_time_ms: int | None = None) -> Slot:
        """Give the oldest slot that is due and not yet taken; its content is fixed from here on.

        Args:
            log_time_ms: log time; that of the last context where none is given.

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
        waits = terms.choice.settled(self._waits, self._key, terms.after_interactions, now_ms)
        interaction, self._waits = terms.choice.taken(waits, self._key, number)
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
        """The agent that `dump` described.

        An older copy numbers slots that were sent before anew, with other content. The shuffler counts none of those,
        so they cost the user nothing, and the shuffler's zone alone sees them. What they do until they are past those
        goes unreported, and their quota begins where the copy stood. The state alone cannot show its age: keep
        `allowance` where a backup does not reach, and give it here.

        Args:
            terms: what the deployment agreed with its users.
            key: the user's key, the one that the state was dumped under.
            dumped: from `dump`.
            spent: the newest `allowance` that is known of this user; None where none is kept, and then an older copy is
                taken as it is.

        Raises:
            OlderState: ``dumped`` lies behind ``spent``. An agent begun with ``spent`` goes on, with nothing learned.
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

    def _renews(self, log_time_ms: int) -> bool:
        """Where slots are renewed: whether the next decision is the first of a slot."""
        terms = self.terms
        # The cap of a life: without it a user would get slots for ever, and no price would hold.
        return not self._in_slot() and self.due < terms.lifetime_slots and log_time_ms >= self.renews_ms

    def _begin_slot(self, first: int) -> None:
        terms = self.terms
        slot = first // terms.after_interactions
        if terms.renew_ms is not None:
            slot, self.first = self.due, first
        if slot < terms.lifetime_slots:
            self._waits = terms.choice.begun(self._waits, self._key, slot, first, terms.after_interactions)

    def _in_slot(self) -> bool:
        """Where slots are renewed: whether the newest one is not due yet."""
        return self.first >= 0 and self.decided < self.first + self.terms.after_interactions

    def _slot_of(self, index: int) -> int:
        """The slot that a decision belongs to; -1 for one between two slots, or of a slot that is settled."""
        length = self.terms.after_interactions
        if self.terms.renew_ms is None:
            return index // length
        if not 0 <= self.first <= index < self.first + length:
            return -1
        return self.due if self._in_slot() else self.due - 1

    def _falls_due(self, log_time_ms: int) -> bool:
        terms = self.terms
        if terms.renew_ms is not None:
            if self.first < 0 or self.decided != self.first + terms.after_interactions:
                return False
            self.due += 1
            self.renews_ms = log_time_ms + terms.renew_ms
            return True
        if self.due < terms.lifetime_slots and self.decided == (self.due + 1) * terms.after_interactions:
            self.due += 1
            return True
        return False

    def _explored(
        self,
        exploration: Exploration,
        event_id: str,
        context: NDArray[np.float32],
        eligible: NDArray[np.bool_] | None,
        best: int,
    ) -> Drawn:
        """The arm that owns the event's number; ``best`` as in `decide_new`."""
        policy, number = self.terms.policy, self._drawn(event_id)
        if best != UNSCORED and eligible is None and isinstance(exploration, EpsilonMixture):
            return draw(exploration.weights_around(best, policy.arms), number)
        return draw(exploration.weights(policy.scores(self.knows(), context), eligible), number)

    def _drawn(self, event_id: str) -> int:
        """The number that an event draws: the same whenever, and wherever, it is asked again."""
        # Named by the event, not by the count of decisions: a repeated request would draw until another item came.
        return int.from_bytes(self._key.digest("exploration", event_id.encode()), "little") % CERTAIN

    def _pick(self, ties: int) -> int:
        return self._uniform("tie", self.decided, ties)

    def _uniform(self, purpose: str, number: int, below: int) -> int:
        """A keyed uniform integer in [0, below): 128 bits reduced, so its bias is under below * 2^-128."""
        return int.from_bytes(self._key.digest(purpose, number.to_bytes(8, "little")), "little") % below

    def _require_open(self, event_id: str) -> None:
        if event_id not in self.open:
            raise HushstreamError("feedback: expected an event that waits for it, got an unknown or resolved one")

    def _require_arm(self, arm: int) -> None:
        arms = self.terms.policy.arms
        if not 0 <= arm < arms:
            raise HushstreamError(f"feedback: expected an arm from 0 to {arms - 1}, got another number")


def normalised(contexts: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Which rows of (n, d) are histograms: no entry below 0, sum 1 within the tolerance."""
    if not len(contexts):
        return np.zeros(0, dtype=np.bool_)
    sums = contexts.sum(axis=1, dtype=np.float64)
    good: NDArray[np.bool_] = (np.abs(sums - 1.0) <= HISTOGRAM_TOLERANCE) & (contexts.min(axis=1) >= 0)
    return good


def is_normalised(context: Sequence[float]) -> bool:
    """What `normalised` says of one row, of float32 numbers."""
    return abs(sum(context) - 1.0) <= HISTOGRAM_TOLERANCE and min(context) >= 0


def require_histogram(context: NDArray[np.float32], dimension: int) -> None:
    """Refuse a context that is no histogram of so many entries.

    Raises:
        HushstreamError: its shape, type or entries are others.
    """
    if context.shape != (dimension,) or context.dtype != np.float32:
        raise HushstreamError(
            f"context: expected float32 of shape ({dimension},), got {context.dtype} of shape {context.shape}"
        )
    # Written so that NaN, which compares false, is refused.
    if not (context.min() >= 0 and abs(float(context.sum(dtype=np.float64)) - 1.0) <= HISTOGRAM_TOLERANCE):
        raise HushstreamError("context: expected entries of at least 0 that sum to 1, got others")
