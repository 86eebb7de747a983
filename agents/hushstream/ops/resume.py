"""Advances the offsets of an input topic that was deleted and created again, to the position of the roles that read it.

A role's positions never go back: a journal names each input offset once. In a new topic offsets begin at 0, so the role
refuses it (`hushstream.agents.errors.replaced`). This module fills the new log with empty records up to the position,
and writes one more, which stands for all that the old topic held after the position. After it, records that others have
written to the new topic in the meantime are written once more, and everything before that is deleted. The role then
finds that input was deleted before it was folded, and an operator accepts this loss
(`hushstream.agents.recovery.losses`).

After an interruption it may be run again: a record that is written twice counts once, by its event id.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka.admin import RecordsToDelete
from aiokafka.structs import TopicPartition as BrokerPartition

from hushstream.agents.kafka.logs import LogReader
from hushstream.engine.records import TopicPartition
from hushstream.ops.connection import Connection, client_errors
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


def plan(connection: Connection, source: TopicPartition, folded: int) -> Resume:
    """Plan the changes; writes nothing.

    Raises:
        HushstreamError: the topic cannot be read, or its offsets are advanced already.
    """
    return asyncio.run(plan_async(connection, source, folded))


async def plan_async(connection: Connection, source: TopicPartition, folded: int) -> Resume:
    """Do the same within an event loop."""
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
