"""When the waiting decisions of many agents end, in order of log time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from hushstream.systems.p2b.edge.agent import EdgeAgent

_TIDY_AT_LEAST = 4096
_TIDY_EVERY = 256


class Deadlines:
    """A queue of (deadline, agent, event id); deadlines are added in order, as log time never goes back.

    Most decisions are rewarded long before their deadline. Their entries are dropped by a look at the next two for
    every one that was added, round and round, so that the queue follows what waits (about three times as much where
    every wait is as long) and not what was decided within the wait; and no decision pays for the whole queue at once.
    """

    __slots__ = ("_added", "_ahead", "_seen")

    def __init__(self, waiting: Iterable[tuple[int, EdgeAgent, str]] = ()) -> None:
        """Begin with what waits already, in the order of its deadlines."""
        self._ahead = deque(waiting)
        """Not looked at yet in this round; later than all of ``_seen``."""
        self._seen: deque[tuple[int, EdgeAgent, str]] = deque()
        self._added = 0

    def __len__(self) -> int:
        """Entries held, with some that were resolved meanwhile."""
        return len(self._seen) + len(self._ahead)

    def add(self, deadline_ms: int, agent: EdgeAgent, event_id: str) -> None:
        """Note the deadline of a decision that begins to wait."""
        self._ahead.append((deadline_ms, agent, event_id))
        self._added += 1
        if self._added == _TIDY_EVERY:
            self._added = 0
            if len(self) >= _TIDY_AT_LEAST:
                self._tidy(2 * _TIDY_EVERY)

    def passed(self, now_ms: int) -> Iterator[tuple[EdgeAgent, str]]:
        """Take what still waits at ``now_ms`` though its deadline is not later."""
        while (entries := self._seen or self._ahead) and entries[0][0] <= now_ms:
            entry = entries.popleft()
            if _waits(*entry):
                yield entry[1], entry[2]

    def _tidy(self, count: int) -> None:
        """Look at the next ``count`` entries of at least as many, and begin a new round after the last."""
        for _ in range(count):
            if not self._ahead:
                self._ahead, self._seen = self._seen, self._ahead
            entry = self._ahead.popleft()
            if _waits(*entry):
                self._seen.append(entry)


def _waits(deadline_ms: int, agent: EdgeAgent, event_id: str) -> bool:
    """Whether this very decision waits: an event id that was forgotten may have been decided a second time."""
    decision = agent.open.get(event_id)
    return decision is not None and decision.deadline_ms == deadline_ms
