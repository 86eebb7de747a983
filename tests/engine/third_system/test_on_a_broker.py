"""A system of another package under its own keys on a broker: every command of the product serves it as it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import load
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.ops.log_copy import Pause, copy_async
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of
from patience import Patience, patience

WAIT_SECONDS = 60.0
QUICK = Pause(moment_seconds=0.02, within_seconds=0.5)
USERS = [f"user-{number}" for number in range(20)]


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str


@dataclass
class Shown:
    """A deployment on a broker."""

    folder: Path
    system: System
    connection: Connection
    package: Path

    async def start(self, *arguments: object, at_broker: bool = True) -> asyncio.subprocess.Process:
        """Start ``hushstream ARGUMENTS`` in a process that finds the other package."""
        words = [str(argument) for argument in arguments]
        place = ["--deployment", str(self.folder), "--bootstrap", self.connection.bootstrap] if at_broker else []
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "hushstream.cli", *words, *place),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(self.package)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )

    async def run(self, *arguments: object, at_broker: bool = True) -> Ended:
        """A command until it ends."""
        process = await self.start(*arguments, at_broker=at_broker)
        out, err = await asyncio.wait_for(process.communicate(), patience(WAIT_SECONDS))
        return Ended(process.returncode or 0, out.decode(), err.decode())

    async def json(self, *arguments: object) -> Any:
        """What a command that ends well prints as JSON."""
        ended = await self.run(*arguments, "--json")
        assert ended.code == 0, ended
        return json.loads(ended.out)

    @asynccontextmanager
    async def worker(self, role: str) -> AsyncIterator[None]:
        """Run a worker of a role."""
        state = self.folder.parent / role
        process = await self.start("worker", role, "--state", state, "--log-level", "error", "--session-timeout", 6)
        try:
            yield
            assert process.returncode is None, (await process.communicate())[1]
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), patience(WAIT_SECONDS))

    async def put(self, schema: str, user: str, **fields: Any) -> None:
        """Append a record as an application does."""
        record = {"event_id": f"{user}:0", "user": user, "config_digest": self.system.digest, **fields}
        partition = partition_of(user, self.system.partitions["asks"])
        async with AIOKafkaProducer(bootstrap_servers=self.connection.bootstrap) as producer:
            await producer.send_and_wait("shown.asks", codec.encode(schema, record), partition=partition)

    async def values(self, topic: str) -> list[bytes]:
        """All values of a topic."""
        found = await copy_async(self.connection, self.system.partitions, {topic}, QUICK)
        return [record.value for _, part in found.of_topic(topic) for record in part.records]


@pytest.fixture
async def shown(folder: Path, package: Path) -> AsyncIterator[Shown]:
    """On the embedded broker, or on the fresh one that HUSHSTREAM_TEST_BOOTSTRAP names."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    async with AsyncExitStack() as stack:
        bootstrap = given or (await stack.enter_async_context(EmbeddedBroker())).bootstrap
        yield Shown(folder, load(folder), Connection(bootstrap, "shown."), package)


async def until(shown: Shown, topic: str, count: int) -> None:
    waiting = Patience(WAIT_SECONDS)
    while len(await shown.values(topic)) < count:
        assert not waiting.over, f"waited {WAIT_SECONDS:g} s for {count} on {topic}"
        await asyncio.sleep(0.1)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_it_is_set_up_run_and_checked_by_the_commands_of_the_product(shown, tmp_path):
    for zone in ("edge", "counter"):
        made = await shown.run("keys", "generate", shown.folder / "keys", "--zone", zone, at_broker=False)
        assert made.code == 0, made
    planned = await shown.json("topics", "plan")
    assert {one["name"] for one in planned} == {f"shown.{topic.name}" for topic in shown.system.topics}
    assert len(await shown.json("topics", "apply")) == len(planned)
    assert await shown.json("topics", "check") == []
    windows = len(USERS) // 5
    async with shown.worker("learner"), shown.worker("counter"), shown.worker("aggregator"):
        for number, user in enumerate(USERS):
            await shown.put("ArmAsk", user)
            await shown.put("ArmClick", user, reward=number % 2)
        await shown.put("ArmClick", "user-0", event_id="never shown", reward=1)
        await until(shown, "models", windows + 1)
        await until(shown, "dead-letters-edge", 1)
        done = await shown.json("forget", "user-1")
        assert (done["topic"], done["role"], done["folded"]) == ("asks", "learner", True)
    (letter,) = await shown.json("dead-letters", "list", "edge")
    assert (letter["reason"], letter["topic"], letter["count"]) == ("click_without_context", "asks", 1)
    spent = await shown.json("budget")
    assert (spent["ok"], spent["releases"]) == (True, {"arm sums": windows})
    assert spent["private_as_stated"], "the key is secret"
    verified = await shown.run("verify")
    assert verified.code == 0, verified
    exported = await shown.run("topics", "export", tmp_path / "export", "--role", "counter")
    assert "what counter sees" in exported.out, exported
    assert (await shown.run("verify", "--role", "counter", "--log", tmp_path / "export")).code == 0
    marks = [codec.decode(value)[1] for value in await shown.values("marks-counter")]
    assert {(mark["role"], mark["paid"]) for mark in marks} >= {("counter", True)}
