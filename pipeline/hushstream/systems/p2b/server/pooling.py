"""A model that a deployment begins with, and what its own windows add to it.

An exported model of n0 slots and one of a deployment's own n1 slots are estimates of the same coefficients from other
people's slots, so they are pooled as such: with w = n0 / (n0 + n1) the mean is w m0 + (1 - w) m1 and the variance
w^2 D0 + (1 - w)^2 D1. With many slots of its own what a deployment began with is forgotten; where windows fade
(`hushstream.systems.p2b.server.forgetting`), n0 fades with them. Items that the exported model has not are the
deployment's own alone.

All of it is made of released models: it costs nothing. Whoever gave a slot to both deployments has paid for both.
"""

from __future__ import annotations

from hushstream.systems.p2b.model_file import ExportedModel
from hushstream.systems.p2b.server.warm_start import WarmStart


def started(start: ExportedModel, cold: WarmStart) -> WarmStart:
    """What users begin with before any window: the exported model, and a cold start for items that it has not."""
    means, variances, known = cold.means.copy(), cold.variances.copy(), len(start.items)
    means[:known], variances[:known] = start.means, start.variances
    return WarmStart(means, variances, start.reward_variance)


def pooled(start: ExportedModel, own: WarmStart, slots: float, fade: float) -> WarmStart:
    """The model of both.

    Args:
        start: what users began with.
        own: of the deployment's own windows.
        slots: how many its own sums are worth.
        fade: what is left of the weight of windows before the first one.
    """
    before = fade * start.slots
    weight = before / (before + slots)
    rest, known = 1.0 - weight, len(start.items)
    means, variances = own.means.copy(), own.variances.copy()
    means[:known] = weight * start.means + rest * own.means[:known]
    variances[:known] = weight * weight * start.variances + rest * rest * own.variances[:known]
    return WarmStart(means, variances, weight * start.reward_variance + rest * own.reward_variance)
