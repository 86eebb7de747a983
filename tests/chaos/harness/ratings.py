"""Frozen input logs of a BGTplanner deployment: three rounds played through it, bad records included.

The logs are a function of the seed alone. Log time goes on by `CLOCK_STEP_MS` an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import System
from hushstream.engine.records import TopicPartition
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.bgt.play import RatingLoop
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, tastes
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig

KEY_SEED = 7
START_MS = 1_700_000_000_000
CLOCK_STEP_MS = 100
USERS, ITEMS = 40, 30

Log = list[tuple[int, bytes]]
"""(log time in milliseconds, value) of each record of one partition."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    "rater": ("ratings", "models", "rounds"),
    "collector": ("updates",),
    "aggregator": ("releases",),
}


@dataclass(slots=True)
class FrozenRatings:
    """The logs, and the deployment that they are of."""

    folder: Path
    system: System
    logs: dict[TopicPartition, Log] = field(default_factory=dict)

    def of(self, role: str) -> dict[TopicPartition, Log]:
        """The inputs of one role."""
        return {place: log for place, log in self.logs.items() if place[0] in INPUTS[role]}


def freeze(folder: Path) -> FrozenRatings:
    """Play three rounds and keep what each role read, with bad records between."""
    world = tastes(users=USERS, items=ITEMS, ratings=6, seed=3)
    release = ReleaseConfig(epsilon=10.0, pairs=8, top=10, factors=2)
    config = BgtConfig("frozen-ratings", ITEMS, 0, UNIT_SCALE, release)
    system = prepare(folder, config)
    frozen = FrozenRatings(folder, system)
    ticks = count(START_MS, CLOCK_STEP_MS)
    log = MemoryLog(lambda: next(ticks))
    driver = DirectDriver(log, all_machines(system, KeySource(seed=KEY_SEED)), bytes(32))
    for topic in ("ratings", "updates", "releases", "rounds"):
        log.append(topic, 0, b"no record")
    loop = RatingLoop(world.split(3), config)
    asyncio.run(loop.run(DirectEventLog(log, driver, 1, "predictions")))
    for place, records in log.partitions():
        frozen.logs[place] = [(record.timestamp_ms, record.value) for record in records]
    return frozen
