"""Computes the sums of a LinUCB model from noised sums of cells, and weighs each cell by the noise in it.

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
(.0011) with seven. The non-private track does not gain from a larger ridge (.0343 at 1, .0345 at 10, .0333 at 30 for
K=20).

Everything here is post-processing of releases: it costs no privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushstream.systems.p2b.server.errors import AggregationError

Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
Int64 = npt.NDArray[np.int64]

_VARIANCE_OF_A_REWARD = 0.25


class ModelSums(NamedTuple):
    """The sums of a LinUCB model.

    Attributes:
        gram: (K, D, D) float64 with the ridge, symmetric positive definite; for one-hot codes (K, k), the
            diagonals.
        moment: (K, D) float64; for one-hot codes (K, k).
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


def onehot_from_sums(ones: Int64, zeros: Int64, levels: int, variance: float, ridge: float = 1.0) -> ModelSums:
    """Compute the same for one-hot codes, whose gram matrices are diagonal; arguments as in `model_from_sums`."""
    count, total, ridge = _weighed(ones, zeros, levels, variance, ridge)
    gram = np.ascontiguousarray(count.T) + ridge
    return ModelSums(gram, np.ascontiguousarray(total.T), float(count.sum()))


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
