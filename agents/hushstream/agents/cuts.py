"""A snapshot of one partition while it goes on: cut between two folds, packed in slices, saved beside the folds.

What is packed is the state at the cut. It is saved only when all that was sent before the cut is acknowledged: then
nothing that the snapshot contains has to be sent again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from hushstream.agents.snapshots import Snapshot
from hushstream.roles.machine import Machine, Portioned

SLICE_SECONDS = 0.004
"""How long packing holds the event loop at a time, about; the folds then have at least as long."""


@dataclass(slots=True)
class Reached:
    """A mark in the order of what a driver sends.

    Attributes:
        all_before: done, when all that was sent before it is acknowledged; where the journal goes on after that.
        journal_offset: noted on the way.
    """

    all_before: asyncio.Future[int]
    journal_offset: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """A state on its way into a snapshot: as it is after journal record ``sequence``."""

    sequence: int
    packing: Generator[None, None, bytes]
    reached: Reached

    @classmethod
    def of(cls, machine: Machine, sequence: int) -> Cut:
        """Cut now, between two folds; it must be packed or closed before the next one."""
        packing = machine.snapshot_portions() if isinstance(machine, Portioned) else _whole(machine)
        next(packing)
        return cls(sequence, packing, Reached(asyncio.get_running_loop().create_future()))

    async def packed(self, genesis: bytes, in_a_hurry: Callable[[], bool]) -> Snapshot:
        """The snapshot, once it may be saved; unless one is in a hurry, the folds have half of the loop's time."""
        try:
            state = self._slice()
            while state is None:
                await asyncio.sleep(0 if in_a_hurry() else SLICE_SECONDS)
                state = self._slice()
        finally:
            self.packing.close()
        return Snapshot(self.sequence, await self.reached.all_before, genesis, state)

    def _slice(self) -> bytes | None:
        begun = time.monotonic()
        while time.monotonic() - begun < SLICE_SECONDS:
            try:
                next(self.packing)
            except StopIteration as end:
                packed: bytes = end.value
                return packed
        return None


def _whole(machine: Machine) -> Generator[None, None, bytes]:
    """Of a machine that packs its state in one go."""
    state = machine.snapshot()
    yield
    return state
