"""``codes: auto``: how many codes to use, from configuration alone (never from observed counts)."""

from __future__ import annotations

import math
from typing import SupportsFloat

from hushstream.systems.p2b.contribution.errors import ContributionError

_NOISE_AGAINST_MERGING = 5.0
_CODES_A_DIMENSION = 4


def auto_codes(
    arms: int,
    expected_slots: int,
    epsilon: SupportsFloat,
    levels: int = 1,
    dimension: int = 10,
    windows: int = 1,
) -> int:
    """Choose k, a power of two, for slot sums.

    Two errors pull k apart. *Noise*: an average cell holds ``n = N / (k K)`` reports, whose clicks have
    variance at most ``n/4``, and gets noise of variance ``v`` (in rewards). Noise therefore multiplies the
    variance of what is learned by ``1 + 4 v / n = 1 + k / s`` with ``s = N / (4 v K)``, a number of
    configuration only. *Merging*: contexts under one code look alike to the server; what that loses falls
    about as ``1/k`` until the centroids span the space. The sum ``c/k + k/s`` is least at
    ``k = sqrt(c s)``, rounded to the nearest power of two in the logarithm. ``c = 5`` was fitted by
    simulation. Beyond a few codes a dimension there is nothing left to gain for a model with d numbers an
    arm, so k is at most ``4 d`` (k-means resolves ``k^(-2/(d-1))``: twice the codes, 14 % less distance at
    d = 10).

    Checked by simulation (d=10, K=10, T=10; reward of the private warm start against that of the best power
    of two): 500 slots at eps 1 give 8 (the best), 1,400 at eps 1 give 8 (2 % below 16), 14,000 at ln 2 give
    16 (the best), 20,000 at ln 2 give 32 (equal to 16), 70,000 at ln 2 in the linear world give 32 (2 %
    below 16).

    Args:
        arms: K.
        expected_slots: N, reports expected in all windows together.
        epsilon: of one window's release.
        levels: M.
        dimension: d, at least 2.
        windows: releases whose noise adds up.

    Returns:
        k, from 2 to ``4 d``.

    Raises:
        ContributionError: an argument out of range.
    """
    budget = float(epsilon)
    if min(arms, expected_slots, levels, windows) < 1 or dimension < 2 or not 0.0 < budget < math.inf:
        raise ContributionError(
            "expected positive arms, slots, levels, windows and epsilon, and at least 2 dimensions, got "
            f"{arms}, {expected_slots}, {levels}, {windows}, {budget} and {dimension}"
        )
    variance = windows * _noise_variance(budget, levels)
    signal = expected_slots / (4.0 * variance * arms)
    wanted = math.sqrt(_NOISE_AGAINST_MERGING * signal)
    most = float(_CODES_A_DIMENSION * dimension)
    return 1 << min(round(math.log2(min(max(wanted, 2.0), most))), int(math.log2(most)))


def _noise_variance(epsilon: float, levels: int) -> float:
    """Variance, in rewards, of discrete Laplace noise of scale M/eps on a sum in units of 1/M.

    With ``a = eps/M`` it is ``2 e^-a / (1 - e^-a)^2 = 1 / (2 sinh(a/2)^2)`` in units.
    """
    half = epsilon / levels / 2.0
    if half > 300.0:
        return math.ulp(0.0)
    return max(0.5 / (math.sinh(half) * levels) ** 2, math.ulp(0.0))
