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

*Elementary functions.* Logarithm and exponential from additions, multiplications and divisions of a fixed order: the
same bits on every CPU.

The functions of a mathematical library differ in the last bit between processors, so `verify` on another machine would
not find the same model. IEEE 754 fixes the result of each operation used here. Arrays are summed by `math.fsum`, which
rounds the exact sum once, whatever the order is.

*Models of codes.* Computes the sums of a LinUCB model from noised sums of cells, and weighs each cell by the noise in
it.

A cell (code c, arm a) with n reports has the sum of rewards ``y = n p + e``, where p is the mean reward. The clicks
give e the variance ``n s^2``, with ``s^2 <= 1/4`` for rewards in [0, 1], and the release adds the variance v. The
generalised least squares estimate of ``theta`` in ``p = theta'c`` weighs each cell by the inverse of ``n s^2 + v``.
The unit is one report without noise, as in LinUCB, so ``v = 0`` gives LinUCB itself. With ``s^2`` at its bound,

    A = ridge I + sum_c w_c n_c c c'      b = sum_c w_c y_c c      with  w = n s^2/(n s^2 + v) = n/(n + 4 v).

n is itself noised. Its estimate is ``max(0, ones + zeros)``, so every weight lies in [0, 1] and A is always
positive definite. y is *not* clipped to [0, n]: clipping each cell would bias the sum over cells, in which
unclipped noise averages out (reward .398 instead of .388 in the simulation below with seven windows and factor 2).
The noise of n does not require a larger v: the residual ``y - p n`` has noise variance ``v ((1-p)^2 + p^2) <= v``.

Mean rewards in a simulation (softmax world, W scale 5, reward scale 1, 1,400 slots of 2,000 users, k=8, K=d=T=10,
eps=1; 16 worlds; standard errors of differences below .006): .142 without a model, .465 with exact sums. With noise:

                            one window    seven windows
    not weighed                .450           .361
    weighed as here            .451           .405
    n^2/(n + 4 v), clipped     .450           .395      (means clipped to [0, 1])
    the same, shrunk           .447           .382      (means shrunk to the arm's mean)

Factors from 2 to 8 in place of 4 change these by at most .008. Little is lost where rewards are far smaller than the
bound assumes: with reward scale .1, 14,000 slots, k=16 and eps=ln 2 the reward is .0333, and .0337 without weights.

**The ridge.** For rewards of variance 1/4, LinUCB's ridge of 1 is a prior of variance 1/4 on the entries of theta.
These lie in [0, 1], so this prior says nothing. Where clicks are rare, more is known: an entry in [0, 1] with mean m
has a second moment of at most m. With prior variance m and reward variance ``m (1-m)``, the weight of the prior
relative to an average cell of n reports is, in the units of A above,

    ridge * max(1, (n m (1-m) + v) / (m (n + 4 v))),

which is ridge at ``v = 0`` (1 - m <= 1) and tends to ``ridge / (4 m)`` where noise dominates. m is taken from the
released totals plus one standard error of their noise, so that it remains an upper bound. The larger ridge shrinks
theta, so an argmax over many arms picks fewer arms whose noise happened to be high. Rewards with a ridge of 1 and with
this ridge (standard error of the difference): .0133 -> .0172 (.0011; K=T=20, reward scale .1, 14,000 slots,
eps = ln 2, 5 worlds), .0371 -> .0388 (.0004; K=T=10), .0155 -> .0173 (.0005; K=50, 70,000 slots). Where clicks are as
frequent as in the simulation above, hardly anything changes: .4586 -> .4581 (.0003) with one window, .4231 -> .4219
(.0011) with seven. A model of exact interactions does not gain from a larger ridge (.0343 at 1, .0345 at 10, .0333 at
30 for K=20).

Everything here is post-processing of releases: it costs no privacy.

*Warm start.* Turns effects on log-odds into the linear model that a new user starts from.

Where h is given, a slot prefers clicked interactions, so the share q of clicks among slots is not the click rate p.
With h, q = h (1 - (1 - p)^T), hence p = 1 - (1 - q/h)^(1/T); without h, p = q. Effects on log-odds are the same among
slots as among all interactions, because sampling by the outcome changes only the constant. Around p the click
probability has slope g = p (1 - p) in the log-odds. So the coefficients of an arm have means m and variances D:

    m_a0 = p + g alpha_a        m_aj = g d_aj        D_a0 = g^2 var alpha_a + (.3 g)^2        D_aj = g^2 var d_aj

Here .3 is the assumed standard deviation, on log-odds, of users' own tastes for an arm. The same model in LinUCB's
variables, for F blocks in addition to the constant and contexts x = (1, blocks)/sqrt(F + 1), |x|_2 <= 1:

    theta = sqrt(F + 1) m        A = diag(g / ((F + 1) D))        b = A theta        alpha = sqrt(g)

Rewards have variance g, so g times the inverse of A is the variance of theta, and alpha = sqrt(g) makes the bonus one
standard deviation.

*Start from an exported model.* Combines the exported model that a deployment began with, and the model from its own
windows.

An exported model of n0 slots and a model of the deployment's own n1 slots are independent
estimates of the same coefficients. They are pooled with the weight w = n0 / (n0 + n1): the mean is w m0 + (1 - w) m1,
and the variance w^2 D0 + (1 - w)^2 D1. For an item that was added later, n1 is the number of slots since then. With
many slots of its own, a deployment forgets the exported model. If windows fade
(`hushstream.systems.p2b.server.totals`), n0 fades with them.

Items that are not in the exported model have the deployment's own model alone.

Only released models are used, so this costs no privacy. A person who gave a slot to both deployments has paid in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from hushstream.learners.sparse import OWN_TASTE
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.p2b.slots import FeatureLayout


class AggregationError(HushstreamError):
    """Sums that cannot be added or made into a model. The message says what was expected and what came."""


Float64 = NDArray[np.float64]

_LN2_HIGH = 0.693147180369123816490
"""ln 2 to 32 bits: its products with exponents are exact (as in FreeBSD's msun)."""

_LN2_LOW = 1.90821492927058770002e-10
_LN2 = 0.6931471805599453
_INVERSE_LN2 = 1.44269504088896338700
_SQRT_HALF = 0.70710678118654752440
_LOG_TERMS = 12
_EXP_TERMS = 14
_LARGEST_EXPONENT = 700.0


def log(values: Float64) -> Float64:
    """Natural logarithm of positive finite numbers; within 2 units in the last place.

    With ``x = 2^e m``, m in [sqrt(1/2), sqrt(2)), and ``s = (m - 1)/(m + 1)``: ln m = 2 (s + s^3/3 + s^5/5 + ...).
    """
    mantissa, exponent = np.frexp(values)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    exponent = exponent - small.astype(np.float64)
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for term in range(_LOG_TERMS - 1, 0, -1):
        series = (series + 1.0 / (2 * term + 1)) * square
    return np.asarray(exponent * _LN2_HIGH + (2.0 * (ratio + ratio * series) + exponent * _LN2_LOW))


def exp(values: Float64) -> Float64:
    """Exponential, of arguments moved into [-700, 700]; within 2 units in the last place.

    With ``x = k ln 2 + r``, |r| <= ln(2)/2: 2^k times the Taylor sum of e^r.
    """
    clipped = np.clip(values, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    powers = np.rint(clipped * _INVERSE_LN2)
    rest = (clipped - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.ones_like(rest)
    for term in range(_EXP_TERMS, 0, -1):
        series = 1.0 + series * rest / term
    return np.asarray(np.ldexp(series, powers.astype(np.int64)))


def logistic(values: Float64) -> Float64:
    """1 / (1 + e^-x)."""
    return np.asarray(1.0 / (1.0 + exp(-values)))


def logit(values: Float64) -> Float64:
    """ln(p / (1 - p)) of numbers strictly between 0 and 1."""
    return log(values / (1.0 - values))


def total(values: Float64) -> float:
    """The sum of all entries, rounded once."""
    return math.fsum(values.ravel().tolist())


def halving(steps: float) -> float:
    """2^(-1/steps): the factor that gives one half when it is applied ``steps`` times."""
    return float(exp(np.array([-_LN2 / steps]))[0])


Floats = npt.NDArray[np.floating]
Int64 = npt.NDArray[np.int64]

_VARIANCE_OF_A_REWARD = 0.25


class ModelSums(NamedTuple):
    """The sums of a LinUCB model.

    Attributes:
        gram: (K, D, D) float64 with the ridge, symmetric positive definite.
        moment: (K, D) float64.
        observations: how many reports without noise the data are worth, the sum of ``w n``.
    """

    gram: Float64
    moment: Float64
    observations: float


def model_from_sums(
    ones: Int64, zeros: Int64, levels: int, variance: float, centroids: Floats, ridge: float = 1.0
) -> ModelSums:
    """Compute the sums of a LinUCB model on centroids from (noised) sums of cells.

    Args:
        ones: (k, K) int64, sums of the reward levels R, with noise.
        zeros: (k, K) int64, sums of M - R, with noise.
        levels: M.
        variance: v of the noise in one of these sums, in units of 1/M squared, added up over all releases;
            0 for exact counts.
        centroids: (k, D), the centroid of each code.
        ridge: lambda, positive; noise may raise it (see the module).

    Raises:
        AggregationError: shapes that do not match, or an argument out of range.
    """
    count, total, ridge = _weighed(ones, zeros, levels, variance, ridge)
    if centroids.ndim != 2 or len(centroids) != len(ones):
        raise AggregationError(f"expected centroids of shape ({len(ones)}, D), got {centroids.shape}")
    points = centroids.astype(np.float64)
    dimension = points.shape[1]
    scaled = np.sqrt(count).T[:, :, None] * points
    gram = np.matmul(scaled.transpose(0, 2, 1), scaled)
    gram = (gram + gram.transpose(0, 2, 1)) / 2 + ridge * np.eye(dimension)
    return ModelSums(gram, np.matmul(total.T, points), float(count.sum()))


def _weighed(ones: Int64, zeros: Int64, levels: int, variance: float, ridge: float) -> tuple[Float64, Float64, float]:
    """Compute weighed counts ``w n`` and weighed sums of rewards ``w y``, (k, K) each, and the ridge for them."""
    if ones.ndim != 2 or ones.shape != zeros.shape or ones.dtype != np.int64 or zeros.dtype != np.int64:
        raise AggregationError(f"expected two int64 arrays of shape (k, K), got {ones.shape} and {zeros.shape}")
    if levels < 1 or not 0.0 <= variance < np.inf or not 0.0 < ridge < np.inf:
        raise AggregationError(
            "expected at least one level, a variance of at least 0 and a positive ridge,"
            f" got {levels}, {variance} and {ridge}"
        )
    rewards = ones / levels
    signed = (ones + zeros) / levels
    count = np.maximum(signed, 0.0)
    noise = variance / levels**2
    # A cell without reports has weight 0; the bound keeps its divisor from being 0.
    weight = count / np.maximum(count + noise / _VARIANCE_OF_A_REWARD, np.finfo(np.float64).tiny)
    return (
        weight * count,
        weight * rewards,
        ridge * _ridge_factor(float(rewards.sum()), float(signed.sum()), noise, ones.size),
    )


def _ridge_factor(reward: float, reports: float, noise: float, cells: int) -> float:
    """The factor, at least 1, by which the noise raises the ridge.

    Args:
        reward: sum of all rewards, noised.
        reports: sum of all counts, noised.
        noise: variance of the noise in one sum of a cell, in rewards squared.
        cells: how many cells there are.
    """
    # With less than one report nothing is known about the mean.
    if noise == 0.0 or reports < 1.0:
        return 1.0
    mean = min(max((reward + float(np.sqrt(cells * noise))) / reports, 1.0 / reports), 1.0)
    average = reports / cells
    spread = average * mean * (1.0 - mean) + noise
    return max(1.0, spread / (mean * (average + noise / _VARIANCE_OF_A_REWARD)))


_TAUS = 30
_LEAST_TAU_SQUARE, _MOST_TAU_SQUARE = 4e-4, 1.0
_LEAST_SHARE = 0.002
"""Click shares are clipped to this distance from 0 and 1, because noise may push them outside."""

TAIL = 2.0
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


class Totals(NamedTuple):
    """Estimated totals of clicked and unclicked reports, and for each arm, (K,), the variance of the noise in one."""

    clicked: Float64
    unclicked: Float64
    variance: Float64


class RawEffects(NamedTuple):
    """Effects before shrinkage, each with its variance.

    Attributes:
        share, slots: see `Effects`.
        totals: those of arms.
        arms: effects and variances of arms, (K,) each.
        blocks: effects and variances of each block's cells, (K, cells) each, by the block's name; without the constant.
    """

    share: float
    slots: float
    totals: Totals
    arms: tuple[Float64, Float64]
    blocks: Mapping[str, tuple[Float64, Float64]]


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
        cells = Totals(ones[:, across] / scale, zeros[:, across] / scale, noise / scale**2)
        if block.signed:
            blocks[block.name] = _signed_effects(cells, counts, shares)
        else:
            raw, spread = _cell_effects(
                cells, ones[:, across], zeros[:, across], scale, counts, shares, share, block.usual
            )
            blocks[block.name] = block.own_part * raw, block.own_part**2 * spread
    return RawEffects(share, slots, arms, _arm_effects(arms, share), blocks)


def _inside(shares: Any) -> Any:
    """Clip click shares away from 0 and 1."""
    return np.clip(shares, _LEAST_SHARE, 1.0 - _LEAST_SHARE)


def _arm_totals(layout: FeatureLayout, ones: Int64, zeros: Int64, variance: Float64) -> Totals:
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
    return Totals(clicked / precision, unclicked / precision, variance / (precision * layout.levels**2))


def _arm_effects(arms: Totals, shares: Float64 | float) -> tuple[Float64, Float64]:
    """(K,) one step of Newton's method from click shares, and the variances of its results."""
    information = np.maximum(arms.clicked + arms.unclicked, 1.0) * (shares * (1.0 - shares))
    raw = (arms.clicked - shares * (arms.clicked + arms.unclicked)) / information
    return raw, (information + arms.variance * _noise_of_residual(shares)) / information**2


def arm_effects(found: RawEffects, means: Float64) -> tuple[Float64, Float64]:
    """(K,) effects of arms by one step of Newton's method from ``means``, and their variances."""
    step, spread = _arm_effects(found.totals, _inside(logistic(logit(np.array(found.share)) + means)))
    return means + step, spread


def _shrunk_arms(raw: Float64, spread: Float64) -> tuple[Float64, Float64]:
    grid = [0.0, *_tau_squares().tolist()]
    best = max(grid, key=lambda tau_square: log_likelihood(raw, spread, tau_square))
    kept = best / (best + spread)
    return kept * raw, kept * spread


def _cell_effects(
    cells: Totals,
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


def _signed_effects(cells: Totals, counts: Float64, shares: Float64) -> tuple[Float64, Float64]:
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
    far = square > TAIL**2
    distance = np.where(far, TAIL * (2.0 * np.sqrt(square) - TAIL), square)
    return -0.5 * total(log(variance) + distance)


_LEAST_DEVIATION = 0.02
"""The smallest standard deviation of an effect on log-odds: with 0, a user's own clicks could never change it."""

_MOST_CLICKED = 0.999


class WarmStart(NamedTuple):
    """Independent normal coefficients of every arm, for contexts (1, blocks) without scaling.

    Attributes:
        means: m, (K, P).
        variances: D, (K, P), all positive.
        reward_variance: g.
    """

    means: Float64
    variances: Float64
    reward_variance: float


def rate_of(share: float, chance: float | None, horizon: int) -> float:
    """p, the mean reward of interactions, by the share of slots that hold a click; arguments as of `warm_start`."""
    if chance is None:
        return share
    unclicked = np.array([1.0 - min(share / chance, _MOST_CLICKED)])
    return 1.0 - float(exp(log(unclicked) / horizon)[0])


def warm_start(effects: Effects, chance: float | None, horizon: int) -> WarmStart:
    """Make the starting model from released effects.

    Args:
        effects: the effects from the sums of all releases.
        chance: h, or None where the interaction of a slot is drawn uniformly.
        horizon: T, how many interactions a slot is chosen from.

    Raises:
        AggregationError: h or T out of range.
    """
    if horizon < 1 or not (chance is None or 0.0 < chance <= 1.0):
        raise AggregationError(f"expected h above 0 and at most 1 and T of at least 1, got {chance} and {horizon}")
    rate = rate_of(effects.share, chance, horizon)
    slope = rate * (1.0 - rate)
    means = np.concatenate([(rate + slope * effects.arms)[:, None], slope * effects.cells], axis=1)
    own = (OWN_TASTE * slope) ** 2
    least = (_LEAST_DEVIATION * slope) ** 2
    variances = np.concatenate(
        [
            (slope**2 * effects.arm_variances + own)[:, None],
            np.maximum(slope**2 * effects.cell_variances, least),
        ],
        axis=1,
    )
    return WarmStart(means, variances, slope)


def cold_start(arms: int, cells: int, blocks: int) -> WarmStart:
    """Make the model that a user starts from before any release: ridge 1 and alpha 1 on x = (1, blocks)/sqrt(F + 1).

    Args:
        arms: K.
        cells: P.
        blocks: F, without the constant.
    """
    return WarmStart(np.zeros((arms, cells)), np.full((arms, cells), 1.0 / (blocks + 1)), 1.0)


class Known(NamedTuple):
    """The exported model that users began with.

    Attributes:
        model: coefficients of its items, in its order.
        slots: how many slots it is made of.
    """

    model: WarmStart
    slots: float


def started(known: WarmStart, cold: WarmStart) -> WarmStart:
    """The model before any window: the exported model, and a cold start for items that are not in it."""
    means, variances, count = cold.means.copy(), cold.variances.copy(), len(known.means)
    means[:count], variances[:count] = known.means, known.variances
    return WarmStart(means, variances, known.reward_variance)


def pooled(known: Known, fade: float, own: WarmStart, rows: Int64, behind: Float64, slots: float) -> WarmStart:
    """Pool the exported model and the deployment's own.

    Args:
        known: the exported model.
        fade: the factor by which the deployment's windows have reduced the weight of the exported model.
        own: the model of the deployment's own windows.
        rows: (n,) rows of items of the exported model; they have the same numbers in both models.
        behind: (n,) the effective number of the deployment's own slots of each of these rows.
        slots: the effective number of all its own slots.
    """
    before, start = fade * known.slots, known.model
    means, variances = own.means.copy(), own.variances.copy()
    weights = (before / (before + behind))[:, None]
    rests = 1.0 - weights
    means[rows] = weights * start.means[rows] + rests * own.means[rows]
    variances[rows] = weights * weights * start.variances[rows] + rests * rests * own.variances[rows]
    weight = before / (before + slots)
    return WarmStart(means, variances, weight * start.reward_variance + (1.0 - weight) * own.reward_variance)
