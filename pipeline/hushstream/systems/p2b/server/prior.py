"""The prior of items' effects, shaped by the items' public features (post-processing: it costs no privacy).

The effect of item k in cell b (`server.estimate`) is d[k, b] with variance V[k, b], known from released sums. Its prior
is what items with its features have, plus a part of its own:

    d[k, b] = (1, z_k) . B_b + e[k, b] + noise        B_b ~ N(0, lambda I)      e ~ N(0, tau^2)      noise ~ N(0, V)

z_k are the item's features, with |z_k|^2 about 1 (`item_vectors`). All cells of a block have one lambda and one tau^2,
over which the posterior is averaged: half of lambda's prior is on 0 (features say nothing), the rest even on a grid,
and the same for tau^2. So features that say nothing are found out. The evidence is that of the normal distribution with
covariance lambda Z Z' + diag(tau^2 + V), by one m x m Cholesky factor for each cell. An effect further than two
deviations from 0 is pulled in to two for B and the evidence, and the evidence then falls linearly (Laplace): otherwise
the noise of one rare cell would look like an effect of its block.

**Items' own effects** are not small, so they take six steps of Newton's method on log-odds, each from the posterior
means of the step before. The intercept of their prior has the variance 1, and tau^2 = 0 no mass. So an item that was
hardly shown is expected to be like the mean item with its features: users are shown items that they like, and the mean
click rate is that of liked items.

Everything is additions, multiplications, divisions and square roots in a fixed order, the logarithm and exponential of
`server.estimate`, and `math.fsum`: the same bits on every CPU, so `verify` computes the same model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from hushstream.features.schema import FeatureSchema, Rows
from hushstream.systems.p2b.server.estimate import (
    TAIL,
    Effects,
    Float64,
    Int64,
    RawEffects,
    arm_effects,
    exp,
    log,
    raw_effects,
    total,
)
from hushstream.systems.p2b.slots import FeatureLayout

_LAMBDAS = (0.0, 0.002, 0.006, 0.02, 0.06, 0.2)
_TAU_SQUARES = (0.0, 0.002, 0.006, 0.02, 0.06, 0.2, 0.6)
_OWN_TAU_SQUARES = (0.01, 0.03, 0.06, 0.12, 0.25, 0.5, 1.0, 2.0)
_NEWTON_STEPS = 6
_NEGLIGIBLE = 1e-9
_AT_ONCE = 1 << 22
"""Numbers in an array of items that are computed together."""


def item_vectors(schema: FeatureSchema, rows: Rows) -> Float64:
    """(K, m) z_k of K items, with a mean squared length of about 1.

    A category is its one-hot cells; a number is its place in its range, and any other kind its cells as a learner sees
    them, both centred and scaled over the items. A category weighs twice as much as any other feature.

    Args:
        schema: of the items' features.
        rows: (K,) their rows.
    """
    blocks, dense = schema.blocks(rows), np.zeros((len(rows), schema.cells))
    for cells, values in zip(blocks.cells.T, blocks.values.T, strict=True):
        dense[np.arange(len(rows)), cells] += values
    parts, weights = [], []
    for block in schema.table:
        part, feature = dense[:, block.first_cell : block.first_cell + block.cells], schema.features[block.name]
        if feature.kind == "number":
            part = feature.positions(rows[block.name])[:, None]
        parts.append(part if feature.kind == "category" else _standardised(part))
        weights.append(2.0 if feature.kind == "category" else 1.0)
    whole = math.fsum(weights)
    return np.concatenate([part * math.sqrt(one / whole) for part, one in zip(parts, weights, strict=True)], axis=1)


def vector_length(schema: FeatureSchema) -> int:
    """m, the length of `item_vectors` of this schema."""
    return sum(1 if schema.features[block.name].kind == "number" else block.cells for block in schema.table)


def _standardised(part: Float64) -> Float64:
    """Columns around their means, all scaled by one number so that the mean squared length is 1; 0 if all are equal."""
    centred = part - np.array([total(column) / len(part) for column in part.T])
    square = total(centred * centred) / len(part)
    return np.asarray(centred / math.sqrt(square) if square > 0.0 else centred)


def shaped_effects(
    layout: FeatureLayout, ones: Int64, zeros: Int64, variance: float | Float64, vectors: Float64
) -> Effects:
    """Compute effects from (noised) sums under the prior that items' features shape.

    Args:
        layout, ones, zeros, variance: see `raw_effects`, which also says what is refused.
        vectors: (K, m) z of the items.
    """
    found = raw_effects(layout, ones, zeros, variance)
    vectors = np.concatenate([np.ones((len(vectors), 1)), vectors], axis=1)
    prior = Prior(vectors, None, _TAU_SQUARES, _half_on_first(_TAU_SQUARES))
    blocks = [prior.posterior(*found.blocks[block.name]) for block in layout.blocks[1:]]
    means, variances = (np.concatenate(part, axis=1) for part in zip(*blocks, strict=True))
    return Effects(found.share, found.slots, *_own_effects(found, vectors), means, variances)


def _own_effects(found: RawEffects, vectors: Float64) -> tuple[Float64, Float64]:
    """(K,) posterior means and variances of the items' own effects."""
    even = np.full(len(_OWN_TAU_SQUARES), 1.0 / len(_OWN_TAU_SQUARES))
    prior = Prior(vectors, 1.0, _OWN_TAU_SQUARES, even)
    means, variances = np.zeros((2, len(vectors)))
    for _ in range(_NEWTON_STEPS):
        posterior = prior.posterior(*(one[:, None] for one in arm_effects(found, means)))
        means, variances = (one[:, 0] for one in posterior)
    return means, variances


def _half_on_first(grid: Sequence[float]) -> Float64:
    """The weights of a grid: half on its first value, the rest even."""
    rest = len(grid) - 1
    return np.array([0.5] + [0.5 / rest] * rest)


class Prior:
    """The prior of the effects of K items, in cells that share lambda and tau^2."""

    def __init__(
        self, vectors: Float64, intercept: float | None, tau_squares: Sequence[float], weights: Float64
    ) -> None:
        """Hold the prior.

        Args:
            vectors: (K, 1 + m) 1 and z.
            intercept: the variance of the first entry of B; None: lambda, as of the others.
            tau_squares, weights: the values of tau^2 and their prior.
        """
        self._vectors, self._tau_squares = vectors, tau_squares
        rest = vectors.shape[1] - 1
        self._deviations = [
            np.sqrt(np.array([one if intercept is None else intercept] + [one] * rest)) for one in _LAMBDAS
        ]
        self._log_weights = log(weights[:, None] * _half_on_first(_LAMBDAS)).ravel()

    def posterior(self, raw: Float64, spread: Float64) -> tuple[Float64, Float64]:
        """(K, n) posterior means and variances of effects d with variances V, (K, n) each."""
        fits = list(self._fits(raw, spread))
        evidence = self._log_weights + np.array([fit.evidence for fit in fits])
        weights = exp(evidence - evidence.max())
        mean, square, within = np.zeros_like(raw), np.zeros_like(raw), np.zeros_like(raw)
        for fit, weight in zip(fits, weights / total(weights), strict=True):
            if weight > _NEGLIGIBLE:
                means, variances = fit.posterior()
                mean += weight * means
                square += weight * (means * means)
                within += weight * variances
        return mean, within + np.maximum(square - mean * mean, 0.0)

    def _fits(self, raw: Float64, spread: Float64) -> Iterator[_Fit]:
        for tau_square in self._tau_squares:
            gram = _gram(self._vectors, tau_square + spread)
            for deviation in self._deviations:
                used = deviation > 0.0
                some = deviation[used]
                scaled = gram[used][:, used] * (some[:, None] * some)[:, :, None]
                yield _Fit(self._vectors[:, used] * some, scaled, tau_square, raw, spread)


class _Fit:
    """The normal posterior of B for each of n cells, given lambda and tau^2.

    Attributes:
        evidence: the log-likelihood of all effects, up to a constant.
    """

    def __init__(self, vectors: Float64, gram: Float64, tau_square: float, raw: Float64, spread: Float64) -> None:
        """Fit.

        Args:
            vectors: (K, m) z times the deviations of B's entries, so that these have the variance 1.
            gram: (m, m, n) the sums of their products, divided by tau^2 + V.
            tau_square: tau^2.
            raw, spread: (K, n) d and V.
        """
        self._vectors, self._tau_square, self._raw, self._spread = vectors, tau_square, raw, spread
        variance = tau_square + spread
        deviation = np.sqrt(variance + _sum((vectors * vectors).T)[:, None])
        far = np.abs(raw) > TAIL * deviation
        near = np.where(far, np.sign(raw) * (TAIL * deviation), raw)
        beyond = np.where(far, 2.0 * TAIL * (np.abs(raw) / deviation - TAIL), 0.0)
        self._factor = _cholesky(gram)
        self._solved = _forward(self._factor, _moment(vectors, near / variance))
        roots = np.array([self._factor[place, place] for place in range(len(gram))])
        terms = (log(variance), near * near / variance, beyond, 2.0 * log(roots), -(self._solved * self._solved))
        self.evidence = -0.5 * math.fsum(number for term in terms for number in term.ravel().tolist())

    def posterior(self) -> tuple[Float64, Float64]:
        """(K, n) means and variances of the effects."""
        means, variances = np.zeros_like(self._raw), np.zeros_like(self._raw)
        step = max(1, _AT_ONCE // max(1, self._solved.size))
        for low in range(0, len(means), step):
            some = slice(low, low + step)
            columns = np.repeat(self._vectors[some].T[:, :, None], means.shape[1], axis=2)
            spanned = _forward(self._factor[:, :, None], columns)
            means[some], variances[some] = _sum(spanned * self._solved[:, None]), _sum(spanned * spanned)
        kept = self._tau_square / (self._tau_square + self._spread)
        rest = 1.0 - kept
        return means + kept * (self._raw - means), kept * self._spread + rest * rest * variances


def _sum(values: Float64) -> Float64:
    """The sum over the first axis, one entry after the other."""
    found: Float64 = np.zeros(values.shape[1:])
    for one in values:
        found = found + one
    return found


def _gram(vectors: Float64, variance: Float64) -> Float64:
    """(m, m, n) the sums of z z' / variance over items."""
    count = vectors.shape[1]
    found = np.zeros((count, count, variance.shape[1]))
    for vector, one in zip(vectors, variance, strict=True):
        found += (vector[:, None] * vector)[:, :, None] / one
    return found


def _moment(vectors: Float64, values: Float64) -> Float64:
    """(m, n) the sums of z times a value over items."""
    found = np.zeros((vectors.shape[1], values.shape[1]))
    for vector, one in zip(vectors, values, strict=True):
        found += vector[:, None] * one
    return found


def _cholesky(gram: Float64) -> Float64:
    """(m, m, n) the lower factors of I + G."""
    lower = np.zeros_like(gram)
    for place in range(len(gram)):
        column = gram[place:, place].copy()
        column[0] += 1.0
        for before in range(place):
            column -= lower[place:, before] * lower[place, before]
        lower[place:, place] = column / np.sqrt(column[0])
    return lower


def _forward(lower: Float64, right: Float64) -> Float64:
    """The solution x, (m, ...), of L x = right, where the axes behind the first two of L fit those of right."""
    found = np.zeros(right.shape)
    for place in range(len(right)):
        rest = right[place].copy()
        for before in range(place):
            rest -= lower[place, before] * found[before]
        found[place] = rest / lower[place, place]
    return found
