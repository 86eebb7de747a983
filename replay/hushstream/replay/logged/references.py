"""Policies that a private one is held against: without any learning, and with learning that is not private."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.logged.models import reward_model

Float64 = npt.NDArray[np.float64]


def references(taught: LoggedDataset, judged: LoggedDataset) -> dict[str, Float64]:
    """Probabilities (n, K) of every reference on the judged rows, by name.

    Args:
        taught: the rows that "popular" and "non-private" learn from, in clear.
        judged: the rows of other users.
    """
    allowed = np.ones((len(judged), judged.arms), dtype=bool) if judged.eligible is None else judged.eligible
    popular = np.broadcast_to(_mean_rewards(taught), allowed.shape)
    return {
        "random": allowed / allowed.sum(axis=1, keepdims=True),
        "popular": one_arm(_best(popular, allowed), judged.arms),
        "non-private": one_arm(_best(reward_model(taught)(judged.contexts), allowed), judged.arms),
    }


def one_arm(arms: npt.NDArray[np.int64], count: int) -> Float64:
    """Probabilities (n, K) of a policy that always shows these arms (n,)."""
    probabilities = np.zeros((len(arms), count))
    probabilities[np.arange(len(arms)), arms] = 1.0
    return probabilities


def _best(scores: Float64, allowed: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    return np.asarray(np.where(allowed, scores, -np.inf).argmax(axis=1), dtype=np.int64)


def _mean_rewards(log: LoggedDataset) -> Float64:
    """By arm; one row of the log's mean is added to each, so that an arm seen once does not win by luck."""
    counts = np.bincount(log.chosen, minlength=log.arms)
    earned = np.bincount(log.chosen, log.rewards, minlength=log.arms)
    return np.asarray((earned + log.rewards.mean()) / (counts + 1), dtype=np.float64)
