"""Takes snapshots of a partition in the background: it begins one between two folds, packs it in slices, and saves it.

A snapshot holds the state at the moment when it was begun. It is saved only when everything that was sent before is
acknowledged. So a recovery from a saved snapshot has to send nothing again that the snapshot contains.
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
"""The last journal record that a state contains, and the positions of its inputs."""

SLICE_SECONDS = 0.004
"""About how long packing blocks the event loop at a time. After that the folds get at least the same time."""

_RETRY_SECONDS = 2.0
"""The pause after a snapshot that could not be written, instead of the usual interval."""


@dataclass(slots=True)
class QueueMarker:
    """A marker in the queue of steps, which is reached when all steps before it are finished.

    Attributes:
        all_before: done when everything that was sent before is acknowledged; its value is the journal's next offset.
        journal_offset, record: set while the marker goes through the stages: the journal's next offset, and the
            `record_digest` of its last record.
    """

    all_before: asyncio.Future[int]
    journal_offset: int = 0
    record: bytes = b""


@dataclass(frozen=True, slots=True)
class BackgroundSnapshot:
    """A state that is being packed: the state after journal record ``sequence``, with its input positions."""

    sequence: int
    folded: int
    packing: Generator[None, None, bytes]
    reached: QueueMarker

    @classmethod
    def of(cls, machine: Machine, sequence: int) -> BackgroundSnapshot:
        """Begin a snapshot of the state now, between two folds; pack or close it before the next one begins."""
        packing = snapshot_portions(machine)
        next(packing)
        folded = sum(machine.positions().values())
        return cls(sequence, folded, packing, QueueMarker(asyncio.get_running_loop().create_future()))

    async def packed(self, genesis: bytes, in_a_hurry: Callable[[], bool], clock: Clock) -> Snapshot:
        """Pack the snapshot; return it when it may be saved. Folds get half of the time, unless ``in_a_hurry()``."""
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
    """Decides when a background snapshot of one partition is due, and packs and saves one at a time.

    Attributes:
        idle: set while no snapshot is being made.
    """

    def __init__(
        self,
        recovered: RecoveredMachine,
        interval_seconds: float,
        save: Callable[[Snapshot], Awaitable[None]],
        in_a_hurry: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Begin to count the interval, with the state that the machine has now.

        Args:
            recovered: the machine, and its journal.
            interval_seconds: the time from one snapshot to the next.
            save: saves a snapshot; raises OSError if that fails and is to be tried again.
            in_a_hurry: see `BackgroundSnapshot.packed`.
            clock: gives seconds; it may begin at any time.
        """
        self._recovered = recovered
        self._interval_seconds = interval_seconds
        self._save = save
        self._in_a_hurry = in_a_hurry
        self._clock = clock
        self._last = clock()
        self._position: StatePosition | None = self._position_at(recovered.sequence)
        if recovered.replayed:
            # Save a rebuilt state at once, so that the next recovery does not have to rebuild it again.
            self.again()
        self._begun: asyncio.Queue[BackgroundSnapshot] = asyncio.Queue()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def due(self) -> bool:
        """Whether a snapshot should begin before the next fold."""
        return self._clock() - self._last >= self._interval_seconds

    def again(self) -> None:
        """Make a snapshot due now, even if the state has been saved already."""
        self._last, self._position = -math.inf, None

    def begin(self, sequence: int) -> BackgroundSnapshot | None:
        """Begin a snapshot of the state after record ``sequence``; None if that is saved, or another is being made."""
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
        """Pack and save each snapshot that was begun, while folds go on."""
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
        """The position of the state, which may lie inside a window that no journal record has closed yet."""
        return sequence, dict(self._recovered.machine.positions())
