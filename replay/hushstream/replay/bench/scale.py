"""Measures many users: a learner of two partitions, a worker for each, on a broker that keeps its data.

p2b with declared features (83 cells of a mixed table) and 10 items. Every user has ten interactions, in ten rounds of
all users: a context, one to a record, and a reward for its decision. Workers save their state all the time; then both
are killed and started again, and the learner's journals are verified.

*Plan.* What 10^6 to 10^8 users need, by arithmetic on these costs (`plan_rows`).
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import pairwise
from math import ceil
from pathlib import Path
from secrets import token_hex

import numpy as np
from aiokafka import AIOKafkaProducer

from hushstream.agents.worker.deployment import KEYS, KeySource, parse_config
from hushstream.engine.declare.declaration import System
from hushstream.ops.check.verify import verify_live
from hushstream.ops.connection import Connection
from hushstream.ops.topics import apply_async
from hushstream.replay.bench import gateway
from hushstream.replay.bench.journal import DecisionsTail, Folded
from hushstream.replay.bench.load import append_all, draw_rewards
from hushstream.replay.bench.processes import CpuMeter, Running, broker_process, prepared, started
from hushstream.replay.experiments.rows import BenchFailed, BenchRow, Progress
from hushstream.replay.worlds.mixed_table import MixedTable
from hushstream.schemas import codec
from hushstream.schemas.topics import partition_of, physical

ROUNDS = 10
WORKERS = 2
ARMS = 10
SAVED_SECONDS = 5
PROBED = 100
"""The contexts of each partition that wait when killed workers are started again."""

CPU_RATE, STATE = "rate, of both workers' CPU time", "state on the workers' disks"
DISK, GATEWAY = "all topics and indexes, on the broker's disk", "gateway at 250 requests/s"

CONFIGURATION: Mapping[str, object] = {
    "system": "p2b",
    "items": {"capacity": ARMS},
    "expected_slots": 10_000,
    "release": {"form": "features"},
    "partitions": {"learner": WORKERS},
}


def scale_rows(users: int, progress: Progress, bootstrap: str | None = None) -> list[BenchRow]:
    """Measure, and plan with the figures.

    Args:
        users: how many users there are, each with ten interactions.
        progress: called with what is being measured.
        bootstrap: ``host:port`` of a running broker; None: an embedded one. Its topics stay there.

    Raises:
        BenchFailed: a process ended, or made no more progress, or what was decided does not follow from the logs.
    """
    with tempfile.TemporaryDirectory(prefix="hushstream-scale-") as folder:
        found = asyncio.run(_Run(users, progress, Path(folder)).all(bootstrap))
    where = f"{users:,} users, {users * ROUNDS:,} interactions, {'Apache Kafka' if bootstrap else 'embedded broker'}"
    return [*(BenchRow(f"scale, {where}: {what}", *value) for what, value in found.items()), *plan_rows(found)]


Found = dict[str, tuple[float, str]]
"""Figures and their units, by what was measured."""


class _Run:
    def __init__(self, users: int, progress: Progress, folder: Path) -> None:
        self._progress = progress
        self._folder = folder
        self._world = MixedTable(0, ARMS)
        self._names = [f"user-{number:08d}" for number in range(users)]
        homes = np.array([partition_of(name, WORKERS) for name in self._names])
        self._at_home = [np.flatnonzero(homes == home) for home in range(WORKERS)]
        self._prefix = f"scale-{token_hex(4)}."

    async def all(self, bootstrap: str | None) -> Found:
        features = self._world.schema.plain
        config = parse_config({**CONFIGURATION, "deployment": self._prefix.strip("."), "features": features})
        system = prepared(self._folder / "deployment", config)
        data = self._folder / "data"
        async with AsyncExitStack() as stack:
            address = bootstrap or (await stack.enter_async_context(broker_process(self._folder, data)))[0]
            connection = Connection(address, self._prefix)
            await apply_async(connection, system, replication=1)
            found = await self._played(connection)
            if data.exists():
                found[DISK] = _bytes_below(data) / self._interactions, "bytes/interaction"
            found |= await self._verified(connection, system, KeySource(self._folder / "deployment" / KEYS))
        self._progress("scale: a gateway")
        async with gateway.deployed(self._folder / "gateway") as servers:
            row = await gateway.measure(servers, gateway.EACH, 10.0, 0)
        return found | {GATEWAY: (1e6 * row.cpu["gateway"], "CPU us/request")}

    @property
    def _interactions(self) -> int:
        return len(self._names) * ROUNDS

    @asynccontextmanager
    async def _workers(self, connection: Connection) -> AsyncIterator[list[Running]]:
        """Both workers; they are killed at the end."""
        async with AsyncExitStack() as stack:
            options = ["--deployment", str(self._folder / "deployment"), "--bootstrap", connection.bootstrap]
            options += ["--prefix", connection.prefix, "--snapshot-interval", str(SAVED_SECONDS)]
            arguments = ["-m", "hushstream.cli", "worker", "learner", *options, "--state"]
            names = [f"learner-{number}" for number in range(WORKERS)]
            yield [
                await stack.enter_async_context(
                    started(name, [*arguments, str(self._folder / name)], self._folder, kill=True)
                )
                for name in names
            ]

    async def _played(self, connection: Connection) -> Found:
        tails = [DecisionsTail(connection.settings(), home) for home in range(WORKERS)]
        producing = AIOKafkaProducer(bootstrap_servers=connection.bootstrap, acks="all", max_batch_size=256 * 1024)
        async with producing as producer:

            async def append(topic: str, home: int, values: Sequence[bytes]) -> None:
                await append_all(producer, physical(connection.prefix, topic), values, home)

            async with self._workers(connection) as workers, CpuMeter(workers) as meter:
                for number in range(ROUNDS):
                    self._progress(f"scale: round {number + 1} of {ROUNDS}")
                    for topic in ("contexts", "clicks"):
                        for home, tail in enumerate(tails):
                            values = self._contexts(number, home) if topic == "contexts" else self._clicks(number, tail)
                            await append(topic, home, values)
                        for each, tail in zip(map(len, self._at_home), tails, strict=True):
                            clicks = (number + (topic == "clicks")) * each
                            await tail.until((number + 1) * each, clicks, partial(_check, workers))
                memory = sum(one.peak_memory_bytes() for one in workers)
            state = sum(_bytes_below(self._folder / f"learner-{number}") for number in range(WORKERS))
            times = [(tail.records[0].log_time_ms, tail.records[-1].log_time_ms) for tail in tails]
            pause = max(longest_pause(tail.records, len(home)) for tail, home in zip(tails, self._at_home, strict=True))
            self._progress("scale: recovery")
            for home in range(WORKERS):
                await append("contexts", home, self._contexts(ROUNDS, home)[:PROBED])
            seen, begin = [len(tail.records) for tail in tails], time.time() * 1000
            async with self._workers(connection) as workers:
                for each, tail in zip(map(len, self._at_home), tails, strict=True):
                    await tail.until(ROUNDS * each + PROBED, ROUNDS * each, partial(_check, workers))
        again = max(tail.records[first].log_time_ms for tail, first in zip(tails, seen, strict=True))
        begun, ended = min(first for first, _ in times), max(last for _, last in times)
        users, played = len(self._names), self._interactions
        return {
            CPU_RATE: (played / meter.seconds(begun, ended), "interactions/CPU s"),
            "rate, the load's appends and waits in it": (played * 1000 / (ended - begun), "interactions/s"),
            "peak memory, both workers": (memory / 1e6, "MB"),
            STATE: (state / users, "bytes/user"),
            f"longest time without a decision while records wait, snapshots every {SAVED_SECONDS} s": (pause, "ms"),
            "both killed: start of new workers to the later one's first decision": ((again - begin) / 1000, "s"),
        }

    def _contexts(self, number: int, home: int) -> list[bytes]:
        plain = {"line": "private", "features_digest": self._world.schema.digest}
        rows = self._world.visits(self._at_home[home], number).rows
        return [
            codec.encode(
                "FeatureContext",
                {**plain, "event_id": f"{number:02d}-{user:08d}", "user": self._names[user], "row": row.tobytes()},
            )
            for user, row in zip(self._at_home[home], rows, strict=True)
        ]

    def _clicks(self, number: int, tail: DecisionsTail) -> list[bytes]:
        users = self._at_home[tail.partition]
        arms, rewards = tail.arms()[-len(users) :], draw_rewards(len(users), number)
        return [
            codec.encode(
                "Feedback",
                {
                    "kind": "reward",
                    "event_id": f"{number:02d}-{user:08d}",
                    "user": self._names[user],
                    "arm": arm,
                    "reward": reward,
                },
            )
            for user, arm, reward in zip(users, arms, rewards, strict=True)
        ]

    async def _verified(self, connection: Connection, system: System, keys: KeySource) -> Found:
        self._progress("scale: verify")
        begin, spent = time.monotonic(), time.process_time()
        verified = await asyncio.to_thread(verify_live, connection, system, keys, ["learner"])
        if not verified.ok:
            raise BenchFailed("scale: expected decisions that follow from the logs, got findings")
        return {
            "verify": (1e6 * (time.process_time() - spent) / self._interactions, "CPU us/interaction"),
            "verify, all": (time.monotonic() - begin, "s"),
        }


def _check(workers: Sequence[Running]) -> None:
    for one in workers:
        one.check()


def longest_pause(records: Sequence[Folded], each: int) -> float:
    """The longest time (ms) between two records of decisions, but for those after which nothing waited.

    Args:
        records: decisions of one partition, in log order.
        each: how many contexts, and then how many clicks, are appended at a time; the next come when all are folded.
    """

    def left_none(one: Folded) -> bool:
        return any(high > low and high % each == 0 for low, high in (one.contexts, one.clicks))

    waits = (after.log_time_ms - one.log_time_ms for one, after in pairwise(records) if not left_none(one))
    return float(max(waits, default=0))


def _bytes_below(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PLANNED = (10**6, 10**7, 10**8)
BUSIEST = 0.1 / 3600
"""The share of a day's interactions that come in each second of its busiest hour, a tenth of them."""

BUSY, COPIES = 0.6, 3
"""How busy a core may be; a broker's copies of a record."""

USERS_A_PARTITION, PARTITIONS_A_WORKER, BROKER_BYTES_A_SECOND = 10**6, 4, 20e6


def plan_rows(found: Found) -> list[BenchRow]:
    """What many users need who have one interaction a day, by measured costs; nothing if the disk was not measured.

    At most 10^6 users share a partition, which then moves within half a minute, and four partitions a worker.
    """
    if DISK not in found:
        return []
    rows = []
    for users in PLANNED:
        peak, partitions = users * BUSIEST, ceil(users / USERS_A_PARTITION)
        learners = ceil(max(peak / found[CPU_RATE][0] / BUSY, partitions / PARTITIONS_A_WORKER))
        stored = found[DISK][0] * COPIES
        needs = {
            "interactions in the busiest second": (peak, "1/s"),
            "partitions of the learner": (partitions, ""),
            "learner workers": (learners, ""),
            "their state, on disk": (users * found[STATE][0] / 1e9, "GB"),
            "gateways": (max(2, ceil(peak * found[GATEWAY][0] / 1e6 / BUSY)), ""),
            "brokers": (max(COPIES, ceil(peak * stored / BROKER_BYTES_A_SECOND)), ""),
            "their disk": (users * stored / 1e9, "GB/day"),
        }
        rows += [BenchRow(f"plan, {users:,} users: {what}", *need) for what, need in needs.items()]
    return rows


def scale_tables(rows: Sequence[BenchRow]) -> dict[str, str]:
    """The Markdown tables of what was measured, and of the plan."""
    measured = [row for row in rows if row.name.startswith("scale")]
    table = f"{measured[0].name.partition(': ')[0].removeprefix('scale, ').capitalize()}:\n\n| | | |\n|---|---|---|\n"
    table += "".join(f"| {row.name.partition(': ')[2]} | {_shown(row)} | {row.unit} |\n" for row in measured)
    lines: dict[str, list[str]] = {}
    for row in rows:
        if row.name.startswith("plan"):
            lines.setdefault(f"{row.name.partition(': ')[2]} | {row.unit}", []).append(_shown(row))
    plan = f"| | | {' | '.join(f'{users:,} users' for users in PLANNED)} |\n|---|---|{'---|' * len(PLANNED)}\n"
    return {
        "scale": table,
        "plan": plan + "".join(f"| {what} | {' | '.join(cells)} |\n" for what, cells in lines.items()),
    }


def _shown(row: BenchRow) -> str:
    value = row.value or 0.0
    return f"{value:,.{value < 10 and value != int(value):d}f}"
