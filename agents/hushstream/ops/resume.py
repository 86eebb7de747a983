"""Advances the offsets of an input topic that was deleted and created again, to the position of the roles that read it.

A role's positions never go back: a journal names each input offset once. In a new topic offsets begin at 0, so the role
refuses it (`hushstream.agents.errors.replaced`). This module fills the new log with empty records up to the position,
and writes one more, which stands for all that the old topic held after the position. After it, records that others have
written to the new topic in the meantime are written once more, and everything before that is deleted. The role then
finds that input was deleted before it was folded, and an operator accepts this loss
(`hushstream.agents.recovery.losses`).

After an interruption it may be run again: a record that is written twice counts once, by its event id.

In a topic that was not made again all this would be damage: what lies between its end and a mistyped offset is lost. So
the workers' own check of replaced topics comes first, for each role that reads the partition. It needs the keys of
their zones.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition as BrokerPartition

from hushstream.agents.errors import TopicsReplaced
from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.losses import require_same_logs
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import Role
from hushstream.engine.machine import Machine, folds_ahead
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.repair import journal_walk
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_FILLED_AT_ONCE = 100_000
"""The number of empty records in one batch."""
_BATCH_BYTES = 1 << 21
_READ_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Resume:
    """The planned changes of one partition.

    Attributes:
        topic, partition: the input.
        folded: the offset up to which roles have folded the old topic.
        first, end: the first and the next offset of the new log.
        moved: how many records of the new topic are written again after the empty ones.
    """

    topic: str
    partition: int
    folded: int
    first: int
    end: int
    moved: int

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        return asdict(self)

    def as_text(self, wrote: str) -> str:
        """One line."""
        return (
            f"{self.topic}/{self.partition}: {wrote} "
            f"{count_text(max(0, self.folded + 1 - self.end), 'empty record')}, and behind "
            f"them {count_text(self.moved, 'record')} of the new topic once more; the log then begins at "
            f"offset {self.folded + 1}\n"
        )


@dataclass(frozen=True, slots=True)
class _Folded:
    """How far the journal of a role says that an input was folded.

    Attributes:
        journal: the journal's partition, in words.
        upto: the offset up to which its records name the input.
        open_window: whether the role folds records that no journal record names yet, so that it may be ahead.
        replaced: whether the worker's check says that the input is another log now.
    """

    journal: str
    upto: int
    open_window: bool
    replaced: bool

    def fits(self, folded: int) -> bool:
        """Whether a worker of the role may name this offset in its refusal."""
        return folded >= self.upto if self.open_window else folded == self.upto

    def __str__(self) -> str:
        return f"{self.upto}{' or more' if self.open_window else ''} by {self.journal}"


def plan(connection: Connection, system: System, keys: KeySource, source: TopicPartition, folded: int) -> Resume:
    """Plan the changes; writes nothing.

    Raises:
        HushstreamError: the topic cannot be read, or its offsets are advanced already; or by the journals it was not
            replaced, or was not folded up to this offset; or a key was not given.
    """
    return asyncio.run(_plan(connection, system, keys, source, folded))


async def _plan(connection: Connection, system: System, keys: KeySource, source: TopicPartition, folded: int) -> Resume:
    planned = await plan_async(connection, source, folded)
    async with client_errors(connection, "read logs"), LogReader(connection.settings()) as reader:
        there = [
            found
            for role in system.roles
            if source[0] in role.inputs
            for home in range(system.homes(role))
            if (found := await _folded_by(role, home, system, keys, reader, planned)) is not None
        ]
    name, said = f"{source[0]}/{source[1]}", ", ".join(map(str, there))
    if not any(one.replaced for one in there):
        raise HushstreamError(
            f"topics resume: expected {name} to be deleted and created again, got the log that was folded (up to "
            f"offset {said}; the log holds offsets {planned.first} to {planned.end - 1}): nothing was written"
        )
    if not any(one.replaced and one.fits(folded) for one in there):
        raise HushstreamError(
            f"topics resume: expected --at with the offset up to which {name} was folded ({said}), got {folded}: "
            f"nothing was written"
        )
    return planned


async def _folded_by(
    role: Role, home: int, system: System, keys: KeySource, reader: LogReader, planned: Resume
) -> _Folded | None:
    """What one home partition of a role has folded of the input; None if it does not read it."""
    source, make = (planned.topic, planned.partition), role_work(role.name, system, keys).make_machine
    machine = make(home)
    if source not in machine.inputs:
        return None
    chain, _ = await journal_walk(reader, role, home, system, keys)
    name, window = f"{role.journal}/{home}", folds_ahead(machine)
    ranges = () if chain.newest is None else machine.entry(chain.newest.value).inputs
    upto = max((part.high for part in ranges if (part.topic, part.partition) == source), default=0)
    if chain.newest is None or not upto:
        # Without a journal record of it, only the end of the log can tell.
        return _Folded(name, 0, window, window and planned.end < planned.folded)
    if planned.end < upto:
        return _Folded(name, upto, window, True)
    differs = [await _replaced(one, chain.newest, upto, reader, planned) for one in make.under_each_key(home)]
    return _Folded(name, upto, window, all(differs))


async def _replaced(machine: Machine, newest: InputRecord, upto: int, reader: LogReader, planned: Resume) -> bool:
    """Whether the input is another log than that of the newest journal record, by digests under the machine's key."""
    source = (planned.topic, planned.partition)
    firsts = {source: planned.first} if planned.first < upto else {}
    try:
        await require_same_logs(str, machine, newest.value, newest.offset + 1, {source: upto}, reader, firsts)
    except TopicsReplaced:
        return True
    return False


async def plan_async(connection: Connection, source: TopicPartition, folded: int) -> Resume:
    """Plan the changes without a look at what was folded.

    Raises:
        HushstreamError: the topic cannot be read, or its offsets are advanced already.
    """
    async with client_errors(connection, "read logs"), LogReader(connection.settings()) as reader:
        first = (await reader.first_offsets([source]))[source]
        end = (await reader.end_offsets([source]))[source]
        if first > folded:
            raise HushstreamError(
                f"{source[0]}/{source[1]}: expected a log that begins before offset {folded + 1}, got one that begins "
                f"at {first}: nothing is to be done; start the workers"
            )
        moved = len(await _written(reader, source, first, min(end, folded + 1)))
    return Resume(*source, folded, first, end, moved)


def resume(connection: Connection, planned: Resume) -> None:
    """Carry out the plan.

    Raises:
        HushstreamError: the topic cannot be written, or records of it cannot be deleted.
    """
    asyncio.run(resume_async(connection, planned))


async def resume_async(connection: Connection, planned: Resume) -> None:
    """Do the same within an event loop."""
    source, until = (planned.topic, planned.partition), planned.folded + 1
    name = physical(connection.prefix, planned.topic)
    async with client_errors(connection, f"write {planned.topic}"), LogReader(connection.settings()) as reader:
        producer = AIOKafkaProducer(
            **connection.settings().client_options(), enable_idempotence=True, compression_type="gzip",
            max_batch_size=_BATCH_BYTES, max_request_size=_BATCH_BYTES,
        )  # fmt: skip
        await producer.start()
        try:
            # 1. Fill up with empty records. Others may write in the meantime, so read the end after each batch.
            while (end := (await reader.end_offsets([source]))[source]) < until:
                batch = producer.create_batch()
                for _ in range(min(until - end, _FILLED_AT_ONCE)):
                    batch.append(timestamp=None, key=None, value=b"")
                await (await producer.send_batch(batch, name, partition=planned.partition))
            # 2. Then read what others wrote: also records between two of these batches lie before the position.
            first = (await reader.first_offsets([source]))[source]
            kept = await _written(reader, source, first, until)
        finally:
            await producer.stop()
        # No compression, as for every writer of a deployment.
        producer = AIOKafkaProducer(**connection.settings().client_options(), enable_idempotence=True)
        await producer.start()
        try:
            for key, value in kept:
                await producer.send_and_wait(name, value, key, planned.partition)
        finally:
            await producer.stop()
    async with connection.admin("delete records of inputs") as admin:
        await admin.delete_records({BrokerPartition(name, planned.partition): RecordsToDelete(until)})


async def _written(
    reader: LogReader, source: TopicPartition, first: int, until: int
) -> list[tuple[bytes | None, bytes]]:
    """Key and value of the records below an offset, in their order, without the empty ones."""
    reader.open({source: first})
    found: list[tuple[bytes | None, bytes]] = []
    for low in range(first, until, _READ_AT_ONCE):
        records = await reader.fetched(source, low, min(until, low + _READ_AT_ONCE))
        found += [(record.key, record.value) for record in records if record.value not in (None, b"", codec.COMPRESSED)]
    return found
