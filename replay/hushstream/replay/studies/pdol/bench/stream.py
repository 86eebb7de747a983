"""Measures PDOL's node worker on a stream with an embedded broker.

A worker folds once for each domain before it writes anything, so the run has few domains with many records. All records
and labels are on the log before the worker starts. The rate counts the answers between the first and the last log time
of predictions. So it does not include the times of the start and of the producer.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hushstream.agents.kafka.logs import LogReader
from hushstream.agents.worker.deployment import KEYS, prepare
from hushstream.engine.declare.declaration import System
from hushstream.ops.connection import Connection
from hushstream.privacy.keys import generate_keys
from hushstream.replay.bench.errors import BenchFailed
from hushstream.replay.bench.journal import POLL_SECONDS, STALL_SECONDS
from hushstream.replay.bench.one_worker import worker_on
from hushstream.replay.bench.processes import Running
from hushstream.replay.bench.rows import BenchRow, Progress, figure
from hushstream.replay.studies.pdol.logs import batches, events
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import sparse_synthetic
from hushstream.schemas import codec
from hushstream.systems.pdol.configuration import PdolConfig, RecordConfig, SharingConfig


@dataclass(frozen=True, slots=True)
class StreamSizes:
    """How large the runs are.

    Attributes:
        dimension, features, nodes, slots: n, features of a record, M = D, and B.
        busy: how many nodes have records.
        leaves: leaves of each of these nodes, in columnar records of B.
        event_leaves: the same for one event a record.
    """

    dimension: int = 10_000
    features: int = 50
    nodes: int = 64
    slots: int = 128
    busy: int = 4
    leaves: int = 192
    event_leaves: int = 64


def pdol_stream_rows(progress: Progress, rounds: int = 5, sizes: StreamSizes | None = None) -> list[BenchRow]:
    """Measure one node worker with columnar records and with one event a record.

    Args:
        progress: called with what is being measured.
        rounds: figures are medians over them.
        sizes: how large the runs are; None: the sizes for which targets are stated.

    Raises:
        BenchFailed: the worker ended, or made no more progress.
    """
    return asyncio.run(_measure(progress, rounds, sizes or StreamSizes()))


async def _measure(progress: Progress, rounds: int, sizes: StreamSizes) -> list[BenchRow]:
    shape = (
        f"n = {sizes.dimension:,}, {sizes.features} features, {sizes.busy} of {sizes.nodes} nodes, B = {sizes.slots}"
    )
    found = []
    for form, leaves, encode in (
        (f"columnar records of {sizes.slots}", sizes.leaves, batches),
        ("one event a record", sizes.event_leaves, events),
    ):
        stream = _stream(sizes, leaves)
        values = [list(encode(stream, node, sizes.slots)) for node in range(sizes.busy)]
        rates = []
        for number in range(1, rounds + 1):
            progress(f"PDOL, node worker, {form}, round {number} of {rounds}")
            with tempfile.TemporaryDirectory(prefix="hushstream-bench-") as folder:
                rates.append(await _rate(Path(folder), sizes, leaves, values))
        name = f"PDOL, node worker on a stream, records with labels, {form} ({shape})"
        found.append(figure(name, [wall for wall, _ in rates], "records/s"))
        found.append(figure(f"{name}: of the worker's CPU time", [cpu for _, cpu in rates], "records/CPU s"))
    return found


def _stream(sizes: StreamSizes, leaves: int) -> RecordStream:
    records = sizes.busy * sizes.slots * leaves
    return sparse_synthetic(records=records, dimension=sizes.dimension, features=sizes.features, nodes=sizes.busy)


def _prepared(folder: Path, sizes: StreamSizes, leaves: int) -> System:
    records = RecordConfig(sizes.dimension + 1, label_slots=sizes.slots)
    sharing = SharingConfig(slots_per_release=sizes.slots, horizon=max(32, leaves))
    system = prepare(folder, PdolConfig("bench", sizes.nodes, records, sharing))
    generate_keys(folder / KEYS, ("edge",))
    return system


async def _rate(
    folder: Path, sizes: StreamSizes, leaves: int, values: Sequence[Sequence[bytes]]
) -> tuple[float, float]:
    """Records per second of the clock, and per second of the worker's CPU time."""
    system = _prepared(folder / "deployment", sizes, leaves)
    async with worker_on(folder, system, "node", "records", values) as (connection, worker, meter):
        answers = await _answers(connection, len(values), sizes.busy * sizes.slots * leaves, worker)
    begun, ended = answers[0][0], answers[-1][0]
    if begun == ended:
        raise BenchFailed("expected answers at two log times at least, got all at one: the run is too short")
    counted = sum(count for moment, count in answers if moment > begun)
    return counted * 1000 / (ended - begun), counted / meter.seconds(begun, ended)


async def _answers(connection: Connection, homes: int, records: int, worker: Running) -> list[tuple[int, int]]:
    """(log time in ms, records answered) of all predictions, by time; returns once all records are answered."""
    read = dict.fromkeys((("predictions", home) for home in range(homes)), 0)
    found: list[tuple[int, int]] = []
    idle = 0.0
    async with LogReader(connection.settings()) as reader:
        reader.open(read)
        while sum(count for _, count in found) < records:
            worker.check()
            ends, before = await reader.end_offsets(list(read)), len(found)
            for source, end in ends.items():
                if end > read[source]:
                    for record in await reader.read(source, read[source], end):
                        fields = codec.decode(record.value)[1]
                        found.append((record.timestamp_ms, len(fields.get("event_ids", ()))))
                    read[source] = end
            idle = 0.0 if len(found) > before else idle + POLL_SECONDS
            if idle > STALL_SECONDS:
                raise BenchFailed(f"expected {records} answers, got none for {STALL_SECONDS} s")
            await asyncio.sleep(POLL_SECONDS)
    return sorted(one for one in found if one[1])
