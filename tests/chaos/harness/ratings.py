"""Frozen input logs of a BGTplanner deployment: three rounds played through it, bad records included."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from frozen_logs import FrozenLogs

from hushstream.agents.worker.deployment import prepare
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.bgt.play import RatingLoop
from hushstream.replay.studies.bgt.worlds import UNIT_SCALE, tastes
from hushstream.systems.bgt.configuration import BgtConfig, ReleaseConfig

USERS, ITEMS = 40, 30

INPUTS: Mapping[str, tuple[str, ...]] = {
    "rater": ("ratings", "models", "rounds"),
    "collector": ("updates",),
    "aggregator": ("releases",),
}


def freeze(folder: Path) -> FrozenLogs:
    """Play three rounds and keep what each role read, with bad records between."""
    world = tastes(users=USERS, items=ITEMS, ratings=6, seed=3)
    release = ReleaseConfig(epsilon=10.0, pairs=8, top=10, factors=2)
    config = BgtConfig("frozen-ratings", ITEMS, 0, UNIT_SCALE, release)
    system = prepare(folder, config)
    frozen = FrozenLogs(folder, system, INPUTS)

    def act(log: MemoryLog, driver: DirectDriver) -> None:
        for topic in ("ratings", "updates", "releases", "rounds"):
            log.append(topic, 0, b"no record")
        loop = RatingLoop(world.split(3), config)
        asyncio.run(loop.run(DirectEventLog(log, driver, 1, "predictions")))

    frozen.play(act)
    return frozen
