"""Estimates missing columns of a log from the log itself, for each user from the rows of other users (cross-fitting).

Propensities are estimated by a multinomial logistic regression of the arm on the context. Rewards are estimated for
each arm by a ridge regression on the context whose prior mean is the arm's mean reward. A model that was fitted to a
user's own rows would fit their noise, and make intervals too narrow (Chernozhukov et al., "Double/debiased machine
learning", 2018).

A second model of rewards, boosted trees on what the ridge regression misses, says how much the additive form leaves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.evaluate import likelihood_interval
from hushstream.replay.logged.log import LogError, LoggedDataset

FOLDS = 5
LEAST_SHARE = 0.05
"""An estimated propensity is at least this share of 1/K, as smaller estimates are mostly estimation error."""

_RIDGE = 10.0
_FOLDS_STREAM, _ITERATIONS, _PATIENCE = 7, 200, 10

Float64 = npt.NDArray[np.float64]
Predict = Callable[[npt.NDArray[np.float32]], Float64]


def with_estimated_propensities(log: LoggedDataset, seed: int = 0) -> LoggedDataset:
    """Return the log with propensities that are estimated out of fold, and marked as estimated.

    Raises:
        LogError: only one arm was shown, or there is only one user.
    """
    chances = _out_of_fold(log, seed, _propensity_model)
    if log.eligible is not None:
        chances = np.where(log.eligible, chances, 0.0)
    chances /= chances.sum(axis=1, keepdims=True)
    shown = chances[np.arange(len(log)), log.chosen]
    return replace(log, propensities=np.clip(shown, LEAST_SHARE / log.arms, 1.0), estimated=True)


def expected_rewards(log: LoggedDataset, seed: int = 0) -> Float64:
    """Estimate the reward of each arm in each row out of fold, (n, K) in [0, 1]."""
    return np.clip(_out_of_fold(log, seed, reward_model), 0.0, 1.0)


def _out_of_fold(log: LoggedDataset, seed: int, fit: Callable[[LoggedDataset], Predict]) -> Float64:
    found = np.empty((len(log), log.arms))
    for held in _folds(log, seed):
        found[held] = fit(log.select(~held))(log.contexts[held])
    return found


def _folds(log: LoggedDataset, seed: int, folds: int = FOLDS) -> Iterator[npt.NDArray[np.bool_]]:
    """Masks of rows (n,); a user's rows are all in one fold."""
    users = log.user_numbers
    count = int(users.max()) + 1
    if count < 2:
        raise LogError(f"{log.name}: expected at least 2 users, one to estimate from for the other, got {count}")
    fold_of_user = np.random.default_rng([seed, _FOLDS_STREAM]).permutation(count) % min(folds, count)
    for fold in range(min(folds, count)):
        yield fold_of_user[users] == fold


def _propensity_model(log: LoggedDataset) -> Predict:
    from sklearn.linear_model import LogisticRegression

    known = np.unique(log.chosen)
    if len(known) == 1:
        raise LogError(f"{log.name}: expected several arms to be shown, got one: the others cannot be estimated")
    model = LogisticRegression(max_iter=_ITERATIONS).fit(log.contexts, log.chosen)

    def predict(contexts: npt.NDArray[np.float32]) -> Float64:
        chances = np.zeros((len(contexts), log.arms))
        chances[:, known] = model.predict_proba(contexts)
        return np.maximum(chances, LEAST_SHARE / log.arms)

    return predict


def reward_model(log: LoggedDataset) -> Predict:
    """Fit a ridge regression around its mean reward for each arm; an arm without rows gets the mean of the log."""
    means, weights = _ridge(log)
    return lambda contexts: np.asarray(means + contexts @ weights, dtype=np.float64)


def _ridge(log: LoggedDataset) -> tuple[Float64, Float64]:
    """Mean rewards (K,) and weights (d, K)."""
    everywhere = float(log.rewards.mean()) if len(log) else 0.0
    means, weights = np.full(log.arms, everywhere), np.zeros((log.dimension, log.arms))
    for arm in np.unique(log.chosen):
        rows = log.chosen == arm
        contexts = log.contexts[rows].astype(np.float64)
        means[arm] = log.rewards[rows].mean()
        gram = contexts.T @ contexts + _RIDGE * np.eye(log.dimension)
        weights[:, arm] = np.linalg.solve(gram, contexts.T @ (log.rewards[rows] - means[arm]))
    return means, weights


def odds_model(log: LoggedDataset) -> Predict:
    """Fit log-odds that add up, the private model's form, for each arm; an arm without rows gets the log's mean."""
    everywhere, shown = float(log.rewards.mean()), [log.chosen == arm for arm in range(log.arms)]
    fits = [_odds(log.contexts[rows], log.rewards[rows], everywhere) for rows in shown]
    return lambda contexts: np.stack([one(contexts) for one in fits], axis=1)


def _odds(contexts: npt.NDArray[np.float32], rewards: Float64, otherwise: float) -> Predict:
    from sklearn.linear_model import LogisticRegression

    if not 0.0 < rewards.sum() < len(rewards):
        mean = float(rewards.mean()) if len(rewards) else otherwise
        return lambda others: np.full(len(others), mean)
    labels, weights = np.repeat([1, 0], len(rewards)), np.concatenate([rewards, 1.0 - rewards])
    model = LogisticRegression(max_iter=_ITERATIONS).fit(np.tile(contexts, (2, 1)), labels, weights)
    return lambda others: np.asarray(model.predict_proba(others)[:, 1])


def nonlinear_reward_model(log: LoggedDataset, seed: int = 0) -> Predict:
    """Fit boosted trees to what `reward_model` misses; a tree may split by arm, in the order of the arms' rewards."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    additive, (means, _) = reward_model(log), _ridge(log)
    places = means.argsort().argsort().astype(np.float32)
    missed = log.rewards - additive(log.contexts)[np.arange(len(log)), log.chosen]
    trees = HistGradientBoostingRegressor(early_stopping=True, n_iter_no_change=_PATIENCE, random_state=seed)
    # On processors that others use, threads wait for one another for minutes.
    with threadpool_limits(1, "openmp"):
        trees.fit(np.column_stack([log.contexts, places[log.chosen]]), missed)

    def predict(contexts: npt.NDArray[np.float32]) -> Float64:
        beside = [np.column_stack([contexts, np.full(len(contexts), place, np.float32)]) for place in places]
        with threadpool_limits(1, "openmp"):
            return np.asarray(additive(contexts) + np.stack([trees.predict(each) for each in beside], axis=1))

    return predict


def crosses_that_help(taught: LoggedDataset, evaluated: LoggedDataset) -> list[tuple[str, str]]:
    """Pairs of declared features whose cross would predict what log-odds that add up miss, the best first.

    For each pair, means of what is missed, by arm and cell of the cross, are taken from ``taught``. They have to lower
    the squared error on ``evaluated``, rows of other users, significantly: at 5 % for all pairs together.

    Args:
        taught: the rows from which the means are taken.
        evaluated: rows of other users.
    """
    additive = odds_model(taught)
    missed = [one.rewards - additive(one.contexts)[np.arange(len(one)), one.chosen] for one in (taught, evaluated)]
    levels = [_levels(one) for one in (taught, evaluated)]
    pairs = list(combinations(levels[0], 2))
    users, found = evaluated.user_numbers, []
    for pair in pairs:
        left, right = pair
        size = 1 + max(int(one[right].max()) for one in levels)
        most = size * (1 + max(int(one[left].max()) for one in levels))
        cells = [
            one.chosen * most + level[left] * size + level[right]
            for one, level in zip((taught, evaluated), levels, strict=True)
        ]
        sums, rows = (np.bincount(cells[0], one, taught.arms * most) for one in (missed[0], None))
        guess = (sums / (rows + _RIDGE))[cells[1]]
        better = missed[1] ** 2 - (missed[1] - guess) ** 2
        low = likelihood_interval(better, np.ones_like(better), users, 1.0 - 0.1 / len(pairs)).low
        if low > 0.0:
            found.append((low, pair))
    return [pair for _, pair in sorted(found, reverse=True)]


def _levels(log: LoggedDataset) -> dict[str, npt.NDArray[np.int64]]:
    """The level in a cross of each row, (n,), by feature; 0 where it has none."""
    rows = log.schema.read(b"".join(log.schema.encode(one).row for one in log.visits))
    names = [name for name in log.schema.layout.names or () if log.schema.features[name].level_names]
    return {name: 1 + log.schema.features[name].levels(rows[name]) for name in names}


def effects(log: LoggedDataset, seed: int = 0) -> tuple[float, dict[str, float]]:
    """Deviations of effects on rewards in a log: of items' own, and of each block's at a visit.

    Covariances of what two halves of the users give: the error of an estimate does not count as an effect. The ridge
    shrinks effects, so they read low where an item has few rows.
    """
    fits = [_ridge(log.select(half)) for half in _folds(log, seed, 2)]
    contexts = log.contexts.astype(np.float64)
    items = [means - means.mean() for means, _ in fits]
    blocks = {}
    for block in log.schema.table:
        cells = slice(block.first_cell, block.first_cell + block.cells)
        parts = [contexts[:, cells] @ weights[cells] for _, weights in fits]
        apart = [one - one.mean(axis=1, keepdims=True) for one in parts]
        both = [one - one.mean(axis=0) for one in apart]
        items = [own + one.mean(axis=0) for own, one in zip(items, apart, strict=True)]
        blocks[block.name] = _deviation(*both)
    return _deviation(*items), blocks


def _deviation(first: Float64, second: Float64) -> float:
    return math.sqrt(max(0.0, float((first * second).mean())))
