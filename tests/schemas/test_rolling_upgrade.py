"""A schema version rolls out while workers of both releases run side by side: nothing is lost, nothing changes.

A newer release is this one with one more schema file in a copy of the schemas' package, which its processes find
first. All releases run as real worker processes on the embedded broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiokafka import AIOKafkaProducer

import hushstream.schemas
from hushstream.agents.deployment import prepare
from hushstream.broker import EmbeddedBroker
from hushstream.ops import topics
from hushstream.ops.connection import Connection
from hushstream.ops.live import Quiet, copy_async
from hushstream.schemas import codec
from hushstream.schemas.catalogue import CATALOGUE, make_schema_version
from hushstream.schemas.codec import Codec
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.configuration import ContextConfig, EncoderConfig, P2BConfig, PartitionConfig
from hushstream.systems.system import System

SEED = "7"
DIMENSION, PARTITIONS = 3, 2
WAIT_SECONDS = 60.0
QUICK = Quiet(moment_seconds=0.02, within_seconds=0.5)
ADDED = {"name": "surface", "type": "string", "default": "", "doc": "Where in the application the arms are shown."}


def newer() -> dict[str, Any]:
    """The schema of a context with one more field."""
    schema = json.loads(CATALOGUE["Context"][0].text)
    return {**schema, "fields": [*schema["fields"], ADDED]}


@pytest.fixture
def announcing(tmp_path: Path) -> dict[str, str]:
    """What the environment of a process adds so that it is of the release that announces the new version."""
    return release(tmp_path / "announcing", {**newer(), "announced": True})


@pytest.fixture
def writing(tmp_path: Path) -> dict[str, str]:
    """The same of the release that writes it."""
    return release(tmp_path / "writing", newer())


def release(folder: Path, schema: dict[str, Any]) -> dict[str, str]:
    package = folder / "hushstream" / "schemas"
    shutil.copytree(Path(hushstream.schemas.__file__).parent, package)
    (package / "avro" / "Context" / "v2.avsc").write_text(json.dumps(schema))
    return {"PYTHONPATH": str(folder)}


@dataclass
class Shop:
    """A deployment on a broker, and the processes that serve it."""

    folder: Path
    system: System
    connection: Connection
    sent: list[str] = field(default_factory=list)

    async def send(self, count: int, new: bool = False) -> None:
        """Append contexts, as many for each partition, in the version of one of the releases."""
        writer = Codec({"Context": (make_schema_version("Context", 2, newer()),)}) if new else codec
        fields = {"context": np.full(DIMENSION, 1 / DIMENSION, "<f4").tobytes(), **({"surface": "home"} if new else {})}
        users = [f"u{number}" for number in range(40)]
        async with AIOKafkaProducer(bootstrap_servers=self.connection.bootstrap) as producer:
            for partition in range(PARTITIONS):
                own = [user for user in users if partition_of(user, PARTITIONS) == partition]
                for number in range(count):
                    user, event = own[number % len(own)], f"e{len(self.sent)}"
                    value = writer.encode("Context", {"event_id": event, "user": user, **fields})
                    await producer.send_and_wait("shop.contexts", value, partition=partition)
                    self.sent.append(event)

    async def values(self, topic: str) -> list[bytes]:
        """All values of a topic."""
        found = await copy_async(self.connection, topics.partition_counts(self.system), {topic}, QUICK)
        return [record.value for _, part in found.of_topic(topic) for record in part.records]

    async def answered(self) -> list[str]:
        """The events that were decided, once for each time."""
        decided = [codec.decode(value) for value in await self.values("decisions")]
        return [event for name, fields in decided if name == "Decisions" for event in fields["event_ids"]]

    async def all_answered(self) -> bool:
        """Whether every context that was sent was decided."""
        return set(self.sent) <= set(await self.answered())

    @asynccontextmanager
    async def learner(self, name: str, release: dict[str, str]) -> AsyncIterator[int]:
        """Run a learner worker; gives the port of its public metrics."""
        port = free_port()
        arguments = ["--state", self.folder.parent / name, "--metrics-port", port, "--session-timeout", 6]
        process = await self.start(release, "worker", "learner", "--seed", SEED, *arguments, "--log-level", "error")
        try:
            yield port
            assert process.returncode is None, f"worker {name} ended with {process.returncode}"
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), WAIT_SECONDS)

    async def start(self, release: dict[str, str], *arguments: object, **options: Any) -> asyncio.subprocess.Process:
        """Start ``hushstream ARGUMENTS`` of one release for this deployment."""
        place = ("--deployment", self.folder, "--bootstrap", self.connection.bootstrap)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hushstream.cli", *map(str, (*arguments, *place))),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **release},
            **options,
        )

    async def command(self, release: dict[str, str], *arguments: object) -> tuple[int, Any]:
        """Exit code and JSON of a command."""
        process = await self.start(release, *arguments, "--json", stdout=asyncio.subprocess.PIPE)
        output, _ = await asyncio.wait_for(process.communicate(), WAIT_SECONDS)
        assert process.returncode is not None
        return process.returncode, json.loads(output)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def held(port: int) -> float:
    """How many partitions the worker with these metrics runs; -1 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
    except OSError:
        return -1
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("hushstream_partitions_held")
    )


async def each_holds(wanted: dict[int, float]) -> bool:
    return {port: await asyncio.to_thread(held, port) for port in wanted} == wanted


async def until(what: Callable[[], Awaitable[bool]], promise: str) -> None:
    deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
    while not await what():
        assert asyncio.get_running_loop().time() < deadline, f"waited {WAIT_SECONDS:g} s in vain until {promise}"
        await asyncio.sleep(0.1)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    config = P2BConfig(
        "shop",
        4,
        ContextConfig(DIMENSION),
        40,
        encoder=EncoderConfig(codes=4),
        partitions=PartitionConfig(learner=PARTITIONS, shuffler=1),
        public_dataset=True,
    )
    system = prepare(tmp_path / "shop", config)
    async with EmbeddedBroker() as broker:
        connection = Connection(broker.bootstrap, "shop.")
        await topics.apply_async(connection, topics.partition_counts(system))
        yield Shop(tmp_path / "shop", system, connection)


async def test_a_new_version_rolls_out_without_losing_or_changing_anything(
    shop: Shop, announcing: dict[str, str], writing: dict[str, str]
) -> None:
    async with shop.learner("second", announcing) as second:
        async with shop.learner("first", {}) as first:
            await until(lambda: each_holds({first: 1, second: 1}), "the old and the first release run side by side")
            await shop.send(10)
            await until(shop.all_answered, "both answered what both know")
        async with shop.learner("first", writing) as first:
            await until(lambda: each_holds({first: 1, second: 1}), "the first and the second release run side by side")
            await shop.send(5, new=True)
            await shop.send(5)
            await until(shop.all_answered, "both read either version")
    assert sorted(await shop.answered()) == sorted(shop.sent), "every context was decided once"
    assert await shop.values("dead-letters-edge") == []
    code, found = await shop.command(writing, "verify", "--role", "learner", "--seed", SEED)
    assert code == 0, json.dumps(found, indent=1)
