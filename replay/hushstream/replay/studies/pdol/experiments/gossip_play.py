"""Plays a stream through the paper's form, round by round, with one record per node and round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushstream.counting.calibration import NodeNoise
from hushstream.privacy.keys import seeded_key
from hushstream.privacy.mechanisms.noise import NONCE_BYTES
from hushstream.replay.studies.pdol.play import Accuracy, accuracy
from hushstream.replay.studies.pdol.worlds.records import RecordStream
from hushstream.systems.pdol.algorithm.gossip import GossipNode, draw_noise, gossip_address, noise_law, require_gossip
from hushstream.systems.pdol.algorithm.graphs import mixing_of
from hushstream.systems.pdol.algorithm.rows import null_rows
from hushstream.systems.pdol.configuration import PdolConfig, pdol_digest


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


def as_printed(config: PdolConfig) -> Law:
    """The noise of the paper."""
    gossip, dimension = require_gossip(config), config.records.dimension
    return lambda number: noise_law(gossip, number, dimension)


def without_noise(_: int) -> NodeNoise | None:
    """No noise, for reference on public data; it protects no one."""
    return None


def play_gossip(stream: RecordStream, config: PdolConfig, seed: int, law: Law) -> Gossiped:
    """Play a stream once; sent parameters arrive before the next round.

    Nodes that have run out of records (shares differ by one) have null slots.
    """
    gossip, mixing = require_gossip(config), mixing_of(require_gossip(config), config.nodes)
    nodes = [GossipNode(node, mixing, config) for node in range(config.nodes)]
    neighbours = [np.flatnonzero(row) for row in mixing]
    keys = [seeded_key(seed, f"node-{node}") for node in range(config.nodes)]
    queues = [np.flatnonzero(stream.nodes == node) for node in range(config.nodes)]
    digest, shape = pdol_digest(config), (config.nodes, stream.dimension)
    right, losses = np.zeros(len(stream), dtype=bool), np.zeros(len(stream))
    rounds = min(gossip.rounds, max(len(queue) for queue in queues))
    taken = np.zeros(len(stream), dtype=bool)
    for number in range(1, rounds + 1):
        noise = np.zeros(shape, dtype=np.int64)
        drawn = law(number)
        if drawn is not None:
            addresses = [
                gossip_address(config, digest, bytes(NONCE_BYTES), 0, node, number) for node in range(config.nodes)
            ]
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
                    node.on_parameters(int(neighbour), number, sent[neighbour])
    zeros = float(np.mean([np.mean(node.weights() == 0) for node in nodes]))
    return Gossiped(accuracy(right[taken]), float(losses[taken].mean()), zeros, rounds)
