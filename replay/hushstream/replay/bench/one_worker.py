"""Runs one worker of a benchmark on an embedded broker whose log holds all input before the worker starts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from aiokafka import AIOKafkaProducer

from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.bench.cpu import CpuMeter
from hushstream.replay.bench.load import append_all
from hushstream.replay.bench.processes import Running, embedded_broker, started
from hushstream.schemas.topics import physical


@asynccontextmanager
async def worker_on(
    folder: Path, system: System, role: str, topic: str, values: Sequence[Sequence[bytes]]
) -> AsyncIterator[tuple[Connection, Running, CpuMeter]]:
    """Run the worker of a role while the context is open; the broker runs as long.

    Args:
        folder: a folder of the run; ``deployment`` in it holds the system.
        system: the deployment.
        role: the role of the worker.
        topic: its input.
        values: the records of each partition of the input.
    """
    async with embedded_broker(folder) as bootstrap:
        connection = Connection(bootstrap, "bench.")
        await apply_async(connection, system, replication=1)
        async with AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=256 * 1024) as producer:
            for partition, records in enumerate(values):
                await append_all(producer, physical(connection.prefix, topic), records, partition)
        arguments = ["-m", "hushstream.cli", "worker", role, "--deployment", str(folder / "deployment")]
        arguments += ["--state", str(folder / "state"), "--bootstrap", bootstrap, "--prefix", connection.prefix]
        async with started(role, arguments, folder) as worker, CpuMeter([worker]) as meter:
            yield connection, worker, meter
