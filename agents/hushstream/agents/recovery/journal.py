"""Appends to the write-ahead journal of one partition: a record at the expected offset is log, debit and fence in one.

The offset that the broker gives to an append shows whether somebody else wrote in between. If so, the journal is read
again, and its content decides (`settle`). Every reader skips records that cannot continue the chain, and so does this
writer. A record that may continue the chain before ours means that our records do not count. A record that may continue
it after ours means that another owner goes on, even if that owner wrote the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiokafka.errors import KafkaError, OutOfOrderSequenceNumber

from hushstream.agents.errors import JournalLost, from_client
from hushstream.engine.records import Output, TopicPartition


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
