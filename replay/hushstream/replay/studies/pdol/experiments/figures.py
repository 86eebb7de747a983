"""Plays the figures of the paper with its form: they show the effect of its noise, and no guarantee.

The paper names neither its data nor its steps. Here the world is TMC2007, one label against the rest, and the step is
12 divided by the root of the round's number. Wherever the gradient is taken at a node's own parameters, the rows say
NOT PRIVATE AS STATED and give the true epsilon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hushstream.replay.bench.rows import BenchRow, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.pdol.experiments.gossip_play import as_printed, play_gossip, without_noise
from hushstream.replay.studies.pdol.runs import NODES, PAPER, columns, gossip_config, mean_of, rising, step_counter
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.replay.studies.pdol.worlds.streams import sparse_synthetic, tmc_binary
from hushstream.systems.pdol.configuration import GRAPHS
from hushstream.systems.pdol.guarantee import epoch_guarantee

EPSILON, TOPOLOGY = "pdol-fig-epsilon", "pdol-fig-topology"
SPARSITY, COUNT = "pdol-fig-sparsity", "pdol-fig-nodes"
TITLES = {
    EPSILON: "The paper's form: accuracy and hinge loss against the epsilon that it claims (Figure 2)",
    TOPOLOGY: "The paper's form: the graph makes little difference (Figure 3)",
    SPARSITY: "The paper's form: sparsity against accuracy under noise (Figure 4)",
    COUNT: "The paper's form: accuracy against the number of nodes (Figure 5)",
}
CLAIMS = (0.1, 1.0, 10.0, 100.0, 1000.0)
LASSOS = (0.0, 0.3, 1.0, 3.0, 6.0, 12.0)
NODE_COUNTS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Run:
    """One setting: the number of nodes, the claimed epsilon (None: no noise), and other options."""

    epsilon: float | None
    nodes: int = NODES
    options: dict[str, Any] = field(default_factory=dict)


def epsilon(scale: Scale, progress: Progress | None = None) -> Findings:
    """Figure 2."""
    rows = _play(EPSILON, [Run(claim) for claim in (*CLAIMS, None)], scale, progress)
    losses = [mean_of(rows, "hinge", epsilon_asked=claim) for claim in CLAIMS]
    found = [rising("fall of the hinge loss from one epsilon to the next", [-loss for loss in losses], "hinge loss")]
    return _findings(EPSILON, rows, scale, found)


def topology(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 3, at an epsilon that allows some learning."""
    rows = _play(TOPOLOGY, [Run(1000.0, options={"graph": graph}) for graph in GRAPHS], scale, progress)
    found = [row["accuracy"] for row in rows]
    spread = at_most("accuracy, best graph minus worst", [max(found) - min(found)], "accuracy", 0.015)
    return _findings(TOPOLOGY, rows, scale, [spread])


def sparsity(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 4, with noise and without."""
    runs = [Run(claim, options={"lasso": lasso}) for claim in (100.0, None) for lasso in LASSOS]
    rows = _play(SPARSITY, runs, scale, progress)
    noised = [row["accuracy_last"] for row in rows if row["epsilon_asked"] == 100.0]
    inside = max(noised[1:-1]) - max(noised[0], noised[-1])
    best = BenchRow("best inner sparsity minus better end, epsilon 100", inside, "accuracy", "above 0", inside > 0)
    return _findings(SPARSITY, rows, scale, [best])


def nodes(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figure 5: the same records are dealt to more nodes."""
    runs = [Run(claim, count) for claim in (1000.0, None) for count in NODE_COUNTS]
    # A torus needs two factors and a random graph five nodes; a ring exists for every number of nodes.
    runs = [Run(one.epsilon, one.nodes, {"graph": "ring"}) for one in runs]
    return _findings(COUNT, _play(COUNT, runs, scale, progress), scale, [])


def _play(name: str, runs: Sequence[Run], scale: Scale, progress: Progress | None) -> list[Row]:
    seeds = range(1) if scale.quick else range(3)
    step = step_counter(progress, len(runs) * len(seeds))
    rows = []
    for run in runs:
        played, config = [], None
        for seed in seeds:
            stream = _stream(scale, seed, run.nodes)
            step(f"{name}, epsilon {run.epsilon}, {run.nodes} nodes {run.options or ''}")
            claim = CLAIMS[-1] if run.epsilon is None else run.epsilon
            config = gossip_config(stream, claim, **run.options)
            law = without_noise if run.epsilon is None else as_printed(config)
            played.append(play_gossip(stream, config, seed, law))
        assert config is not None
        noised = {} if run.epsilon is None else privacy_columns(epoch_guarantee(config))
        rows.append(
            {
                "world": stream.name,
                "nodes": config.nodes,
                "graph": config.gossip.graph if config.gossip else "",
                "lasso": config.gossip.lasso if config.gossip else 0.0,
                "epsilon_asked": "none" if run.epsilon is None else run.epsilon,
                "constant": stream.constant,
                **columns("accuracy", [one.accuracy.whole for one in played]),
                **columns("accuracy_last", [one.accuracy.last for one in played]),
                **columns("hinge", [one.hinge for one in played]),
                **columns("zeros", [one.zeros for one in played]),
                **noised,
            }
        )
    return rows


def _stream(scale: Scale, seed: int, count: int) -> RecordStream:
    if scale.quick:
        return sparse_synthetic(records=640, dimension=200, features=20, nodes=count, seed=seed)
    return tmc_binary(nodes=count, seed=seed, data_dir=scale.data_dir)


def _findings(name: str, rows: list[Row], scale: Scale, targets: list[BenchRow]) -> Findings:
    description = Description(
        name,
        TITLES[name],
        PAPER,
        tuple(dict.fromkeys(row["world"] for row in rows)),
        tuple(range(1) if scale.quick else range(3)),
        (
            "Gradients at a node's own parameters, as printed. epsilon_asked is the paper's claim for a "
            "record; epsilon is the true value.",
        ),
    )
    return Findings(description, rows, [] if scale.quick else targets)
