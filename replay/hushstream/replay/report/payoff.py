"""Compares the private result of a run with learning without others, in one form for all systems.

A study says what it compares (`Payoff.what`, `Payoff.baseline`), gives both values for every user, node or record, and
says what to do where the private result loses. This module makes the sentences, the interval and the verdict.

*Plans.* The picture of a plan: the share of the non-private gain against time, with its range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from hushstream.engine.declare.plan import Plan
from hushstream.privacy.amounts import count_text
from hushstream.privacy.promises.promise import Guarantee
from hushstream.replay.report.sheet import BLUE, INK, Drawing, Sheet, png
from hushstream.replay.result import BadResult

Verdict = Literal["pays", "does not pay", "too close to call"]

_LEVEL = 0.975


@dataclass(frozen=True, slots=True)
class Gap:
    """The difference of two means over the same rows, with its 95 % interval.

    Attributes:
        value: the first mean minus the second.
        low, high: the interval; None with a single group, as its spread cannot be estimated.
        groups: how many independent groups of rows there were.
    """

    value: float
    low: float | None
    high: float | None
    groups: int

    def around(self, value: float) -> Gap:
        """The same interval, moved to another value.

        This serves a difference of which the gap is the linear part.
        """
        if self.low is None or self.high is None:
            return replace(self, value=value)
        return replace(self, value=value, low=self.low + value - self.value, high=self.high + value - self.value)


def paired_gap(ours: NDArray[np.float64], others: NDArray[np.float64], groups: NDArray[np.int64] | None = None) -> Gap:
    """The mean of ``ours`` minus that of ``others`` with a cluster-robust interval (Liang, Zeger 1986).

    With d_i the difference of row i, m its mean over n rows and e_g = sum over group g of (d_i - m), the variance of m
    is estimated as G / (G - 1) * sum e_g^2 / n^2; the interval uses Student's t with G - 1 degrees of freedom. Rows of
    one group may depend on one another in any way; groups (users, nodes) are the sample. The interval does not cover
    the randomness of what a run has learned.

    Args:
        ours: (n,).
        others: (n,), of the same rows.
        groups: (n,) whole numbers; None where each row is a group.

    Raises:
        BadResult: there are no rows, or ``ours`` and ``others`` have different lengths.
    """
    if not len(ours) or ours.shape != others.shape:
        raise BadResult(f"payoff: expected as many values of both, at least one, got {len(ours)} and {len(others)}")
    apart = np.asarray(ours, dtype=np.float64) - others
    mean, rows = float(apart.mean()), len(apart)
    place = np.arange(rows) if groups is None else np.unique(groups, return_inverse=True)[1]
    left = np.bincount(place, apart - mean)
    count = len(left)
    if count < 2:
        return Gap(mean, None, None, count)
    deviation = math.sqrt(count / (count - 1) * float((left**2).sum())) / rows
    half = float(stdtrit(count - 1, _LEVEL)) * deviation
    return Gap(mean, mean - half, mean + half, count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Payoff:
    """The private result, the result without the system, and their difference.

    Attributes:
        what: what was measured, in words; it is written before the value.
        value: the value of the private policy.
        baseline: the policy that it is compared with, in words.
        reference: the value of that policy.
        gap: ``value`` minus ``reference``.
        units: what the interval's groups are, in the plural.
        otherwise: what to do where it does not pay: a clause without a full stop.
        less_is_better: whether a smaller value is the better one.
        digits: digits after the decimal point.
        fitted: where outcomes are those of worlds drawn from a log, how its interval was made, or why there is none.
    """

    what: str
    value: float
    baseline: str
    reference: float
    gap: Gap
    units: str
    otherwise: str
    less_is_better: bool = False
    digits: int = 3
    fitted: str = ""

    @property
    def verdict(self) -> Verdict:
        """Whether the interval lies on one side of 0."""
        if self.gap.low is None or self.gap.high is None or self.gap.low <= 0 <= self.gap.high:
            return "too close to call"
        return "pays" if (self.gap.low > 0) != self.less_is_better else "does not pay"

    @property
    def method(self) -> str:
        """How the interval was computed and what it does not cover, in words."""
        return self.fitted or f"paired over {self.gap.groups:,} {self.units} of this run, whose noise was drawn once"

    @property
    def sentence(self) -> str:
        """One or two sentences that say whether it pays."""
        gap, digits = self.gap, self.digits
        within = f"no interval{self.fitted and f': {self.fitted}'}"
        if gap.low is not None and gap.high is not None:
            within = f"95 % interval {gap.low:+.{digits}f} to {gap.high:+.{digits}f}, {self.method}"
        figures = (
            f"{self.what} {self.value:.{digits}f} against {self.reference:.{digits}f} of {self.baseline} "
            f"({gap.value:+.{digits}f}; {within})."
        )
        where = "In worlds that fit this log" if self.fitted else "In this run"
        begins = {
            "pays": f"{where} it pays",
            "does not pay": f"{where} it does not pay",
            "too close to call": "This log cannot tell whether it pays"
            if self.fitted
            else "Too close to call in this run whether it pays",
        }[self.verdict]
        otherwise = "" if self.verdict == "pays" else f" {self.otherwise[:1].upper()}{self.otherwise[1:]}."
        return f"{begins}: {figures}{otherwise}"

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys; bounds are null where there is no interval."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "what": self.what,
            "value": self.value,
            "baseline": self.baseline,
            "reference": self.reference,
            "difference": self.gap.value,
            "low": self.gap.low,
            "high": self.gap.high,
            "method": self.method,
            "less_is_better": self.less_is_better,
        }


def reached(what: str, privacy: Guarantee) -> str:
    """The first sentence of a report: the result, and its guarantee for one person."""
    return f"{what}, {privacy.phrase()}."


def plan_picture(plan: Plan, deployment: str) -> bytes:
    """A plan as PNG bytes, with its assumptions below; equal plans give equal bytes.

    Raises:
        BadResult: the plan has no figures against time.
    """
    if not plan.points:
        raise BadResult(f"plan: expected a system with figures against time for a picture, got {plan.system}")
    shown = Drawing(
        "plan",
        f"{deployment}: share of {plan.gain} against time",
        plan.verdict,
        plan.verdict,
        partial(_draw, plan),
    )
    facts = (plan.verdict, *(f"Assumed: {one}." for one in plan.assumed), *(_paid(plan)))
    return png(shown, facts)


def _paid(plan: Plan) -> tuple[str, ...]:
    """The guarantee of one person at the end of the plan, as text."""
    last = plan.as_json()["lives"][-1]
    if last["prices"] is None:
        return (f"No {plan.paid} of anybody is released within {count_text(last['days'], 'day')}.",)
    return (f"One person after {count_text(last['days'], 'day')}: {last['prices']}.",)


def _draw(plan: Plan, sheet: Sheet) -> None:
    (axes,) = sheet.panels(1, height=300)
    known = [(point.day, point.share) for point in plan.points if point.share is not None]
    days = [day for day, _ in known]
    low, middle, high = zip(*(share for _, share in known), strict=True)
    axes.fill_between(days, low, high, color=BLUE, alpha=0.18, linewidth=0, step="post")
    # A model is there from one moment on: between two points nothing is interpolated.
    axes.plot(days, middle, color=BLUE, marker="o", drawstyle="steps-post", label="expected, and range")
    if plan.first_day is not None and plan.first_day[1] is not None:
        axes.axvline(plan.first_day[1], color=INK, linestyle="--", linewidth=0.9, label="first day better")
    axes.set(
        xlabel="Day",
        ylabel="Share of the gain",
        ylim=(0, max([1.02, *(1.02 * share.high for _, share in known)])),
        xlim=(0, 1.03 * days[-1]),
    )
    sheet.legend(axes)
