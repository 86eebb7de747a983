"""Means with 95 % intervals from rewards, and the comparison of two conditions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hushstream.replay.report.payoff import Payoff, paired_gap
from hushstream.replay.report.summaries import NORMAL_975, Comparison, paired
from hushstream.replay.report.values import BadResult
from hushstream.replay.studies.p2b.report.results import (
    COLD,
    WARM_NONPRIVATE,
    WARM_PRIVATE,
    ConditionRow,
    ConditionSummary,
    RunResult,
)


def summarise(condition: str, rewards: NDArray[np.float64]) -> tuple[ConditionSummary, tuple[ConditionRow, ...]]:
    """Mean reward of a condition, in all and by interaction.

    The users are the sample. The interval over all interactions comes from the spread of the users' means, because the
    interactions of one user depend on one another.

    Args:
        condition: one of `results.CONDITIONS`.
        rewards: (users, rounds), in [0, 1].

    Raises:
        BadResult: no users or no rounds, or a value that is not in [0, 1].
    """
    if rewards.ndim != 2 or 0 in rewards.shape:
        raise BadResult(f"rewards: expected (users, rounds) with at least one of each, got shape {rewards.shape}")
    if not (rewards.min() >= 0 and rewards.max() <= 1):
        raise BadResult("rewards: expected values in [0, 1], got one outside or not a number")
    users = len(rewards)
    per_user = rewards.mean(axis=1)
    spread = half_width(rewards)
    rows = tuple(
        ConditionRow(condition, number, users, float(mean), float(ci95))
        for number, (mean, ci95) in enumerate(zip(rewards.mean(axis=0), spread, strict=True), start=1)
    )
    return ConditionSummary(float(per_user.mean()), float(half_width(per_user[:, None])[0]), users), rows


def half_width(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Half-width of the 95 % interval of each column's mean, (columns,).

    The spread of a single row is not known, so its half-width is 1, which always covers a mean in [0, 1].

    Args:
        values: (n, columns), independent rows in [0, 1].
    """
    if len(values) < 2:
        return np.ones(values.shape[1])
    return np.asarray(NORMAL_975 * values.std(axis=0, ddof=1) / math.sqrt(len(values)))


def compare(above: ConditionSummary, below: ConditionSummary) -> Comparison | None:
    """The ratio of two means with Fieller's interval (Fieller 1954), or None where it has no bounded one.

    The bounds are the ratios r at which above - r * below is not yet significant: the roots of
    (m_a - r m_b)^2 = c_a^2 + r^2 c_b^2, with m the means and c the half-widths. The conditions are treated as
    independent. They share users and randomness, so the true interval is narrower.
    """
    if below.mean <= below.ci95:
        return None
    leading = below.mean**2 - below.ci95**2
    middle = above.mean * below.mean
    root = math.sqrt(max(0.0, middle**2 - leading * (above.mean**2 - above.ci95**2)))
    return Comparison(above.mean / below.mean, (middle - root) / leading, (middle + root) / leading)


def kept_of(rewards: Mapping[str, NDArray[np.float64]]) -> Comparison | None:
    """Mean reward of warm private users divided by that of warm non-private ones, paired by user; None without both.

    Args:
        rewards: (users, rounds) by condition; row i is the same user in all of them.
    """
    if not {WARM_PRIVATE, WARM_NONPRIVATE} <= rewards.keys():
        return None
    return paired(rewards[WARM_PRIVATE].mean(axis=1), rewards[WARM_NONPRIVATE].mean(axis=1))


def payoff_of(rewards: Mapping[str, NDArray[np.float64]]) -> Payoff | None:
    """Warm private users compared with cold ones, paired by user; None without both. See `kept_of`."""
    if not {WARM_PRIVATE, COLD} <= rewards.keys():
        return None
    private, cold = (rewards[name].mean(axis=1) for name in (WARM_PRIVATE, COLD))
    return Payoff(
        what="mean reward from a private start",
        value=float(private.mean()),
        baseline="users who start cold",
        reference=float(cold.mean()),
        gap=paired_gap(private, cold),
        units="users",
        otherwise="start users cold, or collect more slots or use a larger epsilon",
    )


def headline(result: RunResult) -> Comparison | None:
    """Warm private compared with cold; None where a condition is missing or cold does not differ from 0."""
    if COLD not in result.conditions or WARM_PRIVATE not in result.conditions:
        return None
    return compare(result.conditions[WARM_PRIVATE], result.conditions[COLD])
