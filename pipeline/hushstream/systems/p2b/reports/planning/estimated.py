"""Estimates from released sums how far effects differ: spreads for a forecast, in place of assumed ones.

The raw effects d of a block, with variances V (`server.effects`), are modelled as N(0, tau^2 + V) with one tau. The
most likely tau is the block's spread. The values of tau whose log-likelihood is at most 1.92 less (95 %, one parameter)
are its range. Three corrections lead from tau to the spreads that the forecast needs:

* d is measured against the mean of all items, so the true tau^2 is K/(K - 1) times as large.
* d is an effect on the log-odds when nothing else is known. If everything else has a spread r, such effects are smaller
  by sqrt(1 + c^2 r^2), c = 16 sqrt(3) / (15 pi), for logistic probabilities with normal log-odds (Zeger, Liang, Albert
  1988).
* The effect of a code is the mean over the contexts with this code. These differ by a further sqrt(k^(-2/(d-1))) of the
  whole spread (`forecast.code_share`).

The rate at which a random item is rewarded follows from the share of rewards in the first window, whose users started
without a model: it is the rate at which `forecast.cold_reward` gives cold learners this share. Spreads that no released
sum contains stay assumed. Everything is post-processing of releases, and nothing else is read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.systems.p2b.reports.planning.forecast import Spreads, UserBehaviour, cold_reward
from hushstream.systems.p2b.server.effects import Float64, RawEffects, log_likelihood

_TAUS = np.linspace(0.0, 1.5, 151)
_WITHIN = 1.92
_ATTENUATION = 16.0 * math.sqrt(3.0) / (15.0 * math.pi)
_ROUNDS = 8
_LEAST_RATE, _MOST_RATE = 1e-4, 0.95
_LEAST_FACTOR, _MOST_FACTOR = 0.5, 2.0


@dataclass(frozen=True, slots=True)
class EstimatedSpreads:
    """The most likely spreads, given released sums.

    Attributes:
        spreads: of items and features; ``rest`` is assumed.
        factors: the range is all spreads times these: 95 % for all learnable effects together.
    """

    spreads: Spreads
    factors: tuple[float, float, float]


def estimated_spreads(
    found: RawEffects, first: float, behaviour: UserBehaviour, rest: float, rate: float | None, seen: float = 1.0
) -> EstimatedSpreads:
    """Estimate spreads from released sums.

    Args:
        found: effects in the sums of all windows.
        first: the share of reports with a reward in the first window.
        behaviour: of users.
        rest: the assumed spread of effects that no sum contains.
        rate: the rate at which a random item is rewarded; None to compute it from the first window.
        seen: the share of the variance of contexts' effects that blocks contain: 1 for features, less for codes.
    """
    marginal = {name: _ranged(*one) / (math.sqrt(seen) if name else 1.0) for name, one in _blocks(found).items()}
    arms = len(found.arms[0])
    corrected = {name: one * math.sqrt(arms / max(1, arms - 1)) for name, one in marginal.items()}
    middle = {name: float(one[1]) for name, one in corrected.items()}
    whole = _unattenuated(middle, rest)
    spreads = Spreads(whole.pop(""), whole, rest, 0.1 if rate is None else rate)
    if rate is None:
        spreads = _at_rate(spreads, behaviour, _cold_of(first, behaviour))
    return EstimatedSpreads(spreads, _factors(corrected))


def _blocks(found: RawEffects) -> Mapping[str, tuple[Float64, Float64]]:
    return {"": found.arms, **found.blocks}


def _ranged(raw: Float64, variances: Float64) -> Float64:
    """(3,) the least, the most likely and the largest spread of effects with these variances."""
    likelihood = np.array([log_likelihood(raw, variances, tau * tau) for tau in _TAUS])
    near = np.flatnonzero(likelihood >= likelihood.max() - _WITHIN)
    return np.array([_TAUS[near[0]], _TAUS[int(likelihood.argmax())], _TAUS[near[-1]]])


def _unattenuated(marginal: Mapping[str, float], rest: float) -> dict[str, float]:
    """Spreads of effects on the log-odds when everything else is known."""
    found = dict(marginal)
    for _ in range(_ROUNDS):
        whole = rest * rest + sum(one * one for one in found.values())
        found = {
            name: one * math.sqrt(1.0 + _ATTENUATION**2 * max(0.0, whole - found[name] ** 2))
            for name, one in marginal.items()
        }
    return found


def _factors(ranges: Mapping[str, NDArray[np.float64]]) -> tuple[float, float, float]:
    """The factors by which all spreads together may be smaller or larger than the most likely ones.

    Blocks are measured independently, so the error of their sum is the root of the sum of their squared errors.
    """
    squares = np.array([one**2 for one in ranges.values()])
    low, middle, high = squares[:, 0], squares[:, 1], squares[:, 2]
    together = float(middle.sum())
    if together <= 0:
        return (0.0, 1.0, _MOST_FACTOR)
    less = math.sqrt(float(((middle - low) ** 2).sum())) / together
    more = math.sqrt(float(((high - middle) ** 2).sum())) / together
    return (max(_LEAST_FACTOR, math.sqrt(max(0.0, 1.0 - less))), 1.0, min(_MOST_FACTOR, math.sqrt(1.0 + more)))


def _cold_of(share: float, behaviour: UserBehaviour) -> float:
    """The mean reward of cold learners with this share of rewarded slots; the inverse of `forecast.slot_share`."""
    if behaviour.chance is None:
        return share
    missed = max(1e-9, 1.0 - share / behaviour.chance)
    return min(_MOST_RATE, max(_LEAST_RATE, -math.expm1(math.log(missed) / behaviour.before_slot)))


def _at_rate(spreads: Spreads, behaviour: UserBehaviour, cold: float) -> Spreads:
    """The same spreads with the rate at which cold learners have this mean reward."""
    low, high = _LEAST_RATE, _MOST_RATE
    for _ in range(20):
        middle = math.sqrt(low * high)
        found = Spreads(spreads.arms, spreads.blocks, spreads.rest, middle)
        low, high = (middle, high) if cold_reward(found, behaviour, behaviour.before_slot) < cold else (low, middle)
    return Spreads(spreads.arms, spreads.blocks, spreads.rest, math.sqrt(low * high))
