"""Audits by the name of a mechanism: they attack noise that is drawn as in a release, under a new key."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hushstream.privacy.amounts import epsilon_float
from hushstream.privacy.audits.audit import FALSE_ALARM, audit_slot_sums
from hushstream.privacy.audits.laws import laplace_pair, pure
from hushstream.privacy.audits.power import attack_power, reaching
from hushstream.privacy.keys import Key
from hushstream.privacy.mechanisms.guarantee import slot_sums_guarantee
from hushstream.privacy.mechanisms.noise import (
    NONCE_BYTES,
    KeyedStream,
    NoiseAddress,
    checked_add,
    discrete_laplace,
    laplace_scale,
)
from hushstream.replay.audits.report import RUNS, AuditReport, require_runs
from hushstream.schemas.errors import HushstreamError

MECHANISMS = ("slot-sums",)


def audit(
    mechanism: str, epsilon: float = 1.0, levels: int = 1, runs: int = RUNS, false_alarm: float = FALSE_ALARM
) -> AuditReport:
    """Attack a mechanism's noise.

    Args:
        mechanism: one of `MECHANISMS`.
        epsilon: epsilon of the noise.
        levels: M, reward levels above 0.
        runs: releases on each of two neighbours, `LEAST_RUNS` to `MOST_RUNS`.
        false_alarm: the probability that an honest mechanism fails.

    Raises:
        HushstreamError: an unknown mechanism or an impossible value.
    """
    if mechanism not in MECHANISMS:
        raise HushstreamError(f"audit: expected one of {', '.join(MECHANISMS)}, got {mechanism!r}")
    require_runs(runs, false_alarm)
    guarantee = slot_sums_guarantee(epsilon, levels)
    result = audit_slot_sums(_slot_sums(epsilon, levels), guarantee.cost, levels, runs, false_alarm)
    family, rates = pure(lambda other: laplace_pair(other, 1, levels).power), reaching(levels)
    claim = epsilon_float(guarantee.cost.epsilon_micro)
    least = attack_power(family, claim, runs, false_alarm, rates)
    return AuditReport(mechanism, {"epsilon": epsilon, "levels": levels}, result, guarantee, least=least)


def _slot_sums(epsilon: float, levels: int) -> Callable[[int, int, int], NDArray[np.int64]]:
    """Releases of one cell's two sums with the shuffler's keyed noise; every call has a new nonce."""
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
