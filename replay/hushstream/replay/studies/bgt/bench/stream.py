"""Measures the worker of BGTplanner's collector on a stream with an embedded broker.

A collector journals only when a round ends. So its rate is measured between two ends: that of a short second round, and
that of a third one, which requests slots of kind A again and gets all slots. All input is on the log before the worker
starts. So the rate does not include the times of its start and of the producer; it includes the noise of the third
round.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import POLL_SECONDS, STALL_SECONDS
from hushstream.replay.bench.one_worker import worker_on
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, Progress, at_least, figure
from hushstream.replay.studies.bgt.bench.compute import ITEMS, RATINGS
from hushstream.replay.studies.bgt.worlds.ratings import UNIT_SCALE, tastes
from hushstream.schemas import codec
from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.agent import Sent
from hushstream.systems.bgt.edge.making import make_slots
from hushstream.systems.bgt.records import round_fields
from hushstream.systems.bgt.rounds import ROUNDS, Model, Round, first_round
from hushstream.systems.bgt.slots import ID_BYTES, Slots, null_slots


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How large the runs are.

    Attributes:
        items: I.
        ratings: how many each user has.
        slots: how many the measured round has.
        short: how many each round before it has.
    """

    items: int = ITEMS
    ratings: int = RATINGS
    slots: int = 16_000
    short: int = 100


def bgt_stream_rows(progress: Progress, rounds: int = 5, sizes: StreamSizes | None = None) -> list[BenchRow]:
    """Measure one collector's worker.

    Args:
        progress: called with what is being measured.
        rounds: figures are medians over them.
        sizes: how large the runs are; None: the sizes for which targets are stated.

    Raises:
        BenchFailed: the worker ended, or made no more progress.
    """
    return asyncio.run(_measure(progress, rounds, sizes or StreamSizes()))


async def _measure(progress: Progress, rounds: int, sizes: StreamSizes) -> list[BenchRow]:
    config = BgtConfig("bench", sizes.items, scale=UNIT_SCALE)
    slots = _slots(sizes, config)
    rates = []
    for number in range(1, rounds + 1):
        progress(f"BGTplanner, collector's worker, round {number} of {rounds}")
        with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as folder:
            rates.append(await _rate(Path(folder), sizes, config, slots))
    name = (
        f"BGTplanner, collector's worker on a stream, A slots of {config.release.pairs} pairs ({sizes.items:,} items)"
    )
    return [
        figure(name, [wall for wall, _ in rates], "slots/s"),
        at_least(f"{name}: of its CPU time", [cpu for _, cpu in rates], "slots/CPU s", 5_000),
    ]


def _slots(sizes: StreamSizes, config: BgtConfig) -> Slots:
    world = tastes(users=sizes.slots, items=sizes.items, ratings=sizes.ratings, seed=0)
    salts = np.random.default_rng(0).integers(0, 2**63, sizes.slots).astype(np.uint64)
    return make_slots(world.split(0).known(config), first_round(config), config, salts)


def _log(config: BgtConfig, digest: bytes, sizes: StreamSizes, slots: Slots) -> Iterator[bytes]:
    """The log of three rounds, as raters would write it."""
    model = Model(np.zeros(config.items), np.zeros((config.items, 0)))
    top = np.arange(config.top, dtype=np.int64)
    few = null_slots(sizes.short, config)
    asked = (first_round(config), Round(1, "pairs", model, top, np.ones(len(top))), Round(2, "items", model))
    for one, sent in zip(asked, (few, few, slots), strict=True):
        if one.number:
            yield codec.encode("RatingRound", round_fields(one, one.number, digest))
        for user in range(len(sent)):
            slot_id = (one.number << 32 | user).to_bytes(ID_BYTES, "big")
            slot = Sent(slot_id, one.number, digest, sent[user : user + 1])
            yield codec.encode("RatingSlot", slot.fields())
        end = {"phase": one.number, "origin": 0, "config_digest": digest, "after_click": -1}
        yield codec.encode("Seal", end)


def _prepared(folder: Path, config: BgtConfig) -> System:
    system = prepare(folder, config)
    generate_keys(folder / KEYS, ("shuffler",))
    return system


async def _rate(folder: Path, sizes: StreamSizes, config: BgtConfig, slots: Slots) -> tuple[float, float]:
    """Slots per second of the clock, and per second of the worker's CPU time."""
    system = _prepared(folder / "deployment", config)
    log = list(_log(config, system.digest, sizes, slots))
    async with worker_on(folder, system, "collector", "updates", [log]) as (connection, worker, meter):
        begun, ended = await _ends(connection, worker)
    if begun == ended:
        raise BenchFailed("expected rounds that end at two log times, got one: the run is too short")
    return sizes.slots * 1000 / (ended - begun), sizes.slots / meter.seconds(begun, ended)


async def _ends(connection: Connection, worker: Running) -> tuple[int, int]:
    """Log times, in ms, at which the last two rounds were released."""
    source = ("releases", 0)
    found: list[int] = []
    idle, end = 0.0, 0
    async with LogReader(connection.settings()) as reader:
        reader.open({source: 0})
        while len(found) < ROUNDS:
            worker.check()
            low, end = end, (await reader.end_offsets([source]))[source]
            held = await reader.read(source, low, end)
            found += [one.timestamp_ms for one in held if codec.decode(one.value)[0] == "RatingSums"]
            idle = 0.0 if held else idle + POLL_SECONDS
            if idle > STALL_SECONDS:
                raise BenchFailed(f"expected {ROUNDS} releases, got {len(found)} and none for {STALL_SECONDS} s")
            await asyncio.sleep(POLL_SECONDS)
    return found[-2], found[-1]
