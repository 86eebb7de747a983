"""How the model forgets: what each window weighs, and what the weighed sums are worth.

With a half-life of h windows, P partitions of the shuffler and f = 2^(-1/(h P)), the newest window of all partitions
weighs 1, the one before it f, then f^2. With weights w_s of windows of n_s slots each, a weighed sum of counts has the
sampling variance of sum w^2 n where it has the mean of sum w n. Times r = sum w n / sum w^2 n both are that of
(sum w n)^2 / sum w^2 n slots: so many the weighed sums are *worth*, and as sums of so many slots, with the noise r^2 V,
they become a model like any others (`server.fading`). After many windows r = 1 + f, and the worth is (1 + f)/(1 - f)
windows, some 2.9 half-lives.

**The noise V.** Fresh windows have independent noise: V = sum w^2 v. Windows through a counter publish what each adds
to the counter's total, so their weighed sum is a weighed difference of prefixes, whose noise is that of the counter's
nodes with the weights that `NegativeDigitTree.faded_changes` derives. The shuffler knows its counter and publishes with
each window by how much V changes beyond fading; the aggregator multiplies by f^2 and adds. A counter's windows fade by
2^(-1/h) from one to the next, so with several partitions V is exact where these close windows in turn.

**Chosen as it runs** (`model.half_life: auto`): the aggregator keeps totals under each of `HALF_LIVES` and under none,
and makes its model of those that foretold the windows so far best (`server.half_lives`).

All of it is post-processing of what was released: no weight is part of any sensitivity, and no price depends on one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from hushstream.systems.p2b.configuration import P2BConfig
from hushstream.systems.p2b.server.elementary import halving
from hushstream.systems.p2b.server.half_lives import HALF_LIVES


class Remembered(NamedTuple):
    """What the model makes of windows of equally many slots.

    Attributes:
        share: how many slots the weighed sums are worth, of all slots in these windows.
        ratio: r.
    """

    share: float
    ratio: float


def fade_of_windows(config: P2BConfig) -> float:
    """What the weight of a partition's window is multiplied by with each later one of that partition."""
    return 1.0 if config.set_half_life is None else halving(config.set_half_life)


def fade_of_crowds(config: P2BConfig) -> float:
    """f: what a window's weight is multiplied by with each later one of any partition; 1 where that is not set."""
    return 1.0 if config.set_half_life is None else halving(config.set_half_life * config.partitions.shuffler)


def fades_of_crowds(config: P2BConfig) -> tuple[float, ...]:
    """f of every half-life that the aggregator keeps totals under: the one that is set, or those it chooses among."""
    if config.half_life != "auto":
        return (fade_of_crowds(config),)
    return (1.0, *(halving(half_life * config.partitions.shuffler) for half_life in HALF_LIVES))


def remembered(config: P2BConfig, windows: int) -> Remembered:
    """How much the model remembers after ``windows`` windows (at least one) of each partition."""
    fade, count = fade_of_crowds(config), windows * config.partitions.shuffler
    if fade == 1.0:
        return Remembered(1.0, 1.0)
    weights, squares = (-math.expm1(power * count * math.log(fade)) / (1.0 - fade**power) for power in (1, 2))
    return Remembered(weights**2 / squares / count, weights / squares)
