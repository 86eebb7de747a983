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
class Drinks:
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

    async def vote(self, user: str, option: int) -> None:
        """Append a vote as an application does."""
        fields = {"vote_id": f"{user}:{option}", "user": user, "option": option, "config_digest": self.system.digest}
        partition = partition_of(user, self.system.partitions["votes"])
        async with AIOKafkaProducer(bootstrap_servers=self.connection.bootstrap) as producer:
            await producer.send_and_wait("drinks.votes", codec.encode("Vote", fields), partition=partition)

    async def values(self, topic: str) -> list[bytes]:
        """All values of a topic."""
        found = await copy_async(self.connection, self.system.partitions, {topic}, QUICK)
        return [record.value for _, part in found.of_topic(topic) for record in part.records]


@pytest.fixture
async def drinks(folder: Path, package: Path) -> AsyncIterator[Drinks]:
    """On the embedded broker, or on the fresh one that HUSHSTREAM_TEST_BOOTSTRAP names."""
    given = os.environ.get("HUSHSTREAM_TEST_BOOTSTRAP")
    async with AsyncExitStack() as stack:
        bootstrap = given or (await stack.enter_async_context(EmbeddedBroker())).bootstrap
        yield Drinks(folder, load(folder), Connection(bootstrap, "drinks."), package)


async def until(drinks: Drinks, topic: str, count: int) -> None:
    waiting = Patience(WAIT_SECONDS)
    while len(await drinks.values(topic)) < count:
        assert not waiting.over, f"waited {WAIT_SECONDS:g} s for {count} on {topic}"
        await asyncio.sleep(0.1)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_it_is_set_up_run_and_checked_by_the_commands_of_the_product(drinks, tmp_path):
    made = await drinks.run("keys", "generate", drinks.folder / "keys", "--zone", "ballots", at_broker=False)
    assert made.code == 0, made
    planned = await drinks.json("topics", "plan")
    assert {one["name"] for one in planned} == {f"drinks.{topic.name}" for topic in drinks.system.topics}
    assert len(await drinks.json("topics", "apply")) == len(planned)
    assert await drinks.json("topics", "check") == []
    homes = [partition_of(user, 2) for user in USERS]
    windows = homes.count(0) // 5 + homes.count(1) // 5
    assert windows >= 2
    async with drinks.worker("tally"), drinks.worker("board"):
        for number, user in enumerate(USERS):
            await drinks.vote(user, number % 3)
        await drinks.vote("user-0", 9)
        await until(drinks, "standings", windows + 1)
        await until(drinks, "dead-letters-ballots", 1)
        done = await drinks.json("forget", "user-1")
        assert (done["topic"], done["role"], done["folded"]) == ("votes", "tally", None)
        await until(drinks, "votes", len(USERS) + 2)
    (letter,) = await drinks.json("dead-letters", "list", "ballots")
    assert (letter["reason"], letter["topic"], letter["count"]) == ("unknown_option", "votes", 1)
    spent = await drinks.json("budget")
    assert (spent["ok"], spent["releases"]) == (True, {"histogram": windows})
    assert spent["private_as_stated"], "the key is secret"
    verified = await drinks.run("verify")
    assert verified.code == 0, verified
    exported = await drinks.run("topics", "export", tmp_path / "export", "--role", "tally")
    assert "what tally sees" in exported.out, exported
    assert (await drinks.run("verify", "--role", "tally", "--log", tmp_path / "export")).code == 0
    marks = [codec.decode(value)[1] for value in await drinks.values("marks-ballots")]
    assert {(mark["role"], mark["paid"]) for mark in marks} >= {("tally", True)}
