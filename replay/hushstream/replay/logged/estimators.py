"""Estimates the value of a policy from the log of another, with a reward model: DM, DR, SNDR and Switch-DR.

With pi the policy's probabilities, p the propensities, w = pi(shown) / p, r the reward, q(x, a) an estimate of rewards
and q(x, pi) = sum_a pi(a) q(x, a), all as means over rows:

* DM: q(x, pi).
* DR: q(x, pi) + w (r - q(x, shown)) (Dudik, Langford, Li, ICML 2011).
* SNDR: DR with the second term over mean w (Thomas, Brunskill, ICML 2016).
* Switch-DR: DR with the second term only where w is at most tau (Wang, Agarwal, Dudik, ICML 2017).

IPS and SNIPS, which need no such estimate, are in `hushstream.replay.logged.evaluate`. Intervals are normal intervals
of means, for SNDR by the delta method. They do not contain the error of q.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.intervals import Interval, likelihood_interval

Float64 = npt.NDArray[np.float64]

SWITCH_AT = 10.0
"""The default tau of Switch-DR; a row with a larger weight uses the reward model alone."""

MODELLED = ("dm", "dr", "sndr", "switch-dr")


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with its 95 % interval.

    The interval of DM is a point, as the rows do not show the error of the reward model.
    """

    value: float
    interval: Interval


def estimates(
    probabilities: Float64,
    chosen: npt.NDArray[np.int64],
    rewards: Float64,
    propensities: Float64,
    expected: Float64,
    tau: float = SWITCH_AT,
) -> dict[str, Estimate]:
    """Every estimator by name, in the order of `MODELLED`; SNDR only where a weight is above 0.

    Args:
        probabilities: (n, K) probabilities of the policy.
        chosen: (n,) arms that were shown.
        rewards: (n,) rewards of these arms.
        propensities: (n,) probabilities with which they were shown.
        expected: (n, K) estimated rewards of every arm.
        tau: the threshold of Switch-DR.
    """
    places = np.arange(len(chosen))
    weights = probabilities[places, chosen] / propensities
    modelled = (probabilities * expected).sum(axis=1)
    missed = rewards - expected[places, chosen]
    kept = np.where(weights <= tau, weights, 0.0)
    mean = float(modelled.mean())
    found = {
        "dm": Estimate(mean, Interval(mean, mean)),
        "dr": _mean(doubly_robust_terms(probabilities, chosen, rewards, propensities, expected)),
        "switch-dr": _mean(modelled + kept * missed),
    }
    size = float(weights.mean())
    if size > 0.0:
        scaled = weights / size
        ratio = float((scaled * missed).mean())
        # The delta method: the linear part of a ratio of means around its value.
        found["sndr"] = _mean(modelled + ratio + scaled * (missed - ratio))
    return {name: found[name] for name in MODELLED if name in found}


def doubly_robust_terms(
    probabilities: Float64,
    chosen: npt.NDArray[np.int64],
    rewards: Float64,
    propensities: Float64,
    expected: Float64,
) -> Float64:
    """The term of each row, (n,), whose mean is the estimate DR; the arguments are those of `estimates`."""
    places = np.arange(len(chosen))
    weights = probabilities[places, chosen] / propensities
    return np.asarray((probabilities * expected).sum(axis=1) + weights * (rewards - expected[places, chosen]))


def _mean(terms: Float64) -> Estimate:
    return Estimate(float(terms.mean()), likelihood_interval(terms))
