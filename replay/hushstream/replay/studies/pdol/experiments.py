"""The experiments of PDOL: the figures of the paper, and what joining brings.

*The paper's form* is played round by round, with one record per node and round: its figures show the effect of its
noise, and no guarantee. The paper names neither its data nor its steps. Here the world is TMC2007, one label against
the rest, and the step is 12 divided by the root of the round's number. Wherever the gradient is taken at a node's own
parameters, the rows say NOT PRIVATE AS STATED and give the true epsilon.

*Joining* compares the sound form with nodes alone, a central learner and a constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from hushstream.counting.calibration import NodeNoise
from hushstream.engine.declare.plan import Audience, Range
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES
from hushstream.replay.experiments.findings import JOINING_SEEDS, Curve, Findings, Foretold, Scale, experiment
from hushstream.replay.experiments.rows import (
    BenchRow,
    Row,
    at_most,
    beside_alone,
    columns,
    pick,
    privacy_columns,
)
from hushstream.replay.experiments.systems import NAME, Paper, sound_epsilon
from hushstream.replay.studies.pdol.play import (
    DELTA,
    HORIZON,
    LAST_QUARTER,
    Accuracy,
    Played,
    accuracy,
    alone_labels,
    central_labels,
    judged,
    play,
    predicted_labels,
    sharing_config,
)
from hushstream.replay.studies.pdol.worlds import (
    RecordStream,
    dense_synthetic,
    ml_clicks,
    sparse_synthetic,
    tmc_binary,
)
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdol.algorithm.gossip import (
    GRAPHS,
    GossipConfig,
    GossipNode,
    draw_noise,
    gossip_address,
    gossip_guarantee,
    mixing_of,
    noise_law,
)
from hushstream.systems.pdol.algorithm.rows import null_rows
from hushstream.systems.pdol.configuration import (
    PdolConfig,
)
from hushstream.systems.pdol.guarantee import epoch_guarantee
from hushstream.systems.pdol.plan import LEAST_GAIN, plan, sharing_gain

NODES = 64
SOURCE = (
    "Li et al. 2016, Distributed Private Online Learning for Social Big Data Computing over Data Center Networks "
    "(arXiv:1602.06489)"
)


def gossip_config(stream: RecordStream, epsilon: float, **options: Any) -> GossipConfig:
    """The paper's form on a stream, with a round for each record of a node."""
    rounds = -(-len(stream) // stream.node_count)
    return GossipConfig(stream.node_count, stream.dimension, epsilon, rounds, **options)


def rising(name: str, values: Sequence[float], unit: str) -> BenchRow:
    """A target for figures that should rise strictly; the row has the smallest step between neighbours."""
    step = float(np.min(np.diff(values)))
    return BenchRow(name, step, unit, "above 0", step > 0)


def step_counter(progress: Progress | None, total: int) -> Callable[[str], None]:
    """Return a function that counts what is done and reports it."""
    done = 0

    def step(what: str) -> None:
        nonlocal done
        if progress is not None:
            progress(done, total, what)
        done += 1

    return step


@dataclass(frozen=True, slots=True)
class Gossiped:
    """The outcome of a run.

    Attributes:
        accuracy: accuracy of the nodes' predictions.
        hinge: mean hinge loss over the whole stream.
        zeros: share of weights that are zero, mean over nodes at the end.
        rounds: how many rounds there were.
    """

    accuracy: Accuracy
    hinge: float
    zeros: float
    rounds: int


Law = Callable[[int], NodeNoise | None]
"""Round -> the distribution of the noise on one coordinate; None for no noise."""


def as_printed(config: GossipConfig) -> Law:
    """The noise of the paper."""
    return lambda number: noise_law(config, number)


def without_noise(_: int) -> NodeNoise | None:
    """No noise, for reference on public data; it protects no one."""
    return None


def play_gossip(stream: RecordStream, config: GossipConfig, seed: int, law: Law) -> Gossiped:
    """Play a stream once; sent parameters arrive before the next round.

    Nodes that have run out of records (shares differ by one) have null slots.
    """
    mixing = mixing_of(config)
    nodes = [GossipNode(node, mixing, config) for node in range(config.nodes)]
    neighbours = [np.flatnonzero(row) for row in mixing]
    keys = [seeded_key(seed, f"node-{node}") for node in range(config.nodes)]
    queues = [np.flatnonzero(stream.nodes == node) for node in range(config.nodes)]
    shape = (config.nodes, stream.dimension)
    right, losses = np.zeros(len(stream), dtype=bool), np.zeros(len(stream))
    rounds = min(config.rounds, max(len(queue) for queue in queues))
    taken = np.zeros(len(stream), dtype=bool)
    for number in range(1, rounds + 1):
        noise = np.zeros(shape, dtype=np.int64)
        drawn = law(number)
        if drawn is not None:
            addresses = [gossip_address(config, bytes(NONCE_BYTES), node, number) for node in range(config.nodes)]
            noise = draw_noise(drawn, keys, addresses, stream.dimension)
        sent: list[npt.NDArray[np.int64]] = []
        for node, queue in zip(nodes, queues, strict=True):
            place = int(queue[number - 1]) if number <= len(queue) else -1
            row = null_rows(1) if place < 0 else stream.rows.part(place, place + 1)
            seen, values = node.step(row, noise[node.node])
            sent.append(values)
            if place >= 0:
                right[place], losses[place] = seen.predicted == stream.rows.labels[place], seen.loss
                taken[place] = True
        for node in nodes:
            for neighbour in neighbours[node.node]:
                if neighbour != node.node:
                    node.on_parameters(int(neighbour), sent[neighbour])
    zeros = float(np.mean([np.mean(node.weights() == 0) for node in nodes]))
    return Gossiped(accuracy(right[taken]), float(losses[taken].mean()), zeros, rounds)


FIGURES = "pdol-figures"
CLAIMS = (0.1, 1.0, 10.0, 100.0, 1000.0)
LASSOS = (0.0, 0.3, 1.0, 3.0, 6.0, 12.0)
NODE_COUNTS = (4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Run:
    """One setting: its figure, the number of nodes, the claimed epsilon (None: no noise), and other options."""

    part: str
    epsilon: float | None
    nodes: int = NODES
    options: dict[str, Any] = field(default_factory=dict)


RUNS = (
    *(Run("epsilon", claim) for claim in (*CLAIMS, None)),
    # At an epsilon that allows some learning.
    *(Run("topology", 1000.0, options={"graph": graph}) for graph in GRAPHS),
    *(Run("sparsity", claim, options={"lasso": lasso}) for claim in (100.0, None) for lasso in LASSOS),
    # The same records are dealt to more nodes. A torus needs two factors and a random graph five nodes; a ring exists
    # for every number of nodes.
    *(Run("nodes", claim, count, {"graph": "ring"}) for claim in (1000.0, None) for count in NODE_COUNTS),
)


@experiment(
    FIGURES,
    "Correct predictions of the paper's form by epsilon, graph, sparsity and nodes (Figures 2 to 5)",
    SOURCE,
    Curve(
        "The paper's form: correct predictions by claimed epsilon (chance: 0.5)",
        ("accuracy",),
        "epsilon_asked",
        where={"part": "epsilon"},
        log="x",
        suffix="-epsilon",
        label="share of correct predictions",
    ),
    Curve(
        "The paper's form: hinge loss by claimed epsilon",
        ("hinge",),
        "epsilon_asked",
        where={"part": "epsilon"},
        log="xy",
        suffix="-hinge",
        label="mean hinge loss (less is better)",
    ),
    Curve(
        "The paper's form on four graphs",
        ("accuracy",),
        by=("graph",),
        where={"part": "topology"},
        suffix="-topology",
        label="share of correct predictions",
    ),
    Curve(
        "The paper's form: sparsity against accuracy",
        ("accuracy_last",),
        "zeros",
        by=("epsilon_asked",),
        where={"part": "sparsity"},
        suffix="-sparsity",
        label="share of correct predictions, end",
    ),
    Curve(
        "The paper's form against the number of nodes",
        ("accuracy",),
        "nodes",
        by=("epsilon_asked",),
        where={"part": "nodes"},
        log="x",
        suffix="-nodes",
        label="share of correct predictions",
    ),
    data="tmc2007",
)
def run(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play Figures 2 to 5; column ``part`` names the figure of a row."""
    seeds = range(1) if scale.quick else range(3)
    step = step_counter(progress, len(RUNS) * len(seeds))
    rows = []
    for one in RUNS:
        played, config = [], None
        for seed in seeds:
            stream = stream_of(scale, seed, one.nodes)
            step(f"{FIGURES}, epsilon {one.epsilon}, {one.nodes} nodes {one.options or ''}")
            config = gossip_config(stream, CLAIMS[-1] if one.epsilon is None else one.epsilon, **one.options)
            law = without_noise if one.epsilon is None else as_printed(config)
            played.append(play_gossip(stream, config, seed, law))
        assert config is not None
        rows.append(_row(one, stream, config, played))
    settings = (
        "Gradients at a node's own parameters, as printed. epsilon_asked is the paper's claim for a record; epsilon is "
        "the true value.",
    )
    return Findings(rows, [] if scale.quick else targets(rows), _worlds(rows), seeds, settings)


def _worlds(rows: Sequence[Row]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(row["world"] for row in rows))


def _row(run: Run, stream: RecordStream, config: GossipConfig, played: Sequence[Gossiped]) -> Row:
    return {
        "part": run.part,
        "world": stream.name,
        "nodes": config.nodes,
        "graph": config.graph,
        "lasso": config.lasso,
        "epsilon_asked": "none" if run.epsilon is None else run.epsilon,
        "constant": stream.constant,
        **columns("accuracy", [one.accuracy.whole for one in played]),
        **columns("accuracy_last", [one.accuracy.last for one in played]),
        **columns("hinge", [one.hinge for one in played]),
        **columns("zeros", [one.zeros for one in played]),
        **({} if run.epsilon is None else privacy_columns(gossip_guarantee(config))),
    }


def targets(rows: Sequence[Row]) -> list[BenchRow]:
    """The targets of Figures 2 to 4."""
    losses = [float(pick(rows, part="epsilon", epsilon_asked=claim)["hinge"]) for claim in CLAIMS]
    graphs = [row["accuracy"] for row in rows if row["part"] == "topology"]
    noised = [row["accuracy_last"] for row in rows if (row["part"], row["epsilon_asked"]) == ("sparsity", 100.0)]
    inside = max(noised[1:-1]) - max(noised[0], noised[-1])
    return [
        rising("fall of the hinge loss from one epsilon to the next", [-loss for loss in losses], "hinge loss"),
        at_most("accuracy, best graph minus worst", [max(graphs) - min(graphs)], "accuracy", 0.015),
        BenchRow("best inner sparsity minus better end, epsilon 100", inside, "accuracy", "above 0", inside > 0),
    ]


def stream_of(scale: Scale, seed: int, count: int = NODES) -> RecordStream:
    """The records that the paper's form is played on."""
    if scale.quick:
        return sparse_synthetic(records=640, dimension=200, features=20, nodes=count, seed=seed)
    return tmc_binary(nodes=count, seed=seed, data_dir=scale.data_dir)


EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
World = Callable[[int, str | None, int], RecordStream]


def _tmc(label: str) -> World:
    return lambda seed, data, nodes: tmc_binary(label=label, nodes=nodes, seed=seed, data_dir=data)


def _clicks(seed: int, data: str | None, nodes: int) -> RecordStream:
    return ml_clicks(nodes=nodes, seed=seed, data_dir=data)


def _synthetic(records: int) -> World:
    return lambda seed, data, nodes: sparse_synthetic(records=records, nodes=nodes, seed=seed)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the study: a world, and the variants that are played on it."""

    part: str
    world: str
    make: World
    epsilons: tuple[float | None, ...]
    nodes: int = NODES
    domains: int | None = None

    def at_nodes(self, epsilon: float | None) -> bool:
        """Whether nodes also predict for themselves, which takes most of the time; only two epsilons have it."""
        return self.part in ("epsilon", "records", "nodes") and epsilon in (1.0, 8.0)


def run_sharing(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid of worlds, epsilons and nodes."""
    seeds = JOINING_SEEDS[:1] if scale.quick else JOINING_SEEDS
    settings = _settings(scale)
    step = step_counter(progress, sum(len(one.epsilons) for one in settings) * len(seeds))
    rows = [row for one in settings for row in _rows(one, seeds, scale.data_dir, scale.quick, step)]
    return Findings(
        rows,
        [],
        _worlds(rows),
        seeds,
        (
            f"K = {HORIZON} leaves a counter, delta {DELTA:g}, record against null; accuracy of predictions made before"
            " each label.",
            "Alone: each node's own learner, as good as it gets (AdaGrad, exact ridge, recent labels, a stack of them)."
            " Without privacy: the same learner at one node that has all records.",
        ),
    )


def _settings(scale: Scale) -> list[Setting]:
    if scale.quick:
        return [Setting("epsilon", "sparse-synthetic", _synthetic(2_000), (1.0, None), nodes=8)]
    if scale.compared:
        return [Setting("epsilon", "tmc-binary/class19", _tmc("class19"), (1.0, 8.0))]
    nineteen, six, synthetic = _tmc("class19"), _tmc("class06"), _synthetic(100_000)
    return [
        Setting("epsilon", "tmc-binary/class19", nineteen, (*EPSILONS, None)),
        Setting("epsilon", "tmc-binary/class06", six, (1.0, 8.0)),
        Setting("epsilon", "sparse-synthetic", synthetic, (1.0, 2.0, 4.0, 8.0)),
        Setting("epsilon", "ml-clicks", _clicks, (1.0, 8.0)),
        *(Setting("nodes", "tmc-binary/class19", nineteen, (1.0, 8.0), nodes=count) for count in (4, 16)),
        *(Setting("records", "sparse-synthetic", _synthetic(count), (1.0, 8.0)) for count in (25_000, 400_000)),
        Setting("one counter", "tmc-binary/class19", nineteen, (1.0,), domains=1),
    ]


def _rows(
    setting: Setting, seeds: Sequence[int], data: str | None, quick: bool, step: Callable[[str], None]
) -> list[Row]:
    streams = [setting.make(seed, data, setting.nodes) for seed in seeds]
    central = [_central(stream) for stream in streams] if setting.part in ("epsilon", "records") else []
    rows = []
    for epsilon in setting.epsilons:
        played = []
        for seed, stream in zip(seeds, streams, strict=True):
            step(f"{setting.part}, {stream.name}, epsilon {epsilon}")
            config = sharing_config(stream, epsilon, domains=setting.domains, node=setting.at_nodes(epsilon))
            played.append(play(stream, config, seed))
        rows.append(_sharing_row(setting, streams[0], epsilon, played, central))
    return rows


def _sharing_row(
    setting: Setting, stream: RecordStream, epsilon: float | None, played: Sequence[Played], central: Sequence[Accuracy]
) -> Row:
    config = sharing_config(stream, epsilon, domains=setting.domains, node=setting.at_nodes(epsilon))
    row: Row = {
        "part": setting.part,
        "measure": f"{setting.part}: correct predictions",
        "world": stream.name,
        "seeds": len(played),
        "nodes": setting.nodes,
        "domains": config.domains,
        "records_a_node": round(stream.records_per_node),
        "epsilon_asked": "none" if epsilon is None else epsilon,
        "constant": stream.constant,
        **columns("joined", [one.released.whole for one in played]),
        **columns("joined_last", [one.released.last for one in played]),
    }
    if played[0].experts:
        policies = {
            "alone": [one.experts["alone"] for one in played],
            "joined": [one.released for one in played],
            "mixture": [one.node for one in played if one.node is not None],
        } | ({"without_privacy": central} if central else {})
        row |= beside_alone(False, **{name: [one.whole for one in found] for name, found in policies.items()})
        for name, found in policies.items():
            row |= columns(f"{name}_last", [one.last for one in found])
    row |= privacy_columns(epoch_guarantee(config))
    if epsilon is not None:
        # Early records come before any release.
        lead = row["without_privacy_last"] - row["alone_last"] if central and played[0].experts else None
        ahead = sharing_gain(config, stream.records_per_node, stream.private_features, lead)
        row |= {"crossing_records": ahead.crossing, "lead": lead, "forecast": ahead.verdict}
    return row


def foretold(seed: int) -> Foretold:
    """A drawn world, its plan, and what guarded nodes gain over nodes alone in the last quarter of the records.

    4 to 32 nodes, 60 to 300 records each, 5 to 120 features, epsilon from .5 to 8. In half of the worlds nodes are of
    one kind, in the others nodes' own weights make up to .8 of the label's. The lead is measured on another stream of
    the same kind, which is public. Predictions count by the chance of their label, so no luck of labels is in the gain;
    of small worlds up to eight are played, and their gain is the mean.
    """
    draw = Draws(seed, "pdol-foretold").generator()
    nodes, each = int(draw.choice([4, 8, 16, 32])), int(60 * 5 ** draw.random())
    wide, epsilon = int(5 * 24 ** draw.random()), float(0.5 * 16 ** draw.random())
    apart = float(draw.choice([0.0, draw.uniform(0.0, 0.8)]))
    world = partial(dense_synthetic, records=nodes * each, dimension=wide, nodes=nodes, apart=apart)
    config = sharing_config(world(seed=seed)[0], epsilon, node=True)
    seeds = range(seed, seed + 10_000 * min(8, math.ceil(4_000 / (nodes * each))), 10_000)
    leads = [_lead(world(seed=one, part=1)[0]) for one in seeds]
    gains = [_gained(*world(seed=one), config, one) for one in seeds]
    ahead = plan(config, Audience(nodes * each, 1, 365.0, lead=float(np.mean(leads))))
    assert ahead.facts is not None
    return Foretold(
        world=f"{nodes} nodes, {each} records of {wide} features, own weights {apart:.2g}, epsilon {epsilon:.2g}, "
        f"lead {np.mean(leads):.3f}",
        measure="share of correct predictions over nodes alone, last quarter",
        said=Range(**ahead.facts["gain"]),
        beats=ahead.beats,
        gain=float(np.mean(gains)),
        guarantee=epoch_guarantee(config).under_key(True),
        least=LEAST_GAIN,
    )


def _lead(stream: RecordStream) -> float:
    """By how much a central learner leads nodes alone in the last quarter, as a share of correct predictions."""
    return _central(stream).last - judged(stream, alone_labels(stream)).last


def _central(stream: RecordStream) -> Accuracy:
    return judged(stream, central_labels(stream))


def _gained(stream: RecordStream, chances: npt.NDArray[np.float64], config: PdolConfig, seed: int) -> float:
    """The expected share of correct predictions in the last quarter, minus that of nodes alone."""
    late = slice(int(LAST_QUARTER * len(stream)), None)
    ours, alone = (
        np.where(one[late] == 1, chances[late], 1 - chances[late]).mean()
        for one in (predicted_labels(stream, config, seed), alone_labels(stream))
    )
    return float(ours - alone)


CLAIM = Paper(
    system="pdol",
    source=SOURCE,
    claimed_epsilon=8.0,
    claimed_as="δ 0, replace-one; this ε is our choice, its Figures 3 and 4 use 0.1",
    claimed_by="ours",
    audit="pdol-paper",
    fails="its Theorem 1 invokes parallel composition, as rounds have disjoint records. But a node's own parameters "
    "carry a record on from its round t: it moves gradients of all later rounds too, up to T: ε(1 + (T - t)/2). Ours "
    "lets a record into one leaf, read by no later one",
    protects="one record",
    protects_here="one record",
    printed_in_paper="",
    measure="correct predictions",
    better="more is better",
    local_only_is="each node apart",
)


def paper_line(scale: Scale, progress: Progress | None) -> Row:
    """The row in the table of papers: gossip of noised weights as printed, against counters of gradients."""
    seeds = range(1) if scale.quick else range(10)
    streams = [stream_of(scale, seed) for seed in seeds]
    gossip = [gossip_config(stream, CLAIM.claimed_epsilon) for stream in streams]
    true = gossip_guarantee(gossip[0])
    counters = [sharing_config(stream, sound_epsilon(CLAIM.claimed_epsilon, true)) for stream in streams]
    step = step_counter(progress, len(streams))
    printed, reached, alone = [], [], []
    for seed, stream in enumerate(streams):
        step(f"{NAME}, pdol")
        printed.append(play_gossip(stream, gossip[seed], seed, as_printed(gossip[seed])).accuracy.whole)
        reached.append(play(stream, counters[seed], seed).released.whole)
        alone.append(float((alone_labels(stream) == stream.rows.labels).mean()))
    return CLAIM.row(
        f"{streams[0].name}, {NODES} nodes, {len(streams[0]):,} records; ours: the released model",
        true,
        epoch_guarantee(counters[0]),
        published=printed,
        reached=reached,
        local_only=alone,
        constant=[stream.constant for stream in streams],
        random=[0.5] * len(streams),
    )


EXPERIMENTS = (run,)
