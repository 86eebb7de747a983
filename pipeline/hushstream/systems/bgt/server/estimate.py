"""Computes biases and factors from noised sums. Everything here reads releases and public features alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hushstream.systems.bgt.configuration import UNIT, BgtConfig
from hushstream.systems.bgt.price.sensitivity import deviation_of
from hushstream.systems.bgt.slots import Float64, Int64

_LARGEST_PRIOR = 0.4
"""Largest predicted bias of an item from features and popularity alone."""

_PRIOR_RIDGE = 1.0
_FEW = 10.0
"""Added to counts before a division, because a small count is mostly noise."""

_SHARE = 0.3
"""Mean square of a user's factor relative to the number of users, after the clipping of slots of kind B."""


class ItemSums(NamedTuple):
    """Noised sums of kind A.

    Attributes:
        counts: (I,).
        rest: (I,) sums of residuals.
        deviation: standard deviation of the noise on ``rest``; that on counts is this divided by the weight of a count.
    """

    counts: Float64
    rest: Float64
    deviation: float


@dataclass(frozen=True, slots=True, eq=False)
class Biases:
    """Item biases from releases of kind A.

    Attributes:
        counts: (I,) noised, cut at 0.
        biases: (I,).
    """

    counts: Float64
    biases: Float64


@dataclass(frozen=True, slots=True, eq=False)
class Spectrum:
    """The spectrum of a release of kind B.

    Attributes:
        edge: largest eigenvalue of noise alone.
        largest: (d,) the largest eigenvalues, in falling order.
        factors: (I, k) of the items, from the eigenvalues that count; k may be 0.
    """

    edge: float
    largest: Float64
    factors: Float64


def item_sums(sums: Int64, number: int, config: BgtConfig) -> ItemSums:
    """A release of kind A in units of ratings."""
    counts, rest = sums / UNIT
    return ItemSums(counts / config.release.count_weight, rest, deviation_of(number, "items", config))


def joined(first: ItemSums, second: ItemSums) -> ItemSums:
    """Join two noised copies of the same sums, weighted by their precision."""
    if not first.deviation or not second.deviation:
        return first
    one, other = first.deviation**-2, second.deviation**-2
    share = one / (one + other)
    return ItemSums(
        share * first.counts + (1 - share) * second.counts,
        share * first.rest + (1 - share) * second.rest,
        (one + other) ** -0.5,
    )


def biases_of(sums: ItemSums, features: Float64, config: BgtConfig) -> Biases:
    """Item biases: predictions from popularity and features, corrected by each item's sums by their precision.

    Args:
        sums: the result of `item_sums`.
        features: (I, f) public features of items.
        config: of the deployment.
    """
    counts, rest, deviation = np.maximum(sums.counts, 0.0), sums.rest, sums.deviation
    model = config.model
    known = np.column_stack((np.ones(len(counts)), np.log1p(counts), features))
    columns = counts[:, None] * known
    noise = deviation**2 + counts * model.rating_variance
    # Without noise an item that nobody rated has neither variance nor weight.
    weights = 1.0 / np.maximum(noise + counts**2 * model.bias_variance, 1e-9)
    gram = columns.T @ (weights[:, None] * columns) + _PRIOR_RIDGE * np.eye(columns.shape[1])
    prior = known @ np.linalg.solve(gram, columns.T @ (weights * rest))
    prior = np.clip(prior, -_LARGEST_PRIOR, _LARGEST_PRIOR)
    gain = counts / np.maximum(counts**2 + noise / model.bias_variance, 1e-9)
    return Biases(counts, prior + (rest - counts * prior) * gain)


def top_items(counts: Float64, config: BgtConfig) -> tuple[Int64, Float64]:
    """The most rated items, and factors of their residuals so that popular items do not fill all slots."""
    top = np.argsort(-counts, kind="stable")[: config.top].astype(np.int64)
    chosen = counts[top] + _FEW
    return top, np.sqrt((counts[top].mean() + _FEW) / chosen)


def spectrum_of(
    sums: Int64, slots: int, number: int, top: Int64, gains: Float64, counts: Float64, config: BgtConfig
) -> Spectrum:
    """The test for factors, and the factors that pass it.

    Noise alone is a symmetric matrix of independent cells of deviation sigma off the diagonal: its largest eigenvalue
    lies near 2 sigma sqrt(M) (Wigner), the edge. An eigenvalue l beyond it is that of a signal l' = (l + sqrt(l^2 -
    edge^2)) / 2, whose direction and the found one have a squared cosine of 1 - (edge / 2 l')^2 (Benaych-Georges,
    Nadakuditi 2011, for Wigner noise). An eigenvalue counts from `edge_margin` edges.

    Args:
        sums: (M (M - 1) / 2,) of the release.
        slots: how many slots there were.
        number: of the round.
        top: (M,) see `Round`.
        gains: (M,) see `Round`.
        counts: (I,) of `Biases`.
        config: of the deployment.
    """
    size = len(top)
    matrix = np.zeros((size, size))
    matrix[np.tril_indices(size, -1)] = sums / UNIT**2
    values, vectors = np.linalg.eigh(matrix + matrix.T)
    most = min(config.release.factors, size)
    values, vectors = values[::-1][:most], vectors[:, ::-1][:, :most]
    edge = 2 * deviation_of(number, "pairs", config) * size**0.5
    # Without noise every positive eigenvalue is signal.
    kept = int(np.count_nonzero(values > max(config.model.edge_margin * edge, 1e-9)))
    factors = np.zeros((len(counts), kept))
    signal = (values[:kept] + np.sqrt(values[:kept] ** 2 - edge**2)) / 2
    cosine = 1 - (edge / (2 * signal)) ** 2
    scale = np.sqrt(signal * cosine * _SHARE * slots)
    factors[top] = _signed(vectors[:, :kept]) * scale / (gains * (counts[top] + _FEW))[:, None]
    return Spectrum(edge, values, factors)


def factors_of(sums: Int64, counts: Float64, number: int, config: BgtConfig) -> Float64:
    """(I, k) item factors from a release of kind C: those of each item from its own sums, shrunk toward 0."""
    model, deviation = config.model, deviation_of(number, "factors", config)
    seen = counts * model.factor_weight
    noise = deviation**2 + seen * model.rating_variance
    gain = seen / np.maximum(seen**2 + noise / model.factor_variance, 1e-9)
    return np.asarray(sums / UNIT * gain[:, None])


def _signed(vectors: Float64) -> Float64:
    """Eigenvectors with a positive largest entry, because a library may return either sign."""
    if not vectors.shape[1]:
        return vectors
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.asarray(vectors * np.where(largest < 0, -1.0, 1.0))
