"""The form of the paper (Li et al. 2016, Algorithm 1), in whole numbers: mirror descent, Lasso step, gossip, Laplace.

At round t (from 1) a node holds theta_t and has sent theta~_t = theta_t + noise.

    w_t = soft(theta, alpha_t lambda)         theta its own theta_t (``own``, line 6 as printed) or theta~_t (``sent``)
    predict sign(w_t . x);  g = -y x where y w_t . x < 1, else 0
    theta_(t+1) = sum_j a_ij theta~_t^j - alpha_t g;  send theta~_(t+1) = theta_(t+1) + Lap(2 alpha_t sqrt(n) / epsilon)

Parameters are whole numbers of 2^-20, so the noised values are on the lattice, too. alpha_t g is truncated toward zero,
coordinate by coordinate, so its L1 norm is at most alpha_t sqrt(n) ||q||_2 2^-12 <= alpha_t sqrt(n): the steps for two
records differ by at most twice that. This is the sensitivity here, rounded up. No deployment runs this form; the
experiments of the paper do.

*What it costs.* theta~ = theta + Lap(2 alpha_t sqrt(n) L / epsilon) for each coordinate, ||g||_2 <= L = 1. Replace the
record of round t at node i. Given equal earlier releases, theta_(t+1) moves by alpha_t (g - g'), in L1 by at most
sqrt(n) alpha_t 2 L. This costs epsilon, as Lemma 1 says. The cost of later rounds, given that theta~_(t+1) is equal on
both sides, depends on where gradients are taken:

* ``sent``: the next gradient is taken at theta~_(t+1), which is equal; the mix holds sent parameters alone; so all that
  follows is equal. Pure epsilon a record, and r epsilon for r records of a person.
* ``own``, as printed (lines 6 to 10): the node's next gradient is taken at its own theta_(t+1), from before the noise,
  which differs. The next record is the same on both sides, so at worst its hinge gradient is 0 on one side and -y x on
  the other: L apart, not 2 L. So theta_(t+2) moves by alpha_(t+1) sqrt(n) L in L1, which costs epsilon / 2; and since
  it differs again, so does each later round, up to T. The record of round t costs epsilon (1 + (T - t) / 2); the first
  record costs the most. "Disjoint data" (Theorem 1) does not help, because the leak is not about later data. With r
  records of a person every round moves by at most one of these two bounds, whatever the rounds before it did: epsilon
  for each of the person's rounds, and epsilon / 2 for each other round after the first of these. So r records cost r
  epsilon + (T - r) epsilon / 2 at worst.
* If a node mixed its own theta_t from before the noise in place of theta~_t^i, a share a_ii of every difference would
  go on into the next round: sum_k a_ii^k epsilon = epsilon / (1 - a_ii). This form is not offered.

*Graphs.* Graphs over which nodes exchange parameters, and the weights for mixing them.

Weights are whole numbers of 2^-20 (Metropolis, Hastings): a_ij = 1 / (1 + max(degree i, degree j)) rounded down for
neighbours, and the rest to one for the node itself. They are symmetric and rows sum exactly to one, so the matrix is
exactly doubly stochastic.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import NodeNoise, truncation_units
from hushstream.engine.configuration import config_digest
from hushstream.privacy.amounts import MICRO, Cost, count_text, epsilon_micro
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.noise import KeyedStream, NoiseAddress, laplace_scale
from hushstream.privacy.promises.promise import Claim, Guarantee, Lifetime
from hushstream.systems.pdol.algorithm.counters import PURPOSE, SYSTEM
from hushstream.systems.pdol.algorithm.rows import BadGraph, PdolError, Rows, admit, sums_by_row
from hushstream.systems.pdol.configuration import LATTICE_BITS

MIXING_BITS = 20
WHOLE = 1 << MIXING_BITS
REGULAR = 4
"""Neighbours of each node of the random graph."""

_TRIES = 1_000


GraphName = Literal["ring", "torus", "random-regular", "complete"]
GRAPHS: tuple[GraphName, ...] = ("ring", "torus", "random-regular", "complete")


@dataclass(frozen=True, slots=True)
class GossipConfig:
    """A run of the paper's form.

    Attributes:
        nodes: M.
        dimension: n, the features of a record.
        epsilon: what the paper claims for a record.
        rounds: T, records of a node.
        graph: ring, torus, random-regular (4 neighbours each) or complete.
        graph_seed: seed of the random graph.
        step: alpha_1; alpha_t = step / sqrt(t), up to the next eighth of an octave.
        lasso: lambda; weights below alpha_t lambda are zero.
        gradient_at: own (a node predicts and takes its gradient at its own parameters before the noise, as the paper
            prints it) or sent (at the parameters that it sent).
    """

    nodes: int
    dimension: int
    epsilon: float
    rounds: int
    graph: GraphName = "torus"
    graph_seed: int = 0
    step: float = 12.0
    lasso: float = 0.0
    gradient_at: Literal["own", "sent"] = "own"


def mixing_of(config: GossipConfig) -> NDArray[np.int64]:
    """The weights of a configuration, int64 (M, M) in units of 2^-20.

    Raises:
        BadGraph: there is no such graph of so many nodes.
    """
    return metropolis(adjacency_of(config.graph, config.nodes, config.graph_seed))


def adjacency_of(graph: GraphName, nodes: int, seed: int = 0) -> NDArray[np.bool_]:
    """The adjacency matrix, bool (M, M), symmetric, without loops.

    Raises:
        BadGraph: there is no such graph of so many nodes.
    """
    if nodes < 2:
        raise BadGraph(f"graph: expected at least 2 nodes, got {nodes}")
    if graph == "complete":
        return ~np.eye(nodes, dtype=bool)
    if graph == "ring":
        return _symmetric(nodes, [(node, (node + 1) % nodes) for node in range(nodes)])
    if graph == "torus":
        return _torus(nodes)
    return _regular(nodes, seed)


def metropolis(adjacency: NDArray[np.bool_]) -> NDArray[np.int64]:
    """See the module's docstring; int64 (M, M)."""
    degree = adjacency.sum(axis=1)
    largest = np.maximum(degree[:, None], degree[None, :])
    weights = np.where(adjacency, WHOLE // (1 + largest), 0).astype(np.int64)
    weights[np.diag_indices(len(weights))] = WHOLE - weights.sum(axis=1)
    return weights


def _torus(nodes: int) -> NDArray[np.bool_]:
    height = next(size for size in range(math.isqrt(nodes), 0, -1) if nodes % size == 0)
    width = nodes // height
    if height < 2:
        raise BadGraph(f"torus: expected a number of nodes with two factors above 1, got {nodes}")
    edges = []
    for node in range(nodes):
        row, column = divmod(node, width)
        edges += [(node, row * width + (column + 1) % width), (node, (row + 1) % height * width + column)]
    return _symmetric(nodes, edges)


def _regular(nodes: int, seed: int) -> NDArray[np.bool_]:
    """Four stubs for each node, paired at random until the graph is connected without loops and double edges."""
    if nodes <= REGULAR:
        raise BadGraph(
            f"random-regular: expected more than {REGULAR} nodes, for {REGULAR} neighbours each, got {nodes}"
        )
    draw = np.random.Generator(np.random.Philox(key=seed))
    for _ in range(_TRIES):
        graph = _paired(nodes, draw)
        if graph is not None and _connected(graph):
            return graph
    raise BadGraph(f"random-regular: expected to find one of {nodes} nodes, got none in {_TRIES} tries")


def _paired(nodes: int, draw: np.random.Generator) -> NDArray[np.bool_] | None:
    """One try: pair stubs in random order, and shuffle unpaired ones again while that helps."""
    graph = np.zeros((nodes, nodes), dtype=bool)
    stubs = np.repeat(np.arange(nodes), REGULAR)
    while len(stubs):
        shuffled, left = draw.permutation(stubs), []
        for first, second in shuffled.reshape(-1, 2).tolist():
            if first == second or graph[first, second]:
                left += [first, second]
            else:
                graph[first, second] = graph[second, first] = True
        if len(left) == len(stubs):
            return None
        stubs = np.array(left, dtype=np.int64)
    return graph


def _connected(graph: NDArray[np.bool_]) -> bool:
    """Whether walks from the first node reach every node."""
    reached = np.eye(1, len(graph), dtype=bool)[0]
    for _ in range(len(graph)):
        reached |= graph[reached].any(axis=0)
    return bool(reached.all())


def _symmetric(nodes: int, edges: list[tuple[int, int]]) -> NDArray[np.bool_]:
    graph = np.zeros((nodes, nodes), dtype=bool)
    for first, second in edges:
        if first != second:
            graph[first, second] = graph[second, first] = True
    return graph


PARAMETER_BITS = 20
MECHANISM = "perturbed parameters"
_MARGIN = 1 << (PARAMETER_BITS + LATTICE_BITS)


def step_of(config: GossipConfig, round_number: int) -> int:
    """alpha_t in units of 2^-20, at least one: step / sqrt(t), up to the next eighth of an octave.

    So there are few scales of noise, and each needs one table. Square roots are the same on every machine.
    """
    eighths = (round_number**4).bit_length() - 1
    factor = math.sqrt(math.sqrt(math.sqrt(2.0**-eighths)))
    return max(1, round(config.step * factor * (1 << PARAMETER_BITS)))


def sensitivity_of(config: GossipConfig, round_number: int) -> int:
    """2 alpha_t sqrt(n) in units of 2^-20, rounded up."""
    return 2 * (math.isqrt(step_of(config, round_number) ** 2 * config.dimension - 1) + 1)


def noise_law(config: GossipConfig, round_number: int) -> NodeNoise:
    """The law of the noise on one coordinate of the parameters that are sent after a round."""
    return NodeNoise("laplace", *laplace_scale(config.epsilon, sensitivity_of(config, round_number)))


def gossip_address(config: GossipConfig, nonce: bytes, node: int, sent: int) -> NoiseAddress:
    """The noise address of a node's parameters after round ``sent``."""
    return NoiseAddress(
        purpose=PURPOSE,
        deployment="experiment",
        genesis_nonce=nonce,
        system=SYSTEM,
        mechanism=MECHANISM,
        parameters={},
        config_digest=config_digest(config),
        epoch=0,
        window=sent,
        cell=node,
    )


def draw_noise(
    law: NodeNoise, keys: Sequence[Key], addresses: Sequence[NoiseAddress], dimension: int
) -> NDArray[np.int64]:
    """The noise of several nodes' parameters after a round, int64 (nodes, n), in one pass.

    Args:
        law: `noise_law` of the round.
        keys: of the nodes.
        addresses: of their parameters.
        dimension: n.
    """
    streams = [KeyedStream(key, address) for key, address in zip(keys, addresses, strict=True)]
    return law.draw(streams, dimension)


def gossip_epsilon(config: GossipConfig, records: int = 1) -> Fraction:
    """The true epsilon of a number of records of one person at one node; see the module."""
    claimed = Fraction(epsilon_micro(config.epsilon), MICRO)
    if config.gradient_at == "sent":
        return records * claimed
    # The worst case begins in round 1: each round of the person costs epsilon, and each other round half of it.
    count = min(records, config.rounds)
    return claimed * (count + Fraction(config.rounds - count, 2))


def gossip_guarantee(config: GossipConfig) -> Guarantee:
    """The true guarantee of one record in a run, and the paper's claim beside it where that does not hold."""
    micro, own = epsilon_micro(gossip_epsilon(config)), config.gradient_at == "own"
    draws = (config.rounds if own else 1) * config.dimension
    # The delta of the noise tables, for all draws of one node that the record may move.
    one = Cost(micro, truncation_units(draws * noise_law(config, 1).truncation, micro))
    return Guarantee(
        mechanism=f"parameters sent over a {config.graph} graph of {count_text(config.nodes, 'node')} for "
        f"{count_text(config.rounds, 'round')},"
        f" each with Laplace noise of scale 2 alpha_t sqrt(n) / {config.epsilon:g} on each coordinate;"
        f" gradients at a node's {'own' if own else 'sent'} parameters",
        relation="replace-one: neighbours differ in one record of one node, any two of norm at most 1",
        unit="one record",
        cost=one,
        replace_one=one,
        lifetime=Lifetime(1, 1, one, one),
        sensitivity=2,
        norm="L2 distance of the gradients of two records; in L1 sqrt(n) times as much",
        zone="edge",
        deployment="hosted",
        truncation_units=one.delta_units,
        private_as_stated=not own,
        claimed=Claim(epsilon_micro(config.epsilon), "0", "Li et al. 2016, Theorem 1") if own else None,
        not_protected=("what holds for the population, and what follows from it for anyone",),
        any_content=True,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a record: the predicted label, and the hinge loss of the score."""

    predicted: int
    loss: float


class GossipNode:
    """One node. Its own parameters are as sensitive as its records."""

    def __init__(self, node: int, mixing: NDArray[np.int64], config: GossipConfig) -> None:
        """Begin before the first record.

        Args:
            node: which row of ``mixing``.
            mixing: int64 (M, M), weights in units of 2^-20 (`mixing_of`).
            config: the run.
        """
        self.node = node
        self.round = 1
        self._gossip = config
        self._neighbours = np.flatnonzero(mixing[node])
        self._weights = mixing[node, self._neighbours]
        self._place = {int(neighbour): place for place, neighbour in enumerate(self._neighbours)}
        dimension = config.dimension
        self._known = np.zeros((len(self._neighbours), dimension), dtype=np.int64)
        self._own = np.zeros(dimension, dtype=np.int64)

    def on_parameters(self, neighbour: int, values: NDArray[np.int64]) -> None:
        """Keep the parameters that a neighbour, or this node, sent after the last round."""
        self._known[self._place[neighbour]] = values

    def step(self, rows: Rows, noise: NDArray[np.int64]) -> tuple[Seen, NDArray[np.int64]]:
        """Predict one record, learn from it, and return the noised parameters to send.

        Args:
            rows: one slot; one that breaks a bound counts as null.
            noise: int64 (n,), of this node and round.

        Raises:
            PdolError: not one slot, or the last round is over.
        """
        seen, own = self._next(rows)
        sent = own + noise
        self._go_on(own, sent)
        return seen, sent

    def follow(self, rows: Rows, sent: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take a round whose parameters were already sent, as an attacker does for the other hypothesis.

        Returns:
            theta_(t+1) before its noise: as sensitive as the records, int64 (n,).
        """
        own = self._next(rows)[1]
        self._go_on(own, sent)
        return own

    def mixed(self) -> NDArray[np.int64]:
        """sum_j a_ij theta~_t^j: the sent parameters of the neighbours and of this node."""
        return np.asarray((self._weights @ self._known) >> MIXING_BITS)

    def _go_on(self, own: NDArray[np.int64], sent: NDArray[np.int64]) -> None:
        self._own = own
        self.on_parameters(self.node, sent)
        self.round += 1

    def _next(self, rows: Rows) -> tuple[Seen, NDArray[np.int64]]:
        if len(rows) != 1 or self.round > self._gossip.rounds:
            raise PdolError(f"gossip: expected one slot in one of {self._gossip.rounds} rounds, got {len(rows)}")
        slot = admit(rows, len(self._own))[0]
        alpha = step_of(self._gossip, self.round)
        score, label = self._score(slot, alpha), int(slot.labels[0])
        mixed = self.mixed()
        if label * score < _MARGIN:
            moved = np.abs(alpha * slot.values) >> LATTICE_BITS
            mixed[slot.indices] += label * np.sign(slot.values) * moved
        return Seen(1 if score > 0 else -1, max(0.0, 1.0 - label * score / _MARGIN)), mixed

    def weights(self) -> NDArray[np.int64]:
        """w_t, int64 (n,) in units of 2^-20."""
        return self._soft(self._source(), step_of(self._gossip, self.round))

    def _score(self, slot: Rows, alpha: int) -> int:
        weights = self._soft(self._source()[slot.indices], alpha)
        return int(sums_by_row(weights * slot.values, slot.indptr)[0])

    def _soft(self, values: NDArray[np.int64], alpha: int) -> NDArray[np.int64]:
        least = round(self._gossip.lasso * alpha)
        return np.asarray(np.sign(values) * np.maximum(np.abs(values) - least, 0))

    def _source(self) -> NDArray[np.int64]:
        """The parameters at which the gradient is computed."""
        if self._gossip.gradient_at == "own":
            return self._own
        sent: NDArray[np.int64] = self._known[self._place[self.node]]
        return sent
