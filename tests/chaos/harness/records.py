"""Frozen input logs of a PDOL deployment: records played through its domains, bad ones included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from frozen_logs import FrozenLogs

from hushstream.agents.worker.deployment import prepare
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.pdol.play import RecordLoop
from hushstream.replay.studies.pdol.worlds import RecordStream, sparse_synthetic
from hushstream.schemas import codec
from hushstream.systems.pdol.configuration import (
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
)

NODES, DOMAINS, SLOTS = 6, 3, 8
RECORDS = 480
PHASE = 40

INPUTS: Mapping[str, tuple[str, ...]] = {"node": ("records", "models"), "aggregator": ("releases",)}


class FrozenRecords(FrozenLogs):
    """The logs, and the records that they are of."""

    stream: RecordStream


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
    system = prepare(folder, config)
    frozen = FrozenRecords(folder, system, INPUTS)
    frozen.stream = stream

    def act(log: MemoryLog, driver: DirectDriver) -> None:
        for domain in range(DOMAINS):
            log.append("records", domain, b"no record")
            log.append("records", domain, codec.encode("Label", {"event_id": "none", "user": "x", "label": 1}))
        loop = RecordLoop(stream, system.core, PHASE)
        asyncio.run(loop.run(DirectEventLog(log, driver, DOMAINS, "predictions")))

    frozen.play(act)
    return frozen
