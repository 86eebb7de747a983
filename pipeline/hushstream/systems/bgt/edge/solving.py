"""Computations on a device for its own user: offset, factors and predictions. They are never sent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.bgt.configuration import BgtConfig
from hushstream.systems.bgt.edge.ratings import Ratings
from hushstream.systems.bgt.rounds import Model
from hushstream.systems.bgt.slots import Float64, Int64

_AT_ONCE = 128
"""Number of users whose equations are made together, because the products of their ratings' features are in memory at
once."""


def offsets_of(ratings: Ratings, rest: Float64, ridge: float) -> Float64:
    """(U,) each user's mean of (n,) ``rest``, shrunk toward 0 as if by ``ridge`` more ratings of 0."""
    return np.asarray(ratings.sums(rest) / (ratings.counts + ridge))


def solve(ratings: Ratings, rest: Float64, features: Float64, offset_ridge: float, ridge: float) -> Float64:
    """Ridge regression of each user's ``rest`` on [1, features of the item].

    Args:
        ratings: of U users.
        rest: (n,) the values to explain.
        features: (I, k) of the items.
        offset_ridge: the penalty on the constant.
        ridge: the penalty on each feature.

    Returns:
        (U, 1 + k) coefficients, the constant first.
    """
    width = features.shape[1] + 1
    if width == 1:
        return offsets_of(ratings, rest, offset_ridge)[:, None]
    found = np.empty((ratings.users, width))
    penalty = np.diag(np.concatenate(([offset_ridge], np.full(width - 1, ridge))))
    for first in range(0, ratings.users, _AT_ONCE):
        users = slice(first, min(first + _AT_ONCE, ratings.users))
        span = slice(ratings.ends[users.start], ratings.ends[users.stop])
        columns = np.column_stack((np.ones(span.stop - span.start), features[ratings.items[span]]))
        ends = ratings.ends[users.start : users.stop + 1] - span.start
        gram = _sums((columns[:, :, None] * columns[:, None, :]).reshape(len(columns), width**2), ends)
        right = _sums(columns * rest[span, None], ends)
        whole = gram.reshape(-1, width, width) + penalty
        found[users] = np.linalg.solve(whole, right[:, :, None])[:, :, 0]
    return found


def own_features(model: Model, public: Float64, config: BgtConfig) -> Float64:
    """(I, k) explanatory variables of a user's taste: the items' factors and public features."""
    return np.column_stack((model.factors, config.model.feature_scale * public))


def fit(ratings: Ratings, model: Model, public: Float64, config: BgtConfig) -> Float64:
    """(U, 1 + k) offsets and tastes of users under a model; see `own_features`."""
    rest = ratings.values - config.scale.middle - model.biases[ratings.items]
    ridge = config.model.offset_ridge if model.factors.shape[1] else config.model.lone_ridge
    return solve(ratings, rest, own_features(model, public, config), ridge, config.model.factor_ridge)


def predict(
    own: Float64, users: Int64, items: Int64, model: Model, public: Float64, config: BgtConfig
) -> NDArray[np.float64]:
    """(n,) predicted ratings, from 0 to 1.

    Args:
        own: the result of `fit`.
        users: (n,) rows of ``own``.
        items: (n,) the item of each prediction.
        model: the model that ``own`` was fitted under.
        public: (I, f) features of items.
        config: of the deployment.
    """
    features = own_features(model, public, config)[items]
    found = config.scale.middle + model.biases[items] + own[users, 0] + (own[users, 1:] * features).sum(axis=1)
    return np.asarray(np.clip(found, 0.0, 1.0))


def _sums(rows: Float64, ends: Int64) -> Float64:
    """(m, w) sums of the rows from each end to the next."""
    sums = np.zeros((len(ends) - 1, rows.shape[1]))
    there = np.flatnonzero(np.diff(ends))
    if len(there):
        sums[there] = np.add.reduceat(rows, ends[there], axis=0)
    return sums
