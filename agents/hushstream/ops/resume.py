"""Advances the offsets of an input that was deleted and made again to those that roles have reached in the old one.

A role's positions never go back: a journal names its inputs by offsets, once. In a topic that was made again offsets
begin at 0, so the role refuses it (`hushstream.agents.errors.replaced`). Here the new log is filled with empty records
up to the position, and one more, which stands for what the old topic held beyond; what others have written to the new
topic meanwhile is written once more behind them; and all that lies before is deleted. The role then finds input that
was deleted before it was folded, and an operator goes on without it (`hushstream.agents.recovery.losses`).

It may be run again after it was interrupted: what is written twice counts once, as its event id is known.
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
"""Empty records of one batch: less than a megabyte before it is compressed."""
_BATCH_BYTES = 1 << 21
_READ_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Resume:
    """What is to be done to one partition.

    Attributes:
        topic, partition: the input.
        folded: up to which offset roles have folded the old topic.
        first, end: where the new log begins and ends.
        moved: records of the new topic that are written again behind the empty ones.
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
    """What would be done; writes nothing.

    Raises:
        HushstreamError: the topic cannot be read, or goes on there already.
    """
    return asyncio.run(plan_async(connection, source, folded))


async def plan_async(connection: Connection, source: TopicPartition, folded: int) -> Resume:
    """The same within an event loop."""
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
    """Do it.

    Raises:
        HushstreamError: the topic cannot be written, or records of it cannot be deleted.
    """
    asyncio.run(resume_async(connection, planned))


async def resume_async(connection: Connection, planned: Resume) -> None:
    """The same within an event loop."""
    source, until = (planned.topic, planned.partition), planned.folded + 1
    name = physical(connection.prefix, planned.topic)
    async with client_errors(connection, f"write {planned.topic}"), LogReader(connection.settings()) as reader:
        producer = AIOKafkaProducer(
            **connection.settings().client_options(), enable_idempotence=True, compression_type="gzip",
            max_batch_size=_BATCH_BYTES, max_request_size=_BATCH_BYTES,
        )  # fmt: skip
        await producer.start()
        try:
            # 1. Others may write meanwhile, so the end is asked for after each batch.
            while (end := (await reader.end_offsets([source]))[source]) < until:
                batch = producer.create_batch()
                for _ in range(min(until - end, _FILLED_AT_ONCE)):
                    batch.append(timestamp=None, key=None, value=b"")
                await (await producer.send_batch(batch, name, partition=planned.partition))
            # 2. Only now: what came between two of the batches lies before the position, too.
            first = (await reader.first_offsets([source]))[source]
            kept = await _written(reader, source, first, until)
        finally:
            await producer.stop()
        # Without compression, as every writer of a deployment.
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
    """Key and value of the records below an offset that somebody wrote, in their order; not the empty ones."""
    reader.open({source: first})
    found: list[tuple[bytes | None, bytes]] = []
    for low in range(first, until, _READ_AT_ONCE):
        records = await reader.fetched(source, low, min(until, low + _READ_AT_ONCE))
        found += [(record.key, record.value) for record in records if record.value not in (None, b"", codec.COMPRESSED)]
    return found
