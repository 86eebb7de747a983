"""Frozen input logs of a PDOL deployment: records played through its domains, bad ones included.

The logs are a function of the seed alone. Log time goes on by `CLOCK_STEP_MS` an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Literal

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import TopicPartition
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.pdol.run import RecordLoop
from hushstream.replay.studies.pdol.worlds import RecordStream, sparse_synthetic
from hushstream.schemas import codec
from hushstream.systems.pdol.configuration import (
    GossipConfig,
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
)

KEY_SEED = 7
START_MS = 1_700_000_000_000
CLOCK_STEP_MS = 100
NODES, DOMAINS, SLOTS = 6, 3, 8
RECORDS = 480
PHASE = 40
ROUNDS = 14
"""Records of each node in the published form."""

Log = list[tuple[int, bytes]]
"""(log time in milliseconds, value) of each record of one partition."""

INPUTS: Mapping[str, tuple[str, ...]] = {"node": ("records", "models"), "aggregator": ("releases",)}


@dataclass(slots=True)
class FrozenRecords:
    """The logs, and the deployment that they are of."""

    folder: Path
    system: System
    stream: RecordStream
    logs: dict[TopicPartition, Log] = field(default_factory=dict)

    def of(self, role: str) -> dict[TopicPartition, Log]:
        """The inputs of one role."""
        return {place: log for place, log in self.logs.items() if place[0] in INPUTS[role]}


def freeze(folder: Path, place: Literal["released", "node"] = "released") -> FrozenRecords:
    """Play a stream and keep what each role read, with bad records between; ``place`` is where labels are predicted."""
    stream = sparse_synthetic(records=RECORDS, dimension=20, features=5, nodes=NODES, seed=3)
    config = PdolConfig(
        "frozen-records",
        NODES,
        RecordConfig(stream.dimension, label_slots=5),
        SharingConfig(epsilon=4.0, slots_per_release=SLOTS, horizon=6, domains=DOMAINS, epochs=2),
        prediction=PredictionConfig(place),
    )
    return _frozen(folder, stream, config, PHASE)


def freeze_gossip(folder: Path) -> FrozenRecords:
    """Records alone, in phases of one for each node: what neighbours sent is read where they send it."""
    stream = sparse_synthetic(records=DOMAINS * ROUNDS, dimension=20, features=5, nodes=DOMAINS, seed=3)
    gossip = GossipConfig(epsilon=8.0, rounds=ROUNDS, graph="ring")
    config = PdolConfig("frozen-gossip", DOMAINS, RecordConfig(stream.dimension, label_slots=5), gossip=gossip)
    return _frozen(folder, stream, config, DOMAINS)


def _frozen(folder: Path, stream: RecordStream, config: PdolConfig, phase: int) -> FrozenRecords:
    system = prepare(folder, config)
    frozen = FrozenRecords(folder, system, stream)
    ticks = count(START_MS, CLOCK_STEP_MS)
    log = MemoryLog(lambda: next(ticks))
    driver = DirectDriver(log, all_machines(system, KeySource(seed=KEY_SEED)), bytes(32))
    for domain in range(DOMAINS):
        log.append("records", domain, b"no record")
        log.append("records", domain, codec.encode("Label", {"event_id": "none", "user": "x", "label": 1}))
    loop = RecordLoop(stream, system.core, phase)
    asyncio.run(loop.run(DirectEventLog(log, driver, DOMAINS, "predictions")))
    for place, records in log.partitions():
        frozen.logs[place] = [(record.timestamp_ms, record.value) for record in records]
    return frozen
