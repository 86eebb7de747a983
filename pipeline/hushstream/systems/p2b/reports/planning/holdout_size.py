"""How many users a hold-out needs, so that the lift that is expected will be told from chance.

The test is that of the lift's own report: the difference of two rates of reward, each of n users with at most m counted
decisions that are taken as alike as they can be (`hushstream.systems.p2b.lift.lift_of`): a user counts once,
whatever m is. With rates p0 and p1, a share f of users in the hold-out, and sums that bear noise of variance w,

    Var = sum over both groups of  p (1 - p) / n + w (1 + p^2) / (m n)^2

for n users in the hold-out (the others are n (1 - f)/f). A two-sided test at 5 % finds a true difference D with
probability 1 - beta where D = (z_{.975} + z_{1 - beta}) sqrt(Var) (the other side's chance is below 1e-5).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.lift import lift_tree

POWER = 0.8
_LEVEL = 0.975
ASSUMED_SHARE = 0.1
"""Of users in the hold-out, where none is configured."""

_MOST = 1 << 50


class HoldoutNeed(NamedTuple):
    """What is needed to show a difference.

    Attributes:
        users: n, in the hold-out.
        power: how often the difference will be shown then.
    """

    users: int
    power: float


def holdout_users(
    config: P2BConfig, without: float, with_model: float, visits: int, power: float = POWER
) -> HoldoutNeed | None:
    """How many users the hold-out needs; None where there is no difference to show.

    Args:
        config: whose hold-out it is; without one a share of .1 is assumed.
        without: p0, reward a decision in the hold-out.
        with_model: p1, the others'.
        visits: of a user.
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
    """Of the difference of both rates with so many users in the hold-out, ``each`` of whose decisions count."""
    share = config.lift.holdout or ASSUMED_SHARE
    noise = _noise(config)
    sizes = (users, users * (1 - share) / share)
    return sum(
        rate * (1 - rate) / size + noise * (1 + rate * rate) / (each * size) ** 2
        for rate, size in zip(rates, sizes, strict=True)
    )


def _noise(config: P2BConfig) -> float:
    """w: of one sum at the counters' middle release, over all learner partitions, in whole decisions squared."""
    tree = lift_tree(config.lift, config.release.levels)
    leaves = max(1, tree.horizon // 2)
    before = (leaves - 1) * tree.mean_square(leaves - 1) if leaves > 1 else 0.0
    one = leaves * tree.mean_square(leaves) - before
    return config.partitions.learner * one / config.release.levels**2
