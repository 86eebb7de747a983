"""Chooses between fresh noise for each window and one counter over all windows, from the configuration alone.

A running total over windows that each have fresh noise sums that noise: after t windows its variance is t times
that of one window. A counter's grows with the logarithm of the horizon, but its noise is larger from the first
window on. Both cost a slot, which is in one window, the same epsilon.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hushstream.counting.calibration import PureEpsilon
from hushstream.counting.digits import DEFAULT_HORIZON
from hushstream.counting.errors import BadPlan
from hushstream.counting.tree import best_tree
from hushstream.privacy.amounts import Number

ReleaseChoice = Literal["fresh", "counter"]

_MOST_FADED = 1 << 16
"""Largest number of windows for the comparison if windows fade."""


def fresh_rmse(epsilon: Number, windows: int, sensitivity: int = 1) -> float:
    """Root mean square error of the running total over ``windows`` releases, each window with fresh noise.

    The mean over t = 1..T of t times the variance of discrete Laplace noise of scale sensitivity/epsilon is
    (T + 1) / 2 times that variance.

    Args:
        epsilon: of each window.
        windows: T.
        sensitivity: L1 distance by which a slot moves its window's sums.

    Raises:
        BadPlan, BadNoise: fewer than one window, or a setting for which no noise exists.
    """
    if not isinstance(windows, int) or isinstance(windows, bool) or windows < 1:
        raise BadPlan(f"windows: expected a whole number above 0, got {windows!r}")
    return math.sqrt((windows + 1) / 2 * PureEpsilon(epsilon).node_noise(1, sensitivity, 1).variance)


def counter_rmse(epsilon: Number, windows: int, horizon: int = DEFAULT_HORIZON, sensitivity: int = 1) -> float:
    """The same error for the best tree of the horizon, with one leaf for each window; closed form.

    Args:
        epsilon: of the whole stream.
        windows: T, at most the horizon.
        horizon: T_max, to which the tree is calibrated.
        sensitivity: as for `fresh_rmse`.

    Raises:
        BadPlan, BadNoise: a setting out of range.
    """
    return best_tree(PureEpsilon(epsilon), horizon, sensitivity=sensitivity).rmse(windows)


def choose_release(
    epsilon: Number, expected_windows: int, horizon: int = DEFAULT_HORIZON, sensitivity: int = 1, fade: float = 1.0
) -> ReleaseChoice:
    """``counter`` if its running total has the smaller error over the expected windows, else ``fresh``.

    If windows fade, the errors of the weighted totals are compared, over at most 65,536 windows. With fresh noise of
    variance v, window s adds fade^(2 (t - s)) v to the variance after window t. For a counter the variance follows from
    `NegativeDigitTree.faded_changes`.

    The choice uses no observations, so it reveals nothing. If errors are equal it is ``fresh``, which keeps no state.

    Args:
        epsilon: of a slot.
        expected_windows: how many windows the configuration expects.
        horizon: T_max of the counter, at least ``expected_windows``.
        sensitivity: L1 distance by which a slot moves its window's sums.
        fade: what a window's weight is multiplied by with each later one, in (0, 1].

    Raises:
        BadPlan, BadNoise: a setting out of range.
    """
    kept, fresh = (
        counter_rmse(epsilon, expected_windows, horizon, sensitivity),
        fresh_rmse(epsilon, expected_windows, sensitivity),
    )
    if fade < 1.0:
        windows = min(expected_windows, _MOST_FADED)
        tree = best_tree(PureEpsilon(epsilon), horizon, sensitivity=sensitivity)
        one = PureEpsilon(epsilon).node_noise(1, sensitivity, 1).variance
        kept = _faded_mean(tree.faded_changes(1, windows, fade), fade)
        fresh = _faded_mean(np.full(windows, one), fade)
    return "counter" if kept < fresh else "fresh"


def _faded_mean(changes: NDArray[np.float64], fade: float) -> float:
    """Mean over all steps of a variance: each step multiplies it by fade^2, then adds its own change.

    A change at step s is in the variances of steps s to T with the weights 1, fade^2, ..., fade^(2 (T - s)).
    """
    left = np.arange(len(changes), 0, -1)
    weights = -np.expm1(2.0 * left * math.log(fade)) / (1.0 - fade * fade)
    return float((changes * weights).mean())
