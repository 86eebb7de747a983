"""Audits by the name of a mechanism: the noise as a release draws it, under a key that was never used, attacked."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.audit import FALSE_ALARM, AuditResult, audit_slot_sums
from hushstream.privacy.guarantee import slot_sums_guarantee
from hushstream.privacy.keys import Key
from hushstream.privacy.noise import (
    NONCE_BYTES,
    KeyedStream,
    NoiseAddress,
    checked_add,
    discrete_laplace,
    laplace_scale,
)
from hushstream.privacy.promise import Guarantee
from hushstream.schemas.errors import HushstreamError
from hushstream.systems.configuration import P2BConfig
from hushstream.systems.p2b_promise import guarantee_of

MECHANISMS = ("slot-sums",)
RUNS = 10_000
LEAST_RUNS, MOST_RUNS = 100, 1_000_000


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit found beside what is claimed.

    Attributes:
        mechanism: one of `MECHANISMS`.
        epsilon, levels: of the noise.
        result: the attack's lower bound and the claim.
        guarantee: of the noise that was attacked.
    """

    mechanism: str
    epsilon: float
    levels: int
    result: AuditResult
    guarantee: Guarantee

    def as_json(self) -> dict[str, Any]:
        """Plain values under stable keys."""
        claimed = self.guarantee.as_json()
        return {
            "mechanism": self.mechanism,
            "epsilon": self.epsilon,
            "levels": self.levels,
            "runs": self.result.runs,
            "false_alarm": self.result.false_alarm,
            "epsilon_lower_bound": self.result.epsilon_lower_bound,
            "claimed": {name: claimed[name] for name in ("epsilon", "delta", "epsilon_micro", "delta_units")},
            "passed": self.result.passed,
        }

    def as_text(self) -> str:
        """The finding in plain English, one fact a line."""
        result = self.result
        verdict = "stays within" if result.passed else "EXCEEDS"
        return (
            f"Mechanism: {self.guarantee.mechanism}.\n"
            f"Claimed: {result.claimed}.\n"
            f"Attacked: epsilon is at least {result.epsilon_lower_bound:.4f} (confidence 1 - {result.false_alarm:g}, "
            f"{result.runs} releases with the slot and as many without).\n"
            f"The lower bound {verdict} the claim.\n"
        )


def audit(
    mechanism: str, epsilon: float = 1.0, levels: int = 1, runs: int = RUNS, false_alarm: float = FALSE_ALARM
) -> AuditReport:
    """Attack a mechanism's noise.

    Args:
        mechanism: one of `MECHANISMS`.
        epsilon: of the noise.
        levels: M, reward levels above 0.
        runs: releases on each of two neighbours, `LEAST_RUNS` to `MOST_RUNS`.
        false_alarm: probability with which an honest mechanism fails.

    Raises:
        HushstreamError: an unknown mechanism or an impossible value.
    """
    if mechanism not in MECHANISMS:
        raise HushstreamError(f"audit: expected one of {', '.join(MECHANISMS)}, got {mechanism!r}")
    if not LEAST_RUNS <= runs <= MOST_RUNS or not 0 < false_alarm < 1:
        raise HushstreamError(
            f"audit: expected {LEAST_RUNS} to {MOST_RUNS} runs and a false alarm in (0, 1), got {runs}, {false_alarm}"
        )
    guarantee = slot_sums_guarantee(epsilon, levels)
    result = audit_slot_sums(_slot_sums(epsilon, levels), guarantee.cost, levels, runs, false_alarm)
    return AuditReport(mechanism, epsilon, levels, result, guarantee)


def audit_config(config: P2BConfig, runs: int = RUNS, false_alarm: float = FALSE_ALARM) -> AuditReport:
    """Attack the noise of a configuration, as it is before secret sampling makes it cheaper.

    Raises:
        HushstreamError: the configuration's release has no noise to audit, or `audit` refuses.
    """
    release = config.release
    if release.mode not in MECHANISMS:
        raise HushstreamError(f"audit: expected release.mode {' or '.join(MECHANISMS)}, got {release.mode}")
    if release.sampling < 1:
        raise HushstreamError(
            f"audit: expected release.sampling 1, got {release.sampling:g}; the guarantee "
            f"({guarantee_of(config).cost}) rests on secret coins that this attack does not look at: "
            f"audit its noise by --epsilon and --levels"
        )
    return audit(release.mode, release.epsilon, release.levels, runs, false_alarm)


def _slot_sums(epsilon: float, levels: int) -> Callable[[int, int, int], NDArray[np.int64]]:
    """Releases of one cell's two sums by the keyed noise of the shuffler; a fresh nonce for each call."""
    key = Key(os.urandom(32))
    scale = laplace_scale(epsilon, levels)

    def release(ones: int, zeros: int, runs: int) -> NDArray[np.int64]:
        address = NoiseAddress(
            purpose="release-noise",
            deployment="audit",
            genesis_nonce=os.urandom(NONCE_BYTES),
            system="p2b",
            mechanism="slot-sums",
            parameters={"scale_numerator": scale[0], "scale_denominator": scale[1]},
            config_digest=b"audit",
            epoch=0,
        )
        noise = discrete_laplace(KeyedStream(key, address), *scale, 2 * runs).reshape(runs, 2)
        return checked_add(np.tile(np.array([ones, zeros], dtype=np.int64), (runs, 1)), noise)

    return release
