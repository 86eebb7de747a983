"""A worker that refuses to start names commands; each works as it is printed, and then the worker starts.

It fails where a printed command lacks a place, an option or a right name, or where what it does is not what was needed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from aiokafka.admin import NewPartitions

from hushstream.agents.worker.deployment import parse_config, prepare
from hushstream.broker import EmbeddedBroker
from hushstream.engine.declare.role import key_names
from hushstream.ops.connection import Connection
from hushstream.privacy.keys import generate_keys
from patience import Patience, patience

pytestmark = pytest.mark.slow

ENVIRONMENT = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
PRINTED = re.compile(r"`(hushstream (?!worker)[^`]*)`")
WORD = re.compile(r"start this worker with (--accept-loss \S+) ")
REPAIR = ("hushstream", "logs", "repair", "marks", "--role", "shuffler")
VALUES = {"deployment": "shop", "items": {"capacity": 3}, "features": {"dimension": 2}, "encoder": {"codes": 4}}
VALUES |= {"expected_slots": 100}


class Worker:
    """A role of a deployment, started until it runs."""

    def __init__(self, folder: Path, bootstrap: str, role: str) -> None:
        self.folder, self.log = folder, folder / "worker.log"
        self._start = ["hushstream", "worker", role, "--deployment", str(folder), "--bootstrap", bootstrap]

    async def run(self, *words: str) -> str:
        """Start it until it runs or refuses; what it said if it refused."""
        command = shlex.join(self._start) + "".join(f" {word}" for word in words)
        with self.log.open("wb") as log:
            process = await asyncio.to_thread(
                subprocess.Popen, shlex.split(command), stdout=log, stderr=log, env=ENVIRONMENT
            )
        waiting = Patience(60.0)
        try:
            while process.poll() is None and "at journal record" not in self.log.read_text("utf-8"):
                assert not waiting.over, self.log.read_text("utf-8")
                await asyncio.sleep(0.1)
        finally:
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait, patience(30.0))
        return self.log.read_text("utf-8") if process.returncode else ""

    async def healed(self) -> list[str]:
        """Start it, do what it prints, as it is printed, and start it again, until it runs; the commands."""
        done: list[str] = []
        for _ in range(4):
            refused = await self.run(*(one for one in done if one.startswith("--accept-loss")))
            if not refused:
                return done
            commands = [one for one in PRINTED.findall(refused) if one not in done]
            words = sorted(set(WORD.findall(refused)) - set(done))
            assert commands or words, f"it names nothing new: {refused}"
            done += words
            for command in commands:
                at = {"cwd": self.folder, "env": ENVIRONMENT, "capture_output": True, "text": True}
                ended = await asyncio.to_thread(subprocess.run, command, shell=True, **at)
                assert ended.returncode == 0, f"{command}: {ended.stdout} {ended.stderr}"
                done.append(command)
        raise AssertionError(f"it does not run after {done}")


async def _without(connection: Connection, topic: str) -> None:
    async with connection.admin("delete a topic") as admin:
        await admin.delete_topics([connection.prefix + topic])


async def _widened(connection: Connection, topic: str) -> None:
    async with connection.admin("add partitions") as admin:
        await admin.create_partitions({connection.prefix + topic: NewPartitions(3)})


HARM: Mapping[str, tuple[str, Callable[[Connection, str], Awaitable[None]], str, str]] = {
    "an input is gone": ("shuffler", _without, "reports", "topics apply"),
    "marks are gone": ("shuffler", _without, "marks-shuffler", "--accept-loss 0:new:1"),
    "a state is gone": ("shuffler", _without, "state-shuffler", "topics apply"),
    "partitions were added": ("shuffler", _widened, "reports", "logs repair partitions"),
    "models are gone": ("aggregator", _without, "models", "logs repair models --write"),
}


@pytest.mark.process(keep=["a state is gone"])
@pytest.mark.parametrize("harm", HARM)
async def test_each_command_of_a_refusal_works_as_it_is_printed(tmp_path, harm):
    folder = tmp_path / "a shop"
    system = prepare(folder, parse_config(VALUES))
    generate_keys(folder / "keys", key_names(system.roles))
    async with EmbeddedBroker() as broker:
        role, do, topic, expected = HARM[harm]
        worker, connection = Worker(folder, broker.bootstrap, role), Connection(broker.bootstrap, "shop.")
        first = await worker.healed()
        assert [one.split(" --deployment")[0] for one in first] == ["hushstream topics apply"]
        await do(connection, topic)
        commands = await worker.healed()
        assert any(expected in one for one in commands), commands
        if topic.startswith("marks"):  # what shows no loss is not repaired, and the operator is told what is
            command = [*REPAIR, "--deployment", str(folder), "--bootstrap", broker.bootstrap]
            told = await asyncio.to_thread(subprocess.run, command, env=ENVIRONMENT, capture_output=True)
            assert b"names a word for --accept-loss" in told.stdout, told
