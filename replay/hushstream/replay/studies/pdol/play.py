"""Plays a stream through the sound form: slots go to domains, releases to the aggregate, versions back.

Domains follow the order of the stream: a domain releases as soon as its leaf is full, and a version is published as
soon as the aggregate has enough releases. The stages are those of `hushstream.systems.pdol`, with keyed noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES
from hushstream.replay.studies.pdol.worlds import RecordStream
from hushstream.replay.worlds.draws import Draws
from hushstream.systems.pdol.algorithm.aggregate import Aggregate
from hushstream.systems.pdol.algorithm.counters import Counters, NodeRelease, NodeState, counter_address, plan_of
from hushstream.systems.pdol.algorithm.local import ALONE, EXPERTS, SHOWN, VOTES, NodePredictors
from hushstream.systems.pdol.algorithm.rows import predictions, scores
from hushstream.systems.pdol.configuration import PdolConfig, pdol_digest

LAST_QUARTER = 0.75


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
