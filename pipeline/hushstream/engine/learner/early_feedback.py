"""Feedback that came before its context, bounded for all users together and for each alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hushstream.feedback.memory import EarlyFeedback, FeedbackRow


class UserEarlyFeedback:
    """A `EarlyFeedback` in which no user takes the place of the others."""

    def __init__(self, capacity: int, of_one: int) -> None:
        """Hold at most ``capacity`` pieces of feedback, ``of_one`` of one user."""
        self._capacity = capacity
        self._of_one = of_one
        self._early = EarlyFeedback(capacity)
        self._by_user: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many pieces of feedback wait."""
        return len(self._early)

    def of(self, user: str) -> int:
        """How many of one user's wait."""
        return self._by_user[user]

    def hold(self, click: FeedbackRow) -> list[FeedbackRow] | None:
        """Let a click wait; returns those that had to give way, or None if its user has no place left."""
        if self._by_user[click.user] >= self._of_one:
            return None
        self._by_user[click.user] += 1
        evicted = self._early.hold(click)
        self._left(evicted)
        return evicted

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Take what waits for an event that has now been decided, in order of arrival."""
        clicks = self._early.claim(event_id)
        self._left(clicks)
        return clicks

    def clear(self) -> None:
        """Drop everything."""
        self._early = EarlyFeedback(self._capacity)
        self._by_user.clear()

    def forget(self, user: str) -> None:
        """Drop what a user's feedback left here."""
        if self._by_user.pop(user, 0):
            clicks, self._early = self._early.all(), EarlyFeedback(self._capacity)
            for click in clicks:
                if click.user != user:
                    self._early.hold(click)

    def all(self) -> list[FeedbackRow]:
        """Everything that waits, oldest event first (for snapshots)."""
        return self._early.all()

    def _left(self, clicks: Iterable[FeedbackRow]) -> None:
        for click in clicks:
            self._by_user[click.user] -= 1
            if not self._by_user[click.user]:
                del self._by_user[click.user]
