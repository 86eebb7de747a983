"""Deployments of every system, played in memory, with marks and published states: by the real code, on no broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from frozen_logs import FrozenLogs
from modules import module_at

from hushstream.agents.kafka.administration import journal_name
from hushstream.agents.recovery import state_topic
from hushstream.agents.recovery.snapshots import Snapshot, SnapshotStore
from hushstream.agents.recovery.state_topic import PublishedStates
from hushstream.agents.settings import WorkerSettings
from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_topics, role_work
from hushstream.engine.declare.declaration import System
from hushstream.engine.declare.role import Role
from hushstream.engine.journal.marks import Mark, MarkSeal
from hushstream.engine.records import InputRecord, InputSlice, Output, TopicPartition
from hushstream.engine.state.published import record_digest
from hushstream.ops.check.checkpoints import From
from hushstream.ops.check.findings import Verified
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy, PartitionCopy, whole
from hushstream.schemas import codec

HARNESS = Path(__file__).parents[2] / "chaos" / "harness"
KEYS = KeySource(seed=7)
SYSTEMS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "p2b": ("frozen", ()),
    "colin": ("related", ("server",)),
    "pdap": ("vendors", ()),
    "pdol": ("records", ()),
    "bgt": ("ratings", ()),
}
"""In which harness a deployment of each is played."""


def harness(name: str) -> ModuleType:
    return module_at(HARNESS / f"{name}.py", f"tests.chaos.harness.{name}")


class Kept:
    """A state topic in memory, in the place of a broker."""

    def __init__(self) -> None:
        self.records: dict[TopicPartition, list[InputRecord]] = {}

    async def send(self, output: Output) -> Awaitable[Any]:
        place = self.records.setdefault((output.topic, output.partition), [])
        place.append(InputRecord(len(place), 5_000 + len(place), output.value))
        sent: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        sent.set_result(SimpleNamespace(offset=len(place) - 1))
        return sent


@dataclass(frozen=True)
class Played:
    """A deployment that was played, with marks, and states of each journal that has a middle.

    Attributes:
        stood: by journal, the offsets of the records on which its states stand.
        disks: by role, where its workers keep their snapshots.
    """

    system: System
    logs: LogCopy
    stood: Mapping[TopicPartition, list[int]]
    disks: Mapping[str, Path]
    keys: KeySource = KEYS

    @property
    def firsts(self) -> dict[TopicPartition, int]:
        """Where journals may begin by what their records say: where a state stands, and those of readers read on."""
        firsts = {source: offsets[0] for source, offsets in self.stood.items()}
        for source, offsets in self.stood.items():
            _, fields = codec.decode(self.logs.part(source).records[offsets[0]].value)
            for part in fields["head"]["inputs"]:
                read = (part["topic"], part["partition"])
                if read in firsts:
                    firsts[read] = min(firsts[read], part["high"])
        return firsts

    def trimmed(self) -> LogCopy:
        """The journals begin there."""
        parts = dict(self.logs.parts)
        for source, low in self.firsts.items():
            part = parts[source]
            parts[source] = PartitionCopy(low, part.high, part.read(low, part.high))
        return LogCopy(parts)

    def verify(self, logs: LogCopy, start: From = From.CHECKPOINT, roles: tuple[str, ...] | None = None) -> Verified:
        return verify(logs, self.system, KEYS, roles, start)


class Publisher:
    """Follows one journal with its machine, and publishes what it holds on the way, by the real code."""

    def __init__(self, system: System, role: Role, home: int, logs: LogCopy, kept: Kept, folder: Path) -> None:
        self.system, self.role, self.home, self.logs = system, role, home, logs
        self.work = role_work(role.name, system, KEYS)
        settings = WorkerSettings(
            bootstrap="127.0.0.1:1", role=role.name, group="g", deployment=system.config.deployment, datadir=folder,
            state_bytes_per_second=1 << 30,
        )  # fmt: skip
        self.snapshots = SnapshotStore(settings, self.work.make_machine)
        self.states = PublishedStates(
            settings, role.state.name, self.work.make_machine, kept, self.snapshots, self.ends
        )
        self.states._last[home] = state_topic._Last()
        self.until_ms = 0

    async def ends(self, home: int) -> Mapping[TopicPartition, int]:
        """Where the outputs ended before the journal's next record."""
        topics = role_topics(self.role, self.system).writes
        return {
            (topic, number): sum(record.timestamp_ms < self.until_ms for record in part.records)
            for topic in topics
            for number, part in self.logs.of_topic(topic)
        }

    async def publish(self, places: list[int]) -> None:
        """Publish behind the journal records at these offsets."""
        journal = self.logs.part((self.role.journal, self.home)).records
        genesis = journal[0].value
        machine: Any = self.work.make_machine.of_journal(self.home, genesis)
        machine.start(genesis)
        if machine.spills_users:
            machine.keep_users(self.snapshots.users(self.home), 4)
        for record in journal[1 : places[-1] + 1]:
            needed = machine.recovery_ranges(record.value)
            parts = [InputSlice(*r, self.logs.part((r.topic, r.partition)).read(r.low, r.high)) for r in needed]
            machine.replay(record.value, parts)
            if record.offset in places:
                self.until_ms = journal[record.offset + 1].timestamp_ms
                folded = sum(machine.positions().values())
                snapshot = Snapshot(
                    record.offset, record.offset + 1, genesis, machine.snapshot(), folded, record_digest(record.value)
                )
                self.snapshots.save(self.home, snapshot)
                assert await self.states.publish(self.home, snapshot, lambda: True)


def play(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Played:
    """A played deployment; nothing bad is put into its inputs afterwards."""
    module, arguments = SYSTEMS[name]
    made = harness(module)
    monkeypatch.setattr(FrozenLogs, "spoil", lambda *_: None)
    frozen = made.freeze(folder / "deployment", *arguments)
    system: System = frozen.system
    parts = {
        source: whole([InputRecord(offset, *stored) for offset, stored in enumerate(records)])
        for source, records in frozen.logs.items()
    }
    return asyncio.run(_with_states(system, LogCopy(parts), folder))


async def _with_states(system: System, logs: LogCopy, folder: Path) -> Played:
    kept, stood = Kept(), {}
    for role in system.roles:
        make = role_work(role.name, system, KEYS).make_machine
        for home in range(system.homes(role)):
            journal = logs.part((role.journal, home)).records
            if role.marks is not None:
                seal = MarkSeal(system.config.deployment, role.name, home, make.mark_keys())
                name = journal_name(journal[0].value)
                marks = [Mark(name, 0), Mark(name, len(journal) - 1, paid=True)]
                kept.records[role.marks, home] = [InputRecord(i, 1, seal.pack(m)) for i, m in enumerate(marks)]
            if len(journal) > 3:
                places = [len(journal) // 3, len(journal) * 2 // 3]
                await Publisher(system, role, home, logs, kept, folder / role.name).publish(places)
                stood[role.journal, home] = places
    parts = {**logs.parts, **{source: whole(records) for source, records in kept.records.items()}}
    return Played(system, LogCopy(parts), stood, {role.name: folder / role.name for role in system.roles})
