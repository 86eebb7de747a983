"""Estimates an item that was added to a running deployment, by a prior from similar items.

A released row is the posterior under a prior that is the same for all items: each coefficient around 0 (the constant
around the mean of all), with the variance T of its block. In a running deployment that prior is wrong. Known items are
shown to users who like them, so the mean click rate is that of liked items, and a new item without data would be shown
to everybody. A better prior is what known items say about a cell, weighted by their similarity to the new item: mean m0
and variance S0, which contains their own uncertainty and the differences between them.

First the prior that shrank the data of the windows is removed. With m, D the released coefficient and its variance, and
c the mean of its prior, the sums alone have the precision and the weighted mean

    s = 1/D - 1/T        s r = m/D - c/T

and the row becomes 1/D' = 1/S0 + s, m' = D' (m0/S0 + s r). T is not released. It is at least each D of its block, and
about the mean of (m - c)^2 + D over the known rows; the larger one is used. So a row without data (D = T) becomes m0,
S0, and a row with many slots stays as it was released.

The variance between users (`OWN_TASTE`) is part of each constant's D, and is not changed by this.
Everything here is post-processing of releases: it costs no privacy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hushstream.learners.sparse import OWN_TASTE, SparseModel
from hushstream.systems.p2b.contribution.feature_layout import FeatureLayout

Float64 = NDArray[np.float64]

_LEAST = 1e-9
"""The smallest variance: smaller ones are replaced by it."""


class Neighbours(NamedTuple):
    """The prior of each cell of a new item, from known items.

    Attributes:
        means: (P,) the means of the known items, weighed by likeness.
        variances: (P,) the variances of the known items, weighed by likeness, plus the variance between their means.
    """

    means: Float64
    variances: Float64


def neighbours(model: SparseModel, others: NDArray[np.intp], weights: Float64) -> Neighbours:
    """Combine some rows of a model into a prior.

    Args:
        model: of K arms and P cells.
        others: (n,) rows, at least one.
        weights: (n,) the weight of each row; they sum to 1.
    """
    means, variances = _columns(model, others)
    mean = means @ weights
    return Neighbours(mean, variances @ weights + (means - mean[:, None]) ** 2 @ weights)


def begin(model: SparseModel, row: int, start: Neighbours) -> None:
    """Set a row of a model to the means and variances of a prior."""
    model.table[:, row], model.table[:, model.arms + row] = start


def lean(model: SparseModel, layout: FeatureLayout, row: int, others: NDArray[np.intp], weights: Float64) -> None:
    """Replace the prior that a row was released with by the prior from its neighbours; see the module.

    Args:
        model: as released; the row changes.
        layout: the layout of the model's cells.
        row: the row of an item that entered late.
        others: (n,) rows of items that did not enter late, at least one.
        weights: (n,) likeness to the row's item; they sum to 1.
    """
    own = np.zeros(len(model.table))
    own[0] = (OWN_TASTE * model.reward_variance) ** 2
    start = neighbours(model, others, weights)
    (means, variances), (mean, variance) = _columns(model, others), _columns(model, np.array([row]))
    middle = np.zeros_like(own)
    middle[0] = means[0].mean()
    spread = np.maximum(variance[:, 0] - own, _LEAST)
    prior = _prior(layout, means - middle[:, None], np.maximum(variances - own[:, None], _LEAST), spread)
    precision = np.maximum(1.0 / spread - 1.0 / prior, 0.0)
    weighted = np.where(precision > 0.0, mean[:, 0] / spread - middle / prior, 0.0)
    before = np.maximum(start.variances - own, _LEAST)
    after = 1.0 / (1.0 / before + precision)
    begin(model, row, Neighbours(after * (start.means / before + weighted), after + own))


def _prior(layout: FeatureLayout, apart: Float64, variances: Float64, spread: Float64) -> Float64:
    """(P,) T of each cell's block, from known rows' (P, n) distances from the middle and variances, and the row's."""
    found = np.empty(len(spread))
    for block in layout.blocks:
        cells = slice(block.first_cell, block.first_cell + block.cells)
        usual = (apart[cells] ** 2 + variances[cells]).mean()
        found[cells] = max(usual, variances[cells].max(), spread[cells].max())
    return found


def _columns(model: SparseModel, rows: NDArray[np.intp]) -> tuple[Float64, Float64]:
    """(P, n) means and variances of some rows."""
    table = model.table.astype(np.float64)
    return table[:, rows], table[:, model.arms + rows]
