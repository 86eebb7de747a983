"""Workers that must refuse to work: what is wrong with each one's surroundings, and what its one line must say."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System
from hushstream.engine.machine import Machine
from hushstream.engine.records import InputSlice
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.privacy.keys import generate_keys, key_path
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare
from patience import patience

WAIT_SECONDS = 90.0


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A command line of a worker and a part of what it must say."""

    arguments: Sequence[str]
    says: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """How a worker ended."""

    code: int
    output: str
    says: str


class Surroundings:
    """Makes topics, keys and snapshots that do not fit, on one broker."""

    def __init__(self, bootstrap: str, token: str, frozen: Any, key_seed: int, folder: Path) -> None:
        self._bootstrap = bootstrap
        self._token = token
        self._frozen = frozen
        self._seed = key_seed
        self._folder = folder

    async def cases(self, free_port: int) -> Mapping[str, Refusal]:
        """Every case by name; whatever it needs is there when this returns."""
        fresh = await self._topics("fresh")
        return {
            "absent broker": Refusal(
                [*self._worker("shuffler", fresh), "--bootstrap", f"127.0.0.1:{free_port}", "--connect-timeout", "1"],
                f"no broker at 127.0.0.1:{free_port} answered within 1 s",
            ),
            "missing topics": Refusal(self._worker("learner", "nowhere."), "topic nowhere.clicks does not exist"),
            "wrong partition count": await self._other_counts(),
            "another deployment's topics": await self._other_deployment(),
            "another key": Refusal(
                self._worker("shuffler", await self._begun("other-key"), seed=self._seed + 1), "expected key_id"
            ),
            "session timeout beyond what the broker takes": Refusal(
                [*self._worker("shuffler", fresh), "--session-timeout", "2000"],
                "expected the broker to accept a session of 2000 s, it does not",
            ),
            **self._bad_keys(fresh),
            "wiped topics and an old snapshot": await self._wiped(),
            "replaced topics and an old snapshot": await self._replaced(),
            "wiped inputs under a journal": await self._wiped_inputs(),
            "altered first record of the journal": await self._altered(),
        }

    def _worker(self, role: str, prefix: str, seed: int | None = None, deployment: Path | None = None) -> list[str]:
        folder = self._frozen.folder if deployment is None else deployment
        arguments = ["worker", role, "--deployment", str(folder), "--prefix", prefix, "--log-level", "error"]
        arguments += ["--bootstrap", self._bootstrap, "--group", f"{prefix}{role}", "--session-timeout", "2"]
        arguments += ["--state", str(self._folder / prefix)]
        return [*arguments, "--seed", str(self._seed if seed is None else seed)]

    async def _topics(self, name: str, system: System | None = None) -> str:
        """Create a deployment's topics; returns their prefix."""
        prefix = f"{self._token}.refused.{name}."
        await apply_async(Connection(self._bootstrap, prefix), system or self._frozen.system)
        return prefix

    async def _begun(self, name: str) -> str:
        """Topics in which every shuffler partition has its genesis record."""
        prefix = await self._topics(name)
        for machine in self._machines("shuffler", KeySource(seed=self._seed)):
            await self._append(prefix, machine.journal, [machine.genesis(bytes(32))])
        return prefix

    def _machines(self, role: str, keys: KeySource) -> list[Machine]:
        work = role_work(role, self._frozen.system, keys)
        return [work.make_machine(home) for home in range(work.topics.partitions or 0)]

    async def _append(self, prefix: str, place: tuple[str, int], values: Sequence[bytes]) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._bootstrap) as producer:
            for value in values:
                await producer.send_and_wait(prefix + place[0], value, partition=place[1])

    async def _other_counts(self) -> Refusal:
        config = self._frozen.system.config
        fewer = dataclasses.replace(config, partitions=dataclasses.replace(config.partitions, learner=2))
        system = declare(P2BSystem.of(fewer, self._frozen.system.core.encoder.lattice, public_dataset=True))
        prefix = await self._topics("counts", system)
        return Refusal(self._worker("learner", prefix), f"topic {prefix}contexts: expected 3 partitions, found 2")

    async def _other_deployment(self) -> Refusal:
        prefix = await self._begun("other-deployment")
        config = dataclasses.replace(self._frozen.system.config, deployment="stranger")
        folder = self._folder / "stranger"
        prepare(folder, config, public_dataset="synthetic")
        return Refusal(
            self._worker("shuffler", prefix, deployment=folder), "expected deployment 'stranger', found 'chaos'"
        )

    def _bad_keys(self, prefix: str) -> dict[str, Refusal]:
        """Key files are of live deployments alone."""
        live = self._folder / "live"
        prepare(live, self._frozen.system.config)
        cases = {}
        for name, says in (
            ("missing key file", "expected a file, got none"),
            ("short key file", "hexadecimal digits, got 10 characters"),
            ("world-readable key file", "expected mode 600"),
        ):
            keys = self._folder / name.replace(" ", "-")
            path = key_path(keys, "edge")
            if name != "missing key file":
                generate_keys(keys, ("edge",))
            if name == "short key file":
                path.write_text("0123456789", encoding="utf-8")
            if name == "world-readable key file":
                path.chmod(0o644)
            arguments = self._worker("learner", prefix, deployment=live)
            arguments[-2:] = ["--keys", str(keys)]
            cases[name] = Refusal(arguments, says)
        return cases

    async def _wiped(self) -> Refusal:
        """Snapshots of the shuffler, and topics that hold nothing."""
        prefix = await self._topics("wiped")
        for machine in self._machines("shuffler", KeySource(seed=self._seed)):
            self._snapshot("shuffler", prefix, machine, machine.genesis(bytes(32)))
        return Refusal(self._worker("shuffler", prefix), "the topics were wiped or replaced")

    async def _replaced(self) -> Refusal:
        """Snapshots of the aggregator, and topics in which other journals were begun and have grown longer."""
        prefix = await self._topics("replaced")
        before, after = (self._machines("aggregator", KeySource(seed=self._seed)) for _ in range(2))
        for own, other in zip(before, after, strict=True):
            self._snapshot("aggregator", prefix, own, own.genesis(bytes(range(32))))
            genesis = other.genesis(bytes(32))
            other.start(genesis)
            topic, home = other.inputs[0]
            values = [value for _, value in self._frozen.logs[topic, home]]
            steps = other.fold([self._slice(topic, home)])
            await self._append(prefix, (topic, home), values)
            await self._append(prefix, other.journal, [genesis, *(s.journal for s in steps if s.journal is not None)])
        return Refusal(self._worker("aggregator", prefix), "the snapshot in the data directory belongs to another")

    async def _wiped_inputs(self) -> Refusal:
        """The whole journal of the shuffler, but no reports."""
        prefix = await self._topics("no-inputs")
        for home in range(2):
            journal = self._frozen.logs["journal-shuffler", home]
            await self._append(prefix, ("journal-shuffler", home), [value for _, value in journal])
        return Refusal(self._worker("shuffler", prefix), "but the log ends at 0; the topic was wiped or replaced")

    async def _altered(self) -> Refusal:
        """A journal that goes on, behind a first record that nobody wrote; a new one would spend every budget again."""
        prefix = await self._topics("altered")
        for machine in self._machines("shuffler", KeySource(seed=self._seed)):
            genesis, *others = [value for _, value in self._frozen.logs[machine.journal]]
            altered = bytearray(genesis)
            altered[-20] ^= 1
            await self._append(prefix, machine.journal, [bytes(altered), *others])
        return Refusal(self._worker("shuffler", prefix), "its first record was altered")

    def _snapshot(self, role: str, prefix: str, machine: Machine, genesis: bytes) -> None:
        """Leave what a worker leaves that has folded the first half of its inputs."""
        machine.start(genesis)
        topic, home = machine.inputs[0]
        steps = machine.fold([self._slice(topic, home, len(self._frozen.logs[topic, home]) // 2)])
        sequence = sum(step.journal is not None for step in steps)
        assert sequence >= 1
        settings = WorkerSettings(
            bootstrap=self._bootstrap,
            role=role,
            group="none",
            deployment=self._frozen.system.config.deployment,
            datadir=self._folder / prefix,
        )
        keys = role_work(role, self._frozen.system, KeySource(seed=self._seed)).make_machine
        SnapshotStore(settings, keys).save(home, Snapshot(sequence, sequence + 1, genesis, machine.snapshot()))

    def _slice(self, topic: str, partition: int, high: int | None = None) -> InputSlice:
        records = self._frozen.records_of(topic, partition)[:high]
        return InputSlice(topic, partition, 0, len(records), records)


async def run(refusal: Refusal) -> Ended:
    """Run one worker's command to its end; one that works on is killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "hushstream.cli", *refusal.arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    reading = asyncio.ensure_future(process.communicate())
    if not (await asyncio.wait([reading], timeout=patience(WAIT_SECONDS)))[0]:
        process.kill()
    output, _ = await reading
    assert process.returncode is not None
    return Ended(process.returncode, output.decode(), refusal.says)
