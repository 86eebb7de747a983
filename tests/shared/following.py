"""Takes a machine through a journal as a worker does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hushstream.engine.records import ReplayMismatch, Step


def recover(rig: Any, machine: Any, journal: Sequence[bytes] | None = None) -> list[Step]:
    """Take a started machine through a journal, by default the rig's: what its inputs no longer give, it adopts."""
    steps = []
    for value in rig.journal if journal is None else journal:
        slices = [rig.slice(part) for part in machine.recovery_ranges(value)]
        try:
            steps.append(machine.replay(value, slices))
        except ReplayMismatch:
            steps.append(machine.reopen(value, slices))
    return steps
