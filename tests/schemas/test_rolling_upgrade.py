"""A new schema generation rolls out while workers of both releases run side by side: nothing is lost or changed.

The newer release is this one with a second version of every record in a copy of the schemas' package, which its
processes find first. Both releases run as real worker processes on the embedded broker.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
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
from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import role_work
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import System
from hushstream.ops import topics
from hushstream.ops.connection import Connection
from hushstream.ops.live import Pause, copy_async
from hushstream.replay.runners.direct import DirectDriver
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.runners.ports import free_port
from hushstream.schemas import codec, context_columns
from hushstream.schemas.catalogue import CATALOGUE, load
from hushstream.schemas.codec import Codec
from hushstream.schemas.partitioning import partition_of
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)
from patience import Patience, patience

SEED = "7"
DIMENSION, PARTITIONS, WINDOW_SLOTS = 3, 2, 4
WAIT_SECONDS = 60.0
QUICK = Pause(moment_seconds=0.02, within_seconds=0.5)
ADDED = {"name": "surface", "type": "string", "default": "", "doc": "Where in the application the arms are shown."}
UNCHANGED = ("Genesis", "Tick")
RECOMPUTED = ("decisions", "reports", "journal-shuffler", "crowds", "ledger")
OTHERS = ("contexts", "clicks", "models", "interactions", "dead-letters-edge", "dead-letters-shuffler")


LATER = codec.NEWEST_GENERATION + 1
"""The schema generation that the newer release brings."""


def newer(name: str) -> dict[str, Any]:
    """The schema of a record with one more field, from the next generation on; a chain stays the last field."""
    schema = json.loads(CATALOGUE[name][-1].text)
    *fields, last = schema["fields"]
    return {**schema, "edition": LATER, "fields": [*fields, ADDED, last]}


@pytest.fixture
def upgraded(tmp_path: Path) -> dict[str, str]:
    """What the environment of a process adds so that it is of the newer release."""
    package = tmp_path / "upgraded" / "hushstream" / "schemas"
    shutil.copytree(Path(hushstream.schemas.__file__).parent, package)
    for name in CATALOGUE.keys() - set(UNCHANGED):
        (package / "avro" / name / "v2.avsc").write_text(json.dumps(newer(name)), encoding="utf-8")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "upgraded"), os.environ.get("PYTHONPATH", "")])}


@pytest.fixture
def newer_codec(tmp_path: Path, upgraded: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Codec:
    """This process too is of the newer release."""
    made = Codec(load(tmp_path / "upgraded" / "hushstream" / "schemas" / "avro"))
    for attribute in ("encode", "decode", "narrow", "generation_of"):
        monkeypatch.setattr(codec, attribute, getattr(made, attribute))
    monkeypatch.setattr(codec, "NEWEST_GENERATION", made.newest_generation)
    monkeypatch.setattr(context_columns, "decode", made.decode)
    return made


@dataclass
class Shop:
    """A deployment on a broker, and the processes that serve it."""

    folder: Path
    system: System
    connection: Connection
    sent: list[str] = field(default_factory=list)
    windows: int = 0

    async def send(self, count: int, schema_generation: int = 1) -> None:
        """Append contexts of a schema generation, as many for each partition."""
        fields = {"context": np.full(DIMENSION, 1 / DIMENSION, "<f4").tobytes(), "surface": "home"}
        users = [f"u{number}" for number in range(40)]
        async with AIOKafkaProducer(bootstrap_servers=self.connection.bootstrap) as producer:
            for partition in range(PARTITIONS):
                own = [user for user in users if partition_of(user, PARTITIONS) == partition]
                for number in range(count):
                    user, event = own[number % len(own)], f"e{len(self.sent)}"
                    value = codec.encode("Context", {"event_id": event, "user": user, **fields}, schema_generation)
                    await producer.send_and_wait("shop.contexts", value, partition=partition)
                    self.sent.append(event)

    async def values(self, topic: str) -> list[bytes]:
        """All values of a topic."""
        found = await copy_async(self.connection, self.system.partitions, {topic}, QUICK)
        return [record.value for _, part in found.of_topic(topic) for record in part.records]

    async def answered(self) -> list[str]:
        """The events that were decided, once for each time."""
        decided = [codec.decode(value) for value in await self.values("decisions")]
        return [event for name, fields in decided if name == "Decisions" for event in fields["event_ids"]]

    async def all_answered(self) -> bool:
        """Whether every context that was sent was decided."""
        return set(self.sent) <= set(await self.answered())

    async def schema_generations(self, topic: str) -> set[int]:
        """In which schema generations the records of a topic are."""
        values = await self.values(topic)
        return {codec.generation_of(value) for value in values if codec.decode(value)[0] not in UNCHANGED}

    async def released(self) -> bool:
        """Whether a window was released since this was last true."""
        before, self.windows = self.windows, len(await self.values("crowds"))
        return self.windows > before

    async def all_released(self) -> bool:
        """Whether every window that is full was released: nothing that was sent waits for the shuffler."""
        sent = [codec.decode(value) for value in await self.values("reports")]
        slots = {fields["report_id"] for name, fields in sent if name == "SlotReport"}
        return len(await self.values("crowds")) == len(slots) // WINDOW_SLOTS

    async def together(self, *ports: int) -> None:
        """Wait until the workers with these metrics run one learner partition each."""
        await until(lambda: each_holds(dict.fromkeys(ports, 1)), "both learners run side by side")

    async def require_that_the_direct_runner_follows(self) -> None:
        """The direct runner over the same logs finds what was published, and has nothing to add."""
        copied = await copy_async(self.connection, self.system.partitions, {*RECOMPUTED, *OTHERS}, QUICK)
        log = MemoryLog()
        for source, part in copied.parts.items():
            log.load(*source, list(part.records))
        machines = [
            role_work(role, self.system, KeySource(seed=int(SEED))).make_machine(home)
            for role, homes in (("learner", PARTITIONS), ("shuffler", 1))
            for home in range(homes)
        ]
        before = {source: list(records) for source, records in log.partitions()}
        driver = DirectDriver(log, machines, bytes(32))
        driver.pump()
        assert {source: list(records) for source, records in log.partitions()} == before

    async def refusal(self, name: str, release: dict[str, str]) -> str:
        """What a learner that cannot go on says when it ends."""
        arguments = ("--seed", SEED, "--state", self.folder.parent / name, "--log-level", "error")
        process = await self.start(release, "worker", "learner", *arguments, stderr=asyncio.subprocess.PIPE)
        _, said = await asyncio.wait_for(process.communicate(), patience(WAIT_SECONDS))
        assert process.returncode == 1
        return said.decode()

    @asynccontextmanager
    async def worker(self, name: str, release: dict[str, str], schema_generation: int = 1) -> AsyncIterator[int]:
        """Run a worker of the role that its name begins with; gives the port of its public metrics."""
        port = free_port()
        arguments = ["--state", self.folder.parent / name, "--metrics-port", port, "--session-timeout", 6]
        told = {**release, "HUSHSTREAM_SCHEMA_GENERATION": str(schema_generation)}
        role = name.rstrip("0123456789")
        process = await self.start(told, "worker", role, "--seed", SEED, *arguments, "--log-level", "error")
        try:
            yield port
            assert process.returncode is None, f"worker {name} ended with {process.returncode}"
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), patience(WAIT_SECONDS))

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
        output, _ = await asyncio.wait_for(process.communicate(), patience(WAIT_SECONDS))
        assert process.returncode is not None
        return process.returncode, json.loads(output)


def held(port: int) -> float:
    """How many partitions the worker with these metrics runs; -1 while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=patience(5)) as answer:
            text = answer.read().decode()
    except OSError:
        return -1
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith("hushstream_partitions_held")
    )


async def each_holds(wanted: dict[int, float]) -> bool:
    return {port: await asyncio.to_thread(held, port) for port in wanted} == wanted


async def until(what: Callable[[], Awaitable[bool]], promise: str) -> None:
    waiting = Patience(WAIT_SECONDS)
    while not await what():
        assert not waiting.over, f"waited {WAIT_SECONDS:g} s in vain until {promise}"
        await asyncio.sleep(0.1)


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    config = P2BConfig(
        "shop",
        4,
        ContextConfig(DIMENSION),
        40,
        encoder=EncoderConfig(codes=4),
        slot=SlotConfig(after_interactions=1, lifetime_slots=8, settle_seconds=0.0),
        release=ReleaseConfig(window_slots=WINDOW_SLOTS),
        partitions=PartitionConfig(learner=PARTITIONS, shuffler=1),
    )
    system = prepare(tmp_path / "shop", config, public_dataset="synthetic")
    async with EmbeddedBroker() as broker:
        connection = Connection(broker.bootstrap, "shop.")
        await topics.apply_async(connection, system)
        yield Shop(tmp_path / "shop", system, connection)


@pytest.mark.process
async def test_a_generation_rolls_out_without_losing_or_changing_anything(
    shop: Shop, upgraded: dict[str, str], newer_codec: Codec
) -> None:
    async with shop.worker("learner2", upgraded) as second:
        # First every process is upgraded, and writes what it wrote.
        async with shop.worker("learner1", {}) as first, shop.worker("shuffler", {}):
            await shop.together(first, second)
            await shop.send(10)
            await until(shop.all_answered, "both answered what both know")
            await until(shop.released, "the old shuffler released a window")
        assert {
            schema_generation for topic in RECOMPUTED for schema_generation in await shop.schema_generations(topic)
        } == {1}
        # Then the schema generation is raised, one process after another.
        async with shop.worker("learner1", upgraded, LATER) as first, shop.worker("shuffler", upgraded, LATER):
            await shop.together(first, second)
            await shop.send(5, schema_generation=LATER)
            await shop.send(5)
            await until(shop.all_answered, "both read either version")
    async with shop.worker("learner2", upgraded, LATER), shop.worker("shuffler", upgraded, LATER):
        await shop.send(5, schema_generation=LATER)
        await until(shop.all_answered, "what the first answered is taken over by the second")
        await until(shop.all_released, "the shuffler released all that was sent")
    assert sorted(await shop.answered()) == sorted(shop.sent), "every context was decided once"
    assert await shop.values("dead-letters-edge") == []
    assert {topic: await shop.schema_generations(topic) for topic in RECOMPUTED} == {
        topic: {1, LATER} for topic in RECOMPUTED
    }
    code, found = await shop.command(upgraded, "verify", "--seed", SEED)
    assert code == 0, json.dumps(found, indent=1)
    await shop.require_that_the_direct_runner_follows()
    assert "a newer release has written here" in await shop.refusal("learner1", {})
