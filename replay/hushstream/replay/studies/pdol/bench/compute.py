"""Measures how fast one thread folds records of a domain and releases, for ``make bench``.

Rates are records per second of the thread's CPU time, medians over rounds. B records of 50 features among n = 10,000
are checked and folded with one model, and their leaf is released with BLT noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from hushstream.engine.records import InputRecord, InputSlice
from hushstream.privacy.keys import seeded_key
from hushstream.replay.bench.rows import BenchRow, Progress, at_least, figure
from hushstream.replay.studies.pdol.logs import batches, events
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import sparse_synthetic
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.counters import Counters, counter_address, plan_of
from hushstream.systems.pdol.algorithm.node import NodeState
from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import PdolConfig, RecordConfig, SharingConfig, pdol_digest
from hushstream.systems.pdol.deployment import PdolSystem
from hushstream.systems.pdol.nodes.counter_sharing import counter_home
from hushstream.systems.pdol.nodes.home import HomeMachine

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
    for form, encode in (("columnar records of 128", batches), ("one event a record", events)):
        progress(f"PDOL: a node's whole work, {form}")
        name = f"PDOL, a node from bytes to journal and releases, {form}, B = 128"
        found.append(figure(name, _node_rates(encode, rounds), RATE))
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
    return NodeState(0, Counters(plan, seeded_key(seed, "bench"), address), config.slots_of(0))


def _rate(rows: Rows, config: PdolConfig, seed: int) -> float:
    domain, slots = _domain(config, seed), config.slots_of(0)
    model = np.random.default_rng(seed).integers(-4096, 4096, DIMENSION + 1).astype(np.int32)

    def run() -> None:
        for low in range(0, len(rows), slots):
            domain.fold(rows.part(low, low + slots), model)
            domain.release()

    run()  # the first run builds tables and touches memory pages
    return len(rows) / _seconds(run)


def _node_rates(encode: Callable[[RecordStream, int, int], Iterable[bytes]], rounds: int) -> list[float]:
    """Rates of a machine that reads, answers, counts, journals and releases; labels come with the records."""
    config, stream = _config(128), _stream(128 * 2 * RELEASES)
    system = PdolSystem.of(config)
    values = list(encode(stream, 0, 128))
    records = tuple(InputRecord(offset, 0, value) for offset, value in enumerate(values))
    found = []
    for seed in range(rounds):
        machine = counter_home(system, 0, seeded_key(seed, "bench"))
        machine.start(machine.genesis(bytes(32)))
        part = InputSlice("records", 0, 0, len(records), records)
        found.append(len(stream) / _seconds(partial(_fold_all, machine, part)))
    return found


def _fold_all(machine: HomeMachine, part: InputSlice) -> None:
    """Fold all records as the driver does: whatever is ready, until nothing is left."""
    while part.records:
        (ready,) = machine.ready([part])
        machine.fold([ready])
        rest = tuple(record for record in part.records if record.offset >= ready.high)
        part = part._replace(low=ready.high, records=rest)


def _versions(rounds: int) -> list[float]:
    config = _config(128)
    aggregate, rows = Aggregate(config), _stream(128).rows
    for domain in range(NODES):
        node = _domain(config, domain)
        node.domain = domain
        node.fold(rows, aggregate.model.weights)
        aggregate.on_release(node.release())
    return [1e3 * _seconds(aggregate.publish) for _ in range(rounds)]


def _seconds(run: Callable[[], object]) -> float:
    before = time.thread_time()
    run()
    return time.thread_time() - before
