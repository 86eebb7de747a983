"""Plays a stream of labelled records through PDOL's nodes and aggregator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_as, prepare, written
from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.engine.declare.declaration import System
from hushstream.replay.catalogue.played_by import hint
from hushstream.replay.catalogue.worlds import seeded_world
from hushstream.replay.checks import run_fields
from hushstream.replay.configurations import merged_values
from hushstream.replay.play_options import PlayOptions
from hushstream.replay.progress import Progress
from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.report.summaries import paired
from hushstream.replay.runners.playing import Recording, deployed, play
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.pdol.closed_loop import RecordLoop, RecordsPlayed
from hushstream.replay.studies.pdol.play import accuracy, isolated_labels, predicted_labels
from hushstream.replay.studies.pdol.report import AccuracyRow, PdolResult
from hushstream.replay.studies.pdol.runs import gossip_config, sharing_config, shortened
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.configuration import PdolConfig
from hushstream.systems.pdol.deployment import PdolSystem

_ROWS = 100
"""Most points of the accuracy curve in a report."""

_NEVER = 1 << 20
"""More releases than any round has, so that a version follows only the end of a phase, in any order of releases."""


@dataclass(frozen=True, slots=True)
class PdolOptions(PlayOptions):
    """What to run: the options of every system (`PlayOptions`), and PDOL's own.

    Attributes:
        dataset: name of a world of labelled records.
        records: number of records; by default all that the world has.
        epsilon: epsilon of a record; the configuration may set more of its guarantee.
    """

    dataset: str = "tmc-binary"
    records: int | None = None
    epsilon: float = 8.0


def run_pdol(options: PdolOptions, progress: Progress | None = None) -> PdolResult:
    """Play a stream of records and return its accuracy, guarantee, counts and throughput.

    Raises:
        HushstreamError: the world, the runner or an option is unknown, the world has no labelled records, or the
            configuration is invalid.
    """
    options.require_runner()
    stream = _stream(options)
    with deployed(options.folder) as folder:
        config = parse_as(PdolConfig, config_values(options, stream))
        if config.nodes != stream.node_count:
            raise HushstreamError(f"nodes: expected the world's {stream.node_count}, got {config.nodes}")
        system = prepare(folder, config, public_dataset=stream.name)
        place = options.place(folder)
        loop = RecordLoop(stream, system.core, records_per_phase(stream, config), progress)
        recording = run_to_end(lambda: play(system, place, loop.run))
    return _result(options, stream, system, recording)


def records_per_phase(stream: RecordStream, config: PdolConfig) -> int:
    """How many records a phase has: a leaf of each domain if spread evenly; in the paper's form one of each node."""
    if config.gossip is not None:
        return stream.node_count
    return sum(config.slots_of(domain) for domain in range(config.domains))


def config_values(options: PdolOptions, stream: RecordStream) -> dict[str, Any]:
    """The configuration that fits a stream, with the values that the caller set."""
    fitting = gossip_config(stream, options.epsilon) if _gossips(options) else sharing_config(stream, options.epsilon)
    values = {**written(fitting), "deployment": "replay"}
    values["model"]["releases_per_version"] = _NEVER
    # With this many slots no label comes too late before the end of its phase.
    values["feedback"]["label_slots"] = 4096
    return merged_values(values, options.config)


def _stream(options: PdolOptions) -> RecordStream:
    stream = seeded_world(options.dataset, options.world, options.seed)
    if not isinstance(stream, RecordStream):
        raise HushstreamError(
            f"dataset: expected a world of labelled records, got {options.dataset!r}{hint(options.dataset)}"
        )
    if not stream.public:
        raise HushstreamError(
            "dataset: expected a public one, as accuracy is an exact figure on records; if yours are public, "
            "write `public: true` into their mapping"
        )
    stream = stream if options.records is None else shortened(stream, options.records)
    # A round of the paper's form has one record of each node.
    return shortened(stream, _whole_rounds(stream)) if _gossips(options) else stream


def _whole_rounds(stream: RecordStream) -> int:
    rounds = len(stream) // stream.node_count
    here = stream.nodes[: rounds * stream.node_count].reshape(rounds, stream.node_count)
    if not rounds or not (np.sort(here, axis=1) == np.arange(stream.node_count)).all():
        raise HushstreamError("dataset: expected records dealt evenly, in turn, as all nodes take part in each round")
    return here.size


def _gossips(options: PdolOptions) -> bool:
    return options.config.get("gossip") is not None


def _result(
    options: PdolOptions, stream: RecordStream, deployed: System, recording: Recording[RecordsPlayed]
) -> PdolResult:
    played, system = recording.played, deployed.core
    config: PdolConfig = system.config
    right = played.predicted == stream.rows.labels
    alone = isolated_labels(stream, config.prediction.local_rate) == stream.rows.labels
    return PdolResult(
        **run_fields(options, stream.name, deployed, recording, len(stream)),
        form=_form(system),
        nodes=config.nodes,
        domains=config.domains,
        records=len(stream),
        rows=_rows(right, alone),
        accuracy=accuracy(right),
        isolated=accuracy(alone),
        constant=stream.constant,
        comparison=paired(right.astype(np.float64), alone.astype(np.float64)),
        payoff=payoff(stream, config, right, alone, options.seed),
    )


def _form(system: PdolSystem) -> str:
    config = system.config
    if config.gossip is not None:
        return f"gossip over a {config.gossip.graph} graph"
    place = "by the published model" if config.prediction.place == "released" else "by the votes of nodes"
    return f"{config.sharing.counter} sums, predicted {place}"


def _rows(right: np.ndarray[Any, Any], alone: np.ndarray[Any, Any]) -> tuple[AccuracyRow, ...]:
    """Accuracy so far, at up to `_ROWS` points."""
    count = np.arange(1, len(right) + 1)
    shared, isolated = np.cumsum(right) / count, np.cumsum(alone) / count
    places = np.unique(np.linspace(0, len(right) - 1, min(len(right), _ROWS)).astype(int))
    return tuple(AccuracyRow(int(at + 1), float(shared[at]), float(isolated[at])) for at in places)


TRIED = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, LARGEST_EPSILON)
"""Epsilons that are tried on the same records if sharing does not pay, up to the first one at which it pays."""

Rights = NDArray[np.bool_]


def payoff(stream: RecordStream, config: PdolConfig, right: Rights, alone: Rights, seed: int) -> Payoff:
    """Shared predictions compared with those of isolated nodes; the sample is the nodes.

    Args:
        stream: the records.
        config: configuration of the run.
        right: (n,) whether the run predicted each label correctly.
        alone: (n,) whether isolated nodes predicted it correctly.
        seed: seed of the keys of further plays.
    """
    gap = _gap(stream, right, alone)
    pays = gap.low is not None and gap.low > 0
    return Payoff(
        what="share of correct predictions",
        value=float(right.mean()),
        baseline="nodes that keep apart",
        reference=float(alone.mean()),
        gap=gap,
        units="nodes",
        otherwise="" if pays else _otherwise(stream, config, alone, seed),
    )


def _gap(stream: RecordStream, right: Rights, alone: Rights) -> Gap:
    groups = np.asarray(stream.nodes, dtype=np.int64)
    return paired_gap(right.astype(np.float64), alone.astype(np.float64), groups)


def _otherwise(stream: RecordStream, config: PdolConfig, alone: Rights, seed: int) -> str:
    """The advice: the smallest epsilon of `TRIED` with which sharing pays on these records, or to keep apart."""
    if config.gossip is not None or config.sharing.counter == "exact":
        return "keep apart"
    model = replace(config.model, releases_per_version=None)
    tried = [epsilon for epsilon in TRIED if epsilon > config.sharing.epsilon]
    for epsilon in tried:
        larger = replace(config, sharing=replace(config.sharing, epsilon=epsilon), model=model)
        low = _gap(stream, predicted_labels(stream, larger, seed) == stream.rows.labels, alone).low
        if low is not None and low > 0:
            return f"keep apart, or use an epsilon of at least {epsilon:g}, at which sharing pays on these records"
    most = f", as sharing pays at no epsilon up to {tried[-1]:g} on these records" if tried else ""
    return f"keep apart{most}"
