"""Estimates how much more policies would have earned than the logged one, with simultaneous intervals.

Each row of the log gives two values: the reward that was earned, and a doubly robust estimate of a policy's reward.
Their differences are paired, so the variance that both share does not widen the interval of the mean difference. Rows
of one user depend on one another, so the users are the sample. The best of k policies is chosen partly by luck, so each
interval has level 1 - 0.05 / k (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.estimators import doubly_robust_terms
from hushstream.replay.logged.evaluate import FEW_REWARDS, SMALL_SAMPLE
from hushstream.replay.logged.intervals import Interval
from hushstream.replay.logged.log import LoggedDataset

Float64 = npt.NDArray[np.float64]

_ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Gain:
    """The additional reward per decision that a policy would have earned compared with the logged one.

    Attributes:
        policy: name of the policy.
        value: its mean reward, doubly robust.
        gain: ``value`` minus the logged mean reward.
        interval: interval of the gain; the intervals of all policies hold together with 95 % confidence.
    """

    policy: str
    value: float
    gain: float
    interval: Interval

    @property
    def certain(self) -> bool:
        """Whether the interval excludes a gain of 0."""
        return self.interval.low > 0.0


@dataclass(frozen=True, slots=True)
class Gains:
    """All policies compared with the logged one.

    Attributes:
        logged: the logged policy's mean reward.
        rows: rows on which all are evaluated.
        evaluated: the policies that have enough rows, of several users, for an interval; best first.
        left_out: for each other policy, its effective rows, and how many of its rows were rewarded.
        kept: the reward of the first policy of the pair divided by that of the second, and its 95 % interval; None
            where one of them was left out, or the second earns nothing.
    """

    logged: float
    rows: int
    evaluated: tuple[Gain, ...]
    left_out: Mapping[str, tuple[float, int]]
    kept: tuple[float, Interval] | None


def gains(log: LoggedDataset, policies: Mapping[str, Float64], expected: Float64, pair: tuple[str, str]) -> Gains:
    """Compare policies with the one that wrote the log.

    Args:
        log: the rows on which policies are evaluated; must have propensities.
        policies: probabilities (n, K) of each policy.
        expected: (n, K) estimated rewards of every arm, out of fold.
        pair: the policies whose rewards are compared in ``kept``.
    """
    assert log.propensities is not None
    users = np.unique(log.users, return_inverse=True)[1]
    several = int(users.max()) > 0
    effective = {name: _effective(log, probabilities) for name, probabilities in policies.items()}
    terms = {
        name: doubly_robust_terms(probabilities, log.chosen, log.rewards, log.propensities, expected)
        for name, probabilities in policies.items()
        if several and effective[name][0] >= SMALL_SAMPLE and effective[name][1] >= FEW_REWARDS
    }
    distance = NormalDist().inv_cdf(1.0 - _ALPHA / 2 / max(1, len(terms)))
    evaluated = [_gain(name, each, log.rewards, users, distance) for name, each in terms.items()]
    return Gains(
        logged=float(log.rewards.mean()),
        rows=len(log),
        evaluated=tuple(sorted(evaluated, key=lambda one: -one.value)),
        left_out={name: rows for name, rows in effective.items() if name not in terms},
        kept=_kept(terms, pair, users),
    )


def _effective(log: LoggedDataset, probabilities: Float64) -> tuple[float, int]:
    """The effective rows of a policy, and how many of its rows were rewarded."""
    assert log.propensities is not None
    weights = probabilities[np.arange(len(log)), log.chosen] / log.propensities
    total = float(weights.sum())
    return (total**2 / float((weights**2).sum()) if total else 0.0), int(np.count_nonzero(weights * log.rewards))


def _gain(name: str, terms: Float64, rewards: Float64, users: npt.NDArray[np.int64], distance: float) -> Gain:
    mean = float((terms - rewards).mean())
    within = distance * _error(terms - rewards - mean, users)
    return Gain(name, float(terms.mean()), mean, Interval(mean - within, mean + within))


def _kept(
    terms: Mapping[str, Float64], pair: tuple[str, str], users: npt.NDArray[np.int64]
) -> tuple[float, Interval] | None:
    """The ratio of two means, by the delta method."""
    above, below = (terms.get(name) for name in pair)
    if above is None or below is None or below.mean() <= 0.0:
        return None
    ratio = float(above.mean() / below.mean())
    within = NormalDist().inv_cdf(1.0 - _ALPHA / 2) * _error((above - ratio * below) / below.mean(), users)
    return ratio, Interval(ratio - within, ratio + within)


def _error(residuals: Float64, users: npt.NDArray[np.int64]) -> float:
    """The standard error of a mean whose terms depend on one another within a user."""
    count = int(users.max()) + 1
    by_user = np.bincount(users, residuals, minlength=count)
    return math.sqrt(count / (count - 1) * float((by_user**2).sum())) / len(residuals)
