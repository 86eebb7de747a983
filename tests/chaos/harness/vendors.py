"""Frozen input logs of a P-DAP deployment: users of two vendors, an item that comes and goes, bad records among theirs.

The logs are a function of the seed alone. Log time goes on by `CLOCK_STEP_MS` an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource, parse_as, prepare
from hushstream.agents.worker.roles import all_machines
from hushstream.engine.declare.declaration import System, conversation_of
from hushstream.engine.records import TopicPartition
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.pdap.run import PdapLoop, PdapOptions, PdapPlan, Visits, configured
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.schemas import codec
from hushstream.systems.pdap.configuration import PdapConfig, Schedule

KEY_SEED = 7
START_MS = 1_700_000_000_000
CLOCK_STEP_MS = 100
CONTEXTS, LEARNERS, SEED = 160, 2, 5
FIRST = "vendor-0"
"""Whose learner is disturbed."""

FIRST_GONE, LAST_GONE = 2, 4
"""The rows of items that the first vendor retires, before anybody comes and after all came: no record is sent twice."""

Log = list[tuple[int, bytes]]
"""(log time in milliseconds, value) of each record of one partition."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    f"learner.{FIRST}": (f"contexts.{FIRST}", f"clicks.{FIRST}", f"items.{FIRST}", "models"),
    "counter": ("outcomes",),
    "aggregator": ("releases",),
}


@dataclass(slots=True)
class FrozenVendors:
    """The logs, and the deployment that they are of."""

    folder: Path
    system: System
    visits: Visits
    logs: dict[TopicPartition, Log] = field(default_factory=dict)

    def of(self, role: str) -> dict[TopicPartition, Log]:
        """The inputs of one role."""
        return {place: log for place, log in self.logs.items() if place[0] in INPUTS[role]}


def change(digest: bytes, row: int, version: int, *, offered: bool) -> bytes:
    """A vendor retires the item of a row, or offers it; `ArmChange` is what its learner makes of it."""
    item = {"item": f"i{row}", "offered": offered, "title": "", "features": ""}
    return codec.encode("ItemChanges", {"version": version, "items": [item], "config_digest": digest})


def freeze(folder: Path) -> FrozenVendors:
    """Let users visit and keep what each role read, with bad records between.

    Phases are short, so that a counter closes many windows to be killed in, some at a count and most at a phase end.
    """
    world = vendors(vendors=2, arms=6, seed=SEED)
    settings = {
        "deployment": "frozen-vendors",
        "release": {"window_units": 30, "window_ratio": 1.3},
        "privacy": {"epsilon": 2.0, "lifetime": {"epsilon": 10.0, "delta": 1e-06}},
        "cells": {"split_at": 60.0},
        "partitions": {"learner": LEARNERS},
    }
    values = configured(PdapOptions(contexts=CONTEXTS, config=settings), world)
    for vendor in values["vendors"]:
        vendor["items"]["named"] = True
    config = parse_as(PdapConfig, values)
    system = prepare(folder, config)
    visits = Visits.of(world, CONTEXTS, SEED)
    frozen = FrozenVendors(folder, system, visits)
    ticks = count(START_MS, CLOCK_STEP_MS)
    log = MemoryLog(lambda: next(ticks))
    driver = DirectDriver(log, all_machines(system, KeySource(seed=KEY_SEED)), bytes(32))
    for partition in range(LEARNERS):
        log.append(f"contexts.{FIRST}", partition, b"no record")
        fields = {"kind": "reward", "event_id": "none", "user": "nobody", "arm": 0, "reward": 1.0}
        log.append(f"clicks.{FIRST}", partition, codec.encode("Feedback", fields))
    for vendor in config.vendors:
        for row in range(vendor.arms):
            log.append(f"items.{vendor.name}", 0, change(system.digest, row, row + 1, offered=True))
    arms = config.vendors[0].arms
    log.append(f"items.{FIRST}", 0, change(bytes(16), FIRST_GONE, arms + 1, offered=False))
    log.append(f"items.{FIRST}", 0, change(system.digest, FIRST_GONE, arms + 1, offered=False))
    loop = PdapLoop(config, world, visits, PdapPlan(CONTEXTS, Schedule(6, 1.06)))

    def log_of(vendor: str) -> DirectEventLog:
        return DirectEventLog(log, driver, LEARNERS, conversation_of(system, vendor).answers)

    asyncio.run(loop.run(log_of))
    log.append(f"items.{FIRST}", 0, change(system.digest, LAST_GONE, arms + 2, offered=False))
    driver.pump()
    for place, records in log.partitions():
        frozen.logs[place] = [(record.timestamp_ms, record.value) for record in records]
    return frozen
