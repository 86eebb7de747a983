"""What one interaction, slot, window, step and user take on disk and in memory: a replay in this process, by topic.

    python deploy/docs/sizes.py [--dimension 10] [--arms 10] [--users 500] ...
    python deploy/docs/sizes.py --system NAME --help

Sizes are of record values. A broker adds some 10 bytes a record and 61 a batch, times the copies it keeps.
The data is synthetic; sizes follow from the configuration and hardly from what is in the records.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
import tempfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System, asked_partitions
from hushstream.engine.machine import Machine
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.sample import Sample
from hushstream.replay.study import studies

KEYS = KeySource(seed=1)
SAMPLES = {name: study.sample for name, study in studies().items() if study.sample is not None}


def machines_of(system: System) -> dict[str, list[Machine]]:
    """New machines of every home partition, by role in the order in which data flows."""
    return {
        role.name: [role_work(role.name, system, KEYS).make_machine(home) for home in range(system.homes(role))]
        for role in system.roles
    }


def play(sample: Sample) -> tuple[LogCopy, dict[str, list[Machine]]]:
    """All topics after the users were played, and the machines at the end."""
    log = MemoryLog()
    machines = machines_of(sample.system)
    driver = DirectDriver(log, [machine for found in machines.values() for machine in found], bytes(32))
    asyncio.run(_played(sample, DirectEventLog(log, driver, asked_partitions(sample.system))))
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


async def _played(sample: Sample, log: DirectEventLog) -> None:
    await sample.play(log)


def shape_of(system: str, arguments: list[str]) -> dict[str, int]:
    """What the sample of a system takes, by the name of its options."""
    parser = argparse.ArgumentParser(description="What one interaction, slot, window, step and user take.")
    parser.add_argument("--system", choices=SAMPLES, default=system)
    for name, parameter in inspect.signature(SAMPLES[system]).parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=parameter.default)
    return {name: value for name, value in vars(parser.parse_args(arguments)).items() if name != "system"}


def main(arguments: list[str] | None = None) -> int:
    """See the module; returns the exit code."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--system", choices=SAMPLES, default=next(iter(SAMPLES)))
    given, rest = parser.parse_known_args(arguments)
    shape = shape_of(given.system, rest)
    with tempfile.TemporaryDirectory(prefix="hushstream-sizes-") as folder:
        sample = SAMPLES[given.system](Path(folder), **shape)
        logs, machines = play(sample)
    users = shape["users"]
    print(f"{given.system}: {sample.interactions} interactions, {', '.join(f'{n} {v}' for n, v in shape.items())}")
    print(f"{'topic':18}{'records':>9}{'bytes a record':>16}{'bytes an interaction':>22}")
    for name, (records, size) in topic_sizes(logs).items():
        print(f"{name:18}{records:9}{size / max(1, records):16.0f}{size / sample.interactions:22.1f}")
    for role, fresh in machines_of(sample.system).items():
        packed, memory = state_of(machines[role], fresh, logs)
        print(f"{role}: state {packed / users:.0f} bytes a user, memory {memory / users:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
