"""Bounded memories of a partition: events already decided, and one piece of feedback."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
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
