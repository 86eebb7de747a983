"""Estimates effects on the log-odds of a click, of each arm and of each cell of each block, from noised linear sums.

Y1 and Y0 are the two sums of arm a and cell b, in reports (units divided by M b_f). n = Y1 + Y0, and v is the variance
of the noise in each of the two. The *null* of a cell is the click share that it has if the effects of arm and cell on
the log-odds simply add up:

    q0_ab = s(logit q_a + logit q_b - logit q)        s the logistic function

with q_a, q_b, q the click shares of arm, cell and all. Given n, one step of Newton's method from the null gives the
effect d of arm and cell together:

    d = (Y1 - q0 n) / i        i = n~ q0 (1 - q0)        var d = (i + v ((1 - q0)^2 + q0^2)) / i^2

The variance follows because Y1 - q0 n = (1 - q0) Y1 - q0 Y0 has sampling variance n q0 (1 - q0) plus that noise. n~ is
n shrunk towards the arm's share of the cell's total; the shrinkage compares the variance 2 v of the noise in n with how
far arms differ in whom they are shown to. q_a is *not* shrunk here: what shrinkage removes from an arm's effect would
appear again in every block.

**Shrinkage.** Effects of a block are N(0, tau^2) with an unknown tau. Half of the prior of tau is on 0 (the block says
nothing); the other half is uniform on 30 geometric values of tau^2 from 4e-4 to 1. The posterior mean of an effect is d
times the mean of tau^2/(tau^2 + V) over the posterior of tau given all of the block's cells, V being d's variance. The
arms' own effects are shrunk with the tau of maximum likelihood.

**Tags** share a slot's units: each of s tags has 1/s of them, but the learner sees the value 1/sqrt(s). For
coefficients beta of what the learner sees, Y1 - q0 n has mean i beta/sqrt(s) and sampling variance i/s. So with s the
usual number of tags of a visit, d is sqrt(s) times the formula above, and its variance is
(i + s v ((1 - q0)^2 + q0^2)) / i^2. Tags of one visit can carry partly the same information. Then the sums of a tag
also contain the effects of the other tags, and adding up d over a visit counts the common part s times. If their
information has correlation rho (declared: `Tags.redundancy`), s tags are worth s / (1 + rho (s - 1)) independent ones,
and d is multiplied by 1 / (1 + rho (s - 1)).

**Signed blocks** (embeddings) have no n. With phi = e/|e|_1, z = Y1 - q_a n (centred over arms by their shares),
c = E|e|_1 over the unit sphere of m dimensions and k = 1/(m c), z_j has mean i k beta_j and variance
i k/c + v ((1 - q_a)^2 + q_a^2), where i = n_a q_a (1 - q_a).

Everything here is post-processing of releases: it costs no privacy. All of it uses only operations whose results IEEE
754 fixes (`server.elementary`), so every machine computes the same effects.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.server.elementary import exp, log, logistic, logit, total
from hushstream.systems.p2b.server.errors import AggregationError

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

CONTEXT = "context"
"""Name of the one block that contexts have where they are encoded as codes."""

_TAUS = 30
_LEAST_TAU_SQUARE, _MOST_TAU_SQUARE = 4e-4, 1.0
_LEAST_SHARE = 0.002
"""Click shares are clipped to this distance from 0 and 1, because noise may push them outside."""

_TAIL = 2.0
"""From this many standard deviations on, a residual has the likelihood of Laplace noise. With that of a normal
distribution, the noise of one rare cell would look like an effect of its whole block."""

_SPREAD_OF_SHOWING = 0.3
"""How far arms differ in whom they are shown to: a standard deviation, relative to the count that chance would give."""


class Effects(NamedTuple):
    """Means and variances of effects on log-odds.

    Attributes:
        share: q, the share of clicks among all slots.
        slots: how many slots the sums are worth, at least K.
        arms, arm_variances: (K,).
        cells, cell_variances: (K, P - 1), in the order of the layout's cells without the constant's.
    """

    share: float
    slots: float
    arms: Float64
    arm_variances: Float64
    cells: Float64
    cell_variances: Float64


class RawEffects(NamedTuple):
    """Effects before shrinkage, each with its variance.

    Attributes:
        share, slots: see `Effects`.
        arms: effects and variances of arms, (K,) each.
        blocks: effects and variances of each block's cells, (K, cells) each, by the block's name; without the constant.
    """

    share: float
    slots: float
    arms: tuple[Float64, Float64]
    blocks: Mapping[str, tuple[Float64, Float64]]


class _Totals(NamedTuple):
    """Estimated totals of clicked and unclicked reports, and for each arm, (K,), the variance of the noise in one."""

    clicked: Float64
    unclicked: Float64
    variance: Float64


def effects(layout: FeatureLayout, ones: Int64, zeros: Int64, variance: float | Float64) -> Effects:
    """Compute shrunk effects from (noised) sums; arguments and errors as in `raw_effects`."""
    found = raw_effects(layout, ones, zeros, variance)
    arm_means, arm_variances = _shrunk_arms(*found.arms)
    means = np.zeros((layout.arms, layout.cells - 1))
    variances = np.zeros_like(means)
    for block in layout.blocks[1:]:
        inner = slice(block.first_cell - 1, block.first_cell - 1 + block.cells)
        means[:, inner], variances[:, inner] = _shrunk(*found.blocks[block.name], _prior_of_a_block())
    return Effects(found.share, found.slots, arm_means, arm_variances, means, variances)


def raw_effects(layout: FeatureLayout, ones: Int64, zeros: Int64, variance: float | Float64) -> RawEffects:
    """Compute effects from (noised) sums, before shrinkage.

    Args:
        layout: the layout of the deployment's features.
        ones, zeros: (K, P) int64, added up over all releases.
        variance: the variance of the noise in one of these sums, added up over all releases, in units squared; 0 for
            exact sums. An array (K,) has one for each arm, where the arms' sums come from different releases.

    Raises:
        AggregationError: shapes that do not match, or a variance out of range.
    """
    shape = (layout.arms, layout.cells)
    if ones.shape != shape or zeros.shape != shape or ones.dtype != np.int64 or zeros.dtype != np.int64:
        raise AggregationError(f"expected two int64 arrays of shape {shape}, got {ones.shape} and {zeros.shape}")
    noise = np.broadcast_to(np.asarray(variance, dtype=np.float64), layout.arms)
    if not ((noise >= 0.0) & (noise < np.inf)).all():
        raise AggregationError(f"expected a finite variance of at least 0, got {variance}")
    arms = _arm_totals(layout, ones, zeros, noise)
    counts = np.maximum(arms.clicked + arms.unclicked, 1.0)
    slots = total(counts)
    share = float(_inside(total(arms.clicked) / slots))
    shares = _inside(arms.clicked / counts)
    blocks = {}
    for block, budget in zip(layout.blocks[1:], layout.budgets[1:], strict=True):
        across = slice(block.first_cell, block.first_cell + block.cells)
        scale = float(budget * layout.levels)
        cells = _Totals(ones[:, across] / scale, zeros[:, across] / scale, noise / scale**2)
        if block.signed:
            blocks[block.name] = _signed_effects(cells, counts, shares)
        else:
            raw, spread = _cell_effects(
                cells, ones[:, across], zeros[:, across], scale, counts, shares, share, block.usual
            )
            blocks[block.name] = block.own_part * raw, block.own_part**2 * spread
    return RawEffects(share, slots, _arm_effects(arms, counts, share), blocks)


def effects_of_codes(ones: Int64, zeros: Int64, variance: float | Float64, levels: int) -> RawEffects:
    """Compute effects of items and of the codes of contexts, before shrinkage; the codes are one block, `CONTEXT`.

    Args:
        ones, zeros: (k, K) int64, sums of the reward levels R and of M - R, added up over all releases.
        variance: the variance of the noise in one of these sums, added up over all releases; 0 for exact sums.
        levels: M.
    """
    codes, arms = ones.shape
    noise = np.broadcast_to(np.asarray(variance, dtype=np.float64) / levels**2, arms)
    cells = _Totals(ones.T / levels, zeros.T / levels, noise)
    totals = _Totals(cells.clicked.sum(axis=1), cells.unclicked.sum(axis=1), codes * noise)
    counts = np.maximum(totals.clicked + totals.unclicked, 1.0)
    slots = total(counts)
    share = float(_inside(total(totals.clicked) / slots))
    shares = _inside(totals.clicked / counts)
    found = _cell_effects(cells, ones.T, zeros.T, float(levels), counts, shares, share, 1.0)
    return RawEffects(share, slots, _arm_effects(totals, counts, share), {CONTEXT: found})


def _inside(shares: Any) -> Any:
    """Clip click shares away from 0 and 1."""
    return np.clip(shares, _LEAST_SHARE, 1.0 - _LEAST_SHARE)


def _arm_totals(layout: FeatureLayout, ones: Int64, zeros: Int64, variance: Float64) -> _Totals:
    """Estimate the totals of arms: the mean over all blocks that count every slot, weighed by inverse variance.

    Without noise the constant's sums are exact, so only they are used.
    """
    clicked, unclicked, precision = np.zeros(layout.arms), np.zeros(layout.arms), 0.0
    for block, budget in zip(layout.blocks, layout.budgets, strict=True):
        if not block.complete or (block.name and not variance.any()):
            continue
        across = slice(block.first_cell, block.first_cell + block.cells)
        weight = budget**2 / block.cells
        clicked += weight * (ones[:, across].sum(axis=1) / (budget * layout.levels))
        unclicked += weight * (zeros[:, across].sum(axis=1) / (budget * layout.levels))
        precision += weight
    return _Totals(clicked / precision, unclicked / precision, variance / (precision * layout.levels**2))


def _arm_effects(arms: _Totals, counts: Float64, share: float) -> tuple[Float64, Float64]:
    information = counts * (share * (1.0 - share))
    raw = (arms.clicked - share * (arms.clicked + arms.unclicked)) / information
    return raw, (information + arms.variance * _noise_of_residual(share)) / information**2


def _shrunk_arms(raw: Float64, spread: Float64) -> tuple[Float64, Float64]:
    grid = [0.0, *_tau_squares().tolist()]
    best = max(grid, key=lambda tau_square: log_likelihood(raw, spread, tau_square))
    kept = best / (best + spread)
    return kept * raw, kept * spread


def _cell_effects(
    cells: _Totals,
    ones: Int64,
    zeros: Int64,
    scale: float,
    counts: Float64,
    shares: Float64,
    share: float,
    usual: float,
) -> tuple[Float64, Float64]:
    """(K, cells) effects before shrinkage, and their variances."""
    # `fsum` rounds once, so equal variances give the same bits as one product.
    together, variance = math.fsum(cells.variance.tolist()), cells.variance[:, None]
    clicked, unclicked = ones.sum(axis=0) / scale, zeros.sum(axis=0) / scale
    shown = np.maximum(clicked + unclicked, 1.0)
    information = shown * (share * (1.0 - share))
    common, _ = _shrunk(
        ((clicked - share * (clicked + unclicked)) / information)[None, :],
        ((information + together * _noise_of_residual(share)) / information**2)[None, :],
        _prior_of_a_block(),
    )
    null = logistic(logit(shares)[:, None] + common)
    expected = counts[:, None] * (shown / total(counts))
    found = cells.clicked + cells.unclicked
    apart = expected + (_SPREAD_OF_SHOWING * expected) ** 2
    number = (found * apart + expected * (2.0 * variance)) / (apart + 2.0 * variance)
    information = np.maximum(number, 1e-3 * expected + 1e-6) * null * (1.0 - null)
    raw = math.sqrt(usual) * (cells.clicked - null * found) / information
    return raw, (information + usual * variance * _noise_of_residual(null)) / information**2


def _signed_effects(cells: _Totals, counts: Float64, shares: Float64) -> tuple[Float64, Float64]:
    """(K, m) coefficients of an embedding before shrinkage, and their variances."""
    dimension = cells.clicked.shape[1]
    length = _mean_absolute_sum(dimension)
    factor = 1.0 / (dimension * length)
    column = shares[:, None]
    residual = cells.clicked - column * (cells.clicked + cells.unclicked)
    together = np.array([total(residual[:, place]) for place in range(dimension)])
    centred = residual - (counts / total(counts))[:, None] * together
    information = np.repeat((counts * shares * (1.0 - shares))[:, None] * factor, dimension, axis=1)
    noise = cells.variance[:, None] * _noise_of_residual(column)
    return centred / information, (information / length + noise) / information**2


def _noise_of_residual(share: Float64 | float) -> Float64 | float:
    """The variance of (1 - q) X1 - q X0, where X1 and X0 are independent with variance 1."""
    return (1.0 - share) * (1.0 - share) + share * share


def _mean_absolute_sum(dimension: int) -> float:
    """E|e|_1 on the unit sphere of m dimensions: m G(m/2) / (sqrt(pi) G((m+1)/2)), where G is the gamma function.

    The ratio r(m) = G(m/2)/G((m+1)/2) has r(1) = sqrt(pi) and r(m + 1) r(m) = 2/m.
    """
    ratio = math.sqrt(math.pi)
    for below in range(1, dimension):
        ratio = 2.0 / (below * ratio)
    return dimension * ratio / math.sqrt(math.pi)


def _tau_squares() -> Float64:
    steps = np.arange(_TAUS) / (_TAUS - 1.0)
    span = log(np.array([_LEAST_TAU_SQUARE, _MOST_TAU_SQUARE]))
    return exp(span[0] + steps * (span[1] - span[0]))


class _Prior(NamedTuple):
    tau_squares: Float64
    weights: Float64


def _prior_of_a_block() -> _Prior:
    return _Prior(
        np.concatenate([np.zeros(1), _tau_squares()]),
        np.concatenate([np.array([0.5]), np.full(_TAUS, 0.5 / _TAUS)]),
    )


def _shrunk(raw: Float64, spread: Float64, prior: _Prior) -> tuple[Float64, Float64]:
    """Compute posterior means and variances of effects ``raw`` with variances ``spread`` under a prior of tau."""
    likelihood = np.array([log_likelihood(raw, spread, tau_square) for tau_square in prior.tau_squares])
    weights = prior.weights * exp(likelihood - likelihood.max())
    weights = weights / total(weights)
    mean, square, within = np.zeros_like(raw), np.zeros_like(raw), np.zeros_like(raw)
    for tau_square, weight in zip(prior.tau_squares, weights, strict=True):
        kept = tau_square / (tau_square + spread)
        mean += weight * kept
        square += weight * (kept * kept)
        within += weight * (kept * spread)
    # The variance over tau, E[kept^2] - E[kept]^2, which rounding may make negative.
    return mean * raw, within + np.maximum(square - mean * mean, 0.0) * (raw * raw)


def log_likelihood(raw: Float64, spread: Float64, tau_square: float) -> float:
    """The log-likelihood of N(0, tau^2 + V) up to a constant; beyond two deviations it falls linearly (Laplace)."""
    variance = tau_square + spread
    square = raw * raw / variance
    far = square > _TAIL**2
    distance = np.where(far, _TAIL * (2.0 * np.sqrt(square) - _TAIL), square)
    return -0.5 * total(log(variance) + distance)
