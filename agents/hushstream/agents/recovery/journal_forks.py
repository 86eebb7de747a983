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
        NewerJournal: a newer release wrote this record, which comes right after the machine's last record.
    """
    try:
        return machine.entry(value).sequence
    except NewerJournal:
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
    except (NewerJournal, UnknownRecord) as error:
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


async def reach(reader: LogReader, machine: Machine, sequence: int, journal_offset: int) -> int:
    """The highest record number that a journal can reach after record ``sequence``, by its records' numbers only.

    Raises:
        NewerJournal: the journal continues with a record that a newer release wrote.
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
