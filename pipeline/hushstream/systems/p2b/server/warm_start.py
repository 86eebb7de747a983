"""Turns effects on log-odds into the linear model that a new user starts from.

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
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.sparse import OWN_TASTE
from hushstream.systems.p2b.server.effects import Effects
from hushstream.systems.p2b.server.elementary import exp, log
from hushstream.systems.p2b.server.errors import AggregationError

Float64 = NDArray[np.float64]

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
    rate = effects.share
    if chance is not None:
        unclicked = np.array([1.0 - min(effects.share / chance, _MOST_CLICKED)])
        rate = 1.0 - float(exp(log(unclicked) / horizon)[0])
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
