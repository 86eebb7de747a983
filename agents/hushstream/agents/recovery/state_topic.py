"""Publishes states to a compacted topic of the zone, so that any owner of a partition finds its state there.

A snapshot lies on one worker's disk and stays behind when the partition moves; inputs, from which the state could be
computed again, are deleted after days. So a copy of the snapshot goes to the topic ``state-<role>`` at intervals, and
the worker's disk is a cache of it (`hushstream.engine.state.published` has the form, and why it is safe).

A state is published with a snapshot, but rarely enough that the publications of a partition take `bytes_per_second` on
average; and once a day in any case, so that a state with an erased user is replaced in all slots. A worker that is
ended publishes its last state whatever the rate: input that the state before it needs may be gone when the next one
starts.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.foreign import ForeignRecords
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.recovered_machine import HoldsStateKeys
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.sealed_spool import SealedSpool
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.checkpoints import Checkpoint
from hushstream.engine.records import InputRecord, Output, TopicPartition
from hushstream.engine.state.published import (
    CHECKPOINT,
    HEAD,
    NAME_BYTES,
    PART_BYTES,
    SLOTS,
    Assembly,
    Head,
    Part,
    StateSeal,
    StateUnreadable,
    slot_key,
    state_hasher,
)
from hushstream.schemas.errors import HushstreamError

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 24 * 60 * 60.0
"""How old the newest publication of a partition may grow while a worker has it, although nothing has changed."""

_BURST = 16
"""How much faster than on average a publication is sent, once it is: its parts leave room for the journal's."""

_READ_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A head that was read.

    Attributes:
        publication: its name.
        head: what it says.
        offset: of the head: the parts lie before it.
        time_ms: log time.
    """

    publication: bytes
    head: Head
    offset: int
    time_ms: int


@dataclass(slots=True)
class _Last:
    """The newest publication of a partition that this process knows of; ``size`` 0 where there is none."""

    slot: int = SLOTS - 1
    size: int = 0
    place: tuple[int, int] | None = None
    sent: float = -math.inf
    slots: list[int] = field(default_factory=lambda: [0] * SLOTS)


@dataclass(slots=True)
class PublishedStates:
    """The published states of one worker's home partitions.

    Attributes:
        settings: of the worker.
        topic: where they are.
        keys: of the zone.
        sender: where publications go.
        snapshots: what lies on the worker's disk: the cache.
        output_ends: where everything ends that the role of a home partition writes to besides its journal.
        foreign: told of records that are of no state of their place.
        clock: in seconds, from any time on; it only goes forward.
    """

    settings: WorkerSettings
    topic: str
    keys: HoldsStateKeys
    sender: Sender
    snapshots: SnapshotStore
    output_ends: Callable[[int], Awaitable[Mapping[TopicPartition, int]]]
    foreign: ForeignRecords = field(default_factory=ForeignRecords)
    clock: Callable[[], float] = time.monotonic
    _last: dict[int, _Last] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The topic, as the broker calls it."""
        return self.settings.physical(self.topic)

    def seal(self, partition: int) -> StateSeal:
        """How the states of a home partition are sealed, under the keys that the zone's key file holds now."""
        return StateSeal(self.settings.deployment, self.settings.role, partition, self.keys.state_keys())

    async def candidates(self, partition: int, reader: LogReader, ignored: list[str]) -> AsyncGenerator[Found]:
        """The publications of a partition, the newest first, as far as their heads can be read.

        Args:
            partition: the home partition.
            reader: it forgets what it had open, at every step.
            ignored: is told of each head that cannot be read.
        """
        place, seal = (self.topic, partition), self.seal(partition)
        first, high = (await reader.first_offsets([place]))[place], (await reader.end_offsets([place]))[place]
        last = self._last[partition] = _Last()
        count = 1
        while high > first:
            low = max(first, high - count)
            reader.open({place: low})
            for record in reversed(await reader.read(place, low, high)):
                found = _opened(seal, record, ignored)
                if found is None and record.value:
                    self.foreign.met(place, record.offset, len(record.value), ignored[-1])
                if isinstance(found, Found):
                    _note(last, found, self.clock())
                    yield found
                elif found is not None and not last.size:
                    # Of a publication that nobody ended, in whichever slot.
                    last.slots = [max(parts, found.number + 1) for parts in last.slots]
            high, count = low, min(_READ_AT_ONCE, 2 * count)

    def disregard(self, partition: int) -> None:
        """The newest publication is of no use: the next state is published whatever it holds."""
        self._last[partition].place = None

    async def fetch(self, partition: int, found: Found, reader: LogReader) -> str:
        """Bring a publication into the cache.

        Returns:
            Why that could not be done, empty if it was: parts are missing, altered, or of another publication.

        Raises:
            OSError: the cache could not be written.
        """
        with self.snapshots.incoming() as file:
            why = await self._read_parts(partition, found, reader, file)
            if not why:
                # Only what is whole takes the place of what was here, so a crash before leaves that as it was.
                await asyncio.to_thread(self.snapshots.install, partition, file)
        if why:
            self.disregard(partition)
        return why

    async def _read_parts(self, partition: int, found: Found, reader: LogReader, file: SealedSpool) -> str:
        place, seal, head = (self.topic, partition), self.seal(partition), found.head
        gathered = Assembly(found.publication, head)
        low = max(head.first_offset, (await reader.first_offsets([place]))[place])
        reader.open({place: low})
        while low < found.offset and not gathered.full:
            high = min(found.offset, low + _READ_AT_ONCE)
            for record in await reader.read(place, low, high):
                try:
                    part = seal.unpack(record.value) if record.value else None
                except StateUnreadable as error:
                    # Whether all parts came, and belong together, the head tells.
                    self.foreign.met(place, record.offset, len(record.value), str(error))
                    continue
                if part is not None:
                    file.write(gathered.take(part))
            low = high
            await asyncio.sleep(0)
        return f"offset {found.offset}: {gathered.flaw}" if gathered.flaw else ""

    def age(self, partitions: Iterable[int]) -> float:
        """Seconds since the newest publication of that partition for which it is longest ago; 0 where none has one."""
        sent = (last.sent for p in partitions if (last := self._last.get(p)) is not None and last.size)
        return max((self.clock() - moment for moment in sent), default=0.0)

    def due(self, partition: int, place: tuple[int, int], *, last_one: bool = False) -> bool:
        """Whether a state should be published now.

        Args:
            partition: the home partition, whose `candidates` were read.
            place: its last journal record, and how many input records it contains.
            last_one: whether this worker publishes none after it.
        """
        last = self._last[partition]
        age = self.clock() - last.sent
        if last_one:
            return place[1] > 0 and place != last.place
        if place == last.place:
            return age >= REFRESH_SECONDS
        settings = self.settings
        least = max(settings.snapshot_interval_seconds, last.size / settings.state_bytes_per_second)
        return place[1] > 0 and age >= least

    def left(self, partition: int, place: tuple[int, int]) -> None:
        """Say so where a worker has ended without publishing the state that it had."""
        if self.due(partition, place, last_one=True):
            logger.warning(
                "partition %d: the worker ended before its newest state was published to %s, as the machine or the "
                "broker was too slow: whoever takes it up elsewhere replays from the state before, for which inputs "
                "must still be kept (`inputs_deleted` otherwise). Start a worker on this state folder before they are "
                "deleted; a larger --session-timeout gives the end more time",
                partition, self.name,
            )  # fmt: skip

    async def keep(
        self, partition: int, snapshot: Snapshot, wanted: Callable[[], bool], seconds_left: float | None = None
    ) -> bool:
        """Publish what was just saved, if that is due; what the broker refuses is tried again with a later snapshot.

        Args:
            partition: the home partition.
            snapshot: as it was saved.
            wanted: see `publish`.
            seconds_left: how long it may take, of the last one that this worker publishes; None for any other.

        Returns:
            Whether it was published.
        """
        if not wanted() or not self.due(partition, snapshot.place, last_one=seconds_left is not None):
            return False
        try:
            async with asyncio.timeout(seconds_left):
                return await self.publish(partition, snapshot, wanted)
        except OutOfOrderSequenceNumber:
            raise  # nothing more will be heard of this producer
        except (KafkaError, ConnectionError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            logger.warning("partition %d: state not published to %s: %s", partition, self.name, why)
            return False

    async def publish(self, partition: int, snapshot: Snapshot, wanted: Callable[[], bool]) -> bool:
        """Send what was just saved, in a slot of its own; its head follows when all parts are acknowledged.

        Args:
            partition: the home partition.
            snapshot: as it was saved; its state is read from where it lies.
            wanted: asked before each part; what was begun is given up when it is not any more.

        Returns:
            Whether it was sent whole.

        Raises:
            OSError, KafkaError: it could not be.
        """
        last, seal = self._last[partition], self.seal(partition)
        # 1. Not over the newest publication: where this one is broken off half-way, that one must still be whole.
        name, slot = os.urandom(NAME_BYTES), (last.slot + 1) % SLOTS
        hasher, size, number, first = state_hasher(), 0, 0, 0
        pieces = self.snapshots.pieces(partition, snapshot, PART_BYTES)
        while piece := await asyncio.to_thread(next, pieces, b""):
            if not wanted():
                return False
            offset = await self._send(partition, slot_key(slot, number), seal.pack(name, number, piece))
            first = first if number else offset
            hasher.update(piece)
            size, number = size + len(piece), number + 1
            await asyncio.sleep(len(piece) / (_BURST * self.settings.state_bytes_per_second))
        # 2. Empty what this slot had more of: a compacted topic would keep it for ever, with users erased since in it.
        for gone in range(number, last.slots[slot]):
            await self._send(partition, slot_key(slot, gone), b"")
        # 3. The checkpoint, while nothing that the state contains is still on its way to the outputs.
        ends = await self.output_ends(partition)
        checkpoint = Checkpoint.of(snapshot.sequence, snapshot.journal_offset, snapshot.record, hasher.digest(), ends)
        await self._send(partition, slot_key(slot, CHECKPOINT), seal.pack(name, CHECKPOINT, checkpoint.pack()))
        # 4. The head last: one that is there says that all its parts are.
        slots = [number if other == slot else parts for other, parts in enumerate(last.slots)]
        head = Head(
            slot, snapshot.sequence, snapshot.folded, snapshot.journal_offset, snapshot.genesis,
            snapshot.record, number, size, hasher.digest(), first, slots,
        )  # fmt: skip
        await self._send(partition, slot_key(slot, HEAD), seal.pack_head(name, head))
        self._last[partition] = _Last(slot, size, snapshot.place, self.clock(), slots)
        return True

    async def _send(self, partition: int, key: bytes, value: bytes) -> int:
        metadata: Any = await (await self.sender.send(Output(self.topic, partition, value, key)))
        return int(metadata.offset)


def _opened(seal: StateSeal, record: InputRecord, ignored: list[str]) -> Part | Found | None:
    if not record.value:
        return None  # where a slot had more parts
    try:
        part = seal.unpack(record.value)
        if part.number != HEAD:
            return part
        return Found(part.publication, part.head(), record.offset, record.timestamp_ms)
    except HushstreamError as error:
        ignored.append(f"offset {record.offset}: {error}")
        return None


def _note(last: _Last, found: Found, now: float) -> None:
    """Remember the newest publication; ``now`` is on the clock that only goes forward."""
    if last.size:
        return
    head = found.head
    last.slot, last.size, last.place = head.slot, head.size, head.place
    last.sent = now - max(0.0, time.time() - found.time_ms / 1000)
    last.slots = [max(pair) for pair in zip(last.slots, head.slots, strict=True)]
