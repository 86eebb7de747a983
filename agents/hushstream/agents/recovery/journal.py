"""Appends to the write-ahead journal of one partition: a record at the expected offset is log, debit and fence in one.

The offset that the broker gives to an append shows whether somebody else wrote in between. If so, the journal is read
again, and its content decides (`settle`). Every reader skips records that cannot continue the chain, and so does this
writer. A record that may continue the chain before ours means that our records do not count. A record that may continue
it after ours means that another owner goes on, even if that owner wrote the same bytes.

*Journal forks.* Finds the branch of a forked journal that a state belongs to.

A journal that lost its end and was continued has forked: both branches have the same first record and the same numbers
and offsets, but other records. A state of the lost branch would skip every record of the journal, as none continues it.
The chain digest of the record that the state ends with tells the branches apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from hushstream.agents.errors import JournalLost, JournalTruncated, from_client
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.snapshots import MachineFactory
from hushstream.engine.journal.chain import AlteredGenesis, OtherRelease, UnknownRecord
from hushstream.engine.machine import Machine
from hushstream.engine.records import FollowsModels, InputRecord, Output, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.schemas.codec import fingerprint_of
from hushstream.schemas.errors import HushstreamError


class Sender(Protocol):
    """Sends records; the returned awaitable is done when the broker has acknowledged the record."""

    async def send(self, output: Output) -> Awaitable[Any]:
        """Hand one record to the producer."""


@dataclass(frozen=True, slots=True)
class Append:
    """One journal record in flight; it counts only if the broker acknowledges it at ``expected_offset``."""

    value: bytes
    sequence: int
    expected_offset: int
    acknowledged: asyncio.Future[Any]


class JournalWriter:
    """Appends to one journal partition, with several records in flight, and checks their offsets."""

    def __init__(
        self,
        sender: Sender,
        target: TopicPartition,
        next_offset: int,
        read_tail: Callable[[int], Awaitable[list[tuple[int, bytes]]]],
        sequence_of: Callable[[bytes], int | None],
    ) -> None:
        """Begin to append after the last record that was read.

        Args:
            sender: sends the records.
            target: the journal's logical topic and partition.
            next_offset: the offset that the next append must get.
            read_tail: reads (offset, value) of the journal from an offset to its end.
            sequence_of: gives the sequence number of a journal record, None for anything else.
        """
        self._sender = sender
        self._target = target
        self._next = next_offset
        self._read_tail = read_tail
        self._sequence_of = sequence_of
        self._pending: list[Append] = []
        self._settled: dict[int, int] = {}
        self._order = asyncio.Lock()

    @property
    def next_offset(self) -> int:
        """The offset that the next append must get."""
        return self._next

    async def append(self, value: bytes, sequence: int) -> Append:
        """Send one record; `confirm` it before anything that follows from it."""
        async with self._order:
            future = asyncio.ensure_future(await self._sender.send(Output(*self._target, value)))
            future.add_done_callback(_mark_retrieved)
            append = Append(value, sequence, self._next, future)
            self._next += 1
            self._pending.append(append)
            return append

    async def read_others(
        self, read: Callable[[int], Awaitable[list[tuple[int, bytes]]]], due: Callable[[], int]
    ) -> list[tuple[int, bytes]]:
        """Read what others appended after our last record, as (offset, value), if none of our records is in flight.

        The next append is then expected after these records.

        Args:
            read: reads the journal from an offset to its end.
            due: gives the sequence number of the next append.

        Raises:
            JournalLost: one of these records may continue the chain: another owner has gone on.
        """
        async with self._order:
            if self._pending:
                return []
            tail = await read(self._next)
            for offset, value in tail:
                if self._sequence_of(value) == due():
                    raise JournalLost(f"another writer appended sequence {due()} at offset {offset}")
            self._next = tail[-1][0] + 1 if tail else self._next
            return tail

    async def confirm(self, append: Append) -> int:
        """Wait until the record counts, and return its offset; confirm appends in order.

        Raises:
            JournalLost: the append failed, or another writer may have continued the chain first.
        """
        offset = self._settled.pop(append.sequence, -1)
        if offset < 0:
            offset = await _offset_of(append)
            if offset != append.expected_offset:
                await self._settle_all()
                offset = self._settled.pop(append.sequence)
        self._pending.remove(append)
        return offset

    async def _settle_all(self) -> None:
        """Read the journal again from the first unconfirmed append, and find the offsets of all in flight."""
        async with self._order:
            sent = list(self._pending)
            for append in sent:
                await _offset_of(append)
            tail = await self._read_tail(sent[0].expected_offset)
            self._settled.update(settle(tail, sent, self._sequence_of))
            self._next = tail[-1][0] + 1


def settle(
    tail: Sequence[tuple[int, bytes]], sent: Sequence[Append], sequence_of: Callable[[bytes], int | None]
) -> dict[int, int]:
    """Find our records in the journal, and check that no other record can have continued the chain.

    Args:
        tail: (offset, value) of the journal from the expected offset of ``sent[0]`` on.
        sent: our appends in order; all were acknowledged.
        sequence_of: as in `JournalWriter`.

    Returns:
        The offset of each record of ``sent``, by sequence number.

    Raises:
        JournalLost: another record with the same sequence number stands before ours, or a record with the next
            sequence number stands after ours.
    """
    places: dict[int, int] = {}
    waiting = list(sent)
    for offset, value in tail:
        due = waiting[0].sequence if waiting else sent[-1].sequence + 1
        if waiting and value == waiting[0].value:
            places[due] = offset
            waiting.pop(0)
        elif sequence_of(value) == due:
            raise JournalLost(f"another writer appended sequence {due} at offset {offset} first")
    if waiting:
        raise JournalLost(f"sequence {waiting[0].sequence} was acknowledged but is not in the journal")
    return places


async def _offset_of(append: Append) -> int:
    try:
        metadata = await asyncio.shield(append.acknowledged)
    except OutOfOrderSequenceNumber as error:
        raise from_client(error, f"appending sequence {append.sequence}") from error
    except (KafkaError, ConnectionError, TimeoutError) as error:
        raise JournalLost(f"append of sequence {append.sequence} failed: {type(error).__name__}") from error
    return int(metadata.offset)


def _mark_retrieved(future: asyncio.Future[Any]) -> None:
    """Mark a failure as retrieved: `confirm` handles it, unless the partition was revoked, and then nobody needs it."""
    if not future.cancelled():
        future.exception()


_AT_ONCE = 256
_MODELS_AT_ONCE = 16


def sequence_of(machine: Machine, value: bytes) -> int | None:
    """The sequence number of a journal record; None for anything else, which every reader skips.

    Raises:
        OtherRelease: another release wrote this record, which comes right after the machine's last record.
    """
    try:
        return machine.entry(value).sequence
    except OtherRelease:
        raise
    except HushstreamError:
        return None


def sequence_in_flight(machine: Machine, value: bytes) -> int | None:
    """Do what `sequence_of` does, while this worker's records are in flight and its machine is ahead of the journal.

    Raises:
        JournalLost: the record cannot be read, and may continue the journal. The recovery that follows can decide that,
            because its machine is not ahead.
    """
    try:
        return machine.entry(value).sequence
    except (OtherRelease, UnknownRecord) as error:
        raise JournalLost(f"a record that is not ours was appended first ({error})") from None
    except HushstreamError:
        return None


async def last_record(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> bytes | None:
    """Find the very journal record that a machine's state ends with; None if the journal does not hold it.

    Args:
        reader: an opened reader, which forgets the partitions that it had open.
        machine: the machine with its state.
        sequence: the number of that record, from 1 on.
        journal_offset: an offset after that record, and before the next record of the chain.
    """
    async for value in _numbered(reader, machine, sequence, journal_offset):
        if machine.is_last(value):
            return value
    return None


async def holds(reader: LogReader, machine: Machine, sequence: int, journal_offset: int, digest: bytes) -> bool:
    """Whether the journal holds a record with this number and `record_digest`; arguments as for `last_record`.

    For the genesis record it is always True: the caller has compared that one before.
    """
    if not sequence:
        return True
    async for value in _numbered(reader, machine, sequence, journal_offset):
        if record_digest(value) == digest:
            return True
    return False


async def _numbered(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> AsyncIterator[bytes]:
    """Yield the journal's records with one sequence number below an offset, the last one first."""
    journal = machine.journal
    first = (await reader.first_offsets([journal]))[journal]
    end = (await reader.end_offsets([journal]))[journal]
    if journal_offset > end:
        return
    reader.open({journal: first})
    # Search backwards: only records that are not in the chain can come after it.
    high, count = journal_offset, 1
    while high > first:
        low = max(first, high - count)
        for record in await reader.read(journal, low, high):
            if sequence_of(machine, record.value) == sequence:
                yield record.value
        high, count = low, min(_AT_ONCE, 2 * count)


async def newest(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> tuple[int, bytes]:
    """The highest record number that a journal can reach after record ``sequence``, and that record.

    Only the records' numbers are compared. The record is empty where none comes after ``sequence``.

    Raises:
        OtherRelease: the journal continues with a record that another release wrote.
    """
    journal = machine.journal
    end = (await reader.end_offsets([journal]))[journal]
    last = b""
    for low in range(journal_offset, end, _AT_ONCE):
        for record in await reader.read(journal, low, min(end, low + _AT_ONCE)):
            found = sequence_of(machine, record.value)
            if found == sequence + 1:
                sequence, last = sequence + 1, record.value
            elif found is None and last and machine.continues(record.value, last):
                raise OtherRelease(journal, f"schema {fingerprint_of(record.value).hex()}", record.offset)
    return sequence, last


async def journaled(
    reader: LogReader, machine: Machine, sequence: int, journal_offset: int
) -> Mapping[TopicPartition, int]:
    """The offset up to which each input was folded, by a machine's state or by the journal records after it.

    The arguments are those of `newest`, but the reader need not have the journal open.
    """
    reader.open({machine.journal: journal_offset})
    _, value = await newest(reader, machine, sequence, journal_offset)
    folded = dict(machine.positions())
    for part in machine.entry(value).inputs if value else ():
        source = (part.topic, part.partition)
        folded[source] = max(folded.get(source, 0), part.high)
    return folded


async def published_ms(reader: LogReader, models: FollowsModels) -> int:
    """The log time of the last version that a reader of models has read; 0 if that record was deleted."""
    topic = models.topic
    if not models.position:
        return 0
    first, end = (await reader.first_offsets([topic]))[topic], (await reader.end_offsets([topic]))[topic]
    high, count = min(models.position, end), 1
    if high > first:
        reader.open({topic: first})
    while high > first:
        low = max(first, high - count)
        for record in reversed(await reader.read(topic, low, high)):
            if models.is_last(record.value):
                return record.timestamp_ms
        high, count = low, min(_MODELS_AT_ONCE, 2 * count)
    return 0


async def genesis_of(
    reader: LogReader, make_machine: MachineFactory, journal: TopicPartition, before: int | None = None
) -> InputRecord | None:
    """Find the genesis record of a journal: its first record that is one; None if there is none.

    Records before the genesis are foreign, and not in the chain. A journal that has later records but no genesis is
    refused: with a new genesis every budget and every allowance would be full again.

    Args:
        reader: an opened reader, which forgets the partitions that it had open.
        make_machine: makes the machine of the journal.
        journal: topic and partition of a journal whose first records were not deleted.
        before: the offset to search up to; None for the journal's end.

    Raises:
        HushstreamError: the journal belongs to another deployment, configuration, role or key.
        JournalTruncated: the journal has later records but no genesis.
    """
    end = (await reader.end_offsets([journal]))[journal] if before is None else before
    if not end:
        return None
    reader.open({journal: 0})
    machine = make_machine(journal[1])
    low, count, later = 0, 1, -1
    while low < end:
        high = min(end, low + count)
        for record in await reader.read(journal, low, high):
            sequence = sequence_of(machine, record.value)
            if sequence == 0 and _begins(make_machine, journal[1], record.value):
                return record
            if sequence and later < 0:
                later = record.offset
        low, count = high, min(_AT_ONCE, 2 * count)
    if before is None and later >= 0:
        raise JournalTruncated(
            f"journal {journal[0]}/{journal[1]}: its first record was altered or deleted, as its records go on from "
            f"offset {later}; bring the journal as it was"
        )
    return None


def _begins(make_machine: MachineFactory, partition: int, value: bytes) -> bool:
    try:
        make_machine.of_journal(partition, value, resumed=True).start(value)
    except AlteredGenesis:
        return False
    return True
