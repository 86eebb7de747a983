"""When the waiting decisions of many agents end, in order of log time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from hushstream.edge.agent import EdgeAgent

_TIDY_AT_LEAST = 4096


class Deadlines:
    """A queue of (deadline, agent, event id); deadlines are added in order, as log time never goes back.

    Most decisions are rewarded long before their deadline. Their entries are dropped whenever the queue has
    doubled, so that it follows what waits and not what was decided within the wait.
    """

    __slots__ = ("_entries", "_tidy_at")

    def __init__(self, waiting: Iterable[tuple[int, EdgeAgent, str]] = ()) -> None:
        """Begin with what waits already, in the order of its deadlines."""
        self._entries = deque(waiting)
        self._tidy_at = _TIDY_AT_LEAST

    def __len__(self) -> int:
        """Entries held, with some that were resolved meanwhile."""
        return len(self._entries)

    def add(self, deadline_ms: int, agent: EdgeAgent, event_id: str) -> None:
        """Note the deadline of a decision that begins to wait."""
        self._entries.append((deadline_ms, agent, event_id))
        if len(self._entries) >= self._tidy_at:
            self._entries = deque(entry for entry in self._entries if _waits(*entry))
            self._tidy_at = max(_TIDY_AT_LEAST, 2 * len(self._entries))

    def passed(self, now_ms: int) -> Iterator[tuple[EdgeAgent, str]]:
        """Take what still waits at ``now_ms`` though its deadline is not later."""
        entries = self._entries
        while entries and entries[0][0] <= now_ms:
            entry = entries.popleft()
            if _waits(*entry):
                yield entry[1], entry[2]


def _waits(deadline_ms: int, agent: EdgeAgent, event_id: str) -> bool:
    """Whether this very decision waits: an event id that was forgotten may have been decided a second time."""
    decision = agent.open.get(event_id)
    return decision is not None and decision.deadline_ms == deadline_ms
