"""On which branch of a journal a state stands.

A journal that lost its end and went on is another branch: the same first record, the same numbers and offsets, other
records. A state of the lost branch fits none of them, and would pass over all that the journal holds as records that do
not continue. What tells the two apart is the chain digest at the place where the state stands.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from hushstream.agents.kafka.logs import LogReader
from hushstream.engine.journal.chain import NewerJournal
from hushstream.engine.machine import Machine
from hushstream.engine.state.published import record_digest
from hushstream.schemas.errors import HushstreamError

_AT_ONCE = 256


def sequence_of(machine: Machine, value: bytes) -> int | None:
    """The sequence number of a journal record; None for anything else, which every reader skips.

    Raises:
        NewerJournal: it may be a record, but a release newer than this one wrote it.
    """
    try:
        return machine.entry(value).sequence
    except NewerJournal:
        raise
    except HushstreamError:
        return None


async def last_record(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> bytes | None:
    """The very journal record that a machine's state ends with; None if the journal does not hold it.

    Args:
        reader: opened; it forgets what it had open.
        machine: with its state.
        sequence: number of that record, from 1 on.
        journal_offset: behind that record, and behind no later one that counts.
    """
    async for value in _numbered(reader, machine, sequence, journal_offset):
        if machine.is_last(value):
            return value
    return None


async def holds(reader: LogReader, machine: Machine, sequence: int, journal_offset: int, digest: bytes) -> bool:
    """Whether the journal holds a record of this number and `record_digest`; as `last_record`, without a state.

    The first record counts as there: it was compared before.
    """
    if not sequence:
        return True
    async for value in _numbered(reader, machine, sequence, journal_offset):
        if record_digest(value) == digest:
            return True
    return False


async def _numbered(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> AsyncIterator[bytes]:
    """The journal's records of one number below an offset, the last first."""
    journal = machine.journal
    first = (await reader.first_offsets([journal]))[journal]
    end = (await reader.end_offsets([journal]))[journal]
    if journal_offset > end:
        return
    reader.open({journal: first})
    # Backwards, since it is the last one but for records that do not count.
    high, count = journal_offset, 1
    while high > first:
        low = max(first, high - count)
        for record in await reader.read(journal, low, high):
            if sequence_of(machine, record.value) == sequence:
                yield record.value
        high, count = low, min(_AT_ONCE, 2 * count)


async def reach(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> int:
    """Up to which record a journal goes at most, behind record ``sequence``, by the numbers of its records alone."""
    journal = machine.journal
    end = (await reader.end_offsets([journal]))[journal]
    for low in range(journal_offset, end, _AT_ONCE):
        for record in await reader.read(journal, low, min(end, low + _AT_ONCE)):
            if sequence_of(machine, record.value) == sequence + 1:
                sequence += 1
    return sequence
