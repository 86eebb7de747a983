"""What released sums say of how far effects differ: spreads for a forecast, in place of assumed ones.

Each block's raw effects d with variances V (`server.effects`) are taken as N(0, tau^2 + V) with one tau: the most
likely one is the block's spread, and those whose likelihood is at most 1.92 less (95 %, one parameter) make its range.
Three things stand between them and the spreads that the forecast asks for:

* d is measured against the mean of all items, so tau^2 is K/(K - 1) times as large as it is found.
* d is an effect on the log-odds where nothing else is known. With a spread r of all else these are smaller by
  sqrt(1 + c^2 r^2), c = 16 sqrt(3) / (15 pi), by the logistic law with normal log-odds (Zeger, Liang, Albert 1988).

* A code's effect is the mean over the contexts that have it, which differ by sqrt(k^(-2/(d-1))) of the whole spread
  more (`forecast.code_share`).

At which rate a random item is rewarded follows from the share of rewards in the first window, whose users had no model
to start from: it is the rate of whom `forecast.cold_reward` makes such cold learners. What no released sum tells stays
assumed. It all is post-processing of releases, and reads nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.reports.planning.forecast import Habits, Spreads, cold_reward
from hushstream.systems.p2b.server.effects import Float64, RawEffects, log_likelihood

_TAUS = np.linspace(0.0, 1.5, 151)
_WITHIN = 1.92
_ATTENUATION = 16.0 * math.sqrt(3.0) / (15.0 * math.pi)
_ROUNDS = 8
_LEAST_RATE, _MOST_RATE = 1e-4, 0.95
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class EstimatedSpreads:
    """Spreads that released sums are likeliest under.

    Attributes:
        spreads: of items and features; ``rest`` is assumed.
        factors: all spreads times these make a range: 95 % for all that can be learned together.
    """

    spreads: Spreads
    factors: tuple[float, float, float]


def estimated_spreads(
    found: RawEffects, first: float, habits: Habits, rest: float, rate: float | None, seen: float = 1.0
) -> EstimatedSpreads:
    """Spreads from released sums.

    Args:
        found: effects in the sums of all windows.
        first: the share of reports that hold a reward, in those of the first window.
        habits: of users.
        rest: what no sum tells of, assumed.
        rate: at which a random item is rewarded; None where it follows from the first window.
        seen: the share of the variance of contexts' effects that blocks tell: 1 for features, of codes less.
    """
    marginal = {name: _ranged(*one) / (math.sqrt(seen) if name else 1.0) for name, one in _blocks(found).items()}
    arms = len(found.arms[0])
    corrected = {name: one * math.sqrt(arms / max(1, arms - 1)) for name, one in marginal.items()}
    middle = {name: float(one[1]) for name, one in corrected.items()}
    whole = _unattenuated(middle, rest)
    spreads = Spreads(whole.pop(""), whole, rest, 0.1 if rate is None else rate)
    if rate is None:
        spreads = _at_rate(spreads, habits, _cold_of(first, habits))
    return EstimatedSpreads(spreads, _factors(corrected))


def _blocks(found: RawEffects) -> Mapping[str, tuple[Float64, Float64]]:
    return {"": found.arms, **found.blocks}


def _ranged(raw: Float64, variances: Float64) -> Float64:
    """(3,) the least, the most likely and the largest spread of effects with these variances."""
    likelihood = np.array([log_likelihood(raw, variances, tau * tau) for tau in _TAUS])
    near = np.flatnonzero(likelihood >= likelihood.max() - _WITHIN)
    return np.array([_TAUS[near[0]], _TAUS[int(likelihood.argmax())], _TAUS[near[-1]]])


def _unattenuated(marginal: Mapping[str, float], rest: float) -> dict[str, float]:
    """Effects on the log-odds where all else is known."""
    found = dict(marginal)
    for _ in range(_ROUNDS):
        whole = rest * rest + sum(one * one for one in found.values())
        found = {
            name: one * math.sqrt(1.0 + _ATTENUATION**2 * max(0.0, whole - found[name] ** 2))
            for name, one in marginal.items()
        }
    return found


def _factors(ranges: Mapping[str, NDArray[np.float64]]) -> tuple[float, float, float]:
    """How much less and more than the likeliest all spreads together may be.

    Blocks are measured apart from each other, so what they add up to is off by the root of the squares of how far each
    may be off.
    """
    squares = np.array([one**2 for one in ranges.values()])
    low, middle, high = squares[:, 0], squares[:, 1], squares[:, 2]
    together = float(middle.sum())
    if together <= 0:
        return (0.0, 1.0, _MOST_FACTOR)
    less = math.sqrt(float(((middle - low) ** 2).sum())) / together
    more = math.sqrt(float(((high - middle) ** 2).sum())) / together
    return (max(_LEAST_FACTOR, math.sqrt(max(0.0, 1.0 - less))), 1.0, min(_MOST_FACTOR, math.sqrt(1.0 + more)))


def _cold_of(share: float, habits: Habits) -> float:
    """What cold learners earn where so many of their slots hold a reward; the inverse of `forecast.slot_share`."""
    if habits.chance is None:
        return share
    missed = max(1e-9, 1.0 - share / habits.chance)
    return min(_MOST_RATE, max(_LEAST_RATE, -math.expm1(math.log(missed) / habits.before_slot)))


def _at_rate(spreads: Spreads, habits: Habits, cold: float) -> Spreads:
    """The same at the rate at which cold learners earn so much."""
    low, high = _LEAST_RATE, _MOST_RATE
    for _ in range(20):
        middle = math.sqrt(low * high)
        found = Spreads(spreads.arms, spreads.blocks, spreads.rest, middle)
        low, high = (middle, high) if cold_reward(found, habits, habits.before_slot) < cold else (low, middle)
    return Spreads(spreads.arms, spreads.blocks, spreads.rest, math.sqrt(low * high))
