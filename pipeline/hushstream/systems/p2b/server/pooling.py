"""Combines the exported model that a deployment began with, and the model from its own windows.

*Declared features.* An exported model of n0 slots and a model of the deployment's own n1 slots are independent
estimates of the same coefficients. They are pooled with the weight w = n0 / (n0 + n1): the mean is w m0 + (1 - w) m1,
and the variance w^2 D0 + (1 - w)^2 D1. For an item that was added later, n1 is the number of slots since then. With
many slots of its own, a deployment forgets the exported model. If windows fade
(`hushstream.systems.p2b.server.forgetting`), n0 fades with them.

*Codes.* Both models are sums of LinUCB, A = ridge I + sum x x' and b = sum r x, over different interactions. Together
they are A0 + A1 - ridge I and b0 + b1. Either ridge is at least the configured one
(`hushstream.systems.p2b.server.estimate`), so the sum stays positive definite.

Items that are not in the exported model have the deployment's own model alone.

Only released models are used, so this costs no privacy. A person who gave a slot to both deployments has paid in both.
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


def added(known: ModelSums, ridge: float, own: ModelSums) -> ModelSums:
    """Add the sums of the exported model to the deployment's own.

    Args:
        known: the sums of the exported model, on the same contexts or codes.
        ridge: the configured ridge of the exported model; the diagonal of its A includes at least this.
        own: the sums of the deployment's own windows; before any window, those of a cold learner.
    """
    gram, moment, count = own.gram.copy(), own.moment.copy(), len(known.moment)
    prior = ridge if gram.ndim == known.moment.ndim else ridge * np.eye(gram.shape[-1])
    gram[:count] += known.gram - prior
    moment[:count] += known.moment
    return ModelSums(gram, moment, own.observations + known.observations)
