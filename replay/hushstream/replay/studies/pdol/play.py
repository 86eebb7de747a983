"""Plays a stream through the sound form: slots go to domains, releases to the aggregate, versions back.

Domains follow the order of the stream: a domain releases as soon as its leaf is full, and a version is published as
soon as the aggregate has enough releases. The stages are those of `hushstream.systems.pdol`, with keyed noise.

*Deployment.* Plays the closed loop of PDOL: records are predicted, then their labels are sent, in phases.

Within a phase the records of a domain come one after the other, each predicted before its label is sent; domains run at
the same time. A record waits for the model of the phase before (`after_phase`). So the predictions do not depend on
which domain is faster, and the direct runner and a stream give the same ones.

*Report.* Accuracy compared with nodes alone, the guarantee, and the result of verify. Exact accuracy is a figure on
content. It exists for public data only (CONTRIBUTING.md, rule 11), and a replayed world is public.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hushstream.agents.worker.deployment import parse_as, prepare, written
from hushstream.client.logs import EventLog
from hushstream.client.records import RecordClient
from hushstream.engine.configuration import LARGEST_EPSILON
from hushstream.engine.declare.declaration import System
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES
from hushstream.replay.catalogue import hint, seeded_world
from hushstream.replay.checks import PlayOptions, merged_values, run_fields
from hushstream.replay.report.parts import paired, ratio
from hushstream.replay.report.payoff import Gap, Payoff, paired_gap
from hushstream.replay.report.replayed import Column, RunCurve, RunResult, RunRows
from hushstream.replay.runners import playing
from hushstream.replay.runners.playing import Recording, deployed
from hushstream.replay.runners.to_end import run_to_end
from hushstream.replay.studies.pdol.worlds import RecordStream
from hushstream.replay.study import Progress
from hushstream.replay.worlds.draws import Draws
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.counters import Counters, NodeRelease, NodeState, counter_address, plan_of
from hushstream.systems.pdol.algorithm.local import ALONE, EXPERTS, SHOWN, VOTES, NodePredictors
from hushstream.systems.pdol.algorithm.rows import predictions, scores
from hushstream.systems.pdol.configuration import PdolConfig, PredictionConfig, RecordConfig, SharingConfig, pdol_digest
from hushstream.systems.pdol.guarantee import PdolSystem

LAST_QUARTER = 0.75
DELTA = 1e-6
HORIZON = 32


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The share of labels that were predicted correctly before they were seen.

    Attributes:
        whole: over the whole stream.
        last: over its last quarter.
    """

    whole: float
    last: float


@dataclass(frozen=True, slots=True)
class Played:
    """The outcome of a run.

    Attributes:
        released: accuracy of the published model.
        node: accuracy of what the nodes showed; None where nodes did not predict.
        experts: accuracy of each of `EXPERTS` at the nodes, and of nodes that keep apart (``alone``); empty where nodes
            did not predict.
        zeros: share of weights that are zero in the last version.
        versions: how many versions were published.
    """

    released: Accuracy
    node: Accuracy | None
    experts: dict[str, Accuracy]
    zeros: float
    versions: int


def accuracy(right: npt.NDArray[np.bool_]) -> Accuracy:
    """Compute the accuracy from all predictions in order."""
    return Accuracy(float(right.mean()), float(right[int(LAST_QUARTER * len(right)) :].mean()))


def judged(stream: RecordStream, said: npt.NDArray[np.int8]) -> Accuracy:
    """The accuracy of predictions of all records of a stream, int8 (m,)."""
    return accuracy(said == stream.rows.labels)


def open_domains(config: PdolConfig, seed: int) -> list[NodeState]:
    """Every domain before its first slot, each with its own key that follows from ``seed``."""
    digest, plan = pdol_digest(config), plan_of(config.sharing, config.records.dimension)
    silent = config.sharing.counter == "exact"
    domains = []
    for domain in range(config.domains):
        address = counter_address(config, digest, bytes(NONCE_BYTES), 0, domain, 0)
        counters = Counters(plan, seeded_key(seed, f"domain-{domain}"), address, config.records.dimension, silent)
        domains.append(NodeState(domain, counters, config.slots_of(domain)))
    return domains


def play(stream: RecordStream, config: PdolConfig, seed: int) -> Played:
    """Play a stream once; see the module.

    Args:
        stream: the records that arrive.
        config: configuration of the sound form.
        seed: seed of the keys.
    """
    return _Play(stream, config, seed).run()


def predicted_labels(stream: RecordStream, config: PdolConfig, seed: int) -> npt.NDArray[np.int8]:
    """The predictions at the configured place when a stream is played once, int8 (m,)."""
    played = _Play(stream, config, seed)
    played.run()
    return played.predicted


class _Play:
    def __init__(self, stream: RecordStream, config: PdolConfig, seed: int) -> None:
        self._stream = stream
        self._domains = open_domains(config, seed)
        self._aggregate = Aggregate(config)
        self._model = self._aggregate.model.solved(stream.dimension)
        self._owners = np.array([config.domain_of(node) for node in range(stream.node_count)])[stream.nodes]
        self._waiting: list[list[int]] = [[] for _ in range(config.domains)]
        self._released = np.zeros(len(stream), dtype=np.int8)
        self._said = np.zeros((len(stream), len(VOTES)), dtype=np.int8)
        self._coins = Draws(seed, "guard").generator().random(len(stream))
        self._flushed = 0
        node_mode = config.prediction.place == "node"
        self._predictors = NodePredictors(stream.node_count, stream.dimension) if node_mode else None

    def run(self) -> Played:
        stream = self._stream
        for place, domain in enumerate(self._owners.tolist()):
            self._arrive(place, domain)
        self._flush(len(stream))
        labels = stream.rows.labels
        right = self._said == labels[:, None]
        node = None if self._predictors is None else accuracy(right[:, SHOWN])
        places = {"alone": ALONE} | {name: at for at, name in enumerate(EXPERTS)}
        experts = {} if node is None else {name: accuracy(right[:, at]) for name, at in places.items()}
        zeros = float(np.mean(self._model.weights == 0))
        return Played(accuracy(self._released == labels), node, experts, zeros, self._aggregate.model.version)

    @property
    def predicted(self) -> npt.NDArray[np.int8]:
        """Predictions by the published model or, where that is configured, by the nodes' votes."""
        return self._released if self._predictors is None else self._said[:, SHOWN]

    def _arrive(self, place: int, domain: int) -> None:
        """Keep a record until its leaf is full or the model changes; it is folded with the model at its arrival."""
        waiting = self._waiting[domain]
        waiting.append(place)
        if len(waiting) == self._domains[domain].capacity_left:
            self._fold(domain)
            self._send(self._domains[domain].release(), place + 1)

    def _fold(self, domain: int) -> None:
        places, self._waiting[domain] = np.array(self._waiting[domain], dtype=np.int64), []
        rows, model = self._stream.rows.take(places), self._model.weights
        self._released[places] = predictions(scores(rows, model))
        self._domains[domain].fold(rows, model)

    def _flush(self, end: int) -> None:
        """Fold everything that arrived before ``end`` with the current model, before the next model or at the end."""
        self._predict_at_nodes(self._flushed, end)
        self._flushed = end
        for domain, waiting in enumerate(self._waiting):
            if waiting:
                self._fold(domain)

    def _predict_at_nodes(self, low: int, high: int) -> None:
        """Predict at nodes with one model, first records of all nodes together, as nodes do not affect one another."""
        if self._predictors is None or low == high:
            return
        nodes, rows = self._stream.nodes[low:high], self._stream.rows.part(low, high)
        for now in in_turns(nodes):
            coins = self._coins[low + now]
            self._said[low + now] = self._predictors.step(nodes[now], rows.take(now), self._model.weights, coins)

    def _send(self, release: NodeRelease, end: int) -> None:
        self._aggregate.on_release(release)
        if self._aggregate.due:
            self._flush(end)
            self._model = self._aggregate.publish().solved(self._stream.dimension)
            if self._predictors is not None:
                self._predictors.adopt(self._model)


def alone_labels(stream: RecordStream) -> npt.NDArray[np.int8]:
    """The predictions of nodes that keep apart and learn as well as they can from their own records, int8 (m,)."""
    learners, said = NodePredictors(stream.node_count, stream.dimension), np.zeros(len(stream), dtype=np.int8)
    no_model = np.zeros(stream.dimension, dtype=np.int32)
    for now in in_turns(stream.nodes):
        votes = learners.step(stream.nodes[now], stream.rows.take(now), no_model, np.zeros(len(now)))
        said[now] = votes[:, ALONE]
    return said


def in_turns(nodes: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Indices of records in rounds with at most one record of each node: the first of each, then the second, ..."""
    order = np.argsort(nodes, kind="stable")
    first = np.searchsorted(nodes[order], nodes[order])
    turn = np.empty(len(nodes), dtype=np.int64)
    turn[order] = np.arange(len(nodes)) - first
    yield from np.split(np.argsort(turn, kind="stable"), np.cumsum(np.bincount(turn))[:-1])


def central_labels(stream: RecordStream) -> npt.NDArray[np.int8]:
    """The predictions of the same learner if one node has every record, without privacy, int8 (m,)."""
    return alone_labels(replace(stream, nodes=np.zeros_like(stream.nodes), node_count=1))


def sharing_config(
    stream: RecordStream, epsilon: float | None, *, domains: int | None = None, node: bool = False
) -> PdolConfig:
    """The sound form on a stream: `HORIZON` leaves for each domain; an epsilon of None means no noise.

    The length of a domain's leaves follows from the number of its records: a public count, which `sharing_gain` and the
    weights need too.
    """
    counters = stream.node_count if domains is None else domains
    records = np.bincount(stream.nodes * counters // stream.node_count, minlength=counters)
    sizes = tuple(max(1, -(-int(count) // HORIZON)) for count in records)
    slots = sizes[0] if len(set(sizes)) == 1 else sizes
    kind: Literal["exact", "blt"] = "exact" if epsilon is None else "blt"
    return PdolConfig(
        deployment="experiment",
        nodes=stream.node_count,
        records=RecordConfig(stream.dimension),
        sharing=SharingConfig(kind, 1.0 if epsilon is None else epsilon, DELTA, slots, HORIZON, counters),
        prediction=PredictionConfig("node" if node else "released"),
    )


def shortened(stream: RecordStream, records: int) -> RecordStream:
    """The first ``records`` records of a stream."""
    low = min(records, len(stream))
    return replace(stream, rows=stream.rows.part(0, low), nodes=stream.nodes[:low])


_TIMEOUT_SECONDS = 120.0
_SAMPLE = 16

Rights = NDArray[np.bool_]
"""(n,) which labels were predicted correctly."""


@dataclass(slots=True)
class RecordsPlayed:
    """The outcome of a run.

    Attributes:
        predicted: int8 (m,), before each label.
        versions: int64 (m,), the version of the model behind each prediction.
        seconds: from the first record to the last end of a phase.
        latencies: seconds from request to answer, for a sample of the records.
    """

    predicted: NDArray[np.int8]
    versions: NDArray[np.int64]
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)


class RecordLoop:
    """Plays a stream of records against a deployment."""

    def __init__(
        self, stream: RecordStream, system: PdolSystem, records_per_phase: int, progress: Progress | None = None
    ) -> None:
        """Bind a stream to the deployment of its nodes."""
        self._stream = stream
        self._homes = np.array([system.config.domain_of(node) for node in range(stream.node_count)])[stream.nodes]
        self._phase_records = records_per_phase
        self._progress = progress
        self._done = 0
        self.played = RecordsPlayed(np.zeros(len(stream), dtype=np.int8), np.zeros(len(stream), dtype=np.int64))

    @property
    def phases(self) -> int:
        """The number of phases; the last one may be shorter."""
        return -(-len(self._stream) // self._phase_records)

    async def run(self, log: EventLog) -> RecordsPlayed:
        """Play all phases over a client's log.

        Raises:
            PredictionTimeout: a node's answer or the model of a phase did not come in time.
        """
        started = time.perf_counter()
        async with RecordClient(log, self._stream.node_count, self._stream.dimension) as client:
            for phase in range(self.phases):
                low = phase * self._phase_records
                here = np.arange(low, min(len(self._stream), low + self._phase_records))
                homes = self._homes[here]
                await asyncio.gather(
                    *(self._domain(client, here[homes == home], phase) for home in np.unique(homes).tolist())
                )
                await client.end_phase(phase)
        self.played.seconds = time.perf_counter() - started
        return self.played

    async def _domain(self, client: RecordClient, places: NDArray[np.int64], phase: int) -> None:
        for place in places.tolist():
            await self._interact(client, place, phase)
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, len(self._stream), f"phase {phase + 1} of {self.phases}")

    async def _interact(self, client: RecordClient, place: int, phase: int) -> None:
        stream, event_id, person = self._stream, f"record-{place}", f"person-{place}"
        node = int(stream.nodes[place])
        row = stream.rows.part(place, place + 1)
        asked = time.perf_counter()
        found = await client.predict_slot(event_id, person, node, row, after_phase=phase - 1, timeout=_TIMEOUT_SECONDS)
        if place % _SAMPLE == 0:
            self.played.latencies.append(time.perf_counter() - asked)
        self.played.predicted[place], self.played.versions[place] = found.label, found.model_version
        label = int(stream.rows.labels[place])
        if label:
            await client.label(event_id, person, node, label)


_POINTS = 100
"""Most points of the accuracy curve."""

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


def run_pdol(options: PdolOptions, progress: Progress | None = None) -> RunResult:
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
        loop = RecordLoop(stream, system.core, records_per_phase(config), progress)
        recording = run_to_end(lambda: playing.play(system, place, loop.run))
    return _result(options, stream, system, recording)


def records_per_phase(config: PdolConfig) -> int:
    """How many records a phase has: a leaf of each domain if spread evenly."""
    return sum(config.slots_of(domain) for domain in range(config.domains))


def config_values(options: PdolOptions, stream: RecordStream) -> dict[str, Any]:
    """The configuration that fits a stream, with the values that the caller set."""
    values = {**written(sharing_config(stream, options.epsilon, node=True)), "deployment": "replay"}
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
    return stream if options.records is None else shortened(stream, options.records)


def _result(
    options: PdolOptions, stream: RecordStream, deployed: System, recording: Recording[RecordsPlayed]
) -> RunResult:
    config: PdolConfig = deployed.core.config
    labels = recording.played.predicted, alone_labels(stream), central_labels(stream)
    right, apart, led = (said == stream.rows.labels for said in labels)
    shared, alone, central = map(accuracy, (right, apart, led))
    constant = Accuracy(stream.constant, stream.constant)
    compared = {"shared": shared, "nodes alone": alone, "all at one node, not private": central, "constant": constant}
    return RunResult(
        **run_fields(options, stream.name, deployed, recording, len(stream)),
        title=f"pdol on {stream.name}: {_form(config)}",
        facts={"form": _form(config), "nodes": config.nodes, "counters": config.domains, "records": len(stream)},
        reached=f"{100 * shared.whole:.1f} % of labels are predicted correctly",
        headline=ratio(
            "correct predictions, shared over nodes alone", paired(right.astype(np.float64), apart.astype(np.float64))
        ),
        payoff=payoff(stream, config, right, apart, options.seed),
        rows=RunRows(
            "Share of labels predicted correctly before they were seen.",
            (Column("predicted_by"), Column("whole_stream", ".4f"), Column("last_quarter", ".4f")),
            tuple((name, one.whole, one.last) for name, one in compared.items()),
        ),
        curve=_curve(right, apart),
        remarks=(_room(lead_of(stream, led, apart)),),
    )


def lead_of(stream: RecordStream, led: Rights, alone: Rights) -> Gap:
    """By how much a central learner leads nodes alone in the last quarter: `hushstream plan --lead`.

    Early on it leads by more, but no release comes so early. On the digits of scikit-learn it leads by .11 of all
    labels and .05 of the last quarter, and guarded nodes gain nothing at epsilon 8.

    Args:
        stream: the records.
        led, alone: (n,) whether each predicted each label correctly.
    """
    late = int(LAST_QUARTER * len(stream))
    return paired_gap(led[late:].astype(np.float64), alone[late:].astype(np.float64), stream.nodes[late:])


def _room(lead: Gap) -> str:
    """That lead in words, with its interval over nodes; it is what sharing is after."""
    if lead.low is None or lead.high is None:
        return "One node: a central learner has no more records than it."
    ends = f"{100 * lead.low:+.1f} to {100 * lead.high:+.1f}, 95 % CI over nodes"
    said = f"In the last quarter one node with all records, not private, predicts {100 * lead.value:+.1f} points more"
    said += f" than alone ({ends})"
    return f"{said}: `plan --lead {lead.value:.3f}`." if lead.low > 0 else f"{said}: no lead is shown."


def _form(config: PdolConfig) -> str:
    place = "by the published model" if config.prediction.place == "released" else "by guarded nodes"
    return f"{config.sharing.counter} sums, predicted {place}"


def _curve(right: Rights, alone: Rights) -> RunCurve:
    """Accuracy so far, at up to `_POINTS` points."""
    ends = np.unique(np.linspace(0, len(right), min(len(right), _POINTS) + 1).astype(int))[1:]
    lines = {"shared": right, "nodes alone": alone}
    return RunCurve(
        name="accuracy",
        title="Correct predictions so far",
        caption="Each record is predicted before its label is seen. Nodes alone each learn from their own exact "
        "records.",
        what="Correct predictions so far",
        across="records, all nodes",
        at=tuple(ends.tolist()),
        lines={name: tuple((np.cumsum(one)[ends - 1] / ends).tolist()) for name, one in lines.items()},
    )


TRIED = (2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, LARGEST_EPSILON)
"""Epsilons that are tried on the same records if sharing does not pay, up to the first one at which it pays."""


def payoff(stream: RecordStream, config: PdolConfig, right: Rights, alone: Rights, seed: int) -> Payoff:
    """Shared predictions compared with those of nodes alone; the sample is the nodes.

    Args:
        stream: the records.
        config: configuration of the run.
        right: (n,) whether the run predicted each label correctly.
        alone: (n,) whether nodes alone predicted it correctly.
        seed: seed of the keys of further plays.
    """
    gap = _gap(stream, right, alone)
    pays = gap.low is not None and gap.low > 0
    return Payoff(
        what="share of correct predictions",
        value=float(right.mean()),
        baseline="nodes alone, each with its own learner",
        reference=float(alone.mean()),
        gap=gap,
        units="nodes",
        otherwise="" if pays else _otherwise(stream, config, alone, seed),
    )


def _gap(stream: RecordStream, right: Rights, alone: Rights) -> Gap:
    return paired_gap(right.astype(np.float64), alone.astype(np.float64), stream.nodes)


def _otherwise(stream: RecordStream, config: PdolConfig, alone: Rights, seed: int) -> str:
    """The smallest epsilon of `TRIED` with which sharing pays on these records, or to keep apart."""
    if config.sharing.counter == "exact":
        return "keep apart"
    model = replace(config.model, releases_per_version=None)
    tried = [epsilon for epsilon in TRIED if epsilon > config.sharing.epsilon]
    for epsilon in tried:
        larger = replace(config, sharing=replace(config.sharing, epsilon=epsilon), model=model)
        low = _gap(stream, predicted_labels(stream, larger, seed) == stream.rows.labels, alone).low
        if low is not None and low > 0:
            return (
                f"keep apart, or try epsilon {epsilon:g}: the least at which one draw of noise paid; play other seeds"
            )
    most = f", as no epsilon up to {tried[-1]:g} was shown to pay on these records" if tried else ""
    return f"keep apart{most}"
