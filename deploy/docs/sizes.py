"""What one interaction, slot, window, step and user take on disk and in memory: a replay in this process, by topic.

    python deploy/docs/sizes.py [--dimension 10] [--arms 10] [--codes 16] [--users 500] [--window-slots 100]
    python deploy/docs/sizes.py --system colin [--dimension 25] [--arms 10] [--users 100] [--rounds 20] [--rows 200]

Sizes are of record values. A broker adds some 10 bytes a record and 61 a batch, times the copies it keeps.
The data is synthetic; sizes follow from the configuration and hardly from what is in the records.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import tracemalloc
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hushstream.agents.deployment import KeySource, parse_config, prepare
from hushstream.agents.roles import role_work
from hushstream.engine.declaration import System, asked_partitions
from hushstream.engine.machine import Machine
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.catalogue.worlds import make_world
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.studies.colin.closed_loop import CollaborativeLoop, CollaborativePlan
from hushstream.replay.studies.colin.run import relation_graph
from hushstream.replay.studies.colin.worlds.related import CollaborativeWorld
from hushstream.replay.studies.p2b.closed_loop import ClosedLoop, Plan
from hushstream.replay.worlds.world import World
from hushstream.systems.colin.artefacts import inputs_of

NEVER_SECONDS = 1e6
KEYS = KeySource(seed=1)


@dataclass(frozen=True, slots=True)
class Deployed:
    """A system, the loop that plays its users, and how many interactions that makes."""

    system: System
    loop: ClosedLoop | CollaborativeLoop
    interactions: int


def machines_of(system: System) -> dict[str, list[Machine]]:
    """New machines of every home partition, by role in the order in which data flows."""
    return {
        role.name: [role_work(role.name, system, KEYS).make_machine(home) for home in range(system.homes(role))]
        for role in system.roles
    }


def play(deployed: Deployed) -> tuple[LogCopy, dict[str, list[Machine]]]:
    """All topics after the users were played, and the machines at the end."""
    log = MemoryLog()
    machines = machines_of(deployed.system)
    driver = DirectDriver(log, [machine for found in machines.values() for machine in found], bytes(32))
    asyncio.run(deployed.loop.run(DirectEventLog(log, driver, asked_partitions(deployed.system))))
    return LogCopy.of(log), machines


def topic_sizes(logs: LogCopy) -> Mapping[str, tuple[int, int]]:
    """Records and bytes of every topic that holds something."""
    found: dict[str, tuple[int, int]] = {}
    for name in dict.fromkeys(topic for topic, _ in logs.parts):
        sizes = [len(record.value) for _, part in logs.of_topic(name) for record in part.records]
        found[name] = (len(sizes), sum(sizes))
    return found


def state_of(machines: list[Machine], fresh: list[Machine], logs: LogCopy) -> tuple[int, int]:
    """Bytes that the snapshots of machines take, and bytes of memory that others take on to go on from them."""
    packed = [machine.snapshot() for machine in machines]
    for machine in fresh:
        machine.start(logs.part(machine.journal).records[0].value)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for machine, snapshot in zip(fresh, packed, strict=True):
        machine.restore(snapshot)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return sum(map(len, packed)), after - before


def p2b(folder: Path, given: argparse.Namespace) -> Deployed:
    """Users whose events become slots."""
    world: World = make_world("synthetic", users=given.users, dimension=given.dimension, arms=given.arms, seed=1)
    values = {
        "deployment": "sizes",
        "arms": world.arms,
        "context": {"dimension": world.dimension},
        "expected_slots": given.users,
        "encoder": {"codes": given.codes},
        "slot": {"after_interactions": world.rounds},
        "release": {"window_slots": given.window_slots},
    }
    loop = ClosedLoop(world, Plan(given.users, 0, ("cold",), in_flight=64))
    return Deployed(prepare(folder, parse_config(values), public_dataset="synthetic"), loop, given.users * world.rounds)


def colin(folder: Path, given: argparse.Namespace) -> Deployed:
    """Related users, whose rewards a trusted counter releases."""
    world: Any = make_world("colin", users=given.users, dimension=given.dimension, arms=given.arms, seed=1)
    assert isinstance(world, CollaborativeWorld)
    lengths = {"norm": world.largest_feature_norm(2) + 1e-6, "norm_l1": world.largest_feature_norm(1) + 1e-6}
    values = {
        "system": "colin",
        "deployment": "sizes",
        "arms": world.arms,
        "features": {"dimension": world.feature_dimension, **lengths},
        "settle_seconds": NEVER_SECONDS,
        "feedback": {"attribution_window_seconds": NEVER_SECONDS},
        "release": {"rows": given.rows, "rewards_per_user": given.rounds + 1},
    }
    config = parse_config(values)
    loop = CollaborativeLoop(world, CollaborativePlan(given.rounds, given.rounds_per_phase))
    system = prepare(folder, config, inputs_of(relation_graph(world, "colin")), public_dataset="colin")
    return Deployed(system, loop, given.users * given.rounds)


SYSTEMS = {"p2b": p2b, "colin": colin}


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(description="What one interaction, slot, window, step and user take.")
    parser.add_argument("--system", choices=SYSTEMS, default="p2b")
    for name, default in (("dimension", 10), ("arms", 10), ("codes", 16), ("users", 500), ("window-slots", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("rounds", 20), ("rounds-per-phase", 10), ("rows", 200)):
        parser.add_argument(f"--{name}", type=int, default=default, help="of colin")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="hushstream-sizes-") as folder:
        deployed = SYSTEMS[given.system](Path(folder), given)
        logs, machines = play(deployed)
    shape = f"d={given.dimension}, K={given.arms}" + (f", k={given.codes}" if given.system == "p2b" else "")
    print(f"{given.system}: {given.users} users, {deployed.interactions} interactions, {shape}")
    print(f"{'topic':18}{'records':>9}{'bytes a record':>16}{'bytes an interaction':>22}")
    for name, (records, size) in topic_sizes(logs).items():
        print(f"{name:18}{records:9}{size / max(1, records):16.0f}{size / deployed.interactions:22.1f}")
    for role, fresh in machines_of(deployed.system).items():
        packed, memory = state_of(machines[role], fresh, logs)
        print(f"{role}: state {packed / given.users:.0f} bytes a user, memory {memory / given.users:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
