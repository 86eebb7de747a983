"""A model that a deployment begins with, and what its own windows add to it.

*Declared features.* An exported model of n0 slots and one of a deployment's own n1 slots are estimates of the same
coefficients from other people's slots, so they are pooled as such: with w = n0 / (n0 + n1) the mean is
w m0 + (1 - w) m1 and the variance w^2 D0 + (1 - w)^2 D1. Of an item that was added later n1 are the slots since then.
With many slots of its own what a deployment began with is forgotten; where windows fade
(`hushstream.systems.p2b.server.forgetting`), n0 fades with them.

*Codes.* Both models are sums of LinUCB, A = ridge I + sum x x' and b = sum r x, of other people's interactions: what is
known together is A0 + A1 - ridge I and b0 + b1. Either ridge is at least the configured one
(`hushstream.systems.p2b.server.estimate`), so the sum stays positive definite.

Items that the exported model has not are the deployment's own alone.

All of it is made of released models: it costs nothing. Whoever gave a slot to both deployments has paid for both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.server.estimate import ModelSums
from hushstream.systems.p2b.server.warm_start import WarmStart

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


class Known(NamedTuple):
    """What users began with.

    Attributes:
        model: of the items of the exported model, in its order.
        slots: how many it is made of.
    """

    model: WarmStart
    slots: float


def started(known: WarmStart, cold: WarmStart) -> WarmStart:
    """What users begin with before any window: the exported model, and a cold start for items that it has not."""
    means, variances, count = cold.means.copy(), cold.variances.copy(), len(known.means)
    means[:count], variances[:count] = known.means, known.variances
    return WarmStart(means, variances, known.reward_variance)


def pooled(known: Known, fade: float, own: WarmStart, rows: Int64, behind: Float64, slots: float) -> WarmStart:
    """The model of both.

    Args:
        known: what users began with.
        fade: what is left of the weight of windows before the first one.
        own: of the deployment's own windows.
        rows: (n,) those that stand for items of the exported model, which are its rows, too.
        behind: (n,) how many slots the deployment's own sums of each of them are worth.
        slots: how many all its own sums are worth.
    """
    before, start = fade * known.slots, known.model
    means, variances = own.means.copy(), own.variances.copy()
    weights = (before / (before + behind))[:, None]
    rests = 1.0 - weights
    means[rows] = weights * start.means[rows] + rests * own.means[rows]
    variances[rows] = weights * weights * start.variances[rows] + rests * rests * own.variances[rows]
    weight = before / (before + slots)
    return WarmStart(means, variances, weight * start.reward_variance + (1.0 - weight) * own.reward_variance)


def added(known: ModelSums, ridge: float, own: ModelSums) -> ModelSums:
    """The sums of both.

    Args:
        known: what users began with, on contexts or codes of the same meaning, of the items of the exported model.
        ridge: its least one, which stands in it.
        own: of the deployment's own windows; of none, what a cold learner begins with.
    """
    gram, moment, count = own.gram.copy(), own.moment.copy(), len(known.moment)
    prior = ridge if gram.ndim == known.moment.ndim else ridge * np.eye(gram.shape[-1])
    gram[:count] += known.gram - prior
    moment[:count] += known.moment
    return ModelSums(gram, moment, own.observations + known.observations)
