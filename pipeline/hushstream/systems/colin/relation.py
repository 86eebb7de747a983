"""The social graph of users, and the relation matrix of a collaborative bandit.

With the N x N relation matrix W the *projected* features of user ``u`` are ``w_u (x) x``, ``w_u`` the u-th row of W.
LinUCB has W = I. CoLin has W with non-negative entries and columns that sum to 1 (Wang et al., DP-CoLin, Section
4.1), while rewards and sensitivities use its rows (Equation 2, Lemma 1). GOBLin has ``W = G^-1/2`` with G = I_N +
the graph's Laplacian (Section 5.2 prints I_d, whose shape does not fit).

The graph and W are public: privacy covers rewards only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import LearnerError

Float64 = npt.NDArray[np.float64]
Algorithm = Literal["linucb", "colin", "goblin"]
Edge = tuple[str, str, float]

_SUM_TOLERANCE = 1e-9


class RelationError(LearnerError):
    """An invalid graph or relation matrix. The message names the line, the users or the row."""


@dataclass(frozen=True, slots=True, eq=False)
class SocialGraph:
    """Users and the weights of their ties.

    Attributes:
        users: N names; a user's place is their *node*.
        weights: (N, N) float64, symmetric, non-negative, zero on the diagonal.
        index: node by name.
    """

    users: tuple[str, ...]
    weights: Float64
    index: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse names and weights that are no graph."""
        if not self.users:
            raise RelationError("graph: expected at least one user, got none")
        index = {name: node for node, name in enumerate(self.users)}
        if len(index) != len(self.users):
            twice = next(name for node, name in enumerate(self.users) if index[name] != node)
            raise RelationError(f"graph: expected each user once, got {twice!r} twice")
        weights = _square(self.weights, "graph")
        if len(weights) != len(self.users):
            raise RelationError(f"graph: expected weights for {len(self.users)} users, got {len(weights)}")
        _refuse_row(~((weights >= 0) & np.isfinite(weights)), "graph", "finite weights of at least 0")
        _refuse_row(weights != weights.T, "graph", "symmetric weights")
        _refuse_row(np.diag(np.diag(weights) != 0), "graph", "no tie of a user to themselves")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "index", index)

    @classmethod
    def of_edges(cls, edges: Iterable[Edge], users: Sequence[str] | None = None) -> SocialGraph:
        """A graph from undirected edges (user, user, weight).

        Args:
            edges: each pair of users at most once, in either order; weights above 0.
            users: all names, in the order of their nodes; None takes those of the edges, sorted.

        Raises:
            RelationError: an unknown user, a tie of a user to themselves, a pair named twice, or a bad weight.
        """
        listed = list(edges)
        if users is None:
            users = sorted({name for edge in listed for name in edge[:2]})
        names = tuple(users)
        index = {name: node for node, name in enumerate(names)}
        weights = np.zeros((len(names), len(names)))
        for number, (one, other, weight) in enumerate(listed, 1):
            _require_edge(number, one, other, weight, index)
            i, j = index[one], index[other]
            if weights[i, j]:
                raise RelationError(f"edge {number}: expected each pair once, got {one!r} and {other!r} again")
            weights[i, j] = weights[j, i] = weight
        return cls(names, weights)

    @classmethod
    def parse(cls, text: str, users: Sequence[str] | None = None) -> SocialGraph:
        """A graph from an edge list, one ``user,user`` or ``user,user,weight`` a line.

        Tabs may stand for commas; empty lines and lines that begin with ``#`` are passed over; weight is 1 if left
        out. Edges are numbered in messages from 1.

        Raises:
            RelationError: a line is something else, or as for `of_edges`.
        """
        edges = [
            _edge_of(number, line)
            for number, line in enumerate(text.splitlines(), 1)
            if line.strip() and not line.lstrip().startswith("#")
        ]
        return cls.of_edges(edges, users)

    def canonical(self) -> bytes:
        """Bytes for a digest: they are equal exactly for equal users, order and weights."""
        rows, columns = np.nonzero(np.triu(self.weights))
        edges = [[int(i), int(j), float(self.weights[i, j])] for i, j in zip(rows, columns, strict=True)]
        return json.dumps([list(self.users), edges], separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True, eq=False)
class Relation:
    """A relation matrix, and the sensitivity of sums under it.

    A reward in [0, 1] for features x with ||x||_2 <= L moves the *projected* sum ``sum (w_u (x) x) r`` by at most
    ``L ||w_u||_2`` in L2 and ``||x||_1 ||w_u||_1`` in L1 (both norms of a Kronecker product are products). It moves
    the *raw* sum ``sum (e_u (x) x) r`` by L in L2 and ``||x||_1`` in L1, whatever the matrix. For d features
    ``||x||_1 <= sqrt(d) L``.

    Attributes:
        algorithm: which bandit it is for.
        matrix: W, (N, N) float64.
    """

    algorithm: Algorithm
    matrix: Float64

    def __post_init__(self) -> None:
        """Refuse a matrix that the algorithm does not allow."""
        matrix = _square(self.matrix, "relation")
        _refuse_row(~np.isfinite(matrix), "relation", "finite entries")
        if self.algorithm == "colin":
            _require_stochastic(matrix)
        elif self.algorithm == "linucb":
            _refuse_row(matrix != np.eye(len(matrix)), "relation", "the identity for linucb")
        elif self.algorithm == "goblin":
            _refuse_row(np.abs(matrix - matrix.T) > _SUM_TOLERANCE, "relation", "a symmetric matrix for goblin")
        else:
            raise RelationError(f"relation: expected linucb, colin or goblin, got {self.algorithm!r}")
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def of(cls, graph: SocialGraph, algorithm: str, self_weight: float = 1.0, tie_weight: float = 1.0) -> Relation:
        """The matrix that an algorithm derives from a graph.

        Args:
            graph: of all users.
            algorithm: linucb, colin or goblin.
            self_weight: a user's tie to themselves, for colin: ``w_ij`` is proportional to the weight of (i, j), and
                ``w_ii`` to this.
            tie_weight: multiplies the graph's weights, for goblin: the larger, the more alike tied users are taken to
                be.

        Raises:
            RelationError: an unknown algorithm, a bad weight, or without a self weight a user who has no tie.
        """
        if algorithm == "linucb":
            return cls("linucb", np.eye(len(graph.users)))
        if algorithm == "goblin":
            if not 0.0 <= tie_weight < math.inf:
                raise RelationError(f"relation: expected a finite tie weight of at least 0, got {tie_weight}")
            return cls.goblin(graph.weights * tie_weight)
        if not 0.0 <= self_weight < math.inf:
            raise RelationError(f"relation: expected a finite self weight of at least 0, got {self_weight}")
        weights = graph.weights + self_weight * np.eye(len(graph.users))
        empty = np.flatnonzero(weights.sum(axis=0) == 0)
        if len(empty):
            raise RelationError(f"relation: expected a tie for every user, got none for {graph.users[empty[0]]!r}")
        return cls(cast("Algorithm", algorithm), weights / weights.sum(axis=0))

    @classmethod
    def goblin(cls, weights: Float64) -> Relation:
        """``G^-1/2`` with G = I_N + Laplacian, from symmetric (N, N) weights with an empty diagonal.

        G has eigenvalues of at least 1, so the root exists and is symmetric.
        """
        graph = SocialGraph(tuple(map(str, range(len(weights)))), weights)
        laplacian = np.diag(graph.weights.sum(axis=0)) - graph.weights
        values, vectors = np.linalg.eigh(np.eye(len(weights)) + laplacian)
        root = (vectors / np.sqrt(values)) @ vectors.T
        return cls("goblin", (root + root.T) / 2)

    @property
    def users(self) -> int:
        """N."""
        return len(self.matrix)

    def row_norms(self, order: Literal[1, 2] = 2) -> Float64:
        """``||w_u||`` of every user, (N,)."""
        norms: Float64 = np.linalg.norm(self.matrix, ord=order, axis=1)
        return norms


def _require_stochastic(matrix: Float64) -> None:
    _refuse_row(matrix < 0, "relation", "entries of at least 0 for colin")
    sums = matrix.sum(axis=0)
    wrong = np.flatnonzero(np.abs(sums - 1.0) > _SUM_TOLERANCE)
    if len(wrong):
        column = int(wrong[0])
        raise RelationError(f"relation: expected columns that sum to 1 for colin, got {sums[column]:g} in {column}")


def _square(matrix: Float64, what: str) -> Float64:
    """A float64 copy that nobody can write, or a refusal."""
    copy = np.array(matrix, dtype=np.float64)
    if copy.ndim != 2 or copy.shape[0] != copy.shape[1] or not len(copy):
        raise RelationError(f"{what}: expected a square matrix, got shape {copy.shape}")
    copy.setflags(write=False)
    return copy


def _refuse_row(wrong: npt.NDArray[np.bool_], what: str, expected: str) -> None:
    rows = np.flatnonzero(wrong.any(axis=1))
    if len(rows):
        raise RelationError(f"{what}: expected {expected}, got another in row {int(rows[0])}")


def _require_edge(number: int, one: str, other: str, weight: float, index: Mapping[str, int]) -> None:
    for name in (one, other):
        if name not in index:
            raise RelationError(f"edge {number}: expected listed users, got {name!r}")
    if one == other:
        raise RelationError(f"edge {number}: expected two users, got {one!r} tied to itself")
    if not 0.0 < weight < math.inf:
        raise RelationError(f"edge {number}: expected a finite weight above 0, got {weight}")


def _edge_of(number: int, line: str) -> Edge:
    fields = [part.strip() for part in line.replace("\t", ",").split(",")]
    if len(fields) not in (2, 3) or not fields[0] or not fields[1]:
        raise RelationError(f"line {number}: expected user,user or user,user,weight, got {len(fields)} fields")
    try:
        weight = float(fields[2]) if len(fields) == 3 else 1.0
    except ValueError:
        raise RelationError(f"line {number}: expected a number for the weight, got something else") from None
    return fields[0], fields[1], weight
