"""A small finished deployment on a log in memory: two learner and two shuffler partitions, several windows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from modules import module_at

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import all_machines
from hushstream.client.client import Client
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import InputRecord, TopicPartition
from hushstream.ops.log_copy import LogCopy, PartitionCopy, whole
from hushstream.replay.catalogue import make_world
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.schemas import codec
from hushstream.systems.p2b.configuration import (
    ContextConfig,
    EncoderConfig,
    MeasurementConfig,
    P2BConfig,
    PartitionConfig,
    ReleaseConfig,
    SlotConfig,
)
from hushstream.systems.p2b.deployment import P2BSystem
from hushstream.systems.p2b.system import declare

USERS, ROUNDS, DIMENSION = 40, 6, 4
KEYS = KeySource(seed=7)


@dataclass(frozen=True)
class Deployment:
    system: System
    log: MemoryLog
    keys: KeySource = KEYS

    @property
    def copy(self) -> LogCopy:
        return LogCopy.of(self.log)


class Editor:
    """Copies of a log with one thing changed; the log itself stays as it is."""

    def __init__(self, copy: LogCopy) -> None:
        self.copy = copy

    def holding(self, topic: str, least: int = 1) -> list[TopicPartition]:
        return sorted(s for s, part in self.copy.parts.items() if s[0] == topic and len(part.records) >= least)

    def with_records(self, source: TopicPartition, records: list[InputRecord], low: int = 0) -> LogCopy:
        high = max(self.copy.part(source).high, records[-1].offset + 1 if records else 0)
        return LogCopy({**self.copy.parts, source: PartitionCopy(low, high, records)}, self.copy.consistent)

    def renumbered(self, source: TopicPartition, values: list[tuple[int, bytes]]) -> LogCopy:
        """As a log would be in which these had been written: offsets without holes."""
        records = [InputRecord(offset, *stored) for offset, stored in enumerate(values)]
        return LogCopy({**self.copy.parts, source: whole(records)}, self.copy.consistent)

    def byte_changed(self, source: TopicPartition, index: int, position: int, mask: int) -> LogCopy:
        records = list(self.copy.part(source).records)
        value = bytearray(records[index].value)
        value[position] ^= mask
        records[index] = records[index]._replace(value=bytes(value))
        return self.with_records(source, records)

    def without(self, source: TopicPartition, index: int) -> LogCopy:
        """The record is gone and leaves a hole."""
        records = list(self.copy.part(source).records)
        del records[index]
        return self.with_records(source, records)

    def closed_up(self, source: TopicPartition, index: int) -> LogCopy:
        """The record is gone and those behind it have moved up."""
        values = [record[1:] for record in self.copy.part(source).records]
        del values[index]
        return self.renumbered(source, values)

    def swapped(self, source: TopicPartition, first: int, second: int) -> LogCopy:
        values = [record[1:] for record in self.copy.part(source).records]
        values[first], values[second] = values[second], values[first]
        return self.renumbered(source, values)

    def inserted(self, source: TopicPartition, index: int, value: bytes) -> LogCopy:
        values = [record[1:] for record in self.copy.part(source).records]
        time = values[min(index, len(values) - 1)][0] if values else 1
        values.insert(index, (time, value))
        return self.renumbered(source, values)


def configuration(name: str) -> P2BConfig:
    return P2BConfig(
        name,
        5,
        ContextConfig(DIMENSION),
        USERS,
        encoder=EncoderConfig(codes=4),
        slot=SlotConfig(after_interactions=3, lifetime_slots=2, settle_seconds=0.02),
        release=ReleaseConfig(epsilon=1.0, window_slots=8),
        measurement=MeasurementConfig(own=0.2, baseline=0.2, every_seconds=0.02),
        partitions=PartitionConfig(learner=2, shuffler=2),
    )


def bad_records(log: MemoryLog) -> None:
    """What an application in trouble sends: each of these becomes a dead letter of the learner."""
    vector = np.full(DIMENSION, 1 / DIMENSION, "<f4")
    context = {"event_id": "bad", "user": "bad", "context": vector.tobytes()}
    nan = {**context, "event_id": "nan", "context": np.full(DIMENSION, np.nan, "<f4").tobytes()}
    good = codec.encode("Context", context)
    click = {"kind": "reward", "event_id": "bad", "user": "bad", "arm": 0, "reward": 0.5}
    for partition in (0, 1):
        log.append("contexts", partition, codec.encode("Context", nan))
        log.append("contexts", partition, codec.encode("Context", {**context, "line": "nowhere"}))
        log.append("contexts", partition, good[:-3])
        log.append("contexts", partition, b"not a record")
        log.append("clicks", partition, codec.encode("Feedback", {**click, "reward": 7.0}))
        log.append("clicks", partition, b"")


def foreign_records(log: MemoryLog, system: System) -> None:
    """What a foreign writer may put where only roles write: a dead letter for whoever reads it."""
    other = {"report_id": bytes(16), "period": bytes(8), "config_digest": bytes(16), "content": bytes(32)}
    for partition in (0, 1):
        log.append("reports", partition, codec.encode("SlotReport", other))
        log.append("reports", partition, codec.encode("Tick", {"config_digest": system.digest}))
        log.append("reports", partition, b"noise")
    log.append("window-sums", 0, b"noise")


def deploy(name: str, foreign: bool) -> Deployment:
    system = declare(P2BSystem.fitted(configuration(name), public_dataset=True))
    log = MemoryLog()
    driver = DirectDriver(log, all_machines(system, KEYS), bytes(32))
    world = make_world("synthetic", users=USERS, seed=3, dimension=DIMENSION, arms=5)

    async def play(client: Client, user: int, first: int, last: int, track: str) -> None:
        for number in range(first, last):
            context = world.contexts(np.array([user]), number)[0]
            event = f"u{user}:{number}"
            decision = await client.decide(event, f"u{user}", context, track=track, timeout=30)
            reward = float(world.rewards(np.array([user]), number, np.array([decision.arm]))[0])
            await client.reward(event, f"u{user}", decision.arm, reward)

    async def main() -> None:
        async with Client(DirectEventLog(log, driver, 2)) as client:
            await asyncio.gather(*(play(client, user, 0, 3, "private") for user in range(USERS // 2)))
            bad_records(log)
            if foreign:
                foreign_records(log, system)
            await asyncio.gather(*(play(client, user, 3, ROUNDS, "private") for user in range(USERS // 2)))
            await client.end_phase(0)
            players = (play(client, user, 0, ROUNDS, "private") for user in range(USERS // 2, USERS))
            await asyncio.gather(*players)
            if foreign:
                foreign_records(log, system)
            await client.end_phase(1)

    asyncio.run(main())
    return Deployment(system, log)


@pytest.fixture(scope="session")
def deployment() -> Deployment:
    """Everything that the protocol allows: bad input, several windows, two phases."""
    return deploy("small", foreign=False)


@pytest.fixture(scope="session")
def invaded() -> Deployment:
    """The same with records of a foreign writer on reports, windows and interactions."""
    return deploy("invaded", foreign=True)


@pytest.fixture(scope="session")
def editor(deployment: Deployment) -> Editor:
    return Editor(deployment.copy)


@pytest.fixture(scope="session")
def invaded_editor(invaded: Deployment) -> Editor:
    return Editor(invaded.copy)


@pytest.fixture(scope="session")
def playing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Any]]:
    """Deployments of any system with published states, by the system's name, each played once."""
    module = module_at(Path(__file__).parent / "harness" / "played.py", "hushstream_test_played")
    known: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as monkeypatch:

        def of(name: str) -> Any:
            if name not in known:
                known[name] = module.play(name, tmp_path_factory.mktemp(name), monkeypatch)
            return known[name]

        yield of


@pytest.fixture(scope="session")
def p2b(playing: Callable[[str], Any]) -> Any:
    """Three learner and two shuffler partitions, played in an event loop of its own."""
    return playing("p2b")
