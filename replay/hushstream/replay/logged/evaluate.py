"""Estimates what a policy would have earned from the log of another policy: rejection replay and importance sampling.

* Rejection replay (Li, Chu, Langford, Wang, "Unbiased offline evaluation of contextual-bandit-based news
  article recommendation algorithms", WSDM 2011, Algorithm 2) runs a learning policy over the log and keeps
  the rows on which it shows what was shown. It is unbiased for a uniform logging policy; for another one, a
  kept row is thinned with probability c / propensity (rejection sampling), where c is at most
  every propensity of the logging policy.
* Inverse propensity scoring weighs each reward by w = pi(shown) / propensity; the self-normalised form
  divides by the sum of the weights in place of n (Swaminathan and Joachims, NeurIPS 2015).

Both need the true propensities, and a logging policy that shows every arm of the new policy with a positive
probability.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hushstream.replay.logged.estimators import estimates
from hushstream.replay.logged.intervals import Interval, likelihood_interval
from hushstream.replay.logged.log import LogError, LoggedDataset

LEAST_EFFECTIVE = 20
"""With fewer effective rows no value is given, as it would be meaningless."""

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
        estimator: ``replay``, ``ips``, ``snips``, ``dm``, ``dr``, ``sndr`` or ``switch-dr``.
        value: the estimate.
        interval: 95 %, by empirical likelihood (`likelihood_interval`).
        effective_sample_size: (sum w)^2 / sum w^2; for replay the rows kept.
        rows: rows of the log.
        largest_weight: the largest importance weight; for replay 1.
        warnings: why the figure may mislead; empty where no reason was found.
    """

    estimator: str
    value: float
    interval: Interval
    effective_sample_size: float
    rows: int
    largest_weight: float
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

    The interval treats kept rewards as independent; for a policy that learns, it describes the mean reward of this run
    alone.

    Raises:
        LogError: no row was kept.
    """
    rewards = log.rewards[kept]
    if not rewards.size:
        raise LogError(f"{log.name}: the policy agreed with none of the {len(log)} rows kept by thinning")
    return PolicyValue(
        estimator="replay",
        value=float(rewards.mean()),
        interval=likelihood_interval(rewards),
        effective_sample_size=float(rewards.size),
        rows=len(log),
        largest_weight=1.0,
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
    earned = weights * log.rewards
    base = weights if self_normalised else np.ones_like(weights)
    effective = total**2 / float((weights**2).sum())
    warnings = list(_sample_warnings(effective, len(log), int(np.count_nonzero(earned))))
    warnings.extend(_weight_warnings(weights))
    return PolicyValue(
        estimator="snips" if self_normalised else "ips",
        value=float(earned.sum() / base.sum()),
        interval=likelihood_interval(earned, base),
        effective_sample_size=effective,
        rows=len(log),
        largest_weight=float(weights.max()),
        warnings=tuple(warnings),
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
    shown = _probabilities_shown(log, probabilities)
    propensities = _propensities(log)
    weights = shown / propensities
    total = float(weights.sum())
    effective = total**2 / float((weights**2).sum()) if total else 0.0
    found = [importance_sampling(log, probabilities, self_normalised=own) for own in (True, False) if total]
    rewarded = int(np.count_nonzero(shown * log.rewards))
    warnings = (*_sample_warnings(effective, len(log), rewarded), *_weight_warnings(weights))
    for name, one in estimates(probabilities, log.chosen, log.rewards, propensities, expected).items():
        modelled = name == "dm"
        found.append(
            PolicyValue(
                estimator=name,
                value=one.value,
                interval=one.interval,
                effective_sample_size=float(len(log)) if modelled else effective,
                rows=len(log),
                largest_weight=1.0 if modelled else float(weights.max()),
                warnings=() if modelled else warnings,
            )
        )
    return found


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


def _weight_warnings(weights: npt.NDArray[np.float64]) -> list[str]:
    """Warn if the mean of the weights is not 1.

    It is 1 where the propensities are right and the logging policy can show every arm of the new policy.
    """
    mean, error = float(weights.mean()), _standard_error(weights)
    # Propensities in a file are rounded, often to four digits.
    if abs(mean - 1.0) > 4.0 * error and abs(mean - 1.0) > _ROUNDED:
        return [
            f"the weights have mean {mean:.3f} in place of 1: the propensities are wrong, or the logging "
            "policy never shows some of what the policy shows"
        ]
    return []
