"""Advances the offsets of an input topic that was deleted and created again, to the position of the roles that read it.

A role's positions never go back: a journal names each input offset once. In a new topic offsets begin at 0, so the role
refuses it (`TopicsReplaced`). This module fills the new log with empty records up to the position, and writes one more,
which stands for all that the old topic held after the position. After it, records that others have written to the new
topic in the meantime are written once more, and everything before that is deleted. The role then finds that input was
deleted before it was folded, and an operator accepts this loss (`hushstream.agents.recovery.losses`).

After an interruption it may be run again: a record that is written twice counts once, by its event id.

In a topic that was not made again all this would be damage: what lies between its end and a mistyped offset is lost. So
the workers' own check of replaced topics comes first, for each role that reads the partition. It needs the keys of
their zones.
"""

from __future__ import annotations

from dataclasses import dataclass

from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition as BrokerPartition

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.recovery.losses import other_log
from hushstream.agents.worker.deployment import KeySource
from hushstream.engine.declare.declaration import System
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.connection import Connection, client_errors
from hushstream.ops.log_copy import RoleLogs, reading
from hushstream.ops.logs.foreign import journal_walk
from hushstream.ops.logs.losses import Appended, Plan, append
from hushstream.privacy.amounts import count_text
from hushstream.schemas import codec
from hushstream.schemas.errors import HushstreamError
from hushstream.schemas.topics import physical

_DOING = "logs repair input"
_FILLED_AT_ONCE = 100_000
"""The number of empty records in one batch."""
_BATCH_BYTES = 1 << 21
_READ_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Continued:
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

    def __str__(self) -> str:
        """One line."""
        return (
            f"{self.topic}/{self.partition}: {count_text(max(0, self.folded + 1 - self.end), 'empty record')}, and "
            f"behind them {count_text(self.moved, 'record')} of the new topic once more; the log then begins at "
            f"offset {self.folded + 1}"
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


async def plan(
    connection: Connection, system: System, keys: KeySource, source: TopicPartition, folded: int
) -> Plan[Continued]:
    """Plan the changes.

    Raises:
        HushstreamError: the topic cannot be read, or its offsets are advanced already; or by the journals it was not
            replaced, or was not folded up to this offset; or a key was not given.
    """
    planned = await look(connection, source, folded)
    roles = [role for role in system.roles if source[0] in role.inputs]
    async with reading(connection, (source[0], *(role.journal for role in roles))) as reader:
        there = [
            found
            for role in roles
            for home in range(system.homes(role))
            if (found := await _folded_by(RoleLogs(role, system, keys), home, reader, planned)) is not None
        ]
    name, said = f"{source[0]}/{source[1]}", ", ".join(map(str, there))
    if not any(one.replaced for one in there):
        raise HushstreamError(
            f"{_DOING}: expected {name} to be deleted and created again, got the log that was folded (up to "
            f"offset {said}; the log holds offsets {planned.first} to {planned.end - 1}): nothing was written"
        )
    if not any(one.replaced and one.fits(folded) for one in there):
        raise HushstreamError(
            f"{_DOING}: expected --at with the offset up to which {name} was folded ({said}), got {folded}: "
            f"nothing was written"
        )

    async def act() -> None:
        await continue_offsets(connection, planned)

    return Plan((planned,), act, ("Then start the worker: it names the word that accepts the loss (--accept-loss).",))


async def _folded_by(of: RoleLogs, home: int, reader: LogReader, planned: Continued) -> _Folded | None:
    """What one home partition of a role has folded of the input; None if it does not read it."""
    source, machine = (planned.topic, planned.partition), of.make(home)
    if source not in machine.inputs:
        return None
    chain, _ = await journal_walk(reader, of, home)
    name, window = f"{of.role.journal}/{home}", machine.folds_ahead
    ranges = () if chain.newest is None else machine.entry(chain.newest.value).inputs
    upto = max((part.high for part in ranges if (part.topic, part.partition) == source), default=0)
    if chain.newest is None or not upto:
        # Without a journal record of it, only the end of the log can tell.
        return _Folded(name, 0, window, window and planned.end < planned.folded)
    if planned.end < upto:
        return _Folded(name, upto, window, True)
    differs = [await _replaced(one, chain.newest, upto, reader, planned) for one in of.make.under_each_key(home)]
    return _Folded(name, upto, window, all(differs))


async def _replaced(machine: Machine, newest: InputRecord, upto: int, reader: LogReader, planned: Continued) -> bool:
    """Whether the input is another log than that of the newest journal record, by digests under the machine's key."""
    firsts = {(planned.topic, planned.partition): planned.first} if planned.first < upto else {}
    return await other_log(machine, newest.value, newest.offset + 1, reader, firsts) is not None


async def look(connection: Connection, source: TopicPartition, folded: int) -> Continued:
    """Plan the changes without a look at what was folded.

    Raises:
        HushstreamError: the topic cannot be read, or its offsets are advanced already.
    """
    async with reading(connection, (source[0],)) as reader:
        first = (await reader.first_offsets([source]))[source]
        end = (await reader.end_offsets([source]))[source]
        if first > folded:
            raise HushstreamError(
                f"{source[0]}/{source[1]}: expected a log that begins before offset {folded + 1}, got one that begins "
                f"at {first}: nothing is to be done; start the workers"
            )
        moved = len(await _written(reader, source, first, min(end, folded + 1)))
    return Continued(*source, folded, first, end, moved)


async def continue_offsets(connection: Connection, planned: Continued) -> None:
    """Advance the offsets of an input as planned.

    Raises:
        HushstreamError: the topic cannot be written, or records of it cannot be deleted.
    """
    source, until = (planned.topic, planned.partition), planned.folded + 1
    name = physical(connection.prefix, planned.topic)
    # 1. Fill up with empty records. Others may write in the meantime.
    await fill(connection, source, until)
    # 2. Then read what others wrote: also records between two of these batches lie before the position.
    async with client_errors(connection, f"read {planned.topic}"), LogReader(connection.settings()) as reader:
        kept = await _written(reader, source, (await reader.first_offsets([source]))[source], until)
    await append(connection, f"write {planned.topic}", [Appended(*source, value, key) for key, value in kept])
    async with connection.admin("delete records of inputs") as admin:
        await admin.delete_records({BrokerPartition(name, planned.partition): RecordsToDelete(until)})


async def fill(connection: Connection, source: TopicPartition, until: int, time_ms: int | None = None) -> None:
    """Append empty records until the next offset of a partition is ``until`` or higher, compressed; None: of now.

    Raises:
        HushstreamError: the topic cannot be written.
    """
    name = physical(connection.prefix, source[0])
    options = {"enable_idempotence": True, "compression_type": "gzip", "max_batch_size": _BATCH_BYTES}
    async with (
        client_errors(connection, f"write {source[0]}"),
        LogReader(connection.settings()) as reader,
        AIOKafkaProducer(
            **connection.settings().client_options(), **options, max_request_size=_BATCH_BYTES
        ) as producer,
    ):
        while (end := (await reader.end_offsets([source]))[source]) < until:
            batch = producer.create_batch()
            for _ in range(min(until - end, _FILLED_AT_ONCE)):
                batch.append(timestamp=time_ms, key=None, value=b"")
            await (await producer.send_batch(batch, name, partition=source[1]))


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
