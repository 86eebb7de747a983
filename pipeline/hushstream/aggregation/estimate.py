"""From noised sums of cells to the sums of LinUCB, weighed by the noise that is known to be in them.

A cell (code c, arm a) with n reports has the sum of rewards ``y = n p + e`` where p is the mean reward; the
clicks give it variance ``n s^2`` with ``s^2 <= 1/4`` for rewards in [0, 1], and the release adds variance v.
The generalised least squares estimate of ``theta`` in ``p = theta'c`` weighs each cell by the inverse of
``n s^2 + v``. In units of one clean report (LinUCB's own weight, so that ``v = 0`` gives back LinUCB) with
``s^2`` at its bound,

    A = ridge I + sum_c w_c n_c c c'      b = sum_c w_c y_c c      with  w = n s^2/(n s^2 + v) = n/(n + 4 v).

n is itself noised: its estimate is ``max(0, ones + zeros)``, so every weight lies in [0, 1] and A is always
positive definite. y is *not* clipped to [0, n]: clipping each cell would bias the sum over cells, in which
unclipped noise averages out (seven windows as below, factor 2: .398 against .388). The noise of n does not
ask for a greater v: the residual ``y - p n`` has noise variance ``v ((1-p)^2 + p^2) <= v``.

Simulated (softmax world, W scale 5, reward scale 1, 1,400 slots of 2,000 users, k=8, K=d=T=10, eps=1; mean of
16 worlds; standard errors of differences below .006): cold .142, exact sums .465. One window: sums as they
come .450, this .451, the weights n^2/(n+4v) on clipped means .450, the same shrunk to the arm's mean .447.
Seven windows: .361, .405, .395, .382. Factors 2 to 8 in place of 4 differ by at most .008. Where
rewards are far smaller than the bound assumes, little is lost: reward scale .1, 14,000 slots, k=16, eps=ln 2
gives .0333 against .0337 as they come.

Everything here is post-processing of releases: it costs no privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushstream.aggregation.errors import AggregationError

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
        observations: how many clean reports the data are worth, the sum of the weights ``w n``.
    """

    gram: Float64
    moment: Float64
    observations: float


def model_from_sums(
    ones: Int64, zeros: Int64, levels: int, variance: float, centroids: Floats, ridge: float = 1.0
) -> ModelSums:
    """A LinUCB model on centroids from (noised) sums.

    Args:
        ones: (k, K) int64, sums of the reward levels R, with noise.
        zeros: (k, K) int64, sums of M - R, with noise.
        levels: M.
        variance: v of the noise in one of these sums, in units of 1/M squared, added up over all releases;
            0 for exact counts.
        centroids: (k, D), what stands for each code.
        ridge: lambda, positive.

    Raises:
        AggregationError: shapes that do not fit, or an argument out of range.
    """
    count, total = _weighed(ones, zeros, levels, variance, ridge)
    if centroids.ndim != 2 or len(centroids) != len(ones):
        raise AggregationError(f"expected centroids of shape ({len(ones)}, D), got {centroids.shape}")
    points = centroids.astype(np.float64)
    dimension = points.shape[1]
    scaled = np.sqrt(count).T[:, :, None] * points
    gram = np.matmul(scaled.transpose(0, 2, 1), scaled)
    gram = (gram + gram.transpose(0, 2, 1)) / 2 + ridge * np.eye(dimension)
    return ModelSums(gram, np.matmul(total.T, points), float(count.sum()))


def onehot_from_sums(
    ones: Int64, zeros: Int64, levels: int, variance: float, ridge: float = 1.0
) -> ModelSums:
    """The same for one-hot codes, whose gram matrices are diagonal; arguments as in `model_from_sums`."""
    count, total = _weighed(ones, zeros, levels, variance, ridge)
    gram = np.ascontiguousarray(count.T) + ridge
    return ModelSums(gram, np.ascontiguousarray(total.T), float(count.sum()))


def _weighed(
    ones: Int64, zeros: Int64, levels: int, variance: float, ridge: float
) -> tuple[Float64, Float64]:
    """Weighed counts ``w n`` and sums of rewards ``w y``, (k, K) each, in rewards."""
    if ones.ndim != 2 or ones.shape != zeros.shape or ones.dtype != np.int64 or zeros.dtype != np.int64:
        raise AggregationError(
            f"expected two int64 arrays of shape (k, K), got {ones.shape} and {zeros.shape}"
        )
    if levels < 1 or not 0.0 <= variance < np.inf or not 0.0 < ridge < np.inf:
        raise AggregationError(
            "expected at least one level, a variance of at least 0 and a positive ridge,"
            f" got {levels}, {variance} and {ridge}"
        )
    count = np.maximum(ones + zeros, 0) / levels
    noise = variance / levels**2 / _VARIANCE_OF_A_REWARD
    # A cell without reports has weight 0; its divisor is only kept from being 0.
    weight = count / np.maximum(count + noise, np.finfo(np.float64).tiny)
    return weight * count, weight * (ones / levels)
