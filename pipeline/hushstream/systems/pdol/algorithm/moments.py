"""Sums of moments: what a leaf holds where records have at most `LARGEST_MOMENTS` features, and the model made of them.

A record (x, y) adds v(x, y) = (y x, c svec(x x')), c = 1.2, with svec the entries of the upper triangle, those off the
diagonal times sqrt 2, so |svec(x x')| = |x|^2. A leaf reads no model, so no release depends on how late a model is.

*Lattice.* Units of 2^-16, each coordinate truncated toward zero, from whole numbers q = 2^12 x alone: y q 2^4;
`_DIAGONAL` q_i^2 / 2^24; `_BESIDE` q_i q_j / 2^24. Both factors are rounded down.

*Sensitivities*, in units of 1, for |x| <= 1:

* Record against null: |v|^2 = |x|^2 + c^2 |x|^4 <= 1 + c^2 = 2.44; truncation never lengthens a vector.
* Record against record, with t = y y' x.x': |v - v'|^2 = |x|^2 + |x'|^2 - 2 t + c^2 (|x|^4 + |x'|^4 - 2 t^2). For any t
  it grows with both norms, so they are 1, and then it is largest at t = -1 / (2 c^2) = -.347: 2 + 2 c^2 + 1 / (2 c^2) =
  5.2273, which is 2.1423 times 2.44. Factors that are rounded down lengthen nothing. Truncation toward zero adds less
  than one unit to the distance in each of n (n + 1) / 2 coordinates, so less than 91 units for n <= 128: (2^16
  sqrt(5.2273) + 91)^2 <= 2.15 (2^16)^2 2.44. (On a lattice of 2^-12 the same bound is 2.19.)
* The other label: |2 y x|^2 <= 4, which is 1.64 times 2.44.

*Model.* With s the noise's deviation of a coordinate of the weighted sums (b, C), C = V l V', e = sqrt(2 n) s / c the
largest eigenvalue of the noise in C: w = V (V' b / (max(l, e / 2) + .3)). It is post-processing of releases.
Eigenvectors differ by machine, so the aggregator publishes the sums, which every machine makes equal, and each node
solves them.

*Prior.* A node goes on from w with its own exact moments, under the precision .3 V diag(l^2 / (l + s^2 + s^2 |w|^2 / (2
c^2))) V', at least `RIDGE` in each direction. This stays at the node.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.pdol.algorithm.rows import Rows
from hushstream.systems.pdol.configuration import LARGEST_MOMENTS, LATTICE_BITS, UNIT

MOMENT_BITS = 16
WEIGHT_BITS = 16
"""Weights of the counters in the published sums are whole numbers of 2^-16."""

C = 1.2
RIDGE = 0.3
"""Regularization (records have norm 1)."""
TRUST = 0.3
"""How much a prior from the published sums counts: less than 1, because other nodes' records may differ."""

_DIAGONAL, _BESIDE = 78_643, 111_218
"""2^16 c, and 2^16 c sqrt 2."""
_PRODUCT_BITS = 2 * LATTICE_BITS
_ROWS_AT_ONCE = 64
_LARGEST_WEIGHT = 1 << 30


@dataclass(frozen=True, slots=True)
class Leaf:
    """What a leaf holds.

    Attributes:
        content: in words.
        cells: number of coordinates.
        unit: the number 1 on its lattice.
        longest: largest L2 norm that a record adds, in lattice units, rounded up.
        apart: squared distance of what two records add, in squares of ``longest``, rounded up.
        largest_bits: a domain's sums stay below two to this power, so that weighted sums fit into 64 bits.
    """

    content: str
    cells: int
    unit: int
    longest: int
    apart: Fraction
    largest_bits: int


def takes_moments(dimension: int) -> bool:
    """Whether leaves hold moments; with more features they hold gradients at the published model."""
    return dimension <= LARGEST_MOMENTS


@lru_cache(maxsize=64)
def leaf_of(dimension: int) -> Leaf:
    """What a leaf holds for records with n features."""
    if not takes_moments(dimension):
        return Leaf("hinge gradients at the published model", dimension, UNIT, UNIT, Fraction(4), 32)
    cells, unit = dimension + dimension * (dimension + 1) // 2, 1 << MOMENT_BITS
    longest = math.isqrt(unit * unit * 244 // 100) + 1
    return Leaf("moments of labelled records", cells, unit, longest, Fraction(215, 100), 36)


@lru_cache(maxsize=8)
def _pairs(dimension: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Both coordinates of each entry of the upper triangle, and its factor."""
    row, column = np.triu_indices(dimension)
    return row, column, np.where(row == column, _DIAGONAL, _BESIDE).astype(np.int64)


def add_moments(leaf: NDArray[np.int64], rows: Rows, dimension: int) -> None:
    """Add the moments of every row to ``leaf``, int64 (n + n (n + 1) / 2,), in place; null rows add 0."""
    first, second, factor = _pairs(dimension)
    for low in range(0, len(rows), _ROWS_AT_ONCE):
        part = rows.part(low, min(low + _ROWS_AT_ONCE, len(rows)))
        dense = np.zeros((len(part), dimension), dtype=np.int64)
        dense[np.repeat(np.arange(len(part)), part.lengths), part.indices] = part.values
        leaf[:dimension] += (part.labels @ dense) << (MOMENT_BITS - LATTICE_BITS)
        found = dense[:, first] * dense[:, second] * factor
        found += (found >> 63) & ((1 << _PRODUCT_BITS) - 1)
        leaf[dimension:] += (found >> _PRODUCT_BITS).sum(axis=0)


class Solved(NamedTuple):
    """A linear model, and how much is known of it.

    Attributes:
        weights: int32 (n,), in units of 2^-12.
        precision: float64 (n, n), of a prior around the weights; None if nothing is known of it.
    """

    weights: NDArray[np.int32]
    precision: NDArray[np.float64] | None = None


def solve(sums: NDArray[np.int64], deviation: float, dimension: int) -> Solved:
    """The model of weighted sums of moments.

    Args:
        sums: int64 (n + n (n + 1) / 2,), in units of 2^-32.
        deviation: of the noise of a coordinate, in the same units.
        dimension: n.
    """
    unit = float(1 << (MOMENT_BITS + WEIGHT_BITS))
    row, column, _ = _pairs(dimension)
    moments, spread = sums / unit, deviation / unit
    second = np.zeros((dimension, dimension))
    second[row, column] = moments[dimension:] / np.where(row == column, C, C * math.sqrt(2))
    second = second + np.triu(second, 1).T
    sizes, vectors = np.linalg.eigh(second)
    edge = math.sqrt(2 * dimension) * spread / C
    kept = np.maximum(sizes, edge / 2)
    weights = vectors @ ((vectors.T @ moments[:dimension]) / (kept + RIDGE))
    noise = spread**2 * (1 + float(weights @ weights) / (2 * C * C))
    known = np.maximum(TRUST * kept**2 / np.maximum(kept + noise, 2.0**-60), RIDGE)
    whole = np.clip(np.rint(weights * UNIT), -_LARGEST_WEIGHT, _LARGEST_WEIGHT).astype(np.int32)
    return Solved(whole, vectors * known @ vectors.T)
