"""Bounded memories of a partition: events already decided, and feedback that came before its context.

Where what leaves depends on which feedback waits, rewards must not: where contexts and what was shown are public and
rewards are not, a reward must decide about nothing but itself: not whether what was shown is remembered, and not
whether another reward is, or one reward would move many. There places are given to what was shown alone, and each has
room for the reward of the same event (`ShownEarlyFeedback`). A reward that comes before both its context and the word
that its arm was shown has no place.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum, auto
from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class BoundedMap(Generic[Value]):
    """A mapping that forgets its oldest keys beyond a capacity; a key keeps the age of its first insertion."""

    __slots__ = ("_capacity", "_keys", "_values")

    def __init__(self, capacity: int) -> None:
        """Hold at most ``capacity`` keys (at least 1)."""
        self._capacity = capacity
        self._keys: deque[str] = deque()
        self._values: dict[str, Value] = {}

    @property
    def capacity(self) -> int:
        """How many keys it holds at most."""
        return self._capacity

    def __len__(self) -> int:
        """How many keys are held."""
        return len(self._values)

    def __contains__(self, key: str) -> bool:
        """Whether the key is still known."""
        return key in self._values

    def get(self, key: str) -> Value | None:
        """The value of a key, or None when it was never put or is forgotten."""
        return self._values.get(key)

    def put(self, key: str, value: Value) -> None:
        """Add or replace; forgets the oldest key when full."""
        if key not in self._values:
            if len(self._keys) >= self._capacity:
                del self._values[self._keys.popleft()]
            self._keys.append(key)
        self._values[key] = value

    def copy(self) -> BoundedMap[Value]:
        """The same keys and values, which later changes of this one leave alone."""
        same: BoundedMap[Value] = BoundedMap(self._capacity)
        same._keys, same._values = self._keys.copy(), self._values.copy()
        return same

    def items(self) -> Iterator[tuple[str, Value]]:
        """Keys and values, oldest first."""
        return ((key, self._values[key]) for key in self._keys)


class PastDecision(NamedTuple):
    """What is known of an event that was decided: whose it is, its answer, and whether its wait ended unrewarded."""

    user: str
    arm: int
    propensity: int
    model_version: int
    expired: bool = False


class FeedbackRow(NamedTuple):
    """Feedback that waits for its context: what it said, where it lies in the log, and its log time."""

    rewarded: bool
    event_id: str
    user: str
    arm: int
    reward: float
    offset: int
    row: int
    time_ms: int


class UserEarlyFeedback:
    """Feedback that came before its context, in order of arrival, bounded; no user takes the place of the others."""

    __slots__ = ("_by_event", "_by_user", "_capacity", "_of_one", "_size")

    def __init__(self, capacity: int, of_one: int) -> None:
        """Hold at most ``capacity`` pieces of feedback, ``of_one`` of one user."""
        self._capacity = capacity
        self._of_one = of_one
        self.clear()

    def __len__(self) -> int:
        """How many pieces of feedback wait."""
        return self._size

    def of(self, user: str) -> int:
        """How many of one user's wait."""
        return self._by_user[user]

    def hold(self, click: FeedbackRow) -> list[FeedbackRow] | None:
        """Let a click wait; returns the oldest event's clicks that had to give way (empty when there is room).

        None if its user has no place left.
        """
        if self._by_user[click.user] >= self._of_one:
            return None
        evicted = self.claim(next(iter(self._by_event))) if self._size >= self._capacity else []
        self._by_event.setdefault(click.event_id, []).append(click)
        self._by_user[click.user] += 1
        self._size += 1
        return evicted

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Take what waits for an event that has now been decided, in order of arrival."""
        clicks = self._by_event.pop(event_id, [])
        self._size -= len(clicks)
        for click in clicks:
            self._by_user[click.user] -= 1
            if not self._by_user[click.user]:
                del self._by_user[click.user]
        return clicks

    def clear(self) -> None:
        """Drop everything."""
        self._by_event: dict[str, list[FeedbackRow]] = {}
        self._by_user: Counter[str] = Counter()
        self._size = 0

    def forget(self, user: str) -> None:
        """Drop what a user's feedback left here."""
        if not self._by_user[user]:
            return
        clicks = self.all()
        self.clear()
        for click in clicks:
            if click.user != user:
                self.hold(click)

    def all(self) -> list[FeedbackRow]:
        """Everything that waits, oldest event first (for snapshots)."""
        return [click for clicks in self._by_event.values() for click in clicks]


class EarlyOutcome(Enum):
    """What became of feedback whose context has not come."""

    WAITS = auto()
    REPEATED = auto()
    """The first of its kind stands."""
    FULL = auto()
    """Its user has no place left, or nobody has."""
    NOT_SHOWN = auto()
    """A reward of what was not said to be shown."""


class ShownEarlyFeedback:
    """Places for what was shown, so many for each user; nobody's feedback gives way."""

    __slots__ = ("_by_event", "_by_user", "_held", "_most", "_of_one")

    def __init__(self, of_one: int, most: int | None = None) -> None:
        """Hold ``of_one`` events of each user, with two pieces of feedback each; ``most`` of all together, if given."""
        self._of_one = of_one
        self._most = most
        self._held = 0
        self._by_event: dict[str, dict[str, list[FeedbackRow]]] = {}
        """By event and user: what was shown, then the reward if it came."""
        self._by_user: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many events wait for their context."""
        return len(self._by_event)

    def hold(self, click: FeedbackRow) -> EarlyOutcome:
        """Let feedback wait if there is a place for it."""
        place = self._by_event.get(click.event_id, {}).get(click.user)
        if click.rewarded:
            return EarlyOutcome.NOT_SHOWN if place is None else _rewarded(place, click)
        if place is not None:
            return EarlyOutcome.REPEATED
        if self._by_user[click.user] >= self._of_one or self._held == self._most:
            return EarlyOutcome.FULL
        self._by_event.setdefault(click.event_id, {})[click.user] = [click]
        self._by_user[click.user] += 1
        self._held += 1
        return EarlyOutcome.WAITS

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Take what waits for an event that has now been decided, whoever sent it."""
        users = self._by_event.pop(event_id, {})
        self._by_user.subtract(users.keys())
        self._held -= len(users)
        for user in users:
            if not self._by_user[user]:
                del self._by_user[user]
        return [click for place in users.values() for click in place]

    def clear(self) -> None:
        """Drop everything."""
        self._by_event.clear()
        self._by_user.clear()
        self._held = 0

    def forget(self, user: str) -> None:
        """Drop what a user's feedback left here."""
        theirs = self._by_user.pop(user, 0)
        self._held -= theirs
        if theirs:
            for users in self._by_event.values():
                users.pop(user, None)
            self._by_event = {event_id: users for event_id, users in self._by_event.items() if users}

    def all(self) -> Iterator[FeedbackRow]:
        """Everything that waits, so that early it in this order gives the same places (for snapshots)."""
        return (click for users in self._by_event.values() for place in users.values() for click in place)


def _rewarded(place: list[FeedbackRow], click: FeedbackRow) -> EarlyOutcome:
    if len(place) > 1:
        return EarlyOutcome.REPEATED
    place.append(click)
    return EarlyOutcome.WAITS
