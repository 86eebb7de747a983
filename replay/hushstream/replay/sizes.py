"""Measures the disk, memory and CPU that one interaction and one user need, by topic and role, in a replay.

    hushstream sizes [--dimension 10] [--arms 10] [--users 500] ...
    hushstream sizes --system NAME --help
    hushstream sizes --rate 15000 --people 1000000 --partitions 100    and what so many would need

Sizes are of record values. A broker adds some 10 bytes a record and 61 a batch, times the copies it keeps. CPU time is
measured around the machines, which fold one record at a time; Kafka's client and the serving of metrics are not in it
(`hushstream bench` measures whole workers). The auditor's CPU time is that of `hushstream verify` over the same
records. The data is synthetic: sizes depend on the configuration, and hardly on the content of the records.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import math
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hushstream.agents.worker.deployment import KeySource
from hushstream.agents.worker.roles import role_work
from hushstream.engine.declare.declaration import System, request_partitions
from hushstream.engine.machine import Machine
from hushstream.ops.check.verify import verify
from hushstream.ops.log_copy import LogCopy
from hushstream.replay.runners.direct import DirectDriver, DirectEventLog
from hushstream.replay.runners.memory import MemoryLog
from hushstream.replay.sample import Sample
from hushstream.replay.study import studies
from hushstream.schemas.errors import HushstreamError

KEYS = KeySource(seed=1)
SAMPLES = {name: study.sample for name, study in studies().items() if study.sample is not None}

BUSY = 0.6
"""The planned load of a core. The rest is for peaks, and for the work of other workers after a failure."""
COPIES = 3
BROKER_BYTES = 10
"""Bytes that a broker's log adds to a record."""
DAY_SECONDS = 86_400


class Measured(NamedTuple):
    """The measurements of one run.

    Attributes:
        interactions, users: how many of each the run had.
        topics: records and bytes of every topic that holds something.
        seconds: CPU time of each role's machines, and of the auditor.
        state, memory: bytes of all machines of each role, packed and in memory.
    """

    interactions: int
    users: int
    topics: Mapping[str, tuple[int, int]]
    seconds: Mapping[str, float]
    state: Mapping[str, int]
    memory: Mapping[str, int]

    def bytes_of(self, names: Iterable[str]) -> float:
        """Bytes that one interaction adds to the named topics, together with what a broker adds to each record."""
        sizes = [self.topics[name] for name in names]
        return sum(size + BROKER_BYTES * records for records, size in sizes) / self.interactions

    def as_lines(self) -> Iterator[str]:
        """The lines of the tables by topic and by role."""
        yield f"{'topic':18}{'records':>9}{'bytes a record':>16}{'bytes an interaction':>22}"
        for name, (records, size) in self.topics.items():
            yield f"{name:18}{records:9}{size / max(1, records):16.0f}{size / self.interactions:22.1f}"
        total = self.bytes_of(self.topics)
        yield f"all topics: {total:.0f} bytes an interaction with what a broker adds to a record"
        for role, memory in self.memory.items():
            yield f"{role}: state {self.state[role] / self.users:.0f} bytes a user, memory {memory / self.users:.0f}"
        for role, seconds in self.seconds.items():
            yield f"{role}: {1e6 * seconds / self.interactions:.1f} us of CPU an interaction"


class ExpectedLoad(NamedTuple):
    """The load that a deployment has to carry.

    Attributes:
        rate: interactions a second at its busiest.
        people: users whose state is kept.
        partitions: home partitions of the role that answers.
    """

    rate: float
    people: int
    partitions: int


def needs(found: Measured, load: ExpectedLoad, kept_ms: Mapping[str, int | None], answering: str) -> Iterator[str]:
    """Yield lines that say what ``load`` needs, if every interaction and every user costs what one cost in the run.

    Args:
        found: the measurements of a run.
        load: the expected load.
        kept_ms: how long each topic is kept; None for ever.
        answering: the role that answers users: it has ``load.partitions`` home partitions, every other role one.
    """
    yield ""
    yield (
        f"What {load.rate:,.0f} interactions a second of {load.people:,} users need, by these figures; of a core "
        f"{BUSY:.0%} is planned"
    )
    for role, seconds in found.seconds.items():
        cores = load.rate * seconds / found.interactions
        homes = load.partitions if role == answering else 1
        line = f"{role}: {cores:.2f} cores busy, so {math.ceil(cores / BUSY):,} of them"
        if role in found.memory:
            memory, state = (held[role] / found.users * load.people / homes for held in (found.memory, found.state))
            line += f"; a partition holds at most {memory / 1e6:,.1f} MB in memory, {state / 1e6:,.1f} MB on disk"
        if role == answering and cores / BUSY > homes:
            line += f"; {homes:,} partitions are too few: at least {math.ceil(cores / BUSY):,}"
        yield line
    rates = {name: load.rate * found.bytes_of([name]) for name in found.topics}
    yield f"brokers: {sum(rates.values()) / 1e6:,.2f} MB a second come in, {COPIES} times as much is written"
    days = {name: kept / 1000 / DAY_SECONDS for name, kept in kept_ms.items() if kept is not None}
    lasting = sum(rate for name, rate in rates.items() if name not in days)
    fading = sum(rate * DAY_SECONDS * days[name] for name, rate in rates.items() if name in days)
    yield (
        f"disk of each copy, at that rate all day: {fading / 1e9:,.1f} GB that is deleted in time, and "
        f"{lasting * DAY_SECONDS / 1e9:,.1f} GB a day that stays until journals are trimmed"
    )


def timed(machine: Machine, spent: Callable[[float], None]) -> Machine:
    """Make a machine report the CPU seconds of each of its folds to ``spent``."""

    def meter(work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            begin = time.thread_time()
            try:
                return work(*given)
            finally:
                spent(time.thread_time() - begin)

        return run

    for name in ("ready", "fold"):
        setattr(machine, name, meter(getattr(machine, name)))
    return machine


def machines_of(system: System) -> dict[str, list[Machine]]:
    """Make new machines for every home partition, by role in the order in which data flows."""
    return {
        role.name: [role_work(role.name, system, KEYS).make_machine(home) for home in range(system.homes(role))]
        for role in system.roles
    }


def play(sample: Sample) -> tuple[LogCopy, dict[str, list[Machine]], dict[str, float]]:
    """Play a sample; return all topics, the machines in their last state, and the CPU seconds of each role."""
    log = MemoryLog()
    machines = machines_of(sample.system)
    seconds = dict.fromkeys(machines, 0.0)

    def spending(role: str) -> Callable[[float], None]:
        def spent(more: float) -> None:
            seconds[role] += more

        return spent

    driven = [timed(machine, spending(role)) for role, found in machines.items() for machine in found]
    driver = DirectDriver(log, driven, bytes(32))
    asyncio.run(_played(sample, DirectEventLog(log, driver, request_partitions(sample.system))))
    return LogCopy.of(log), machines, seconds


def measure(sample: Sample, users: int) -> Measured:
    """Play a sample of ``users`` users, verify it, and return its sizes and CPU times.

    Raises:
        HushstreamError: what was published does not follow from the logs.
    """
    logs, machines, seconds = play(sample)
    begin = time.thread_time()
    if not verify(logs, sample.system, KEYS).ok:
        raise HushstreamError("sizes: expected a sample that verifies, got one with findings")
    seconds["auditor"] = time.thread_time() - begin
    held = {role: state_of(machines[role], fresh, logs) for role, fresh in machines_of(sample.system).items()}
    state, memory = ({role: sizes[place] for role, sizes in held.items()} for place in (0, 1))
    return Measured(sample.interactions, users, topic_sizes(logs), seconds, state, memory)


def topic_sizes(logs: LogCopy) -> Mapping[str, tuple[int, int]]:
    """The number of records and their bytes, for every topic that holds a record."""
    found: dict[str, tuple[int, int]] = {}
    for name in dict.fromkeys(topic for topic, _ in logs.parts):
        sizes = [len(record.value) for record in logs.records([name])]
        found[name] = (len(sizes), sum(sizes))
    return found


def state_of(machines: list[Machine], fresh: list[Machine], logs: LogCopy) -> tuple[int, int]:
    """The bytes of the machines' snapshots, and the bytes of memory that ``fresh`` machines take to restore them."""
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


def parser_of(system: str) -> argparse.ArgumentParser:
    """The parser of the command's options, those of the system's sample among them."""
    description = "Measures disk, memory and CPU of an interaction and a user; --rate adds what a deployment needs."
    parser = argparse.ArgumentParser("hushstream sizes", description=description, allow_abbrev=False)
    parser.add_argument("--system", choices=SAMPLES, default=system, help="system whose sample is played (%(default)s)")
    parser.add_argument("--rate", type=float, help="interactions a second at the peak, to print what they need")
    parser.add_argument("--people", type=int, default=1_000_000, help="users whose state is kept (%(default)s)")
    parser.add_argument("--partitions", type=int, default=100, help="of the role that answers (%(default)s)")
    for name, default in shape_of(system).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help="of it (%(default)s)")
    return parser


def shape_of(system: str) -> dict[str, int]:
    """The options of a system's sample with their defaults."""
    parameters = inspect.signature(SAMPLES[system]).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}


def load_of(given: argparse.Namespace) -> ExpectedLoad | None:
    """The load that the options ask about; None without ``--rate``.

    Raises:
        HushstreamError: a value is out of range.
    """
    if given.rate is None:
        return None
    if given.rate <= 0 or min(given.people, given.partitions) < 1:
        raise HushstreamError("sizes: expected --rate above 0, --people and --partitions from 1 on")
    return ExpectedLoad(given.rate, given.people, given.partitions)


def main(arguments: list[str]) -> int:
    """Run the command; see the module. Returns the exit code."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    named.add_argument("--system", choices=SAMPLES, default=next(iter(SAMPLES)))
    system = named.parse_known_args(arguments)[0].system
    given = parser_of(system).parse_args(arguments)
    load, shape = load_of(given), {name: getattr(given, name) for name in shape_of(system)}
    with tempfile.TemporaryDirectory(prefix="hushstream-sizes-") as folder:
        sample = SAMPLES[system](Path(folder), **shape)
        found = measure(sample, shape["users"])
    print(f"{system}: {sample.interactions} interactions, {', '.join(f'{n} {v}' for n, v in shape.items())}")
    print(*found.as_lines(), sep="\n")
    if load is not None:
        kept_ms = {topic.name: topic.retention_ms for topic in sample.system.topics}
        print(*needs(found, load, kept_ms, sample.system.roles[0].name), sep="\n")
    return 0
