"""How wide a confidence must be for a collaborative estimate, with and without noise: alpha by the lemma.

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
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hushstream.learners.errors import LearnerError
from hushstream.systems.colin.relation import Relation


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
