"""Finds the branch of a forked journal that a state belongs to.

A journal that lost its end and was continued has forked: both branches have the same first record and the same numbers
and offsets, but other records. A state of the lost branch would skip every record of the journal, as none continues it.
The chain digest of the record that the state ends with tells the branches apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from hushstream.agents.errors import JournalLost, JournalTruncated
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.recovered_machine import MachineFactory
from hushstream.engine.journal.chain import AlteredGenesis, NewerJournal, UnknownRecord
from hushstream.engine.machine import Machine
from hushstream.engine.records import FollowsModels, InputRecord, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.schemas.codec import fingerprint_of
from hushstream.schemas.errors import HushstreamError

_AT_ONCE = 256
_MODELS_AT_ONCE = 16


def sequence_of(machine: Machine, value: bytes) -> int | None:
    """The sequence number of a journal record; None for anything else, which every reader skips.

    Raises:
        NewerJournal: it is the record behind the one that the machine stands on, and a newer release wrote it.
    """
    try:
        return machine.entry(value).sequence
    except NewerJournal:
        raise
    except HushstreamError:
        return None


def sequence_in_flight(machine: Machine, value: bytes) -> int | None:
    """`sequence_of` while records of this worker are being written: the machine is then ahead of the journal.

    Raises:
        JournalLost: it cannot be read, and may be what the journal goes on with: whoever takes the journal up again
            stands where that can be told.
    """
    try:
        return machine.entry(value).sequence
    except (NewerJournal, UnknownRecord) as error:
        raise JournalLost(f"a record that is not ours was appended first ({error})") from None
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
    """Up to which record a journal goes at most, behind record ``sequence``, by the numbers of its records alone.

    Raises:
        NewerJournal: it goes on with a record that a newer release wrote.
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
                raise NewerJournal(journal, f"schema {fingerprint_of(record.value).hex()}", record.offset)
    return sequence


async def published_ms(reader: LogReader, models: FollowsModels) -> int:
    """Log time of the last version that a reader of models has read; 0 where its record was deleted."""
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
    """The record that a journal begins with: the first that is one; None for a journal that holds none.

    Whatever stands before it was put there by somebody else, and no chain holds it. A journal whose records go on
    though none begins it is refused: a new beginning would make every budget and every allowance full again.

    Args:
        reader: opened; it forgets what it had open.
        make_machine: makes the machine whose journal it is.
        journal: which; it was not shortened.
        before: the offset to look up to; None for the journal's end.

    Raises:
        HushstreamError: it begins as the journal of another deployment, configuration, role or key does.
        JournalTruncated: it has later records of a journal, and none that begins it.
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
