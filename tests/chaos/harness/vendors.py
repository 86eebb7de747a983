"""Frozen input logs of a P-DAP deployment: users of two vendors, an item that comes and goes, and bad records."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from frozen_logs import FrozenLogs

from hushstream.agents.worker.deployment import parse_as, prepare
from hushstream.engine.declare.declaration import conversation_of
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog, MemoryLog
from hushstream.replay.studies.pdap.play import PdapLoop, PdapOptions, PdapPlan, Visits, configured
from hushstream.replay.studies.pdap.worlds import vendors
from hushstream.schemas import codec
from hushstream.systems.pdap.configuration import PdapConfig, Schedule

CONTEXTS, LEARNERS, SEED = 160, 2, 5
FIRST = "vendor-0"
"""Whose learner is disturbed."""

FIRST_GONE, LAST_GONE = 2, 4
"""The rows of items that the first vendor retires, before anybody comes and after all came: no record is sent twice."""

INPUTS: Mapping[str, tuple[str, ...]] = {
    f"learner.{FIRST}": (f"contexts.{FIRST}", f"clicks.{FIRST}", f"items.{FIRST}", "models"),
    "counter": ("outcomes",),
    "aggregator": ("releases",),
}


class FrozenVendors(FrozenLogs):
    """The logs, and the visits that they are of."""

    visits: Visits


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
    frozen = FrozenVendors(folder, system, INPUTS)
    frozen.visits = visits

    def act(log: MemoryLog, driver: DirectDriver) -> None:
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

    frozen.play(act)
    return frozen
