"""Collects the phase ends that learner partitions send. A phase has ended when every partition has sent one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PHASE_ENDS = {"seals": {"type": "map", "values": "long"}, "sealed_phase": "long"}
"""Avro fields of `PhaseEnds.dump`."""


class PhaseEnds:
    """The last phase that each learner partition has ended, and the last that all have."""

    __slots__ = ("by_origin", "complete", "origins")

    def __init__(self, origins: int) -> None:
        """Wait for learner partitions 0 .. ``origins`` - 1."""
        self.origins = origins
        self.by_origin: dict[int, int] = {}
        self.complete = -1

    def note(self, origin: int, phase: int) -> bool | None:
        """Take one phase end; returns whether it completes a phase. None if no partition of this deployment sent it."""
        if not 0 <= origin < self.origins or phase < 0:
            return None
        self.by_origin[origin] = max(self.by_origin.get(origin, -1), phase)
        complete = min(self.by_origin.get(known, -1) for known in range(self.origins))
        if complete <= self.complete:
            return False
        self.complete = complete
        return True

    def dump(self) -> dict[str, Any]:
        """The values of `PHASE_ENDS`."""
        return {
            "seals": {str(origin): phase for origin, phase in self.by_origin.items()},
            "sealed_phase": self.complete,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the dumped phase ends."""
        self.by_origin = {int(origin): phase for origin, phase in state["seals"].items()}
        self.complete = state["sealed_phase"]
