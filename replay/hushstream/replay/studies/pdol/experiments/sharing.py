"""Compares the sound form with isolated nodes, a central learner and a constant, and with other ways to add noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from hushstream.counting import Concentrated, NegativeDigitTree, Plan
from hushstream.counting.calibration import NodeNoise
from hushstream.replay.bench.rows import BenchRow, at_least, at_most
from hushstream.replay.experiments.experiment import Scale
from hushstream.replay.experiments.findings import Description, Findings
from hushstream.replay.experiments.rows import Row, privacy_columns
from hushstream.replay.progress import Progress
from hushstream.replay.studies.pdol.experiments.gossip_play import Gossiped, Law, as_printed, play_gossip
from hushstream.replay.studies.pdol.play import NO_FAULTS, Faults, Played, play, play_central
from hushstream.replay.studies.pdol.runs import (
    DELTA,
    HORIZON,
    NODES,
    RATE,
    columns,
    gossip_config,
    mean_of,
    rising,
    sharing_config,
    step_counter,
    within,
)
from hushstream.replay.studies.pdol.worlds.records import RecordStream, Sizes
from hushstream.replay.studies.pdol.worlds.streams import ml_clicks, sparse_synthetic, tmc_binary
from hushstream.systems.pdol.advice import advise
from hushstream.systems.pdol.algorithm.gossip import require_gossip, step_of
from hushstream.systems.pdol.configuration import UNIT, GossipConfig, PdolConfig
from hushstream.systems.pdol.guarantee import epoch_guarantee

SHARING = "pdol-sharing"
SHARING_TITLE = "When private sharing pays: epsilon, nodes and records a node"
FORMS = "pdol-forms"
FORMS_TITLE = "Ways to add noise at equal epsilon: per step, fresh windows, digit tree, BLT, one counter"

SOURCE = "The sound form of PDOL: dual averaging on continual sums (not in the paper)"
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
STEPS = (1.0, 4.0, 12.0)
"""Learning rates that are tried with the forms that add noise at each step; the best one counts."""

World = Callable[[int, str | None, Sizes, int], RecordStream]


def _tmc(label: str) -> World:
    return lambda seed, data, sizes, nodes: tmc_binary(label=label, nodes=nodes, sizes=sizes, seed=seed, data_dir=data)


def _clicks(seed: int, data: str | None, sizes: Sizes, nodes: int) -> RecordStream:
    del sizes  # the number of records follows from the users
    return ml_clicks(nodes=nodes, seed=seed, data_dir=data)


def _synthetic(records: int) -> World:
    return lambda seed, data, sizes, nodes: sparse_synthetic(records=records, nodes=nodes, sizes=sizes, seed=seed)


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of the study: a world, and the variants that are played on it."""

    part: str
    world: str
    make: World
    epsilons: tuple[float | None, ...]
    nodes: int = NODES
    domains: int | None = None
    faults: Faults = NO_FAULTS
    sizes: Sizes = "even"

    def at_nodes(self, epsilon: float | None) -> bool:
        """Whether nodes also predict for themselves, which takes most of the time; only two epsilons have it."""
        return self.part in ("epsilon", "records", "nodes") and epsilon in (1.0, 8.0)


def sharing(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the grid of worlds, epsilons, nodes and faults."""
    seeds = range(1) if scale.quick else range(3)
    settings = _settings(scale.quick)
    step = step_counter(progress, sum(len(one.epsilons) for one in settings) * len(seeds))
    rows = [row for one in settings for row in _rows(one, seeds, scale.data_dir, scale.quick, step)]
    description = Description(
        SHARING,
        SHARING_TITLE,
        SOURCE,
        tuple(dict.fromkeys(row["world"] for row in rows)),
        tuple(seeds),
        (
            f"K = {HORIZON} leaves a counter, delta {DELTA:g}, record against null; accuracy of predictions made before"
            " each label.",
            "Isolated: each node's own AdaGrad. Central: one AdaGrad that sees every record, without privacy.",
        ),
    )
    return Findings(description, rows, [] if scale.quick else _sharing_targets(rows))


def _settings(quick: bool) -> list[Setting]:
    if quick:
        return [Setting("epsilon", "sparse-synthetic", _synthetic(2_000), (1.0, None), nodes=8)]
    nineteen, six, synthetic = _tmc("class19"), _tmc("class06"), _synthetic(100_000)
    alike = Faults(unweighted=True)
    faulty = {
        "late": Faults(late=1),
        "dead": Faults(dead=8),
        "lost": Faults(lost=0.3),
        "byzantine": Faults(byzantine=1),
    }
    return [
        Setting("epsilon", "tmc-binary/class19", nineteen, (*EPSILONS, None)),
        Setting("epsilon", "tmc-binary/class06", six, (1.0, 8.0)),
        Setting("epsilon", "sparse-synthetic", synthetic, (1.0, 2.0, 4.0, 8.0)),
        Setting("epsilon", "ml-clicks", _clicks, (1.0, 8.0)),
        *(Setting(part, "tmc-binary/class19", nineteen, (8.0,), faults=one) for part, one in faulty.items()),
        *(Setting("nodes", "tmc-binary/class19", nineteen, (1.0, 8.0), nodes=count) for count in (4, 16)),
        *(Setting("records", "sparse-synthetic", _synthetic(count), (1.0, 8.0)) for count in (25_000, 400_000)),
        Setting("one counter", "tmc-binary/class19", nineteen, (1.0,), domains=1),
        Setting("zipf", "tmc-binary/class19", nineteen, (1.0,), sizes="zipf"),
        Setting("zipf, unweighted", "tmc-binary/class19", nineteen, (1.0,), faults=alike, sizes="zipf"),
    ]


def _rows(
    setting: Setting, seeds: Sequence[int], data: str | None, quick: bool, step: Callable[[str], None]
) -> list[Row]:
    streams = [setting.make(seed, data, setting.sizes, setting.nodes) for seed in seeds]
    central = [play_central(stream, RATE).whole for stream in streams] if setting.part in ("epsilon", "records") else []
    rows = []
    for epsilon in setting.epsilons:
        played = []
        for seed, stream in zip(seeds, streams, strict=True):
            step(f"{setting.part}, {stream.name}, epsilon {epsilon}")
            config = sharing_config(stream, epsilon, domains=setting.domains, node=setting.at_nodes(epsilon))
            played.append(play(stream, config, seed, setting.faults))
        rows.append(_row(setting, streams[0], epsilon, played, central))
    return rows


def _row(
    setting: Setting, stream: RecordStream, epsilon: float | None, played: Sequence[Played], central: Sequence[float]
) -> Row:
    config = sharing_config(stream, epsilon, domains=setting.domains, node=setting.at_nodes(epsilon))
    row: Row = {
        "part": setting.part,
        "world": stream.name,
        "nodes": setting.nodes,
        "domains": config.domains,
        "records_a_node": round(stream.records_per_node),
        "epsilon_asked": "none" if epsilon is None else epsilon,
        "constant": stream.constant,
        **columns("released", [one.released.whole for one in played]),
        **columns("released_last", [one.released.last for one in played]),
    }
    for name, last in (("isolated", "isolated_last"), ("node", "node_last")):
        found = [one.experts["isolated"] if name == "isolated" else one.node for one in played if one.experts]
        if found:
            row |= columns(name, [one.whole for one in found if one is not None])
            row |= columns(last, [one.last for one in found if one is not None])
    if central:
        row |= columns("central", central)
    row |= {"screened": sum(one.screened for one in played), **privacy_columns(epoch_guarantee(config))}
    if epsilon is not None:
        advice = advise(config, stream.records_per_node, stream.private_features)
        row |= {"crossing_records": advice.crossing, "advice": advice.verdict}
    return row


def _sharing_targets(rows: Sequence[Row]) -> list[BenchRow]:
    nineteen, six = "tmc-binary/class19", "tmc-binary/class06"

    def of(value: str, world: str, epsilon: float | str, part: str = "epsilon") -> float:
        return mean_of(rows, value, part=part, world=world, epsilon_asked=epsilon)

    synthetic = next(row["world"] for row in rows if row["world"].startswith("sparse"))
    at_eight = of("released", nineteen, 8.0)
    ladder = [of("released", nineteen, epsilon) for epsilon in EPSILONS]
    apart = of("released", synthetic, 8.0) - of("isolated", synthetic, 8.0)
    lost = min(row["node"] - row["isolated"] for row in rows if row["part"] == "epsilon" and "node" in row)
    found = [
        within("TMC 19, epsilon 1, released, whole stream", of("released", nineteen, 1.0), 0.785, 0.015),
        within("TMC 19, epsilon 1, released, last quarter", of("released_last", nineteen, 1.0), 0.825, 0.02),
        within("TMC 19, epsilon 8, released, whole stream", at_eight, 0.842, 0.01),
        within("TMC 19, epsilon 8, released, last quarter", of("released_last", nineteen, 8.0), 0.867, 0.012),
        at_least("TMC 19, no noise, released", [of("released", nineteen, "none")], "accuracy", 0.855),
        rising("TMC 19, smallest gain over 0.5 to 16", ladder, "accuracy"),
        within("TMC 06, epsilon 8, released", of("released", six, 8.0), 0.788, 0.01),
        within("synthetic, epsilon 1, released", of("released", synthetic, 1.0), 0.569, 0.025),
        within("synthetic, epsilon 8, released", of("released", synthetic, 8.0), 0.666, 0.025),
        at_least("synthetic, epsilon 8, released over isolated", [apart], "accuracy", 0.04),
        at_least("node mode over isolated, worst of all", [lost], "accuracy", -0.015),
    ]
    for world in (nineteen, six, synthetic):
        gain = of("node", world, 8.0) - of("isolated", world, 8.0)
        found.append(at_least(f"node mode over isolated, epsilon 8, {world}", [gain], "accuracy", 0.015))
    for part in ("dead", "lost"):
        change = abs(of("released", nineteen, 8.0, part) - at_eight)
        found.append(at_most(f"TMC 19, epsilon 8, change by {part}", [change], "accuracy", 0.01))
    gain = of("released", nineteen, 1.0, "zipf") - of("released", nineteen, 1.0, "zipf, unweighted")
    found.append(at_least("TMC 19, nodes of Zipf's sizes, epsilon 1, gain by weights", [gain], "accuracy", 0.02))
    one = of("released", nineteen, 1.0, "one counter")
    found.append(at_most("TMC 19, one counter at epsilon 1 off 64 at 8", [abs(one - at_eight)], "accuracy", 0.01))
    return found


def forms(scale: Scale, progress: Progress | None = None) -> Findings:
    """Play the ways to add noise at epsilon 1 and 8, for a record against null where a form guarantees this."""
    seeds = range(1) if scale.quick else range(3)
    streams = [_forms_stream(scale.quick, seed, scale.data_dir) for seed in seeds]
    epsilons = (8.0,) if scale.quick else (1.0, 8.0)
    total = len(epsilons) * (2 * len(STEPS) + 5) * len(seeds)
    step = step_counter(progress, total)
    rows = []
    for epsilon in epsilons:
        for (name, law), size in product((("per step, Laplace", as_printed), ("per step, Gaussian", _gaussian)), STEPS):
            gossiped = []
            for seed, stream in zip(seeds, streams, strict=True):
                step(f"{name}, epsilon {epsilon:g}")
                config = gossip_config(stream, epsilon, graph="random-regular", gradient_at="sent", step=size)
                gossiped.append(play_gossip(stream, config, seed, law(config)))
            rows.append(_form_row(name, epsilon, gossiped) | {"step": size})
        for name, counter, domains in _COUNTERS:
            played = []
            for seed, stream in zip(seeds, streams, strict=True):
                step(f"{name}, epsilon {epsilon:g}")
                config = sharing_config(stream, epsilon, domains=domains, counter=counter)
                plan = _fresh(config) if name == "fresh windows" else None
                played.append(play(stream, config, seed, plan=plan))
            rows.append(_form_row(name, epsilon, played))
    description = Description(
        FORMS,
        FORMS_TITLE,
        SOURCE,
        (streams[0].name,),
        tuple(seeds),
        (
            f"{streams[0].node_count} nodes, delta {DELTA:g}. Per step: each node sends its parameters with "
            "noise after each record over a random graph of 4 neighbours, with gradients at sent parameters; "
            "Gaussian noise is for record against null.",
        ),
    )
    return Findings(description, rows, [] if scale.quick else _forms_targets(rows))


_COUNTERS = (
    ("fresh windows", "blt", None),
    ("digit tree", "negative-digit", None),
    ("BLT", "blt", None),
    ("one counter", "blt", 1),
)


def _forms_stream(quick: bool, seed: int, data: str | None) -> RecordStream:
    if quick:
        return sparse_synthetic(records=800, dimension=200, features=20, nodes=8, seed=seed)
    return tmc_binary(seed=seed, data_dir=data)


def _fresh(config: PdolConfig) -> Plan:
    """A tree with one level: each leaf has its own noise, and a release has the noise of all leaves so far."""
    budget = Concentrated.for_epsilon(config.sharing.epsilon, DELTA)
    base = 63
    return NegativeDigitTree(
        budget=budget,
        dimension=config.records.dimension,
        sensitivity=UNIT,
        horizon=base // 2,
        base=base,
        nodes_per_block=1,
    )


def _gaussian(config: PdolConfig) -> Law:
    """Noise for the change that a record makes in the next sent parameters, compared with null: alpha_t in L2."""
    gossip: GossipConfig = require_gossip(config)
    budget = Concentrated.for_epsilon(gossip.epsilon, DELTA)

    def law(number: int) -> NodeNoise:
        return budget.noise_for(step_of(gossip, number) ** 2)

    return law


def _form_row(name: str, epsilon: float, played: Sequence[Played] | Sequence[Gossiped]) -> Row:
    found = [one.released if isinstance(one, Played) else one.accuracy for one in played]
    return {
        "form": name,
        "epsilon_asked": epsilon,
        **columns("accuracy", [one.whole for one in found]),
        **columns("accuracy_last", [one.last for one in found]),
    }


def _forms_targets(rows: Sequence[Row]) -> list[BenchRow]:
    found = []
    for epsilon in (1.0, 8.0):
        blt = mean_of(rows, "accuracy", form="BLT", epsilon_asked=epsilon)
        theirs = [row for row in rows if (row["form"], row["epsilon_asked"]) == ("per step, Laplace", epsilon)]
        ahead = blt - max(row["accuracy"] for row in theirs)
        found.append(at_least(f"BLT over the noise of the paper, epsilon {epsilon:g}", [ahead], "accuracy", 0.2))
    one = mean_of(rows, "accuracy", form="one counter", epsilon_asked=1.0)
    eight = mean_of(rows, "accuracy", form="BLT", epsilon_asked=8.0)
    return [*found, at_most("one counter at epsilon 1 off 64 at epsilon 8", [abs(one - eight)], "accuracy", 0.01)]
