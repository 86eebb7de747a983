"""Makes the configurations of the experiments, and the common parts of their rows and targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from hushstream.replay.bench.rows import BenchRow
from hushstream.replay.experiments.rows import Row, over_seeds
from hushstream.replay.progress import Progress
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.systems.pdol.configuration import (
    GossipConfig,
    PdolConfig,
    PredictionConfig,
    RecordConfig,
    SharingConfig,
)

DELTA = 1e-6
HORIZON = 32
NODES = 64
RATE = PredictionConfig().local_rate
PAPER = "Li et al. 2015 (Distributed Private Online Learning for Social Big Data Computing)"


def sharing_config(
    stream: RecordStream, epsilon: float | None, *, domains: int | None = None, counter: str = "blt", node: bool = False
) -> PdolConfig:
    """The sound form on a stream: `HORIZON` leaves for each domain; an epsilon of None means no noise.

    The length of a domain's leaves follows from the number of its records: a public count, which `advise` and the
    weights need too.
    """
    counters = stream.node_count if domains is None else domains
    records = np.bincount(stream.nodes * counters // stream.node_count, minlength=counters)
    sizes = tuple(max(1, -(-int(count) // HORIZON)) for count in records)
    slots = sizes[0] if len(set(sizes)) == 1 else sizes
    kind = "exact" if epsilon is None else counter
    return PdolConfig(
        deployment="experiment",
        nodes=stream.node_count,
        records=RecordConfig(stream.dimension),
        sharing=SharingConfig(kind, 1.0 if epsilon is None else epsilon, DELTA, slots, HORIZON, counters),  # type: ignore[arg-type]
        prediction=PredictionConfig("node" if node else "released"),
    )


def gossip_config(stream: RecordStream, epsilon: float, **options: object) -> PdolConfig:
    """The paper's form on a stream, with a round for each record of a node."""
    rounds = -(-len(stream) // stream.node_count)
    return PdolConfig(
        deployment="experiment",
        nodes=stream.node_count,
        records=RecordConfig(stream.dimension),
        gossip=GossipConfig(epsilon=epsilon, rounds=rounds, **options),  # type: ignore[arg-type]
    )


def columns(name: str, values: Sequence[float]) -> Row:
    """Columns of one value a seed: its mean and 95 % interval."""
    mean, low, high = over_seeds(np.array(values))
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def within(name: str, value: float, aim: float, most: float, unit: str = "accuracy") -> BenchRow:
    """A figure that should lie within ``most`` of ``aim``."""
    return BenchRow(name, value, unit, f"{aim:g} +- {most:g}", abs(value - aim) <= most)


def rising(name: str, values: Sequence[float], unit: str) -> BenchRow:
    """A target for figures that should rise strictly; the row has the smallest step between neighbours."""
    step = float(np.min(np.diff(values)))
    return BenchRow(name, step, unit, "above 0", step > 0)


def mean_of(rows: Iterable[Row], value: str, **where: object) -> float:
    """The value of the only row with these columns."""
    found = [row[value] for row in rows if all(row.get(name) == wanted for name, wanted in where.items())]
    (only,) = found
    return float(only)


def step_counter(progress: Progress | None, total: int) -> Callable[[str], None]:
    """Return a function that counts what is done and reports it."""
    done = 0

    def step(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, what)
        done += 1

    return step


def shortened(stream: RecordStream, records: int) -> RecordStream:
    """The first ``records`` records of a stream."""
    low = min(records, len(stream))
    return replace(stream, rows=stream.rows.part(0, low), nodes=stream.nodes[:low])
