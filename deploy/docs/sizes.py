"""What one interaction, slot, window and user take on disk: a replay in this process, counted by topic.

    python deploy/docs/sizes.py [--dimension 10] [--arms 10] [--codes 16] [--users 500] [--window-slots 100]

Sizes are of record values. A broker adds some 10 bytes a record and 61 a batch, times the copies it keeps.
The data is synthetic; sizes follow from the configuration and hardly from what is in the records.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hushstream.agents.deployment import KeySource, parse_config, prepare
from hushstream.agents.roles import all_machines
from hushstream.ops.copies import LogCopy
from hushstream.replay.closed_loop import ClosedLoop, Plan
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.worlds.catalogue import make_world
from hushstream.replay.worlds.world import World
from hushstream.roles.learner import LearnerMachine
from hushstream.systems.system import System


def play(system: System, world: World, users: int) -> tuple[LogCopy, int]:
    """All topics after the users were played, and the bytes of the learner's state."""
    log = MemoryLog()
    machines = all_machines(system, KeySource(seed=1))
    driver = DirectDriver(log, machines, bytes(32))
    plan = Plan(users, 0, ("cold",), in_flight=64)
    asyncio.run(ClosedLoop(world, plan).run(DirectEventLog(log, driver, system.counts["learner"])))
    learners = [machine for machine in machines if isinstance(machine, LearnerMachine)]
    return LogCopy.of(log), sum(len(machine.snapshot()) for machine in learners)


def topic_sizes(system: System, logs: LogCopy) -> Mapping[str, tuple[int, int]]:
    """Records and bytes of every topic that holds something."""
    names = ("contexts", "clicks", "decisions", "reports", "journal-shuffler", "crowds", "ledger", "models")
    found: dict[str, tuple[int, int]] = {}
    for name in names:
        sizes = [len(record.value) for _, part in logs.of_topic(name) for record in part.records]
        found[name] = (len(sizes), sum(sizes))
    return found


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="What one interaction, slot, window and user take on disk.")
    for name, default in (("dimension", 10), ("arms", 10), ("codes", 16), ("users", 500), ("window-slots", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    world = make_world("synthetic", users=given.users, dimension=given.dimension, arms=given.arms, seed=1)
    values = {
        "deployment": "sizes",
        "arms": world.arms,
        "context": {"dimension": world.dimension},
        "expected_slots": given.users,
        "encoder": {"codes": given.codes},
        "slot": {"after_interactions": world.rounds},
        "release": {"window_slots": given.window_slots},
        "public_dataset": True,
    }
    with tempfile.TemporaryDirectory(prefix="hushstream-sizes-") as folder:
        system = prepare(Path(folder), parse_config(values))
        logs, state_bytes = play(system, world, given.users)
    interactions = given.users * world.rounds
    print(f"{given.users} users, {interactions} interactions, d={given.dimension}, K={given.arms}, k={given.codes}")
    print(f"{'topic':18}{'records':>9}{'bytes a record':>16}{'bytes an interaction':>22}")
    for name, (records, size) in topic_sizes(system, logs).items():
        print(f"{name:18}{records:9}{size / max(1, records):16.0f}{size / interactions:22.1f}")
    print(f"learner state: {state_bytes / given.users:.0f} bytes a user after {world.rounds} interactions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
