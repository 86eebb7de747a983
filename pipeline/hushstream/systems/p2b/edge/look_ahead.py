"""Scoring the next contexts of a batch together, before each is decided in its turn.

A decision changes nothing that another one is scored with; what is learned does, and a new shared model does for those
without a state of their own. So what was found for a context counts as long as its user knows what they knew then.
Nothing else depends on how many are looked at, or on whether anybody is: arms are those of `SharedPolicy.choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hushstream.schemas.columns import ContextColumns
from hushstream.systems.p2b.edge.agent import EdgeAgent
from hushstream.systems.p2b.edge.policy import UNSCORED, LearnerState, SharedPolicy

AHEAD_AT_MOST = 64
"""Contexts that are looked at together: of one whose user learns meanwhile the work was in vain."""

AHEAD_AT_LEAST = 4
"""For fewer the work for all of them costs more than it saves."""


class LookAhead:
    """The best arms of some rows, by what their users knew when they were looked at."""

    __slots__ = ("_found", "_policy")

    def __init__(self, policy: SharedPolicy) -> None:
        """Look at none yet."""
        self._policy = policy
        self._found: dict[int, tuple[LearnerState, int, int]] = {}

    def look(self, columns: ContextColumns, rows: Sequence[int], agent_of: Callable[[str], EdgeAgent | None]) -> None:
        """Score these rows, as far as they may have any arm and their user is at hand; forget the rows before."""
        users, eligible = columns.users, columns.eligible
        found = ((row, agent_of(users[row])) for row in rows if not eligible[row])
        known = [(row, agent.knows(), agent.steps) for row, agent in found if agent is not None]
        places = [row for row, _, _ in known]
        arms = self._policy.best([state for _, state, _ in known], columns.contexts[places])
        self._found = {row: (state, steps, arm) for (row, state, steps), arm in zip(known, arms, strict=True)}

    def best(self, row: int, agent: EdgeAgent) -> int:
        """The best arm of a row that its user is asked for now, or `UNSCORED`."""
        found = self._found.get(row)
        if found is None:
            return UNSCORED
        state, steps, arm = found
        # A state of one's own changes in place with every step.
        return arm if agent.steps == steps and agent.knows() is state else UNSCORED
