"""Graphs over which nodes exchange parameters, and the weights for mixing them.

Weights are whole numbers of 2^-20 (Metropolis, Hastings): a_ij = 1 / (1 + max(degree i, degree j)) rounded down for
neighbours, and the rest to one for the node itself. They are symmetric and rows sum exactly to one, so the matrix is
exactly doubly stochastic.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.configuration import GossipConfig, GraphName
from hushstream.systems.pdol.errors import BadGraph

MIXING_BITS = 20
WHOLE = 1 << MIXING_BITS
REGULAR = 4
"""Neighbours of each node of the random graph."""

_TRIES = 1_000


def mixing_of(gossip: GossipConfig, nodes: int) -> NDArray[np.int64]:
    """The checked weights of a configuration, int64 (M, M) in units of 2^-20.

    Raises:
        BadGraph: there is no such graph of so many nodes.
    """
    weights = metropolis(adjacency_of(gossip.graph, nodes, gossip.graph_seed))
    require_mixing(weights)
    return weights


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


def require_mixing(weights: NDArray[np.int64]) -> None:
    """Refuse weights with which nodes would not converge to the mean.

    Raises:
        BadGraph: not square, negative, not doubly stochastic, or not connected.
    """
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise BadGraph(f"mixing weights: expected a square matrix, got shape {weights.shape}")
    if (weights < 0).any():
        raise BadGraph("mixing weights: expected no negative one")
    if (weights.sum(axis=0) != WHOLE).any() or (weights.sum(axis=1) != WHOLE).any():
        raise BadGraph("mixing weights: expected rows and columns that sum to one, got others")
    reached = np.zeros(len(weights), dtype=bool)
    reached[0] = True
    while True:
        further = reached | (weights[reached] > 0).any(axis=0)
        if (further == reached).all():
            break
        reached = further
    if not reached.all():
        raise BadGraph(f"graph: expected a connected one, got {int(reached.sum())} of {len(reached)} nodes in reach")


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
    try:
        require_mixing(metropolis(graph))
    except BadGraph:
        return False
    return True


def _symmetric(nodes: int, edges: list[tuple[int, int]]) -> NDArray[np.bool_]:
    graph = np.zeros((nodes, nodes), dtype=bool)
    for first, second in edges:
        if first != second:
            graph[first, second] = graph[second, first] = True
    return graph
