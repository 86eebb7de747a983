"""The decisions of one user that still wait for feedback, and what becomes of each.

A decision is learned from once: when its reward comes, or as reward 0 when it was shown and nothing came
within the wait. A decision that was never shown teaches nothing. When another arm was on screen than the one
decided, that arm is learned (its propensity is unknown, so it must not enter an off-policy estimate).

The answer of a rewarded decision is kept until its deadline, as that of a waiting one is: who asks again before that
gets it from either. So how many decisions a user has made, and when they owe a slot, does not depend on their rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import takewhile
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

NOT_SHOWN = -1
"""In place of the arm on screen, while no feedback said what was shown."""


class JoinOutcome(StrEnum):
    """What one piece of feedback, or its absence, came to."""

    SHOWN = "shown"
    REWARDED = "rewarded"
    REPEATED_FEEDBACK = "repeated_feedback"
    LATE_REWARD = "late_reward"
    OTHER_ARM = "other_arm"
    EXPIRED_AS_ZERO = "expired_as_zero"
    NEVER_SHOWN = "never_shown"


JOIN_OUTCOMES: Mapping[str, Literal["zone-private"]] = dict.fromkeys(map(str, JoinOutcome), "zone-private")
"""All of them tell of clicks."""


class OpenDecision:
    """A decision that waits: what was answered, its number in the user's life, its deadline and the arm on screen."""

    __slots__ = ("arm", "context", "deadline_ms", "index", "model_version", "propensity", "shown_arm")

    def __init__(
        self,
        context: NDArray[np.float32],
        arm: int,
        propensity: int,
        model_version: int,
        index: int,
        deadline_ms: int,
        shown_arm: int = NOT_SHOWN,
    ) -> None:
        """Hold one decision; ``context`` (d,) must not be a view of a buffer that is reused."""
        self.context = context
        self.arm = arm
        self.propensity = propensity
        self.model_version = model_version
        self.index = index
        self.deadline_ms = deadline_ms
        self.shown_arm = shown_arm


class Answered(NamedTuple):
    """What was answered to an event that is rewarded, and its deadline; see `OpenDecision`."""

    arm: int
    propensity: int
    model_version: int
    deadline_ms: int


class Resolved:
    """An interaction whose reward is known: context (d,), the arm that was on screen, reward in [0, 1]."""

    __slots__ = ("arm", "context", "index", "other_arm", "reward")

    def __init__(self, decision: OpenDecision, arm: int, reward: float) -> None:
        """Resolve ``decision`` for the arm on screen."""
        self.context = decision.context
        self.index = decision.index
        self.arm = arm
        self.other_arm = arm != decision.arm
        self.reward = reward


# Most users have none most of the time; a dictionary of one's own takes 64 bytes or more.
_NONE_ANSWERED: dict[str, Answered] = {}


class OpenDecisions:
    """All waiting decisions of one user, by event id, oldest first, and the answers of rewarded ones."""

    __slots__ = ("_answered", "_open")

    def __init__(self) -> None:
        """Start with none."""
        self._open: dict[str, OpenDecision] = {}
        self._answered: dict[str, Answered] = _NONE_ANSWERED

    def __len__(self) -> int:
        """How many wait."""
        return len(self._open)

    def __contains__(self, event_id: str) -> bool:
        """Whether this event waits for feedback."""
        return event_id in self._open

    def __getitem__(self, event_id: str) -> OpenDecision:
        """The waiting decision of an event."""
        return self._open[event_id]

    def get(self, event_id: str) -> OpenDecision | None:
        """The waiting decision of an event, or None."""
        return self._open.get(event_id)

    def items(self) -> Iterator[tuple[str, OpenDecision]]:
        """Event ids and decisions, oldest first."""
        return iter(self._open.items())

    def add(self, event_id: str, decision: OpenDecision) -> None:
        """Let a decision wait."""
        self._open[event_id] = decision

    def has_answer(self, event_id: str) -> bool:
        """Whether the answer of this event is kept because it is rewarded."""
        return event_id in self._answered

    def known(self, event_id: str, now_ms: int) -> OpenDecision | Answered | None:
        """What was answered to an event whose deadline is after ``now_ms``, rewarded or not; otherwise None."""
        found = self._open.get(event_id) or self._answered.get(event_id)
        return None if found is None or found.deadline_ms <= now_ms else found

    def answers(self) -> Iterator[tuple[str, Answered]]:
        """Event ids and answers of rewarded events, in the order of their rewards."""
        return iter(self._answered.items())

    def keep_answer(self, event_id: str, answer: Answered) -> None:
        """Let an event that is rewarded have its answer."""
        if not self._answered:
            self._answered = {}
        self._answered[event_id] = answer

    def forget_answers(self, now_ms: int) -> None:
        """Drop answers whose deadline has passed, up to the first whose has not.

        What lies behind that one was rewarded after it, so nothing stays for more than two waits.
        """
        if self._answered:
            passed = takewhile(lambda item: item[1].deadline_ms <= now_ms, self._answered.items())
            for event_id, _ in list(passed):
                del self._answered[event_id]

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Note which arm was on screen for a waiting event; the first note stands."""
        decision = self._open[event_id]
        if decision.shown_arm != NOT_SHOWN:
            return JoinOutcome.REPEATED_FEEDBACK
        decision.shown_arm = arm
        return JoinOutcome.SHOWN if arm == decision.arm else JoinOutcome.OTHER_ARM

    def rewarded(self, event_id: str, arm: int, reward: float) -> Resolved:
        """Resolve a waiting event. A reward implies that its arm was on screen, unless *shown* said otherwise."""
        decision = self._open.pop(event_id)
        answer = Answered(decision.arm, decision.propensity, decision.model_version, decision.deadline_ms)
        self.keep_answer(event_id, answer)
        return Resolved(decision, arm if decision.shown_arm == NOT_SHOWN else decision.shown_arm, reward)

    def expire(self, event_id: str) -> Resolved | None:
        """Close an event whose deadline has passed: reward 0 if it was shown, None if it never was."""
        decision = self._open.pop(event_id)
        if decision.shown_arm == NOT_SHOWN:
            return None
        return Resolved(decision, decision.shown_arm, 0.0)
