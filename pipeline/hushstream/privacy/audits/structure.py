"""What many draws of noise show of their structure: how large each place's noise is, and which places share some.

A pooled audit sees neither. One place without noise hardly moves the mean of fifty, and one draw that all places share
leaves the law of each as it should be, while every difference between places is exact. So here each place (a cell, a
node of a counter, a coordinate of a user) is compared with the law by itself, and with every other place.

Both tests are exact for every number of draws. The probability of a false alarm is divided among all places and all
pairs (Bonferroni). Source of both bounds: Hoeffding 1963; the first is in `Sizes.lower_bound`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import Cost
from hushstream.privacy.audits.audit import FALSE_ALARM, AuditResult
from hushstream.privacy.audits.laws import Sizes
from hushstream.privacy.errors import PrivacyError

Name = Callable[[int], str]
"""Number of a place -> its name in words."""


@dataclass(frozen=True, slots=True, eq=False)
class Noises:
    """The noise of many places, as somebody who knows the content can compute it from releases.

    Attributes:
        drawn: float64 or int64 (runs, places); runs are independent, each under its own nonce.
        name: gives the name of a place.
        sizes: of the noise, if several places are one draw (vectors), float64 (runs, draws); else those of ``drawn``.
    """

    drawn: NDArray[np.float64] | NDArray[np.int64]
    name: Name
    sizes: NDArray[np.float64] | None = None


def audit_structure(noises: Noises, law: Sizes | None, claimed: Cost, false_alarm: float = FALSE_ALARM) -> AuditResult:
    """Test the noise of each place against its law, and of each pair of places for independence.

    Args:
        noises: at least two places.
        law: of the size of each place's noise, at every calibration; None to test independence only.
        claimed: claim of the mechanism.
        false_alarm: half of it is for sizes and half for pairs; without a law all of it is for pairs.

    Raises:
        PrivacyError: fewer than two places, or no run.

    Guarantee:
        An audit promises no privacy. Noise of the claimed calibration whose places are independent, and whose law is
        symmetric, fails with probability at most ``false_alarm``: see `smallest_place` and `shared_noise`.
    """
    runs, places = noises.drawn.shape
    if runs < 1 or places < 2:
        raise PrivacyError(f"audit of structure: expected runs of at least two places, got {runs} of {places}")
    bound, share = None, false_alarm
    if law is not None:
        share = false_alarm / 2
        sizes = np.abs(noises.drawn) if noises.sizes is None else noises.sizes
        bound = smallest_place(sizes, law, share)
    pair = shared_noise(noises.drawn, share)
    structure = "" if pair is None else f"{noises.name(pair[0])} and {noises.name(pair[1])} share noise"
    return AuditResult(claimed, 0.0, runs, false_alarm, (0, 0), bound, structure)


def smallest_place(sizes: NDArray[np.float64] | NDArray[np.int64], law: Sizes, false_alarm: float) -> float:
    """The lower bound on epsilon from the place with the least noise, at confidence 1 - ``false_alarm`` for all places.

    With P places each bound is wrong with probability at most ``false_alarm`` / P, whatever the places share.

    Args:
        sizes: of each place's noise, (runs, P).
        law: see `audit_structure`.
        false_alarm: for all places together.
    """
    runs, places = sizes.shape
    return law.lower_bound(float(sizes.mean(axis=0).min()), runs, false_alarm / places)


def shared_noise(drawn: NDArray[np.float64] | NDArray[np.int64], false_alarm: float) -> tuple[int, int] | None:
    """The two places whose signs agree (or differ) in the most surprising number of runs; None if that may be chance.

    Where both are above or below 0, the signs of independent noise, one of which is symmetric, are equal with
    probability one half. So of n such runs the number of agreements less that of disagreements is beyond s in size with
    probability at most 2 exp(-s^2 / 2n) for each pair (Hoeffding).
    """
    signs = np.sign(drawn).astype(np.float32)
    agreed, counted = signs.T @ signs, np.abs(signs).T @ np.abs(signs)
    surprise = np.divide(agreed**2, 2 * counted, out=np.zeros_like(agreed), where=counted > 0)
    np.fill_diagonal(surprise, 0)
    first, second = divmod(int(surprise.argmax()), len(surprise))
    return (first, second) if surprise[first, second] > surprise_limit(len(surprise), false_alarm) else None


def surprise_limit(places: int, false_alarm: float) -> float:
    """How large s^2 / 2n of some pair may be by chance; see `shared_noise`."""
    return math.log(places * (places - 1) / false_alarm)
