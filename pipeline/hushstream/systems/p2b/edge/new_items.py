"""What a model says of an item that entered while it was running: items that are like it know more than no item does.

A released row is the posterior under a prior that is the same for all items: each coefficient around 0 (the constant
around the mean of all), with the variance T of its block. In a running deployment that prior misleads. Known items are
shown to those who like them, so the mean click rate is the one of liked items, and everybody would be shown a new item
of which nothing is known. What known items say of a cell, weighed by likeness to the new one, is the better prior:
mean m0 and variance S0, which holds their own uncertainty and how far they differ.

What the windows said is told apart from the prior that they were shrunk with. With m, D the released coefficient and
its variance, c the middle of its prior, the sums alone have precision and weighed mean

    s = 1/D - 1/T        s r = m/D - c/T

and the row becomes 1/D' = 1/S0 + s, m' = D' (m0/S0 + s r). T is not released. It is at least each D of its block, and
about the mean of (m - c)^2 + D over the known rows; the larger is taken, so a row that no window said anything of
(D = T) is m0, S0, and a row of many slots is as it was released.

What users differ in by themselves (`OWN_TASTE`) is part of each constant's D and stays apart from all this.
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
"""Variances below are taken as this."""


class Neighbours(NamedTuple):
    """What known items say of each cell of a new one.

    Attributes:
        means: (P,) by likeness.
        variances: (P,) their own by likeness, and the spread of their means.
    """

    means: Float64
    variances: Float64


def neighbours(model: SparseModel, others: NDArray[np.intp], weights: Float64) -> Neighbours:
    """What some rows of a model say together.

    Args:
        model: of K arms and P cells.
        others: (n,) rows, at least one.
        weights: (n,) of them; they sum to 1.
    """
    means, variances = _columns(model, others)
    mean = means @ weights
    return Neighbours(mean, variances @ weights + (means - mean[:, None]) ** 2 @ weights)


def begin(model: SparseModel, row: int, start: Neighbours) -> None:
    """Let a row of a model say what its neighbours say."""
    model.table[:, row], model.table[:, model.arms + row] = start


def lean(model: SparseModel, layout: FeatureLayout, row: int, others: NDArray[np.intp], weights: Float64) -> None:
    """Put what its neighbours say in the place of the prior that a row was released with.

    Args:
        model: as released; the row changes.
        layout: of its cells.
        row: of an item that entered late.
        others: (n,) rows of items that did not, at least one.
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
    said = np.maximum(1.0 / spread - 1.0 / prior, 0.0)
    weighed = np.where(said > 0.0, mean[:, 0] / spread - middle / prior, 0.0)
    before = np.maximum(start.variances - own, _LEAST)
    after = 1.0 / (1.0 / before + said)
    begin(model, row, Neighbours(after * (start.means / before + weighed), after + own))


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
