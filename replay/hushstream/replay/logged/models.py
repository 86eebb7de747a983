"""Estimates missing columns of a log from the log itself, for each user from the rows of other users (cross-fitting).

Propensities are estimated by a multinomial logistic regression of the arm on the context. Rewards are estimated for
each arm by a ridge regression on the context whose prior mean is the arm's mean reward. A model that was fitted to a
user's own rows would fit their noise, and make intervals too narrow (Chernozhukov et al., "Double/debiased machine
learning", 2018).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.log import LogError, LoggedDataset

FOLDS = 5
LEAST_SHARE = 0.05
"""An estimated propensity is at least this share of 1/K, as smaller estimates are mostly estimation error."""

_RIDGE = 10.0
_FOLDS_STREAM, _ITERATIONS = 7, 200

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


def _folds(log: LoggedDataset, seed: int) -> Iterator[npt.NDArray[np.bool_]]:
    """Masks of rows (n,); a user's rows are all in one fold."""
    names, user_of_row = np.unique(log.users, return_inverse=True)
    if len(names) < 2:
        raise LogError(f"{log.name}: expected at least 2 users, one to estimate from for the other, got {len(names)}")
    folds = min(FOLDS, len(names))
    fold_of_user = np.random.default_rng([seed, _FOLDS_STREAM]).permutation(len(names)) % folds
    for fold in range(folds):
        yield fold_of_user[user_of_row] == fold


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
    everywhere = float(log.rewards.mean()) if len(log) else 0.0
    means, weights = np.full(log.arms, everywhere), np.zeros((log.dimension, log.arms))
    for arm in np.unique(log.chosen):
        rows = log.chosen == arm
        contexts = log.contexts[rows].astype(np.float64)
        means[arm] = log.rewards[rows].mean()
        gram = contexts.T @ contexts + _RIDGE * np.eye(log.dimension)
        weights[:, arm] = np.linalg.solve(gram, contexts.T @ (log.rewards[rows] - means[arm]))
    return lambda contexts: np.asarray(means + contexts @ weights, dtype=np.float64)
