"""Gaussian belief propagation on the tree of cells: exact posterior means and variances in two passes.

The value at the root has a normal prior of mean 0; the value of a child is its parent's plus a normal step. What was
observed at a cell is a precision W and a weighted sum B = W y. A message over an edge with step variance t turns (W, B)
into (W, B) / (1 + t W). A message to the parent sums up all that was observed at the child and below it; a message to a
child sums up everything else.

Source: Pearl 1988 (Probabilistic Reasoning in Intelligent Systems), chapter 7; on a tree two passes are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Levels = Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]]
"""From the root down: rows of one level, and the rows of their parents."""


def posterior(
    levels: Levels, precision: Float64, weighted: Float64, root_variance: float, steps: Sequence[float]
) -> tuple[Float64, Float64]:
    """Means and variances of the value at every cell, given all observations.

    Args:
        levels: the tree; the first is the root alone.
        precision: W, (rows, columns); columns are independent trees.
        weighted: B, (rows, columns).
        root_variance: prior variance of the root's value.
        steps: variance of a step to level 1, 2, ...

    Returns:
        Mean and variance, each (rows, columns).
    """
    total_w, total_b = precision.copy(), weighted.copy()
    up_w, up_b = np.zeros_like(precision), np.zeros_like(weighted)
    for depth in range(len(levels) - 1, 0, -1):
        rows, parents = levels[depth]
        shrink = 1.0 / (1.0 + steps[depth - 1] * total_w[rows])
        up_w[rows], up_b[rows] = total_w[rows] * shrink, total_b[rows] * shrink
        np.add.at(total_w, parents, up_w[rows])
        np.add.at(total_b, parents, up_b[rows])
    total_w[levels[0][0]] += 1.0 / root_variance
    for depth in range(1, len(levels)):
        rows, parents = levels[depth]
        rest_w, rest_b = total_w[parents] - up_w[rows], total_b[parents] - up_b[rows]
        shrink = 1.0 / (1.0 + steps[depth - 1] * rest_w)
        total_w[rows] += rest_w * shrink
        total_b[rows] += rest_b * shrink
    return total_b / total_w, 1.0 / total_w
