"""Reads the log times of a process's records, and measures the baseline of every stream benchmark."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from aiokafka import AIOKafkaProducer
from aiokafka.admin import NewTopic

from hushstream.agents.kafka.logs import LogReader
from hushstream.ops.connection import Connection
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import POLL_SECONDS, STALL_SECONDS
from hushstream.replay.bench.load import append_all
from hushstream.replay.bench.processes import Running, started


async def passthrough_rate(
    bootstrap: str, prefix: str, producer: AIOKafkaProducer, values: Sequence[bytes], folder: Path
) -> float:
    """Records per second through a bare Faust agent (`hushstream.replay.bench.passthrough`)."""
    source, target = f"{prefix}passthrough.source", f"{prefix}passthrough.target"
    connection = Connection(bootstrap, "")
    async with connection.admin("create topics") as admin:
        settings = {"message.timestamp.type": "LogAppendTime"}
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs=settings) for name in (source, target)])
    await append_all(producer, source, values)
    arguments = ["-m", "hushstream.replay.bench.passthrough", bootstrap, source, target, str(folder)]
    async with started("passthrough", arguments, folder, kill=True) as agent:
        times = await log_times(connection, (target, 0), len(values), agent)
    seconds = (times[-1] - times[0]) / 1000
    return sum(moment > times[0] for moment in times) / seconds


async def log_times(
    connection: Connection, source: tuple[str, int], end: int, writer: Running, first: int = 0
) -> list[int]:
    """Wait for the records from ``first`` up to ``end``, and return their log times (Unix time, ms)."""
    async with LogReader(connection.settings()) as reader:
        have, moved = -1, time.monotonic()
        while have < end:
            writer.check()
            found = (await reader.end_offsets([source]))[source]
            if found > have:
                have, moved = found, time.monotonic()
            elif time.monotonic() - moved > STALL_SECONDS:
                raise BenchFailed(f"{source[0]}: expected {end} records, got {have} and nothing for {STALL_SECONDS} s")
            if have < end:
                await asyncio.sleep(POLL_SECONDS)
        reader.open({source: first})
        return [record.timestamp_ms for record in await reader.read(source, first, end)]
