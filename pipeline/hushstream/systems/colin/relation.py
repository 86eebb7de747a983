"""The social graph of users, and the relation matrix of a collaborative bandit.

With the N x N relation matrix W the *projected* features of user ``u`` are ``w_u (x) x``, ``w_u`` the u-th row of W.
LinUCB has W = I. CoLin has W with non-negative entries and columns that sum to 1 (Wang et al., DP-CoLin, Section
4.1), while rewards and sensitivities use its rows (Equation 2, Lemma 1). GOBLin has ``W = G^-1/2`` with G = I_N +
the graph's Laplacian (Section 5.2 prints I_d, whose shape does not fit).

The graph and W are public: privacy covers rewards only.

*Lemma.* How wide a confidence must be for a collaborative estimate, with and without noise: alpha by the lemma.

Source: Wang et al., DP-CoLin, Lemmas 2 and 4, corrected. Let rewards be ``x~' theta* + noise``, the noise
conditionally R-sub-Gaussian (R = 1/2 holds for every reward in [0, 1]), ``||theta*||_2 <= S``, ``||x||_2 <= L``, and
``b^ = b + n`` with released noise n. Then ``theta^ - theta* = A^-1 (sum x~ noise - ridge theta* + n)``, so

    ||theta^ - theta*||_A  <=  ||sum x~ noise||_{A^-1} + sqrt(ridge) S + ||n||_{A^-1}.

First term (Abbasi-Yadkori, Pal, Szepesvari 2011, Theorem 1): for all t at once, with probability 1 - delta, at most
``R sqrt(log det(A/ridge) + 2 log(1/delta))``; as the trace of A is ``ridge dN + sum ||x~||^2`` and a determinant is at
most the dN-th power of the mean eigenvalue, ``log det(A/ridge) <= dN log(1 + sum L^2 ||w_u||^2 / (ridge dN))``. The
paper sets R = L = 1, and in Lemma 2 prints ``-2 log(delta)`` outside of the root.

Last term: ``A >= ridge I``, so ``||n||_{A^-1} <= ||n||_2 / sqrt(ridge)``. The paper leaves out the root, which is
right only for ridge >= 1. It then bounds ``||n||_2`` by the bound of Chan, Shi and Song for *one* counter; n has dN
coordinates, and the norm is about sqrt(dN) times that of one. For noise on the *raw* sums, n = M e with
``M = W' (x) I``, and ``||M e||_{A^-1} <= sqrt(k / ridge) ||e||_2`` with k the largest eigenvalue of W W'.

Norms of noise (`gaussian_norm`, `laplace_norm`) hold for one release with probability 1 - delta each; for T releases
together ask for delta / T.

*Textbook.* The collaborative estimator as the paper prints it: A and b of size dN, solved anew whenever they are read.

It is what `hushstream.systems.colin.algorithm.estimator` is checked against, and what is measured beside it. A read
costs (dN)^3, so it is for small N and d.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

from hushstream.learners.exploration import LearnerError
from hushstream.schemas.errors import unreadable

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

    @classmethod
    def read(cls, path: Path, users: Path | None = None) -> SocialGraph:
        """`parse` a UTF-8 file; ``users`` is a file with one name a line, in the order of their nodes.

        Raises:
            RelationError: a file cannot be read, or as for `parse`.
        """
        names = None if users is None else [line.strip() for line in _text(users).splitlines() if line.strip()]
        return cls.parse(_text(path), names)

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


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RelationError(f"expected a readable UTF-8 file at {path}, got {unreadable(error)}") from None


def reward_width(
    relation: Relation,
    dimension: int,
    counts: Sequence[int],
    *,
    ridge: float,
    delta: float,
    norm: float = 1.0,
    deviation: float = 0.5,
    parameter_norm: float = 1.0,
) -> float:
    """The width without noise: the first two terms above.

    Args:
        relation: of N users.
        dimension: d.
        counts: (N,) rows learned of each user.
        ridge: lambda, above 0.
        delta: probability of failure, over all rounds.
        norm: L.
        deviation: R.
        parameter_norm: S, of all dN parameters together.

    Raises:
        LearnerError: a value out of range, or counts of other users.
    """
    if len(counts) != relation.users or min(counts) < 0:
        raise LearnerError(f"expected {relation.users} counts of at least 0, got {len(counts)}")
    _require(ridge=ridge, norm=norm, deviation=deviation, parameter_norm=parameter_norm)
    _require_probability(delta)
    size = dimension * relation.users
    squares = float(np.dot(counts, relation.row_norms() ** 2)) * norm * norm
    log_determinant = size * math.log1p(squares / (ridge * size))
    return deviation * math.sqrt(log_determinant - 2 * math.log(delta)) + math.sqrt(ridge) * parameter_norm


def raw_noise_width(relation: Relation, noise_norm: float, ridge: float) -> float:
    """What noise of ``||e||_2 <= noise_norm`` on the raw sums adds to the width."""
    _require(ridge=ridge)
    return float(np.linalg.norm(relation.matrix, 2)) * noise_norm / math.sqrt(ridge)


def gaussian_norm(deviation: float, coordinates: int, delta: float) -> float:
    """A bound of ``||n||_2`` for independent normal coordinates, with probability 1 - delta.

    ``deviation * (sqrt(m) + sqrt(2 log(1/delta)))``: the norm is 1-Lipschitz in standard normals and its mean is at
    most sqrt(m) (Borell; Tsirelson, Ibragimov, Sudakov).
    """
    _require_probability(delta)
    return deviation * (math.sqrt(coordinates) + math.sqrt(-2 * math.log(delta)))


def laplace_norm(scale: float, nodes: int, coordinates: int, delta: float) -> float:
    """A bound of ``||n||_2`` where each coordinate is a sum of Laplace nodes, with probability 1 - delta.

    For Y a sum of k independent Laplace variables of scale s, and ``|h| s <= 1/sqrt(2)``, the moment generating
    function ``(1 - h^2 s^2)^-k`` is at most ``exp(2 h^2 k s^2)``. With v = max(sqrt(k) s, s sqrt(log(2/p))) and
    ``h = y / (4 v^2)``, Chernoff gives ``P(|Y| > y) <= 2 exp(-y^2 / (8 v^2)) = p`` at ``y = v sqrt(8 log(2/p))`` (Chan,
    Shi, Song 2011, Lemma 2.8). With p = delta / m all m coordinates are within y, and the norm is at most sqrt(m) y.
    It holds for discrete Laplace too: its function is ``1 / (1 - sinh(h/2)^2 / sinh(1/(2s))^2)``, and
    ``sinh(t u) <= t sinh(u)`` for t in [0, 1].

    Args:
        scale: s of one node.
        nodes: k, the most nodes in a release.
        coordinates: m.
        delta: probability of failure.
    """
    _require_probability(delta)
    log_tail = math.log(2 * coordinates / delta)
    spread = scale * math.sqrt(max(nodes, log_tail))
    return math.sqrt(coordinates) * spread * math.sqrt(8 * log_tail)


def _require(**values: float) -> None:
    for name, value in values.items():
        if not 0.0 < value < math.inf:
            raise LearnerError(f"expected a finite {name} above 0, got {value}")


def _require_probability(delta: float) -> None:
    if not 0.0 < delta < 1.0:
        raise LearnerError(f"expected a probability in (0, 1), got {delta}")
