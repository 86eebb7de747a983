"""The benchmarks of PDOL: stages alone, and a node worker on a stream.

*Stages.* How fast one thread folds records of a domain and releases. Rates are records per second of the thread's CPU
time, medians over rounds. B records of 50 features among n = 10,000 are checked and folded with one model, and their
leaf is released with BLT noise.

*Worker.* A node worker on a stream with an embedded broker. A worker folds once for each domain before it writes
anything, so the run has few domains with many records. All records and labels are on the log before the worker starts.
The rate counts the answers between the first and the last log time of predictions. So it does not include the times of
the start and of the producer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hushstream.privacy.keys import seeded_key
from hushstream.replay.bench.journal import WorkerRun, worker_rows
from hushstream.replay.experiments.rows import BenchRow, Progress, at_least, cpu_seconds, figure
from hushstream.replay.studies.pdol.run import person_name, record_name
from hushstream.replay.studies.pdol.worlds import RecordStream, sparse_synthetic
from hushstream.schemas import codec
from hushstream.schemas.batches import encode_label_batch, encode_record_batch
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.counters import Counters, NodeState, counter_address, plan_of
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import PdolConfig, RecordConfig, SharingConfig, pdol_digest


def batches(stream: RecordStream, node: int, rows: int) -> Iterator[bytes]:
    """Yield columnar records of ``rows`` rows each, and after each record the record of its labels."""
    places = (stream.nodes == node).nonzero()[0]
    for low in range(0, len(places), rows):
        part = places[low : low + rows]
        taken, names = stream.rows.take(part), [record_name(place) for place in part]
        persons = [person_name(place) for place in part]
        columns = taken.lengths, taken.indices, taken.values
        yield encode_record_batch(names, persons, [node] * len(part), *columns)
        yield encode_label_batch(names, persons, taken.labels)


def events(stream: RecordStream, node: int, _: int) -> Iterator[bytes]:
    """Yield one event a record, and after each event its label."""
    for place in (stream.nodes == node).nonzero()[0].tolist():
        row, named = stream.rows.part(place, place + 1), {"event_id": record_name(place), "user": person_name(place)}
        features = {"indices": row.indices.astype("<i4").tobytes(), "values": row.values.astype("<i4").tobytes()}
        yield codec.encode("Record", {**named, "node": node, **features})
        yield codec.encode("Label", {**named, "label": int(row.labels[0])})


DIMENSION = 10_000
FEATURES = 50
NODES = 64
RELEASES = 8
TARGETS = {128: 15_000.0, 256: 30_000.0}
RATE = "records/CPU s"


def pdol_rows(progress: Progress, rounds: int = 5) -> list[BenchRow]:
    """Measure fold and release together at each B, and a version of the model.

    Args:
        progress: called with what is being measured.
        rounds: repetitions; figures are medians over them.
    """
    found = []
    for slots, target in TARGETS.items():
        progress(f"PDOL: {slots} slots to a leaf")
        rows, config = _stream(slots * RELEASES).rows, _config(slots)
        rates = [_rate(rows, config, seed) for seed in range(rounds)]
        name = f"PDOL, fold and release, n = {DIMENSION:,}, {FEATURES} features, B = {slots}"
        found.append(at_least(name, rates, RATE, target))
    progress("PDOL: versions")
    return [*found, figure(f"PDOL, a version of {NODES} domains, n = {DIMENSION:,}", _versions(rounds), "CPU ms")]


def _stream(records: int) -> RecordStream:
    return sparse_synthetic(records=records, dimension=DIMENSION, features=FEATURES, nodes=1)


def _config(slots: int) -> PdolConfig:
    sharing = SharingConfig("blt", 1.0, 1e-6, slots, 4 * RELEASES)
    return PdolConfig("bench", NODES, RecordConfig(DIMENSION + 1), sharing)


def _domain(config: PdolConfig, seed: int) -> NodeState:
    plan = plan_of(config.sharing, config.records.dimension)
    address = counter_address(config, pdol_digest(config), bytes(32), 0, seed, 0)
    return NodeState(
        0, Counters(plan, seeded_key(seed, "bench"), address, config.records.dimension), config.slots_of(0)
    )


def _rate(rows: Rows, config: PdolConfig, seed: int) -> float:
    domain, slots = _domain(config, seed), config.slots_of(0)
    model = np.random.default_rng(seed).integers(-4096, 4096, DIMENSION + 1).astype(np.int32)

    def run() -> None:
        for low in range(0, len(rows), slots):
            domain.fold(rows.part(low, low + slots), model)
            domain.release()

    run()  # the first run builds tables and touches memory pages
    return len(rows) / cpu_seconds(run)


def _versions(rounds: int) -> list[float]:
    config = _config(128)
    aggregate, rows = Aggregate(config), _stream(128).rows
    for domain in range(NODES):
        node = _domain(config, domain)
        node.domain = domain
        node.fold(rows, aggregate.model.solved(config.records.dimension).weights)
        aggregate.on_release(node.release())
    return [1e3 * cpu_seconds(aggregate.publish) for _ in range(rounds)]


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
    sizes = sizes or StreamSizes()
    shape = (
        f"n = {sizes.dimension:,}, {sizes.features} features, {sizes.busy} of {sizes.nodes} nodes, B = {sizes.slots}"
    )
    found = []
    for form, leaves, encode in (
        (f"columnar records of {sizes.slots}", sizes.leaves, batches),
        ("one event a record", sizes.event_leaves, events),
    ):
        stream = _stream_of(sizes, leaves)
        sharing = SharingConfig(slots_per_release=sizes.slots, horizon=max(32, leaves))
        run = WorkerRun(
            f"PDOL, node worker on a stream, records with labels, {form} ({shape})",
            "records",
            PdolConfig("bench", sizes.nodes, RecordConfig(sizes.dimension + 1, label_slots=sizes.slots), sharing),
            zone="edge",
            role="node",
            topic="records",
            values=[list(encode(stream, node, sizes.slots)) for node in range(sizes.busy)],
            output="predictions",
            enough=len(stream),
        )
        found += worker_rows(run, progress, rounds)
    return found


def _stream_of(sizes: StreamSizes, leaves: int) -> RecordStream:
    records = sizes.busy * sizes.slots * leaves
    return sparse_synthetic(records=records, dimension=sizes.dimension, features=sizes.features, nodes=sizes.busy)
