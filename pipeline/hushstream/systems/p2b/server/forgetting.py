"""How the model forgets: the weight of each window, and the effective number of slots of the weighted sums.

With a half-life of h windows, P partitions of the shuffler and f = 2^(-1/(h P)), the newest window of all partitions
has the weight 1, the one before it f, then f^2. If windows of n_s slots have the weights w_s, a weighted sum of counts
has the mean of sum w n slots and the sampling variance of sum w^2 n slots. Multiplied by r = sum w n / sum w^2 n, it
has mean and variance of (sum w n)^2 / sum w^2 n slots. This is the *effective number of slots*, which the weighted sums
are worth. As sums of this many slots, with noise of variance r^2 V, they become a model like any other sums
(`server.fading`). After many windows r = 1 + f, and the effective number is that of (1 + f)/(1 - f) windows, some 2.9
half-lives.

**The noise V.** Fresh windows have independent noise: V = sum w^2 v. With a counter, each window publishes its addition
to the counter's total. So the weighted sum is a weighted difference of prefixes, and its noise is that of the counter's
nodes with the weights that `NegativeDigitTree.faded_changes` derives. The shuffler knows its counter, and publishes
with each window how much V changes beyond fading. The aggregator multiplies V by f^2 and adds this change. A counter's
windows fade by 2^(-1/h) from one to the next, so with several partitions V is exact if they close windows in turn.

**A half-life chosen at run time** (`model.half_life: auto`): the aggregator keeps totals under each of `HALF_LIVES` and
without forgetting, and makes its model from those that predicted the windows so far best (`server.half_lives`).

Everything is post-processing of releases: no weight is part of any sensitivity, and no price depends on one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.server.elementary import halving
from hushstream.systems.p2b.server.half_lives import HALF_LIVES


class Remembered(NamedTuple):
    """How much a model remembers of windows with equal numbers of slots.

    Attributes:
        share: the effective number of slots, as a share of all slots in these windows.
        ratio: r.
    """

    share: float
    ratio: float


def fade_of_windows(config: P2BConfig) -> float:
    """The factor of a window's weight with each later window of its partition; 1 if the model does not forget."""
    return 1.0 if config.set_half_life is None else halving(config.set_half_life)


def fade_of_crowds(config: P2BConfig) -> float:
    """f, the factor of a window's weight with each later window of any partition; 1 if the model does not forget."""
    return 1.0 if config.set_half_life is None else halving(config.set_half_life * config.partitions.shuffler)


def fades_of_crowds(config: P2BConfig) -> tuple[float, ...]:
    """f for every half-life under which the aggregator keeps totals: the configured one, or all to choose from."""
    if config.half_life != "auto":
        return (fade_of_crowds(config),)
    return (1.0, *(halving(half_life * config.partitions.shuffler) for half_life in HALF_LIVES))


def remembered(config: P2BConfig, windows: int) -> Remembered:
    """How much the model remembers after ``windows`` windows of each partition; at least one."""
    fade, count = fade_of_crowds(config), windows * config.partitions.shuffler
    if fade == 1.0:
        return Remembered(1.0, 1.0)
    weights, squares = (-math.expm1(power * count * math.log(fade)) / (1.0 - fade**power) for power in (1, 2))
    return Remembered(weights**2 / squares / count, weights / squares)
