"""Publishes states to a compacted topic of the zone, so that any owner of a partition finds its state there.

A snapshot is on one worker's disk and does not move with the partition. Inputs, from which the state could be computed
again, are deleted after days. So a copy of the snapshot goes to the topic ``state-<role>`` at intervals, and the
worker's disk is a cache of it (`hushstream.engine.state.published` explains the form, and why it is safe).

A state is published with a snapshot, but so rarely that the publications of a partition take at most `bytes_per_second`
on average. It is published once a day in any case, so that no slot of the topic keeps the state of an erased user. A
worker that ends publishes its last state, whatever that costs. With an older state the next owner would need older
inputs, and it may start after these are deleted.
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
from hushstream.agents.recovery.journal import Sender
from hushstream.agents.recovery.marks import ForeignRecords
from hushstream.agents.recovery.snapshots import HoldsStateKeys, SealedSpool, Snapshot, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.engine.journal.notes import Checkpoint
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
"""How old a partition's newest publication may become while a worker owns it, even if the state has not changed."""

_BURST = 16
"""A publication is sent at this many times the average rate; pauses between its parts leave room for the journal."""

_READ_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Found:
    """A head record that was read from the topic.

    Attributes:
        publication: the name of the publication.
        head: the content of the record.
        offset: the offset of the record; the parts lie before it.
        time_ms: its log time.
    """

    publication: bytes
    head: Head
    offset: int
    time_ms: int


@dataclass(slots=True)
class _Last:
    """The newest publication of a partition that this process knows; ``size`` is 0 if there is none."""

    slot: int = SLOTS - 1
    size: int = 0
    place: tuple[int, int] | None = None
    sent: float = -math.inf
    slots: list[int] = field(default_factory=lambda: [0] * SLOTS)


@dataclass(slots=True)
class PublishedStates:
    """Reads and publishes the states of one worker's home partitions.

    Attributes:
        settings: the worker's.
        topic: the topic of the published states.
        keys: give the zone's keys.
        sender: sends the publications.
        snapshots: the snapshots on the worker's disk, which are the cache.
        output_ends: gives the ends of all output partitions of a home partition, without its journal.
        foreign: counts records that belong to no state of their partition.
        clock: gives seconds, which may begin at any time and only go forward.
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
        """The broker's name of the topic."""
        return self.settings.physical(self.topic)

    def seal(self, partition: int) -> StateSeal:
        """The seal for the states of a home partition, with the keys that the zone's key file holds now."""
        return StateSeal(self.settings.deployment, self.settings.role, partition, self.keys.state_keys())

    async def candidates(self, partition: int, reader: LogReader, ignored: list[str]) -> AsyncGenerator[Found]:
        """Yield the publications of a partition whose heads can be read, the newest first.

        Args:
            partition: the home partition.
            reader: at every step it forgets the partitions that it had open.
            ignored: gets a sentence for each head that cannot be read.
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
                    self.foreign.add(place, record.offset, len(record.value), ignored[-1])
                if isinstance(found, Found):
                    _note(last, found, self.clock())
                    yield found
                elif found is not None and not last.size:
                    # A part of an unfinished publication, in an unknown slot.
                    last.slots = [max(parts, found.number + 1) for parts in last.slots]
            high, count = low, min(_READ_AT_ONCE, 2 * count)

    def disregard(self, partition: int) -> None:
        """Note that the newest publication cannot be used, so that the next state is published whatever it costs."""
        self._last[partition].place = None

    async def fetch(self, partition: int, found: Found, reader: LogReader) -> str:
        """Copy a publication into the cache.

        Returns:
            Why it cannot be used (parts are missing, altered, or of another publication); empty after success.

        Raises:
            OSError: the cache could not be written.
        """
        with self.snapshots.incoming() as file:
            why = await self._read_parts(partition, found, reader, file)
            if not why:
                # Replace the snapshot only by a complete one, so that a crash before this line changes nothing.
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
                    # The head says whether all parts are there, and belong together.
                    self.foreign.add(place, record.offset, len(record.value), str(error))
                    continue
                if part is not None:
                    file.write(gathered.take(part))
            low = high
            await asyncio.sleep(0)
        return f"offset {found.offset}: {gathered.flaw}" if gathered.flaw else ""

    def age(self, partitions: Iterable[int]) -> float:
        """Seconds since the newest publication of the partition that published longest ago; 0 if none has published."""
        sent = (last.sent for p in partitions if (last := self._last.get(p)) is not None and last.size)
        return max((self.clock() - moment for moment in sent), default=0.0)

    def due(self, partition: int, place: tuple[int, int], *, last_one: bool = False) -> bool:
        """Whether a state should be published now.

        Args:
            partition: the home partition, whose `candidates` were read.
            place: the state's last journal record, and how many input records it contains.
            last_one: whether the worker is ending, and publishes no further state.
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

    def warn_if_unpublished(self, partition: int, place: tuple[int, int]) -> None:
        """Log a warning if the worker has ended without publishing its newest state."""
        if self.due(partition, place, last_one=True):
            logger.warning(
                "partition %d: the worker ended before its newest state was published to %s, as the machine or the "
                "broker was too slow: a worker elsewhere has to replay from an older state, and is refused "
                "(`inputs_deleted`) if inputs after that state are deleted by then. Start a worker on this state "
                "folder before; a larger --session-timeout leaves more time at the end",
                partition, self.name,
            )  # fmt: skip

    async def publish_if_due(
        self, partition: int, snapshot: Snapshot, wanted: Callable[[], bool], seconds_left: float | None = None
    ) -> bool:
        """Publish the snapshot that was just saved, if that is due; after a failure a later snapshot is published.

        Args:
            partition: the home partition.
            snapshot: the saved snapshot.
            wanted: see `publish`.
            seconds_left: how long the last publication of an ending worker may take; None for any other.

        Returns:
            Whether the snapshot was published.
        """
        if not wanted() or not self.due(partition, snapshot.place, last_one=seconds_left is not None):
            return False
        try:
            async with asyncio.timeout(seconds_left):
                return await self.publish(partition, snapshot, wanted)
        except OutOfOrderSequenceNumber:
            raise  # this producer cannot send anything more
        except (KafkaError, ConnectionError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            logger.warning("partition %d: state not published to %s: %s", partition, self.name, why)
            return False

    async def publish(self, partition: int, snapshot: Snapshot, wanted: Callable[[], bool]) -> bool:
        """Send the snapshot that was just saved, into another slot; send its head after all parts are acknowledged.

        Args:
            partition: the home partition.
            snapshot: the saved snapshot; its state is read from the file.
            wanted: called before each part; if it returns False, the publication is abandoned.

        Returns:
            Whether the publication was sent completely.

        Raises:
            OSError, KafkaError: reading or sending failed.
        """
        last, seal = self._last[partition], self.seal(partition)
        # 1. Never overwrite the newest publication: if this one is interrupted, the newest must still be complete.
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
        # 2. Delete surplus parts of this slot: a compacted topic would keep them for ever, and erased users in them.
        for gone in range(number, last.slots[slot]):
            await self._send(partition, slot_key(slot, gone), b"")
        # 3. Make the checkpoint: all outputs of records that the state contains are acknowledged by now.
        ends = await self.output_ends(partition)
        checkpoint = Checkpoint.of(snapshot.sequence, snapshot.journal_offset, snapshot.record, hasher.digest(), ends)
        await self._send(partition, slot_key(slot, CHECKPOINT), seal.pack(name, CHECKPOINT, checkpoint.pack()))
        # 4. Send the head last: a head in the topic says that all its parts are there.
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
        return None  # a deleted surplus part
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
