"""Computes how many users a hold-out needs, so that the expected lift can be distinguished from chance.

The test is that of the lift's own report (`hushstream.systems.p2b.lift.lift_of`). It compares the reward rates of two
groups, each of n users with at most m counted decisions. The decisions of a user are assumed to be fully dependent, so
a user counts once, whatever m is. With rates p0 and p1, a share f of users in the hold-out, and noise of variance w on
each sum,

    Var = sum over both groups of  p (1 - p) / n + w (1 + p^2) / (m n)^2

for n users in the hold-out and n (1 - f)/f others. A two-sided test at 5 % finds a true difference D with probability
1 - beta if D = (z_{.975} + z_{1 - beta}) sqrt(Var) (the probability of the other side is below 1e-5).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.lift import lift_tree

POWER = 0.8
_LEVEL = 0.975
ASSUMED_SHARE = 0.1
"""The assumed share of users in the hold-out, if none is configured."""

_MOST = 1 << 50


class HoldoutNeed(NamedTuple):
    """The size of a hold-out that shows a difference.

    Attributes:
        users: n, the number of users in the hold-out.
        power: probability that the difference is shown then.
    """

    users: int
    power: float


def holdout_users(
    config: P2BConfig, without: float, with_model: float, visits: int, power: float = POWER
) -> HoldoutNeed | None:
    """How many users the hold-out needs; None if there is no difference to show.

    Args:
        config: the configuration with the hold-out; without a hold-out a share of .1 is assumed.
        without: p0, the reward rate in the hold-out.
        with_model: p1, the reward rate of the others.
        visits: number of visits of a user.
        power: 1 - beta.
    """
    gain = abs(with_model - without)
    distance = NormalDist().inv_cdf(_LEVEL) + NormalDist().inv_cdf(power)
    rates, each = (without, with_model), min(visits, config.lift.decisions_per_user)
    if gain * gain < distance**2 * _variance(config, rates, each, _MOST):
        return None
    low, high = 0, _MOST
    while high - low > 1:
        middle = (low + high) // 2
        shown = gain * gain >= distance**2 * _variance(config, rates, each, middle)
        low, high = (low, middle) if shown else (middle, high)
    return HoldoutNeed(high, power)


def _variance(config: P2BConfig, rates: tuple[float, float], each: int, users: int) -> float:
    """The variance of the difference of both rates: ``users`` in the hold-out, ``each`` decisions of a user count."""
    share = config.lift.holdout or ASSUMED_SHARE
    noise = _noise(config)
    sizes = (users, users * (1 - share) / share)
    return sum(
        rate * (1 - rate) / size + noise * (1 + rate * rate) / (each * size) ** 2
        for rate, size in zip(rates, sizes, strict=True)
    )


def _noise(config: P2BConfig) -> float:
    """w, the variance of one sum at the counters' middle release, over all learner partitions, in decisions squared."""
    tree = lift_tree(config.lift, config.release.levels)
    leaves = max(1, tree.horizon // 2)
    before = (leaves - 1) * tree.mean_square(leaves - 1) if leaves > 1 else 0.0
    one = leaves * tree.mean_square(leaves) - before
    return config.partitions.learner * one / config.release.levels**2
