"""Bounded memories of a partition: events already decided, and feedback that came before its context.

In some systems contexts and shown arms are public and rewards are private, and the rows that leave depend on the
waiting feedback. There a reward may change only its own row: it must not decide whether a shown arm, or another reward,
is remembered, because then one reward would move several rows. So only shown arms take places, and each place also
holds the reward of the same event (`ShownEarlyFeedback`). A reward that comes before its context and before the message
that its arm was shown is dropped.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Set
from enum import Enum, auto
from typing import NamedTuple, TypeVar

from hushstream.schemas.rows import REWARD

Value = TypeVar("Value")


class BoundedMap(dict[str, Value]):
    """A mapping that forgets its oldest keys beyond a capacity; a key keeps the age of its first insertion.

    Its items are in that order, oldest first. Only `put` adds: nothing else keeps to the capacity.
    """

    __slots__ = ("_keys", "capacity")

    def __init__(self, capacity: int) -> None:
        """Hold at most ``capacity`` keys (at least 1)."""
        super().__init__()
        self.capacity = capacity
        # The first key of a dictionary is found slowly after many were deleted before it.
        self._keys: deque[str] = deque()

    def put(self, key: str, value: Value) -> None:
        """Add or replace; forgets the oldest key when full."""
        if key not in self:
            if len(self._keys) >= self.capacity:
                del self[self._keys.popleft()]
            self._keys.append(key)
        self[key] = value


NOBODY = ""
"""Value in place of the name of an erased user; no account has this name."""


class PastDecision(NamedTuple):
    """A decided event: its user, its answer, and whether its wait ended without a reward."""

    user: str
    arm: int
    propensity: int
    model_version: int
    expired: bool = False


class PastDecisions(BoundedMap[PastDecision]):
    """The newest decisions of a partition, by event."""

    __slots__ = ()

    def hide(self, which: Callable[[PastDecision], bool]) -> None:
        """Tell nobody the answers of some decisions any longer."""
        for event_id, past in self.items():
            if which(past):
                self[event_id] = past._replace(user=NOBODY)


class FeedbackRow(NamedTuple):
    """Feedback that waits for its context: its content, its position in the log, and its log time."""

    kind: int
    event_id: str
    user: str
    arm: int
    reward: float
    offset: int
    row: int
    time_ms: int


class UserEarlyFeedback:
    """Feedback that came before its context, in order of arrival, with a limit for all and for each user."""

    __slots__ = ("_by_event", "_by_user", "_capacity", "_of_one", "_size")

    def __init__(self, capacity: int, of_one: int) -> None:
        """Hold at most ``capacity`` pieces of feedback, ``of_one`` of one user."""
        self._capacity = capacity
        self._of_one = of_one
        self.clear()

    def __len__(self) -> int:
        """How many pieces of feedback wait."""
        return self._size

    @property
    def events(self) -> Set[str]:
        """The events for which feedback waits."""
        return self._by_event.keys()

    def of(self, user: str) -> int:
        """Number of one user's waiting pieces of feedback."""
        return self._by_user[user]

    def hold(self, click: FeedbackRow) -> list[FeedbackRow] | None:
        """Store a click.

        Returns the clicks of the oldest event that were dropped for it (empty if there was space), or None if its user
        has no place left.
        """
        if self._by_user[click.user] >= self._of_one:
            return None
        evicted = self.claim(next(iter(self._by_event))) if self._size >= self._capacity else []
        self._by_event.setdefault(click.event_id, []).append(click)
        self._by_user[click.user] += 1
        self._size += 1
        return evicted

    def claim(self, event_id: str) -> list[FeedbackRow]:
        """Remove and return the feedback for an event that has now been decided, in order of arrival."""
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
        """Drop the feedback of a user."""
        if not self._by_user[user]:
            return
        clicks = self.all()
        self.clear()
        for click in clicks:
            if click.user != user:
                self.hold(click)

    def all(self) -> list[FeedbackRow]:
        """All waiting feedback, oldest event first (for snapshots)."""
        return [click for clicks in self._by_event.values() for click in clicks]


class EarlyOutcome(Enum):
    """The outcome of feedback whose context has not come."""

    WAITS = auto()
    REPEATED = auto()
    """Only the first of its kind counts."""
    FULL = auto()
    """Its user, or the whole partition, has no place left."""
    NOT_SHOWN = auto()
    """A reward of an arm without a message that it was shown."""


class ShownEarlyFeedback:
    """Places for shown arms, a fixed number for each user; no feedback is dropped for another."""

    __slots__ = ("_by_event", "_by_user", "_held", "_most", "_of_one")

    def __init__(self, of_one: int, most: int | None = None) -> None:
        """Hold ``of_one`` events of each user, with two pieces of feedback each; ``most`` of all together, if given."""
        self._of_one = of_one
        self._most = most
        self._held = 0
        self._by_event: dict[str, dict[str, list[FeedbackRow]]] = {}
        """By event and user: the shown arm, then the reward if it came."""
        self._by_user: Counter[str] = Counter()

    def __len__(self) -> int:
        """Number of events that wait for their context."""
        return len(self._by_event)

    def hold(self, click: FeedbackRow) -> EarlyOutcome:
        """Store feedback if there is a place for it."""
        place = self._by_event.get(click.event_id, {}).get(click.user)
        if click.kind == REWARD:
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
        """Remove and return the feedback for an event that has now been decided, whoever sent it."""
        users = self._by_event.pop(event_id, None)
        if users is None:
            return []  # The usual case: no feedback waits for the event.
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
        """Drop the feedback of a user."""
        theirs = self._by_user.pop(user, 0)
        self._held -= theirs
        if theirs:
            for users in self._by_event.values():
                users.pop(user, None)
            self._by_event = {event_id: users for event_id, users in self._by_event.items() if users}

    def all(self) -> Iterator[FeedbackRow]:
        """All waiting feedback, in an order in which `hold` restores the same places (for snapshots)."""
        return (click for users in self._by_event.values() for place in users.values() for click in place)


def _rewarded(place: list[FeedbackRow], click: FeedbackRow) -> EarlyOutcome:
    if len(place) > 1:
        return EarlyOutcome.REPEATED
    place.append(click)
    return EarlyOutcome.WAITS
