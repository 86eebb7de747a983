"""Takes snapshots of a partition in the background: cut between two folds, packed in slices, saved meanwhile.

A snapshot holds the state at the cut. It is saved only once all that was sent before the cut is acknowledged. So
nothing that a saved snapshot contains has to be sent again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass

from hushstream.agents.recovery.recovered_machine import RecoveredMachine
from hushstream.agents.recovery.snapshots import Snapshot
from hushstream.engine.machine import Machine, snapshot_portions
from hushstream.engine.records import TopicPartition

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

StatePosition = tuple[int, Mapping[TopicPartition, int]]
"""The last journal record that a state contains, and its positions."""

SLICE_SECONDS = 0.004
"""How long packing holds the event loop at a time, about; the folds then have at least as long."""

_RETRY_SECONDS = 2.0
"""After a snapshot that could not be written, in place of the interval."""


@dataclass(slots=True)
class Reached:
    """A mark in the order of what a driver sends.

    Attributes:
        all_before: done, when all that was sent before it is acknowledged; where the journal goes on after that.
        journal_offset, record: noted on the way: where the journal goes on, and `record_digest` of what it ends with.
    """

    all_before: asyncio.Future[int]
    journal_offset: int = 0
    record: bytes = b""


@dataclass(frozen=True, slots=True)
class BackgroundSnapshot:
    """A state that is being packed: as it was after journal record ``sequence``, with so many input records folded."""

    sequence: int
    folded: int
    packing: Generator[None, None, bytes]
    reached: Reached

    @classmethod
    def of(cls, machine: Machine, sequence: int) -> BackgroundSnapshot:
        """Cut now, between two folds; it must be packed or closed before the next one."""
        packing = snapshot_portions(machine)
        next(packing)
        folded = sum(machine.positions().values())
        return cls(sequence, folded, packing, Reached(asyncio.get_running_loop().create_future()))

    async def packed(self, genesis: bytes, in_a_hurry: Callable[[], bool], clock: Clock) -> Snapshot:
        """The snapshot, once it may be saved; unless one is in a hurry, the folds have half of the loop's time."""
        try:
            state = self._slice(clock)
            while state is None:
                await asyncio.sleep(0 if in_a_hurry() else SLICE_SECONDS)
                state = self._slice(clock)
        finally:
            self.packing.close()
        journal_offset = await self.reached.all_before
        return Snapshot(self.sequence, journal_offset, genesis, state, self.folded, self.reached.record)

    def _slice(self, clock: Clock) -> bytes | None:
        until = clock() + SLICE_SECONDS
        while True:
            try:
                next(self.packing)
            except StopIteration as end:
                packed: bytes = end.value
                return packed
            if clock() >= until:
                return None


class BackgroundSnapshots:
    """The background snapshots of one partition: when one is due, and the one that is being packed.

    Attributes:
        idle: set while none is under way.
    """

    def __init__(
        self,
        recovered: RecoveredMachine,
        interval_seconds: float,
        save: Callable[[Snapshot], Awaitable[None]],
        in_a_hurry: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Count from the state that the machine has now.

        Args:
            held: the machine, and its journal.
            interval_seconds: from one cut to the next.
            save: raises OSError if it could not, to be tried again.
            in_a_hurry: see `BackgroundSnapshot.packed`.
            clock: in seconds, from any time on.
        """
        self._recovered = recovered
        self._interval_seconds = interval_seconds
        self._save = save
        self._in_a_hurry = in_a_hurry
        self._clock = clock
        self._last = clock()
        self._position: StatePosition | None = self._position_at(recovered.sequence)
        if recovered.replayed:
            # What was rebuilt is saved at once: the next take-up must not rebuild it again.
            self.again()
        self._begun: asyncio.Queue[BackgroundSnapshot] = asyncio.Queue()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def due(self) -> bool:
        """Whether a snapshot should begin between this fold and the next."""
        return self._clock() - self._last >= self._interval_seconds

    def again(self) -> None:
        """A snapshot is due now, also of a state that is saved."""
        self._last, self._position = -math.inf, None

    def begin(self, sequence: int) -> BackgroundSnapshot | None:
        """Cut the state as it is after journal record ``sequence``; None if it is saved, or another is under way."""
        self._last = self._clock()
        position = self._position_at(sequence)
        if not self.idle.is_set() or self._position == position:
            return None
        cut = BackgroundSnapshot.of(self._recovered.machine, sequence)
        self._position = position
        self.idle.clear()
        self._begun.put_nowait(cut)
        return cut

    async def work(self) -> None:
        """Pack and save what was cut, while folds go on."""
        while True:
            cut = await self._begun.get()
            try:
                await self._save(await cut.packed(self._recovered.genesis, self._in_a_hurry, self._clock))
            except OSError as error:
                logger.warning("partition %d: snapshot not written: %s", self._recovered.machine.journal[1], error)
                self._position = None
                self._last = self._clock() + _RETRY_SECONDS - self._interval_seconds
            finally:
                self.idle.set()

    def _position_at(self, sequence: int) -> StatePosition:
        """How far the state has come: also inside a window that no journal record has closed yet."""
        return sequence, dict(self._recovered.machine.positions())
