"""Audits: lower bounds on epsilon, with a confidence, from attacks on the running mechanism.

Source: Jagielski, Ullman, Oprea 2020 (Auditing Differentially Private Machine Learning). An audit runs a release on two
neighbouring inputs and lets the best attacker guess the input. From the attacker's rates follows a lower bound on
epsilon. The audit fails if this bound exceeds the claim. The event that the attacker looks for is fixed before the
runs, so its rates are plain binomial proportions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from hushstream.privacy.amounts import Cost, delta_value, epsilon_float
from hushstream.privacy.audits.laws import Family, Sizes
from hushstream.privacy.errors import PrivacyError
from hushstream.privacy.mechanisms.binomial import at_least, at_most, working

FALSE_ALARM = 1e-6
_BISECTIONS = 40
_GUESS = Fraction(1, 1 << 36)
"""Largest error of a guessed confidence bound."""
_BEFORE = 1_000
"""Sums of the audited cell without the slot; any value serves, since the noise is added to it."""

Attack = Callable[[bool, int], NDArray[np.float64]]
"""(is the unit there, runs) -> scores of that many independent releases, (runs,): above 0 the attacker says yes."""

CellRelease = Callable[[int, int, int], NDArray[np.int64]]
"""(exact S1, exact S0, runs) -> noised sums of that many independent releases, int64 (runs, 2)."""


@dataclass(frozen=True, slots=True)
class AuditResult:
    """The result of an audit.

    Attributes:
        claimed: the price that the mechanism claims.
        epsilon_lower_bound: epsilon is at least this, except in a false alarm.
        runs: releases on each of the two neighbours.
        false_alarm: largest probability that a mechanism which keeps its claim fails.
        hits: number of runs in which the attacker said yes, with the unit and without it.
        calibrated_lower_bound: the same against the exact trade-off curve: the epsilon to which the mechanism is
            calibrated is at least this. None where no curve was given.
        structure: places that share noise, in words; empty if none were found.
        remark: a sentence beside the verdict.
    """

    claimed: Cost
    epsilon_lower_bound: float
    runs: int
    false_alarm: float
    hits: tuple[int, int]
    calibrated_lower_bound: float | None = None
    structure: str = ""
    remark: str = ""

    @property
    def strongest(self) -> float:
        """The larger of the bounds."""
        return max(self.epsilon_lower_bound, self.calibrated_lower_bound or 0.0)

    @property
    def passed(self) -> bool:
        """Whether the bounds stay within the claim, and no two places share noise."""
        return not self.structure and self.strongest <= epsilon_float(self.claimed.epsilon_micro)


def audit_attack(
    attack: Attack, claimed: Cost, family: Family | None, runs: int, false_alarm: float = FALSE_ALARM
) -> AuditResult:
    """Attack a mechanism on two neighbours, and compute bounds on epsilon.

    Args:
        attack: runs the mechanism and scores what it releases; fixed before the runs.
        claimed: what the mechanism claims.
        family: its exact trade-off curves, or None.
        runs: releases on each neighbour.
        false_alarm: see `AuditResult`.

    Raises:
        PrivacyError: scores of another shape, or NaN.

    Guarantee:
        An audit promises no privacy. A mechanism that keeps its claim, and whose curve lies within that of the
        claimed calibration, fails with probability at most ``false_alarm``: both bounds follow from one pair of
        confidence bounds, each of which is wrong with half of it.
    """
    hits = _hits(attack(True, runs), runs), _hits(attack(False, runs), runs)
    bound = epsilon_lower_bound(*hits, runs, delta_value(claimed.delta_units), false_alarm)
    calibrated = None
    if family is not None:
        true_rate = lower_confidence(hits[0], runs, false_alarm / 2)
        calibrated = family.lower_bound(true_rate, upper_confidence(hits[1], runs, false_alarm / 2))
    return AuditResult(claimed, bound, runs, false_alarm, hits, calibrated)


def audit_sizes(law: Sizes, mean_size: float, claimed: Cost, draws: int, false_alarm: float) -> AuditResult:
    """A bound on the calibration of a noise from the mean size of many draws; see `Sizes.lower_bound`."""
    bound = law.lower_bound(mean_size, draws, false_alarm)
    return AuditResult(claimed, 0.0, draws, false_alarm, (0, 0), bound)


def _hits(scores: NDArray[np.float64], runs: int) -> int:
    if scores.shape != (runs,) or np.isnan(scores).any():
        raise PrivacyError(f"audit: expected {runs} scores, got shape {scores.shape}")
    return int(np.count_nonzero(scores > 0))


def audit_slot_sums(
    release: CellRelease, claimed: Cost, levels: int, runs: int = 1_000, false_alarm: float = FALSE_ALARM
) -> AuditResult:
    """Attack the noised sums of one cell with a slot of reward level ``levels`` against null.

    For discrete Laplace noise on S1 the likelihood ratio takes its largest value, e^eps, exactly where the
    noised S1 reaches the sum with the slot in it: that is the most powerful test at its level (Neyman,
    Pearson), and at this point the exact trade-off curve of the mechanism touches the (eps, 0) line, so the
    bound below is against the exact curve.

    Args:
        release: the mechanism under audit; called once per neighbour.
        claimed: what it claims for one slot.
        levels: M.
        runs: releases on each neighbour.
        false_alarm: see `AuditResult`.

    Raises:
        PrivacyError: the release gives another shape.

    Guarantee:
        An audit promises no privacy. If the release is (eps, delta)-DP with eps at most the claim, the audit
        fails with probability at most ``false_alarm``: each confidence bound is wrong with half of it. With
        1,000 runs at epsilon 1, half the noise passes with probability under 1e-8 (computed in
        ``tests/privacy/test_audit.py``).
    """
    rates = []
    for reward in (0, levels):
        noised = release(_BEFORE + reward, _BEFORE, runs)
        if noised.shape != (runs, 2):
            raise PrivacyError(f"audit: expected releases of shape {(runs, 2)}, got {noised.shape}")
        rates.append(int(np.count_nonzero(noised[:, 0] >= _BEFORE + levels)))
    false_hits, true_hits = rates
    bound = epsilon_lower_bound(true_hits, false_hits, runs, delta_value(claimed.delta_units), false_alarm)
    return AuditResult(claimed, bound, runs, false_alarm, (true_hits, false_hits))


def epsilon_lower_bound(true_hits: int, false_hits: int, runs: int, delta: Fraction, false_alarm: float) -> float:
    """The lower bound on epsilon that these hits prove, at confidence 1 - ``false_alarm``.

    Args:
        true_hits: runs with the slot in which the event was seen.
        false_hits: runs without it in which it was seen.
        runs: on each side.
        delta: of the claim.
        false_alarm: probability that the bound is too high.

    Returns:
        At least 0. For a true rate t and a false rate f, (eps, delta)-DP asks t <= e^eps f + delta and
        1 - f <= e^eps (1 - t) + delta; t is at least its lower confidence bound, f at most its upper one.
    """
    true_rate = lower_confidence(true_hits, runs, false_alarm / 2)
    false_rate = upper_confidence(false_hits, runs, false_alarm / 2)
    bounds = [0.0]
    for larger, smaller in ((true_rate - delta, false_rate), (1 - false_rate - delta, 1 - true_rate)):
        if larger > smaller > 0:
            bounds.append(math.log(larger / smaller))
    return max(bounds)


def lower_confidence(hits: int, runs: int, error: float) -> Fraction:
    """Clopper and Pearson's lower bound: the largest rate that gives ``hits`` or more at most ``error``."""
    if hits == 0:
        return Fraction(0)
    guess = float(special.betaincinv(hits, runs - hits + 1, error))
    return _enclose(lambda rate: at_least(runs, hits, rate) <= error, guess)[0]


def upper_confidence(hits: int, runs: int, error: float) -> Fraction:
    """Clopper and Pearson's upper bound: the smallest rate that gives ``hits`` or fewer at most ``error``."""
    if hits == runs:
        return Fraction(1)
    guess = float(special.betaincinv(hits + 1, runs - hits, 1 - error))
    return _enclose(lambda rate: at_most(runs, hits, rate) > error, guess)[1]


def _enclose(holds: Callable[[Any], bool], guess: float) -> tuple[Fraction, Fraction]:
    """Enclose the largest rate for which a condition holds.

    A guess by floats shortens the search; exact tails decide.
    """
    low, high = Fraction(guess) - _GUESS, Fraction(guess) + _GUESS
    if low > 0 and high < 1 and holds(working(low)) and not holds(working(high)):
        return low, high
    return _bisect(holds)


def _bisect(holds: Callable[[Any], bool]) -> tuple[Fraction, Fraction]:
    """Enclose the largest rate for which a condition holds, to 2^-40: (it holds here, it does not here)."""
    low, high = Fraction(0), Fraction(1)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if holds(working(middle)):
            low = middle
        else:
            high = middle
    return low, high
