"""The decisions of one user that wait for feedback, and the outcome of each.

A decision is learned from once: when its reward comes, or as reward 0 when it was shown and nothing came
within the wait. A decision that was never shown teaches nothing. When another arm was on screen than the one
decided, that arm is learned (its propensity is unknown, so it must not enter an off-policy estimate).

The answer of a rewarded decision is kept until its deadline, like that of a waiting one, so a repeated request before
that gets the same answer from either. So the number of a user's decisions, and the times when slots are due, do not
depend on rewards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.feedback.answers import Answer, Answered, KeptAnswers

NOT_SHOWN = -1
"""Value of the arm on screen until feedback says which one was shown."""


class JoinOutcome(StrEnum):
    """The outcome of one piece of feedback, or of missing feedback."""

    SHOWN = "shown"
    REWARDED = "rewarded"
    REPEATED_FEEDBACK = "repeated_feedback"
    LATE_REWARD = "late_reward"
    OTHER_ARM = "other_arm"
    EXPIRED_AS_ZERO = "expired_as_zero"
    NEVER_SHOWN = "never_shown"


JOIN_OUTCOMES: Mapping[str, Literal["zone-private"]] = dict.fromkeys(map(str, JoinOutcome), "zone-private")
"""All of them depend on clicks."""


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


class OpenDecisions(dict[str, OpenDecision]):
    """All waiting decisions of one user, by event id, oldest first, and the answers of rewarded ones."""

    __slots__ = ("_answered",)

    def __init__(self) -> None:
        """Start with none."""
        super().__init__()
        self._answered: KeptAnswers | None = None  # Most users have no open decision most of the time.

    def has_answer(self, event_id: str) -> bool:
        """Whether the answer of this event is kept because it was rewarded."""
        return self._answered is not None and event_id in self._answered

    def known(self, event_id: str, now_ms: int) -> Answer | None:
        """The answer to an event whose deadline is after ``now_ms``, rewarded or not; otherwise None."""
        found: Answer | None = self.get(event_id)
        if found is None and self._answered is not None:
            found = self._answered.get(event_id)
        return None if found is None or found.deadline_ms <= now_ms else found

    def answers(self) -> Iterator[tuple[str, Answered]]:
        """Event ids and answers of rewarded events, in the order of their rewards."""
        return iter(self._answered or ())

    def keep_answer(self, event_id: str, answer: Answer) -> None:
        """Keep the answer of a rewarded event."""
        if self._answered is None:
            self._answered = KeptAnswers()
        self._answered.keep(event_id, answer)

    def forget_answers(self, now_ms: int) -> None:
        """Drop answers whose deadline has passed, up to the first whose has not.

        Later answers were rewarded after that one, so no answer is kept longer than two waits.
        """
        if self._answered is not None and self._answered.next_ms <= now_ms:
            self._answered.forget(now_ms)
            if not len(self._answered):
                self._answered = None

    def shown(self, event_id: str, arm: int) -> JoinOutcome:
        """Note which arm was on screen for a waiting event; only the first note counts."""
        decision = self[event_id]
        if decision.shown_arm != NOT_SHOWN:
            return JoinOutcome.REPEATED_FEEDBACK
        decision.shown_arm = arm
        return JoinOutcome.SHOWN if arm == decision.arm else JoinOutcome.OTHER_ARM

    def rewarded(self, event_id: str, arm: int) -> tuple[OpenDecision, int]:
        """Resolve a waiting event; returns the arm for which its reward is learned.

        A reward implies that its arm was on screen, unless *shown* said otherwise.
        """
        decision = self.pop(event_id)
        self.keep_answer(event_id, decision)
        return decision, arm if decision.shown_arm == NOT_SHOWN else decision.shown_arm
