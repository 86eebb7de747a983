"""Estimates what a policy would have earned from the log of another policy: rejection replay and importance sampling.

* Rejection replay (Li, Chu, Langford, Wang, "Unbiased offline evaluation of contextual-bandit-based news
  article recommendation algorithms", WSDM 2011, Algorithm 2) runs a learning policy over the log and keeps
  the rows on which it shows what was shown. It is unbiased for a uniform logging policy; for another one, a
  kept row is thinned with probability c / propensity (rejection sampling), where c is at most
  every propensity of the logging policy.
* Inverse propensity scoring weighs each reward by w = pi(shown) / propensity; the self-normalised form
  divides by the sum of the weights in place of n (Swaminathan and Joachims, NeurIPS 2015).
* Doubly robust estimation weighs what an estimate of the rewards missed, and adds the estimate (Dudik, Langford, Li,
  ICML 2011).

All need the true propensities, and a logging policy that shows every arm of the new policy with a positive
probability. Rows of one user depend on one another, so every interval takes users for the sample. Estimators that trade
variance for a bias that is not in their interval (DM, Switch-DR) are left out: with 95 % stated,
Switch-DR covered 68 to 88 %.

*Intervals.* Intervals of means and ratios over users, by empirical likelihood.

Importance-weighted terms are mostly 0, and a few are as large as 1 / propensity. If their mean is too low by chance,
their standard deviation is too small as well. So an interval of 1.96 standard errors ends below the true mean too
often. The interval of empirical likelihood (Owen 1988; for logs of bandits Karampatziakis, Langford, Mineiro, NeurIPS
2020) takes its shape from the terms. It contains the means under all weightings of the rows whose likelihood is not
much below that of equal weights. Rows of one user depend on one another, so each user's sums are one observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from hushstream.replay.logged.log import LogError, LoggedDataset

Float64 = npt.NDArray[np.float64]

_STEPS = 60
_MOST_ROUNDS = 50
_FARTHEST = 1e12
"""The start of the search for v beyond the largest term, in ranges of the terms; there the weights are nearly equal."""


class Interval(NamedTuple):
    """An interval; of 95 % where nothing else is said."""

    low: float
    high: float


def likelihood_interval(
    numerators: Float64, denominators: Float64, users: npt.NDArray[np.int64], level: float = 0.95
) -> Interval:
    """The interval of sum(numerators) / sum(denominators) by empirical likelihood over users.

    Minus twice the logarithm of the likelihood ratio is compared with F(1, m - 1), where m users count (Owen,
    "Empirical likelihood ratio confidence regions", Annals of Statistics 1990, section 3). An end is the largest ratio
    of weighted sums within that distance: where r is the ratio, the largest mean of ``numerators - r denominators`` is
    0, which Dinkelbach's steps reach (Management Science 1967).

    Args:
        numerators: (n,).
        denominators: (n,), >= 0 and not all 0; ones for the interval of a mean.
        users: (n,) whole numbers from 0 on, whose each row is. Users with 0 in both sums do not count.
        level: the probability with which the interval covers the ratio.

    Returns:
        The interval; infinite where fewer than two users count, a point where all terms are equal.
    """
    sums = np.stack([np.bincount(users, numerators), np.bincount(users, denominators)])
    sums = sums[:, (sums != 0).any(axis=0)]
    people = sums.shape[1]
    if people < 2:
        return Interval(-math.inf, math.inf)
    pairs, times = np.unique(sums, axis=1, return_counts=True)
    limit = float(stdtrit(people - 1, (1.0 + level) / 2)) ** 2
    low, high = (_end(side * pairs[0], pairs[1], times.astype(np.float64), limit) for side in (-1.0, 1.0))
    return Interval(-low, high)


def _end(above: Float64, below: Float64, times: Float64, limit: float) -> float:
    """The largest ratio of weighted sums within the limit, over users (m,) that occur ``times`` times each."""
    ratio = float((times * above).sum() / (times * below).sum())
    for _ in range(_MOST_ROUNDS):
        weights = _tilted(above - ratio * below, times, limit)
        found = float((weights * above).sum() / (weights * below).sum())
        if found <= ratio + 1e-12 * max(1.0, abs(ratio)):
            return ratio
        ratio = found
    return ratio


def _tilted(terms: Float64, times: Float64, limit: float) -> Float64:
    """The weights (m,), up to a factor, with the largest mean of the terms within the limit.

    They are 1 / (v - term) for some v above all terms; they are closer to equal for a larger v.
    """
    spread = float(terms.max() - terms.min())
    if spread <= 0.0:
        return times
    rows, gaps = float(times.sum()), (terms.max() - terms) / spread
    near, far = math.log(1.0 / _FARTHEST), math.log(_FARTHEST)
    for _ in range(_STEPS):
        middle = (near + far) / 2
        logs = -np.log(gaps + math.exp(middle))
        # Divided by the largest weight, so that nothing overflows.
        total = float(logs.max()) + math.log(float((times * np.exp(logs - logs.max())).sum()))
        distance = 2.0 * (rows * (total - math.log(rows)) - float((times * logs).sum()))
        near, far = (middle, far) if distance > limit else (near, middle)
    return np.asarray(times / (gaps + math.exp(far)), dtype=np.float64)


LEAST_EFFECTIVE = 20
"""With a smaller effective sample size no value is given, as it would be meaningless."""

SMALL_SAMPLE = 100
SMALL_SHARE = 0.01
FEW_REWARDS = 30
_SUM_TOLERANCE = 1e-6
_ROUNDED = 5e-4
"""Tolerance of the weights' mean around 1, for rounded propensities; smaller than the digits that are shown."""


@dataclass(frozen=True, slots=True)
class PolicyValue:
    """An estimate of the mean reward of a policy.

    Attributes:
        estimator: ``replay``, ``ips``, ``snips`` or ``dr``.
        value: the estimate.
        interval: 95 %, by empirical likelihood over users (`likelihood_interval`).
        effective_sample_size: (sum w)^2 / sum w^2; for replay the rows kept.
        warnings: why the figure may mislead; empty where no reason was found.
    """

    estimator: str
    value: float
    interval: Interval
    effective_sample_size: float
    warnings: tuple[str, ...]


def thinned(log: LoggedDataset, seed: int = 0, least_propensity: float | None = None) -> npt.NDArray[np.bool_]:
    """Select each row with probability c / propensity, (n,); of these a replay keeps the rows where its policy agrees.

    With a uniform logging policy all rows are selected.

    Args:
        log: must have propensities.
        seed: seed of the coins.
        least_propensity: c, a lower bound of the logging policy's propensities; default the least of the log,
            which is exact for a uniform policy and otherwise may be too high for arms that the log never
            shows.

    Raises:
        LogError: the log has no propensities or no rows, or one of them is below the bound.
    """
    propensities = _propensities(log)
    bound = float(propensities.min()) if least_propensity is None else least_propensity
    if not 0.0 < bound <= float(propensities.min()):
        raise LogError(f"{log.name}: least_propensity must be in (0, {propensities.min():g}], got {bound:g}")
    keep: npt.NDArray[np.bool_] = np.random.default_rng(seed).random(len(log)) < bound / propensities
    return keep


def replay_value(log: LoggedDataset, kept: npt.NDArray[np.bool_]) -> PolicyValue:
    """The estimate of a replay that kept the rows in the mask ``kept`` (n,).

    For a policy that learns, the interval describes the mean reward of this run alone. Without a row that was kept,
    there is no value.
    """
    rewards = log.rewards[kept]
    if not rewards.size:
        nothing = ("no row was kept: this policy cannot be evaluated",)
        return PolicyValue("replay", math.nan, Interval(-math.inf, math.inf), 0.0, nothing)
    return PolicyValue(
        estimator="replay",
        value=float(rewards.mean()),
        interval=likelihood_interval(rewards, np.ones_like(rewards), log.user_numbers[kept]),
        effective_sample_size=float(rewards.size),
        warnings=tuple(_sample_warnings(rewards.size, len(log), int(np.count_nonzero(rewards)))),
    )


def importance_sampling(
    log: LoggedDataset,
    probabilities: npt.NDArray[np.floating],
    *,
    self_normalised: bool = True,
) -> PolicyValue:
    """Estimate the value of a fixed policy by importance sampling.

    Each reward has the weight pi(shown) / propensity.

    Args:
        log: must have propensities.
        probabilities: (n, K) action probabilities of the policy for each context, or (n,) those of the arm
            shown.
        self_normalised: divide by the sum of the weights; the estimate is then bounded and usually has much less
            variance, and a bias of O(1/n).

    Raises:
        LogError: the log has no propensities or no rows, ``probabilities`` are invalid, or every weight is 0.
    """
    shown = _probabilities_shown(log, np.asarray(probabilities, dtype=np.float64))
    weights = shown / _propensities(log)
    total = float(weights.sum())
    if total == 0.0:
        raise LogError(f"{log.name}: the policy shows nothing that was shown in any of the {len(log)} rows")
    base = weights if self_normalised else np.ones_like(weights)
    return _estimated(log, "snips" if self_normalised else "ips", weights * log.rewards, base, weights)


def _estimated(
    log: LoggedDataset,
    estimator: str,
    terms: npt.NDArray[np.float64],
    base: npt.NDArray[np.float64],
    weights: npt.NDArray[np.float64],
) -> PolicyValue:
    """The ratio of two sums over the rows, whose importance weights say how much of the log speaks of the policy."""
    effective, rewarded = effective_rows(weights), int(np.count_nonzero(weights * log.rewards))
    return PolicyValue(
        estimator=estimator,
        value=float(terms.sum() / base.sum()),
        interval=likelihood_interval(terms, base, log.user_numbers),
        effective_sample_size=effective,
        warnings=(*_sample_warnings(effective, len(log), rewarded), *_weight_warnings(weights, log.estimated)),
    )


def _propensities(log: LoggedDataset) -> npt.NDArray[np.float64]:
    if not len(log):
        raise LogError(f"{log.name}: the log has no rows")
    if log.propensities is None:
        raise LogError(f"{log.name}: the log has no propensities; without them no other policy can be evaluated")
    return log.propensities


def policy_values(
    log: LoggedDataset,
    probabilities: npt.NDArray[np.float64],
    expected: npt.NDArray[np.float64],
) -> list[PolicyValue]:
    """The values of a fixed policy, or of a policy that learned row by row, by every estimator.

    Decisions of a learning policy depend on earlier rows alone, so each term has the same mean as for a fixed policy.

    Args:
        log: must have propensities.
        probabilities: (n, K) of the policy.
        expected: (n, K) estimated rewards of every arm, out of fold.

    Raises:
        LogError: the log has no propensities or no rows, or ``probabilities`` are invalid.
    """
    weights = _probabilities_shown(log, probabilities) / _propensities(log)
    own = (True, False) if weights.any() else ()
    found = [importance_sampling(log, probabilities, self_normalised=one) for one in own]
    terms = doubly_robust_terms(log, probabilities, expected)
    return [*found, _estimated(log, "dr", terms, np.ones_like(terms), weights)]


def effective_rows(weights: npt.NDArray[np.float64]) -> float:
    """The effective sample size of rows with these weights, (sum w)^2 / sum w^2; 0 if all are 0."""
    total = float(weights.sum())
    return total**2 / float((weights**2).sum()) if total else 0.0


def doubly_robust_terms(
    log: LoggedDataset, probabilities: npt.NDArray[np.float64], expected: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The term of each row, (n,), whose mean is the estimate DR: q(x, pi) + w (r - q(x, shown)).

    Args:
        log: must have propensities.
        probabilities: (n, K) of the policy.
        expected: (n, K), q: estimated rewards of every arm, out of fold.
    """
    rows = np.arange(len(log))
    weights = probabilities[rows, log.chosen] / _propensities(log)
    missed = log.rewards - expected[rows, log.chosen]
    return np.asarray((probabilities * expected).sum(axis=1) + weights * missed)


def _probabilities_shown(log: LoggedDataset, probabilities: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if probabilities.shape not in ((len(log),), (len(log), log.arms)):
        raise LogError(
            f"{log.name}: expected probabilities of shape ({len(log)}, {log.arms}) or ({len(log)},), "
            f"got {probabilities.shape}"
        )
    if not ((probabilities >= 0.0) & (probabilities <= 1.0 + _SUM_TOLERANCE)).all():
        raise LogError(f"{log.name}: expected probabilities in [0, 1]")
    if probabilities.ndim == 1:
        return probabilities
    if np.abs(probabilities.sum(axis=1) - 1.0).max() > _SUM_TOLERANCE:
        raise LogError(f"{log.name}: expected the probabilities of each row to sum to 1")
    if log.eligible is not None and probabilities[~log.eligible].any():
        raise LogError(f"{log.name}: expected probability 0 for arms that were not eligible")
    return probabilities[np.arange(len(log)), log.chosen]


def _standard_error(values: npt.NDArray[np.float64]) -> float:
    if values.size < 2:
        return float("inf")
    return float(values.std(ddof=1)) / float(np.sqrt(values.size))


def _sample_warnings(effective: float, rows: int, rewarded: int) -> list[str]:
    warnings = []
    if effective < SMALL_SAMPLE:
        warnings.append(f"effective sample size {effective:.0f} is below {SMALL_SAMPLE}: do not rely on the interval")
    elif effective < SMALL_SHARE * rows:
        warnings.append(f"effective sample size {effective:.0f} is below {SMALL_SHARE:.0%} of the {rows} rows")
    if rewarded < FEW_REWARDS:
        warnings.append(f"only {rewarded} rewarded rows count: differences between policies are not significant")
    return warnings


def _weight_warnings(weights: npt.NDArray[np.float64], estimated: bool) -> list[str]:
    """Warn if the mean of the weights is not 1.

    It is 1 where the propensities are right and the logging policy can show every arm of the new policy.
    """
    mean, error = float(weights.mean()), _standard_error(weights)
    # Propensities in a file are rounded, often to four digits.
    if abs(mean - 1.0) > 4.0 * error and abs(mean - 1.0) > _ROUNDED:
        return [
            f"the weights have mean {mean:.3f} in place of 1: "
            + ("estimated propensities are off by so much" if estimated else "the propensities are wrong")
            + ", or the logging policy never shows some of what the policy shows"
        ]
    return []
