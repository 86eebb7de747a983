"""Compares a policy with others on the log of one of them, and says whether to deploy it.

Each row of the log gives a doubly robust estimate of the reward of each policy. Differences of two policies are paired,
so the variance that both share does not widen their interval. Rows of one user depend on one another, so the users are
the sample. All baselines are compared at once, so each of k intervals has level 1 - 0.05 / k (Bonferroni): where no
policy is better than any other, a gain is claimed in 5 of 100 logs at most.

Effects may change within a log, while a policy learned from other users over the whole span of it. What goes on is the
gain of the later half, so *deploy* is said only if its 90 % interval there is above 0, too: a gain that ended passes in
5 of 100 logs at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.evaluate import (
    FEW_REWARDS,
    SMALL_SAMPLE,
    Interval,
    doubly_robust_terms,
    effective_rows,
    likelihood_interval,
)
from hushstream.replay.logged.log import LoggedDataset
from hushstream.replay.report.parts import Comparison, gain_kept

Float64 = npt.NDArray[np.float64]

LOGGING, SINGLE, OWN = "logging policy", "best single item", "own learning only"
"""The baselines: the policy that wrote the log; the item that earned most on the rows of other users; users who learn
without one another."""

NEEDED = (LOGGING, SINGLE)
"""The baselines that a policy has to beat."""

_ALPHA = 0.05
_LATER_LEVEL = 0.9
"""Two-sided, so that a gain above 0 in the later half is claimed wrongly in 5 of 100 logs at most."""

Finding = Literal["significantly better", "significantly worse", "no significant difference", "not known"]
Advice = Literal["deploy", "measure first", "more users first", "do not deploy", "no gain shown", "no verdict"]


def finding(interval: Interval | None) -> Finding:
    """What the interval of a difference says; None where too few rows show it."""
    if interval is None:
        return "not known"
    if interval.low > 0.0:
        return "significantly better"
    return "significantly worse" if interval.high < 0.0 else "no significant difference"


def advice(intervals: Mapping[str, Interval | None]) -> Advice:
    """Whether to deploy a policy, from the simultaneous intervals of its differences to the baselines `NEEDED`.

    Deploy what is significantly better than each of them. One that is significantly worse than any is not deployed,
    whatever is known of the other.
    """
    findings = [finding(intervals.get(name)) for name in NEEDED]
    if "significantly worse" in findings:
        return "do not deploy"
    if "not known" in findings:
        return "no verdict"
    return "no gain shown" if "no significant difference" in findings else "deploy"


class Halves(NamedTuple):
    """A difference in the later half of a log's rows, with its 90 % interval, and how it changed from the earlier half.

    The interval of the change holds with that of the other baseline with 95 % confidence.
    """

    later: tuple[float, Interval]
    change: tuple[float, Interval]


@dataclass(frozen=True, slots=True)
class Gains:
    """A policy compared with its baselines.

    Attributes:
        policy: the name of the policy.
        rows: rows on which all are evaluated.
        rewards: mean rewards, doubly robust, of the policies that enough rows of several users show; and the mean of
            the log as that of `LOGGING`.
        differences: the policy's reward minus that of each baseline, with intervals that hold together with 95 %
            confidence; None where one of both rewards is not known.
        halves: the differences to the baselines `NEEDED` that are known, by halves of the log.
        kept: the share of the gain over `OWN` that is kept of the gain without privacy; None where that is not known,
            or not significantly above 0.
        left: what a nonlinear policy earns beyond the one without privacy, with its 95 % interval; None where that is
            not known, or the rows on which they differ have too small an effective sample size: of intervals from
            sizes below 30, 64 of 93 held.
        left_out: for each policy without a reward, its effective sample size, and how many of its rows were rewarded.
        estimated: whether the propensities were estimated: then no interval holds if what was shown followed more than
            the features, so a gain is measured before anything is deployed.
        room: what the policy without privacy earns beyond this one, with its 95 % interval; None where that is not
            known.
        draws: the rewards of the policy by draw of its noise, where that was drawn more than once: all else is of the
            policy that takes each draw as often.
    """

    policy: str
    rows: int
    rewards: Mapping[str, float]
    differences: Mapping[str, tuple[float, Interval] | None]
    halves: Mapping[str, Halves]
    kept: Comparison | None
    left: tuple[float, Interval] | None
    left_out: Mapping[str, tuple[float, int]]
    estimated: bool = False
    room: tuple[float, Interval] | None = None
    draws: tuple[float, ...] = ()

    @property
    def advice(self) -> Advice:
        """Whether to deploy the policy."""
        found = advice({name: None if one is None else one[1] for name, one in self.differences.items()})
        if found != "deploy":
            return found
        if self.estimated or self.ended:
            return "measure first"
        return "deploy" if finding(self.own) in ("significantly better", "not known") else "more users first"

    @property
    def own(self) -> Interval | None:
        """The interval of the difference to `OWN`; None where that is not known."""
        known = self.differences.get(OWN)
        return None if known is None else known[1]

    @property
    def missed(self) -> float:
        """A gain that a log like this misses as often as it shows it: smaller ones are missed more often.

        An interval around the true gain lies above 0 with a chance of one half if the gain is half its width. What is
        significantly better than one baseline already misses a gain over the other alone.
        """
        known = [one[1] for name in NEEDED if (one := self.differences.get(name)) is not None]
        equal = [one for one in known if finding(one) == "no significant difference"]
        return max((one.high - one.low) / 2 for one in equal or known)

    @property
    def ended(self) -> tuple[str, ...]:
        """The baselines than which the policy is not significantly better in the later half of the log."""
        return tuple(name for name, one in self.halves.items() if finding(one.later[1]) != "significantly better")


def gains(
    log: LoggedDataset,
    policies: Mapping[str, Float64],
    expected: Float64,
    policy: str,
    baselines: Mapping[str, str],
    exact: str = "",
    nonlinear: str = "",
) -> Gains:
    """Compare a policy with the one that wrote the log, and with others.

    Args:
        log: the rows on which policies are evaluated, in the order of time; must have propensities.
        policies: probabilities (n, K) of each policy.
        expected: (n, K) estimated rewards of every arm, out of fold.
        policy: the policy that is compared.
        baselines: by `SINGLE` and `OWN`, the names of the policies that it is compared with.
        exact: the policy without privacy.
        nonlinear: the policy of a nonlinear model without privacy.
    """
    users = log.user_numbers
    effective = {name: _effective(log, probabilities) for name, probabilities in policies.items()}
    terms = {LOGGING: log.rewards} | {
        name: doubly_robust_terms(log, probabilities, expected)
        for name, probabilities in policies.items()
        if users.any() and effective[name][0] >= SMALL_SAMPLE and effective[name][1] >= FEW_REWARDS
    }

    def apart(one: str, other: str, alpha: float) -> tuple[float, Interval] | None:
        if one not in terms or other not in terms:
            return None
        rows = terms[one] - terms[other]
        return float(rows.mean()), likelihood_interval(rows, np.ones_like(rows), users, 1.0 - alpha)

    others = {LOGGING: LOGGING, **baselines}
    own = baselines.get(OWN, "")
    kept = left = None
    if {exact, nonlinear} <= terms.keys():
        differ = _effective(log, np.abs(policies[nonlinear] - policies[exact]))[0]
        left = apart(nonlinear, exact, _ALPHA) if differ >= SMALL_SAMPLE else None
    if {policy, exact, own} <= terms.keys():
        kept = gain_kept(terms[policy], terms[exact], terms[own], users)
    return Gains(
        policy=policy,
        rows=len(log),
        rewards={name: float(one.mean()) for name, one in terms.items()},
        differences={name: apart(policy, other, _ALPHA / len(others)) for name, other in others.items()},
        halves={
            name: _halves(terms[policy] - terms[others[name]], users)
            for name in NEEDED
            if {policy, others[name]} <= terms.keys()
        },
        kept=kept,
        left=left,
        left_out={name: rows for name, rows in effective.items() if name not in terms},
        estimated=log.estimated,
        room=apart(exact, policy, _ALPHA),
    )


def _halves(rows: Float64, users: npt.NDArray[np.int64]) -> Halves:
    """A difference by halves, from its term of each row (n,) in the order of time.

    The change is a mean of influences: of each row, what it is off the mean of its half, over the half's share of rows.
    """
    late = np.arange(len(rows)) >= len(rows) // 2
    means = rows[~late].mean(), rows[late].mean()
    change = float(means[1] - means[0])
    influences = change + np.where(late, (rows - means[1]) / late.mean(), (means[0] - rows) / (1.0 - late.mean()))
    return Halves(
        (float(means[1]), likelihood_interval(rows * late, late.astype(np.float64), users, _LATER_LEVEL)),
        (change, likelihood_interval(influences, np.ones_like(rows), users, 1.0 - _ALPHA / len(NEEDED))),
    )


def _effective(log: LoggedDataset, probabilities: Float64) -> tuple[float, int]:
    """The effective sample size of a policy, and how many of its rows were rewarded."""
    assert log.propensities is not None
    weights = probabilities[np.arange(len(log)), log.chosen] / log.propensities
    return effective_rows(weights), int(np.count_nonzero(weights * log.rewards))
