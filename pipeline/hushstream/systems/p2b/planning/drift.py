"""Whether the world changes: with which half-life windows of the past foretell the next one best.

For each half-life the effects that all earlier windows give (`server.effects`, with variances D) are held against the
raw effects of the next window (with variances V): the log-likelihood of N(m, V + D), with the tails of Laplace noise,
summed over effects and windows. A half-life is found where it foretells better than none by more than `_LEAST_GAIN`,
which a still world gives hardly ever: forgetting costs it all that the windows before would have told.

It reads released windows alone, so it costs nothing. Windows through a counter have noise that is not their own; there
it is not measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout
from hushstream.systems.p2b.server.effects import Int64, effects, log_likelihood, raw_effects
from hushstream.systems.p2b.server.totals import CrowdTotals

HALF_LIVES = (1.0, 2.0, 4.0, 8.0, 16.0)
"""In windows, the candidates."""

MOST_WINDOWS = 48
"""The newest so many are looked at."""

_LEAST_GAIN = 5.0


class Window(NamedTuple):
    """The sums of one window, the variance of the noise in each, and its slots."""

    ones: Int64
    zeros: Int64
    variance: float
    slots: int


def measured_half_life(layout: FeatureLayout, windows: Sequence[Window]) -> float | None:
    """The half-life, in these windows, with which the past foretells the next one best; None where that is for ever.

    Args:
        layout: of the items that the sums are of.
        windows: with noise of their own, oldest first.
    """
    newest = windows[-MOST_WINDOWS:]
    found = {half_life: _foretold(layout, newest, half_life) for half_life in HALF_LIVES}
    best = max(HALF_LIVES, key=lambda half_life: found[half_life])
    return best if found[best] > _foretold(layout, newest, math.inf) + _LEAST_GAIN else None


def _foretold(layout: FeatureLayout, windows: Sequence[Window], half_life: float) -> float:
    """The log-likelihood of each window but the first, given those before it."""
    totals = CrowdTotals(layout.arms, layout.cells, 2.0 ** (-1.0 / half_life))
    together = 0.0
    for number, window in enumerate(windows):
        if number:
            known = effects(layout, *totals.worth())
            next_one = raw_effects(layout, window.ones, window.zeros, window.variance)
            raw, spread = (
                np.concatenate([one[place].reshape(layout.arms, -1) for one in next_one.blocks.values()], axis=1)
                for place in range(2)
            )
            together += log_likelihood(raw - known.cells, spread + known.cell_variances, 0.0)
            own, own_spread = next_one.arms
            together += log_likelihood(own - known.arms, own_spread + known.arm_variances, 0.0)
        totals.add(window.ones, window.zeros, window.variance, window.slots)
    return together
